// SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only
/*
 * railyard.bpf.c - the programs that keep the rail map live.
 *
 * Invariant: only these programs write the map; user space asks the publish
 * program. Hooks update existing rows and never make one, so an event of an
 * unknown netdev costs a hash lookup and nothing else. Every program is
 * optional: the loader tries each alone, and none depends on another.
 *
 * Not here: rates, thresholds, decisions. The map holds raw facts.
 */
#include "mini.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <stdint.h>
#include <railyard/railmap.h>
#include "rocev2.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A packet proves that a link is up only if it is this much newer than the
 * loss: what was received before may still sit in a queue of the host. */
#define PACKET_PROOF_NS 50000000ull
#define PCI_WALK_MAX	4

struct ix_key {
	__u32 netns;
	__u32 ifindex;
};

struct rail_key {
	char name[RAILMAP_NAME_BYTES]; /* of the PCI function, else of the netdev */
	__u32 scope;		       /* dev_port of the function, else the netns */
	__u32 is_pci;
};

struct beat {
	struct bpf_timer timer;
	__u64 stop;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct railmap_hdr);
} rail_hdr SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RAILMAP_ROWS);
	__type(key, __u32);
	__type(value, struct railmap_row);
} rails SEC(".maps");

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

/* A map with a timer can be neither mmapped nor frozen: one of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct beat);
} rail_beat SEC(".maps");

static __always_inline struct railmap_hdr *hdr_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&rail_hdr, &zero);
}

static __always_inline struct railmap_row *row_get(__u32 index)
{
	return bpf_map_lookup_elem(&rails, &index);
}

/* ---- finding the row of a netdev ---- */

static __always_inline void ix_of(struct net_device *dev, struct ix_key *key)
{
	key->netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	key->ifindex = (__u32)BPF_CORE_READ(dev, ifindex);
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

/* ---- link ---- */

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

/* ---- packets (soft RoCE only) ---- */

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

/* ---- heartbeat ---- */

/* Is this still the netdev of that row? It may have moved to another namespace while it was down.
 */
static __always_inline bool is_rail(struct railmap_row *row, __u32 index, struct net_device *dev)
{
	struct ix_key key;

	ix_of(dev, &key);
	if (key.netns == row->netns && key.ifindex == row->ifindex) {
		return 1;
	}
	if (row_by_pci(dev) != (int)index) {
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

/* ---- publish: the one way in for user space ---- */

static __always_inline int op_start(const struct railmap_publish *p)
{
	__u32 zero = 0;
	struct beat *beat = bpf_map_lookup_elem(&rail_beat, &zero);
	struct railmap_hdr *hdr = hdr_get();
	int ret;

	if (!hdr || !beat) {
		return -EINVAL;
	}
	hdr->row_bytes = sizeof(struct railmap_row);
	hdr->rows_max = RAILMAP_ROWS;
	hdr->load_ns = bpf_ktime_get_ns();
	hdr->generation = p->value;
	hdr->loader_pid = p->loader_pid;
	__builtin_memcpy(hdr->version, p->name, sizeof(hdr->version));
	hdr->heartbeat_ns = bpf_ktime_get_ns();
	hdr->abi = RAILMAP_ABI;
	ret = (int)bpf_timer_init(&beat->timer, &rail_beat, CLOCK_MONOTONIC);
	if (ret) {
		return ret;
	}
	ret = (int)bpf_timer_set_callback(&beat->timer, on_beat);
	return ret ? ret : (int)bpf_timer_start(&beat->timer, RAILMAP_HEARTBEAT_NS, 0);
}

static __always_inline int op_retire(void)
{
	__u32 zero = 0;
	struct beat *beat = bpf_map_lookup_elem(&rail_beat, &zero);
	struct railmap_hdr *hdr = hdr_get();

	if (!hdr || !beat) {
		return -EINVAL;
	}
	beat->stop = 1;
	bpf_timer_cancel(&beat->timer);
	hdr->hooks = 0;
	hdr->abi = 0;
	hdr->heartbeat_ns = 0;
	return 0;
}

static __always_inline void key_of(const struct railmap_publish *p, struct rail_key *key)
{
	bool pci = p->flags & RAILMAP_ROW_PCI;

	__builtin_memcpy(key->name, pci ? p->pci : p->ifname, sizeof(key->name));
	key->is_pci = pci;
	key->scope = pci ? p->dev_port : p->netns;
}

static __always_inline void row_fill(struct railmap_row *row, const struct railmap_publish *p)
{
	row->flags = p->flags | RAILMAP_ROW_USED;
	row->ib_port = p->ib_port;
	row->dev_port = p->dev_port;
	row->pci_domain = p->pci_domain;
	row->pci_bus = p->pci_bus;
	row->pci_devfn = p->pci_devfn;
	row->netns = p->netns;
	row->ifindex = p->ifindex;
	__builtin_memcpy(row->ibdev, p->name, sizeof(row->ibdev));
	__builtin_memcpy(row->ifname, p->ifname, sizeof(row->ifname));
}

/* What user space saw is one more word, as old as its look: it may lose to a hook's. */
static __always_inline void row_link(struct railmap_row *row, __u32 link, __u64 when_ns)
{
	if (link == RAILMAP_LINK_UP && (link_is_down(row) || !row->link_up_ns) &&
	    when_ns > row->link_down_ns) {
		row->link_up_ns = when_ns;
	} else if (link == RAILMAP_LINK_DOWN && !link_is_down(row) && when_ns > row->link_up_ns) {
		row->link_down_why = RAILMAP_WHY_AT_LOAD;
		row->link_down_ns = when_ns;
	}
}

static __always_inline int op_row(const struct railmap_publish *p, __u32 *index_out)
{
	struct railmap_hdr *hdr = hdr_get();
	struct ix_key ix = {.netns = p->netns, .ifindex = p->ifindex};
	struct ix_key old;
	struct rail_key key;
	struct railmap_row *row;
	__u32 *known;
	__u32 index;

	if (!hdr) {
		return -EINVAL;
	}
	key_of(p, &key);
	known = bpf_map_lookup_elem(&rail_key, &key);
	index = known ? *known : hdr->row_count;
	row = row_get(index);
	if (!row) {
		return -ENOSPC;
	}
	if (!seq_begin(&row->id_seq)) {
		return -EBUSY;
	}
	old.netns = row->netns;
	old.ifindex = row->ifindex;
	row_fill(row, p);
	seq_end(&row->id_seq);
	row_link(row, p->link, p->value);
	*index_out = index;
	if (index >= hdr->row_count) {
		hdr->row_count = index + 1;
	}
	bpf_map_delete_elem(&rail_ix, &old);
	bpf_map_update_elem(&rail_ix, &ix, &index, BPF_ANY);
	bpf_map_update_elem(&rail_key, &key, &index, BPF_ANY);
	return 0;
}

static __always_inline void hw_fill(struct railmap_row *row, const struct railmap_publish *p)
{
	uint64_t *to = &row->hw_rx_pkts;

	row->hw_valid = p->hw_valid;
	row->hw_sample_ns = bpf_ktime_get_ns();
	row->hw_src = RAILMAP_SRC_PUBLISH;
#pragma unroll
	for (int i = 0; i < RAILMAP_HW_COUNT; i++) {
		to[i] = p->hw_wrap32 >> i & 1 ? railmap_extend32(to[i], (__u32)p->hw[i]) : p->hw[i];
	}
}

static __always_inline int op_hw(const struct railmap_publish *p)
{
	struct railmap_row *row = row_get(p->index);

	if (!row || !(row->flags & RAILMAP_ROW_USED)) {
		return -ENOENT;
	}
	if (!seq_begin(&row->hw_seq)) {
		return -EBUSY; /* another sampler is at it: its figures are as good */
	}
	hw_fill(row, p);
	seq_end(&row->hw_seq);
	return 0;
}

static __always_inline int op_drain(const struct railmap_publish *p)
{
	struct railmap_row *row = row_get(p->index);

	if (!row || !(row->flags & RAILMAP_ROW_USED)) {
		return -ENOENT;
	}
	row->drained_ns = p->value ? bpf_ktime_get_ns() : 0;
	return 0;
}

static __always_inline int op_hooks(const struct railmap_publish *p)
{
	struct railmap_hdr *hdr = hdr_get();

	if (!hdr) {
		return -EINVAL;
	}
	hdr->hooks = p->value;
	return 0;
}

/* The verifier wants the context read at constant offsets: copy it whole. */
SEC("syscall")
int publish(struct railmap_publish *ctx)
{
	struct railmap_publish p;
	int ret = -EINVAL;

	__builtin_memcpy(&p, ctx, sizeof(p));
	if (p.op == RAILMAP_OP_START) {
		ret = op_start(&p);
	} else if (p.op == RAILMAP_OP_HOOKS) {
		ret = op_hooks(&p);
	} else if (p.op == RAILMAP_OP_ROW) {
		ret = op_row(&p, &ctx->index);
	} else if (p.op == RAILMAP_OP_HW) {
		ret = op_hw(&p);
	} else if (p.op == RAILMAP_OP_DRAIN) {
		ret = op_drain(&p);
	} else if (p.op == RAILMAP_OP_RETIRE) {
		ret = op_retire();
	}
	ctx->result = ret;
	return 0;
}
