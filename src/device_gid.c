/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device_gid.c - how a port is reached now: LID and MTU, and the GID by the NCCL_IB_* rules.
 *
 * IB: GID 0, or NCCL_IB_ROUTABLE_FLID_GID_INDEX if that one carries an FLID. RoCE:
 * NCCL_IB_GID_INDEX if set; else the first GID of family NCCL_IB_ADDR_FAMILY inside
 * NCCL_IB_ADDR_RANGE, of version NCCL_IB_ROCE_VERSION_NUM if there is one; else GID 0, said aloud.
 *
 * Invariant: nothing is remembered between two calls, since a flap may renumber the table.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "device_scan.h"
#include "device_sys.h"
#include "util.h"

enum {
	GID_BYTES = 16,
	GID_BITS = 128,
	V4_BITS = 32
};

static const uint8_t v4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* NCCL_IB_ADDR_RANGE as GIDs have it: IPv4 is mapped into IPv6. bits = 0: every address. */
static struct {
	uint8_t prefix[GID_BYTES];
	int bits;
} range;

static const char *family_name(void)
{
	return config.ib_addr_family == AF_INET6 ? "AF_INET6" : "AF_INET";
}

/* "address/bits" of the wanted family. */
static int range_parse(const char *text)
{
	bool is_v4 = config.ib_addr_family == AF_INET;
	char addr[INET6_ADDRSTRLEN];
	const char *slash = strchr(text, '/');
	uint8_t prefix[GID_BYTES] = {0};
	long bits;
	char *end;

	if (!slash || slash == text || (size_t)(slash - text) >= sizeof(addr))
		return -EINVAL;
	memcpy(addr, text, (size_t)(slash - text));
	addr[slash - text] = '\0';
	bits = strtol(slash + 1, &end, 10);
	if (end == slash + 1 || *end || bits < 0 || bits > (is_v4 ? V4_BITS : GID_BITS))
		return -EINVAL;
	if (is_v4)
		memcpy(prefix, v4_prefix, sizeof(v4_prefix));
	if (inet_pton((int)config.ib_addr_family, addr,
		      is_v4 ? prefix + sizeof(v4_prefix) : prefix) != 1)
		return -EINVAL;
	memcpy(range.prefix, prefix, sizeof(prefix));
	range.bits = (int)bits + (is_v4 ? GID_BITS - V4_BITS : 0);
	return 0;
}

void device_gid_rules(void)
{
	range.bits = 0;
	if (*config.ib_addr_range && range_parse(config.ib_addr_range))
		log_warn("NCCL_IB_ADDR_RANGE=%s is not an address/bits of family %s "
			 "(NCCL_IB_ADDR_FAMILY); using the default, every address",
			 config.ib_addr_range, family_name());
}

static bool in_range(const union ibv_gid *gid)
{
	int whole = range.bits / 8;
	int rest = range.bits % 8;
	unsigned mask = 0xff00u >> rest & 0xff;

	if (memcmp(gid->raw, range.prefix, (size_t)whole) != 0)
		return false;
	return rest == 0 || ((gid->raw[whole] ^ range.prefix[whole]) & mask) == 0;
}

static bool is_zero(const union ibv_gid *gid)
{
	static const union ibv_gid zero;

	return memcmp(gid, &zero, sizeof(zero)) == 0;
}

static bool is_link_local(const union ibv_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static bool is_wanted(const union ibv_gid *gid)
{
	bool is_v4 = memcmp(gid->raw, v4_prefix, sizeof(v4_prefix)) == 0;

	if (is_zero(gid) || is_link_local(gid) || is_v4 != (config.ib_addr_family == AF_INET))
		return false;
	return in_range(gid);
}

/*
 * Looks at the whole table; -1 if nothing fits. A GID whose version cannot be told (no sysfs here)
 * ranks with those of the other version; one that is not visible in this namespace is passed over.
 */
static int roce_gid_find(struct port *port, int table_len, union ibv_gid *found)
{
	int best = -1;

	for (int i = 0; i < table_len; i++) {
		union ibv_gid gid;
		int version;

		if (verbs.query_gid(port->ctx, port->num, i, &gid) || !is_wanted(&gid))
			continue;
		version = verbs.query_gid_version(port->ctx, port->num, i);
		if (version == -ENOENT)
			continue;
		if (version == config.ib_roce_version_num) {
			*found = gid;
			return i;
		}
		if (best < 0) {
			best = i;
			*found = gid;
		}
	}
	return best;
}

/* What net_ib would silently use: right on a single subnet, and better than no device. */
static int roce_gid_last_resort(struct port *port, union ibv_gid *gid)
{
	char text[INET6_ADDRSTRLEN] = "unreadable";
	int rc = verbs.query_gid(port->ctx, port->num, 0, gid);
	bool good = rc == 0 && !is_zero(gid);

	if (rc == 0)
		inet_ntop(AF_INET6, gid->raw, text, sizeof(text));
	log_limited(&port->gid_limit, LOG_WARN, __func__, __LINE__,
		    "%s has no GID of family %s%s%s; %s GID 0 (%s): give the port an address, or "
		    "set NCCL_IB_ADDR_FAMILY or NCCL_IB_GID_INDEX",
		    port->name, family_name(), range.bits ? " inside " : "",
		    range.bits ? config.ib_addr_range : "", good ? "using" : "cannot use", text);
	if (rc)
		return rc;
	return good ? 0 : -EADDRNOTAVAIL;
}

static int gid_read(struct port *port, int index, union ibv_gid *gid)
{
	int rc = verbs.query_gid(port->ctx, port->num, index, gid);

	if (rc)
		log_limited(&port->gid_limit, LOG_WARN, __func__, __LINE__,
			    "%s: GID %d cannot be read (%s)%s", port->name, index, strerror(-rc),
			    config.ib_gid_index >= 0 ? ": see NCCL_IB_GID_INDEX" : "");
	return rc;
}

static int roce_gid_choose(struct port *port, int table_len, struct port_address *out)
{
	if (config.ib_gid_index >= 0) {
		out->gid_index = (int)config.ib_gid_index;
		return gid_read(port, out->gid_index, &out->gid);
	}
	out->gid_index = roce_gid_find(port, table_len, &out->gid);
	if (out->gid_index >= 0)
		return 0;
	out->gid_index = 0;
	return roce_gid_last_resort(port, &out->gid);
}

static int ib_gid_choose(struct port *port, int table_len, struct port_address *out)
{
	int routable = (int)config.ib_routable_flid_gid_index;

	/* The FLID is in bytes 4 and 5. */
	if (routable < table_len &&
	    verbs.query_gid(port->ctx, port->num, routable, &out->gid) == 0 &&
	    (out->gid.raw[4] || out->gid.raw[5])) {
		out->gid_index = routable;
		return 0;
	}
	out->gid_index = 0;
	return gid_read(port, 0, &out->gid);
}

static void netdev_update(struct port *port, int gid_index)
{
	char name[sizeof(port->netdev)] = "";
	int ifindex = 0;

	if (port->link_layer != IBV_LINK_LAYER_ETHERNET)
		return;
	if (device_sys_netdev(port->ibdev, port->num, gid_index, name, sizeof(name)))
		ifindex = (int)if_nametoindex(name);
	pthread_mutex_lock(&port->lock);
	memcpy(port->netdev, name, sizeof(name));
	__atomic_store_n(&port->ifindex, ifindex, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&port->lock);
}

int port_address(struct port *port, struct port_address *out)
{
	struct port_address found = {0};
	struct ibv_port_attr attr;
	int rc = verbs.query_port(port->ctx, port->num, &attr);

	if (rc) {
		log_limited(&port->gid_limit, LOG_WARN, __func__, __LINE__,
			    "%s cannot be asked for its address (%s)", port->name, strerror(-rc));
		return rc;
	}
	found.lid = attr.lid;
	found.link_layer = attr.link_layer;
	found.mtu = attr.active_mtu;
	if (attr.link_layer == IBV_LINK_LAYER_ETHERNET)
		rc = roce_gid_choose(port, attr.gid_tbl_len, &found);
	else
		rc = ib_gid_choose(port, attr.gid_tbl_len, &found);
	netdev_update(port, rc ? -1 : found.gid_index);
	if (rc == 0)
		*out = found;
	return rc;
}
