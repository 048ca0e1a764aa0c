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

struct rail_key {
	char name[RAILMAP_NAME_BYTES]; /* of the PCI function, else of the netdev */
	__u32 scope;		       /* dev_port of the function, else the netns */
	__u32 is_pci;
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
	bpf_probe_read_kernel(row->ifname, sizeof(row->ifname), &dev->name);
	seq_end(&row->id_seq);
	bpf_map_delete_elem(&rail_ix, &old);
	bpf_map_update_elem(&rail_ix, key, &index, BPF_ANY);
}

static __always_inline bool is_pci(const struct device *d)
{
	char bus[4] = {};
	const char *name = BPF_CORE_READ(d, bus, name);

	return bpf_probe_read_kernel_str(bus, sizeof(bus), name) == 4 && bus[0] == 'p' &&
	       bus[1] == 'c' && bus[2] == 'i';
}

/* Slow path, link events only: is this netdev's PCI function one of ours? */
static __noinline int row_by_pci(struct net_device *dev)
{
	struct rail_key key = {.is_pci = 1};
	struct device *d = BPF_CORE_READ(dev, dev.parent);
	__u32 *index;

	for (int i = 0; i < PCI_WALK_MAX && d; i++) {
		if (is_pci(d)) {
			bpf_probe_read_kernel_str(key.name, sizeof(key.name),
						  BPF_CORE_READ(d, kobj.name));
			break;
		}
		d = BPF_CORE_READ(d, parent);
	}
	if (!key.name[0]) {
		return -ENOENT;
	}
	key.scope = BPF_CORE_READ(dev, dev_port);
	index = bpf_map_lookup_elem(&rail_key, &key);
	return index ? (int)*index : -ENOENT;
}

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
		return row_get(*index);
	}
	moved = row_by_pci(dev);
	if (moved < 0) {
		return NULL;
	}
	*index = (__u32)moved;
	row = row_get(*index);
	if (row) {
		row_moved(row, *index, dev, &key);
	}
	return row;
}

#endif
