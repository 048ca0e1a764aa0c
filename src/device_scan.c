/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device_scan.c - finds the ports: ACTIVE ones, and down ones that NCCL_IB_HCA names exactly.
 *
 * Invariant: a device that cannot be opened or asked is left out with one line and never hides
 * another. Order and numbers depend on PCI addresses and names only, so that equal hosts agree.
 * Must not start threads: that is device.c's part.
 */
#define _GNU_SOURCE /* strverscmp */
#include "device_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "device_hca.h"
#include "device_sys.h"
#include "util.h"

/* Mbit/s of one lane by the verbs' speed bit, SDR to XDR. */
static uint32_t lane_mbps(uint32_t speed)
{
	static const uint32_t mbps[] = {2500,  5000,  10000,  10000, 14000,
					25000, 50000, 100000, 200000};
	unsigned bit = speed ? (unsigned)__builtin_ctz(speed) : 0;

	return bit < ARRAY_SIZE(mbps) ? mbps[bit] : mbps[ARRAY_SIZE(mbps) - 1];
}

static uint32_t lane_count(uint32_t width)
{
	switch (width) {
	case 2:
		return 4;
	case 4:
		return 8;
	case 8:
		return 12;
	case 16:
		return 2;
	case 1:
	default:
		return 1;
	}
}

static uint32_t port_mbps(struct ibv_context *ctx, uint8_t num, const struct ibv_port_attr *attr)
{
	uint64_t mbps;

	if (config.ib_query_port_speed && verbs.query_port_speed(ctx, num, &mbps) == 0 &&
	    mbps > 0 && mbps <= INT32_MAX)
		return (uint32_t)mbps;
	return lane_mbps(attr->active_speed) * lane_count(attr->active_width);
}

/* A registration of no descriptor: what fails for the descriptor's sake is known to the driver. */
static bool has_dmabuf(struct ibv_context *ctx, const char *name)
{
	int probe;
	struct ibv_mr *mr;
	struct ibv_pd *pd;
	int rc;

	if (verbs.alloc_pd(ctx, &pd))
		return false;
	probe = verbs.reg_dmabuf_mr(pd, 0, 0, 0, -1, 0, &mr);
	if (probe == 0)
		(void)verbs.dereg_mr(mr);
	rc = verbs.dealloc_pd(pd);
	if (rc)
		log_warn("%s: the protection domain of a probe was not freed (%s)", name,
			 strerror(-rc));
	return probe != -EOPNOTSUPP && probe != -EPROTONOSUPPORT;
}

static void port_fill(struct port *port, struct hca *hca, uint8_t num,
		      const struct ibv_device_attr *attr, const struct ibv_port_attr *port_attr)
{
	char ibdev[IBV_SYSFS_NAME_MAX];

	memset(port, 0, sizeof(*port));
	memcpy(ibdev, hca->name, sizeof(ibdev));
	memcpy(port->ibdev, ibdev, sizeof(port->ibdev));
	snprintf(port->name, sizeof(port->name), "%s:%u", ibdev, num);
	port->num = num;
	port->link_layer = port_attr->link_layer;
	port->ctx = hca->ctx;
	port->attr = *attr;
	port->guid = attr->sys_image_guid;
	port->mbps = port_mbps(hca->ctx, num, port_attr);
	port->word.mbps = port->mbps;
	port->word.down = port_attr->state != IBV_PORT_ACTIVE;
	port->worker = &hca->worker;
	port->pci_path = device_sys_pci(hca->name, config.ib_merge_vfs != 0, &port->pci_address);
}

static bool port_usable(struct ibv_context *ctx, const char *name, uint8_t num,
			const struct hca_match *match, struct ibv_port_attr *attr)
{
	int rc;

	if (!match->used)
		return false;
	rc = verbs.query_port(ctx, num, attr);
	if (rc) {
		log_warn("%s:%u cannot be asked for its state (%s): left out", name, num,
			 strerror(-rc));
		return false;
	}
	if (attr->link_layer != IBV_LINK_LAYER_INFINIBAND &&
	    attr->link_layer != IBV_LINK_LAYER_ETHERNET)
		return false;
	return attr->state == IBV_PORT_ACTIVE || match->named;
}

/* Returns the number of ports kept. */
static int ports_scan(struct device_set *set, struct hca *hca, const struct hca_filter *filter,
		      const struct ibv_device_attr *attr)
{
	int kept = 0;

	for (int num = 1; num <= attr->phys_port_cnt; num++) {
		struct hca_match match = hca_match(filter, hca->name, num, attr->phys_port_cnt);
		struct ibv_port_attr port_attr;
		struct port *port;

		if (!port_usable(hca->ctx, hca->name, (uint8_t)num, &match, &port_attr))
			continue;
		if (set->port_count == PORTS_MAX) {
			log_warn("more than %d ports: %s:%d and later ones are left out; "
				 "choose with NCCL_IB_HCA",
				 PORTS_MAX, hca->name, num);
			break;
		}
		port = &set->port[set->port_count++];
		port_fill(port, hca, (uint8_t)num, attr, &port_attr);
		port->rail_id = match.rail;
		port->plane_id = match.plane;
		kept++;
	}
	return kept;
}

static void capabilities_fill(struct device_set *set, int from, struct ibv_context *ctx)
{
	bool dmabuf = has_dmabuf(ctx, set->hca[set->hca_count].name);
	bool peermem = device_sys_peermem();

	for (int i = from; i < set->port_count; i++) {
		set->port[i].has_dmabuf = dmabuf;
		set->port[i].has_peermem = peermem;
	}
}

static void device_scan_one(struct device_set *set, struct ibv_device *device,
			    const struct hca_filter *filter)
{
	const char *name = verbs.get_device_name(device);
	struct hca *hca = &set->hca[set->hca_count];
	int from = set->port_count;
	struct ibv_device_attr attr;
	int rc;

	if (set->hca_count == PORTS_MAX || !name)
		return;
	memset(hca, 0, sizeof(*hca));
	snprintf(hca->name, sizeof(hca->name), "%s", name);
	rc = verbs.open_device(device, &hca->ctx);
	if (rc) {
		log_warn("%s cannot be opened (%s): left out", hca->name, strerror(-rc));
		return;
	}
	rc = verbs.query_device(hca->ctx, &attr);
	if (rc)
		log_warn("%s cannot be asked for its limits (%s): left out", hca->name,
			 strerror(-rc));
	if (rc || ports_scan(set, hca, filter, &attr) == 0) {
		(void)verbs.close_device(hca->ctx);
		return;
	}
	capabilities_fill(set, from, hca->ctx);
	set->hca_count++;
}

/* By PCI address; ports without one after those with; then by name, digits as numbers. */
static int port_compare(const void *a, const void *b)
{
	const struct port *x = a;
	const struct port *y = b;

	if (x->pci_address != y->pci_address)
		return x->pci_address < y->pci_address ? -1 : 1;
	return strverscmp(x->name, y->name);
}

/*
 * NCCL tells ports of one card (one guid) apart by number: the functions of a card, which have the
 * same merged path and mostly one port each, must not all be port 1.
 */
static void ports_number(struct device_set *set)
{
	for (int i = 0; i < set->port_count; i++) {
		struct port *port = &set->port[i];

		port->nccl_port = port->num;
		for (int j = 0; j < i && port->pci_path; j++) {
			const char *earlier = set->port[j].pci_path;

			port->nccl_port += earlier && strcmp(earlier, port->pci_path) == 0;
		}
	}
}

static void filter_load(struct hca_filter *filter)
{
	char why[128];

	if (hca_parse(config.ib_hca, filter, why, sizeof(why)))
		log_warn("NCCL_IB_HCA=%s: %s (allowed: [^][=]name[:port[:rail[:plane]]],... of at "
			 "most %d entries); using the default, all ports",
			 config.ib_hca, why, HCA_ENTRIES_MAX);
}

int device_scan(struct device_set *set)
{
	struct ibv_device **list;
	struct hca_filter filter;
	int count, rc;

	memset(set, 0, sizeof(*set));
	filter_load(&filter);
	rc = verbs.get_device_list(&list, &count);
	if (rc) {
		log_warn("no list of RDMA devices (%s): is an RDMA driver loaded?", strerror(-rc));
		return rc;
	}
	for (int i = 0; i < count; i++)
		device_scan_one(set, list[i], &filter);
	verbs.free_device_list(list);
	if (config.ib_device_pci_order)
		qsort(set->port, (size_t)set->port_count, sizeof(set->port[0]), port_compare);
	ports_number(set);
	for (int i = 0; i < set->port_count; i++) {
		pthread_mutex_init(&set->port[i].lock, NULL);
		pthread_mutex_init(&set->port[i].cache_lock, NULL);
	}
	if (set->port_count == 0)
		log_warn("no usable RDMA port: %d devices, none with an active port that "
			 "NCCL_IB_HCA=%s allows",
			 count, config.ib_hca);
	return 0;
}

void device_scan_undo(struct device_set *set)
{
	for (int i = 0; i < set->port_count; i++) {
		pthread_mutex_destroy(&set->port[i].lock);
		pthread_mutex_destroy(&set->port[i].cache_lock);
		free(set->port[i].pci_path);
		free(set->port[i].cache);
	}
	for (int i = 0; i < set->hca_count; i++)
		(void)verbs.close_device(set->hca[i].ctx);
	memset(set, 0, sizeof(*set));
}
