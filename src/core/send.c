/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * send.c - matching, cutting and completing on the sender's side; plan.c chooses the lanes.
 */
#include "send.h"

#include <errno.h>
#include <string.h>

#include "plan.h"

int core_send_init(struct core_send *c, const struct core_config *cfg, const struct core_cts *ring)
{
	if (cfg->lane_count < 1 || cfg->lane_count > CORE_LANES_MAX || cfg->port_count < 1 ||
	    cfg->port_count > CORE_PORTS_MAX || cfg->path_count < 1 ||
	    cfg->lane_count % cfg->path_count != 0) {
		return -EINVAL;
	}
	memset(c, 0, sizeof(*c));
	c->cfg = *cfg;
	c->ring = ring;
	c->newest = UINT64_MAX;
	c->lanes_per_path = cfg->lane_count / cfg->path_count;
	c->window_us = cfg->window_us;
	c->equal_above = cfg->lane_count > 1 && !cfg->adaptive_routing ? cfg->small_bytes
								       : UINT32_MAX;
	c->measured_from = cfg->lane_count > 1 ? CORE_MEASURED_BYTES : UINT64_MAX;
	c->recheck = UINT64_MAX;
	if (!cfg->adaptive_routing && c->lanes_per_path == 1) {
		plan_quick(c);
	}
	c->equal = true;
	c->best = (uint8_t)(cfg->hash % cfg->path_count);
	for (uint32_t i = 0; i < cfg->lane_count; i++) {
		c->lane[i].state = LANE_DOWN;
		c->lane[i].port = cfg->lane[i].port;
		c->lane[i].port_bit = (uint8_t)(1u << cfg->lane[i].port);
		c->lane[i].remote = cfg->lane[i].remote;
		c->all |= 1ull << i;
	}
	return 0;
}

void core_send_fini(struct core_send *c)
{
	for (uint32_t i = 0; i < c->cfg.lane_count; i++) {
		plan_forget(c, &c->lane[i]);
		c->lane[i].tail = (uint8_t)c->lane[i].posted;
	}
}

void core_send_lane_open(struct core_send *c, uint32_t i, uint32_t generation, uint16_t credit)
{
	struct core_lane *lane = &c->lane[i];

	lane->state = LANE_ACTIVE;
	lane->generation = generation;
	lane->credit = credit;
	plan_lane_reset(c, i);
	core_send_signal(c);
}

void core_send_lane_state(struct core_send *c, uint32_t i, enum core_lane_state state)
{
	c->lane[i].state = (uint8_t)state;
	core_send_signal(c);
}

static int match_group(const struct core_send *c, uint32_t n, uint32_t tag,
		       const struct core_cts **rec, uint64_t *seq)
{
	/* Once for a group: after its first member was taken all records are known to be here. */
	for (uint32_t i = 0; i < n && c->matched == 0; i++) {
		const struct core_cts *r = &c->ring[core_slot(c->head + i)];

		if (!core_record_here(r, c->head + i)) {
			return -EAGAIN;
		}
		if (r->n != n || r->index != i) {
			return -EPROTO;
		}
	}
	for (uint32_t i = (uint32_t)__builtin_ctz(~c->matched); i < n; i++) {
		const struct core_cts *r = &c->ring[core_slot(c->head + i)];

		if ((c->matched >> i & 1) == 0 && r->tag == tag) {
			*rec = r;
			*seq = c->head + i;
			return c->msg[core_slot(*seq)].state == MSG_FREE ? 0 : -EAGAIN;
		}
	}
	return -EAGAIN;
}

int core_send_match(const struct core_send *c, uint32_t tag, const struct core_cts **rec,
		    uint64_t *seq)
{
	uint32_t slot = core_slot(c->head);
	const struct core_cts *r = &c->ring[slot];

	if (!core_record_here(r, c->head)) {
		return -EAGAIN;
	}
	if (r->n != 1) {
		return r->n > CORE_GROUP_MAX || r->n == 0 ? -EPROTO :
							    match_group(c, r->n, tag, rec, seq);
	}
	if (r->tag != tag || c->msg[slot].state != MSG_FREE) {
		return -EAGAIN;
	}
	*rec = r;
	*seq = c->head;
	return 0;
}

static void enqueue(struct core_send *c, uint32_t slot)
{
	c->queue[c->q_tail++ % CORE_SLOTS] = (uint8_t)slot;
}

/* A member of several pieces cannot share an immediate: those that waited for it go alone. */
static void group_break(struct core_send *c)
{
	for (uint32_t i = 0; c->held >> i != 0; i++) {
		uint32_t slot = core_slot(c->head + i);

		if (c->held >> i & 1) {
			c->msg[slot].state = MSG_OPEN;
			enqueue(c, slot);
		}
	}
	c->held = 0;
	c->mixed = true;
}

/* Take member m of a group; the last one to come sends the group on its way. */
static void group_take(struct core_send *c, struct core_msg *m)
{
	uint32_t n = m->group_n;

	c->matched |= 1u << m->group_index;
	/* A unit counts its bytes in 32 bits. */
	if ((m->plan != PLAN_ONE || m->size > UINT32_MAX / CORE_GROUP_MAX) && !c->mixed) {
		group_break(c);
	}
	if (c->mixed) {
		m->state = MSG_OPEN;
		enqueue(c, core_slot(m->seq));
	} else {
		m->state = MSG_HELD;
		c->held |= 1u << m->group_index;
	}
	if (c->matched != (1u << n) - 1) {
		return;
	}
	if (!c->mixed) {
		c->msg[core_slot(c->head)].state = MSG_GROUP;
		enqueue(c, core_slot(c->head));
	}
	c->head += n;
	c->matched = 0;
	c->held = 0;
	c->mixed = false;
}

uint32_t core_send_start(struct core_send *c, const struct core_cts *rec, uint64_t seq,
			 uint32_t size, uint64_t now_ns)
{
	uint32_t slot = core_slot(seq);
	struct core_msg *m = &c->msg[slot];

	m->seq = seq;
	m->addr = rec->addr;
	m->size = size < rec->size ? size : rec->size;
	m->mr_id = rec->mr_id;
	m->next = 0;
	m->done = 0;
	m->group_n = rec->n;
	m->group_index = rec->index;
	c->newest = seq;
	plan_cut(c, m, now_ns);
	c->queued_bytes += m->size;
	if (rec->n == 1) {
		m->state = MSG_OPEN;
		c->head++;
		enqueue(c, slot);
	} else {
		group_take(c, m);
	}
	return slot;
}

/* Book a unit that was queued. */
static inline uint32_t unit_post(struct core_send *c, uint32_t l, struct core_unit u,
				 uint64_t now_ns)
{
	uint32_t place = core_unit_book(c, &c->lane[l], u);

	c->queued_bytes -= u.bytes;
	if (plan_measures(c, u.bytes)) {
		plan_began(c, now_ns);
		plan_posted(c, &c->lane[l], u.bytes, now_ns);
	}
	c->inflight_bytes += u.bytes;
	return place;
}

static bool next_group(struct core_send *c, struct core_msg *m, uint64_t now_ns,
		       struct core_post *out)
{
	uint32_t n = m->group_n, slot = core_slot(m->seq);
	uint32_t bytes = 0;
	int l = plan_lane(c, m, n + 1, now_ns);

	if (l < 0) {
		return false;
	}
	for (uint32_t i = 0; i < n; i++) {
		bytes += c->msg[core_slot(m->seq + i)].size;
	}
	struct core_unit u = { .bytes = bytes, .piece = (uint16_t)n, .slot = (uint8_t)slot,
			       .wrs = (uint8_t)((n + 1) | UNIT_GROUP) };

	out->lane = (uint32_t)l;
	out->slot = slot;
	out->unit = unit_post(c, (uint32_t)l, u, now_ns);
	out->group_n = n;
	out->imm = core_imm(m->seq, CORE_IMM_GROUP, n);
	out->split_imm = false;
	out->sizes = true;
	c->q_head++;
	return true;
}

bool core_send_next(struct core_send *c, uint64_t now_ns, struct core_post *out)
{
	if (c->q_head == c->q_tail) {
		return false;
	}
	uint32_t slot = c->queue[c->q_head % CORE_SLOTS];
	struct core_msg *m = &c->msg[slot];

	if (m->state == MSG_GROUP) {
		return next_group(c, m, now_ns, out);
	}
	uint32_t offset = m->next * m->piece_bytes;
	uint32_t bytes = m->size - offset < m->piece_bytes ? m->size - offset : m->piece_bytes;
	bool split = c->cfg.adaptive_routing && m->size > c->cfg.ar_threshold;
	uint32_t wrs = split ? 2 : 1;
	/* Equal pieces mostly find their lane ready. */
	int l = m->lane0 + m->next;

	if (m->plan != PLAN_EQUAL || !core_lane_ready(c, (uint32_t)l, wrs) ||
	    c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE)) {
		l = plan_lane(c, m, wrs, now_ns);
	}
	if (l < 0) {
		return false;
	}
	struct core_unit u = { .bytes = bytes, .piece = m->next, .slot = (uint8_t)slot,
			       .wrs = (uint8_t)wrs };

	out->lane = (uint32_t)l;
	out->slot = slot;
	out->unit = unit_post(c, (uint32_t)l, u, now_ns);
	out->group_n = 0;
	out->addr = m->addr + offset;
	out->mr_id = m->mr_id;
	out->offset = offset;
	out->bytes = bytes;
	out->imm = core_imm(m->seq, m->next, m->count);
	out->split_imm = split;
	out->sizes = split && m->next == 0;
	if (++m->next == m->count) {
		c->q_head++;
	}
	return true;
}

static __attribute__((noinline)) void group_done(struct core_send *c, struct core_lane *lane,
						 const struct core_unit *u)
{
	lane->sq_used = (uint16_t)(lane->sq_used - (u->wrs & ~UNIT_GROUP));
	for (uint32_t i = 0; i < u->piece; i++) {
		struct core_msg *m = &c->msg[(u->slot + i) % CORE_SLOTS];

		m->done = m->count;
	}
}

/* The oldest unit of a lane is through; returns how many of its bytes are measured. */
static inline uint32_t unit_done(struct core_send *c, struct core_lane *lane)
{
	const struct core_unit *u = &lane->unit[++lane->tail];

	lane->inflight_bytes -= u->bytes;
	lane->total_bytes += u->bytes;
	c->inflight_bytes -= u->bytes;
	if (__builtin_expect(u->wrs & UNIT_GROUP, 0)) {
		group_done(c, lane, u);
	} else {
		lane->sq_used = (uint16_t)(lane->sq_used - u->wrs);
		c->msg[u->slot].done++;
	}
	if (!plan_measures(c, u->bytes)) {
		return 0;
	}
	lane->timed--;
	return u->bytes;
}

static inline void units_done(struct core_send *c, struct core_lane *lane, uint32_t units,
			      uint64_t measured, uint64_t now_ns)
{
	c->port_units[lane->port] -= units;
	if (c->port_units[lane->port] == 0) {
		c->busy_ports ^= lane->port_bit;
	}
	if (measured != 0) {
		plan_completed(c, lane, measured, now_ns);
	}
}

static __attribute__((noinline)) void one_complete(struct core_send *c, struct core_lane *lane,
						   uint64_t now_ns)
{
	units_done(c, lane, 1, unit_done(c, lane), now_ns);
}

static __attribute__((noinline)) void run_complete(struct core_send *c, struct core_lane *lane,
						   uint32_t units, uint64_t now_ns)
{
	uint64_t measured = 0;

	for (uint32_t i = 0; i < units; i++) {
		measured += unit_done(c, lane);
	}
	units_done(c, lane, units, measured, now_ns);
}

int core_send_complete(struct core_send *c, uint32_t l, uint32_t generation, uint32_t unit,
		       uint64_t now_ns)
{
	struct core_lane *lane = &c->lane[l];
	uint8_t units = (uint8_t)(unit - lane->tail);

	if (lane->generation != generation || units == 0 ||
	    units > (uint8_t)(lane->posted - lane->tail)) {
		return -ESTALE;
	}
	if (units == 1) {
		one_complete(c, lane, now_ns);
	} else {
		run_complete(c, lane, units, now_ns);
	}
	return 0;
}
