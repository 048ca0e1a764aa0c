/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * publish.h - the one way in for user space: SEC("syscall"), run by BPF_PROG_TEST_RUN.
 */
#ifndef RAILYARD_BPF_PUBLISH_H
#define RAILYARD_BPF_PUBLISH_H

#include "beat.h"
#include "rows.h"

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
	key->kind = !pci			  ? KEY_NETDEV_NAME
		    : p->flags & RAILMAP_ROW_PORT ? KEY_PORT
						  : KEY_NETDEV_PCI;
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

/* A virtual netdev under a new name: its row by its index, unless that row is not of its kind. */
static __always_inline __u32 *renamed(const struct ix_key *ix, const struct railmap_publish *p)
{
	__u32 *index = p->ifindex ? bpf_map_lookup_elem(&rail_ix, ix) : NULL;
	struct railmap_row *row = index ? row_get(*index) : NULL;
	struct rail_key old = {.kind = KEY_NETDEV_NAME, .scope = p->netns};

	if (!row || row->flags & RAILMAP_ROW_PCI) {
		return NULL;
	}
	__builtin_memcpy(old.name, row->ifname, sizeof(old.name));
	bpf_map_delete_elem(&rail_key, &old);
	return index;
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
	if (!known && !key.kind) {
		known = renamed(&ix, p);
	}
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
	if (ix.ifindex) {
		bpf_map_update_elem(&rail_ix, &ix, &index, BPF_ANY);
	}
	bpf_map_update_elem(&rail_key, &key, &index, BPF_ANY);
	return 0;
}

/* Two writers may know different counters: what this one does not know stays. */
static __always_inline void hw_fill(struct railmap_row *row, const struct railmap_publish *p)
{
	uint64_t *to = &row->hw_rx_pkts;

	row->hw_valid |= p->hw_valid;
	row->hw_sample_ns = bpf_ktime_get_ns();
	row->hw_src = RAILMAP_SRC_PUBLISH;
#pragma unroll
	for (int i = 0; i < RAILMAP_HW_COUNT; i++) {
		if (p->hw_valid & p->hw_wrap32 & 1u << i) {
			to[i] = railmap_extend32(to[i], (__u32)p->hw[i]);
		} else if (p->hw_valid >> i & 1) {
			to[i] = p->hw[i];
		}
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

#endif
