/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * replay_run.c - a flight log's head, halves and records.
 */
#include "replay_run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A log being replayed. */
struct replay {
	const struct flight_head *head;
	uint32_t image_bytes;
	struct flight_core core;
	struct core_cts *staging; /* [CORE_RING_RECORDS] */
	FILE *print;
	struct replay_report *report;
	/* of the half at hand */
	const struct flight_half *half;
	uint64_t place; /* of the record at hand, behind the image */
	uint64_t now_ns;
};

static void verdict(struct replay_report *r, enum replay_verdict what, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void verdict(struct replay_report *r, enum replay_verdict what, const char *fmt, ...)
{
	va_list args;

	r->verdict = what;
	va_start(args, fmt);
	vsnprintf(r->why, sizeof(r->why), fmt, args);
	va_end(args);
}

/* --- head and halves ---------------------------------------------------------------------- */

static bool head_is_sound(const struct flight_head *h, size_t bytes, struct replay_report *report)
{
	if (bytes < sizeof(*h) || h->magic != FLIGHT_MAGIC) {
		verdict(report, REPLAY_REFUSED, "not a flight log");
	} else if (h->version != FLIGHT_VERSION || h->layout != flight_layout()) {
		verdict(report, REPLAY_REFUSED,
			"recorded by another build (Railyard %.31s, format %u, layout %08x; this "
			"is %s, %u, %08x)",
			h->plugin, h->version, h->layout, RAILYARD_VERSION, FLIGHT_VERSION,
			flight_layout());
	} else if (h->hash != flight_head_hash(h)) {
		verdict(report, REPLAY_REFUSED, "its head is damaged");
	} else if ((h->kind != FLIGHT_SEND && h->kind != FLIGHT_RECV) || h->lanes < 1 ||
		   h->lanes > CORE_LANES_MAX || h->half_bytes % 64 != 0 ||
		   h->half_bytes > (uint64_t)FLIGHT_KIB_MAX << 10 ||
		   h->half_bytes < (uint64_t)FLIGHT_KIB_MIN << 10) {
		verdict(report, REPLAY_REFUSED, "its head makes no sense");
	} else if (bytes < FLIGHT_HEAD_BYTES + 2 * h->half_bytes) {
		verdict(report, REPLAY_REFUSED, "truncated: %zu bytes of %" PRIu64, bytes,
			FLIGHT_HEAD_BYTES + 2 * h->half_bytes);
	} else {
		return true;
	}
	return false;
}

static const struct flight_half *half_at(const struct replay *p, unsigned i)
{
	return (const struct flight_half *)(const void *)((const uint8_t *)p->head +
							  FLIGHT_HEAD_BYTES +
							  i * p->head->half_bytes);
}

static uint64_t records_max(const struct replay *p)
{
	return p->head->half_bytes - sizeof(struct flight_half) - p->image_bytes;
}

static bool half_is_sound(const struct replay *p, const struct flight_half *half)
{
	return half->number != 0 && half->hash == flight_half_hash(half, half->number) &&
	       half->used % 16 == 0 && half->used <= records_max(p) &&
	       half->image_hash == flight_hash(0, half + 1, p->image_bytes);
}

/* The halves that can be replayed, the older one first. Returns how many. */
static unsigned halves_choose(struct replay *p, const struct flight_half *out[2])
{
	unsigned n = 0;

	for (unsigned i = 0; i < 2; i++) {
		const struct flight_half *half = half_at(p, i);

		if (half_is_sound(p, half)) {
			out[n++] = half;
		} else if (half->number != 0) {
			snprintf(p->report->notes, sizeof(p->report->notes),
				 "half %u is damaged, and left out", i);
		}
	}
	if (n == 2 && out[0]->number > out[1]->number) {
		const struct flight_half *first = out[1];

		out[1] = out[0];
		out[0] = first;
	}
	return n;
}

/* --- records ------------------------------------------------------------------------------ */

static const struct flight_record *record_at(const struct replay *p, uint64_t place)
{
	const uint8_t *records = (const uint8_t *)(p->half + 1) + p->image_bytes;

	return (const struct flight_record *)(const void *)(records + place);
}

static void record_bad(struct replay *p, enum replay_verdict what, const char *why)
{
	verdict(p->report, what, "record %" PRIu64 " of half %" PRIu64 " (call %" PRIu64 "): %s",
		p->place / 16, p->half->number, p->report->calls, why);
}

/* Sound, or the last one and open. */
static bool record_is_sound(struct replay *p, const struct flight_record *r)
{
	uint64_t bytes = flight_record_bytes(flight_payload_bytes(r));

	if (p->place + bytes <= p->half->used) {
		uint64_t number = p->half->number;
		bool last = p->place + bytes == p->half->used;

		if (r->seal == flight_seal(r, r + 1, number, p->place, false)) {
			return true;
		}
		if (last && r->seal == flight_seal(r, r + 1, number, p->place, true)) {
			p->report->open = true;
			return true;
		}
	}
	record_bad(p, REPLAY_REFUSED, "it is damaged");
	return false;
}

/* What the core's memory is at the end of a half must be what it was. */
static bool end_compare(struct replay *p, const struct flight_record *r)
{
	uint64_t want = r->word | (uint64_t)r->b << 32;
	void *image = malloc(p->image_bytes);

	if (!image) {
		verdict(p->report, REPLAY_REFUSED, "no memory");
		return false;
	}
	flight_image_pack(&p->core, image);
	uint64_t is = flight_hash(0, image, p->image_bytes);

	free(image);
	if (is != want) {
		record_bad(p, REPLAY_DIFFERS, "the core's memory at its end is another");
		return false;
	}
	p->report->whole++;
	return true;
}

static void time_take(struct replay *p, const struct flight_record *r)
{
	if (flight_has_time(r->fn & (uint8_t)~FLIGHT_NOW_0)) {
		p->now_ns += (uint64_t)(int64_t)(int32_t)r->word;
		p->report->to_ns = p->now_ns > p->report->to_ns ? p->now_ns : p->report->to_ns;
	}
}

static bool call_compare(struct replay *p, const struct flight_record *r)
{
	uint16_t check = 0;

	time_take(p, r);
	if (p->print) {
		fprintf(p->print, "%12.3f us  ",
			(double)(int64_t)(p->now_ns - p->report->from_ns) / 1e3);
	}
	if (replay_call(&p->core, r, (r->fn & FLIGHT_NOW_0) != 0 ? 0 : p->now_ns, p->print,
			&check) != 0) {
		record_bad(p, REPLAY_DIFFERS, "the core's state does not fit this call");
		return false;
	}
	if ((r->fn & ~FLIGHT_NOW_0) <= FLIGHT_POLLS) {
		p->report->inputs++;
		return true;
	}
	p->report->calls++;
	if (p->report->open || check == r->check) {
		return true;
	}
	record_bad(p, REPLAY_DIFFERS, "the core answers otherwise than it did");
	return false;
}

static bool record_replay(struct replay *p, const struct flight_record *r)
{
	switch (r->fn) {
	case FLIGHT_END:
		return end_compare(p, r);
	case FLIGHT_TIME:
		p->now_ns = r->word | (uint64_t)r->b << 32;
		return true;
	default:
		return call_compare(p, r);
	}
}

static bool half_replay(struct replay *p)
{
	if (flight_image_unpack(&p->core, p->half + 1, p->staging) != 0) {
		verdict(p->report, REPLAY_REFUSED, "the image of half %" PRIu64 " makes no sense",
			p->half->number);
		return false;
	}
	memset(p->staging, 0, CORE_RING_RECORDS * sizeof(*p->staging));
	p->report->halves++;
	p->now_ns = p->half->start_ns;
	p->report->from_ns = p->report->from_ns ? p->report->from_ns : p->now_ns;
	if (p->print) {
		fprintf(p->print, "half %" PRIu64 "\n", p->half->number);
	}
	for (p->place = 0; p->place < p->half->used;) {
		const struct flight_record *r = record_at(p, p->place);

		if (!record_is_sound(p, r) || !record_replay(p, r)) {
			return false;
		}
		p->place += flight_record_bytes(flight_payload_bytes(r));
	}
	return true;
}

/* --- the state at the end ----------------------------------------------------------------- */

static const char *lane_state(const struct core_recover_lane *lane)
{
	static const char *const words[] = {
		[RL_ACTIVE] = "in use",	      [RL_FENCING] = "fencing",
		[RL_FENCED] = "fenced",	      [RL_ASKED] = "asking",
		[RL_DOWN] = "down",	      [RL_PREPARING] = "preparing",
		[RL_OFFERED] = "offered",     [RL_CONNECTING] = "connecting",
		[RL_READY] = "connected",     [RL_VERIFYING] = "testing",
		[RL_WAIT_LIVE] = "tested here",
	};

	return lane->state <= RL_WAIT_LIVE ? words[lane->state] : "?";
}

static void state_print(const struct replay *p, FILE *out)
{
	const struct flight_core *c = &p->core;

	if (c->kind == FLIGHT_SEND) {
		fprintf(out, "state: next message %" PRIu64 ", oldest open %" PRIu64
			     ", %" PRIu64 " bytes queued, %" PRIu64 " in flight\n",
			c->send->head, core_send_acked(c->send), c->send->queued_bytes,
			c->send->inflight_bytes);
	} else {
		fprintf(out, "state: next message %" PRIu64 ", oldest open %" PRIu64
			     ", %" PRIu64 " stale immediates\n",
			c->recv->next, core_recv_oldest(c->recv), c->recv->stale_imms);
	}
	for (uint32_t l = 0; l < c->lanes; l++) {
		const struct core_recover_lane *lane = &c->recover->lane[l];

		fprintf(out, "lane %u: %s, generation %u, port %u to %u", l, lane_state(lane),
			lane->generation, c->recover->cfg->lane[l].port,
			c->recover->cfg->lane[l].remote);
		if (c->kind == FLIGHT_SEND) {
			fprintf(out, ", %u units in flight, %" PRIu64 " bytes done",
				core_send_lane_units(c->send, l), c->send->lane[l].total_bytes);
		}
		if (lane->cause != CAUSE_NONE) {
			fprintf(out, ", %s", core_cause_text((enum core_cause)lane->cause));
		}
		fprintf(out, "\n");
	}
}

/* ------------------------------------------------------------------------------------------ */

static bool memory_take(struct replay *p)
{
	p->core.kind = p->head->kind;
	p->core.lanes = p->head->lanes;
	p->core.send = calloc(1, sizeof(*p->core.send));
	p->core.recv = calloc(1, sizeof(*p->core.recv));
	p->core.recover = calloc(1, sizeof(*p->core.recover));
	p->core.shadow = calloc(1, sizeof(*p->core.shadow));
	p->staging = calloc(CORE_RING_RECORDS, sizeof(*p->staging));
	return p->core.send && p->core.recv && p->core.recover && p->core.shadow && p->staging;
}

static void memory_give(struct replay *p)
{
	free(p->core.send);
	free(p->core.recv);
	free(p->core.recover);
	free(p->core.shadow);
	free(p->staging);
}

static void halves_replay(struct replay *p)
{
	const struct flight_half *halves[2];
	unsigned n = halves_choose(p, halves);

	if (n == 0) {
		verdict(p->report, REPLAY_REFUSED, "no half of it can be read");
	}
	for (unsigned i = 0; i < n; i++) {
		p->half = halves[i];
		if (!half_replay(p)) {
			return;
		}
	}
}

void replay_run(const void *data, size_t bytes, FILE *print, FILE *state,
		struct replay_report *report)
{
	struct replay p = { .head = data, .print = print, .report = report };

	memset(report, 0, sizeof(*report));
	if (!head_is_sound(p.head, bytes, report)) {
		return;
	}
	report->head = p.head;
	p.image_bytes = flight_image_bytes(p.head->kind, p.head->lanes);
	if (memory_take(&p)) {
		halves_replay(&p);
	} else {
		verdict(report, REPLAY_REFUSED, "no memory");
	}
	if (state && report->halves != 0 && report->verdict != REPLAY_REFUSED) {
		state_print(&p, state);
	}
	memory_give(&p);
}
