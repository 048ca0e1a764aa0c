// SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only
/*
 * taps.bpf.c - driver taps: whoever reads a NIC's counters, the rail map gets them too.
 *
 * A tap is an fexit program on a driver's get_hw_stats. It costs nothing until somebody reads, and
 * it never reads by itself: BPF cannot. A link on a module holds the module, so these programs are
 * never pinned: the process that attached them (`railyard sample --driver-taps`) is their life.
 *
 * The drivers tell names, the map has fields. On a port's first read the tap notes the names; user
 * space answers with a table; from then on a read is some loads and stores. Names are read from the
 * same array as values, so switched-off counters cannot shift them.
 *
 * One writer at a time: the kernel holds the port's stats->lock around get_hw_stats; against the
 * publish program, hw_seq decides, and who comes second gives way.
 */
#include "rails.h"
#include "taps.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define FATAL_PORTS_MAX 8

/* RDMA port -> row. Names of RDMA devices are unique on a host, whatever their namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RAILMAP_ROWS);
	__type(key, struct tap_port);
	__type(value, __u32);
} tap_ix SEC(".maps");

/* row -> where the values are. Writer: user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RAILMAP_ROWS);
	__type(key, __u32);
	__type(value, struct tap_table);
} tap_tables SEC(".maps");

/* row -> the driver's names. Writer: the tap, as long as the row's table does not fit. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RAILMAP_ROWS);
	__type(key, __u32);
	__type(value, struct tap_names);
} tap_names SEC(".maps");

static __always_inline struct railmap_row *port_row(struct ib_device *dev, __u32 port, __u32 *index)
{
	struct tap_port key = {.port = port};
	__u32 *found;

	bpf_probe_read_kernel_str(key.ibdev, sizeof(key.ibdev), dev->name);
	found = bpf_map_lookup_elem(&tap_ix, &key);
	if (!found) {
		return NULL;
	}
	*index = *found;
	return row_get(*index);
}

static __noinline int note_names(const struct rdma_stat_desc *descs, __u32 count, __u32 index)
{
	struct tap_names *names = bpf_map_lookup_elem(&tap_names, &index);
	const char *name;

	if (!names) {
		return 0;
	}
	names->count = 0;
	for (__u32 i = 0; i < TAP_NAMES_MAX && i < count; i++) {
		const void *at =
			(const char *)descs + i * bpf_core_type_size(struct rdma_stat_desc);

		name = BPF_CORE_READ((const struct rdma_stat_desc *)at, name);
		bpf_probe_read_kernel_str(names->name[i], TAP_NAME_BYTES, name);
	}
	names->count = count; /* last: the names are complete */
	return 0;
}

/* Fields that a tap does not know (pause frames, say) stay as another writer left them. */
static __always_inline void write_hw(struct railmap_row *row, const struct tap_table *table,
				     const __u64 *raw)
{
	uint64_t *to = &row->hw_rx_pkts;

	if (!seq_begin(&row->hw_seq)) {
		return;
	}
#pragma unroll
	for (int i = 0; i < RAILMAP_HW_COUNT; i++) {
		if (table->wrap32 >> i & 1) {
			to[i] = railmap_extend32(to[i], (__u32)raw[i]);
		} else if (table->valid >> i & 1) {
			to[i] = raw[i];
		}
	}
	row->hw_valid |= table->valid;
	row->hw_src = RAILMAP_SRC_TAP;
	row->hw_sample_ns = bpf_ktime_get_ns();
	seq_end(&row->hw_seq);
}

static __always_inline int tap(struct ib_device *dev, struct rdma_hw_stats *stats, __u32 port,
			       int ret)
{
	__u64 raw[RAILMAP_HW_COUNT] = {};
	struct railmap_row *row;
	struct tap_table *table;
	__u32 index;
	__u32 count;

	row = ret > 0 ? port_row(dev, port, &index) : NULL;
	table = row ? bpf_map_lookup_elem(&tap_tables, &index) : NULL;
	if (!table) {
		return 0;
	}
	count = (__u32)BPF_CORE_READ(stats, num_counters);
	if (table->count != count) {
		return note_names(BPF_CORE_READ(stats, descs), count, index);
	}
	for (int i = 0; i < RAILMAP_HW_COUNT; i++) {
		if (table->valid >> i & 1 && table->at[i] < count) {
			bpf_probe_read_kernel(&raw[i], sizeof(raw[i]),
					      __builtin_preserve_access_index(&stats->value[0]) +
						      table->at[i]);
		}
	}
	write_hw(row, table, raw);
	return 0;
}

#define TAP(driver)                                                                                \
	SEC("?fexit/" #driver "_get_hw_stats")                                                     \
	int BPF_PROG(tap_##driver, struct ib_device *dev, struct rdma_hw_stats *stats, __u32 port, \
		     int which, int ret)                                                           \
	{                                                                                          \
		return tap(dev, stats, port, ret);                                                 \
	}

TAP(mlx5_ib)
TAP(bnxt_re_ib)
TAP(irdma)
TAP(hns_roce)
TAP(ionic)
TAP(rxe_ib)

/* ---- events of the RDMA core ---- */

/* A port with a netdev has better hooks for its link: for RoCE these events come from the same
 * netdev notifier, later. A port without one has only this. */
static __always_inline void port_event(struct railmap_row *row, __u32 event)
{
	__u64 now = bpf_ktime_get_ns();

	row->ib_event = event;
	if (event == IB_EVENT_DEVICE_FATAL || (event == IB_EVENT_PORT_ERR && !row->ifindex)) {
		if (!link_is_down(row)) {
			row->link_down_why =
				event == IB_EVENT_PORT_ERR ? RAILMAP_WHY_PORT : RAILMAP_WHY_FATAL;
			row->link_downs++;
			row->link_down_ns = now;
		}
	} else if (event == IB_EVENT_PORT_ACTIVE) {
		link_up(row, now);
	}
}

SEC("?fentry/ib_dispatch_event")
int BPF_PROG(tap_events, const struct ib_event *event)
{
	__u32 what = (__u32)BPF_CORE_READ(event, event);
	__u32 port = BPF_CORE_READ(event, element.port_num);
	struct ib_device *dev = BPF_CORE_READ(event, device);
	struct railmap_row *row;
	__u32 index;

	if (what == IB_EVENT_DEVICE_FATAL) {
		for (port = 1; port <= FATAL_PORTS_MAX; port++) {
			row = port_row(dev, port, &index);
			if (row) {
				port_event(row, what);
			}
		}
	} else if (what == IB_EVENT_PORT_ACTIVE || what == IB_EVENT_PORT_ERR) {
		row = port_row(dev, port, &index);
		if (row) {
			port_event(row, what);
		}
	}
	return 0;
}
