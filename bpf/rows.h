/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * rows.h - the header, the indices and the way from a netdev to its row.
 */
#ifndef RAILYARD_BPF_ROWS_H
#define RAILYARD_BPF_ROWS_H

#include "rails.h"

#define PCI_WALK_MAX 4

struct ix_key {
	__u32 netns;
	__u32 ifindex;
};

/* Kinds of rail_key: what an event of a netdev may find is KEY_NETDEV_*. A row whose port has no
 * netdev of its own PCI function (InfiniBand, or RoCE over a bond) is known by KEY_PORT, so that
 * neither IPoIB nor a lower port of the bond takes it over. */
enum key_kind {
	KEY_NETDEV_NAME = 0,
	KEY_NETDEV_PCI = 1,
	KEY_PORT = 2,
};

struct rail_key {
	char name[RAILMAP_NAME_BYTES]; /* of the PCI function, else of the netdev */
	__u32 scope;		       /* dev_port of the function, else the netns */
	__u32 kind;		       /* enum key_kind */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct railmap_hdr);
} rail_hdr SEC(".maps");

/* (netns, ifindex) -> row: what the hooks look up. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4 * RAILMAP_ROWS);
	__type(key, struct ix_key);
	__type(value, __u32);
} rail_ix SEC(".maps");

/* Identity -> row. With a PCI function it finds the row again after the netdev
 * moved to another namespace or its driver was reloaded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RAILMAP_ROWS);
	__type(key, struct rail_key);
	__type(value, __u32);
} rail_key SEC(".maps");

/* row -> address of its struct net_device while its link is down, so that the
 * timer sees it come back. Only ever read by fault-safe reads, and believed only
 * if what stands there has the row's namespace and ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RAILMAP_ROWS);
	__type(key, __u32);
	__type(value, __u64);
} rail_down SEC(".maps");

static __always_inline struct railmap_hdr *hdr_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&rail_hdr, &zero);
}

static __always_inline void ix_of(struct net_device *dev, struct ix_key *key)
{
	key->netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	key->ifindex = (__u32)BPF_CORE_READ(dev, ifindex);
}

/* A name is part of a virtual netdev's identity. */
static __always_inline void row_renamed(struct railmap_row *row, __u32 index,
					struct net_device *dev)
{
	struct rail_key key = {.kind = KEY_NETDEV_NAME, .scope = row->netns};

	if (!seq_begin(&row->id_seq)) {
		return;
	}
	__builtin_memcpy(key.name, row->ifname, sizeof(key.name));
	bpf_probe_read_kernel_str(row->ifname, sizeof(row->ifname), dev->name);
	seq_end(&row->id_seq);
	if (!(row->flags & RAILMAP_ROW_PCI)) {
		bpf_map_delete_elem(&rail_key, &key);
		__builtin_memcpy(key.name, row->ifname, sizeof(key.name));
		bpf_map_update_elem(&rail_key, &key, &index, BPF_ANY);
	}
}

static __always_inline void row_moved(struct railmap_row *row, __u32 index, struct net_device *dev,
				      const struct ix_key *key)
{
	struct ix_key old;

	if (!seq_begin(&row->id_seq)) {
		return;
	}
	old.netns = row->netns;
	old.ifindex = row->ifindex;
	row->netns = key->netns;
	row->ifindex = key->ifindex;
	bpf_probe_read_kernel_str(row->ifname, sizeof(row->ifname), dev->name);
	seq_end(&row->id_seq);
	bpf_map_delete_elem(&rail_ix, &old);
	bpf_map_update_elem(&rail_ix, key, &index, BPF_ANY);
}

/* 'p' = a PCI function; 'a' = an auxiliary device, say a subfunction: its PCI function is another's
 * identity; 0 = neither. */
static __always_inline char bus_kind(const struct device *d)
{
	char bus[4] = {};
	const char *name = BPF_CORE_READ(d, bus, name);

	if (bpf_probe_read_kernel_str(bus, sizeof(bus), name) != 4) {
		return 0;
	}
	if (bus[0] == 'p' && bus[1] == 'c' && bus[2] == 'i') {
		return 'p';
	}
	return bus[0] == 'a' && bus[1] == 'u' && bus[2] == 'x' ? 'a' : 0;
}

static __always_inline bool pci_key(struct net_device *dev, struct rail_key *key)
{
	struct device *d = BPF_CORE_READ(dev, dev.parent);

	for (int i = 0; i < PCI_WALK_MAX && d; i++) {
		char kind = bus_kind(d);

		if (kind == 'p') {
			bpf_probe_read_kernel_str(key->name, sizeof(key->name),
						  BPF_CORE_READ(d, kobj.name));
		}
		if (kind) {
			break;
		}
		d = BPF_CORE_READ(d, parent);
	}
	key->kind = KEY_NETDEV_PCI;
	key->scope = BPF_CORE_READ(dev, dev_port);
	return key->name[0];
}

static __always_inline void name_key(struct net_device *dev, struct rail_key *key)
{
	key->kind = KEY_NETDEV_NAME;
	key->scope = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	bpf_probe_read_kernel_str(key->name, sizeof(key->name), dev->name);
}

/* Slow path, link events only: is this netdev one of ours by its identity? */
static __noinline int row_by_identity(struct net_device *dev)
{
	struct rail_key key = {};
	__u32 *index;

	if (!pci_key(dev, &key)) {
		name_key(dev, &key);
	}
	index = bpf_map_lookup_elem(&rail_key, &key);
	return index ? (int)*index : -ENOENT;
}

static __always_inline bool same_ifname(struct net_device *dev, const struct railmap_row *row)
{
	__u64 name[RAILMAP_NAME_BYTES / sizeof(__u64)] = {};
	const __u64 *known = (const __u64 *)row->ifname;

	bpf_probe_read_kernel_str(name, sizeof(name), dev->name);
	return name[0] == known[0] && name[1] == known[1];
}

/*
 * The row of a netdev that a link event is about. A row follows to another netdev of its identity
 * (moved to another namespace, made anew, its driver reloaded), but only from one that is down: the
 * old netdev was closed first, while several netdevs that share a PCI function and dev_port (a
 * switch's port representors) live at the same time.
 */
static __always_inline struct railmap_row *row_of(struct net_device *dev, __u32 *index)
{
	struct ix_key key;
	struct railmap_row *row;
	__u32 *found;
	int moved;

	ix_of(dev, &key);
	found = bpf_map_lookup_elem(&rail_ix, &key);
	if (found) {
		*index = *found;
		row = row_get(*index);
		if (row && !same_ifname(dev, row)) {
			row_renamed(row, *index, dev);
		}
		return row;
	}
	moved = row_by_identity(dev);
	if (moved < 0) {
		return NULL;
	}
	*index = (__u32)moved;
	row = row_get(*index);
	if (!row || (row->link_up_ns && !link_is_down(row))) {
		return NULL;
	}
	row_moved(row, *index, dev, &key);
	return row;
}

#endif
