/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fabric.c - the model of the wire.
 */
#include "fabric.h"

#include <string.h>

#include "marks.h"

void fabric_init(struct fabric *f, struct check *check, uint32_t lanes)
{
	memset(f, 0, offsetof(struct fabric, lane));
	f->check = check;
	f->lane_count = lanes;
	for (uint32_t i = 0; i < lanes; i++) {
		memset(&f->lane[i], 0, offsetof(struct fabric_lane, wr));
	}
}

static void bit_set(uint64_t *mask, uint32_t lane, bool on)
{
	*mask = (*mask & ~(1ull << lane)) | (uint64_t)on << lane;
}

/* Bring the masks of a lane up to date with its queues. */
static void refresh(struct fabric *f, uint32_t l)
{
	const struct fabric_lane *lane = &f->lane[l];

	bit_set(&f->can_land, l, lane->data.landed != lane->data.posted);
	bit_set(&f->can_ack, l, lane->data.acked != lane->data.landed);
	bit_set(&f->can_poll, l, lane->data.polled != lane->data.ready);
	bit_set(&f->can_take, l, lane->taken != lane->arrived);
	bit_set(&f->ann_land, l, lane->announce.landed != lane->announce.posted);
	bit_set(&f->ann_ack, l, lane->announce.acked != lane->announce.landed);
	bit_set(&f->ann_poll, l, lane->announce.polled != lane->announce.ready);
}

static void queue_check(struct fabric *f, uint32_t l, const struct fabric_queue *q, const char *end)
{
	if (q->posted - q->polled > FABRIC_SQ) {
		check_fail(f->check, "send-queue", "%s: more than %u WRs on lane %u", end,
			   FABRIC_SQ, l);
	}
}

void fabric_send(struct fabric *f, uint32_t l, const struct fabric_wr *wr)
{
	struct fabric_lane *lane = &f->lane[l];

	lane->wr[lane->data.posted % FABRIC_RING] = *wr;
	lane->wr[lane->data.posted % FABRIC_RING].landed = 0;
	lane->data.posted++;
	queue_check(f, l, &lane->data, "sender");
	if (wr->data) {
		check_wr_posted(f->check, wr->seq, wr->addr, wr->offset, wr->bytes);
	}
	refresh(f, l);
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
static void imm_arrive(struct fabric *f, uint32_t l, const struct fabric_wr *wr)
{
	struct fabric_lane *lane = &f->lane[l];

	if (lane->recv_wrs == 0) {
		check_fail(f->check, "rnr", "an immediate on lane %u finds no receive WR", l);
		return;
	}
	lane->recv_wrs--;
	if (wr->sizes) {
		words_copy(&f->sizes[wr->seq % CORE_SLOTS], &wr->record, 0, FABRIC_WORDS);
	}
	lane->cqe[lane->arrived++ % FABRIC_RING] = (struct fabric_cqe){
		.imm = wr->imm,
		.bytes = wr->sizes ? (uint32_t)sizeof(wr->record) : wr->bytes,
	};
}

void fabric_land(struct fabric *f, uint32_t l, uint32_t bytes)
{
	struct fabric_lane *lane = &f->lane[l];
	struct fabric_wr *wr = &lane->wr[lane->data.landed % FABRIC_RING];

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
		imm_arrive(f, l, wr);
	}
	lane->data.landed++;
	refresh(f, l);
}

/* An ack may cover any number of WRs; room in the queue comes back only with a signaled one. */
void fabric_ack(struct fabric *f, uint32_t l)
{
	struct fabric_lane *lane = &f->lane[l];

	for (; lane->data.acked != lane->data.landed; lane->data.acked++) {
		if (lane->wr[lane->data.acked % FABRIC_RING].has_imm) {
			lane->data.ready = lane->data.acked + 1;
		}
	}
	refresh(f, l);
}

bool fabric_poll(struct fabric *f, uint32_t l, uint32_t *unit)
{
	struct fabric_lane *lane = &f->lane[l];
	bool found = false;

	while (!found && lane->data.polled != lane->data.ready) {
		const struct fabric_wr *wr = &lane->wr[lane->data.polled++ % FABRIC_RING];

		if (wr->data) {
			check_wr_completed(f->check, wr->seq);
		}
		if (wr->has_imm) {
			*unit = wr->unit;
			found = true;
		}
	}
	refresh(f, l);
	return found;
}

void fabric_recv(struct fabric *f, uint32_t l, uint32_t wrs)
{
	f->lane[l].recv_wrs += wrs;
	if (f->lane[l].recv_wrs > CORE_RQ_WRS) {
		check_fail(f->check, "recv-queue", "%u receive WRs on lane %u", f->lane[l].recv_wrs,
			   l);
	}
}

bool fabric_take(struct fabric *f, uint32_t l, struct fabric_cqe *cqe)
{
	struct fabric_lane *lane = &f->lane[l];

	if (lane->taken == lane->arrived) {
		return false;
	}
	*cqe = lane->cqe[lane->taken++ % FABRIC_RING];
	refresh(f, l);
	return true;
}

void fabric_announce(struct fabric *f, uint32_t l, uint32_t first, uint32_t n, bool signaled,
		     bool credit)
{
	struct fabric_lane *lane = &f->lane[l];
	struct fabric_announce *a = &lane->ann[lane->announce.posted++ % FABRIC_RING];

	memset(a, 0, sizeof(*a));
	a->first = first;
	a->n = n;
	a->signaled = signaled;
	a->credit = credit;
	for (uint32_t i = 0; i < n; i++) {
		a->posted[i] = f->staging[first + i];
	}
	queue_check(f, l, &lane->announce, "receiver");
	refresh(f, l);
}

/* Other records announced before this one and still on their way? Then this one overtakes. */
static void overtake_mark(const struct fabric *f, uint64_t seq)
{
	for (uint64_t left = f->ann_land; left != 0; left &= left - 1) {
		const struct fabric_lane *lane = &f->lane[__builtin_ctzll(left)];
		const struct fabric_announce *a = &lane->ann[lane->announce.landed % FABRIC_RING];

		if (!a->credit && a->posted[0].seq < seq) {
			MARK(announce_overtaken);
		}
	}
}

void fabric_announce_land(struct fabric *f, uint32_t l, uint32_t r, uint32_t words)
{
	struct fabric_lane *lane = &f->lane[l];
	struct fabric_announce *a = &lane->ann[lane->announce.landed % FABRIC_RING];
	uint32_t whole = 0;

	r %= a->n;
	while (a->words[r] == FABRIC_WORDS) {
		r = (r + 1) % a->n;
	}
	const struct core_cts *from = &f->staging[a->first + r];

	if (memcmp(from, &a->posted[r], sizeof(*from)) != 0) {
		check_fail(f->check, "staging", "record %u changed before it was sent",
			   a->first + r);
	}
	words = words < FABRIC_WORDS - a->words[r] ? words : FABRIC_WORDS - a->words[r];
	words_copy(&f->ring[a->first + r], from, a->words[r], words);
	a->words[r] += words;
	for (uint32_t i = 0; i < a->n; i++) {
		whole += a->words[i] == FABRIC_WORDS;
	}
	if (whole == a->n) {
		lane->announce.landed++;
		refresh(f, l);
		if (!a->credit) {
			overtake_mark(f, a->posted[0].seq);
		}
	}
}

void fabric_announce_ack(struct fabric *f, uint32_t l)
{
	struct fabric_lane *lane = &f->lane[l];

	for (; lane->announce.acked != lane->announce.landed; lane->announce.acked++) {
		if (lane->ann[lane->announce.acked % FABRIC_RING].signaled) {
			lane->announce.ready = lane->announce.acked + 1;
		}
	}
	refresh(f, l);
}

bool fabric_announce_poll(struct fabric *f, uint32_t l, bool *credit)
{
	struct fabric_lane *lane = &f->lane[l];
	bool found = false;

	while (!found && lane->announce.polled != lane->announce.ready) {
		const struct fabric_announce *a = &lane->ann[lane->announce.polled++ % FABRIC_RING];

		*credit = a->credit;
		found = a->signaled;
	}
	refresh(f, l);
	return found;
}
