/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rates.c - how near the plan comes to the sum of the lanes' rates, in virtual time.
 *
 * A sender keeps a window of equal messages open over lanes that are serial links with a rate, a
 * latency and a token bucket; it polls at a fixed gap. Rates may change with time, and one lane may
 * be pressed (marked). Nothing is random, so a figure that moves means that the plan changed. It
 * says nothing about real NICs: only that the policy, given honest completions, does not leave a
 * lane idle or wait for a slow one, and that pressure moves the share it should, and no more.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/send.h"

enum {
	LANES = 4,
	WIRE_MAX = 1024, /* pieces in flight */
	POLL_NS = 5000,
	LATENCY_NS = 10000,
	NOMINAL = 1250, /* bytes per us: 10 Gbit/s */
	PRESSED = 2     /* the lane that may be */
};

#define MS 1000000ull

/* Rates in thousandths of the nominal one, by time. */
struct scenario {
	const char *name;
	uint32_t message_bytes, window;
	uint32_t thousandths[LANES];
	uint32_t moving; /* != 0: each second one lane in turn, or none, has this */
	uint64_t warm_ns, end_ns;
	uint32_t aim; /* thousandths of the sum of the rates */
	/* lanes' shares may differ by this from their rates' (0 = not judged) */
	uint32_t share_off;
	uint32_t nominal;    /* bytes per us; 0 = NOMINAL */
	uint64_t latency_ns; /* of acks; 0 = LATENCY_NS */
	uint64_t burst;      /* bytes that a lane at rest may then send at once */
	bool two_way;        /* the ports receive, too */
	uint64_t stall_ns;   /* each lane stands still for so long now and then */
	uint32_t pressure;   /* of lane PRESSED from press_ns on, 0 .. 255 */
	uint64_t press_ns;
	/* thousandths that the pressed lane may have of all bytes in the time that is judged */
	uint32_t pressed_min, pressed_max;
};

struct flight {
	uint64_t end_ns;
	uint32_t lane, unit;
};

struct run {
	struct core_send send;
	struct core_cts ring[CORE_RING_RECORDS];
	struct core_port port[LANES];
	struct core_load load[LANES];
	uint32_t epoch;
	uint64_t now_ns;
	uint64_t free_ns[LANES]; /* when all would be sent at the rate, without a burst */
	uint64_t bytes[LANES];
	uint64_t next, oldest; /* messages */
	uint32_t flights;
	struct flight flight[WIRE_MAX];
};

static uint32_t nominal(const struct scenario *s)
{
	return s->nominal != 0 ? s->nominal : NOMINAL;
}

static uint32_t rate_now(const struct scenario *s, uint32_t lane, uint64_t now_ns)
{
	uint64_t second = now_ns / (1000 * MS);

	if (s->moving == 0) {
		return s->thousandths[lane];
	}
	return second % 2 == 1 && second / 2 % LANES == lane ? s->moving : 1000;
}

static void begin(struct run *r, const struct scenario *s, bool observe)
{
	struct core_config cfg = {.lane_count = LANES,
				  .port_count = LANES,
				  .path_count = LANES,
				  .small_bytes = LANES * 16384,
				  .window_us = s->nominal != 0 ? 10000 : 1000,
				  .pressure_max_pct = 25,
				  .observe = observe,
				  .signal_epoch = &r->epoch};

	memset(r, 0, sizeof(*r));
	for (uint32_t i = 0; i < LANES; i++) {
		r->port[i].mbps = nominal(s) * 8;
		cfg.local[i] = cfg.remote[i] = &r->port[i];
		cfg.load[i] = &r->load[i];
		cfg.lane[i].port = cfg.lane[i].remote = (uint8_t)i;
	}
	if (core_send_init(&r->send, &cfg, r->ring) != 0) {
		abort();
	}
	for (uint32_t i = 0; i < LANES; i++) {
		core_send_lane_open(&r->send, i, 1, CORE_RQ_WRS);
	}
}

/* Bytes go over the link as fast as it is at that time, in steps of at most 100 us. */
static uint64_t link_send(const struct scenario *s, uint32_t lane, uint64_t from_ns, uint64_t bytes)
{
	while (bytes > 0) {
		/* Lanes not at once, and with no relation to looks and phases. */
		uint64_t at = (from_ns + lane * 97 * MS) % (413 * MS);

		if (at < s->stall_ns) {
			from_ns += s->stall_ns - at;
		}
		uint64_t per_ms = (uint64_t)nominal(s) * rate_now(s, lane, from_ns);
		uint64_t step = per_ms / 10 < bytes ? per_ms / 10 : bytes;

		from_ns += step * MS / per_ms;
		bytes -= step;
	}
	return from_ns;
}

static void post(struct run *r, const struct scenario *s)
{
	struct core_post p;

	while (r->flights < WIRE_MAX && core_send_next(&r->send, r->now_ns, &p)) {
		uint64_t *free_ns = &r->free_ns[p.lane];
		uint64_t from = *free_ns > r->now_ns ? *free_ns : r->now_ns;
		uint64_t saved_ns = s->burst * 1000 / nominal(s);
		uint64_t ack_ns = s->latency_ns != 0 ? s->latency_ns : LATENCY_NS;

		*free_ns = link_send(s, p.lane, from, p.bytes);
		uint64_t end = *free_ns > r->now_ns + saved_ns ? *free_ns - saved_ns : r->now_ns;

		r->flight[r->flights++] =
			(struct flight){.end_ns = end + ack_ns, .lane = p.lane, .unit = p.unit};
		if (end >= s->warm_ns && end < s->end_ns) {
			r->bytes[p.lane] += p.bytes;
		}
	}
}

static void open_messages(struct run *r, const struct scenario *s)
{
	while (r->next - r->oldest < s->window) {
		struct core_cts *rec = &r->ring[core_slot(r->next)];
		const struct core_cts *found;
		uint64_t seq;

		rec->addr = 0;
		rec->size = s->message_bytes;
		rec->n = 1;
		for (uint32_t i = 0; i < LANES; i++) {
			const struct core_lane *lane = &r->send.lane[i];
			uint8_t inflight = (uint8_t)(lane->posted - lane->tail);

			rec->posted[i] = (uint16_t)(lane->posted - inflight + CORE_RQ_WRS);
		}
		rec->seq = r->next + 1;
		if (core_send_match(&r->send, 0, &found, &seq) != 0) {
			return;
		}
		core_send_start(&r->send, found, seq, s->message_bytes, r->now_ns);
		r->next++;
		post(r, s);
	}
}

static void poll(struct run *r)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < r->flights; i++) {
		const struct flight *f = &r->flight[i];

		if (f->end_ns <= r->now_ns) {
			core_send_complete(&r->send, f->lane, 1, f->unit, r->now_ns);
		} else {
			r->flight[kept++] = *f;
		}
	}
	r->send.idle_polls += kept == r->flights;
	r->flights = kept;
	while (r->oldest < r->next && core_send_done(&r->send, core_slot(r->oldest))) {
		core_send_release(&r->send, core_slot(r->oldest));
		r->oldest++;
	}
}

/* What the lanes could carry in the time that is judged. */
static uint64_t capacity(const struct scenario *s, uint32_t lane)
{
	uint64_t sum = 0;

	for (uint64_t t = s->warm_ns; t < s->end_ns; t += MS) {
		sum += (uint64_t)nominal(s) * rate_now(s, lane, t); /* bytes per ms */
	}
	return sum;
}

/* Returns whether the aims are met; prints one line. */
static bool judge(const struct run *r, const struct scenario *s)
{
	uint64_t could = 0, did = 0, worst = 0;

	for (uint32_t i = 0; i < LANES; i++) {
		could += capacity(s, i);
		did += r->bytes[i];
	}
	for (uint32_t i = 0; i < LANES; i++) {
		uint64_t fair = capacity(s, i) * 1000 / could, got = r->bytes[i] * 1000 / did;
		uint64_t off = fair > got ? fair - got : got - fair;

		worst = off > worst ? off : worst;
	}
	uint64_t part = did * 1000 / could, pressed = r->bytes[PRESSED] * 1000 / did;
	bool good = part >= s->aim && (s->share_off == 0 || worst <= s->share_off) &&
		    (s->pressed_max == 0 ||
		     (pressed >= s->pressed_min && pressed <= s->pressed_max));

	printf("%-4s %-34s %3" PRIu64 ".%" PRIu64
	       " %% of the sum (aim %u.%u), shares off by %" PRIu64 ".%" PRIu64 " points\n",
	       good ? "ok" : "FAIL", s->name, part / 10, part % 10, s->aim / 10, s->aim % 10,
	       worst / 10, worst % 10);
	if (s->pressed_max != 0) {
		printf("     pressed lane: %" PRIu64 ".%" PRIu64 " %% (%u.%u .. %u.%u)\n",
		       pressed / 10, pressed % 10, s->pressed_min / 10, s->pressed_min % 10,
		       s->pressed_max / 10, s->pressed_max % 10);
	}
	return good;
}

static bool play(struct run *r, const struct scenario *s, bool observe)
{
	begin(r, s, observe);
	while (r->now_ns < s->end_ns) {
		open_messages(r, s);
		post(r, s);
		r->now_ns += POLL_NS;
		if (s->pressure != 0 && r->now_ns >= s->press_ns) {
			r->port[PRESSED].pressure = s->pressure;
		}
		for (uint32_t i = 0; s->two_way && i < LANES; i++) {
			r->load[i].rx_bytes += 4096;
		}
		poll(r);
	}
	return judge(r, s);
}

#define RATES(a, b, c, d) .thousandths = {a, b, c, d}
#define EQUAL		  RATES(1000, 1000, 1000, 1000)
#define M4		  .message_bytes = 4 << 20, .window = 8
#define M1		  .message_bytes = 1 << 20, .window = 8
#define K128		  .message_bytes = 128 << 10, .window = 32
#define JUDGED(from_ms, to_ms, of_sum) \
	.warm_ns = (from_ms) * MS, .end_ns = (to_ms) * MS, .aim = (of_sum)
#define MARKED(from_ms, min, max) \
	.pressure = 255, .press_ns = (from_ms) * MS, .pressed_min = (min), .pressed_max = (max)
/* Slow links with tokens for 64 KiB, as tests/vm has them. */
#define GUESTS(mbyte_s, ack_ms) \
	.nominal = (mbyte_s), .latency_ns = (ack_ms) * MS, .burst = 64 << 10

static const struct scenario scenarios[] = {
	{.name = "equal, 1 MiB", M1,
	 EQUAL, JUDGED(100, 500, 950),
	 .share_off = 30},
	{.name = "equal, 128 KiB", K128,
	 EQUAL, JUDGED(100, 500, 950),
	 .share_off = 30},
	{.name = "one lane at 25 %, 1 MiB", M1,
	 RATES(1000, 1000, 250, 1000), JUDGED(200, 1000, 950)},
	{.name = "one lane at 10 %, 1 MiB", M1,
	 RATES(1000, 1000, 1000, 100), JUDGED(200, 1000, 950)},
	{.name = "one lane at 25 %, 128 KiB", K128,
	 RATES(250, 1000, 1000, 1000), JUDGED(200, 1000, 950)},
	{.name = "four rates, 4 MiB", M4,
	 RATES(1000, 700, 400, 100), JUDGED(200, 1000, 950)},
	{.name = "20 % moves each second, 1 MiB", M1,
	 .moving = 200, JUDGED(0, 8000, 930)},
	{.name = "20 % moves each second, 128 KiB", K128,
	 .moving = 200, JUDGED(0, 8000, 930)},
	{.name = "marked, 1 MiB", M1,
	 EQUAL, JUDGED(200, 4000, 930),
	 MARKED(0, 195, 215)},
	{.name = "marked, 128 KiB", K128,
	 EQUAL, JUDGED(200, 4000, 930),
	 MARKED(0, 195, 215)},
	{.name = "marked for 200 ms", M1,
	 EQUAL, JUDGED(1200, 1400, 900),
	 MARKED(1000, 150, 240)},
	{.name = "guests: equal, 1 MiB", M1, GUESTS(4, 2),
	 EQUAL, JUDGED(1000, 5000, 950),
	 .share_off = 30},
	{.name = "guests: 20 % moves, 1 MiB", M1, GUESTS(4, 2),
	 .moving = 200, JUDGED(0, 8000, 930)},
	{.name = "guests: 20 % moves, 128 KiB", K128, GUESTS(4, 2),
	 .moving = 200, JUDGED(0, 8000, 930)},
	{.name = "guests: acks behind 60 ms of data", M1, GUESTS(2, 60),
	 EQUAL, JUDGED(1000, 5000, 950),
	 .two_way = true},
	{.name = "guests: marked, 1 MiB", M1, GUESTS(3, 2),
	 EQUAL, JUDGED(1000, 9000, 920),
	 MARKED(500, 195, 220)},
	{.name = "guests: marked, 128 KiB", K128, GUESTS(3, 2),
	 EQUAL, JUDGED(1000, 9000, 920),
	 MARKED(500, 195, 220)},
	{.name = "guests: marked, stalls of 100 ms", M1, GUESTS(3, 2),
	 EQUAL, JUDGED(1000, 9000, 680),
	 MARKED(500, 185, 225), .stall_ns = 100 * MS},
	{.name = "guests: marked, then at 40 %", M1, GUESTS(3, 2),
	 RATES(1000, 1000, 400, 1000), JUDGED(1000, 9000, 920),
	 MARKED(500, 80, 110)},
};

/* With any argument: equal striping, which must miss the aims (the test of this test). */
int main(int argc, char **argv)
{
	static struct run r;
	bool observe = argc > 1;
	int bad = 0;

	(void)argv;

	for (uint32_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		bad += !play(&r, &scenarios[i], observe);
	}
	return bad != 0;
}
