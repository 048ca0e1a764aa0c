/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plan.c - the policy.
 *
 *   PLAN_ONE    a small message, or one lane: one piece on the path that is least loaded; it stays
 *               with a path until another is clearly better, so that few queues need polling
 *   PLAN_EQUAL  equal lanes with room for it: one equal piece per path, on its next lane in turn
 *   PLAN_LATE   finer pieces, each given at the last moment to the lane with the earliest expected
 *               finish among those with room; a lane so slow that its piece would end after
 *               everything else does is left out, except for a probing piece now and then
 */
#include "plan.h"

#define NS_PER_MS 1000000ull

enum {
	PIECE_MIN = CORE_MEASURED_BYTES, /* of late pieces */
	PIECE_MAX = 4 << 20,
	WINDOW_MIN = 2 * PIECE_MIN,
	/* Acks wait behind what the port receives: a lane with less is dry before that is seen. */
	WINDOW_MIN_TWO_WAY = 8 * PIECE_MIN,
	TWO_WAY_SAMPLES = 16, /* a port that received stays one that does for so many */
	WINDOW_MAX = 64 << 20,
	/* of a lane that has not shown its rate yet; grows with what it carries */
	WINDOW_UNMEASURED = 256 << 10,
	WINDOW_GROWTH_MAX = 10,      /* times the configured window */
	SAMPLES_TRUSTED = 4,
	SAMPLE_BYTES = 256 << 10,    /* a measurement is this many bytes ... */
	SAMPLE_NS = 2000000,         /* ... or this much busy time, whichever comes first, */
	SAMPLE_SURE = 4,             /* and this many times longer than what is unknown of it */
	SAMPLE_BYTES_MAX = 16 << 20, /* one still in doubt after this is dropped */
	PHASE_NS = 50000000,         /* pressure is taken this often */
	LOOK_EVERY = 40,             /* phases; at the end of each round a pressed lane ... */
	LOOK_PHASES = 5,             /* is not paced for these, so that its rate shows again */
	RESTED_PHASES = 2,           /* after a rest a rate shows nothing for one phase at least */
	CALM_SAMPLES = 16,           /* of which the calm cost is about the mean */
	CALM_NS = 100000000,         /* the window shrinks by an eighth each such time */
	PROBE_NS = 200000000,        /* a lane left out gets a piece after this */
	UNEQUAL_VOTES = 3,
	COST_DEFAULT = 52428,        /* 10 Gbit/s, of a port of unknown speed */
	SMALL_RECHECK = 16           /* small messages between looks at other paths */
};

static uint64_t finish_ns(uint64_t bytes, uint32_t cost_ns)
{
	return bytes * cost_ns / CORE_COST_UNIT;
}

static void window_set(struct core_send *c, struct core_lane *lane)
{
	uint64_t w = (uint64_t)c->window_us * 1000 * CORE_COST_UNIT / lane->cost_ns;
	uint64_t min = lane->two_way != 0 ? WINDOW_MIN_TWO_WAY : WINDOW_MIN;

	if (lane->samples < SAMPLES_TRUSTED && w > WINDOW_UNMEASURED + lane->total_bytes / 4) {
		w = WINDOW_UNMEASURED + lane->total_bytes / 4;
	}
	w = w < min ? min : w;
	lane->window_bytes = (uint32_t)(w > WINDOW_MAX ? WINDOW_MAX : w);
}

/* Did the lane's port receive pieces since the last measurement? */
static void look_both_ways(const struct core_send *c, struct core_lane *lane)
{
	const struct core_load *load = c->cfg.load[lane->port];
	uint32_t rx = load == NULL ? 0
				   : (uint32_t)__atomic_load_n(&load->rx_bytes, __ATOMIC_RELAXED);

	if (rx != lane->rx_seen) {
		lane->rx_seen = rx;
		lane->two_way = TWO_WAY_SAMPLES;
	} else if (lane->two_way != 0) {
		lane->two_way--;
	}
}

static uint32_t lane_pressure(const struct core_send *c, const struct core_lane *lane)
{
	uint32_t p = core_word(&c->cfg.local[lane->port]->pressure);
	uint32_t remote = core_word(&c->cfg.remote[lane->remote]->pressure);

	p = remote > p ? remote : p;
	if (c->newest != UINT64_MAX) {
		uint32_t told = c->ring[core_slot(c->newest)].pressure[lane->remote];

		p = told > p ? told : p;
	}
	return p > 255 ? 255 : p;
}

/* Cost with pressure: at most pressure_max_pct off the rate. */
static uint32_t tilted(const struct core_send *c, const struct core_lane *lane, uint32_t cost_ns)
{
	uint64_t off = (uint64_t)lane->pressure * c->cfg.pressure_max_pct;

	return (uint32_t)((uint64_t)cost_ns * 25500 / (25500 - off));
}

/*
 * A lane that is paced rests, and then its rate cannot be measured: what a queue or a token bucket
 * gave back meanwhile makes it look faster, the latency of single pieces slower. So such samples
 * are dropped, and now and then the lane runs without pacing for a look.
 */
static bool lane_looks(const struct core_lane *lane)
{
	return lane->pressed >= LOOK_EVERY - LOOK_PHASES;
}

/*
 * The costs moved: are the active lanes still alike? Slow to say no, slower to say yes again. Once
 * a lane is measured, nominal costs are not compared any more; a doubtful measurement only bounds a
 * cost from above, so it can show that another lane is slower, never that its own is.
 */
static void judge(struct core_send *c)
{
	uint32_t min = UINT32_MAX, max = 0, nominal_min = UINT32_MAX, nominal_max = 0;

	c->rate_sum = 0;
	for (uint64_t left = c->active; left != 0; left &= left - 1) {
		struct core_lane *lane = &c->lane[__builtin_ctzll(left)];
		uint32_t cost = lane->bound_ns != 0 ? lane->bound_ns : UINT32_MAX;
		uint32_t eff = tilted(c, lane, lane->cost_ns);

		lane->pace_ns = 0;
		lane->cost_eff_ns = lane->cost_ns;
		if (lane->pressure != 0 && !lane_looks(lane)) {
			lane->cost_eff_ns = eff;
			lane->pace_ns = tilted(c, lane, lane->calm_cost_ns);
		}
		c->rate_sum += CORE_COST_UNIT * NS_PER_MS / lane->cost_eff_ns;
		if (lane->samples >= SAMPLES_TRUSTED) {
			cost = eff;
			max = cost > max ? cost : max;
		}
		min = cost < min ? cost : min;
		nominal_min = eff < nominal_min ? eff : nominal_min;
		nominal_max = eff > nominal_max ? eff : nominal_max;
	}
	if (max == 0) {
		min = nominal_min;
		max = nominal_max;
	}
	if (max > min + min / 2) {
		c->unequal_votes = UNEQUAL_VOTES;
	} else if (max > min + min / 8 && c->unequal_votes < UNEQUAL_VOTES) {
		c->unequal_votes++;
	} else if (max <= min + min / 16 && c->unequal_votes > 0) {
		c->unequal_votes--;
	}
	if (c->unequal_votes == UNEQUAL_VOTES) {
		c->equal = false;
	} else if (c->unequal_votes == 0) {
		c->equal = true;
	}
}

static bool lane_usable(const struct core_send *c, const struct core_lane *lane)
{
	return lane->state == LANE_ACTIVE && !core_word(&c->cfg.local[lane->port]->down) &&
	       !core_word(&c->cfg.remote[lane->remote]->down);
}

static bool lane_drained(const struct core_send *c, const struct core_lane *lane)
{
	return core_word(&c->cfg.local[lane->port]->drain) ||
	       core_word(&c->cfg.remote[lane->remote]->drain);
}

void core_send_signal(struct core_send *c)
{
	uint64_t usable = 0, wanted = 0;

	c->epoch = __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < c->lanes_total; i++) {
		if (lane_usable(c, &c->lane[i])) {
			usable |= 1ull << i;
			wanted |= lane_drained(c, &c->lane[i]) ? 0 : 1ull << i;
		}
	}
	wanted &= c->all; /* standby lanes: as if they were drained */
	c->active = wanted != 0 ? wanted : usable;
	judge(c);
}

/*
 * At its phase a comm takes the pressure of all paths anew: not all comms at once, or they swing.
 */
static void phase(struct core_send *c, uint64_t now_ns)
{
	uint64_t offset = c->cfg.hash % PHASE_NS;

	for (uint32_t i = 0; i < c->lanes_total; i++) {
		struct core_lane *lane = &c->lane[i];

		lane->pressure = (uint8_t)lane_pressure(c, lane);
		lane->pressed = (uint8_t)((lane->pressed + 1) % LOOK_EVERY);
		if (lane->pressure == 0) {
			lane->pressed = 0;
		}
		if (lane->rested != 0) {
			lane->rested--;
		}
	}
	c->phase_ns = (now_ns - offset) / PHASE_NS * PHASE_NS + offset + PHASE_NS;
}

static void measure_drop(struct core_lane *lane)
{
	lane->acc_ns = 0;
	lane->acc_bytes = 0;
	lane->err_ns = 0;
	lane->look_bytes = SAMPLE_BYTES;
}

void plan_lane_reset(struct core_send *c, uint32_t l)
{
	struct core_lane *lane = &c->lane[l];
	uint32_t here = core_word(&c->cfg.local[lane->port]->mbps);
	uint32_t there = core_word(&c->cfg.remote[lane->remote]->mbps);
	uint32_t mbps = there != 0 && (here == 0 || there < here) ? there : here;
	uint32_t cost = mbps == 0 ? COST_DEFAULT : 524288000u / mbps;

	lane->cost_ns = cost == 0 ? 1 : cost;
	lane->cost_eff_ns = lane->cost_ns;
	lane->calm_cost_ns = lane->cost_ns;
	lane->samples = 0;
	lane->bound_ns = 0;
	lane->pressed = 0;
	lane->rested = 0;
	measure_drop(lane);
	lane->two_way = 0;
	window_set(c, lane);
}

/* One sample moves it by a sixteenth of itself at most, but for the first ones. */
static void calm_take(struct core_lane *lane, uint64_t sample)
{
	uint64_t calm = lane->calm_cost_ns;

	if (lane->samples < CALM_SAMPLES) {
		calm = (calm * lane->samples + sample) / (lane->samples + 1);
	} else {
		sample = sample > 2 * calm ? 2 * calm : sample;
		calm = (calm * (CALM_SAMPLES - 1) + sample + CALM_SAMPLES / 2) / CALM_SAMPLES;
	}
	lane->calm_cost_ns = (uint32_t)(calm < 1 ? 1 : calm);
}

/* After a look that found it in doubt, the next look is at twice the bytes. */
static bool sample_long_enough(const struct core_lane *lane)
{
	return lane->acc_bytes >= lane->look_bytes ||
	       (lane->acc_ns >= SAMPLE_NS && lane->look_bytes == SAMPLE_BYTES);
}

/*
 * Close the measurement that has run on a lane, if it is long enough and known well enough. One
 * that stays in doubt (the lane is faster than it is polled) says nothing about its rate.
 */
static __attribute__((cold)) void lane_measure(struct core_send *c, struct core_lane *lane)
{
	if (lane->acc_bytes == 0 || !sample_long_enough(lane)) {
		return;
	}
	look_both_ways(c, lane);
	if (lane->rested != 0) {
		lane->cost_ns = lane->calm_cost_ns;
		measure_drop(lane);
		return;
	}
	uint64_t sample = lane->acc_ns * CORE_COST_UNIT / lane->acc_bytes;
	uint64_t cost = lane->cost_ns;

	sample = sample < 1 ? 1 : sample;
	sample = sample > UINT32_MAX / 4 ? UINT32_MAX / 4 : sample;
	if (lane->acc_ns < SAMPLE_SURE * lane->err_ns) {
		lane->bound_ns = (uint32_t)sample;
		lane->look_bytes = 2 * (uint32_t)lane->acc_bytes;
		if (lane->acc_bytes > SAMPLE_BYTES_MAX) {
			measure_drop(lane);
			window_set(c, lane);
		}
		return;
	}
	measure_drop(lane);
	if (lane->samples < SAMPLES_TRUSTED || sample > 2 * cost || cost > 2 * sample) {
		cost = lane->samples == 0 ? sample : (cost + sample + 1) / 2;
	} else {
		cost = (3 * cost + sample + 2) / 4;
	}
	calm_take(lane, sample);
	lane->samples += lane->samples < UINT32_MAX;
	lane->cost_ns = (uint32_t)cost;
	if (c->cfg.load[lane->port] != NULL) {
		__atomic_store_n(&c->cfg.load[lane->port]->cost_ns, (uint32_t)cost,
				 __ATOMIC_RELAXED);
	}
	window_set(c, lane);
	c->measured = true;
}

static __attribute__((cold)) void measure_anew(struct core_send *c, uint64_t now_ns)
{
	if (c->due) {
		c->due = false;
		for (uint64_t left = c->active | c->all; left != 0; left &= left - 1) {
			lane_measure(c, &c->lane[__builtin_ctzll(left)]);
		}
	}
	if (c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE)) {
		core_send_signal(c);
	}
	if (now_ns >= c->phase_ns) {
		phase(c, now_ns);
		c->measured = true;
	}
	if (c->measured) {
		c->measured = false;
		judge(c);
	}
	if (now_ns >= c->calm_ns) {
		c->calm_ns = now_ns + CALM_NS;
		if (c->window_us > c->cfg.window_us) {
			uint32_t over = c->window_us - c->cfg.window_us;

			c->window_us -= over / 8 + 1;
		}
	}
}

/* Before a choice of lanes: bring costs, words and pressure up to date, if any of them moved. */
static inline void measure_all(struct core_send *c, uint64_t now_ns)
{
	if (c->due || c->measured || now_ns >= c->phase_ns || now_ns >= c->calm_ns ||
	    c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE)) {
		measure_anew(c, now_ns);
	}
}

/* A lane ran dry although its window alone kept pieces away: the window is too small. */
static __attribute__((cold)) void lane_unblock(struct core_send *c, struct core_lane *lane,
						   uint64_t now_ns)
{
	if (c->queued_bytes != 0 && c->window_us < c->cfg.window_us * WINDOW_GROWTH_MAX) {
		c->window_us += c->window_us / 8;
		c->calm_ns = now_ns + CALM_NS;
		window_set(c, lane);
	}
	lane->blocked = false;
}

/*
 * A lane ran dry because its pace or its window kept pieces away. The rate that it was paced by may
 * come from a stall, so that no rest is longer than a probing interval.
 */
static __attribute__((cold, noinline)) void lane_held(struct core_send *c, struct core_lane *lane,
						      uint64_t now_ns)
{
	if (lane->paced_ns > now_ns) {
		lane->rested = RESTED_PHASES;
	}
	if (lane->paced_ns > now_ns + PROBE_NS) {
		lane->paced_ns = now_ns + PROBE_NS;
	}
	if (lane->blocked) {
		lane_unblock(c, lane, now_ns);
	}
}

/* A lane that had run dry by the time it was polled may have been idle since the poll before. */
static inline void lane_dry(struct core_send *c, struct core_lane *lane, uint64_t now_ns)
{
	lane->err_ns += c->gap_ns;
	if (__builtin_expect(lane->paced_ns > now_ns || lane->blocked, 0)) {
		lane_held(c, lane, now_ns);
	}
}

static inline void completed(struct core_send *c, struct core_lane *lane, uint64_t bytes,
			     uint64_t now_ns)
{
	struct core_load *load = c->cfg.load[lane->port];

	if (load != NULL) {
		__atomic_fetch_sub(&load->inflight_bytes, bytes, __ATOMIC_RELAXED);
	}
	if (now_ns > c->batch_ns) {
		c->gap_ns = (now_ns - c->batch_ns) / (c->idle_polls + 1u);
		c->batch_ns = now_ns;
		c->idle_polls = 0;
	}
	if (now_ns > lane->last_ns) {
		lane->acc_ns += now_ns - lane->last_ns;
		lane->last_ns = now_ns;
	}
	lane->acc_bytes += bytes;
	if (__builtin_expect(sample_long_enough(lane), 0)) {
		c->due = true;
	}
	if (lane->timed == 0) {
		lane_dry(c, lane, now_ns);
	}
}

/* A measurement that has become long enough is closed before time of another batch is added. */
static __attribute__((cold, noinline)) void completed_due(struct core_send *c,
							  struct core_lane *lane, uint64_t bytes,
							  uint64_t now_ns)
{
	lane_measure(c, lane);
	completed(c, lane, bytes, now_ns);
}

void plan_completed(struct core_send *c, struct core_lane *lane, uint64_t bytes, uint64_t now_ns)
{
	if (__builtin_expect(c->due, 0) && now_ns > lane->last_ns) {
		completed_due(c, lane, bytes, now_ns);
	} else {
		completed(c, lane, bytes, now_ns);
	}
}

void plan_forget(struct core_send *c, struct core_lane *lane)
{
	struct core_load *load = c->cfg.load[lane->port];

	for (uint8_t i = lane->tail; i != (uint8_t)lane->posted && load != NULL;) {
		uint32_t bytes = lane->unit[++i].bytes;

		if (plan_measures(c, bytes)) {
			__atomic_fetch_sub(&load->inflight_bytes, bytes, __ATOMIC_RELAXED);
		}
	}
}

/*
 * Take a count that the peer told. Mod 2^16 a count of long ago can look new; a true one is never
 * more than the receive queue ahead of what was posted, so the order of arrival does not matter.
 */
static void credit_take(struct core_lane *lane, const struct core_cts *rec, uint32_t i)
{
	uint16_t count = __atomic_load_n(&rec->posted[i], __ATOMIC_RELAXED);
	uint16_t ahead = (uint16_t)(count - lane->posted);

	if (ahead <= CORE_RQ_WRS && ahead > (uint16_t)(lane->credit - lane->posted)) {
		lane->credit = count;
	}
}

/*
 * Credits ride in the records: look only when they seem used up. The newest record that landed
 * knows most, matched or not: waiting until it is matched would be a deadlock, since the peer
 * counts it as told and NCCL may not send what would match it before this message is through.
 */
static bool credit_left(struct core_send *c, uint32_t l)
{
	struct core_lane *lane = &c->lane[l];
	uint32_t block = l / CORE_CREDIT_BLOCK, i = l % CORE_CREDIT_BLOCK;

	if (lane->posted != lane->credit) {
		return true;
	}
	credit_take(lane, &c->ring[CORE_SLOTS + block], i);
	if (block == 0) {
		c->told = c->told < c->head ? c->head : c->told;
		while (core_record_here(&c->ring[core_slot(c->told)], c->told)) {
			c->told++;
		}
		if (c->told != 0) {
			credit_take(lane, &c->ring[core_slot(c->told - 1)], i);
		}
	}
	return lane->posted != lane->credit;
}

static bool lane_takes(struct core_send *c, uint32_t l, uint32_t wrs)
{
	struct core_lane *lane = &c->lane[l];

	return core_lane_ready(c, l, wrs) ||
	       ((c->active >> l & 1) != 0 && lane->sq_used + wrs <= CORE_SQ_WRS &&
		(uint8_t)(lane->posted + 1) != lane->tail && credit_left(c, l));
}

/* Expected time until a small message given to this path is through. */
static uint64_t path_delay_ns(const struct core_send *c, uint32_t path)
{
	const struct core_lane *lane = &c->lane[path];
	uint64_t delay = finish_ns(lane->inflight_bytes + 4096ull, lane->cost_eff_ns);
	const struct core_load *load = c->cfg.load[lane->port];

	if (load != NULL && load->cost_ns != 0) {
		uint64_t inflight = __atomic_load_n(&load->inflight_bytes, __ATOMIC_RELAXED);
		uint64_t port = finish_ns(inflight, load->cost_ns);

		delay = port > delay ? port : delay;
	}
	return delay;
}

/* The path of small messages: stay unless another is clearly (an eighth) better. */
static void best_path(struct core_send *c, uint32_t wrs)
{
	bool stay = lane_takes(c, c->best, wrs);
	uint64_t best = stay ? path_delay_ns(c, c->best) * 7 / 8 : UINT64_MAX;
	uint32_t first = c->best;

	for (uint32_t i = 0; i < c->cfg.path_count; i++) {
		uint32_t path = (first + i) % c->cfg.path_count;

		if (lane_takes(c, path, wrs)) {
			uint64_t delay = path_delay_ns(c, path);

			if (delay < best) {
				best = delay;
				c->best = (uint8_t)path;
			}
		}
	}
}

static int lane_small(struct core_send *c, const struct core_msg *m, uint32_t wrs, bool changed)
{
	uint32_t turn = 0;

	if (changed || (c->cfg.path_count > 1 && m->seq % SMALL_RECHECK == 0)) {
		best_path(c, wrs);
	}
	if (c->lanes_per_path > 1) {
		turn = (uint32_t)(m->seq % c->lanes_per_path) * c->cfg.path_count;
	}
	if (lane_takes(c, c->best + turn, wrs)) {
		return (int)(c->best + turn);
	}
	for (uint32_t l = 0; l < c->lanes_total; l++) {
		if (lane_takes(c, l, wrs)) {
			return (int)l;
		}
	}
	return -1;
}

/* When a lane would be through with `bytes` more, pacing of a pressed lane included. */
static uint64_t lane_finish_ns(const struct core_lane *lane, uint32_t bytes, uint64_t now_ns)
{
	uint64_t fin = finish_ns((uint64_t)lane->inflight_bytes + bytes, lane->cost_eff_ns);

	if (lane->pace_ns != 0 && lane->paced_ns > now_ns) {
		uint64_t paced = lane->paced_ns - now_ns + finish_ns(bytes, lane->pace_ns);

		fin = paced > fin ? paced : fin;
	}
	return fin;
}

/* Does its pace, and then its window, let a lane take `bytes` more? */
static bool lane_has_room(const struct core_send *c, struct core_lane *lane, uint32_t bytes,
			  uint64_t now_ns)
{
	if (lane->pace_ns != 0 && lane->paced_ns > now_ns + (uint64_t)c->window_us * 1000) {
		lane->rested = RESTED_PHASES;
		return false;
	}
	if (lane->inflight_bytes == 0 || lane->inflight_bytes + bytes <= lane->window_bytes) {
		return true;
	}
	lane->blocked = true;
	return false;
}

static int lane_late(struct core_send *c, const struct core_msg *m, uint32_t wrs, uint64_t now_ns)
{
	uint64_t first = UINT64_MAX, best = UINT64_MAX;
	uint32_t bytes = m->piece_bytes, count = c->lanes_total;
	/* Taken mod count before lanes are added: a sum that wraps would leave one out. */
	uint32_t turn = (c->cfg.hash + (uint32_t)m->seq) % count;
	int choice = -1;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t l = (turn + i) % count;
		struct core_lane *lane = &c->lane[l];

		if (!lane_takes(c, l, wrs)) {
			continue;
		}
		uint64_t fin = lane_finish_ns(lane, bytes, now_ns);

		first = fin < first ? fin : first;
		if (lane_has_room(c, lane, bytes, now_ns) && fin < best) {
			best = fin;
			choice = (int)l;
		}
	}
	if (choice < 0 || best == first || c->rate_sum == 0) {
		return choice;
	}
	/*
	 * Faster lanes are full. Worth it only if this one ends before all that is waiting would.
	 */
	uint64_t all = (c->queued_bytes + c->inflight_bytes) * NS_PER_MS / c->rate_sum;

	if (best <= all || now_ns > c->lane[choice].post_ns + PROBE_NS) {
		return choice;
	}
	return -1;
}

static uint32_t round_up(uint64_t bytes, uint32_t unit)
{
	return (uint32_t)((bytes + unit - 1) / unit * unit);
}

static void cut(struct core_msg *m, uint64_t piece)
{
	if (piece == 0 || m->size == 0) {
		piece = m->size;
	}
	m->piece_bytes = (uint32_t)piece;
	m->count = piece == 0 ? 1 : (uint16_t)((m->size + piece - 1) / piece);
}

/* One piece for each path, or each lane with split_all; the lanes of a path take turns. */
static void cut_equal(const struct core_send *c, struct core_msg *m)
{
	uint32_t pieces = c->cfg.split_all ? c->cfg.lane_count : c->cfg.path_count;

	m->plan = PLAN_EQUAL;
	m->lane0 = 0;
	if (c->lanes_per_path > 1 && !c->cfg.split_all) {
		m->lane0 = (uint8_t)(m->seq % c->lanes_per_path * pieces);
	}
	cut(m, round_up(((uint64_t)m->size + pieces - 1) / pieces, CORE_ALIGN));
}

/*
 * Have all lanes of an equal message room for their piece: in credits and queues (if `queues`), in
 * their windows (if `windows`)?
 */
static inline bool equal_room(const struct core_send *c, const struct core_msg *m, bool queues,
			      bool windows)
{
	const struct core_lane *lane = c->lane + m->lane0, *end = lane + m->count;
	uint64_t bytes = m->piece_bytes;

	while (lane != end && (!queues || core_lane_room(lane, 1)) &&
	       (!windows || lane->inflight_bytes + bytes <= lane->window_bytes)) {
		lane++;
	}
	return lane == end;
}

static bool equal_active(const struct core_send *c, const struct core_msg *m)
{
	uint64_t lanes = ((2ull << (m->count - 1)) - 1) << m->lane0;

	return (c->active & lanes) == lanes;
}

/* The costs, words and lanes are such that a message is cut into equal pieces. */
static inline bool equal_wanted(const struct core_send *c, const struct core_msg *m, bool queues)
{
	return c->cfg.observe ||
	       (c->equal && c->active == c->all && equal_room(c, m, queues, true));
}

/* Hand out all pieces of an equal message; all lanes have room. */
static void equal_book(struct core_send *c, const struct core_msg *m, uint64_t now_ns)
{
	struct core_unit u = { .bytes = m->piece_bytes, .slot = (uint8_t)core_slot(m->seq),
			       .wrs = 1 };
	struct core_lane *lane = &c->lane[m->lane0];
	uint32_t left = m->size;

	if (plan_measures(c, u.bytes)) {
		plan_began(c, now_ns);
	}
	do {
		u.bytes = left < u.bytes ? left : u.bytes;
		left -= u.bytes;
		core_unit_book(c, lane, u);
		if (plan_measures(c, u.bytes)) {
			plan_posted(c, lane, u.bytes, now_ns);
		}
		u.piece++;
		lane++;
	} while (left != 0);
	c->inflight_bytes += m->size;
}

__attribute__((noinline)) bool core_send_equal(struct core_send *c, const struct core_cts *rec,
					       uint64_t seq, uint32_t size, uint64_t now_ns)
{
	struct core_msg *m = &c->msg[core_slot(seq)];

	m->size = size < rec->size ? size : rec->size;
	if (rec->n != 1 || c->q_head != c->q_tail || m->size <= c->equal_above) {
		return false;
	}
	m->seq = seq;
	c->newest = seq; /* the pressure in it counts already */
	measure_all(c, now_ns);
	cut_equal(c, m);
	if (!equal_wanted(c, m, true) ||
	    (c->cfg.observe && !(equal_active(c, m) && equal_room(c, m, true, false)))) {
		return false;
	}
	m->addr = rec->addr;
	m->next = m->count;
	m->done = 0;
	m->state = MSG_OPEN;
	c->head++;
	equal_book(c, m, now_ns);
	return true;
}

static uint32_t lanes_active(const struct core_send *c)
{
	uint32_t n = 0;

	for (uint64_t left = c->active; left != 0; left &= left - 1) {
		n++;
	}
	return n;
}

static void cut_late(struct core_send *c, struct core_msg *m)
{
	uint32_t lanes = lanes_active(c);
	uint64_t piece = m->size / (4 * (lanes == 0 ? 1 : lanes));
	/* About a quarter of the window's time on a lane of average rate. */
	uint64_t timed = c->rate_sum * c->cfg.window_us / 4000 / (lanes == 0 ? 1 : lanes);
	uint64_t least = (m->size + CORE_PIECES_MAX - 1ull) / CORE_PIECES_MAX;

	piece = timed < piece ? timed : piece;
	piece = piece < PIECE_MIN ? PIECE_MIN : piece;
	piece = piece > PIECE_MAX ? PIECE_MAX : piece;
	piece = piece < least ? least : piece;
	m->plan = PLAN_LATE;
	cut(m, round_up(piece, 4096));
}

/* Measured messages need the clock, and those at which a better path is looked for the long way. */
void plan_quick(struct core_send *c)
{
	if (c->cfg.lane_count == 1) {
		c->quick_bytes = UINT32_MAX;
	} else {
		c->quick_bytes = c->cfg.small_bytes < CORE_MEASURED_BYTES ? c->cfg.small_bytes
									  : CORE_MEASURED_BYTES - 1;
		c->recheck = SMALL_RECHECK - 1;
	}
}

void plan_cut(struct core_send *c, struct core_msg *m, uint64_t now_ns)
{
	if (c->cfg.lane_count == 1 || m->size <= c->cfg.small_bytes) {
		m->plan = PLAN_ONE;
		cut(m, m->size);
		return;
	}
	measure_all(c, now_ns);
	cut_equal(c, m);
	if (!equal_wanted(c, m, false)) {
		cut_late(c, m);
	}
}

int plan_lane(struct core_send *c, struct core_msg *m, uint32_t wrs, uint64_t now_ns)
{
	bool changed = c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE);

	if (changed) {
		core_send_signal(c);
	}
	if (c->lanes_total == 1) {
		return lane_takes(c, 0, wrs) ? 0 : -1;
	}
	if (m->plan == PLAN_ONE) {
		return lane_small(c, m, wrs, changed);
	}
	if (m->plan == PLAN_EQUAL) {
		uint32_t l = m->lane0 + (uint32_t)m->next;

		if (lane_takes(c, l, wrs)) {
			return (int)l;
		}
		if (c->cfg.observe && c->lane[l].state == LANE_ACTIVE) {
			return -1;
		}
	}
	measure_all(c, now_ns);
	return lane_late(c, m, wrs, now_ns);
}

int plan_lane_again(struct core_send *c, struct core_msg *m, uint32_t wrs, uint64_t now_ns)
{
	if (c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE)) {
		core_send_signal(c);
	}
	if (m->plan == PLAN_ONE) {
		return lane_small(c, m, wrs, true);
	}
	measure_all(c, now_ns);
	return lane_late(c, m, wrs, now_ns);
}

uint64_t core_send_deadline_ns(const struct core_send *c)
{
	uint64_t at = UINT64_MAX;

	if (c->q_head == c->q_tail) {
		return at;
	}
	for (uint32_t i = 0; i < c->cfg.lane_count; i++) {
		const struct core_lane *lane = &c->lane[i];
		uint64_t probe = lane->post_ns + PROBE_NS;
		uint64_t paced = lane->paced_ns - (uint64_t)c->window_us * 1000;

		at = probe < at ? probe : at;
		if (lane->pace_ns != 0 && lane->paced_ns > (uint64_t)c->window_us * 1000) {
			at = paced < at ? paced : at;
		}
	}
	return at;
}
