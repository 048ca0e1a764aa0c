/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * world.c - the events, the adversary's loop, and the healing after it.
 */
#include "world.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "marks.h"

enum {
	HEAL_NS = 1000000,
	HEAL_STILL_MAX = 600, /* rounds without any progress: longer than every timer of the core */
	PUMP_MAX = 8192,
	LAP = CORE_SLOTS
};

void world_note(struct world *w, const char *what, uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x =
		w->hash ^ (a + 0x9e3779b97f4a7c15ull * b + (c << 17) + (uint64_t)(uint8_t)what[0]);

	x *= 0xbf58476d1ce4e5b9ull;
	w->hash = x ^ x >> 29;
	if (w->trace != NULL) {
		fprintf(w->trace, "%10" PRIu64 " ns  %-10s %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
			w->now_ns, what, a, b, c);
	}
}

static bool failed(const struct world *w)
{
	return w->check.rule != NULL;
}

/* A port's word counts as known once the epoch changed after it; the core may act earlier. */
static bool lane_down(const struct world_end *end, const struct core_config *cfg, uint32_t lane)
{
	uint32_t l = cfg->lane[lane].port, r = cfg->lane[lane].remote;

	return ((end->told_down[0] >> l & 1) != 0 && end->port[0][l].down) ||
	       ((end->told_down[1] >> r & 1) != 0 && end->port[1][r].down);
}

static bool lane_drained(const struct world_end *end, const struct core_config *cfg, uint32_t lane)
{
	uint32_t l = cfg->lane[lane].port, r = cfg->lane[lane].remote;

	return ((end->told_drain[0] >> l & 1) != 0 && end->port[0][l].drain) ||
	       ((end->told_drain[1] >> r & 1) != 0 && end->port[1][r].drain);
}

/* Nothing was wrong with the lane's ports since the epoch last changed. */
static bool lane_clean(const struct world_end *end, const struct core_config *cfg, uint32_t lane)
{
	return (end->maybe[0] >> cfg->lane[lane].port & 1) == 0 &&
	       (end->maybe[1] >> cfg->lane[lane].remote & 1) == 0;
}

static void epoch_change(struct world_end *end)
{
	for (uint32_t side = 0; side < 2; side++) {
		end->told_down[side] = 0;
		end->told_drain[side] = 0;
		end->maybe[side] = 0;
		for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
			end->told_down[side] |= end->port[side][i].down << i;
			end->told_drain[side] |= end->port[side][i].drain << i;
			end->maybe[side] |= (end->port[side][i].drain | end->port[side][i].down)
					    << i;
		}
	}
	end->epoch++;
}

/* ---- receiver ---- */

static void announce(struct world *w, const struct core_announce *a)
{
	uint32_t head = a->n;

	world_note(w, "announce", a->lane, a->first,
		   (uint64_t)a->n << 2 | (uint64_t)a->signaled << 1 | (uint64_t)a->credit);
	if (a->lane >= w->cfg_recv.lane_count || lane_down(&w->end[1], &w->cfg_recv, a->lane)) {
		check_fail(&w->check, "port", "announcement on lane %u, whose port is down",
			   a->lane);
		return;
	}
	if (a->credit) {
		MARK(credit_record);
		if (a->first > CORE_SLOTS) {
			MARK(credit_block_high);
		}
	} else if (a->first + a->n > CORE_SLOTS) {
		MARK(announce_wraps);
		head = CORE_SLOTS - a->first;
		fabric_announce(&w->fabric, a->lane, a->first, head, false, false);
	}
	if (head == a->n) {
		fabric_announce(&w->fabric, a->lane, a->first, a->n, a->signaled, a->credit);
	} else {
		fabric_announce(&w->fabric, a->lane, 0, a->n - head, a->signaled, a->credit);
	}
}

static bool recv_slots_free(const struct world *w, uint64_t next, uint32_t n)
{
	for (uint32_t i = 0; i < w->recv_count; i++) {
		const struct world_recv *r = &w->recv[i];

		if (r->first + CORE_SLOTS < next + n) {
			return false;
		}
	}
	return true;
}

static bool announce_lane_free(const struct world *w)
{
	for (uint32_t i = 0; i < w->cfg_recv.lane_count; i++) {
		const struct fabric_queue *q = &w->fabric.lane[i].announce;

		if (lane_clean(&w->end[1], &w->cfg_recv, i) &&
		    q->posted - q->polled + 2 <= FABRIC_SQ) {
			return true;
		}
	}
	return false;
}

static void recv_refused(struct world *w, int rc, uint32_t n)
{
	if (rc != -EAGAIN) {
		check_fail(&w->check, "core", "core_recv_post says %d", rc);
	} else if (!recv_slots_free(w, w->check.next, n)) {
		MARK(recv_refused);
	} else if (!announce_lane_free(w)) {
		MARK(recv_unlucky);
	} else {
		check_fail(&w->check, "refused", "irecv of %u refused with slots and lanes free",
			   n);
	}
}

static bool recv_can_post(struct world *w)
{
	script_reach(w, w->check.next + CORE_GROUP_MAX);
	if (w->check.next >= w->script_end) {
		return false;
	}
	uint32_t n = w->script[w->check.next % SCRIPT_RING].n;

	return w->recv_msgs + n <= w->shape.recv_open_max || w->recv_msgs == 0;
}

static bool ev_recv_post(struct world *w)
{
	struct world_recv *r = &w->recv[w->recv_count];
	struct core_recv_buffer buffer[CORE_GROUP_MAX];
	uint32_t tag[CORE_GROUP_MAX], bytes[CORE_GROUP_MAX];
	struct core_announce a;

	if (!recv_can_post(w)) {
		return false;
	}
	r->first = w->check.next;
	r->n = w->script[r->first % SCRIPT_RING].n;
	for (uint32_t i = 0; i < r->n; i++) {
		const struct world_script *m = &w->script[(r->first + i) % SCRIPT_RING];

		r->buffer[i] = w->free_buffer[w->free_count - 1 - i];
		tag[i] = m->tag;
		bytes[i] = m->recv_bytes;
		buffer[i] = (struct core_recv_buffer){.addr = check_buffer_addr(r->buffer[i]),
						      .size = bytes[i],
						      .tag = tag[i],
						      .mr_id = r->buffer[i]};
		if (i > 0 && tag[i] == tag[i - 1]) {
			MARK(same_tag);
		}
	}
	int rc = core_recv_post(&w->core_recv, r->n, buffer, &r->slot, &a);

	world_note(w, "irecv", r->first, r->n, (uint64_t)rc);
	if (rc != 0) {
		recv_refused(w, rc, r->n);
		return false;
	}
	if (r->slot != r->first % CORE_SLOTS) {
		check_fail(&w->check, "slot", "message %" PRIu64 " in slot %u", r->first, r->slot);
	}
	check_recv_posted(&w->check, r->n, tag, bytes, r->buffer);
	w->free_count -= r->n;
	w->recv_msgs += r->n;
	w->recv_count++;
	announce(w, &a);
	return true;
}

static bool recv_test(struct world *w, uint32_t i)
{
	struct world_recv *r = &w->recv[i];
	uint32_t sizes[CORE_GROUP_MAX];

	if (!core_recv_done(&w->core_recv, r->slot)) {
		return false;
	}
	for (uint32_t k = 0; k < r->n; k++) {
		sizes[k] = core_recv_size(&w->core_recv, r->slot, k);
	}
	world_note(w, "recv done", r->first, r->n, sizes[0]);
	check_recv_done(&w->check, r->first, r->n, sizes);
	core_recv_release(&w->core_recv, r->slot);
	for (uint32_t k = 0; k < r->n; k++) {
		w->free_buffer[w->free_count++] = r->buffer[k];
		if (i > 0 && w->recv[0].first < r->first) {
			MARK(out_of_order);
		}
	}
	w->recv_msgs -= r->n;
	*r = w->recv[--w->recv_count];
	return true;
}

static void credit(struct world *w)
{
	struct core_announce a;

	if (core_recv_credit(&w->core_recv, &a)) {
		announce(w, &a);
	}
}

/* Post what is due. Credits are asked for only then, as the plugin does: see recv.h. */
static void refill(struct world *w)
{
	for (uint32_t l = 0; l < w->cfg_recv.lane_count; l++) {
		uint32_t n = core_recv_refill(&w->core_recv, l);

		if (n == 0) {
			continue;
		}
		fabric_recv(&w->fabric, l, n);
		w->credit_total[l] += n;
		core_recv_refilled(&w->core_recv, l, n);
		world_note(w, "refill", l, n, 0);
		if (w->credit_total[l] > 65536) {
			MARK(posted_wraps);
		}
		credit(w);
	}
	if (w->core_recv.credit_waits) {
		MARK(credit_waits);
		credit(w);
	}
}

/*
 * An immediate of the message that had a slot before, or will have it next. It must change nothing.
 * (Its receive WR is on top of those that the sender may use: the core posts one more for it.)
 */
static void recv_ghost(struct world *w, uint32_t l)
{
	uint64_t seq = w->check.next + choose(w->choice, CORE_SLOTS);

	if (choose(w->choice, 2) == 1) {
		seq += 65536 - 2 * CORE_SLOTS;
	}
	int rc = core_recv_imm(&w->core_recv, l, core_imm(seq, 0, 1), 0);

	world_note(w, "ghost", l, seq, (uint64_t)rc);
	MARK(ghost);
	w->shape.ghosts--;
	if (rc != -ESTALE) {
		check_fail(&w->check, "ghost", "an immediate of message %" PRIu64 " gets %d", seq,
			   rc);
	}
}

static void recv_poll(struct world *w, uint32_t l, uint32_t most)
{
	struct fabric_cqe cqe;

	if (w->shape.ghosts != 0 && !w->healing && choose(w->choice, 8) == 7) {
		recv_ghost(w, l);
	}
	while (most-- > 0 && fabric_take(&w->fabric, l, &cqe)) {
		int rc = core_recv_imm(&w->core_recv, l, cqe.imm, cqe.bytes);

		world_note(w, "imm", l, cqe.imm, cqe.bytes);
		if (rc != 0) {
			check_fail(&w->check, "core", "core_recv_imm(%#x, %u bytes) says %d",
				   cqe.imm, cqe.bytes, rc);
		}
	}
	if (!w->shape.lazy_refill || w->healing) {
		refill(w);
	}
}

static void announce_poll(struct world *w, uint32_t l)
{
	bool of_credit;

	if (fabric_announce_poll(&w->fabric, l, &of_credit)) {
		core_recv_announced(&w->core_recv, l, of_credit);
		world_note(w, "announced", l, of_credit, 0);
		if (of_credit) {
			credit(w);
		}
	}
}

static void announce_land(struct world *w, uint32_t l)
{
	struct fabric_lane *lane = &w->fabric.lane[l];
	uint32_t at = lane->announce.landed;

	if (w->shape.torn && !w->healing) {
		uint32_t r = choose(w->choice, CORE_GROUP_MAX);

		fabric_announce_land(&w->fabric, l, r,
				     FABRIC_WORDS - choose(w->choice, FABRIC_WORDS));
	} else {
		while (lane->announce.landed == at && !failed(w)) {
			fabric_announce_land(&w->fabric, l, 0, FABRIC_WORDS);
		}
	}
	world_note(w, "ann land", l, lane->announce.landed, 0);
}

/* ---- sender ---- */

static void wr_data(struct world *w, struct fabric_wr *wr, uint32_t slot, uint64_t offset,
		    uint32_t bytes)
{
	memset(wr, 0, sizeof(*wr));
	wr->seq = w->seq_of_slot[slot];
	wr->addr = w->core_send.msg[slot].addr + offset;
	wr->offset = offset;
	wr->bytes = bytes;
	wr->data = true;
}

static void wr_imm(struct fabric_wr *wr, const struct core_post *p)
{
	wr->has_imm = true;
	wr->imm = p->imm;
	wr->unit = p->unit;
}

static void post_group(struct world *w, const struct core_post *p)
{
	struct fabric_wr wr, last;

	memset(&last, 0, sizeof(last));
	last.seq = w->seq_of_slot[p->slot];
	last.sizes = true;
	last.record.seq = last.seq + 1;
	wr_imm(&last, p);
	for (uint32_t i = 0; i < p->group_n && i < CORE_GROUP_MAX; i++) {
		uint32_t slot = (p->slot + i) % CORE_SLOTS;

		wr_data(w, &wr, slot, 0, w->core_send.msg[slot].size);
		fabric_send(&w->fabric, p->lane, &wr);
		last.record.size[i] = w->core_send.msg[slot].size;
	}
	fabric_send(&w->fabric, p->lane, &last);
	MARK(group_one_imm);
	if (p->slot + p->group_n > CORE_SLOTS) {
		MARK(group_over_end);
	}
}

static void post_piece(struct world *w, const struct core_post *p)
{
	struct fabric_wr wr, last;
	uint32_t count = (p->imm >> 24) + 1;

	wr_data(w, &wr, p->slot, p->offset, p->bytes);
	wr.addr = p->addr;
	if (!p->split_imm) {
		wr_imm(&wr, p);
		fabric_send(&w->fabric, p->lane, &wr);
	} else {
		memset(&last, 0, sizeof(last));
		last.seq = wr.seq;
		wr_imm(&last, p);
		last.sizes = p->sizes;
		last.record.seq = wr.seq + 1;
		last.record.size[0] = w->core_send.msg[p->slot].size;
		fabric_send(&w->fabric, p->lane, &wr);
		fabric_send(&w->fabric, p->lane, &last);
		MARK(split_imm);
	}
	if (count > w->cfg_send.lane_count) {
		MARK(late_plan);
	}
	if (count > 128) {
		MARK(message_256_pieces);
	}
	if (count > 1 && w->core_send.msg[p->slot].group_n > 1) {
		MARK(group_cut);
	}
}

static void post_check_port(struct world *w, uint32_t lane)
{
	const struct core_config *cfg = &w->cfg_send;
	const struct world_end *end = &w->end[0];

	if (lane_down(end, cfg, lane)) {
		check_fail(&w->check, "port", "piece on lane %u, whose port is down", lane);
	}
	for (uint32_t i = 0; i < cfg->lane_count; i++) {
		if (lane_down(end, cfg, i)) {
			MARK(port_down_avoided);
		}
		if (lane_drained(end, cfg, i)) {
			MARK(drain_avoided);
		}
		if (lane_drained(end, cfg, lane) && lane_clean(end, cfg, i)) {
			check_fail(&w->check, "drain",
				   "piece on lane %u, which is drained; %u is free", lane, i);
		}
	}
	if (end->port[0][cfg->lane[lane].port].pressure > 128) {
		MARK(pressed);
	}
}

static void post(struct world *w, const struct core_post *p)
{
	if (p->group_n != 0) { /* address, offset and bytes are not told for a group */
		world_note(w, "group", p->lane, p->imm, p->group_n);
	} else {
		world_note(w, "piece", p->lane, p->imm, (uint64_t)p->offset << 32 | p->bytes);
	}
	if (p->lane >= w->cfg_send.lane_count || p->slot >= CORE_SLOTS || p->unit >= CORE_WR_RING) {
		check_fail(&w->check, "core", "lane %u, slot %u, unit %u", p->lane, p->slot,
			   p->unit);
		return;
	}
	post_check_port(w, p->lane);
	if (++w->unit_total[p->lane] > w->credit_total[p->lane]) {
		check_fail(&w->check, "credit",
			   "lane %u: %" PRIu64 " immediates for %" PRIu64 " receive WRs", p->lane,
			   w->unit_total[p->lane], w->credit_total[p->lane]);
	}
	if (p->group_n != 0) {
		post_group(w, p);
	} else {
		post_piece(w, p);
	}
}

/* Nothing more goes out although pieces wait: name the reason, as the wire shows it. */
static void pump_marks(struct world *w)
{
	bool short_of_wrs = true, queue = true, down = true, busy = false;

	if (w->core_send.queued_bytes == 0) {
		return;
	}
	for (uint32_t i = 0; i < w->cfg_send.lane_count; i++) {
		const struct fabric_queue *q = &w->fabric.lane[i].data;

		if (lane_down(&w->end[0], &w->cfg_send, i)) {
			continue;
		}
		down = false;
		short_of_wrs =
			short_of_wrs && w->unit_total[i] + CORE_RQ_BATCH >= w->credit_total[i];
		queue = queue && q->posted - q->polled + CORE_GROUP_MAX >= FABRIC_SQ;
		busy = busy || q->posted != q->polled;
		if (q->posted - q->polled >= 255) {
			MARK(units_255);
		}
	}
	if (down) {
		MARK(all_ports_down);
	} else if (short_of_wrs) {
		MARK(credit_short);
	} else if (queue) {
		MARK(send_queue_full);
	} else if (busy) {
		MARK(window_full);
	}
}

static void pump(struct world *w)
{
	struct core_post p;
	uint32_t n = 0;

	while (!failed(w) && core_send_next(&w->core_send, w->now_ns, &p)) {
		post(w, &p);
		if (++n > PUMP_MAX) {
			check_fail(&w->check, "endless", "core_send_next never stops");
		}
	}
	if (n == 0) {
		w->core_send.idle_polls++;
	}
	pump_marks(w);
}

static bool send_slot_free(const struct world *w, uint64_t seq)
{
	for (uint32_t i = 0; i < w->send_count; i++) {
		if (w->send[i].seq + CORE_SLOTS == seq) {
			return false;
		}
	}
	return true;
}

/* Have all records of the group to be matched landed whole? */
static bool records_here(struct world *w)
{
	uint64_t head = w->check.head;

	if (head == w->check.next) {
		return false;
	}
	for (uint32_t i = 0; i < check_msg(&w->check, head)->n; i++) {
		const struct core_cts *rec = &w->ring[core_slot(head + i)];

		if (rec->seq != head + i + 1) {
			if (rec->addr == check_msg(&w->check, head + i)->addr && rec->n != 0) {
				MARK(torn_record);
			}
			return false;
		}
	}
	return true;
}

static void send_refused(struct world *w, int rc, uint32_t tag)
{
	uint64_t want = check_expect(&w->check, tag);

	if (rc != -EAGAIN) {
		check_fail(&w->check, "core", "core_send_match says %d", rc);
	} else if (!records_here(w)) {
		return;
	} else if (want == UINT64_MAX) {
		MARK(tag_refused);
	} else if (!send_slot_free(w, want)) {
		MARK(send_slot_busy);
	} else {
		check_fail(&w->check, "refused",
			   "isend with tag %u refused, message %" PRIu64 " waits for it", tag,
			   want);
	}
}

static void send_marks(const struct world *w, uint64_t seq, const struct world_script *m)
{
	const struct check_msg *c = &w->check.msg[seq % CHECK_MSGS];

	if (m->send_bytes > m->recv_bytes) {
		MARK(clipped);
	}
	if (c->bytes == 0) {
		MARK(zero_bytes);
	}
	if (c->recv_bytes == 0) {
		MARK(empty_buffer);
	}
	if (seq >= CORE_SLOTS) {
		MARK(seq_256);
	}
	if (seq >= 65536) {
		MARK(seq_65536);
	}
}

/* All pieces of a message that core_send_equal() has started. */
static void post_equal(struct world *w, const struct core_cts *rec, uint32_t slot)
{
	const struct core_msg *m = &w->core_send.msg[slot];
	struct core_post p = {.slot = slot, .mr_id = rec->mr_id};

	MARK(quick_equal);
	for (uint32_t i = 0; i < m->count && !failed(w); i++) {
		p.lane = m->lane0 + i;
		p.unit = core_lane_newest(&w->core_send.lane[p.lane]);
		p.offset = i * m->piece_bytes;
		p.bytes = i + 1 < m->count ? m->piece_bytes : m->size - p.offset;
		p.addr = m->addr + p.offset;
		p.imm = core_imm(m->seq, i, m->count);
		post(w, &p);
	}
}

/* Open a message: the quick way where the core has one, as the plugin does. Returns its slot. */
static uint32_t send_start(struct world *w, const struct core_cts *rec, uint64_t seq,
			   uint32_t bytes)
{
	struct core_post p = {.slot = core_slot(seq), .addr = rec->addr, .mr_id = rec->mr_id};
	int lane = -1;

	w->seq_of_slot[p.slot] = seq;
	if (w->shape.quick) {
		lane = core_send_quick(&w->core_send, rec, seq, bytes, &p.unit);
	}
	if (lane < 0) {
		if (w->shape.quick &&
		    core_send_equal(&w->core_send, rec, seq, bytes, w->now_ns)) {
			post_equal(w, rec, p.slot);
		} else {
			core_send_start(&w->core_send, rec, seq, bytes, w->now_ns);
		}
		return p.slot;
	}
	p.lane = (uint32_t)lane;
	p.bytes = w->core_send.msg[p.slot].size;
	p.imm = core_imm(seq, 0, 1);
	MARK(quick);
	post(w, &p);
	return p.slot;
}

/* The next message of a tag that was not sent yet, among those that the script tells. */
static bool tag_cursor(struct world *w, uint32_t tag)
{
	uint64_t *at = &w->tag_next[tag];

	script_reach(w, w->check.next + 2 * CORE_GROUP_MAX);
	while (*at < w->script_end && w->script[*at % SCRIPT_RING].tag != tag) {
		(*at)++;
	}
	return *at < w->script_end;
}

static bool send_try(struct world *w, uint32_t tag)
{
	const struct core_cts *rec;
	uint64_t seq;

	if (w->send_count >= w->shape.send_open_max || !tag_cursor(w, tag)) {
		return false;
	}
	int rc = core_send_match(&w->core_send, tag, &rec, &seq);

	if (rc != 0) {
		send_refused(w, rc, tag);
		return false;
	}
	const struct world_script *m = &w->script[w->tag_next[tag] % SCRIPT_RING];

	check_send_matched(&w->check, tag, m->send_bytes, seq);
	if (failed(w)) {
		return false;
	}
	uint32_t slot = send_start(w, rec, seq, m->send_bytes);

	world_note(w, "isend", seq, tag, m->send_bytes);
	if (slot != seq % CORE_SLOTS || w->tag_next[tag] != seq) {
		check_fail(&w->check, "slot", "message %" PRIu64 " in slot %u", seq, slot);
	}
	w->send[w->send_count++] = (struct world_send){.seq = seq, .slot = slot};
	w->tag_next[tag]++;
	send_marks(w, seq, m);
	if (!w->shape.lazy_pump || w->healing) {
		pump(w);
	}
	return true;
}

/* One isend in two is for a member of the group that is due, the others try their luck. */
static bool ev_send_try(struct world *w)
{
	const struct check *k = &w->check;
	uint32_t tag = choose(w->choice, w->shape.tags);

	if (k->head != k->next && choose(w->choice, 2) == 0) {
		const struct check_msg *m = &k->msg[k->head % CHECK_MSGS];
		uint32_t at = choose(w->choice, m->n);

		tag = k->msg[(k->head + at) % CHECK_MSGS].tag;
	}
	return send_try(w, tag);
}

static void send_poll(struct world *w, uint32_t l, uint32_t most)
{
	uint32_t unit = 0, n = 0;
	bool last_only = w->shape.skip_completions;

	while (most-- > 0 && !failed(w) && fabric_poll(&w->fabric, l, &unit)) {
		n++;
		if (last_only) {
			continue;
		}
		int rc = core_send_complete(&w->core_send, l, 1, unit, w->now_ns);

		if (rc != 0) {
			check_fail(&w->check, "core", "core_send_complete says %d", rc);
		}
	}
	if (last_only && n > 0 && core_send_complete(&w->core_send, l, 1, unit, w->now_ns) != 0) {
		check_fail(&w->check, "core", "core_send_complete refuses the last of %u", n);
	}
	world_note(w, "send poll", l, n, unit);
	if (!w->shape.lazy_pump || w->healing) {
		pump(w);
	}
}

static bool send_test(struct world *w, uint32_t i)
{
	struct world_send *s = &w->send[i];

	if (!core_send_done(&w->core_send, s->slot)) {
		return false;
	}
	world_note(w, "send done", s->seq, s->slot, 0);
	check_send_done(&w->check, s->seq, w->core_send.msg[s->slot].size);
	core_send_release(&w->core_send, s->slot);
	*s = w->send[--w->send_count];
	return true;
}

/* Lanes that the plugin would poll: it looks only at ports that the core calls busy. */
static uint64_t poll_lanes(const struct world *w)
{
	uint64_t lanes = 0;

	for (uint64_t left = w->fabric.can_poll; left != 0; left &= left - 1) {
		uint32_t l = (uint32_t)__builtin_ctzll(left);

		if (w->core_send.busy_ports >> w->cfg_send.lane[l].port & 1) {
			lanes |= 1ull << l;
		}
	}
	return lanes;
}

/* ---- the adversary ---- */

/* A word that changes between two epochs: the core may have seen it or not. */
static void word_changed(struct world_end *end, uint32_t side)
{
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		end->told_down[side] &= ~((end->port[side][i].down ^ 1) << i);
		end->told_drain[side] &= ~((end->port[side][i].drain ^ 1) << i);
		end->maybe[side] |= (end->port[side][i].drain | end->port[side][i].down) << i;
	}
}

static void ev_port(struct world *w)
{
	struct world_end *end = &w->end[choose(w->choice, 2)];
	uint32_t side = choose(w->choice, 2), what = choose(w->choice, 5);
	struct core_port *p = &end->port[side][choose(w->choice, w->cfg_send.port_count)];

	if (what < 2) {
		p->down ^= 1;
	} else if (what == 2) {
		p->drain ^= 1;
	} else if (what == 3) {
		p->pressure = choose(w->choice, 3) * 127;
	}
	word_changed(end, side);
	if (choose(w->choice, 4) != 3) {
		epoch_change(end);
	}
	world_note(w, "port", what, p->down, end->epoch);
}

static uint32_t lane_pick(struct world *w, uint64_t mask)
{
	uint32_t weight[CORE_LANES_MAX], n = w->cfg_send.lane_count;

	if ((mask & (mask - 1)) == 0) {
		return (uint32_t)__builtin_ctzll(mask);
	}
	for (uint32_t i = 0; i < n; i++) {
		weight[i] = mask >> i & 1 ? w->shape.lane_weight[i] : 0;
	}
	return choose_weighted(w->choice, weight, n);
}

static void enabled(struct world *w, uint32_t *weight)
{
	const struct fabric *f = &w->fabric;

	memcpy(weight, w->shape.weight, sizeof(w->shape.weight));
	weight[EV_SEND_POLL] *= poll_lanes(w) != 0;
	weight[EV_RECV_POLL] *= f->can_take != 0;
	weight[EV_LAND] *= f->can_land != 0;
	weight[EV_ACK] *= f->can_ack != 0;
	weight[EV_ANN_LAND] *= f->ann_land != 0;
	weight[EV_ANN_ACK] *= f->ann_ack != 0;
	weight[EV_ANN_POLL] *= f->ann_poll != 0;
	weight[EV_SEND_TEST] *= w->send_count != 0;
	weight[EV_RECV_TEST] *= w->recv_count != 0;
	weight[EV_RECV_POST] *= recv_can_post(w);
}

static void step(struct world *w)
{
	struct fabric *f = &w->fabric;
	uint32_t weight[EV_COUNT], lane;

	enabled(w, weight);
	switch ((enum world_event)choose_weighted(w->choice, weight, EV_COUNT)) {
	case EV_RECV_POST:
		ev_recv_post(w);
		break;
	case EV_SEND_TRY:
		ev_send_try(w);
		break;
	case EV_SEND_POLL:
		lane = lane_pick(w, poll_lanes(w)); /* arguments have no order of evaluation */
		send_poll(w, lane, 1 + choose(w->choice, 8));
		break;
	case EV_SEND_TEST:
		send_test(w, choose(w->choice, w->send_count));
		break;
	case EV_RECV_POLL:
		lane = lane_pick(w, f->can_take);
		recv_poll(w, lane, 1 + choose(w->choice, 8));
		break;
	case EV_RECV_TEST:
		recv_test(w, choose(w->choice, w->recv_count));
		break;
	case EV_REFILL:
		refill(w);
		break;
	case EV_LAND:
		fabric_land(f, lane_pick(w, f->can_land), w->shape.packet);
		break;
	case EV_ACK:
		fabric_ack(f, lane_pick(w, f->can_ack));
		break;
	case EV_ANN_LAND:
		announce_land(w, lane_pick(w, f->ann_land));
		break;
	case EV_ANN_ACK:
		fabric_announce_ack(f, lane_pick(w, f->ann_ack));
		break;
	case EV_ANN_POLL:
		announce_poll(w, lane_pick(w, f->ann_poll));
		break;
	case EV_PORT:
		ev_port(w);
		break;
	case EV_TIME:
		w->now_ns += 1ull << choose(w->choice, 28);
		break;
	case EV_PUMP:
	case EV_COUNT:
		pump(w);
		break;
	}
	w->now_ns += w->shape.step_ns;
	w->steps++;
}

/* ---- healing ---- */

static bool all_done(const struct world *w)
{
	return w->check.next == w->shape.messages && w->recv_count == 0 && w->send_count == 0;
}

static uint64_t progress(const struct world *w)
{
	uint64_t sum = w->check.recv_done + w->check.send_done + w->check.next + w->check.head;

	for (uint32_t i = 0; i < w->cfg_send.lane_count; i++) {
		sum += w->unit_total[i] + w->credit_total[i];
	}
	return sum;
}

static void wire_drain(struct world *w)
{
	struct fabric *f = &w->fabric;

	for (uint32_t l = 0; l < w->cfg_send.lane_count; l++) {
		while ((f->can_land >> l & 1) != 0 && !failed(w)) {
			fabric_land(f, l, UINT32_MAX);
		}
		while ((f->ann_land >> l & 1) != 0 && !failed(w)) {
			announce_land(w, l);
		}
		fabric_ack(f, l);
		fabric_announce_ack(f, l);
	}
}

static void polls_drain(struct world *w)
{
	struct fabric *f = &w->fabric;

	for (uint32_t l = 0; l < w->cfg_send.lane_count; l++) {
		if (poll_lanes(w) >> l & 1) {
			send_poll(w, l, UINT32_MAX);
		}
		if (f->can_take >> l & 1) {
			recv_poll(w, l, UINT32_MAX);
		}
		while ((f->ann_poll >> l & 1) != 0 && !failed(w)) {
			announce_poll(w, l);
		}
	}
}

static void heal_round(struct world *w)
{
	while (ev_recv_post(w)) {
	}
	wire_drain(w);
	for (uint32_t tag = 0; tag < w->shape.tags; tag++) {
		while (send_try(w, tag)) {
		}
	}
	pump(w);
	wire_drain(w);
	polls_drain(w);
	refill(w);
	for (uint32_t i = w->send_count; i-- > 0 && !failed(w);) {
		send_test(w, i);
	}
	for (uint32_t i = w->recv_count; i-- > 0 && !failed(w);) {
		recv_test(w, i);
	}
	w->now_ns += HEAL_NS;
}

static void heal(struct world *w)
{
	uint64_t before = 0;
	uint32_t still = 0;

	w->healing = true;
	for (uint32_t e = 0; e < 2; e++) {
		for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
			w->end[e].port[0][i].down = w->end[e].port[1][i].down = 0;
			w->end[e].port[0][i].drain = w->end[e].port[1][i].drain = 0;
		}
		epoch_change(&w->end[e]);
	}
	world_note(w, "heal", w->check.next, w->check.recv_done, w->check.send_done);
	while (!failed(w) && !all_done(w)) {
		heal_round(w);
		still = progress(w) == before ? still + 1 : 0;
		before = progress(w);
		if (still > HEAL_STILL_MAX) {
			check_end(&w->check);
			check_fail(&w->check, "stuck", "%" PRIu64 " of %u messages were posted",
				   w->check.next, w->shape.messages);
		}
	}
	for (uint32_t i = 0; i < CORE_CREDIT_BLOCKS + 2; i++) {
		heal_round(w); /* what is still told, credits of each block */
	}
	if (!fabric_idle(&w->fabric) || core_send_deadline_ns(&w->core_send) != UINT64_MAX) {
		check_fail(&w->check, "leak", "all is done, yet something is in flight or due");
	}
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		if (w->end[0].load[i].inflight_bytes != 0) {
			check_fail(&w->check, "leak",
				   "port %u is told to have %" PRIu64 " bytes in flight", i,
				   w->end[0].load[i].inflight_bytes);
		}
	}
	check_end(&w->check);
}

/* When all is done, all slots are free again: a whole table of receives must be taken at once. */
static void lap(struct world *w)
{
	w->shape.messages += LAP;
	w->shape.bytes_max = 8;
	w->shape.group_max = 1;
	w->shape.recv_open_max = LAP;
	w->shape.send_open_max = LAP;
	for (uint32_t i = 0; i < LAP && !failed(w); i++) {
		if (!ev_recv_post(w)) {
			check_fail(&w->check, "leak", "irecv %u of %u refused on an idle comm", i,
				   LAP);
		}
		if (i % 8 == 0) {
			wire_drain(w);
			polls_drain(w);
		}
	}
	heal(w);
}

static void world_init(struct world *w)
{
	memset(w->staging, 0, sizeof(w->staging));
	memset(w->ring, 0, sizeof(w->ring));
	memset(w->sizes, 0, sizeof(w->sizes));
	check_init(&w->check);
	fabric_init(&w->fabric, &w->check, w->cfg_send.lane_count);
	w->fabric.staging = w->staging;
	w->fabric.ring = w->ring;
	w->fabric.sizes = w->sizes;
	for (uint32_t i = 0; i < CHECK_BUFFERS; i++) {
		w->free_buffer[i] = CHECK_BUFFERS - 1 - i;
	}
	w->free_count = CHECK_BUFFERS;
	if (core_send_init(&w->core_send, &w->cfg_send, w->ring) != 0 ||
	    core_recv_init(&w->core_recv, &w->cfg_recv, w->staging, w->sizes) != 0) {
		check_fail(&w->check, "core", "init refuses a legal configuration");
		return;
	}
	for (uint32_t i = 0; i < w->cfg_send.lane_count; i++) {
		uint16_t credit = (uint16_t)w->shape.credit;

		fabric_recv(&w->fabric, i, credit);
		w->credit_total[i] = credit;
		core_recv_lane_open(&w->core_recv, i, 1, credit);
		core_send_lane_open(&w->core_send, i, 1, credit);
	}
}

void world_run(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace)
{
	memset(w, 0, offsetof(struct world, staging));
	w->choice = choice;
	w->trace = trace;
	w->now_ns = 1000000000;
	shape_draw(w, scope);
	world_init(w);
	while (!failed(w) && w->steps < w->shape.steps && !choice_spent(choice) && !all_done(w)) {
		step(w);
	}
	if (!failed(w)) {
		heal(w);
	}
	if (!failed(w) && scope == SCOPE_RANDOM && choose(choice, 8) == 7) {
		lap(w);
	}
	world_note(w, "end", w->check.recv_done, w->check.bytes, failed(w));
}
