/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * world.c - the events, the adversary's loop, and the healing after it.
 */
#include "world.h"

#include <inttypes.h>
#include <string.h>

#include "marks.h"

#define HEAL_BOUND_NS 60000000000ull
#define TIMER_NEAR_NS 3000000000ull

enum {
	HEAL_NS = 1000000,
	HEAL_STILL_MAX = 600, /* rounds without any progress: longer than every timer of the core */
	HEAL_ROUNDS_MAX = 100000,
	REST_ROUNDS = CORE_CREDIT_BLOCKS + 2,
	REST_ROUNDS_MAX = 4 * REST_ROUNDS,
	SPINS_MAX = 20,
	LAP = CORE_SLOTS
};

void world_note(struct world *w, const char *what, uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x =
		w->hash ^ (a + 0x9e3779b97f4a7c15ull * b + (c << 17) + (uint64_t)(uint8_t)what[0]);

	x *= 0xbf58476d1ce4e5b9ull;
	w->hash = x ^ x >> 29;
	if (w->trace != NULL) {
		fprintf(w->trace, "%10" PRIu64 " ns  %-18s %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
			w->now_ns, what, a, b, c);
	}
}

/* ---- the adversary ---- */

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

struct fabric_link *link_pick(struct world *w, const uint64_t mask[FABRIC_LINKS])
{
	uint64_t both = mask[0] | mask[1];
	uint32_t weight[CORE_LANES_MAX], lane = 0, place = 0;

	if ((both & (both - 1)) == 0) {
		lane = (uint32_t)__builtin_ctzll(both);
	} else {
		for (uint32_t i = 0; i < w->lanes; i++) {
			weight[i] = both >> i & 1 ? w->shape.lane_weight[i] : 0;
		}
		lane = choose_weighted(w->choice, weight, w->lanes);
	}
	if ((mask[0] & mask[1]) >> lane & 1) {
		place = choose(w->choice, FABRIC_LINKS);
	} else {
		place = mask[1] >> lane & 1;
	}
	return &w->fabric.link[lane][place];
}

static bool any(const uint64_t mask[FABRIC_LINKS])
{
	return (mask[0] | mask[1]) != 0;
}

/* Links whose send queue an end would poll. */
static bool poll_mask(const struct world *w, enum fabric_end end, uint64_t mask[FABRIC_LINKS])
{
	for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
		mask[g] = w->fabric.can_poll[end][g];
		for (uint64_t left = mask[g]; left != 0 && end == END_SEND; left &= left - 1) {
			uint32_t l = (uint32_t)__builtin_ctzll(left);

			if (!link_polled(w, &w->fabric.link[l][g], end)) {
				mask[g] &= ~(1ull << l);
			}
		}
	}
	return any(mask);
}

/* Which events can come: by the wire, by what the ends are at, and only of ends that run. */
static void enabled(struct world *w, uint32_t *weight)
{
	static const uint8_t sender[] = {EV_PUMP, EV_SEND_TRY, EV_SEND_POLL, EV_SEND_TEST};
	static const uint8_t receiver[] = {EV_RECV_POST, EV_RECV_POLL, EV_RECV_TEST, EV_REFILL,
					   EV_ANN_POLL};
	const struct fabric *f = &w->fabric;
	uint64_t mask[FABRIC_LINKS];

	memcpy(weight, w->shape.weight, sizeof(w->shape.weight));
	weight[EV_SEND_POLL] *= poll_mask(w, END_SEND, mask);
	weight[EV_RECV_POLL] *= any(f->can_take);
	weight[EV_LAND] *= any(f->can_land[END_SEND]);
	weight[EV_ACK] *= any(f->can_ack[END_SEND]);
	weight[EV_ANN_LAND] *= any(f->can_land[END_RECV]);
	weight[EV_ANN_ACK] *= any(f->can_ack[END_RECV]);
	weight[EV_ANN_POLL] *= any(f->can_poll[END_RECV]);
	weight[EV_SEND_TEST] *= w->send_count != 0;
	weight[EV_RECV_TEST] *= w->recv_count != 0;
	weight[EV_RECV_POST] *= recv_can_post(w);
	if (!w->shape.faulty) {
		return;
	}
	weight[EV_FAULT] *= w->shape.faults != 0;
	weight[EV_GET] *= any(f->can_land[END_SEND]);
	weight[EV_LETTER] *= w->owner[0].head != w->owner[0].tail ||
			     w->owner[1].head != w->owner[1].tail;
	weight[EV_JOB] *= (w->owner[0].jobs | w->owner[1].jobs) != 0;
	weight[EV_RETRY] *= retry_possible(w);
	for (uint32_t i = 0; i < sizeof(sender) && w->owner[END_SEND].paused; i++) {
		weight[sender[i]] = 0;
	}
	for (uint32_t i = 0; i < sizeof(receiver) && w->owner[END_RECV].paused; i++) {
		weight[receiver[i]] = 0;
	}
}

static void ev_time(struct world *w);

/* One of the ends that has something of a kind, and runs. -1: none. */
static int end_pick(struct world *w, bool sender, bool receiver)
{
	sender = sender && !w->owner[END_SEND].paused;
	receiver = receiver && !w->owner[END_RECV].paused;
	if (sender && receiver) {
		return (int)choose(w->choice, 2);
	}
	return sender ? END_SEND : receiver ? END_RECV : -1;
}

static void ev_job(struct world *w)
{
	int end = end_pick(w, w->owner[0].jobs != 0, w->owner[1].jobs != 0);
	uint64_t mask[FABRIC_LINKS] = {0, 0};

	if (end >= 0) {
		mask[0] = w->owner[end].jobs;
		owner_job(w, (enum fabric_end)end, link_pick(w, mask)->lane);
	}
}

static void ev_letter(struct world *w)
{
	int end = end_pick(w, w->owner[0].head != w->owner[0].tail,
			   w->owner[1].head != w->owner[1].tail);

	if (end >= 0) {
		owner_letter(w, (enum fabric_end)end);
	}
}

/*
 * A NIC may ack data that is not visible yet. (A record stays in that state for less than it takes
 * to write the next one into its place.)
 */
static void ev_get(struct world *w)
{
	struct fabric_link *k = link_pick(w, w->fabric.can_land[END_SEND]);

	fabric_get(&w->fabric, k, END_SEND, 1 + choose(w->choice, 4));
}

static void step_fault(struct world *w, enum world_event ev)
{
	int end;

	switch ((uint32_t)ev) {
	case EV_GET:
		ev_get(w);
		break;
	case EV_LETTER:
		ev_letter(w);
		break;
	case EV_JOB:
		ev_job(w);
		break;
	case EV_TICK:
	case EV_ACT:
		end = end_pick(w, true, true);
		if (end >= 0 && ev == EV_TICK) {
			owner_tick(w, (enum fabric_end)end);
		} else if (end >= 0) {
			owner_act(w, (enum fabric_end)end);
		}
		break;
	case EV_FAULT:
		fault_draw(w);
		break;
	case EV_MEND:
		fault_mend(w);
		break;
	case EV_RETRY:
		fault_retry(w);
		break;
	case EV_WORD:
		fault_word(w);
		break;
	default:
		fault_pause(w);
		break;
	}
}

static void step(struct world *w)
{
	struct fabric *f = &w->fabric;
	uint64_t mask[FABRIC_LINKS];
	uint32_t weight[EV_COUNT];
	struct fabric_link *k;

	enabled(w, weight);
	enum world_event ev = (enum world_event)choose_weighted(w->choice, weight, EV_COUNT);

	switch ((uint32_t)ev) {
	case EV_RECV_POST:
		ev_recv_post(w);
		break;
	case EV_SEND_TRY:
		ev_send_try(w);
		break;
	case EV_SEND_POLL:
		poll_mask(w, END_SEND, mask);
		k = link_pick(w, mask); /* arguments have no order of evaluation */
		data_poll(w, k, END_SEND, 1 + choose(w->choice, 8));
		break;
	case EV_SEND_TEST:
		send_test(w, choose(w->choice, w->send_count));
		break;
	case EV_RECV_POLL:
		k = link_pick(w, f->can_take);
		data_take(w, k, 1 + choose(w->choice, 8));
		break;
	case EV_RECV_TEST:
		recv_test(w, choose(w->choice, w->recv_count));
		break;
	case EV_REFILL:
		refill(w);
		break;
	case EV_LAND:
		fabric_land(f, link_pick(w, f->can_land[END_SEND]), w->shape.packet);
		break;
	case EV_ACK:
		fabric_ack(f, link_pick(w, f->can_ack[END_SEND]), END_SEND);
		break;
	case EV_ANN_LAND:
		announce_land(w, link_pick(w, f->can_land[END_RECV]));
		break;
	case EV_ANN_ACK:
		fabric_ack(f, link_pick(w, f->can_ack[END_RECV]), END_RECV);
		break;
	case EV_ANN_POLL:
		data_poll(w, link_pick(w, f->can_poll[END_RECV]), END_RECV, 1);
		break;
	case EV_PORT:
		ev_port(w);
		break;
	case EV_TIME:
		ev_time(w);
		break;
	case EV_PUMP:
		pump(w);
		break;
	default:
		step_fault(w, ev);
	}
	if (w->shape.faulty) {
		owner_after(w, END_SEND);
		owner_after(w, END_RECV);
	}
	w->now_ns += w->shape.step_ns;
	w->steps++;
}

/* ---- healing ---- */

bool world_done(const struct world *w)
{
	return w->check.next == w->shape.messages && w->recv_count == 0 && w->send_count == 0;
}

/* Every home lane is in use at both ends, and nothing of recovery is under way. */
bool world_well(const struct world *w)
{
	uint64_t home = (2ull << (w->cfg_send.lane_count - 1)) - 1;

	for (uint32_t e = 0; e < 2 && w->shape.faulty; e++) {
		const struct world_owner *o = &w->owner[e];

		if (o->head != o->tail || o->jobs != 0 || (o->open & home) != home) {
			return false;
		}
	}
	return true;
}

static uint64_t progress(const struct world *w)
{
	return w->check.recv_done + w->check.send_done + w->check.next + w->check.head + w->moves;
}

/* What has been received is visible; the rest lands where no cut is in the way. */
static void link_drain(struct world *w, struct fabric_link *k, bool got_only)
{
	struct fabric *f = &w->fabric;
	uint32_t l = k->lane, g = k->place;

	while ((f->can_land[END_SEND][g] >> l & 1) != 0 && !world_failed(w) &&
	       (!got_only || k->q[END_SEND].got != k->q[END_SEND].landed)) {
		fabric_land(f, k, UINT32_MAX);
	}
	while ((f->can_land[END_RECV][g] >> l & 1) != 0 && !world_failed(w) &&
	       (!got_only || k->q[END_RECV].got != k->q[END_RECV].landed)) {
		announce_land(w, k);
	}
	for (uint32_t e = 0; e < 2 && !got_only; e++) {
		if (f->can_ack[e][g] >> l & 1) {
			fabric_ack(f, k, (enum fabric_end)e);
		}
	}
}

static void wire_drain(struct world *w, bool got_only)
{
	for (uint32_t l = 0; l < w->lanes; l++) {
		for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
			link_drain(w, &w->fabric.link[l][g], got_only);
		}
	}
}

static void polls_drain(struct world *w)
{
	struct fabric *f = &w->fabric;
	uint64_t mask[2][FABRIC_LINKS];

	for (uint32_t l = 0; l < w->lanes; l++) {
		for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
			struct fabric_link *k = &f->link[l][g];

			poll_mask(w, END_SEND, mask[0]);
			if (mask[0][g] >> l & 1 && !w->owner[END_SEND].paused) {
				data_poll(w, k, END_SEND, UINT32_MAX);
			}
			if (w->owner[END_RECV].paused) {
				continue;
			}
			if (f->can_take[g] >> l & 1) {
				data_take(w, k, UINT32_MAX);
			}
			if (f->can_poll[END_RECV][g] >> l & 1) {
				data_poll(w, k, END_RECV, UINT32_MAX);
			}
		}
	}
}

/*
 * Time jumps. What a live NIC has acked does not stay invisible for long; where nothing is broken
 * all lanes move alike.
 */
static void ev_time(struct world *w)
{
	uint64_t due = w->shape.faulty ? owner_deadline_ns(w) : 0;

	if (due > w->now_ns && due < w->now_ns + TIMER_NEAR_NS && choose(w->choice, 2) == 1) {
		w->now_ns = due;
	} else {
		w->now_ns += 1ull << choose(w->choice, 28);
	}
	if (w->shape.calm) {
		if (choose(w->choice, 4) != 3) { /* else nothing moves at all */
			wire_drain(w, false);
		}
		polls_drain(w);
	} else if (w->shape.faulty) {
		wire_drain(w, true);
	}
}

/* Looking at the timers must come to something, or leave none due. */
static void spin_check(struct world *w, struct world_owner *o, uint64_t moves)
{
	if (o->failed || w->moves != moves ||
	    core_recover_deadline_ns(&o->recover) > w->now_ns) {
		o->spins = 0;
	} else if (++o->spins > SPINS_MAX) {
		check_fail(&w->check, "spin", "a timer is due for ever, for nothing");
	}
}

static void owners_run(struct world *w)
{
	uint64_t moves = w->moves;

	for (uint32_t e = 0; e < 2 && !world_failed(w); e++) {
		enum fabric_end end = (enum fabric_end)e;
		struct world_owner *o = &w->owner[e];

		/* Those that are there: one may be put off until a job is over. */
		for (uint32_t n = o->tail - o->head; n != 0 && !world_failed(w); n--) {
			owner_letter(w, end);
			owner_act(w, end);
		}
		for (uint64_t left = o->jobs; left != 0; left &= left - 1) {
			uint32_t lane = (uint32_t)__builtin_ctzll(left);

			while (o->job[lane].kind != JOB_NONE && !world_failed(w)) {
				owner_job(w, end, lane);
			}
		}
		owner_tick(w, end);
		owner_act(w, end);
		spin_check(w, o, moves);
	}
	fault_retry(w);
}

static void heal_round(struct world *w)
{
	while (ev_recv_post(w)) {
	}
	wire_drain(w, false);
	for (uint32_t tag = 0; tag < w->shape.tags; tag++) {
		while (send_try(w, tag)) {
		}
	}
	pump(w);
	wire_drain(w, false);
	polls_drain(w);
	refill(w);
	for (uint32_t i = w->send_count; i-- > 0 && !world_failed(w);) {
		send_test(w, i);
	}
	for (uint32_t i = w->recv_count; i-- > 0 && !world_failed(w);) {
		recv_test(w, i);
	}
	if (w->shape.faulty) {
		owners_run(w);
	}
	w->now_ns += HEAL_NS;
}

/* When nothing moves, time goes on to the next timer. */
static void time_pass(struct world *w)
{
	uint64_t due = owner_deadline_ns(w);

	if (w->shape.faulty && due != UINT64_MAX && due > w->now_ns) {
		w->now_ns = due;
	}
}

static bool is_at_rest(const struct world *w)
{
	return fabric_idle(&w->fabric) && core_send_deadline_ns(&w->core_send) == UINT64_MAX;
}

static void heal_check(struct world *w)
{
	if (!is_at_rest(w)) {
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

static bool comm_failed(const struct world *w)
{
	return w->owner[0].failed || w->owner[1].failed;
}

static void stuck(struct world *w)
{
	check_end(&w->check);
	check_fail(&w->check, "stuck",
		   "%" PRIu64 " of %u messages were posted; lanes in use: %" PRIx64
		   " at the sender, %" PRIx64 " at the receiver",
		   w->check.next, w->shape.messages, w->owner[0].open, w->owner[1].open);
}

static void heal(struct world *w)
{
	uint64_t before = 0, end_ns = w->now_ns + HEAL_BOUND_NS;
	uint32_t still = 0, rounds = 0;

	w->healing = true;
	w->heal_ns = w->now_ns;
	fault_heal(w);
	world_note(w, "heal", w->check.next, w->check.recv_done, w->check.send_done);
	while (!world_failed(w) && !comm_failed(w) && !(world_done(w) && world_well(w))) {
		heal_round(w);
		still = progress(w) == before ? still + 1 : 0;
		before = progress(w);
		if (still > 2) {
			time_pass(w);
		}
		if ((still > HEAL_STILL_MAX && !w->shape.faulty) || ++rounds > HEAL_ROUNDS_MAX ||
		    (w->shape.faulty && w->now_ns > end_ns)) {
			stuck(w);
		}
	}
	if (comm_failed(w)) {
		return; /* with good reason, or it would be a breach */
	}
	/* What is still told, credits of each block; a lane may fail only now: that begins anew. */
	for (uint32_t i = 0; i < REST_ROUNDS || (i < REST_ROUNDS_MAX && !is_at_rest(w)); i++) {
		heal_round(w);
	}
	heal_check(w);
}

/* All lanes are cut for good: if there is anything to do, both halves fail in time. */
static void outage(struct world *w)
{
	uint64_t end_ns = w->now_ns + w->shape.times.outage_ns + HEAL_BOUND_NS;

	w->healing = true;
	w->heal_ns = w->now_ns;
	fault_cut_all(w);
	world_note(w, "outage", w->check.next, w->check.recv_done, w->check.send_done);
	while (!world_failed(w) && !world_done(w) &&
	       !(w->owner[0].failed && w->owner[1].failed)) {
		heal_round(w);
		time_pass(w);
		if (w->now_ns > end_ns) {
			check_fail(&w->check, "outage", "all lanes are cut, %s does not fail",
				   w->owner[0].failed ? "the receiver" : "the sender");
		}
	}
}

/* When all is done, all slots are free again: a whole table of receives must be taken at once. */
static void lap(struct world *w)
{
	w->shape.messages += LAP;
	w->shape.bytes_max = 8;
	w->shape.group_max = 1;
	w->shape.recv_open_max = LAP;
	w->shape.send_open_max = LAP;
	for (uint32_t i = 0; i < LAP && !world_failed(w); i++) {
		if (!ev_recv_post(w)) {
			check_fail(&w->check, "leak", "irecv %u of %u refused on an idle comm", i,
				   LAP);
		}
		if (i % 8 == 0) {
			wire_drain(w, false);
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
	fabric_init(&w->fabric, &w->check, w->lanes);
	w->fabric.cleans = w->shape.cleans;
	w->fabric.credits_change = w->shape.faulty;
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

		for (uint32_t e = 0; e < 2; e++) {
			fabric_connect(&w->fabric,
				       fabric_create(&w->fabric, i, 1, (enum fabric_end)e),
				       (enum fabric_end)e);
			w->owner[e].generation[i] = 1;
		}
		fabric_recv(&w->fabric, fabric_link(&w->fabric, i, 1), credit);
		core_recv_lane_open(&w->core_recv, i, 1, credit);
		core_send_lane_open(&w->core_send, i, 1, credit);
	}
	owner_init(w);
}

void world_begin(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace)
{
	memset(w, 0, offsetof(struct world, staging));
	w->choice = choice;
	w->trace = trace;
	w->now_ns = 1000000000;
	shape_draw(w, scope);
	w->lanes = w->cfg_send.lane_count + w->cfg_send.standby_count;
	world_init(w);
}

void world_run(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace)
{
	world_begin(w, choice, scope, trace);
	while (!world_failed(w) && !comm_failed(w) && w->steps < w->shape.steps &&
	       !choice_spent(choice) && !world_done(w)) {
		step(w);
	}
	if (!world_failed(w) && !comm_failed(w)) {
		if (w->shape.outage) {
			outage(w);
		} else {
			heal(w);
		}
	}
	if (!world_failed(w) && !comm_failed(w) && !w->shape.outage && scope == SCOPE_RANDOM &&
	    choose(choice, 8) == 7) {
		lap(w);
	}
	world_note(w, "end", w->check.recv_done, w->check.bytes, world_failed(w));
}
