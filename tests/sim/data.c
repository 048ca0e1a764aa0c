/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * data.c - what the application and the data path of either end do, as src/request.c does it.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "marks.h"
#include "world.h"

enum {
	PUMP_MAX = 8192
};

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

void epoch_change(struct world_end *end)
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

/* The queue pair that this end posts to; NULL, and a breach, if there is none. */
static struct fabric_link *post_link(struct world *w, enum fabric_end end, uint32_t lane)
{
	struct fabric_link *k = NULL;

	if (lane < w->lanes && owner_attached(w, end, lane)) {
		k = fabric_link(&w->fabric, lane, w->owner[end].generation[lane]);
	}
	if (k == NULL) {
		check_fail(&w->check, "no-qp", "%s posts on lane %u, which it must not",
			   end == END_SEND ? "sender" : "receiver", lane);
	}
	return k;
}

/* Does posting fail this time? Then the lane has failed. */
static bool post_fails(struct world *w, enum fabric_end end, const struct fabric_link *k)
{
	if (w->shape.post_fails == 0 || w->healing ||
	    choose(w->choice, w->shape.post_fails) + 1 != w->shape.post_fails) {
		return false;
	}
	MARK(post_failed);
	owner_fault(w, end, k->lane, k->generation, CAUSE_POST);
	return true;
}

void announce(struct world *w, const struct core_announce *a)
{
	struct fabric_link *k = post_link(w, END_RECV, a->lane);
	enum fabric_kind kind = a->credit ? WR_CREDITS : a->again ? WR_AGAIN : WR_RECORDS;
	uint32_t head = a->n;

	world_note(w, "announce", a->lane, a->first,
		   (uint64_t)a->n << 3 | (uint64_t)a->again << 2 | (uint64_t)a->signaled << 1 |
			   (uint64_t)a->credit);
	if (k == NULL) {
		return;
	}
	if (lane_down(&w->end[1], &w->cfg_recv, a->lane) && !a->again) {
		check_fail(&w->check, "port", "announcement on lane %u, whose port is down",
			   a->lane);
		return;
	}
	if (a->again) {
		MARK(announced_again);
	}
	if (post_fails(w, END_RECV, k)) {
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
		fabric_announce(&w->fabric, k, a->first, head, false, kind);
	}
	if (head == a->n) {
		fabric_announce(&w->fabric, k, a->first, a->n, a->signaled, kind);
	} else {
		fabric_announce(&w->fabric, k, 0, a->n - head, a->signaled, kind);
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

static bool announce_lane_free(struct world *w)
{
	for (uint32_t i = 0; i < w->cfg_recv.lane_count; i++) {
		struct fabric_link *k =
			fabric_link(&w->fabric, i, w->owner[END_RECV].generation[i]);
		const struct fabric_queue *q = k == NULL ? NULL : &k->q[END_RECV];

		if (q != NULL && (w->owner[END_RECV].open >> i & 1) != 0 &&
		    lane_clean(&w->end[1], &w->cfg_recv, i) &&
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
	} else if (w->shape.faulty) {
		MARK(guard_refuses);
	} else {
		check_fail(&w->check, "refused", "irecv of %u refused with slots and lanes free",
			   n);
	}
}

bool recv_can_post(struct world *w)
{
	script_reach(w, w->check.next + CORE_GROUP_MAX);
	if (w->check.next >= w->script_end) {
		return false;
	}
	uint32_t n = w->script[w->check.next % SCRIPT_RING].n;

	return w->recv_msgs + n <= w->shape.recv_open_max || w->recv_msgs == 0;
}

bool ev_recv_post(struct world *w)
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

bool recv_test(struct world *w, uint32_t i)
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
void refill(struct world *w)
{
	for (uint32_t l = 0; l < w->lanes; l++) {
		uint32_t n = core_recv_refill(&w->core_recv, l);
		struct fabric_link *k =
			fabric_link(&w->fabric, l, w->owner[END_RECV].generation[l]);

		if (n == 0 || k == NULL || !owner_attached(w, END_RECV, l)) {
			continue;
		}
		fabric_recv(&w->fabric, k, n);
		core_recv_refilled(&w->core_recv, l, n);
		world_note(w, "refill", l, n, 0);
		if (k->credit > 65536) {
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

void data_take(struct world *w, struct fabric_link *k, uint32_t most)
{
	struct fabric_cqe cqe;

	if (w->shape.ghosts != 0 && !w->healing && choose(w->choice, 8) == 7) {
		recv_ghost(w, k->lane);
	}
	while (most-- > 0 && !world_failed(w) && fabric_take(&w->fabric, k, &cqe)) {
		int rc = core_recv_imm(&w->core_recv, k->lane, cqe.imm, cqe.bytes);

		world_note(w, "imm", k->lane, cqe.imm, cqe.bytes);
		if (w->owner[END_RECV].job[k->lane].kind == JOB_FENCE) {
			MARK(arrival_in_fence);
		}
		if (rc != 0) {
			check_fail(&w->check, "core", "core_recv_imm(%#x, %u bytes) says %d",
				   cqe.imm, cqe.bytes, rc);
		}
	}
	if (!w->shape.lazy_refill || w->healing) {
		refill(w);
	}
}

/* A completion at the receiver: of an announcement, or of the verified write. */
static void announce_done(struct world *w, const struct fabric_link *k,
			  const struct fabric_done *d)
{
	world_note(w, "announced", k->lane, d->kind, k->generation);
	if (d->kind == WR_VERIFY) {
		core_recover_verified(&w->owner[END_RECV].recover, k->lane, k->generation,
				      w->now_ns);
	} else if (d->kind == WR_AGAIN) {
		core_recover_again_done(&w->owner[END_RECV].recover, k->lane, w->now_ns);
	} else {
		core_recv_announced(&w->core_recv, k->lane, d->kind == WR_CREDITS);
	}
	if (d->kind == WR_CREDITS) {
		credit(w);
	}
}

void announce_land(struct world *w, struct fabric_link *k)
{
	uint32_t at = k->q[END_RECV].landed;

	if (w->shape.torn && !w->healing) {
		uint32_t r = choose(w->choice, CORE_GROUP_MAX);

		fabric_announce_land(&w->fabric, k, r,
				     FABRIC_WORDS - choose(w->choice, FABRIC_WORDS));
	} else {
		while (k->q[END_RECV].landed == at && !world_failed(w)) {
			fabric_announce_land(&w->fabric, k, 0, FABRIC_WORDS);
		}
	}
	world_note(w, "ann land", k->lane, k->q[END_RECV].landed, 0);
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

static void post_group(struct world *w, struct fabric_link *k, const struct core_post *p)
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
		fabric_send(&w->fabric, k, &wr);
		last.record.size[i] = w->core_send.msg[slot].size;
	}
	fabric_send(&w->fabric, k, &last);
	MARK(group_one_imm);
	if (p->slot + p->group_n > CORE_SLOTS) {
		MARK(group_over_end);
	}
}

static void post_piece(struct world *w, struct fabric_link *k, const struct core_post *p)
{
	struct fabric_wr wr, last;
	uint32_t count = (p->imm >> 24) + 1;

	wr_data(w, &wr, p->slot, p->offset, p->bytes);
	wr.addr = p->addr;
	if (!p->split_imm) {
		wr_imm(&wr, p);
		fabric_send(&w->fabric, k, &wr);
	} else {
		memset(&last, 0, sizeof(last));
		last.seq = wr.seq;
		wr_imm(&last, p);
		last.sizes = p->sizes;
		last.record.seq = wr.seq + 1;
		last.record.size[0] = w->core_send.msg[p->slot].size;
		fabric_send(&w->fabric, k, &wr);
		fabric_send(&w->fabric, k, &last);
		MARK(split_imm);
	}
	if (count > w->lanes) {
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
	if (lane >= cfg->lane_count) {
		MARK(standby_used);
	}
	for (uint32_t i = 0; i < cfg->lane_count; i++) {
		if (lane_down(end, cfg, i)) {
			MARK(port_down_avoided);
		}
		if (lane_drained(end, cfg, i)) {
			MARK(drain_avoided);
		}
		if ((!lane_drained(end, cfg, lane) && lane < cfg->lane_count) ||
		    !lane_clean(end, cfg, i) || (w->owner[END_SEND].open >> i & 1) == 0 ||
		    w->shape.lazy_act) {
			continue;
		}
		check_fail(&w->check, "drain",
			   "piece on lane %u, which is drained or borrowed; %u is free", lane, i);
	}
	if (end->port[0][cfg->lane[lane].port].pressure > 128) {
		MARK(pressed);
	}
}

static void post_kind(struct world *w, struct fabric_link *k, const struct core_post *p)
{
	struct fabric_wr wr;

	if (p->group_n != 0) {
		post_group(w, k, p);
	} else if (p->imm >> 16 == CORE_IMM_PROBE) {
		memset(&wr, 0, sizeof(wr));
		wr_imm(&wr, p);
		wr.kind = WR_PROBE;
		fabric_send(&w->fabric, k, &wr);
		MARK(probe);
	} else {
		post_piece(w, k, p);
	}
}

void post(struct world *w, const struct core_post *p)
{
	struct fabric_link *k = post_link(w, END_SEND, p->lane);

	if (p->group_n != 0) { /* address, offset and bytes are not told for a group */
		world_note(w, "group", p->lane, p->imm, p->group_n);
	} else {
		world_note(w, "piece", p->lane, p->imm, (uint64_t)p->offset << 32 | p->bytes);
	}
	if (p->slot >= CORE_SLOTS || p->unit >= CORE_WR_RING) {
		check_fail(&w->check, "core", "lane %u, slot %u, unit %u", p->lane, p->slot,
			   p->unit);
		return;
	}
	if (k == NULL) {
		return;
	}
	if (p->imm >> 16 != CORE_IMM_PROBE) { /* that is to find out */
		post_check_port(w, p->lane);
	}
	if (++k->units > k->credit) {
		check_fail(&w->check, "credit", "lane %u: %u immediates for %u receive WRs",
			   p->lane, k->units, k->credit);
	}
	w->moves++;
	if (!post_fails(w, END_SEND, k)) {
		post_kind(w, k, p);
	}
}

/* Nothing more goes out although pieces wait: name the reason, as the wire shows it. */
static void pump_marks(struct world *w)
{
	bool short_of_wrs = true, queue = true, down = true, busy = false;

	if (w->core_send.queued_bytes == 0) {
		return;
	}
	for (uint32_t i = 0; i < w->lanes; i++) {
		const struct fabric_link *k =
			fabric_link(&w->fabric, i, w->owner[END_SEND].generation[i]);
		const struct fabric_queue *q = k == NULL ? NULL : &k->q[END_SEND];

		if (q == NULL || lane_down(&w->end[0], &w->cfg_send, i) ||
		    (w->owner[END_SEND].open >> i & 1) == 0) {
			continue;
		}
		down = false;
		short_of_wrs = short_of_wrs && k->units + CORE_RQ_BATCH >= k->credit;
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

void pump(struct world *w)
{
	struct core_post p;
	uint32_t n = 0;

	while (!world_failed(w) && core_send_next(&w->core_send, w->now_ns, &p)) {
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
	for (uint32_t i = 0; i < m->count && !world_failed(w); i++) {
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
	if (w->shape.quick && rec->n != 1 && core_send_member(&w->core_send, rec, seq, bytes)) {
		MARK(quick_member);
		return p.slot;
	}
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

bool send_try(struct world *w, uint32_t tag)
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
	if (world_failed(w)) {
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
bool ev_send_try(struct world *w)
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

static void send_done(struct world *w, const struct fabric_link *k, uint32_t unit)
{
	int rc = core_send_complete(&w->core_send, k->lane, k->generation, unit, w->now_ns);

	if (w->owner[END_SEND].job[k->lane].kind == JOB_FENCE) {
		MARK(completion_in_fence);
	}
	if (rc != 0) {
		check_fail(&w->check, "core", "core_send_complete says %d", rc);
	}
}

static void send_poll(struct world *w, struct fabric_link *k, uint32_t most)
{
	struct fabric_done d;
	uint32_t unit = 0, n = 0, held = 0;

	while (most-- > 0 && !world_failed(w) && fabric_poll(&w->fabric, k, END_SEND, &d)) {
		n++;
		if (d.error) {
			owner_fault(w, END_SEND, k->lane, k->generation, CAUSE_COMPLETION);
		} else if (d.kind == WR_VERIFY) {
			core_recover_verified(&w->owner[END_SEND].recover, k->lane, k->generation,
					      w->now_ns);
		} else if (w->shape.skip_completions) {
			unit = d.unit;
			held++;
		} else {
			send_done(w, k, d.unit);
		}
	}
	if (held > 0) {
		send_done(w, k, unit);
	}
	world_note(w, "send poll", k->lane, n, unit);
	if (!w->shape.lazy_pump || w->healing) {
		pump(w);
	}
}

void data_poll(struct world *w, struct fabric_link *k, enum fabric_end end, uint32_t most)
{
	struct fabric_done d;

	if (end == END_SEND) {
		send_poll(w, k, most);
		return;
	}
	while (most-- > 0 && !world_failed(w) && fabric_poll(&w->fabric, k, END_RECV, &d)) {
		if (d.error) {
			owner_fault(w, END_RECV, k->lane, k->generation, CAUSE_COMPLETION);
		} else {
			announce_done(w, k, &d);
		}
	}
}

/*
 * Would the plugin poll it? A sender looks only at ports that the core calls busy, unless its
 * recovery has something to do.
 */
bool link_polled(const struct world *w, const struct fabric_link *k, enum fabric_end end)
{
	return end == END_RECV || w->shape.faulty ||
	       (w->core_send.busy_ports >> w->cfg_send.lane[k->lane].port & 1) != 0;
}

bool send_test(struct world *w, uint32_t i)
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

/* A word that changes between two epochs: the core may have seen it or not. */
void word_changed(struct world_end *end, uint32_t side)
{
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		end->told_down[side] &= ~((end->port[side][i].down ^ 1) << i);
		end->told_drain[side] &= ~((end->port[side][i].drain ^ 1) << i);
		end->maybe[side] |= (end->port[side][i].drain | end->port[side][i].down) << i;
	}
}
