/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shape.c - what a run looks like: the comm, the messages, and which faults the adversary has.
 *
 * Swarm testing: each run has only some of the events, with weights far apart, since a run that has
 * a little of everything seldom gets deep into anything.
 */
#include <string.h>

#include "world.h"

enum {
	BYTES_BIG = 1 << 20,
	GHOSTS_MAX = 8
};

static uint32_t pick(struct world *w, const uint32_t *values, uint32_t n)
{
	return values[choose(w->choice, n)];
}

#define PICK(w, ...)                                                                               \
	pick(w, (const uint32_t[]){__VA_ARGS__},                                                   \
	     sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static bool coin(struct world *w, uint32_t one_in)
{
	return choose(w->choice, one_in) == one_in - 1;
}

static void ports_draw(struct world *w)
{
	bool known = coin(w, 2);

	for (uint32_t e = 0; e < 2; e++) {
		struct world_end *end = &w->end[e];

		memset(end, 0, sizeof(*end));
		end->load_kept = coin(w, 2);
		for (uint32_t side = 0; side < 2; side++) {
			for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
				end->port[side][i].mbps =
					known ? PICK(w, 100000, 10, 1000, 400000) : 0;
			}
		}
	}
}

static void config_point(struct world *w, struct core_config *cfg, struct world_end *end)
{
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		cfg->local[i] = &end->port[0][i];
		cfg->remote[i] = &end->port[1][i];
		cfg->load[i] = end->load_kept ? &end->load[i] : NULL;
	}
	cfg->signal_epoch = &end->epoch;
	(void)w;
}

/* Paths pair the ports one to one, or all with all when an end has more of them. */
static void lanes_draw(struct world *w)
{
	struct core_config *s = &w->cfg_send, *r = &w->cfg_recv;
	uint32_t ports = PICK(w, 1, 2, 4, 3, 2, 4, 8),
		 remote = coin(w, 4) ? PICK(w, 1, 2, 4) : ports;
	uint32_t paths = ports > remote ? ports : remote;
	uint32_t per_path = PICK(w, 1, 1, 1, 2, 4, 8);

	s->port_count = ports;
	s->path_count = paths;
	s->lane_count = paths * per_path;
	*r = *s;
	r->port_count = remote;
	for (uint32_t i = 0; i < s->lane_count; i++) {
		s->lane[i].port = (uint8_t)(i % paths % ports);
		s->lane[i].remote = (uint8_t)(i % paths % remote);
		r->lane[i].port = s->lane[i].remote;
		r->lane[i].remote = s->lane[i].port;
	}
}

/* Lanes between ports that are nobody's home. */
static void standby_draw(struct world *w)
{
	struct core_config *s = &w->cfg_send, *r = &w->cfg_recv;
	uint32_t n = PICK(w, 0, 0, 1, 2), first = s->lane_count;

	if (s->port_count == CORE_PORTS_MAX || r->port_count == CORE_PORTS_MAX ||
	    first + n > CORE_LANES_MAX) {
		return;
	}
	s->standby_count = r->standby_count = n;
	for (uint32_t i = first; i < first + n; i++) {
		s->lane[i].port = r->lane[i].remote = (uint8_t)s->port_count;
		s->lane[i].remote = r->lane[i].port = (uint8_t)r->port_count;
	}
}

static void config_draw(struct world *w)
{
	struct core_config *s = &w->cfg_send;

	memset(s, 0, sizeof(*s));
	s->small_bytes = PICK(w, 4096, 0, 128, 512, 16384, 65536);
	s->window_us = PICK(w, 1000, 1, 10, 100, 5000);
	s->pressure_max_pct = PICK(w, 25, 0, 50);
	s->hash = PICK(w, 0, 1, 12345, 0xffffffff);
	s->split_all = coin(w, 8);
	s->observe = coin(w, 16);
	s->adaptive_routing = coin(w, 6);
	s->ar_threshold = PICK(w, 8192, 0, 128, 1000);
	lanes_draw(w);
	config_point(w, &w->cfg_send, &w->end[0]);
	config_point(w, &w->cfg_recv, &w->end[1]);
}

static void weights_draw(struct world *w)
{
	static const uint32_t base[EV_COUNT] = {
		[EV_PUMP] = 4,	    [EV_RECV_POST] = 8, [EV_SEND_TRY] = 12, [EV_SEND_POLL] = 8,
		[EV_SEND_TEST] = 8, [EV_RECV_POLL] = 8, [EV_RECV_TEST] = 8, [EV_REFILL] = 4,
		[EV_LAND] = 16,	    [EV_ACK] = 8,	[EV_ANN_LAND] = 12, [EV_ANN_ACK] = 4,
		[EV_ANN_POLL] = 4,  [EV_PORT] = 1,	[EV_TIME] = 1,	    [EV_GET] = 4,
		[EV_LETTER] = 8,    [EV_JOB] = 8,	[EV_TICK] = 4,	    [EV_ACT] = 4,
		[EV_FAULT] = 1,	    [EV_MEND] = 1,	[EV_RETRY] = 4,	    [EV_WORD] = 2,
	};
	struct world_shape *s = &w->shape;

	for (uint32_t i = 0; i < EV_COUNT; i++) {
		s->weight[i] = base[i] * PICK(w, 16, 16, 16, 64, 4, 1);
	}
	if (coin(w, 2)) {
		s->weight[EV_PORT] = 0;
	}
	if (coin(w, 2)) {
		s->weight[EV_TIME] = 0;
	}
	for (uint32_t i = 0; i < CORE_LANES_MAX; i++) {
		s->lane_weight[i] = 64;
	}
	if (coin(w, 2)) {
		for (uint32_t i = 0; i < w->cfg_send.lane_count; i++) {
			s->lane_weight[i] = PICK(w, 64, 16, 4, 1);
		}
	}
}

/*
 * One fault, and a fence that takes as long as all slots take to be used again; most likely on the
 * lane that announcements are written on, which is the first.
 */
static void fault_slowly(struct world *w)
{
	struct world_shape *s = &w->shape;
	uint32_t still = PICK(w, 1, 0); /* of a lane: next to nothing, or nothing, moves */

	s->faults = 1;
	s->lates = true;
	s->messages = 900;
	s->steps = 12000;
	s->bytes_max = 64;
	s->group_max = 1;
	s->recv_open_max = s->send_open_max = CORE_SLOTS;
	s->weight[EV_JOB] = 1;
	s->weight[EV_ANN_LAND] *= 4;
	w->cfg_send.hash = w->cfg_recv.hash = 0;
	for (uint32_t i = 0; i < w->cfg_send.lane_count; i++) {
		s->lane_weight[i] = i == 0 ? still : 64;
	}
}

/* Which ways to break there are, and how patient the ends are with each other. */
static void faults_draw(struct world *w)
{
	struct world_shape *s = &w->shape;

	s->faulty = true;
	s->faults = PICK(w, 1, 2, 4, 16);
	s->flushes = coin(w, 2);
	s->cleans = coin(w, 2);
	s->lates = coin(w, 2);
	s->lazy_act = coin(w, 4);
	s->job_fails = PICK(w, 0, 0, 4, 2);
	s->post_fails = PICK(w, 0, 0, 256, 32);
	s->liar = coin(w, 8);
	s->outage = coin(w, 16);
	s->ghosts = 0;
	s->times.stall_ns = PICK(w, 100000000, 100000000, 10000000);
	s->times.retest_ns = PICK(w, 1000000000, 10000000);
	s->times.verify_ns = PICK(w, 500000000, 10000000);
	s->times.outage_ns = PICK(w, 120, 5) * 1000000000ull;
	s->weight[EV_PAUSE] = coin(w, 4) ? 1 : 0;
	if (s->liar) { /* much is acked before it is visible */
		s->weight[EV_GET] = 256;
		s->weight[EV_ACK] = 256;
	}
	if (coin(w, 10)) {
		fault_slowly(w);
	}
	if (coin(w, 8)) {
		s->calm = true;
		s->faults = s->post_fails = s->job_fails = 0;
		s->liar = s->outage = false;
		s->times.stall_ns = 100000000;
		s->weight[EV_PORT] = 0;
		s->weight[EV_PAUSE] = 2;
		s->weight[EV_TIME] = 16;
		/* Lanes move alike: at EV_TIME. */
		s->weight[EV_LAND] = s->weight[EV_ACK] = s->weight[EV_GET] = 0;
		s->weight[EV_ANN_LAND] = s->weight[EV_ANN_ACK] = 0;
	}
	standby_draw(w);
}

/* A run in thousands is long and plain: sequence numbers and credit counts go round. */
static void shape_long(struct world *w)
{
	struct world_shape *s = &w->shape;

	s->messages = 66500;
	s->steps = 4000000;
	s->bytes_max = 64;
	s->recv_open_max = CORE_SLOTS;
	s->send_open_max = CORE_SLOTS;
	s->lazy_pump = false;
	w->cfg_send.port_count = w->cfg_recv.port_count = 1;
	w->cfg_send.path_count = w->cfg_recv.path_count = 1;
	w->cfg_send.lane_count = w->cfg_recv.lane_count = 1;
	w->cfg_send.adaptive_routing = w->cfg_recv.adaptive_routing = false;
	memset(w->cfg_send.lane, 0, sizeof(w->cfg_send.lane));
	memset(w->cfg_recv.lane, 0, sizeof(w->cfg_recv.lane));
	s->group_max = 1;
	for (uint32_t i = 0; i < EV_COUNT; i++) {
		s->weight[i] = i >= EV_PORT ? 0 : 8;
	}
}

static void shape_small(struct world *w)
{
	struct world_shape *s = &w->shape;
	static const uint32_t events[] = {EV_PUMP,	EV_RECV_POST, EV_SEND_TRY,  EV_SEND_POLL,
					  EV_SEND_TEST, EV_RECV_POLL, EV_RECV_TEST, EV_LAND,
					  EV_ACK,	EV_ANN_LAND};

	memset(s, 0, sizeof(*s));
	s->messages = 4;
	s->steps = CHOICE_ENUM_MAX;
	s->step_ns = 1000;
	s->tags = 2;
	s->group_max = 2;
	s->bytes_max = 512;
	s->packet = 256;
	s->recv_open_max = s->send_open_max = 4;
	s->credit = CORE_RQ_WRS;
	s->fixed_sizes = true;
	for (uint32_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		s->weight[events[i]] = 1;
	}
	for (uint32_t i = 0; i < CORE_LANES_MAX; i++) {
		s->lane_weight[i] = 1;
	}
	memset(&w->end, 0, sizeof(w->end));
	memset(&w->cfg_send, 0, sizeof(w->cfg_send));
	w->cfg_send.small_bytes = 128;
	w->cfg_send.window_us = 1000;
	w->cfg_send.port_count = w->cfg_send.path_count = w->cfg_send.lane_count = 2;
	w->cfg_send.lane[1].port = w->cfg_send.lane[1].remote = 1;
	w->cfg_recv = w->cfg_send;
	config_point(w, &w->cfg_send, &w->end[0]);
	config_point(w, &w->cfg_recv, &w->end[1]);
}

void shape_draw(struct world *w, enum world_scope scope)
{
	struct world_shape *s = &w->shape;

	if (scope != SCOPE_RANDOM) {
		shape_small(w);
		s->pairs = scope == SCOPE_STATES;
		s->faulty = s->pairs;
		s->times = (struct core_recover_times){.stall_ns = 100000000,
						       .retest_ns = 1000000000,
						       .verify_ns = 500000000,
						       .outage_ns = 1ull << 60};
		s->messages = s->pairs ? 2 : s->messages;
		s->step_ns = s->pairs ? 0 : s->step_ns;
		return;
	}
	memset(s, 0, sizeof(*s));
	bool faulty = coin(w, 2);

	ports_draw(w);
	config_draw(w);
	s->messages = PICK(w, 8, 20, 60, 100, 300, 600);
	s->steps = PICK(w, 500, 1000, 2000, 4000) + 4 * s->messages;
	s->step_ns = PICK(w, 500, 50, 5000, 50000);
	s->tags = PICK(w, 1, 2, 3, WORLD_TAGS);
	s->group_max = PICK(w, 1, 1, 2, 3, CORE_GROUP_MAX);
	s->bytes_max = PICK(w, 512, 4096, 0, 32768, 262144, BYTES_BIG);
	s->packet = s->bytes_max > 65536 ? PICK(w, 16384, 4096) : PICK(w, 1024, 256, 4096);
	s->recv_open_max = PICK(w, CORE_SLOTS, 8, 32, CORE_SLOTS);
	s->send_open_max = PICK(w, CORE_SLOTS, CORE_GROUP_MAX, 16, CORE_SLOTS);
	s->credit = PICK(w, CORE_RQ_WRS, CORE_RQ_WRS, 3 * CORE_RQ_BATCH);
	s->ghosts = s->credit + GHOSTS_MAX <= CORE_RQ_WRS && coin(w, 2) ? GHOSTS_MAX : 0;
	s->quick = coin(w, 2);
	s->torn = coin(w, 2);
	s->lazy_pump = coin(w, 3);
	s->lazy_refill = coin(w, 3);
	s->skip_completions = coin(w, 3);
	weights_draw(w);
	s->times = (struct core_recover_times){
		.stall_ns = 1ull << 60, .retest_ns = 1, .verify_ns = 1, .outage_ns = 1ull << 60};
	for (uint32_t i = EV_GET; i < EV_COUNT && !faulty; i++) {
		s->weight[i] = 0;
	}
	if (faulty) {
		faults_draw(w);
	}
	if (s->bytes_max == BYTES_BIG && s->messages > 100) {
		s->messages = 100;
	}
	if (coin(w, 256)) {
		s->messages = 12;
		s->bytes_max = CHECK_BUFFER_BYTES;
		s->packet = 65536;
	} else if (!faulty && coin(w, 2048)) {
		shape_long(w);
	}
}

static uint32_t bytes_draw(struct world *w)
{
	uint32_t max = w->shape.bytes_max, small = w->cfg_send.small_bytes;

	switch (choose(w->choice, 7)) {
	case 0:
		return max < 8 ? max : 8;
	case 1:
		return 0;
	case 2:
		return choose(w->choice, max + 1);
	case 3:
		return choose(w->choice, max / CHECK_LINE + 1) * CHECK_LINE;
	case 4:
		return choose(w->choice, (small < max ? small : max) + 1);
	case 5:
		return choose(w->choice, (max < 256 ? max : 256) + 1);
	default:
		return max;
	}
}

static void script_member(struct world *w, struct world_script *m)
{
	m->tag = choose(w->choice, w->shape.tags);
	m->send_bytes = bytes_draw(w);
	switch (choose(w->choice, 6)) {
	case 3:
		m->recv_bytes = bytes_draw(w);
		break;
	case 4:
		m->recv_bytes = m->send_bytes / 2;
		break;
	case 5:
		m->recv_bytes = w->shape.bytes_max;
		break;
	default:
		m->recv_bytes = m->send_bytes;
	}
}

/* Small scope: one plain message, a group of two with different tags, one of several pieces. */
static void script_fixed(struct world *w)
{
	static const struct world_script fixed[] = {
		{.tag = 0, .recv_bytes = 512, .send_bytes = 512, .n = 1, .index = 0},
		{.tag = 0, .recv_bytes = 128, .send_bytes = 100, .n = 2, .index = 0},
		{.tag = 1, .recv_bytes = 64, .send_bytes = 128, .n = 2, .index = 1},
		{.tag = 1, .recv_bytes = 0, .send_bytes = 0, .n = 1, .index = 0},
	};

	memcpy(w->script, fixed, sizeof(fixed));
	if (w->shape.pairs) { /* two of two pieces each */
		w->script[1] = w->script[0];
	}
	w->script_end = w->shape.messages;
}

void script_reach(struct world *w, uint64_t end)
{
	if (w->shape.fixed_sizes) {
		if (w->script_end == 0) {
			script_fixed(w);
		}
		return;
	}
	while (w->script_end < end && w->script_end < w->shape.messages) {
		uint32_t left = (uint32_t)(w->shape.messages - w->script_end);
		uint32_t n = 1 + choose(w->choice, w->shape.group_max);

		n = n < left ? n : left;
		for (uint32_t i = 0; i < n; i++) {
			struct world_script *m = &w->script[w->script_end++ % SCRIPT_RING];

			script_member(w, m);
			m->n = (uint8_t)n;
			m->index = (uint8_t)i;
		}
	}
}
