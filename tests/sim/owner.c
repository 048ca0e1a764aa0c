/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * owner.c - recovery at either end as the plugin runs it: letters, slow commands, log lines.
 *
 * A letter stream per direction is reliable and ordered, however long it takes. A slow command is a
 * job that takes steps when the adversary lets it; the fence is four of them: ERR, poll, destroy,
 * poll dry.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "marks.h"
#include "world.h"

enum {
	ACT_MAX = 8192,
	LATE_MAX = 8,
	FENCE_ERR = 0,
	FENCE_POLL,
	FENCE_DESTROY,
	FENCE_DRY
};

#define NS_PER_MS UINT64_C(1000000)
#define OUTAGE_LATE_NS (2000 * NS_PER_MS)

static struct core_recover *recover_of(struct world *w, enum fabric_end end)
{
	return &w->owner[end].recover;
}

void owner_init(struct world *w)
{
	for (uint32_t e = 0; e < 2; e++) {
		struct world_owner *o = &w->owner[e];

		core_recover_init(&o->recover, &w->shape.times,
				  e == END_SEND ? &w->core_send : NULL,
				  e == END_RECV ? &w->core_recv : NULL, 0, w->now_ns);
		o->open = (2ull << (w->cfg_send.lane_count - 1)) - 1;
		o->tick_ns = w->now_ns;
	}
}

bool owner_attached(const struct world *w, enum fabric_end end, uint32_t lane)
{
	const struct world_owner *o = &w->owner[end];
	uint32_t g = o->generation[lane];
	const struct fabric_link *k = &w->fabric.link[lane][g % FABRIC_LINKS];

	return g != 0 && k->generation == g && o->job[lane].kind == JOB_NONE &&
	       (k->qp[end] == QP_READY || k->qp[end] == QP_ERR);
}

/* ---- letters ---- */

static void letter_send(struct world *w, enum fabric_end to, const struct core_letter *in)
{
	struct world_owner *o = &w->owner[to];
	struct core_letter *place = &w->letter[to][o->tail % LETTER_RING];

	if (o->tail - o->head >= LETTER_RING || in->n > CORE_WR_RING) {
		check_fail(&w->check, "letters", "more than %u letters under way", LETTER_RING);
		return;
	}
	memcpy(place, in, offsetof(struct core_letter, item));
	if (in->type == LETTER_ASK) {
		memcpy(place->item, in->item, in->n * sizeof(in->item[0]));
	} else if (in->type == LETTER_ANSWER) {
		memcpy(place->answer, in->answer, in->n * sizeof(in->answer[0]));
	}
	o->tail++;
	w->moves++;
}

static void answer_marks(const struct core_letter *ask, const struct core_letter *answer)
{
	for (uint32_t i = 0; i < answer->n; i++) {
		if (answer->answer[i] == ANSWER_LANDED) {
			MARK(answer_landed);
		} else if (answer->answer[i] == ANSWER_DONE) {
			MARK(answer_done);
		} else {
			MARK(answer_missing);
			if (ask->item[i].index == CORE_IMM_GROUP) {
				MARK(group_again);
			}
		}
	}
}

static void poll_all(struct world *w, enum fabric_end end)
{
	for (uint32_t l = 0; l < w->lanes && !world_failed(w); l++) {
		for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
			struct fabric_link *k = &w->fabric.link[l][g];

			if (w->fabric.can_poll[end][g] >> l & 1) {
				data_poll(w, k, end, UINT32_MAX);
			}
			if (end == END_RECV && (w->fabric.can_take[g] >> l & 1) != 0) {
				data_take(w, k, UINT32_MAX);
			}
		}
	}
}

static void letter_marks(struct world *w, enum fabric_end end, const struct core_letter *in)
{
	const struct core_recover_lane *lane = &recover_of(w, end)->lane[in->lane];

	if (in->type == LETTER_REFUSE) {
		MARK(offer_refused);
	} else if (in->type == LETTER_FAULT && lane->generation == in->generation) {
		if (lane->state == RL_FENCING || lane->state == RL_FENCED) {
			MARK(fault_both);
		} else if (lane->state == RL_VERIFYING || lane->state == RL_WAIT_LIVE) {
			MARK(fault_verifying);
		}
	}
}

/* A question that came too early waits; the letter after it goes first. */
static void letter_later(struct world *w, enum fabric_end end)
{
	struct world_owner *o = &w->owner[end];
	struct core_letter *held = &w->letter[end][--o->head % LETTER_RING];
	struct core_letter *next = &w->letter[end][(o->head + 1) % LETTER_RING], swap;

	MARK(ask_early);
	if (o->tail - o->head > 1) {
		swap = *held;
		*held = *next;
		*next = swap;
	}
}

void owner_letter(struct world *w, enum fabric_end end)
{
	struct world_owner *o = &w->owner[end];
	const struct core_letter *in = &w->letter[end][o->head++ % LETTER_RING];
	struct core_letter answer;

	memset(&answer, 0, offsetof(struct core_letter, item));
	if (in->type == LETTER_ASK) {
		poll_all(w, end);
	}
	letter_marks(w, end, in);
	int rc = core_recover_letter(&o->recover, in, &answer, w->now_ns);

	world_note(w, end == END_SEND ? "letter to sender" : "letter to receiver", in->type,
		   in->lane, in->generation);
	if (rc == CORE_LETTER_LATER) {
		letter_later(w, end);
		return;
	}
	w->moves++;
	if (rc != 0) {
		check_fail(&w->check, "core", "core_recover_letter(type %u, lane %u) says %d",
			   in->type, in->lane, rc);
		return;
	}
	if (answer.type != 0) {
		answer_marks(in, &answer);
		letter_send(w, 1 - end, &answer);
	}
}

/* ---- what recovery asks for ---- */

static void job_begin(struct world *w, enum fabric_end end, enum world_job_kind kind,
		      const struct core_action *a)
{
	struct world_owner *o = &w->owner[end];

	if (o->job[a->lane].kind != JOB_NONE) {
		check_fail(&w->check, "jobs", "two commands at once about lane %u", a->lane);
	}
	o->job[a->lane] = (struct world_job){.kind = (uint8_t)kind, .generation = a->generation};
	o->jobs |= 1ull << a->lane;
	w->moves++;
}

static void verify_post(struct world *w, enum fabric_end end, const struct core_action *a)
{
	struct fabric_link *k = fabric_link(&w->fabric, a->lane, a->generation);
	struct fabric_wr wr;

	if (k == NULL || !owner_attached(w, end, a->lane)) {
		check_fail(&w->check, "no-qp", "verified write on lane %u without a queue pair",
			   a->lane);
	} else if (end == END_SEND) {
		memset(&wr, 0, sizeof(wr));
		wr.kind = WR_VERIFY;
		fabric_send(&w->fabric, k, &wr);
	} else {
		fabric_announce(&w->fabric, k, 0, 0, true, WR_VERIFY);
	}
}

static void lane_shut(struct world *w, enum fabric_end end, uint32_t lane)
{
	struct world_owner *o = &w->owner[end];

	o->open &= ~(1ull << lane);
	if (o->open == 0 && o->shut_ns == 0) {
		o->shut_ns = w->now_ns;
		MARK(all_lanes_down);
	}
}

static void say_failed(struct world *w, enum fabric_end end, uint32_t lane)
{
	uint8_t cause = w->owner[end].recover.lane[lane].cause;

	lane_shut(w, end, lane);
	if (cause == CAUSE_STALL) {
		MARK(stall_proven);
	}
	if (w->shape.calm) {
		check_fail(&w->check, "needless", "lane %u is given up, but nothing is broken",
			   lane);
	}
}

static void say_open(struct world *w, enum fabric_end end, const struct core_action *a)
{
	struct world_owner *o = &w->owner[end];
	const struct fabric_link *k = fabric_link(&w->fabric, a->lane, a->generation);
	uint64_t home = (2ull << (w->cfg_send.lane_count - 1)) - 1;

	if ((k == NULL || k->qp[end] == QP_NONE || k->qp[end] == QP_GONE) && !w->shape.lazy_act) {
		check_fail(&w->check, "dead-lane", "lane %u is in use without a queue pair",
			   a->lane);
	}
	if (a->generation > 4) {
		MARK(generation_5);
	}
	if (a->lane < w->cfg_send.lane_count && (o->open & ~home) != 0 && (o->open & home) == 0) {
		MARK(standby_left);
	}
	o->open |= 1ull << a->lane;
	o->shut_ns = 0;
}

/* Who says so builds on it that neither end's queue pair can do anything any more. */
static void say_fenced(struct world *w, enum fabric_end end, const struct core_action *a)
{
	const struct fabric_link *k = fabric_link(&w->fabric, a->lane, a->generation);

	if (k == NULL || recover_of(w, end)->lane[a->lane].state != RL_DOWN) {
		return; /* told late: the next generation has begun */
	}
	for (uint32_t e = 0; e < 2; e++) {
		if (k->qp[e] != QP_GONE && k->qp[e] != QP_NONE) {
			check_fail(&w->check, "fence",
				   "lane %u is told to be fenced, but the %s's queue pair lives",
				   a->lane, e == END_SEND ? "sender" : "receiver");
		}
	}
}

static void fail(struct world *w, enum fabric_end end)
{
	struct world_owner *o = &w->owner[end];
	uint64_t shut = o->shut_ns == 0 ? 0 : w->now_ns - o->shut_ns;

	o->failed = true;
	if (o->recover.hole) {
		MARK(hole);
		if (!w->shape.liar) {
			check_fail(&w->check, "fail", "told of a hole, but nothing was lost");
		}
		return;
	}
	MARK(outage);
	if (shut < w->shape.times.outage_ns && !w->shape.lazy_act) {
		check_fail(&w->check, "fail",
			   "the comm fails after %" PRIu64 " ms without a lane", shut / NS_PER_MS);
	}
	if (w->healing && shut > w->shape.times.outage_ns + OUTAGE_LATE_NS &&
	    w->now_ns > w->heal_ns + w->shape.times.outage_ns + OUTAGE_LATE_NS) {
		check_fail(&w->check, "outage",
			   "the comm fails only after %" PRIu64 " ms without a lane",
			   shut / NS_PER_MS);
	}
}

static void act_one(struct world *w, enum fabric_end end, const struct core_action *a,
		    const struct core_letter *letter)
{
	switch (a->type) {
	case ACT_FENCE:
		job_begin(w, end, JOB_FENCE, a);
		break;
	case ACT_PREPARE:
		job_begin(w, end, JOB_PREPARE, a);
		break;
	case ACT_CONNECT:
		job_begin(w, end, JOB_CONNECT, a);
		break;
	case ACT_VERIFY:
		verify_post(w, end, a);
		break;
	case ACT_LETTER:
		letter_send(w, 1 - end, letter);
		break;
	case ACT_PROBE:
		post(w, &a->post);
		break;
	case ACT_ANNOUNCE:
		announce(w, &a->announce);
		break;
	case ACT_SAY_FAILED:
		say_failed(w, end, a->lane);
		break;
	case ACT_SAY_FENCED:
		say_fenced(w, end, a);
		break;
	case ACT_SAY_OPEN:
		say_open(w, end, a);
		break;
	case ACT_FAIL:
		fail(w, end);
		break;
	}
}

void owner_act(struct world *w, enum fabric_end end)
{
	struct core_action a;
	struct core_letter letter;
	uint32_t n = 0;

	memset(&letter, 0, offsetof(struct core_letter, item));

	while (!world_failed(w) &&
	       core_recover_next(recover_of(w, end), &a, &letter, w->now_ns)) {
		world_note(w, end == END_SEND ? "sender does" : "receiver does", a.type, a.lane,
			   a.type == ACT_LETTER ? letter.type : a.generation);
		act_one(w, end, &a, &letter);
		if (++n > ACT_MAX) {
			check_fail(&w->check, "endless", "core_recover_next never stops");
		}
	}
}

void owner_after(struct world *w, enum fabric_end end)
{
	if ((!w->shape.lazy_act || w->healing) && !w->owner[end].paused) {
		owner_act(w, end);
	}
}

bool owner_fault(struct world *w, enum fabric_end end, uint32_t lane, uint32_t generation,
		 enum core_cause cause)
{
	uint8_t state = recover_of(w, end)->lane[lane].state;

	world_note(w, end == END_SEND ? "sender fault" : "receiver fault", lane, generation, cause);
	if (!core_recover_fault(recover_of(w, end), lane, generation, cause, w->now_ns)) {
		return false;
	}
	w->moves++;
	lane_shut(w, end, lane); /* a process that is stopped says so later */
	if (state == RL_PREPARING) {
		MARK(fault_preparing);
	} else if (state == RL_CONNECTING || state == RL_READY || state == RL_OFFERED) {
		MARK(fault_connecting);
	} else if (state == RL_VERIFYING || state == RL_WAIT_LIVE) {
		MARK(fault_verifying);
	}
	return true;
}

void owner_tick(struct world *w, enum fabric_end end)
{
	struct world_owner *o = &w->owner[end];

	if (w->shape.calm || w->healing) {
		poll_all(w, end);
	}
	o->tick_ns = w->now_ns;
	core_recover_tick(&o->recover, w->now_ns);
}

uint64_t owner_deadline_ns(const struct world *w)
{
	uint64_t at = core_send_deadline_ns(&w->core_send);

	/* Of a sender without lanes it is long over. */
	at = at > w->now_ns ? at : UINT64_MAX;
	for (uint32_t e = 0; e < 2; e++) {
		uint64_t due = core_recover_deadline_ns(&w->owner[e].recover);

		at = due < at ? due : at;
	}
	return at;
}

/* ---- slow commands ---- */

static void fence_step(struct world *w, enum fabric_end end, uint32_t lane, struct world_job *job)
{
	struct world_owner *o = &w->owner[end];
	struct fabric_link *k = fabric_link(&w->fabric, lane, o->generation[lane]);
	bool is_there = k != NULL && k->qp[end] != QP_NONE;
	bool coin = w->shape.faulty && choose(w->choice, 2) == 1;

	switch (job->phase++) {
	case FENCE_ERR:
		if (is_there) {
			fabric_error(&w->fabric, k, end,
				     w->shape.lates ? choose(w->choice, LATE_MAX) : 0,
				     w->shape.flushes && coin);
		}
		break;
	case FENCE_DESTROY:
		if (is_there) {
			fabric_destroy(&w->fabric, k, end, w->shape.cleans && coin,
				       w->shape.liar && choose(w->choice, 2) == 1);
		}
		break;
	default:
		if (is_there) {
			data_poll(w, k, end, UINT32_MAX);
		}
		if (is_there && end == END_RECV) {
			data_take(w, k, UINT32_MAX);
		}
		break;
	}
	if (job->phase > FENCE_DRY) {
		*job = (struct world_job){.kind = JOB_NONE};
		o->jobs &= ~(1ull << lane);
		o->generation[lane] = 0;
		core_recover_fenced(&o->recover, lane, w->now_ns);
	}
}

/* The next queue pair: whether it comes to be, and whether the command says so. */
static int qp_make(struct world *w, enum fabric_end end, uint32_t lane, const struct world_job *job)
{
	struct world_owner *o = &w->owner[end];
	bool fails = w->shape.job_fails != 0 && !w->healing &&
		     choose(w->choice, w->shape.job_fails) + 1 == w->shape.job_fails;
	struct fabric_link *k = fabric_link(&w->fabric, lane, job->generation);

	if (fails && (k == NULL || choose(w->choice, 2) == 0)) {
		return -EIO;
	}
	if (k == NULL || k->qp[end] == QP_NONE) {
		struct fabric_link *refused =
			fabric_link(&w->fabric, lane, o->generation[lane]);

		if (refused != NULL && refused->qp[end] == QP_INIT) { /* it was never connected */
			fabric_destroy(&w->fabric, refused, end, false, false);
		}
		k = fabric_create(&w->fabric, lane, job->generation, end);
		o->generation[lane] = job->generation;
	}
	if (fails) {
		return -EIO;
	}
	if (job->kind == JOB_CONNECT) {
		fabric_connect(&w->fabric, k, end);
		if (end == END_RECV) {
			fabric_recv(&w->fabric, k, CORE_RQ_WRS);
		}
	}
	return 0;
}

void owner_job(struct world *w, enum fabric_end end, uint32_t lane)
{
	struct world_owner *o = &w->owner[end];
	struct world_job *job = &o->job[lane], was = *job;

	world_note(w, end == END_SEND ? "sender job" : "receiver job", lane, job->kind, job->phase);
	w->moves++;
	if (job->kind == JOB_FENCE) {
		fence_step(w, end, lane, job);
	} else if (w->healing || choose(w->choice, 2) == 0) {
		int rc = qp_make(w, end, lane, &was);

		*job = (struct world_job){.kind = JOB_NONE};
		o->jobs &= ~(1ull << lane);
		if (rc != 0) {
			MARK(job_failed);
		}
		if (o->recover.lane[lane].state == RL_FENCING && was.kind == JOB_PREPARE) {
			MARK(fault_preparing);
		} else if (o->recover.lane[lane].state == RL_FENCING) {
			MARK(fault_connecting);
		}
		core_recover_ready(&o->recover, lane, rc, w->now_ns);
	}
}
