/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * link.h - link hooks: loss, return, transmit watchdog.
 */
#ifndef RAILYARD_BPF_LINK_H
#define RAILYARD_BPF_LINK_H

#include "rows.h"

/* Later signs of the same loss (one reset per queue, then linkwatch after the
 * carrier hook) change nothing, so link_down_ns is the first sign. */
static __always_inline void link_down(struct railmap_row *row, __u32 index, struct net_device *dev,
				      __u32 why, __u64 when_ns)
{
	__u64 address = (__u64)dev;

	bpf_map_update_elem(&rail_down, &index, &address, BPF_ANY);
	row->carrier_down_count = (__u32)BPF_CORE_READ(dev, carrier_down_count.counter);
	row->carrier_up_count = (__u32)BPF_CORE_READ(dev, carrier_up_count.counter);
	if (link_is_down(row)) {
		return;
	}
	row->link_down_why = why;
	row->link_downs++;
	row->link_down_ns = when_ns;
}

/* Fires from dev_deactivate() for every queue, on carrier loss and on
 * `ip link set down`; also when somebody replaces a qdisc, hence the look at
 * the device's state. */
SEC("tp_btf/qdisc_reset")
int BPF_PROG(on_qdisc_reset, struct Qdisc *q)
{
	__u64 now = bpf_ktime_get_ns();
	struct net_device *dev = BPF_CORE_READ(q, dev_queue, dev);
	struct railmap_row *row;
	unsigned long state;
	__u32 index;

	if (!dev) {
		return 0; /* the noop qdisc has no device */
	}
	state = BPF_CORE_READ(dev, state);
	if ((state & LINK_STATE_START) && !(state & LINK_STATE_NOCARRIER)) {
		return 0;
	}
	row = row_of(dev, &index);
	if (row) {
		link_down(row, index, dev,
			  state & LINK_STATE_START ? RAILMAP_WHY_CARRIER : RAILMAP_WHY_ADMIN, now);
	}
	return 0;
}

/* Fires when a netdev that was just made, or that came to another namespace, is opened, and when
 * somebody sets a qdisc: the moment for a row to follow. If the carrier is not there yet, the
 * timer waits for it. */
SEC("tp_btf/qdisc_create")
int BPF_PROG(on_qdisc_create, const struct Qdisc_ops *ops, struct net_device *dev)
{
	__u64 address = (__u64)dev;
	__u64 now = bpf_ktime_get_ns();
	unsigned long state = BPF_CORE_READ(dev, state);
	struct railmap_row *row;
	__u32 index;

	if (!(state & LINK_STATE_START)) {
		return 0;
	}
	row = row_of(dev, &index);
	if (!row) {
		return 0;
	}
	if (state & LINK_STATE_NOCARRIER) {
		bpf_map_update_elem(&rail_down, &index, &address, BPF_ANY);
	} else {
		link_up(row, now);
	}
	return 0;
}

SEC("tp_btf/net_dev_xmit_timeout")
int BPF_PROG(on_tx_timeout, struct net_device *dev)
{
	__u32 index;
	struct railmap_row *row = row_of(dev, &index);

	if (row) {
		__sync_fetch_and_add(&row->tx_timeouts, 1);
		row->tx_timeout_ns = bpf_ktime_get_ns();
	}
	return 0;
}

/* At entry the state still says what it was: no NOCARRIER means a real loss. */
SEC("fentry/netif_carrier_off")
int BPF_PROG(on_carrier_off, struct net_device *dev)
{
	__u64 now = bpf_ktime_get_ns();
	struct railmap_row *row;
	__u32 index;

	if (BPF_CORE_READ(dev, state) & LINK_STATE_NOCARRIER) {
		return 0;
	}
	row = row_of(dev, &index);
	if (row) {
		link_down(row, index, dev, RAILMAP_WHY_CARRIER, now);
	}
	return 0;
}

SEC("fentry/netif_carrier_on")
int BPF_PROG(on_carrier_on, struct net_device *dev)
{
	__u64 now = bpf_ktime_get_ns();
	unsigned long state = BPF_CORE_READ(dev, state);
	struct railmap_row *row;
	__u32 index;

	if (!(state & LINK_STATE_START) || !(state & LINK_STATE_NOCARRIER)) {
		return 0;
	}
	row = row_of(dev, &index);
	if (row) {
		link_up(row, now);
	}
	return 0;
}

#endif
