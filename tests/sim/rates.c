/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rates.c - how near the plan comes to the sum of the lanes' rates, in virtual time.
 *
 * A sender keeps a window of equal messages open over lanes that are serial links with a rate and a
 * latency; it polls at a fixed gap. Rates may change with time. Nothing is random, so a figure that
 * moves means that the plan changed. It says nothing about real NICs: only that the policy, given
 * honest completions, does not leave a lane idle or wait for a slow one.
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
	NOMINAL = 1250 /* bytes per us: 10 Gbit/s */
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
	uint32_t
		share_off; /* lanes' shares may differ by this from their rates' (0 = not judged) */
};

struct flight {
	uint64_t end_ns;
	uint32_t lane, unit;
};

struct run {
	struct core_send send;
	struct core_cts ring[CORE_RING_RECORDS];
	struct core_port port[LANES];
	uint32_t epoch;
	uint64_t now_ns;
	uint64_t free_ns[LANES];
	uint64_t bytes[LANES];
	uint64_t next, oldest; /* messages */
	uint32_t flights;
	struct flight flight[WIRE_MAX];
};

static uint32_t rate_now(const struct scenario *s, uint32_t lane, uint64_t now_ns)
{
	uint64_t second = now_ns / (1000 * MS);

	if (s->moving == 0) {
		return s->thousandths[lane];
	}
	return second % 2 == 1 && second / 2 % LANES == lane ? s->moving : 1000;
}

static void begin(struct run *r, bool observe)
{
	struct core_config cfg = {.lane_count = LANES,
				  .port_count = LANES,
				  .path_count = LANES,
				  .small_bytes = LANES * 16384,
				  .window_us = 1000,
				  .pressure_max_pct = 25,
				  .observe = observe,
				  .signal_epoch = &r->epoch};

	memset(r, 0, sizeof(*r));
	for (uint32_t i = 0; i < LANES; i++) {
		r->port[i].mbps = NOMINAL * 8;
		cfg.local[i] = cfg.remote[i] = &r->port[i];
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
		uint64_t rate = (uint64_t)NOMINAL * rate_now(s, lane, from_ns) / 1000;
		uint64_t step = rate * 100 < bytes ? rate * 100 : bytes;

		from_ns += step * 1000 / rate;
		bytes -= step;
	}
	return from_ns;
}

static void post(struct run *r, const struct scenario *s)
{
	struct core_post p;

	while (r->flights < WIRE_MAX && core_send_next(&r->send, r->now_ns, &p)) {
		uint64_t *free_ns = &r->free_ns[p.lane];

		*free_ns =
			link_send(s, p.lane, *free_ns > r->now_ns ? *free_ns : r->now_ns, p.bytes);
		r->flight[r->flights++] = (struct flight){
			.end_ns = *free_ns + LATENCY_NS, .lane = p.lane, .unit = p.unit};
		if (*free_ns >= s->warm_ns && *free_ns < s->end_ns) {
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
			rec->posted[i] = (uint16_t)(r->send.lane[i].total_units + CORE_RQ_WRS);
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
		sum += (uint64_t)NOMINAL * rate_now(s, lane, t);
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
	uint64_t part = did * 1000 / could;
	bool good = part >= s->aim && (s->share_off == 0 || worst <= s->share_off);

	printf("%-4s %-34s %3" PRIu64 ".%" PRIu64
	       " %% of the sum (aim %u.%u), shares off by %" PRIu64 ".%" PRIu64 " points\n",
	       good ? "ok" : "FAIL", s->name, part / 10, part % 10, s->aim / 10, s->aim % 10,
	       worst / 10, worst % 10);
	return good;
}

static bool play(struct run *r, const struct scenario *s, bool observe)
{
	begin(r, observe);
	while (r->now_ns < s->end_ns) {
		open_messages(r, s);
		post(r, s);
		r->now_ns += POLL_NS;
		poll(r);
	}
	return judge(r, s);
}

static const struct scenario scenarios[] = {
	{"equal, 1 MiB", 1 << 20, 8, {1000, 1000, 1000, 1000}, 0, 100 * MS, 500 * MS, 950, 30},
	{"equal, 128 KiB", 128 << 10, 32, {1000, 1000, 1000, 1000}, 0, 100 * MS, 500 * MS, 950, 30},
	{"one lane at 25 %, 1 MiB",
	 1 << 20,
	 8,
	 {1000, 1000, 250, 1000},
	 0,
	 200 * MS,
	 1000 * MS,
	 950,
	 0},
	{"one lane at 10 %, 1 MiB",
	 1 << 20,
	 8,
	 {1000, 1000, 1000, 100},
	 0,
	 200 * MS,
	 1000 * MS,
	 950,
	 0},
	{"one lane at 25 %, 128 KiB",
	 128 << 10,
	 32,
	 {250, 1000, 1000, 1000},
	 0,
	 200 * MS,
	 1000 * MS,
	 950,
	 0},
	{"four rates, 4 MiB", 4 << 20, 8, {1000, 700, 400, 100}, 0, 200 * MS, 1000 * MS, 950, 0},
	{"20 % moves each second, 1 MiB", 1 << 20, 8, {0}, 200, 0, 8000 * MS, 930, 0},
	{"20 % moves each second, 128 KiB", 128 << 10, 32, {0}, 200, 0, 8000 * MS, 930, 0},
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
