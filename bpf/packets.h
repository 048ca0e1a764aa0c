/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * packets.h - packet hooks: RoCEv2 that passes the kernel, that is soft RoCE only.
 */
#ifndef RAILYARD_BPF_PACKETS_H
#define RAILYARD_BPF_PACKETS_H

#include "rocev2.h"
#include "rows.h"

/* A packet proves that a link is up only if it is this much newer than the
 * loss: what was received before may still sit in a queue of the host. */
#define PACKET_PROOF_NS 50000000ull

static __always_inline struct railmap_row *packet_row(struct net_device *dev)
{
	struct ix_key key;
	__u32 *index;

	ix_of(dev, &key);
	index = bpf_map_lookup_elem(&rail_ix, &key);
	return index ? row_get(*index) : NULL;
}

struct packet {
	enum rocev2_kind kind;
	struct rocev2_l3 l3;
};

/* The packet's network header is `at` bytes behind skb->head. */
static __always_inline void packet_read(struct sk_buff *skb, __u32 at, struct packet *out)
{
	unsigned char l3[ROCEV2_L3_BYTES];
	unsigned char l4[ROCEV2_L4_BYTES];
	unsigned char *head = BPF_CORE_READ(skb, head);
	__u32 end = BPF_CORE_READ(skb, tail);

	out->kind = ROCEV2_NOT;
	if (end < at || bpf_probe_read_kernel(l3, sizeof(l3), head + at) ||
	    rocev2_parse_l3(l3, end - at, &out->l3)) {
		return;
	}
	at += out->l3.l4_off;
	if (end < at || bpf_probe_read_kernel(l4, sizeof(l4), head + at)) {
		return;
	}
	out->kind = rocev2_parse_l4(l4, end - at);
}

/* On receipt skb->data is behind the Ethernet header, and skb->network_header is not yet
 * set. Tags that the NIC did not strip (two at most) are still there. */
static __always_inline __u32 rx_l3_offset(struct sk_buff *skb)
{
	unsigned char *data = BPF_CORE_READ(skb, data);
	__u32 at = (__u32)(data - BPF_CORE_READ(skb, head));
	unsigned char proto[2] = {};

	if (rocev2_is_vlan(__builtin_bswap16(BPF_CORE_READ(skb, protocol)))) {
		bpf_probe_read_kernel(proto, sizeof(proto), data + 2);
		at += rocev2_is_vlan(rocev2_be16(proto)) ? 8 : 4;
	}
	return at;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_tx_packet, struct sk_buff *skb, struct net_device *dev)
{
	struct railmap_row *row = packet_row(dev);
	struct packet packet;

	if (!row || !(row->flags & RAILMAP_ROW_SOFT)) {
		return 0;
	}
	/* On the way out the network header always points behind the tags. */
	packet_read(skb, BPF_CORE_READ(skb, network_header), &packet);
	if (packet.kind > ROCEV2_UNSEEN) {
		__sync_fetch_and_add(&row->soft_tx_pkts, 1);
		__sync_fetch_and_add(&row->soft_tx_bytes, packet.l3.ip_bytes);
	}
	return 0;
}

static __always_inline void rx_count(struct railmap_row *row, const struct packet *packet)
{
	__sync_fetch_and_add(&row->soft_rx_pkts, 1);
	__sync_fetch_and_add(&row->soft_rx_bytes, packet->l3.ip_bytes);
	if (packet->l3.ce) {
		__sync_fetch_and_add(&row->soft_rx_ce, 1);
	}
	if (packet->kind == ROCEV2_CNP) {
		__sync_fetch_and_add(&row->soft_rx_cnp, 1);
	} else if (packet->kind == ROCEV2_NAK) {
		__sync_fetch_and_add(&row->soft_rx_nak, 1);
	} else if (packet->kind == ROCEV2_RNR) {
		__sync_fetch_and_add(&row->soft_rx_rnr, 1);
	}
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_rx_packet, struct sk_buff *skb)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);
	struct railmap_row *row = packet_row(dev);
	struct packet packet;

	if (!row || !(row->flags & RAILMAP_ROW_SOFT)) {
		return 0;
	}
	if (link_is_down(row)) {
		__u64 now = bpf_ktime_get_ns();

		if (now > row->link_down_ns + PACKET_PROOF_NS) {
			link_up(row, now);
		}
	}
	/* Drivers copy small packets whole, so acknowledgements and CNPs are always seen. Of a big
	 * one GRO may leave only the IP header here and the rest in a page, which BPF cannot read
	 * at this point: on a soft RoCE rail, big UDP packets are taken for RoCE. */
	packet_read(skb, rx_l3_offset(skb), &packet);
	if (packet.kind != ROCEV2_NOT) {
		rx_count(row, &packet);
	}
	return 0;
}

#endif
