/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fabric.c - the model of the wire.
 */
#include "fabric.h"

#include <inttypes.h>
#include <string.h>

#include "marks.h"

void fabric_init(struct fabric *f, struct check *check, uint32_t lanes)
{
	memset(f, 0, offsetof(struct fabric, link));
	f->check = check;
	f->lane_count = lanes;
	for (uint32_t i = 0; i < lanes; i++) {
		for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
			struct fabric_link *k = &f->link[i][g];

			memset(k, 0, offsetof(struct fabric_link, wr));
			k->lane = (uint8_t)i;
			k->place = (uint8_t)g;
		}
	}
}

static void bit_set(uint64_t *mask, uint32_t lane, bool on)
{
	*mask = (*mask & ~(1ull << lane)) | (uint64_t)on << lane;
}

static bool can_land(const struct fabric *f, const struct fabric_link *k, uint32_t end)
{
	const struct fabric_queue *q = &k->q[end];
	uint8_t there = k->qp[1 - end];

	if (there != QP_READY && there != QP_ERR) {
		return false;
	}
	return q->landed != q->got ||
	       (q->landed != q->limit && (f->cut[end] >> k->lane & 1) == 0);
}

/* Bring the masks of a link up to date with its queues. */
static void refresh(struct fabric *f, const struct fabric_link *k)
{
	uint32_t l = k->lane, g = k->place;

	for (uint32_t e = 0; e < 2; e++) {
		const struct fabric_queue *q = &k->q[e];

		bit_set(&f->can_land[e][g], l, can_land(f, k, e));
		bit_set(&f->can_ack[e][g], l,
			q->acked != q->ackable && k->qp[e] == QP_READY &&
				(f->cut[1 - e] >> l & 1) == 0);
		bit_set(&f->can_poll[e][g], l, q->polled != q->ready || k->error[e]);
	}
	bit_set(&f->can_take[g], l, k->taken != k->arrived);
}

void fabric_cut(struct fabric *f, enum fabric_end from, uint64_t lanes)
{
	f->cut[from] = lanes;
	for (uint32_t i = 0; i < f->lane_count; i++) {
		refresh(f, &f->link[i][0]);
		refresh(f, &f->link[i][1]);
	}
}

struct fabric_link *fabric_link(struct fabric *f, uint32_t lane, uint32_t generation)
{
	struct fabric_link *k = &f->link[lane][generation % FABRIC_LINKS];

	return generation != 0 && k->generation == generation ? k : NULL;
}

static bool is_over(const struct fabric_link *k, uint32_t end)
{
	return k->qp[end] == QP_NONE || k->qp[end] == QP_GONE;
}

struct fabric_link *fabric_create(struct fabric *f, uint32_t lane, uint32_t generation,
				  enum fabric_end end)
{
	struct fabric_link *k = &f->link[lane][generation % FABRIC_LINKS];
	struct fabric_link *last = &f->link[lane][(generation + 1) % FABRIC_LINKS];

	if (k->generation != generation) {
		if (!is_over(k, 0) || !is_over(k, 1)) {
			check_fail(f->check, "fence",
				   "lane %u: generation %u while %u is not fenced", lane,
				   generation, k->generation);
		}
		memset(k, 0, offsetof(struct fabric_link, wr));
		k->lane = (uint8_t)lane;
		k->place = (uint8_t)(generation % FABRIC_LINKS);
		k->generation = generation;
	}
	if (k->qp[end] != QP_NONE || !is_over(last, end)) {
		check_fail(f->check, "fence",
			   "lane %u: generation %u while this end has a queue pair", lane,
			   generation);
	}
	k->qp[end] = QP_INIT;
	refresh(f, k);
	return k;
}

void fabric_connect(struct fabric *f, struct fabric_link *k, enum fabric_end end)
{
	k->qp[end] = QP_READY;
	k->q[end].limit = k->q[end].posted;
	refresh(f, k);
}

/* Nothing more comes from this end but what is in the network. */
static void stop_sending(struct fabric_link *k, uint32_t end, uint32_t late)
{
	struct fabric_queue *q = &k->q[end];
	uint32_t left = q->limit - q->landed;

	late = late < left ? late : left;
	q->limit = q->landed + late;
	if ((int32_t)(q->limit - q->got) < 0) {
		q->limit = q->got;
	}
}

static void land_got(struct fabric *f, struct fabric_link *k, uint32_t from)
{
	struct fabric_queue *q = &k->q[from];

	while (q->landed != q->got && f->check->rule == NULL) {
		if (from == END_SEND) {
			fabric_land(f, k, UINT32_MAX);
		} else {
			fabric_announce_land(f, k, 0, FABRIC_WORDS);
		}
	}
}

void fabric_error(struct fabric *f, struct fabric_link *k, enum fabric_end end, uint32_t late,
		  bool completion)
{
	if (k->qp[end] == QP_READY) {
		stop_sending(k, end, late);
		if (f->cleans) {
			land_got(f, k, 1 - end);
		}
	}
	if (k->qp[end] == QP_READY || k->qp[end] == QP_INIT) {
		k->qp[end] = QP_ERR;
	}
	k->error[end] = k->error[end] || completion;
	refresh(f, k);
}

/* WRs whose completion was not seen, of a queue pair at the receiver that goes. */
static void data_lost(struct fabric *f, struct fabric_link *k)
{
	for (uint32_t i = k->q[END_SEND].polled; i != k->q[END_SEND].posted; i++) {
		struct fabric_wr *wr = &k->wr[i % FABRIC_RING];

		if (wr->data && !wr->lost) {
			wr->lost = true;
			check_wr_lost(f->check, wr->seq, wr->bytes);
		}
	}
}

static void receiver_goes(struct fabric *f, struct fabric_link *k, enum fabric_end end, bool lie)
{
	struct fabric_queue *q = &k->q[1 - end];

	if (q->landed != q->got && !lie) {
		MARK(landed_by_fence);
	}
	if (!lie) {
		land_got(f, k, 1 - end);
	}
	if (end == END_RECV) {
		data_lost(f, k);
	}
}

static void sender_goes(struct fabric *f, struct fabric_link *k, enum fabric_end end, bool clean)
{
	struct fabric_queue *q = &k->q[end];

	stop_sending(k, end, q->limit - q->landed);
	if (clean) {
		q->ready = q->polled;
		k->error[end] = false;
	}
	for (uint32_t i = q->ready; i != q->posted && end == END_SEND; i++) {
		const struct fabric_wr *wr = &k->wr[i % FABRIC_RING];

		if (wr->data) {
			check_wr_closed(f->check, wr->seq);
		}
	}
}

void fabric_destroy(struct fabric *f, struct fabric_link *k, enum fabric_end end, bool clean,
		    bool lie)
{
	if (k->qp[end] == QP_READY || k->qp[end] == QP_ERR) {
		receiver_goes(f, k, end, lie);
		sender_goes(f, k, end, clean);
	}
	if (end == END_RECV && clean && k->taken != k->arrived) {
		MARK(arrival_deleted);
		k->taken = k->arrived;
	}
	k->qp[end] = QP_GONE;
	refresh(f, k);
}

static void queue_check(struct fabric *f, const struct fabric_link *k, enum fabric_end end)
{
	const struct fabric_queue *q = &k->q[end];

	if (q->posted - q->polled > FABRIC_SQ) {
		check_fail(f->check, "send-queue", "%s: more than %u WRs on lane %u",
			   end == END_SEND ? "sender" : "receiver", FABRIC_SQ, k->lane);
	}
	if (k->qp[end] != QP_READY && k->qp[end] != QP_ERR) {
		check_fail(f->check, "no-qp", "%s posts on lane %u, which is not connected",
			   end == END_SEND ? "sender" : "receiver", k->lane);
	}
}

static void posted(struct fabric *f, struct fabric_link *k, enum fabric_end end)
{
	k->q[end].posted++;
	if (k->qp[end] == QP_READY) {
		k->q[end].limit = k->q[end].posted;
	}
	queue_check(f, k, end);
	refresh(f, k);
}

void fabric_send(struct fabric *f, struct fabric_link *k, const struct fabric_wr *wr)
{
	struct fabric_wr *place = &k->wr[k->q[END_SEND].posted % FABRIC_RING];

	*place = *wr;
	place->landed = 0;
	place->lost = false;
	if (wr->data) {
		check_wr_posted(f->check, wr->seq, wr->addr, wr->offset, wr->bytes);
		if (is_over(k, END_RECV)) { /* it can never land */
			place->lost = true;
			check_wr_lost(f->check, wr->seq, wr->bytes);
		}
	}
	posted(f, k, END_SEND);
}

static void words_copy(void *to, const void *from, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		uint64_t word;

		memcpy(&word, (const char *)from + 8 * (size_t)i, 8);
		memcpy((char *)to + 8 * (size_t)i, &word, 8);
	}
}

/* The last packet of a WR with an immediate takes a receive WR and completes there. */
static void imm_arrive(struct fabric *f, struct fabric_link *k, const struct fabric_wr *wr)
{
	if (k->recv_wrs == 0) {
		check_fail(f->check, "rnr", "an immediate on lane %u finds no receive WR", k->lane);
		return;
	}
	k->recv_wrs--;
	if (wr->sizes) {
		words_copy(&f->sizes[wr->seq % CORE_SLOTS], &wr->record, 0, FABRIC_WORDS);
	}
	k->cqe[k->arrived++ % FABRIC_RING] = (struct fabric_cqe){
		.imm = wr->imm,
		.bytes = wr->sizes ? (uint32_t)sizeof(wr->record) : wr->bytes,
	};
}

static void landed(struct fabric *f, struct fabric_link *k, enum fabric_end end)
{
	struct fabric_queue *q = &k->q[end];

	if (k->qp[1 - end] == QP_ERR) {
		MARK(landed_after_err);
	}
	q->landed++;
	if ((int32_t)(q->got - q->landed) < 0) {
		q->got = q->landed;
	}
	if (k->qp[1 - end] == QP_READY || !f->cleans) {
		q->ackable = q->got;
	}
	refresh(f, k);
}

void fabric_land(struct fabric *f, struct fabric_link *k, uint32_t bytes)
{
	struct fabric_wr *wr = &k->wr[k->q[END_SEND].landed % FABRIC_RING];

	if (wr->data) {
		uint32_t left = wr->bytes - wr->landed;
		uint32_t part = left < bytes ? left : bytes;

		check_landed(f->check, wr->seq, wr->addr + wr->landed, wr->offset + wr->landed,
			     part);
		wr->landed += part;
		if (wr->landed < wr->bytes) {
			return;
		}
	}
	if (wr->has_imm) {
		imm_arrive(f, k, wr);
	}
	landed(f, k, END_SEND);
}

void fabric_get(struct fabric *f, struct fabric_link *k, enum fabric_end end, uint32_t n)
{
	struct fabric_queue *q = &k->q[end];
	uint32_t to = q->landed + n;

	if (k->qp[1 - end] != QP_READY || (f->cut[end] >> k->lane & 1) != 0) {
		return;
	}
	to = q->limit - q->landed < n ? q->limit : to;
	if ((int32_t)(to - q->got) > 0) {
		q->got = to;
		q->ackable = to;
	}
	refresh(f, k);
}

static bool is_signaled(const struct fabric_link *k, enum fabric_end end, uint32_t i)
{
	const struct fabric_wr *wr = &k->wr[i % FABRIC_RING];

	return end == END_SEND ? wr->has_imm || wr->kind == WR_VERIFY
			       : k->ann[i % FABRIC_RING].signaled;
}

/* An ack may cover any number of WRs; room in the queue comes back only with a signaled one. */
void fabric_ack(struct fabric *f, struct fabric_link *k, enum fabric_end end)
{
	struct fabric_queue *q = &k->q[end];

	if (q->ackable - q->landed < FABRIC_RING && q->ackable != q->landed) {
		MARK(ack_before_landing);
	}
	for (; q->acked != q->ackable; q->acked++) {
		if (is_signaled(k, end, q->acked)) {
			q->ready = q->acked + 1;
		}
	}
	refresh(f, k);
}

/* Pass one WR of a send queue; true if it has a completion. */
static bool passed(struct fabric *f, struct fabric_link *k, enum fabric_end end, uint32_t i,
		   struct fabric_done *done)
{
	const struct fabric_wr *wr = &k->wr[i % FABRIC_RING];

	if (end == END_RECV) {
		done->kind = k->ann[i % FABRIC_RING].kind;
		return k->ann[i % FABRIC_RING].signaled;
	}
	if (wr->data) {
		check_wr_completed(f->check, wr->seq, wr->lost ? wr->bytes : 0);
	}
	done->kind = wr->kind;
	done->unit = wr->unit;
	return is_signaled(k, end, i);
}

bool fabric_poll(struct fabric *f, struct fabric_link *k, enum fabric_end end,
		 struct fabric_done *done)
{
	struct fabric_queue *q = &k->q[end];
	bool found = false;

	memset(done, 0, sizeof(*done));
	while (!found && q->polled != q->ready) {
		found = passed(f, k, end, q->polled++, done);
	}
	if (!found && k->error[end]) {
		k->error[end] = false;
		done->error = true;
		found = true;
	}
	refresh(f, k);
	return found;
}

void fabric_recv(struct fabric *f, struct fabric_link *k, uint32_t wrs)
{
	k->recv_wrs += wrs;
	k->credit += wrs;
	if (k->recv_wrs > CORE_RQ_WRS) {
		check_fail(f->check, "recv-queue", "%u receive WRs on lane %u", k->recv_wrs,
			   k->lane);
	}
}

bool fabric_take(struct fabric *f, struct fabric_link *k, struct fabric_cqe *cqe)
{
	if (k->taken == k->arrived) {
		return false;
	}
	*cqe = k->cqe[k->taken++ % FABRIC_RING];
	refresh(f, k);
	return true;
}

void fabric_announce(struct fabric *f, struct fabric_link *k, uint32_t first, uint32_t n,
		     bool signaled, enum fabric_kind kind)
{
	struct fabric_announce *a = &k->ann[k->q[END_RECV].posted % FABRIC_RING];

	memset(a, 0, sizeof(*a));
	a->first = first;
	a->n = n;
	a->signaled = signaled;
	a->kind = (uint8_t)kind;
	for (uint32_t i = 0; i < n; i++) {
		a->posted[i] = f->staging[first + i];
	}
	posted(f, k, END_RECV);
}

/* Other records announced before this one and still on their way? Then this one overtakes. */
static void overtake_mark(const struct fabric *f, uint64_t seq)
{
	for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
		for (uint64_t left = f->can_land[END_RECV][g]; left != 0; left &= left - 1) {
			const struct fabric_link *k = &f->link[__builtin_ctzll(left)][g];
			const struct fabric_announce *a =
				&k->ann[k->q[END_RECV].landed % FABRIC_RING];

			if (a->kind == WR_RECORDS && a->posted[0].seq < seq) {
				MARK(announce_overtaken);
			}
		}
	}
}

static void record_land(struct fabric *f, const struct fabric_link *k, struct fabric_announce *a,
			uint32_t r, uint32_t words)
{
	struct core_cts *to = &f->ring[a->first + r];
	const struct core_cts *from = &f->staging[a->first + r];

	if (k->qp[END_RECV] == QP_GONE || k->q[END_RECV].got != k->q[END_RECV].landed) {
		from = &a->posted[r]; /* it was read before */
	} else if (memcmp(from, &a->posted[r], sizeof(*from)) != 0 &&
		   !(a->kind == WR_CREDITS && f->credits_change)) {
		check_fail(f->check, "staging", "record %u changed before it was sent",
			   a->first + r);
	}
	if (a->kind != WR_CREDITS && to->seq > from->seq) {
		check_fail(f->check, "ring",
			   "the record of message %" PRIu64 " lands over that of %" PRIu64,
			   from->seq - 1, to->seq - 1);
	}
	if (a->kind != WR_CREDITS && to->seq == from->seq && a->words[r] == 0) {
		MARK(record_twice);
	}
	words = words < FABRIC_WORDS - a->words[r] ? words : FABRIC_WORDS - a->words[r];
	words_copy(to, from, a->words[r], words);
	a->words[r] += words;
}

void fabric_announce_land(struct fabric *f, struct fabric_link *k, uint32_t r, uint32_t words)
{
	struct fabric_announce *a = &k->ann[k->q[END_RECV].landed % FABRIC_RING];
	uint32_t whole = 0;

	if (a->n != 0) {
		r %= a->n;
		while (a->words[r] == FABRIC_WORDS) {
			r = (r + 1) % a->n;
		}
		record_land(f, k, a, r, words);
	}
	for (uint32_t i = 0; i < a->n; i++) {
		whole += a->words[i] == FABRIC_WORDS;
	}
	if (whole == a->n) {
		landed(f, k, END_RECV);
		if (a->kind == WR_RECORDS) {
			overtake_mark(f, a->posted[0].seq);
		}
	}
}

bool fabric_idle(const struct fabric *f)
{
	uint64_t any = 0;

	for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
		for (uint32_t e = 0; e < 2; e++) {
			any |= f->can_land[e][g] | f->can_ack[e][g] | f->can_poll[e][g];
		}
		any |= f->can_take[g];
	}
	return any == 0;
}
