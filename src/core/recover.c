/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recover.c - what becomes of a lane that fails. Generation g is being ended, g + 1 made.
 *
 *   state       means                                      leaves it when
 *   ACTIVE      in use                                     fault: FENCING, FAULT(g) to the peer
 *   FENCING     ACT_FENCE is under way (or due, once a     fenced: FENCED, FENCED(g) to the peer
 *               job before it is over)
 *   FENCED      our end can do nothing more                sender, lane was in use: ASKED, at once;
 *                                                          else the peer's FENCED(g): DOWN
 *   ASKED       sender: ASK(g) is out; the peer answers    ANSWER(g): DOWN; the missing go again
 *               when it has fenced too
 *   DOWN        fenced at both ends                        sender: both ports up and retry_ns
 *                                                          come: PREPARING g + 1
 *                                                          receiver: OFFER(g'): CONNECTING g'
 *   PREPARING   sender: ACT_PREPARE                        ready: OFFERED, OFFER(g)
 *   OFFERED     sender: waits for the answer               ACCEPT: CONNECTING; REFUSE: DOWN
 *   CONNECTING  ACT_CONNECT                                sender: VERIFYING, CONNECTED(g);
 *                                                          receiver: READY, ACCEPT(g)
 *   READY       receiver: waits                            CONNECTED(g): VERIFYING
 *   VERIFYING   ACT_VERIFY                                 completed: LIVE(g), WAIT_LIVE or ACTIVE
 *                                                          verify_ns: fault
 *   WAIT_LIVE   our write went through                     LIVE(g): ACTIVE
 *
 * A fault in any state but DOWN and the fence's own leads to FENCING. A generation that the peer
 * never heard of (PREPARING) is fenced without it.
 *
 *   timer      default  what
 *   stall_ns   100 ms   no progress (or twice the expected time, if longer; ten times as long while
 *                       a lane's rate is unknown; twice as long after each suspicion in vain) is
 *                       suspect; fenced only if another lane moved half that time ago: an empty
 *                       piece (sender) or a record written again (receiver) shows which do
 *   hold       0.125-1 s  pause of a lane that failed within 5 s of its opening, doubling
 *   retry      0.25 s - 2 x retest_ns, doubling, after a try that failed; at once when a port of
 *              the lane has come up
 *   verify_ns  500 ms   bound of the verified write
 *   outage_ns  120 s    no lane: the comm fails
 *   hole       1 s      an open message that the peer saw acknowledged whole: the comm fails
 *
 * Suspicion is no proof, and the last lane is never fenced by time alone: a peer that is stopped
 * stalls all lanes alike.
 */
#include "recover.h"

#include <errno.h>
#include <string.h>

#include "suspect.h"

#define NS_PER_MS 1000000ull

enum todo {
	TODO_FAULT = 1 << 0, /* before all: the peer's fence takes longest */
	TODO_FENCE = 1 << 1,
	TODO_SAY_FAILED = 1 << 2,
	TODO_FENCED = 1 << 3,
	TODO_SAY_FENCED = 1 << 4,
	TODO_ASK = 1 << 5,
	TODO_PREPARE = 1 << 6,
	TODO_OFFER = 1 << 7,
	TODO_REFUSE = 1 << 8,
	TODO_CONNECT = 1 << 9,
	TODO_ACCEPT = 1 << 10,
	TODO_CONNECTED = 1 << 11,
	TODO_VERIFY = 1 << 12,
	TODO_LIVE = 1 << 13,
	TODO_SAY_OPEN = 1 << 14,
	TODO_PROBE = 1 << 15,
	TODO_TELL = 1 << 16,
	/* what is void once the lane fails */
	TODO_SETUP = TODO_PREPARE | TODO_OFFER | TODO_CONNECT | TODO_ACCEPT | TODO_CONNECTED |
		     TODO_VERIFY | TODO_LIVE | TODO_PROBE | TODO_SAY_OPEN
};

enum { TRIES_MAX = 16 };

static const uint64_t flap_ns = 5000 * NS_PER_MS, hold_min_ns = 125 * NS_PER_MS,
		      hold_max_ns = 1000 * NS_PER_MS, retry_min_ns = 250 * NS_PER_MS,
		      hole_wait_ns = 1000 * NS_PER_MS, quiet_max_ns = 2000 * NS_PER_MS;

const char *core_cause_text(enum core_cause cause)
{
	static const char *const text[CAUSE_COUNT] = {
		[CAUSE_NONE] = "no cause",
		[CAUSE_COMPLETION] = "a work request failed",
		[CAUSE_PORT] = "the local port is down",
		[CAUSE_FATAL] = "the device reported a fatal error",
		[CAUSE_POST] = "posting failed",
		[CAUSE_STALL] = "no progress while another lane moved",
		[CAUSE_SETUP] = "its next queue pair could not be made",
		[CAUSE_VERIFY] = "the test write did not get through",
		[CAUSE_PEER] = "the peer ended it",
	};

	return cause < CAUSE_COUNT ? text[cause] : "unknown cause";
}

/*
 * The time of a call: never before that of an earlier one. A look takes the time once, and what it
 * finds on the way may be told with a later one.
 */
static uint64_t time_take(struct core_recover *r, uint64_t now_ns)
{
	if (now_ns > r->now_ns) {
		r->now_ns = now_ns;
	}
	return r->now_ns;
}

static bool is_standby(const struct core_recover *r, uint32_t l)
{
	return l >= r->cfg->lane_count;
}

static void todo(struct core_recover *r, uint32_t l, unsigned what)
{
	r->lane[l].todo |= what;
	r->todo |= 1ull << l;
}

static void enter(struct core_recover *r, uint32_t l, enum core_recover_state state,
		  uint64_t now_ns)
{
	r->lane[l].state = (uint8_t)state;
	r->lane[l].since_ns = now_ns;
}

static void core_lane_set(struct core_recover *r, uint32_t l, enum core_lane_state state)
{
	if (r->send != NULL) {
		core_send_lane_state(r->send, l, state);
	} else {
		core_recv_lane_state(r->recv, l, state);
	}
}

static bool has_active(const struct core_recover *r)
{
	for (uint32_t i = 0; i < r->lane_count; i++) {
		if (r->lane[i].state == RL_ACTIVE) {
			return true;
		}
	}
	return false;
}

void core_recover_init(struct core_recover *r, const struct core_recover_times *times,
		       struct core_send *send, struct core_recv *recv, uint64_t down,
		       uint64_t now_ns)
{
	memset(r, 0, sizeof(*r));
	r->times = *times;
	r->send = send;
	r->recv = recv;
	r->cfg = send != NULL ? &send->cfg : &recv->cfg;
	r->lane_count = r->cfg->lane_count + r->cfg->standby_count;
	r->quiet_wait_ns = times->stall_ns;
	r->quiet_ns = now_ns;
	r->tick_ns = now_ns;
	r->now_ns = now_ns;
	for (uint32_t i = 0; i < r->lane_count; i++) {
		struct core_recover_lane *lane = &r->lane[i];
		bool up = !is_standby(r, i) && (down >> i & 1) == 0;

		lane->generation = is_standby(r, i) ? 0 : 1;
		lane->peer_fenced = up ? 0 : lane->generation;
		lane->state = up ? RL_ACTIVE : RL_DOWN;
		lane->heard = true;
		lane->since_ns = lane->still_ns = now_ns;
		lane->opened_ns = lane->fault_ns = now_ns;
		lane->opened = up ? 1 : 0;
		lane->seen = recv != NULL ? core_recv_lane_arrivals(recv, i) : 0;
	}
	r->outage_ns = has_active(r) ? 0 : now_ns;
}

/* --- fault and fence ---------------------------------------------------------------------- */

static void outage_look(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	if (!has_active(r) && r->outage_ns == 0) {
		r->outage_ns = now_ns;
		r->first_lane = (uint8_t)l;
		r->first_cause = r->lane[l].cause;
	}
}

static bool is_in_use(const struct core_recover_lane *lane)
{
	return lane->state != RL_FENCING && lane->state != RL_FENCED && lane->state != RL_ASKED &&
	       lane->state != RL_DOWN;
}

static void lane_stop(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];
	bool was_active = lane->state == RL_ACTIVE;

	enter(r, l, RL_FENCING, now_ns);
	if (r->send != NULL) {
		core_send_lane_state(r->send, l, LANE_FENCING);
	} else {
		core_recv_lane_fault(r->recv, l);
	}
	if (was_active) {
		bool flaps = now_ns - lane->opened_ns < flap_ns && lane->opened_ns > lane->fault_ns;
		uint64_t hold = lane->hold_ns == 0 ? hold_min_ns : 2 * lane->hold_ns;

		lane->hold_ns = !flaps ? 0 : hold > hold_max_ns ? hold_max_ns : hold;
		lane->fault_ns = now_ns;
		todo(r, l, TODO_SAY_FAILED);
	}
	outage_look(r, l, now_ns);
}

bool core_recover_fault(struct core_recover *r, uint32_t l, uint32_t generation,
			enum core_cause cause, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	now_ns = time_take(r, now_ns);
	if (lane->generation != generation || !is_in_use(lane)) {
		return false;
	}
	lane->cause = (uint8_t)cause;
	lane->stalled = cause == CAUSE_STALL;
	if (lane->todo & (TODO_PREPARE | TODO_CONNECT)) {
		lane->busy = false; /* that job was never begun */
	}
	lane->todo &= ~(unsigned)TODO_SETUP;
	lane_stop(r, l, now_ns);
	if (lane->heard && cause != CAUSE_PEER) {
		todo(r, l, TODO_FAULT);
	}
	if (!lane->busy) {
		lane->busy = true;
		todo(r, l, TODO_FENCE);
	}
	return true;
}

/* When a lane that has come down, or was refused, is tried next. */
static void retry_set(struct core_recover *r, struct core_recover_lane *lane, uint64_t now_ns)
{
	uint64_t pause = lane->hold_ns;

	if (lane->opened != lane->generation) {
		uint64_t more = retry_min_ns << lane->tries;

		more = more > 2 * r->times.retest_ns ? 2 * r->times.retest_ns : more;
		pause = more > pause ? more : pause;
		lane->tries = (uint8_t)(lane->tries + (lane->tries < TRIES_MAX));
	}
	lane->retry_ns = now_ns + pause;
}

/* Fenced at both ends, and nothing is in doubt any more. */
static void lane_down(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	enter(r, l, RL_DOWN, now_ns);
	core_lane_set(r, l, LANE_DOWN);
	retry_set(r, lane, now_ns);
	if (lane->opened == lane->generation) {
		todo(r, l, TODO_SAY_FENCED);
	}
}

static void past_fence(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	if (lane->state != RL_FENCED) {
		return;
	}
	lane->again = 0;
	lane->landed = 0;
	if (r->send != NULL && lane->heard && lane->opened == lane->generation) {
		/* Even with nothing in flight: what was acknowledged may not be there. */
		enter(r, l, RL_ASKED, now_ns);
		todo(r, l, TODO_ASK);
		return;
	}
	if (lane->heard && lane->peer_fenced < lane->generation) {
		return;
	}
	if (r->recv != NULL) {
		core_recv_lane_fenced(r->recv, l);
	}
	lane_down(r, l, now_ns);
}

void core_recover_fenced(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	now_ns = time_take(r, now_ns);
	lane->busy = false;
	if (lane->state != RL_FENCING) {
		return;
	}
	enter(r, l, RL_FENCED, now_ns);
	if (lane->heard) {
		todo(r, l, TODO_FENCED);
	}
	past_fence(r, l, now_ns);
}

/* --- the next generation ------------------------------------------------------------------ */

void core_recover_ready(struct core_recover *r, uint32_t l, int rc, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	now_ns = time_take(r, now_ns);
	lane->busy = false;
	if (lane->state == RL_FENCING) { /* it failed meanwhile */
		lane->busy = true;
		todo(r, l, TODO_FENCE);
	} else if (rc != 0) {
		core_recover_fault(r, l, lane->generation, CAUSE_SETUP, now_ns);
	} else if (lane->state == RL_PREPARING) {
		enter(r, l, RL_OFFERED, now_ns);
		lane->heard = true;
		todo(r, l, TODO_OFFER);
	} else if (lane->state == RL_CONNECTING && r->send != NULL) {
		enter(r, l, RL_VERIFYING, now_ns);
		todo(r, l, TODO_CONNECTED | TODO_VERIFY);
	} else if (lane->state == RL_CONNECTING) {
		enter(r, l, RL_READY, now_ns);
		todo(r, l, TODO_ACCEPT);
	}
}

static void lane_open(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	enter(r, l, RL_ACTIVE, now_ns);
	/* A lane that is well at the first try after a suspicion was slow, not dead. */
	if (!lane->stalled || lane->tries != 0) {
		lane->patience = 0;
	} else if (lane->patience < SUSPECT_PATIENCE_MAX) {
		lane->patience++;
	}
	lane->stalled = false;
	lane->opened = lane->generation;
	lane->opened_ns = now_ns;
	lane->moved_ns = now_ns;
	suspect_clear(lane, now_ns);
	lane->waits = false;
	lane->asked = false;
	lane->shown = 0;
	lane->tries = 0;
	lane->cause = CAUSE_NONE;
	r->outage_ns = 0;
	todo(r, l, TODO_SAY_OPEN);
	if (r->send != NULL) {
		core_send_lane_renew(r->send, l, lane->generation, lane->peer_posted);
	} else {
		core_recv_lane_state(r->recv, l, LANE_ACTIVE);
		lane->seen = core_recv_lane_arrivals(r->recv, l);
	}
}

static void live_look(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	if (r->lane[l].state == RL_WAIT_LIVE && r->lane[l].peer_live) {
		lane_open(r, l, now_ns);
	}
}

void core_recover_verified(struct core_recover *r, uint32_t l, uint32_t generation,
			   uint64_t now_ns)
{
	now_ns = time_take(r, now_ns);
	if (r->lane[l].state == RL_VERIFYING && r->lane[l].generation == generation) {
		enter(r, l, RL_WAIT_LIVE, now_ns);
		todo(r, l, TODO_LIVE);
		live_look(r, l, now_ns);
	}
}

static bool port_dead(const struct core_recover *r, uint32_t l)
{
	return core_word(&r->cfg->local[r->cfg->lane[l].port]->dead) != 0;
}

static bool port_blocked(const struct core_recover *r, uint32_t l)
{
	return core_word(&r->cfg->local[r->cfg->lane[l].port]->down) != 0 || port_dead(r, l) ||
	       core_word(&r->cfg->remote[r->cfg->lane[l].remote]->down) != 0;
}

static void generation_begin(struct core_recover *r, uint32_t l, uint32_t generation,
			     uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	if (lane->opened == 0) {
		lane->fault_ns = now_ns; /* a standby lane is missed from now on */
	}
	lane->generation = generation;
	lane->peer_live = false;
	lane->busy = true;
	core_lane_set(r, l, LANE_PROBING);
}

/* Sender, DOWN: try again? */
static void retry_look(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];

	if ((is_standby(r, l) && !r->want_standby) || lane->todo != 0 || lane->busy) {
		return;
	}
	if (port_blocked(r, l)) {
		lane->blocked = true;
		return;
	}
	if (lane->blocked) { /* a port has come up: begin anew, at once but for flapping */
		lane->blocked = false;
		lane->tries = 0;
		lane->retry_ns = now_ns + lane->hold_ns;
	}
	if (now_ns >= lane->retry_ns) {
		generation_begin(r, l, lane->generation + 1, now_ns);
		lane->heard = false;
		enter(r, l, RL_PREPARING, now_ns);
		todo(r, l, TODO_PREPARE);
	}
}

/* --- letters ------------------------------------------------------------------------------ */

static void letter_fault(struct core_recover *r, const struct core_letter *in, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[in->lane];

	if (in->generation > lane->generation && lane->state == RL_DOWN) {
		/* We refused its offer, so there is nothing of this generation here. */
		lane->generation = in->generation;
		todo(r, in->lane, TODO_FENCED);
		return;
	}
	(void)core_recover_fault(r, in->lane, in->generation, CAUSE_PEER, now_ns);
}

static void letter_offer(struct core_recover *r, const struct core_letter *in, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[in->lane];

	if (lane->state != RL_DOWN || in->generation <= lane->generation || lane->busy ||
	    port_dead(r, in->lane)) {
		lane->refused = in->generation;
		todo(r, in->lane, TODO_REFUSE);
		return;
	}
	generation_begin(r, in->lane, in->generation, now_ns);
	core_recv_lane_open(r->recv, in->lane, in->generation,
			    core_recv_lane_base(r->recv, in->lane));
	core_lane_set(r, in->lane, LANE_PROBING);
	lane->heard = true;
	enter(r, in->lane, RL_CONNECTING, now_ns);
	todo(r, in->lane, TODO_CONNECT);
}

static void letter_accept(struct core_recover *r, const struct core_letter *in, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[in->lane];

	if (lane->state == RL_OFFERED && lane->generation == in->generation) {
		lane->peer_posted = in->posted;
		lane->busy = true;
		enter(r, in->lane, RL_CONNECTING, now_ns);
		todo(r, in->lane, TODO_CONNECT);
	}
}

static void letter_refuse(struct core_recover *r, const struct core_letter *in, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[in->lane];

	if (lane->state == RL_OFFERED && lane->generation == in->generation) {
		enter(r, in->lane, RL_DOWN, now_ns);
		core_lane_set(r, in->lane, LANE_DOWN);
		retry_set(r, lane, now_ns);
	}
}

static void letter_live(struct core_recover *r, const struct core_letter *in, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[in->lane];

	if (lane->generation == in->generation &&
	    (lane->state == RL_VERIFYING || lane->state == RL_WAIT_LIVE)) {
		lane->peer_live = true;
		live_look(r, in->lane, now_ns);
	}
}

/*
 * The oldest open message is one that the peer saw acknowledged whole: its last completion may be
 * on its way, but not for long.
 */
static void hole_look(struct core_recover *r, uint64_t now_ns)
{
	uint64_t oldest = core_recv_oldest(r->recv);

	if (oldest >= r->acked) {
		r->hole_ns = 0;
	} else if (r->hole_ns == 0 || oldest != r->hole_seq) {
		r->hole_seq = oldest;
		r->hole_ns = now_ns;
	} else if (now_ns - r->hole_ns >= hole_wait_ns) {
		r->hole = true;
		r->failed = true;
	}
}

static int letter_ask(struct core_recover *r, const struct core_letter *in,
		      struct core_letter *answer, uint64_t now_ns)
{
	const struct core_recover_lane *lane = &r->lane[in->lane];

	r->acked = in->acked > r->acked ? in->acked : r->acked;
	hole_look(r, now_ns);
	if (in->generation == 0) {
		return 0; /* it is about `acked` alone: acked_tell() */
	}
	if (in->generation != lane->generation || in->n > CORE_WR_RING) {
		return -EPROTO;
	}
	if (lane->state == RL_FENCING || (lane->todo & TODO_FENCED) != 0) {
		return CORE_LETTER_LATER; /* what it asks for may still land */
	}
	if (lane->state != RL_DOWN) {
		return -EPROTO;
	}
	for (uint32_t i = 0; i < in->n; i++) {
		int said = core_recv_answer(r->recv, &in->item[i]);

		if (said < 0) {
			return said;
		}
		answer->answer[i] = (uint8_t)said;
	}
	answer->type = LETTER_ANSWER;
	answer->cause = CAUSE_NONE;
	answer->posted = 0;
	answer->acked = 0;
	answer->lane = in->lane;
	answer->generation = in->generation;
	answer->n = in->n;
	return 0;
}

static int letter_answer(struct core_recover *r, const struct core_letter *in, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[in->lane];

	if (lane->state != RL_ASKED || lane->generation != in->generation ||
	    lane->peer_fenced != in->generation || in->n > CORE_WR_RING) {
		return -EPROTO;
	}
	int again = core_send_answer(r->send, in->lane, in->answer, in->n);

	if (again < 0) {
		return again;
	}
	lane->again = (uint32_t)again;
	lane->landed = in->n - (uint32_t)again;
	r->tell_to = core_send_begun(r->send);
	r->tell_lane = in->lane;
	lane_down(r, in->lane, now_ns);
	return 0;
}

/* What only a sender may write comes to a receiver, and the other way round. */
static bool letter_fits(const struct core_recover *r, const struct core_letter *in)
{
	switch (in->type) {
	case LETTER_FAULT:
	case LETTER_FENCED:
	case LETTER_LIVE:
		return true;
	case LETTER_ASK:
	case LETTER_OFFER:
	case LETTER_CONNECTED:
		return r->recv != NULL;
	case LETTER_ANSWER:
	case LETTER_ACCEPT:
	case LETTER_REFUSE:
		return r->send != NULL;
	default:
		return false;
	}
}

int core_recover_letter(struct core_recover *r, const struct core_letter *in,
			struct core_letter *answer, uint64_t now_ns)
{
	now_ns = time_take(r, now_ns);
	answer->type = 0;
	if (in->lane >= r->lane_count || !letter_fits(r, in)) {
		return -EPROTO;
	}
	struct core_recover_lane *lane = &r->lane[in->lane];

	switch (in->type) {
	case LETTER_FAULT:
		letter_fault(r, in, now_ns);
		break;
	case LETTER_FENCED:
		if (in->generation > lane->generation) {
			return -EPROTO;
		}
		lane->peer_fenced = in->generation;
		past_fence(r, in->lane, now_ns);
		break;
	case LETTER_ASK:
		return letter_ask(r, in, answer, now_ns);
	case LETTER_ANSWER:
		return letter_answer(r, in, now_ns);
	case LETTER_OFFER:
		letter_offer(r, in, now_ns);
		break;
	case LETTER_ACCEPT:
		letter_accept(r, in, now_ns);
		break;
	case LETTER_REFUSE:
		letter_refuse(r, in, now_ns);
		break;
	case LETTER_CONNECTED:
		if (lane->state == RL_READY && lane->generation == in->generation) {
			enter(r, in->lane, RL_VERIFYING, now_ns);
			todo(r, in->lane, TODO_VERIFY);
		}
		break;
	case LETTER_LIVE:
		letter_live(r, in, now_ns);
		break;
	default:
		break;
	}
	return 0;
}

/* --- progress and timers ------------------------------------------------------------------ */

/* Send something over the lanes that are at rest, to see which of them move. */
static void probe_others(struct core_recover *r, uint32_t l)
{
	for (uint32_t i = 0; i < r->lane_count; i++) {
		if (i != l && r->lane[i].state == RL_ACTIVE) {
			todo(r, i, TODO_PROBE);
		}
	}
}

/* Returns whether it stands still without proof. */
static bool send_doubt(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	enum suspect_verdict verdict = SUSPECT_NOT;

	if (r->lane[l].state == RL_ACTIVE) {
		verdict = suspect_of(r, l);
	}
	if (verdict == SUSPECT_PROVEN) {
		core_recover_fault(r, l, r->lane[l].generation, CAUSE_STALL, now_ns);
	} else if (verdict == SUSPECT_DOUBTED) {
		probe_others(r, l);
	}
	return verdict == SUSPECT_DOUBTED;
}

/*
 * What was in flight at a fence may complete later, and the receiver's device may have lost a part
 * that it had acknowledged: so it is told once more what is complete, when all of that is.
 */
static void acked_tell(struct core_recover *r)
{
	if (r->tell_to != 0 && core_send_acked(r->send) >= r->tell_to) {
		r->tell_to = 0;
		todo(r, r->tell_lane, TODO_TELL);
	}
}

static void send_look(struct core_recover *r, uint64_t now_ns)
{
	uint32_t good = 0;

	for (uint32_t i = 0; i < r->lane_count; i++) {
		if (r->lane[i].state == RL_ACTIVE) {
			suspect_sender(r, i, now_ns);
		}
	}
	for (uint32_t i = 0; i < r->lane_count; i++) {
		bool doubt = send_doubt(r, i, now_ns);

		good += r->lane[i].state == RL_ACTIVE && !is_standby(r, i) && !doubt;
	}
	acked_tell(r);
	r->want_standby = good == 0;
	for (uint32_t i = 0; i < r->lane_count; i++) {
		if (r->lane[i].state == RL_DOWN) {
			retry_look(r, i, now_ns);
		}
	}
}

/*
 * Nothing arrives although receives are open: their announcements may be lost. The oldest is
 * written again on each lane; a lane where that does not complete while it does on another is dead.
 */
static void recv_doubt(struct core_recover *r, uint64_t now_ns)
{
	for (uint32_t i = 0; i < r->lane_count; i++) {
		if (r->lane[i].state == RL_ACTIVE && !r->lane[i].asked) {
			todo(r, i, TODO_PROBE);
		}
	}
	r->quiet_ns = now_ns;
	r->quiet_wait_ns = 2 * r->quiet_wait_ns > quiet_max_ns ? quiet_max_ns :
								 2 * r->quiet_wait_ns;
}

static void recv_look(struct core_recover *r, uint64_t now_ns)
{
	uint32_t arrivals = core_recv_arrivals(r->recv);

	if (arrivals != r->arrivals) {
		r->arrivals = arrivals;
		r->quiet_ns = now_ns;
		r->quiet_wait_ns = r->times.stall_ns;
	} else if (now_ns - r->quiet_ns >= r->quiet_wait_ns) {
		if (core_recv_oldest(r->recv) == r->recv->next) {
			r->quiet_ns = now_ns;
		} else {
			recv_doubt(r, now_ns);
		}
	}
	for (uint32_t i = 0; i < r->lane_count; i++) {
		struct core_recover_lane *lane = &r->lane[i];

		if (lane->state != RL_ACTIVE) {
			continue;
		}
		suspect_receiver(r, i, now_ns);
		if (lane->asked && suspect_of(r, i) == SUSPECT_PROVEN) {
			core_recover_fault(r, i, lane->generation, CAUSE_STALL, now_ns);
		}
	}
	if (r->hole_ns != 0) {
		hole_look(r, now_ns);
	}
}

void core_recover_again_done(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	now_ns = time_take(r, now_ns);
	core_recv_again_done(r->recv, l);
	r->lane[l].asked = false;
	r->lane[l].moved_ns = now_ns;
	suspect_shown(&r->lane[l], 1);
}

void core_recover_tick(struct core_recover *r, uint64_t now_ns)
{
	now_ns = time_take(r, now_ns);
	suspect_tick(r, now_ns);
	for (uint32_t i = 0; i < r->lane_count; i++) {
		struct core_recover_lane *lane = &r->lane[i];

		if (is_in_use(lane) && port_dead(r, i)) {
			core_recover_fault(r, i, lane->generation, CAUSE_PORT, now_ns);
		} else if (lane->state == RL_VERIFYING &&
			   now_ns - lane->since_ns >= r->times.verify_ns) {
			core_recover_fault(r, i, lane->generation, CAUSE_VERIFY, now_ns);
		}
	}
	if (r->send != NULL) {
		send_look(r, now_ns);
	} else {
		recv_look(r, now_ns);
	}
	if (r->outage_ns != 0 && now_ns - r->outage_ns >= r->times.outage_ns) {
		r->failed = true;
	}
}

/* When a lane needs a look, by its state. */
static uint64_t lane_deadline_ns(const struct core_recover *r, uint32_t l)
{
	const struct core_recover_lane *lane = &r->lane[l];

	switch (lane->state) {
	case RL_VERIFYING:
		return lane->since_ns + r->times.verify_ns;
	case RL_DOWN:
		return r->send == NULL || lane->blocked || (is_standby(r, l) && !r->want_standby) ?
			       UINT64_MAX :
			       lane->retry_ns;
	case RL_ACTIVE:
		return r->send != NULL && core_send_lane_units(r->send, l) != 0 ?
			       r->tick_ns + r->times.stall_ns / SUSPECT_LOOKS :
			       UINT64_MAX;
	default:
		return UINT64_MAX;
	}
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t core_recover_deadline_ns(const struct core_recover *r)
{
	uint64_t at = r->outage_ns != 0 ? r->outage_ns + r->times.outage_ns : UINT64_MAX;

	for (uint32_t i = 0; i < r->lane_count; i++) {
		at = earlier(at, lane_deadline_ns(r, i));
		if (r->recv != NULL && r->lane[i].asked) {
			at = earlier(at, r->tick_ns + r->times.stall_ns / SUSPECT_LOOKS);
		}
	}
	if (r->tell_to != 0) {
		at = earlier(at, r->tick_ns + r->times.stall_ns / SUSPECT_LOOKS);
	}
	if (r->recv != NULL) {
		at = earlier(at, r->quiet_ns + r->quiet_wait_ns);
		at = r->hole_ns != 0 ? earlier(at, r->hole_ns + hole_wait_ns) : at;
	}
	return at;
}

/* --- what is to be done ------------------------------------------------------------------- */

static void letter_begin(const struct core_recover *r, uint32_t l, enum core_letter_type type,
			 struct core_letter *letter)
{
	letter->type = (uint8_t)type;
	letter->lane = (uint8_t)l;
	letter->generation = r->lane[l].generation;
	letter->cause = r->lane[l].cause;
	letter->posted = 0;
	letter->acked = 0;
	letter->n = 0;
}

static void letter_make(struct core_recover *r, uint32_t l, unsigned what,
			struct core_letter *letter)
{
	switch (what) {
	case TODO_FAULT:
		letter_begin(r, l, LETTER_FAULT, letter);
		break;
	case TODO_FENCED:
		letter_begin(r, l, LETTER_FENCED, letter);
		break;
	case TODO_ASK:
		letter_begin(r, l, LETTER_ASK, letter);
		letter->n = (uint16_t)core_send_ask(r->send, l, letter->item);
		letter->acked = core_send_acked(r->send);
		break;
	case TODO_TELL:
		letter_begin(r, l, LETTER_ASK, letter);
		letter->generation = 0;
		letter->acked = core_send_acked(r->send);
		break;
	case TODO_OFFER:
		letter_begin(r, l, LETTER_OFFER, letter);
		break;
	case TODO_REFUSE:
		letter_begin(r, l, LETTER_REFUSE, letter);
		letter->generation = r->lane[l].refused;
		break;
	case TODO_ACCEPT:
		letter_begin(r, l, LETTER_ACCEPT, letter);
		letter->posted = r->recv->lane[l].posted;
		break;
	case TODO_CONNECTED:
		letter_begin(r, l, LETTER_CONNECTED, letter);
		break;
	default:
		letter_begin(r, l, LETTER_LIVE, letter);
		break;
	}
}

/* Receiver: a record written again shows whether a lane moves. */
static void ask_begin(struct core_recover_lane *lane, uint64_t now_ns)
{
	lane->asked = true;
	suspect_clear(lane, now_ns);
}

/* A probe that cannot be sent now is not owed: the next look asks again. */
static bool probe_make(struct core_recover *r, uint32_t l, struct core_action *out,
		       uint64_t now_ns)
{
	if (r->send != NULL) {
		out->type = ACT_PROBE;
		return core_send_probe(r->send, l, &out->post);
	}
	if (!core_recv_probe(r->recv, l, &out->announce)) {
		return false;
	}
	ask_begin(&r->lane[l], now_ns);
	out->type = ACT_ANNOUNCE;
	return true;
}

/* The action for the lowest bit of a lane's todo; false: it came to nothing. */
static bool lane_next(struct core_recover *r, uint32_t l, struct core_action *out,
		      struct core_letter *letter, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];
	unsigned what = lane->todo & -(unsigned)lane->todo;

	lane->todo &= ~what;
	if (lane->todo == 0) {
		r->todo &= ~(1ull << l);
	}
	out->lane = l;
	out->generation = lane->generation;
	switch (what) {
	case 0:
		return false;
	case TODO_FENCE:
		out->type = ACT_FENCE;
		return true;
	case TODO_SAY_FAILED:
		out->type = ACT_SAY_FAILED;
		return true;
	case TODO_SAY_FENCED:
		out->type = ACT_SAY_FENCED;
		return true;
	case TODO_SAY_OPEN:
		out->type = ACT_SAY_OPEN;
		return true;
	case TODO_PREPARE:
		out->type = ACT_PREPARE;
		return true;
	case TODO_CONNECT:
		out->type = ACT_CONNECT;
		return true;
	case TODO_VERIFY:
		out->type = ACT_VERIFY;
		return true;
	case TODO_PROBE:
		return probe_make(r, l, out, now_ns);
	default:
		out->type = ACT_LETTER;
		letter_make(r, l, what, letter);
		return true;
	}
}

bool core_recover_next(struct core_recover *r, struct core_action *out,
		       struct core_letter *letter, uint64_t now_ns)
{
	if (r->failed && !r->fail_told) {
		r->fail_told = true;
		out->type = ACT_FAIL;
		out->lane = r->first_lane;
		out->generation = r->lane[r->first_lane].generation;
		return true;
	}
	while (r->todo != 0) {
		if (lane_next(r, (uint32_t)__builtin_ctzll(r->todo), out, letter, now_ns)) {
			return true;
		}
	}
	if (r->recv != NULL && core_recv_again(r->recv, &out->announce)) {
		out->lane = out->announce.lane;
		out->generation = r->lane[out->lane].generation;
		out->type = ACT_ANNOUNCE;
		ask_begin(&r->lane[out->lane], now_ns);
		return true;
	}
	return false;
}
