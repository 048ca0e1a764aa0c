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
	if (cfg->lane_count < 1 || cfg->lane_count + cfg->standby_count > CORE_LANES_MAX ||
	    cfg->port_count < 1 || cfg->port_count > CORE_PORTS_MAX || cfg->path_count < 1 ||
	    cfg->lane_count % cfg->path_count != 0) {
		return -EINVAL;
	}
	memset(c, 0, sizeof(*c));
	c->cfg = *cfg;
	c->ring = ring;
	c->newest = UINT64_MAX;
	c->lanes_per_path = cfg->lane_count / cfg->path_count;
	c->lanes_total = cfg->lane_count + cfg->standby_count;
	c->window_us = cfg->window_us;
	c->member_bytes = cfg->lane_count == 1 ? UINT32_MAX / CORE_GROUP_MAX : cfg->small_bytes;
	c->equal_above = cfg->lane_count > 1 && !cfg->adaptive_routing ? cfg->small_bytes
								       : UINT32_MAX;
	c->measured_from = cfg->lane_count > 1 ? CORE_MEASURED_BYTES : UINT64_MAX;
	c->recheck = UINT64_MAX;
	if (!cfg->adaptive_routing && c->lanes_per_path == 1) {
		plan_quick(c);
	}
	c->equal = true;
	c->best = (uint8_t)(cfg->hash % cfg->path_count);
	for (uint32_t i = 0; i < c->lanes_total; i++) {
		c->lane[i].state = LANE_DOWN;
		c->lane[i].port = cfg->lane[i].port;
		c->lane[i].port_bit = (uint8_t)(1u << cfg->lane[i].port);
		c->lane[i].remote = cfg->lane[i].remote;
		c->all |= i < cfg->lane_count ? 1ull << i : 0;
	}
	return 0;
}

void core_send_fini(struct core_send *c)
{
	for (uint32_t i = 0; i < c->lanes_total; i++) {
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

void core_send_lane_renew(struct core_send *c, uint32_t i, uint32_t generation, uint16_t count)
{
	c->lane[i].posted = (uint16_t)(count - CORE_RQ_WRS);
	c->lane[i].tail = (uint8_t)c->lane[i].posted;
	core_send_lane_open(c, i, generation, count);
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

/* What is sent again goes first: the receiver's oldest messages wait for it. */
static void enqueue_first(struct core_send *c, uint32_t slot)
{
	c->queue[--c->q_head % CORE_SLOTS] = (uint8_t)slot;
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
	int l = plan_lane(c, m, n + 1, now_ns); /* the same whether it goes again */

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
	m->again = 0;
	c->again[slot][0] = 0;
	c->q_head++;
	return true;
}

static uint32_t again_first(const struct core_send *c, uint32_t slot)
{
	uint32_t word = 0;

	while (c->again[slot][word] == 0) {
		word++;
	}
	return word * 64 + (uint32_t)__builtin_ctzll(c->again[slot][word]);
}

/* Fill *out with piece `index` of m, going on lane l. */
static void piece_post(struct core_send *c, struct core_msg *m, uint32_t index, uint32_t l,
		       uint64_t now_ns, struct core_post *out)
{
	uint32_t offset = index * m->piece_bytes, slot = core_slot(m->seq);
	uint32_t bytes = m->size - offset < m->piece_bytes ? m->size - offset : m->piece_bytes;
	bool split = c->cfg.adaptive_routing && m->size > c->cfg.ar_threshold;
	struct core_unit u = { .bytes = bytes, .piece = (uint16_t)index, .slot = (uint8_t)slot,
			       .wrs = split ? 2 : 1 };

	out->lane = l;
	out->slot = slot;
	out->unit = unit_post(c, l, u, now_ns);
	out->group_n = 0;
	out->addr = m->addr + offset;
	out->mr_id = m->mr_id;
	out->offset = offset;
	out->bytes = bytes;
	out->imm = core_imm(m->seq, index, m->count);
	out->split_imm = split;
	out->sizes = split && index == 0;
}

static __attribute__((cold, noinline)) bool next_again(struct core_send *c, struct core_msg *m,
						       uint64_t now_ns, struct core_post *out)
{
	uint32_t slot = core_slot(m->seq), index = again_first(c, slot);
	bool split = c->cfg.adaptive_routing && m->size > c->cfg.ar_threshold;
	int l = plan_lane_again(c, m, split ? 2 : 1, now_ns);

	if (l < 0) {
		return false;
	}
	piece_post(c, m, index, (uint32_t)l, now_ns, out);
	c->again[slot][index / 64] &= ~(1ull << (index % 64));
	if (--m->again == 0 && m->next == m->count) {
		c->q_head++;
	}
	return true;
}

bool core_send_next(struct core_send *c, uint64_t now_ns, struct core_post *out)
{
	if (c->q_head == c->q_tail) {
		return false;
	}
	struct core_msg *m = &c->msg[c->queue[c->q_head % CORE_SLOTS]];

	if (m->state == MSG_GROUP) {
		return next_group(c, m, now_ns, out);
	}
	if (__builtin_expect(m->again != 0, 0)) {
		return next_again(c, m, now_ns, out);
	}
	uint32_t wrs = c->cfg.adaptive_routing && m->size > c->cfg.ar_threshold ? 2 : 1;
	/* Equal pieces mostly find their lane ready. */
	int l = m->lane0 + m->next;

	if (m->plan != PLAN_EQUAL || !core_lane_ready(c, (uint32_t)l, wrs) ||
	    c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE)) {
		l = plan_lane(c, m, wrs, now_ns);
	}
	if (l < 0) {
		return false;
	}
	piece_post(c, m, m->next, (uint32_t)l, now_ns, out);
	if (++m->next == m->count) {
		c->q_head++;
	}
	return true;
}

/* A whole group, or a probe: that has no members. */
static __attribute__((noinline)) void group_done(struct core_send *c, struct core_lane *lane,
						 const struct core_unit *u)
{
	lane->sq_used = (uint16_t)(lane->sq_used - (u->wrs & ~UNIT_FLAGS));
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
	if (__builtin_expect(u->wrs & UNIT_FLAGS, 0)) {
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

/* --- recovery ----------------------------------------------------------------------------- */

uint32_t core_send_ask(const struct core_send *c, uint32_t l,
		       struct core_item item[CORE_WR_RING])
{
	const struct core_lane *lane = &c->lane[l];
	uint32_t n = 0;

	for (uint8_t at = lane->tail; at != (uint8_t)lane->posted;) {
		const struct core_unit *u = &lane->unit[++at];
		const struct core_msg *m = &c->msg[u->slot];

		if (u->wrs & UNIT_PROBE) {
			continue;
		}
		item[n].seq = m->seq;
		item[n].index = u->wrs & UNIT_GROUP ? CORE_IMM_GROUP : u->piece;
		item[n].count = u->wrs & UNIT_GROUP ? u->piece : m->count;
		n++;
	}
	return n;
}

/* Is it in the queue already, with pieces not handed out yet or to be sent again? */
static bool is_queued(const struct core_msg *m)
{
	return m->again != 0 || (m->state == MSG_OPEN && m->next < m->count);
}

/*
 * A unit did not land: it goes again. Where it goes to stands in the record, which the receiver
 * keeps until the message is done.
 */
static int unit_again(struct core_send *c, const struct core_unit *u)
{
	struct core_msg *m = &c->msg[u->slot];
	const struct core_cts *rec = &c->ring[u->slot];

	if (!core_record_here(rec, m->seq)) {
		return -EPROTO;
	}
	if (m->state == MSG_OPEN && m->count == 1) { /* what core_send_quick() leaves out */
		m->addr = rec->addr;
		m->mr_id = rec->mr_id;
		m->piece_bytes = m->size;
		m->plan = PLAN_ONE;
	}
	if (!is_queued(m)) {
		enqueue_first(c, u->slot);
	}
	m->again++;
	c->again[u->slot][u->piece / 64] |= 1ull << (u->piece % 64);
	c->queued_bytes += u->bytes;
	return 0;
}

/* The same for a group, all of whose members go again. */
static int group_again(struct core_send *c, const struct core_unit *u)
{
	struct core_unit first = *u;

	for (uint32_t i = 0; i < u->piece; i++) {
		uint32_t slot = (u->slot + i) % CORE_SLOTS;

		if (!core_record_here(&c->ring[slot], c->msg[slot].seq)) {
			return -EPROTO;
		}
	}
	first.piece = 0;
	return unit_again(c, &first);
}

static int unit_answered(struct core_send *c, const struct core_unit *u, bool missing)
{
	if (missing) {
		return u->wrs & UNIT_GROUP ? group_again(c, u) : unit_again(c, u);
	}
	for (uint32_t i = 0; i < u->piece && (u->wrs & UNIT_GROUP); i++) {
		struct core_msg *m = &c->msg[(u->slot + i) % CORE_SLOTS];

		m->done = m->count;
	}
	if ((u->wrs & UNIT_GROUP) == 0) {
		c->msg[u->slot].done++;
	}
	return 0;
}

/* Nothing is in flight on a fenced lane any more. */
static void lane_empty(struct core_send *c, struct core_lane *lane)
{
	uint32_t units = (uint8_t)(lane->posted - lane->tail);

	plan_forget(c, lane);
	c->inflight_bytes -= lane->inflight_bytes;
	c->port_units[lane->port] -= units;
	if (c->port_units[lane->port] == 0) {
		c->busy_ports &= ~(uint32_t)lane->port_bit;
	}
	lane->inflight_bytes = 0;
	lane->sq_used = 0;
	lane->timed = 0;
	lane->paced_ns = 0;
	lane->tail = (uint8_t)lane->posted;
}

int core_send_answer(struct core_send *c, uint32_t l, const uint8_t *answer, uint32_t n)
{
	struct core_lane *lane = &c->lane[l];
	uint32_t left = 0;
	int again = 0, rc = 0;

	for (uint8_t at = lane->tail; at != (uint8_t)lane->posted;) {
		left += (lane->unit[++at].wrs & UNIT_PROBE) == 0;
	}
	if (left != n) {
		return -EPROTO;
	}
	/* From the newest to the oldest: the oldest comes to stand first in the queue. */
	for (uint8_t at = (uint8_t)lane->posted; at != lane->tail && rc == 0; at--) {
		const struct core_unit *u = &lane->unit[at];

		if (u->wrs & UNIT_PROBE) {
			continue;
		}
		bool missing = answer[--left] == ANSWER_MISSING;

		rc = unit_answered(c, u, missing);
		again += missing;
	}
	lane_empty(c, lane);
	return rc != 0 ? rc : again;
}

uint64_t core_send_begun(const struct core_send *c)
{
	return c->head + (c->matched == 0 ? 0 : 32 - (uint32_t)__builtin_clz(c->matched));
}

uint64_t core_send_acked(const struct core_send *c)
{
	uint64_t first = c->head;

	for (uint32_t i = 0; i < CORE_SLOTS; i++) {
		const struct core_msg *m = &c->msg[i];

		if (m->state != MSG_FREE && m->done < m->count && m->seq < first) {
			first = m->seq;
		}
	}
	return first;
}

bool core_send_probe(struct core_send *c, uint32_t l, struct core_post *out)
{
	struct core_lane *lane = &c->lane[l];

	if (lane->state != LANE_ACTIVE || core_send_lane_units(c, l) != 0 ||
	    lane->posted == lane->credit) {
		return false;
	}
	memset(out, 0, sizeof(*out));
	out->lane = l;
	out->unit = core_unit_book(c, lane, (struct core_unit){ .wrs = 1 | UNIT_PROBE });
	out->imm = core_imm(0, CORE_IMM_PROBE, 1);
	return true;
}
