/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device.c - the process's ports, their workers, and the devices made of them.
 *
 * Invariant: an index once given out means the same port or device until the process ends, and what
 * it names does not move. Workers run while anybody holds a reference; contexts are never closed,
 * since another communicator may come.
 * Must not: know comms.
 */
#include "device.h"

#include <stdio.h>
#include <string.h>

#include "config.h"
#include "device_scan.h"
#include "util.h"

static struct device_set set;
static struct vdevice vdevices[VDEVICES_MAX];
static int vdevices_made; /* released after the entry is filled */

static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER;
static bool scanned;
static int refs;

int port_count(void)
{
	return set.port_count;
}

struct port *port_at(int i)
{
	return i >= 0 && i < set.port_count ? &set.port[i] : NULL;
}

int vdevice_count(void)
{
	return __atomic_load_n(&vdevices_made, __ATOMIC_ACQUIRE);
}

struct vdevice *vdevice_at(int i)
{
	return i >= 0 && i < vdevice_count() ? &vdevices[i] : NULL;
}

/* ---- discovery ---- */

static bool relaxed_ordering(void)
{
	if (config.ib_pci_relaxed_ordering == 0)
		return false;
	if (verbs.supports_iova2())
		return true;
	if (config.ib_pci_relaxed_ordering == 1)
		log_warn("NCCL_IB_PCI_RELAXED_ORDERING=1, but this libibverbs lacks "
			 "ibv_reg_mr_iova2: going on without");
	return false;
}

static void using_say(void)
{
	char text[1800];
	size_t used = 0;

	for (int i = 0; i < set.port_count && used < sizeof(text); i++) {
		const struct port *port = &set.port[i];

		used += (size_t)snprintf(
			text + used, sizeof(text) - used, " [%d]%s/%s%s", i, port->name,
			port->link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "IB",
			port->word.down ? "(down)" : "");
	}
	log_info("Using%s%s", text, relaxed_ordering() ? " [RO]" : "");
}

/*
 * The port to borrow: the next one in order of those that NCCL_IB_HCA allows, so that both ends of
 * hosts that are alike choose the same rail.
 */
static void standby_choose(struct vdevice *dev)
{
	int last = dev->port[dev->port_count - 1];

	dev->standby = 0;
	if (config.borrow == BORROW_OFF || dev->port_count == CORE_PORTS_MAX) {
		return;
	}
	for (int i = 1; i < set.port_count && dev->standby == 0; i++) {
		int port = (last + i) % set.port_count;
		bool mine = set.port[port].link_layer != set.port[last].link_layer;

		for (int k = 0; k < dev->port_count; k++) {
			mine |= dev->port[k] == port;
		}
		if (!mine) {
			dev->port[dev->port_count] = port;
			dev->standby = 1;
		}
	}
}

/* Every port is a device of its own, with the same index. */
static void singles_make(void)
{
	for (int i = 0; i < set.port_count; i++) {
		const struct port *port = &set.port[i];
		struct vdevice *dev = &vdevices[i];

		memset(dev, 0, sizeof(*dev));
		snprintf(dev->name, sizeof(dev->name), "%s", port->ibdev);
		dev->port_count = 1;
		dev->port[0] = i;
		dev->mbps = (int)port->mbps;
		dev->rail_id = port->rail_id;
		dev->plane_id = port->plane_id;
		standby_choose(dev);
	}
	__atomic_store_n(&vdevices_made, set.port_count, __ATOMIC_RELEASE);
}

/* So that the signals know each port's netdev from the start. A port without a GID says so here. */
static void netdevs_find(void)
{
	struct port_address ignored;

	for (int i = 0; i < set.port_count; i++) {
		if (!set.port[i].word.down)
			(void)port_address(&set.port[i], &ignored);
	}
}

static int find_locked(void)
{
	char why[256] = "";
	int rc;

	if (config.ib_disable) {
		log_info("NCCL_IB_DISABLE is set: no RDMA port is used");
		return 0;
	}
	rc = verbs_load(why, sizeof(why));
	if (rc) {
		log_warn("%s", why);
		return rc;
	}
	device_gid_rules();
	rc = device_scan(&set);
	if (rc)
		return rc;
	singles_make();
	if (set.port_count) {
		using_say();
		netdevs_find();
	}
	return 0;
}

static void workers_stop(int count)
{
	while (count-- > 0)
		worker_stop(&set.hca[count].worker);
}

static int workers_start(void)
{
	char name[sizeof(set.hca[0].worker.name)];
	int rc;

	for (int i = 0; i < set.hca_count; i++) {
		snprintf(name, sizeof(name), "ry-%.12s", set.hca[i].name);
		rc = worker_start(&set.hca[i].worker, name);
		if (rc) {
			log_warn("no thread for %s (%s): see the limit on processes (ulimit -u)",
				 set.hca[i].name, strerror(-rc));
			workers_stop(i);
			return rc;
		}
	}
	return 0;
}

static int init_locked(void)
{
	int rc;

	if (refs == 0) {
		if (!scanned) {
			rc = find_locked();
			if (rc)
				return rc;
			scanned = true;
		}
		rc = workers_start();
		if (rc)
			return rc;
	}
	refs++;
	return set.port_count;
}

int device_init(void)
{
	int rc;

	config_load();
	pthread_mutex_lock(&set_lock);
	rc = init_locked();
	pthread_mutex_unlock(&set_lock);
	return rc;
}

void device_fini(void)
{
	pthread_mutex_lock(&set_lock);
	if (refs > 0 && --refs == 0)
		workers_stop(set.hca_count);
	pthread_mutex_unlock(&set_lock);
}

void device_forget(void)
{
	pthread_mutex_lock(&set_lock);
	if (refs == 0) {
		device_scan_undo(&set);
		__atomic_store_n(&vdevices_made, 0, __ATOMIC_RELEASE);
		scanned = false;
	}
	pthread_mutex_unlock(&set_lock);
}

/* ---- fused devices ---- */

static int members_check(int count, const int *devs)
{
	if (!config.ib_merge_nics) {
		log_info("NCCL_IB_MERGE_NICS=0: ports are not fused");
		return -EPERM;
	}
	if (count < 1 || count > CORE_PORTS_MAX) {
		log_warn("a fused device of %d ports was asked for: 1..%d are possible", count,
			 CORE_PORTS_MAX);
		return -EINVAL;
	}
	for (int i = 0; i < count; i++) {
		if (!port_at(devs[i])) {
			log_warn("a fused device of port %d was asked for: there are ports 0..%d",
				 devs[i], port_count() - 1);
			return -EINVAL;
		}
		if (set.port[devs[i]].link_layer != set.port[devs[0]].link_layer) {
			log_warn("%s and %s cannot be fused: one is IB, the other is RoCE",
				 set.port[devs[0]].name, set.port[devs[i]].name);
			return -EINVAL;
		}
		for (int j = 0; j < i; j++) {
			if (devs[i] == devs[j]) {
				log_warn("%s was named twice for one fused device",
					 set.port[devs[i]].name);
				return -EINVAL;
			}
		}
	}
	return 0;
}

static int existing_find(int count, const int *devs)
{
	for (int i = 0; i < vdevices_made; i++) {
		if (vdevices[i].port_count == count &&
		    memcmp(vdevices[i].port, devs, (size_t)count * sizeof(*devs)) == 0)
			return i;
	}
	return -1;
}

/* Bit of a port's plane in a fused device's plane id: the place of the plane among all of them. */
static int plane_bit(int plane)
{
	int seen[PORTS_MAX];
	int count = 0;

	for (int i = 0; i < set.port_count; i++) {
		int j = 0;

		while (j < count && seen[j] != set.port[i].plane_id)
			j++;
		if (j == count)
			seen[count++] = set.port[i].plane_id;
		if (set.port[i].plane_id == plane)
			return 1 << j;
	}
	return 0;
}

static void vdevice_fill(struct vdevice *dev, int count, const int *devs)
{
	size_t used = 0;
	int planes = 0;
	bool plane_known = false;

	memset(dev, 0, sizeof(*dev));
	dev->port_count = count;
	dev->rail_id = set.port[devs[0]].rail_id;
	for (int i = 0; i < count; i++) {
		const struct port *port = &set.port[devs[i]];

		dev->port[i] = devs[i];
		dev->mbps += (int)port->mbps;
		if (port->rail_id != dev->rail_id)
			dev->rail_id = -1;
		plane_known |= port->plane_id >= 0;
		planes |= plane_bit(port->plane_id);
		if (used < sizeof(dev->name))
			used += (size_t)snprintf(dev->name + used, sizeof(dev->name) - used, "%s%s",
						 i ? "+" : "", port->ibdev);
	}
	standby_choose(dev);
	dev->plane_id = count == 1    ? set.port[devs[0]].plane_id
			: plane_known ? PLANE_FUSED | planes
				      : -1;
}

static int vdevice_make_locked(int count, const int *devs, int *index)
{
	int at = existing_find(count, devs);

	if (at < 0) {
		at = vdevices_made;
		if (at == VDEVICES_MAX) {
			log_warn("no room for another fused device: %d exist", VDEVICES_MAX);
			return -ENOSPC;
		}
		vdevice_fill(&vdevices[at], count, devs);
		__atomic_store_n(&vdevices_made, at + 1, __ATOMIC_RELEASE);
		log_info("fused [%d]%s, %d Mbit/s", at, vdevices[at].name, vdevices[at].mbps);
	}
	*index = at;
	return 0;
}

int vdevice_make(int count, const int *devs, int *index)
{
	int rc = members_check(count, devs);

	if (rc)
		return rc;
	pthread_mutex_lock(&set_lock);
	rc = vdevice_make_locked(count, devs, index);
	pthread_mutex_unlock(&set_lock);
	return rc;
}

/* ---- protection domains ---- */

int port_pd_get(struct port *port, struct ibv_pd **pd)
{
	int rc = 0;

	pthread_mutex_lock(&port->lock);
	if (port->pd_refs == 0)
		rc = verbs.alloc_pd(port->ctx, &port->pd);
	if (rc == 0) {
		port->pd_refs++;
		*pd = port->pd;
	}
	pthread_mutex_unlock(&port->lock);
	return rc;
}

void port_pd_put(struct port *port)
{
	int rc = 0;

	pthread_mutex_lock(&port->lock);
	if (port->pd_refs > 0 && --port->pd_refs == 0) {
		rc = verbs.dealloc_pd(port->pd);
		port->pd = NULL;
	}
	pthread_mutex_unlock(&port->lock);
	if (rc)
		log_warn("%s: the protection domain was not freed (%s)", port->name, strerror(-rc));
}
