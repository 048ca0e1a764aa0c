/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * beat.h - the timer: heartbeat of the map, and the look for links that are up again.
 */
#ifndef RAILYARD_BPF_BEAT_H
#define RAILYARD_BPF_BEAT_H

#include "rows.h"

struct beat {
	struct bpf_timer timer;
	__u64 stop;
};

/* A map with a timer can be neither mmapped nor frozen: one of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct beat);
} rail_beat SEC(".maps");

/* Is this still the netdev of that row? It may have moved to another namespace while it was down.
 */
static __always_inline bool is_rail(struct railmap_row *row, __u32 index, struct net_device *dev)
{
	struct ix_key key;

	ix_of(dev, &key);
	if (key.netns == row->netns && key.ifindex == row->ifindex) {
		if (!same_ifname(dev, row)) {
			row_renamed(row, index, dev);
		}
		return 1;
	}
	if (row_by_identity(dev) != (int)index) {
		return 0;
	}
	row_moved(row, index, dev, &key);
	return 1;
}

/* Tier 0 has no hook for link-up: look at the netdevs of rows that are down. The time
 * is taken before the look, so that a loss in between stays the newer word. A netdev that was freed
 * meanwhile was closed first, so its state can never say "up". */
static __noinline int look_for_link_up(__u32 index)
{
	__u64 now = bpf_ktime_get_ns();
	struct railmap_row *row = row_get(index);
	__u64 *address = bpf_map_lookup_elem(&rail_down, &index);
	struct net_device *dev;
	unsigned long state;

	if (!row || !address || !*address || !link_is_down(row)) {
		return 0;
	}
	dev = (struct net_device *)*address;
	state = BPF_CORE_READ(dev, state);
	if ((state & LINK_STATE_START) && !(state & LINK_STATE_NOCARRIER) &&
	    is_rail(row, index, dev)) {
		link_up(row, now);
	}
	return 0;
}

static int on_beat(void *map, __u32 *key, struct beat *beat)
{
	struct railmap_hdr *hdr = hdr_get();

	if (!hdr || beat->stop) {
		return 0;
	}
	hdr->heartbeats++;
	hdr->heartbeat_ns = bpf_ktime_get_ns();
	for (__u32 i = 0; i < RAILMAP_ROWS && i < hdr->row_count; i++) {
		look_for_link_up(i);
	}
	bpf_timer_start(&beat->timer, RAILMAP_HEARTBEAT_NS, 0);
	return 0;
}

#endif
