/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recv.c - slots, records and immediates on the receiver's side.
 */
#include "recv.h"

#include <errno.h>
#include <string.h>

enum {
	SIGNAL_EVERY = CORE_SQ_WRS / 2,  /* announcements between completed ones on a lane */
	CREDIT_LAG = CORE_RQ_WRS / 2,    /* receive WRs the peer may be behind before it is told */
	LANE_RECHECK = 16,               /* irecvs between looks for a less loaded lane */
	/* of receive-WR counts between two generations: no count of the old one looks new */
	GENERATION_STEP = 4 * CORE_RQ_WRS,
	IMM_PROBE_HIGH = CORE_IMM_PROBE  /* index 254 of 1: the upper half of a probe's immediate */
};

/* Else a peer without credits could wait for a record that is not due yet. */
_Static_assert(CREDIT_LAG + CORE_RQ_BATCH <= CORE_RQ_WRS, "a used-up queue makes a record due");

static inline uint32_t lanes_total(const struct core_recv *c)
{
	return c->cfg.lane_count + c->cfg.standby_count;
}

int core_recv_init(struct core_recv *c, const struct core_config *cfg, struct core_cts *staging,
		   const struct core_sizes *sizes)
{
	if (cfg->lane_count < 1 || cfg->lane_count + cfg->standby_count > CORE_LANES_MAX ||
	    cfg->port_count < 1 || cfg->port_count > CORE_PORTS_MAX || cfg->path_count < 1) {
		return -EINVAL;
	}
	memset(c, 0, sizeof(*c));
	c->cfg = *cfg;
	c->staging = staging;
	c->sizes = sizes;
	c->cts_lane = (uint8_t)(cfg->hash % cfg->path_count);
	for (uint32_t i = 0; i < lanes_total(c); i++) {
		c->lane[i].state = LANE_DOWN;
		c->lane[i].port = cfg->lane[i].port;
		c->lane[i].remote = cfg->lane[i].remote;
	}
	return 0;
}

static void signals_take(struct core_recv *c)
{
	uint64_t usable = 0, home = (2ull << (c->cfg.lane_count - 1)) - 1;

	c->epoch = __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < lanes_total(c); i++) {
		const struct core_recv_lane *lane = &c->lane[i];

		if (lane->state == LANE_ACTIVE && !core_word(&c->cfg.local[lane->port]->down) &&
		    !core_word(&c->cfg.remote[lane->remote]->down)) {
			usable |= 1ull << i;
		}
	}
	c->active = (usable & home) != 0 ? usable & home : usable;
	c->model_old = true;
}

void core_recv_lane_open(struct core_recv *c, uint32_t i, uint32_t generation, uint16_t posted)
{
	struct core_recv_lane *lane = &c->lane[i];

	lane->state = LANE_ACTIVE;
	lane->generation = generation;
	lane->posted = posted;
	lane->announced = posted;
	lane->taken = 0;
	lane->sq_used = 0;
	lane->unsignaled = 0;
	lane->covers_head = lane->covers_tail;
	signals_take(c);
}

void core_recv_lane_state(struct core_recv *c, uint32_t i, enum core_lane_state state)
{
	c->lane[i].state = (uint8_t)state;
	signals_take(c);
}

static bool lane_takes(const struct core_recv *c, uint32_t l)
{
	return (c->active >> l & 1) != 0 && c->lane[l].sq_used + 2 <= CORE_SQ_WRS;
}

/* How long the local port of a lane is busy with what all comms sent through it. */
static uint64_t port_busy_ns(const struct core_recv *c, uint32_t l)
{
	const struct core_load *load = c->cfg.load[c->lane[l].port];

	if (load == NULL) {
		return 0;
	}
	return __atomic_load_n(&load->inflight_bytes, __ATOMIC_RELAXED) *
	       __atomic_load_n(&load->cost_ns, __ATOMIC_RELAXED) / CORE_COST_UNIT;
}

static __attribute__((noinline)) int announce_choose(struct core_recv *c)
{
	bool stay = lane_takes(c, c->cts_lane);
	uint64_t best = stay ? port_busy_ns(c, c->cts_lane) * 7 / 8 : UINT64_MAX;
	int choice = stay ? c->cts_lane : -1;

	for (uint32_t i = 1; i <= lanes_total(c) && best != 0; i++) {
		uint32_t l = (c->cts_lane + i) % lanes_total(c);

		if (lane_takes(c, l) && port_busy_ns(c, l) < best) {
			best = port_busy_ns(c, l);
			choice = (int)l;
		}
	}
	if (choice >= 0) {
		c->cts_lane = (uint8_t)choice;
	}
	return choice;
}

/* The lane of announcements: never behind bulk data while another is free; else it stays. */
static inline int announce_lane(struct core_recv *c, bool look)
{
	if (__builtin_expect(c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE),
			     0)) {
		signals_take(c);
		look = true;
	}
	if (__builtin_expect(!look && lane_takes(c, c->cts_lane), 1)) {
		return c->cts_lane;
	}
	return announce_choose(c);
}

/*
 * Book `wrs` announcement writes on a lane; every SIGNAL_EVERYth is completed, to know the queue's
 * room.
 */
static void announce_book(struct core_recv *c, struct core_announce *out, uint32_t wrs)
{
	struct core_recv_lane *lane = &c->lane[out->lane];

	lane->sq_used = (uint16_t)(lane->sq_used + wrs);
	lane->unsignaled = (uint16_t)(lane->unsignaled + wrs);
	out->signaled = out->credit || out->again || lane->unsignaled >= SIGNAL_EVERY;
	if (out->signaled) {
		lane->covers[lane->covers_tail++ % CORE_ANNOUNCE_SIGNALS] = lane->unsignaled;
		lane->unsignaled = 0;
	}
}

/* Tell the counts of a block of lanes in a record. */
static void record_credits(struct core_recv *c, struct core_cts *rec, uint32_t block)
{
	uint32_t first = block * CORE_CREDIT_BLOCK;

	rec->block = (uint8_t)block;
	for (uint32_t i = 0; i < CORE_CREDIT_BLOCK && first + i < lanes_total(c); i++) {
		rec->posted[i] = c->lane[first + i].posted;
		c->lane[first + i].announced = c->lane[first + i].posted;
	}
}

static void record_pressure(const struct core_recv *c, struct core_cts *rec)
{
	for (uint32_t i = 0; i < c->cfg.port_count; i++) {
		rec->pressure[i] = (uint8_t)core_word(&c->cfg.local[i]->pressure);
	}
}

/* What all records of irecvs say alike: made anew when a count or a port's word has changed. */
static void model_make(struct core_recv *c)
{
	record_pressure(c, &c->model);
	record_credits(c, &c->model, 0);
	c->model_old = false;
}

/* Would one of the next n records be written where copies of an older one may still land? */
static __attribute__((cold, noinline)) bool is_guarded(const struct core_recv *c, uint32_t n)
{
	uint64_t last = c->next + n - 1; /* its place had message last - CORE_SLOTS before */

	return last >= c->guard_from + CORE_SLOTS && c->next < c->guard_to + CORE_SLOTS;
}

static void slot_open(struct core_recv *c, uint64_t seq, uint32_t i, uint32_t n, uint32_t size)
{
	struct core_recv_slot *s = &c->slot[core_slot(seq)];

	s->seq = seq;
	s->room = size;
	s->count = 0;
	s->missing = 0;
	s->size = size;
	s->state = SLOT_OPEN;
	s->n = (uint8_t)n;
	s->left = (uint8_t)n;
	s->first = (uint8_t)(seq - i);
}

/* A member is complete. */
static void slot_land(struct core_recv *c, struct core_recv_slot *s)
{
	s->state = SLOT_DONE;
	c->slot[s->first].left--;
}

int core_recv_post(struct core_recv *c, uint32_t n, const struct core_recv_buffer *buffers,
		   uint32_t *slot, struct core_announce *out)
{
	for (uint32_t i = 0; i < n; i++) {
		if (c->slot[core_slot(c->next + i)].state != SLOT_FREE) {
			return -EAGAIN;
		}
	}
	int l = announce_lane(c, c->cfg.path_count > 1 && c->next % LANE_RECHECK < n);

	if (l < 0 || __builtin_expect(c->guard_to != 0 && is_guarded(c, n), 0)) {
		return -EAGAIN;
	}
	if (c->model_old) {
		model_make(c);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct core_cts *rec = &c->staging[core_slot(c->next + i)];
		const struct core_recv_buffer *b = &buffers[i];

		rec->addr = b->addr;
		rec->size = b->size;
		rec->tag = b->tag;
		rec->mr_id = b->mr_id;
		rec->n = (uint8_t)n;
		rec->index = (uint8_t)i;
		rec->block = 0;
		memcpy(rec->pressure, c->model.pressure,
		       sizeof(rec->pressure) + sizeof(rec->posted));
		rec->seq = c->next + i + 1;
		slot_open(c, c->next + i, i, n, b->size);
	}
	*slot = core_slot(c->next);
	out->lane = (uint32_t)l;
	out->first = *slot;
	out->n = n;
	out->credit = false;
	out->again = false;
	announce_book(c, out, *slot + n > CORE_SLOTS ? 2 : 1);
	c->next += n;
	return 0;
}

/* A whole group arrived by one immediate; its sizes lie in the record of its first slot. */
static __attribute__((noinline)) int group_land(struct core_recv *c, uint32_t first, uint32_t n)
{
	struct core_recv_slot *s = &c->slot[first];
	const struct core_sizes *rec = &c->sizes[first];

	if (s->n != n || s->first != first || rec->seq != s->seq + 1) {
		return -EPROTO;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct core_recv_slot *m = &c->slot[(first + i) % CORE_SLOTS];

		if (m->state != SLOT_OPEN || m->seq != s->seq + i || m->count != 0 ||
		    rec->size[i] > m->size) {
			return -EPROTO;
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		struct core_recv_slot *m = &c->slot[(first + i) % CORE_SLOTS];

		m->room = m->size - rec->size[i];
		slot_land(c, m);
	}
	return 0;
}

/* Pieces that do not carry their bytes (split immediates): the size is in the record. */
static void size_from_record(struct core_recv *c, struct core_recv_slot *s)
{
	const struct core_sizes *rec = &c->sizes[core_slot(s->seq)];

	if (rec->seq == s->seq + 1 && rec->size[0] <= s->size) {
		s->room = s->size - rec->size[0];
	}
}

/* All pieces of a message are in. */
static inline void message_land(struct core_recv *c, struct core_recv_slot *s)
{
	if (__builtin_expect(c->cfg.adaptive_routing, 0)) {
		size_from_record(c, s);
	}
	slot_land(c, s);
}

/* Where large messages come in, acks of what goes out must wait: the sender's windows grow. */
static void port_received(struct core_recv *c, uint32_t port, uint32_t bytes)
{
	struct core_load *load = c->cfg.load[port];

	if (load != NULL) {
		uint64_t rx = __atomic_load_n(&load->rx_bytes, __ATOMIC_RELAXED);

		__atomic_store_n(&load->rx_bytes, rx + bytes, __ATOMIC_RELAXED);
	}
}

/* One of several pieces, or a group, or nonsense. */
static __attribute__((noinline)) int piece_land(struct core_recv *c, struct core_recv_slot *s,
						uint32_t imm, uint32_t bytes, uint32_t port)
{
	uint32_t index = imm >> 16 & 0xff, count = (imm >> 24) + 1;
	uint64_t *word = &s->bits[index / 64], bit = 1ull << (index % 64);

	if (imm >> 16 == IMM_PROBE_HIGH) {
		return 0;
	}
	if (index >= count) {
		return index == CORE_IMM_GROUP && count <= CORE_GROUP_MAX ?
			       group_land(c, core_slot(imm), count) :
			       -EPROTO;
	}
	if (s->count == 0) {
		s->count = (uint16_t)count;
		s->missing = (uint16_t)count;
		memset(s->bits, 0, sizeof(s->bits));
	}
	if (s->count != count || (*word & bit) != 0) {
		return -EPROTO;
	}
	/* With split immediates the payload of an immediate is the sizes record, not data. */
	if (bytes > s->room && !c->cfg.adaptive_routing) {
		return -EPROTO;
	}
	*word |= bit;
	s->room -= bytes;
	if (--s->missing == 0) {
		message_land(c, s);
	}
	port_received(c, port, bytes);
	return 0;
}

/* Of no open message: a probe's, or one that must not be. */
static __attribute__((cold, noinline)) int imm_stale(struct core_recv *c, uint32_t imm)
{
	if (imm >> 16 == IMM_PROBE_HIGH) {
		return 0;
	}
	c->stale_imms++;
	return -ESTALE;
}

__attribute__((noinline)) int core_recv_imm(struct core_recv *c, uint32_t l, uint32_t imm,
					    uint32_t bytes)
{
	struct core_recv_slot *s = c->slot + core_slot(imm);

	c->lane[l].taken++;
	/* Slot and its generation are the low half of both: see core_imm(). */
	if (s->state != SLOT_OPEN || (uint16_t)s->seq != (uint16_t)imm) {
		return imm_stale(c, imm);
	}
	if (imm >> 16 != 0 || s->count != 0 || bytes > s->room) {
		return piece_land(c, s, imm, bytes, c->lane[l].port);
	}
	s->count = 1;
	s->room -= bytes;
	message_land(c, s);
	return 0;
}

void core_recv_announced(struct core_recv *c, uint32_t l, bool credit)
{
	struct core_recv_lane *lane = &c->lane[l];

	if (__builtin_expect(lane->state != LANE_ACTIVE, 0)) {
		return; /* taken for lost already */
	}
	/* RC completes in order: those posted before it without a completion are out too. */
	lane->sq_used = (uint16_t)(lane->sq_used -
				   lane->covers[lane->covers_head++ % CORE_ANNOUNCE_SIGNALS]);
	if (credit) {
		c->credit_busy = false;
	}
}

void core_recv_release(struct core_recv *c, uint32_t slot)
{
	uint32_t n = c->slot[slot].n;

	for (uint32_t i = 0; i < n; i++) {
		c->slot[(slot + i) % CORE_SLOTS].state = SLOT_FREE;
	}
}

void core_recv_refilled(struct core_recv *c, uint32_t l, uint32_t n)
{
	c->lane[l].taken = (uint16_t)(c->lane[l].taken - n);
	c->lane[l].posted = (uint16_t)(c->lane[l].posted + n);
	c->model_old = true;
}

bool core_recv_credit(struct core_recv *c, struct core_announce *out)
{
	uint32_t l = 0;

	if (c->credit_busy) {
		return false;
	}
	while (l < lanes_total(c) &&
	       (uint16_t)(c->lane[l].posted - c->lane[l].announced) < CREDIT_LAG) {
		l++;
	}
	if (l == lanes_total(c)) {
		c->credit_waits = false; /* an irecv has told it meanwhile */
		return false;
	}
	int carrier = announce_lane(c, false);

	c->credit_waits = carrier < 0;
	if (carrier < 0) {
		return false;
	}
	uint32_t block = l / CORE_CREDIT_BLOCK;
	struct core_cts *rec = &c->staging[CORE_SLOTS + block];

	record_pressure(c, rec);
	record_credits(c, rec, block);
	out->lane = (uint32_t)carrier;
	out->first = CORE_SLOTS + block;
	out->n = 1;
	out->credit = true;
	out->again = false;
	announce_book(c, out, 1);
	c->credit_busy = true;
	c->credit_lane = (uint8_t)carrier;
	return true;
}

/* --- recovery ----------------------------------------------------------------------------- */

uint16_t core_recv_lane_base(const struct core_recv *c, uint32_t l)
{
	return (uint16_t)(c->lane[l].posted + GENERATION_STEP);
}

uint64_t core_recv_oldest(const struct core_recv *c)
{
	uint64_t oldest = c->next;

	for (uint32_t i = 0; i < CORE_SLOTS; i++) {
		const struct core_recv_slot *s = &c->slot[i];

		if (s->state == SLOT_OPEN && s->seq < oldest) {
			oldest = s->seq;
		}
	}
	return oldest;
}

uint16_t core_recv_lane_arrivals(const struct core_recv *c, uint32_t l)
{
	return (uint16_t)(c->lane[l].posted + c->lane[l].taken);
}

uint32_t core_recv_arrivals(const struct core_recv *c)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < lanes_total(c); i++) {
		sum += c->lane[i].posted + (uint32_t)c->lane[i].taken;
	}
	return sum;
}

/*
 * More records will have copies. Their first writes may be under way on any lane, however well it
 * is: each has to complete one more write, since they complete in order.
 */
static void guard_extend(struct core_recv *c, uint64_t from, uint64_t to)
{
	bool more = c->guard_to == 0 || from < c->guard_from || to > c->guard_to;

	if (from == to) {
		return;
	}
	for (uint32_t i = 0; i < lanes_total(c) && more; i++) {
		if (c->lane[i].state == LANE_ACTIVE && c->lane[i].sq_used != 0) {
			c->guard_old |= 1ull << i;
			c->guard_sent &= ~(1ull << i);
		}
	}
	if (from < c->guard_from || c->guard_to == 0) {
		c->guard_from = from;
	}
	c->guard_to = to > c->guard_to ? to : c->guard_to;
}

/* All copies have landed, or never will: the places are free again. */
static void guard_look(struct core_recv *c)
{
	if (c->guard_lanes == 0 && c->guard_old == 0 && c->again_count == 0 &&
	    c->again_from == c->again_to) {
		c->guard_to = 0;
	}
}

/* The first member of the group that a message belongs to: a record is of use with all of them. */
static uint64_t group_first(const struct core_recv *c, uint64_t seq)
{
	const struct core_recv_slot *s = &c->slot[core_slot(seq)];

	return seq == c->next ? seq : seq - (uint8_t)(core_slot(seq) - s->first);
}

void core_recv_lane_fault(struct core_recv *c, uint32_t l)
{
	struct core_recv_lane *lane = &c->lane[l];

	lane->state = LANE_FENCING;
	signals_take(c);
	c->guard_old &= ~(1ull << l);
	if (lane->again_out) {
		lane->again_out = false;
		c->again_count--;
	}
	if (c->credit_busy && c->credit_lane == l) {
		c->credit_busy = false;
	}
	if (lane->sq_used != 0) {
		uint64_t oldest = group_first(c, core_recv_oldest(c));

		c->guard_lanes |= 1ull << l;
		guard_extend(c, oldest, c->next);
		if (c->again_from == c->again_to || oldest < c->again_from) {
			c->again_from = oldest;
		}
		c->again_to = c->next;
	}
	lane->sq_used = 0;
	/* What a lost record, or a late copy of an older one, told wrong is told anew. */
	for (uint32_t i = 0; i < lanes_total(c); i++) {
		c->lane[i].announced = (uint16_t)(c->lane[i].posted - CREDIT_LAG);
	}
	c->credit_waits = true;
}

void core_recv_lane_fenced(struct core_recv *c, uint32_t l)
{
	c->guard_lanes &= ~(1ull << l);
	guard_look(c);
	for (uint32_t i = 0; i < lanes_total(c); i++) {
		c->lane[i].announced = (uint16_t)(c->lane[i].posted - CREDIT_LAG);
	}
	c->credit_waits = true;
}

static bool again_write(struct core_recv *c, uint32_t l, uint64_t seq, uint32_t n,
			struct core_announce *out)
{
	struct core_recv_lane *lane = &c->lane[l];

	out->lane = l;
	out->first = core_slot(seq);
	out->n = n;
	out->credit = false;
	out->again = true;
	announce_book(c, out, 1);
	lane->again_out = true;
	c->again_count++;
	guard_extend(c, seq, seq + n);
	c->guard_sent |= 1ull << l;
	return true;
}

static bool again_takes(const struct core_recv *c, uint32_t l)
{
	return lane_takes(c, l) && !c->lane[l].again_out;
}

/* A lane's write that shows that the guarded records before it have landed. */
static bool guard_write(struct core_recv *c, struct core_announce *out)
{
	for (uint64_t left = c->guard_old & ~c->guard_sent; left != 0; left &= left - 1) {
		uint32_t l = (uint32_t)__builtin_ctzll(left);

		if (!c->lane[l].again_out && c->lane[l].sq_used + 2 <= CORE_SQ_WRS) {
			return again_write(c, l, c->guard_from, 1, out);
		}
	}
	return false;
}

bool core_recv_again(struct core_recv *c, struct core_announce *out)
{
	uint32_t total = lanes_total(c);

	/* What is done meanwhile needs no record, and its place may have another. */
	if (c->again_from != c->again_to) {
		uint64_t oldest = group_first(c, core_recv_oldest(c));

		c->again_from = oldest > c->again_from ? oldest : c->again_from;
		c->again_from = c->again_from > c->again_to ? c->again_to : c->again_from;
		guard_look(c);
	}
	if (c->again_from == c->again_to) {
		return guard_write(c, out);
	}
	if (c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE)) {
		signals_take(c);
	}
	for (uint32_t i = 0; i < total; i++) {
		uint32_t l = (c->cts_lane + i) % total, first = core_slot(c->again_from);
		uint64_t n = c->again_to - c->again_from;

		if (!again_takes(c, l)) {
			continue;
		}
		n = n > CORE_GROUP_MAX ? CORE_GROUP_MAX : n;
		n = n > CORE_SLOTS - first ? CORE_SLOTS - first : n;
		again_write(c, l, c->again_from, (uint32_t)n, out);
		c->again_from += n;
		return true;
	}
	return false;
}

bool core_recv_probe(struct core_recv *c, uint32_t l, struct core_announce *out)
{
	uint64_t oldest = core_recv_oldest(c);

	if (c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE)) {
		signals_take(c);
	}
	return oldest != c->next && again_takes(c, l) && again_write(c, l, oldest, 1, out);
}

void core_recv_again_done(struct core_recv *c, uint32_t l)
{
	core_recv_announced(c, l, false);
	if (c->lane[l].again_out) {
		c->lane[l].again_out = false;
		c->again_count--;
		c->guard_old &= ~(c->guard_sent & 1ull << l);
	}
	guard_look(c);
}

int core_recv_answer(const struct core_recv *c, const struct core_item *item)
{
	const struct core_recv_slot *s = &c->slot[core_slot(item->seq)];
	bool group = item->index == CORE_IMM_GROUP && item->count <= CORE_GROUP_MAX;

	if (item->seq >= c->next || s->seq < item->seq || item->count == 0 ||
	    item->count > CORE_PIECES_MAX || (item->index >= item->count && !group)) {
		return -EPROTO;
	}
	if (s->seq > item->seq || s->state == SLOT_FREE) {
		return ANSWER_DONE;
	}
	if (s->state == SLOT_DONE) {
		return ANSWER_LANDED;
	}
	if (group || s->count == 0) {
		return ANSWER_MISSING;
	}
	if (s->count != item->count) {
		return -EPROTO;
	}
	return s->bits[item->index / 64] >> (item->index % 64) & 1 ? ANSWER_LANDED : ANSWER_MISSING;
}
