/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * search.c - depth first over all states, with a table of those that were seen.
 *
 * A state is what is in use of the world: the first slots, units and work requests. Its hash is
 * made of that memory, dead entries cleared, and of no pointers or counters of the run itself.
 */
#include "search.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	LANES = 2,
	MSGS = 2,
	WRS = 12,    /* of a link that may be posted at an end */
	UNITS = 16,
	LETTERS = 32, /* under way, one way */
	ITEMS = 8,
	DEPTH_MAX = 600,
	PARTS_MAX = 160,
	MOVES_MAX = 128,
	QUIET_MAX = 40, /* timers in a row that change nothing */
	ALL = 7 /* of what is in the network */
};

enum move_kind {
	MOVE_LAND,
	MOVE_ANN,
	MOVE_LETTER,
	MOVE_JOB,
	MOVE_RETRY,
	MOVE_FAIL,
	MOVE_CUT,
	MOVE_TIME
};

struct move {
	uint8_t kind, end, lane, place, how;
};

struct part {
	void *at;
	size_t bytes;
};

struct letters {
	uint32_t n;
	struct {
		uint8_t head[offsetof(struct core_letter, item)];
		struct core_item item[ITEMS];
		uint8_t answer[ITEMS];
	} letter[LETTERS];
};

struct frame {
	uint32_t next, count;
	struct move move[MOVES_MAX];
	struct letters letters[2];
};

struct search {
	struct world *w;
	struct part part[PARTS_MAX];
	uint32_t parts;
	size_t bytes;
	struct frame *frame; /* [DEPTH_MAX] */
	uint8_t *saved;	     /* [DEPTH_MAX][bytes] */
	uint64_t *seen;	     /* hashes, 0 = free */
	uint64_t seen_mask, states_max;
	uint32_t depth, quiet;
	bool coarse;
	struct search_result *result;
};

static void part_add(struct search *s, void *at, size_t bytes)
{
	if (s->parts < PARTS_MAX) {
		s->part[s->parts++] = (struct part){.at = at, .bytes = bytes};
		s->bytes += bytes;
	}
}

#define PART(s, from, to) part_add(s, &(from), (size_t)((char *)&(to) - (char *)&(from)))

static void parts_of_link(struct search *s, struct fabric_link *k)
{
	PART(s, k->lane, k->wr[0]);
	PART(s, k->wr[0], k->wr[WRS]);
	PART(s, k->cqe[0], k->cqe[WRS]);
	for (uint32_t i = 0; i < WRS; i++) {
		PART(s, k->ann[i].first, k->ann[i].posted[MSGS]);
	}
}

static void parts_of_owner(struct search *s, struct world_owner *o)
{
	part_add(s, &o->recover, offsetof(struct core_recover, lane));
	PART(s, o->recover.lane[0], o->recover.lane[LANES]);
	PART(s, o->job[0], o->job[LANES]);
	PART(s, o->jobs, o->generation[LANES]);
	PART(s, o->open, o->said[0]);
	PART(s, o->shut_ns, o->tick_ns);
	PART(s, o->paused, o[1]);
}

static void parts_of_core(struct search *s, struct core_send *c, struct core_recv *r)
{
	part_add(s, c, offsetof(struct core_send, again));
	PART(s, c->again[0], c->again[MSGS]);
	PART(s, c->msg[0], c->msg[MSGS]);
	for (uint32_t l = 0; l < LANES; l++) {
		PART(s, c->lane[l], c->lane[l].unit[0]);
		PART(s, c->lane[l].unit[0], c->lane[l].unit[UNITS]);
	}
	part_add(s, r, offsetof(struct core_recv, cfg));
	PART(s, r->slot[0], r->slot[MSGS]);
	PART(s, r->lane[0], r->lane[LANES]);
}

static void parts_make(struct search *s)
{
	struct world *w = s->w;
	struct check *k = &w->check;

	PART(s, w->now_ns, w->steps);
	PART(s, w->shape.faults, w->shape.job_fails);
	PART(s, w->end[0].epoch, w->end[0].load[0]);
	PART(s, w->end[1].epoch, w->end[1].load[0]);
	PART(s, w->tag_next[0], w->tag_next[1]);
	PART(s, w->send[0], w->send[MSGS]);
	part_add(s, &w->send_count, sizeof(w->send_count));
	PART(s, w->recv[0], w->recv[MSGS]);
	PART(s, w->recv_count, w->free_buffer[0]);
	PART(s, w->free_buffer[CHECK_BUFFERS - MSGS], w->free_buffer[CHECK_BUFFERS]);
	part_add(s, &w->free_count, sizeof(w->free_count));
	PART(s, w->lane_cut[0], w->owner[0]);
	PART(s, w->seq_of_slot[0], w->seq_of_slot[MSGS]);
	parts_of_owner(s, &w->owner[0]);
	parts_of_owner(s, &w->owner[1]);
	PART(s, w->staging[0], w->staging[MSGS]);
	PART(s, w->staging[CORE_SLOTS], w->staging[CORE_SLOTS + 1]);
	PART(s, w->ring[0], w->ring[MSGS]);
	PART(s, w->ring[CORE_SLOTS], w->ring[CORE_SLOTS + 1]);
	parts_of_core(s, &w->core_send, &w->core_recv);
	PART(s, w->fabric.can_land[0], w->fabric.link[0]);
	for (uint32_t l = 0; l < LANES; l++) {
		parts_of_link(s, &w->fabric.link[l][0]);
		parts_of_link(s, &w->fabric.link[l][1]);
	}
	PART(s, k->next, k->owner[MSGS]);
	PART(s, k->msg[0], k->msg[MSGS]);
	for (uint32_t i = 0; i < MSGS; i++) {
		PART(s, k->line[i][0], k->line[i][4]);
	}
}

static void letters_copy(struct search *s, struct letters *l, uint32_t end, bool save)
{
	struct world_owner *o = &s->w->owner[end];

	if (save) {
		l->n = o->tail - o->head < LETTERS ? o->tail - o->head : LETTERS;
	} else {
		o->head = 0;
		o->tail = l->n;
	}
	for (uint32_t i = 0; i < l->n; i++) {
		struct core_letter *in = &s->w->letter[end][(o->head + i) % LETTER_RING];

		if (save) {
			memcpy(l->letter[i].head, in, sizeof(l->letter[i].head));
			memcpy(l->letter[i].item, in->item, sizeof(l->letter[i].item));
			memcpy(l->letter[i].answer, in->answer, sizeof(l->letter[i].answer));
		} else {
			memcpy(in, l->letter[i].head, sizeof(l->letter[i].head));
			memcpy(in->item, l->letter[i].item, sizeof(l->letter[i].item));
			memcpy(in->answer, l->letter[i].answer, sizeof(l->letter[i].answer));
		}
	}
}

static void state_copy(struct search *s, uint32_t depth, bool save)
{
	uint8_t *at = s->saved + s->bytes * depth;

	for (uint32_t i = 0; i < s->parts; i++) {
		if (save) {
			memcpy(at, s->part[i].at, s->part[i].bytes);
		} else {
			memcpy(s->part[i].at, at, s->part[i].bytes);
		}
		at += s->part[i].bytes;
	}
	letters_copy(s, &s->frame[depth].letters[0], 0, save);
	letters_copy(s, &s->frame[depth].letters[1], 1, save);
}

static uint64_t mix(uint64_t h, const void *from, size_t bytes)
{
	const uint8_t *at = from;
	uint64_t word = 0;

	for (; bytes >= 8; bytes -= 8, at += 8) {
		memcpy(&word, at, 8);
		h = (h ^ word) * 0x9fb21c651e98df25ull;
		h ^= h >> 32;
	}
	word = bytes;
	memcpy(&word, at, bytes < 8 ? bytes : 8);
	h = (h ^ word ^ (uint64_t)bytes << 56) * 0x9fb21c651e98df25ull;
	return h ^ h >> 29;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0 ? a : b;
}

/* What was used up says nothing any more. */
static void dead_clear(struct search *s)
{
	struct world *w = s->w;

	for (uint32_t i = 0; i < LANES * FABRIC_LINKS; i++) {
		struct fabric_link *k = &w->fabric.link[i / FABRIC_LINKS][i % FABRIC_LINKS];
		bool over = (k->qp[0] == QP_GONE || k->qp[0] == QP_NONE) &&
			    (k->qp[1] == QP_GONE || k->qp[1] == QP_NONE);
		uint32_t wrs = over ? WRS : least(k->q[0].polled, k->q[0].landed);
		uint32_t anns = over ? WRS : least(k->q[1].polled, k->q[1].landed);

		memset(k->wr, 0, sizeof(k->wr[0]) * (wrs < WRS ? wrs : WRS));
		memset(k->cqe, 0, sizeof(k->cqe[0]) * (over || k->taken > WRS ? WRS : k->taken));
		for (uint32_t a = 0; a < anns && a < WRS; a++) {
			memset(&k->ann[a], 0, offsetof(struct fabric_announce, posted[MSGS]));
		}
	}
	/* Figures for log lines, and bytes for windows that are never full here. */
	w->core_send.idle_polls = 0;
	if (w->core_send.q_head == w->core_send.q_tail) {
		memset(w->core_send.queue, 0, sizeof(w->core_send.queue));
		w->core_send.q_head = w->core_send.q_tail = 0;
	}
	for (uint32_t l = 0; l < LANES; l++) {
		struct core_lane *lane = &w->core_send.lane[l];

		for (uint32_t i = 0; i < UNITS; i++) {
			if ((uint8_t)(i - lane->tail - 1) >= (uint8_t)(lane->posted - lane->tail)) {
				memset(&lane->unit[i], 0, sizeof(lane->unit[i]));
			}
		}
		w->core_send.lane[l].total_bytes = 0;
		w->owner[0].recover.lane[l].again = w->owner[0].recover.lane[l].landed = 0;
	}
}

static uint64_t state_hash(struct search *s)
{
	uint64_t h = 0x243f6a8885a308d3ull;

	dead_clear(s);
	for (uint32_t i = 0; i < s->parts; i++) {
		h = mix(h, s->part[i].at, s->part[i].bytes);
	}
	for (uint32_t e = 0; e < 2; e++) {
		const struct world_owner *o = &s->w->owner[e];

		for (uint32_t i = o->head; i != o->tail; i++) {
			const struct core_letter *in = &s->w->letter[e][i % LETTER_RING];

			h = mix(h, in, offsetof(struct core_letter, item));
			if (in->type == LETTER_ASK) {
				h = mix(h, in->item, in->n * sizeof(in->item[0]));
			} else if (in->type == LETTER_ANSWER) {
				h = mix(h, in->answer, in->n);
			}
		}
		h = mix(h, &e, sizeof(e));
	}
	return h == 0 ? 1 : h;
}

/* True if it was not in the table. */
static bool state_new(struct search *s)
{
	uint64_t h = state_hash(s), at = h & s->seen_mask;

	while (s->seen[at] != 0 && s->seen[at] != h) {
		at = (at + 1) & s->seen_mask;
	}
	if (s->seen[at] == h) {
		return false;
	}
	s->seen[at] = h;
	s->result->states++;
	return true;
}

static void move_add(struct frame *f, enum move_kind kind, uint32_t end, uint32_t lane,
		     uint32_t place, uint32_t how)
{
	if (f->count < MOVES_MAX) {
		f->move[f->count++] = (struct move){.kind = (uint8_t)kind,
						    .end = (uint8_t)end,
						    .lane = (uint8_t)lane,
						    .place = (uint8_t)place,
						    .how = (uint8_t)how};
	}
}

static bool gives_up(const struct world *w, const struct fabric_link *k, uint32_t end)
{
	return fabric_waits(k, (enum fabric_end)end) &&
	       (fabric_path_cut(&w->fabric, k) || k->qp[1 - end] == QP_ERR ||
		k->qp[1 - end] == QP_GONE);
}

static void moves_of_link(struct search *s, struct frame *f, const struct fabric_link *k)
{
	const struct fabric *b = &s->w->fabric;
	uint32_t l = k->lane, g = k->place;

	if (b->can_land[END_SEND][g] >> l & 1) {
		move_add(f, MOVE_LAND, 0, l, g, 0);
	}
	if (b->can_land[END_RECV][g] >> l & 1) {
		move_add(f, MOVE_ANN, 0, l, g, 0);
	}
	for (uint32_t e = 0; e < 2; e++) {
		if (gives_up(s->w, k, e)) {
			move_add(f, MOVE_RETRY, e, l, g, 0);
			if (k->q[e].limit != k->q[e].got) {
				move_add(f, MOVE_RETRY, e, l, g, ALL);
			}
		}
	}
}

static void moves_of_faults(struct search *s, struct frame *f)
{
	for (uint32_t l = 0; l < LANES && s->w->shape.faults != 0; l++) {
		for (uint32_t e = 0; e < 2; e++) {
			const struct fabric_link *k =
				fabric_link(&s->w->fabric, l, s->w->owner[e].generation[l]);

			if (k != NULL && k->qp[e] == QP_READY) {
				move_add(f, MOVE_FAIL, e, l, k->place, 0);
				if (k->q[e].limit != k->q[e].got) {
					move_add(f, MOVE_FAIL, e, l, k->place, ALL);
				}
			}
			if ((s->w->lane_cut[e] >> l & 1) == 0) {
				move_add(f, MOVE_CUT, e, l, 0, 0);
			}
		}
	}
}

static void moves_find(struct search *s, struct frame *f)
{
	const struct world *w = s->w;

	f->next = f->count = 0;
	for (uint32_t i = 0; i < LANES * FABRIC_LINKS; i++) {
		moves_of_link(s, f, &w->fabric.link[i / FABRIC_LINKS][i % FABRIC_LINKS]);
	}
	for (uint32_t e = 0; e < 2; e++) {
		const struct world_owner *o = &w->owner[e];

		if (o->head != o->tail) {
			move_add(f, MOVE_LETTER, e, 0, 0, 0);
		}
		for (uint32_t l = 0; l < LANES; l++) {
			if (o->jobs >> l & 1) {
				move_add(f, MOVE_JOB, e, l, 0, 0);
			}
			const struct fabric_link *k =
				fabric_link((struct fabric *)&w->fabric, l, o->generation[l]);

			if ((o->jobs >> l & 1) != 0 && o->job[l].kind == JOB_FENCE &&
			    o->job[l].phase == 0 && k != NULL && k->qp[e] == QP_READY &&
			    k->q[e].limit != k->q[e].got) {
				move_add(f, MOVE_JOB, e, l, 0, ALL);
			}
		}
	}
	if (f->count == 0) {
		move_add(f, MOVE_TIME, 0, 0, 0, 0);
	}
	moves_of_faults(s, f);
}

static void move_time(struct search *s)
{
	struct world *w = s->w;
	uint64_t due = owner_deadline_ns(w);

	s->quiet++;
	if (due == UINT64_MAX || s->quiet > QUIET_MAX) {
		check_fail(&w->check, "stuck", "nothing more can happen, and it is not the end");
		return;
	}
	w->lane_cut[0] = w->lane_cut[1] = 0;
	cuts_apply(w);
	w->now_ns = due > w->now_ns ? due : w->now_ns;
	owner_tick(w, END_SEND);
	owner_tick(w, END_RECV);
}

static void job_do(struct world *w, const struct move *m)
{
	enum fabric_end end = (enum fabric_end)m->end;
	uint8_t kind = w->owner[end].job[m->lane].kind;

	owner_job(w, end, m->lane);
	if (kind == JOB_FENCE) { /* ERR and poll, destroy and poll dry */
		owner_job(w, end, m->lane);
	}
}

static void move_do(struct search *s, const struct move *m)
{
	struct world *w = s->w;
	struct fabric_link *k = &w->fabric.link[m->lane][m->place];
	enum fabric_end end = (enum fabric_end)m->end;

	switch ((enum move_kind)m->kind) {
	case MOVE_LAND:
		fabric_land(&w->fabric, k, UINT32_MAX);
		break;
	case MOVE_ANN:
		announce_land(w, k);
		break;
	case MOVE_LETTER:
		owner_letter(w, end);
		break;
	case MOVE_JOB:
		job_do(w, m);
		break;
	case MOVE_RETRY:
	case MOVE_FAIL:
		w->shape.faults -= m->kind == MOVE_FAIL;
		fabric_error(&w->fabric, k, end, m->how, true);
		break;
	case MOVE_CUT:
		w->shape.faults--;
		w->lane_cut[end] |= 1ull << m->lane;
		cuts_apply(w);
		break;
	case MOVE_TIME:
		move_time(s);
		break;
	}
}

static void link_poll(struct world *w, struct fabric_link *k)
{
	struct fabric *f = &w->fabric;
	uint32_t l = k->lane, g = k->place;

	for (uint32_t e = 0; e < 2; e++) {
		if (f->can_ack[e][g] >> l & 1) {
			fabric_ack(f, k, (enum fabric_end)e);
		}
		if (f->can_poll[e][g] >> l & 1) {
			data_poll(w, k, (enum fabric_end)e, UINT32_MAX);
		}
	}
	if (f->can_take[g] >> l & 1) {
		data_take(w, k, UINT32_MAX);
	}
}

/* Commands that are no fences: over at once, if the search is coarse. */
static void jobs_run(struct world *w)
{
	for (uint32_t i = 0; i < 2 * LANES; i++) {
		enum fabric_end end = i & 1 ? END_RECV : END_SEND;
		uint8_t kind = w->owner[end].job[i / 2].kind;

		if (kind == JOB_PREPARE || kind == JOB_CONNECT) {
			owner_job(w, end, i / 2);
			owner_act(w, end);
		}
	}
}

/* What the ends do as soon as they can. */
static void ends_run(struct world *w, bool coarse)
{
	for (uint32_t i = 0; i < LANES * FABRIC_LINKS; i++) {
		link_poll(w, &w->fabric.link[i / FABRIC_LINKS][i % FABRIC_LINKS]);
	}
	owner_act(w, END_SEND);
	owner_act(w, END_RECV);
	while (ev_recv_post(w)) {
	}
	while (send_try(w, 0)) {
	}
	pump(w);
	refill(w);
	for (uint32_t i = w->send_count; i-- > 0;) {
		send_test(w, i);
	}
	for (uint32_t i = w->recv_count; i-- > 0;) {
		recv_test(w, i);
	}
	owner_act(w, END_SEND);
	owner_act(w, END_RECV);
	if (coarse) {
		jobs_run(w);
	}
}

static bool in_scope(struct world *w)
{
	for (uint32_t i = 0; i < LANES * FABRIC_LINKS; i++) {
		const struct fabric_link *k =
			&w->fabric.link[i / FABRIC_LINKS][i % FABRIC_LINKS];

		if (k->q[0].posted > WRS || k->q[1].posted > WRS) {
			check_fail(&w->check, "scope", "more work requests than are searched");
		}
	}
	if (w->owner[0].tail - w->owner[0].head > LETTERS ||
	    w->owner[1].tail - w->owner[1].head > LETTERS) {
		check_fail(&w->check, "scope", "more letters than are searched");
	}
	return w->check.rule == NULL;
}

static void step_do(struct search *s, const struct move *m)
{
	static const uint32_t answer[2][8] = {{0}, {ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL}};
	struct choice choice;

	choice_list(&choice, answer[m->how != 0], m->how != 0 ? 8 : 0);
	s->w->choice = &choice;
	s->result->steps++;
	if (m->kind != MOVE_TIME) {
		s->quiet = 0;
	}
	move_do(s, m);
	ends_run(s->w, s->coarse);
	in_scope(s->w);
}

static const char *move_name(const struct move *m)
{
	static const char *const names[] = {
		[MOVE_LAND] = "a piece lands",	      [MOVE_ANN] = "a record lands",
		[MOVE_LETTER] = "a letter arrives",   [MOVE_JOB] = "a command takes a step",
		[MOVE_RETRY] = "retries are over",    [MOVE_FAIL] = "a queue pair fails",
		[MOVE_CUT] = "packets are lost from", [MOVE_TIME] = "a timer runs out",
	};

	return names[m->kind];
}

static void path_print(const struct search *s, FILE *out)
{
	fprintf(out, "breaks rule %s: %s, by\n", s->w->check.rule, s->w->check.what);
	for (uint32_t d = 0; d <= s->depth; d++) {
		const struct move *m = &s->frame[d].move[s->frame[d].next - 1];

		fprintf(out, "  %-24s %s, lane %u%s\n", move_name(m),
			m->end == END_SEND ? "sender" : "receiver", m->lane,
			m->how != 0 ? ", with packets in the network" : "");
	}
}

static int search_loop(struct search *s, FILE *out)
{
	struct world *w = s->w;

	for (;;) {
		struct frame *f = &s->frame[s->depth];

		if (f->next == f->count) {
			if (s->depth == 0) {
				return 0;
			}
			s->depth--;
			continue;
		}
		state_copy(s, s->depth, false);
		s->quiet = 0;
		for (uint32_t d = s->depth; d > 0 && s->frame[d - 1].move[s->frame[d - 1].next - 1]
								    .kind == MOVE_TIME; d--) {
			s->quiet++;
		}
		step_do(s, &f->move[f->next++]);
		if (w->check.rule != NULL) {
			path_print(s, out);
			return 1;
		}
		if (!state_new(s)) {
			continue;
		}
		if (s->result->states >= s->states_max || s->depth + 1 == DEPTH_MAX) {
			return 2;
		}
		moves_find(s, &s->frame[s->depth + 1]);
		if (s->frame[s->depth + 1].move[0].kind == MOVE_TIME && world_done(w) &&
		    world_well(w)) {
			s->result->ends++;
			continue;
		}
		s->depth++;
		s->result->depth = s->depth > s->result->depth ? s->depth : s->result->depth;
		state_copy(s, s->depth, true);
	}
}

int search_run(struct world *w, uint32_t faults, bool coarse, uint64_t states_max,
	       struct search_result *result, FILE *out)
{
	struct search s = {
		.w = w, .coarse = coarse, .states_max = states_max, .result = result};
	uint64_t table = 1 << 16;
	struct choice choice;
	int rc = 2;

	memset(result, 0, sizeof(*result));
	while (table < 2 * states_max) {
		table *= 2;
	}
	choice_list(&choice, NULL, 0);
	world_begin(w, &choice, SCOPE_STATES, NULL);
	w->shape.faults = faults;
	parts_make(&s);
	s.seen_mask = table - 1;
	s.seen = mmap(NULL, table * sizeof(*s.seen), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	s.frame = calloc(DEPTH_MAX, sizeof(*s.frame));
	s.saved = malloc(s.bytes * DEPTH_MAX);
	if (s.seen != MAP_FAILED && s.frame != NULL && s.saved != NULL && s.parts < PARTS_MAX) {
		ends_run(w, coarse);
		moves_find(&s, &s.frame[0]);
		state_copy(&s, 0, true);
		rc = search_loop(&s, out);
	}
	if (s.seen != MAP_FAILED) {
		munmap(s.seen, table * sizeof(*s.seen));
	}
	free(s.frame);
	free(s.saved);
	return rc;
}
