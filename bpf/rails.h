/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * rails.h - the map of rows, its sequence counts and its link words: what every BPF object
 * here shares.
 */
#ifndef RAILYARD_BPF_RAILS_H
#define RAILYARD_BPF_RAILS_H

#include "mini.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <stdint.h>
#include <railyard/railmap.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RAILMAP_ROWS);
	__type(key, __u32);
	__type(value, struct railmap_row);
} rails SEC(".maps");

static __always_inline struct railmap_row *row_get(__u32 index)
{
	return bpf_map_lookup_elem(&rails, &index);
}

/* An exact sequence count needs a full barrier on either side of the writes:
 * the exchange gives it on every architecture, a plain add does not. */
static __always_inline bool seq_begin(__u32 *seq)
{
	__u32 old = *(volatile __u32 *)seq;

	return !(old & 1) && __sync_bool_compare_and_swap(seq, old, old + 1);
}

static __always_inline void seq_end(__u32 *seq)
{
	__u32 old = *(volatile __u32 *)seq;

	__sync_lock_test_and_set(seq, old + 1);
}

static __always_inline bool link_is_down(const struct railmap_row *row)
{
	return row->link_down_ns > row->link_up_ns;
}

static __always_inline void link_up(struct railmap_row *row, __u64 when_ns)
{
	if (link_is_down(row) || !row->link_up_ns) {
		row->link_ups++;
	}
	if (when_ns > row->link_up_ns) {
		row->link_up_ns = when_ns;
	}
}

#endif
