/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * replay_call.c - one record of a flight log: what its arguments must be, the call, its check word
 * (as src/flight_calls.c makes it), and its text.
 */
#include "replay_run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* One record being replayed. */
struct call {
	const struct flight_core *c;
	const struct flight_record *r;
	uint64_t now_ns;
	FILE *print;
	uint64_t hash; /* of what was returned */
	uint32_t lane; /* that its check word is about */
};

static const char *const names[FLIGHT_FNS] = {
	[FLIGHT_PORT] = "port",		      [FLIGHT_EPOCH] = "epoch",
	[FLIGHT_LOAD] = "load",		      [FLIGHT_RING] = "record",
	[FLIGHT_SIZES] = "sizes",	      [FLIGHT_POLLS] = "polls",
	[FLIGHT_MEMBER] = "send_member",      [FLIGHT_QUICK] = "send_quick",
	[FLIGHT_EQUAL] = "send_equal",	      [FLIGHT_START] = "send_start",
	[FLIGHT_NEXT] = "send_next",	      [FLIGHT_COMPLETE] = "send_complete",
	[FLIGHT_SENT] = "send_release",	      [FLIGHT_POST] = "recv_post",
	[FLIGHT_IMM] = "recv_imm",	      [FLIGHT_REFILLED] = "recv_refilled",
	[FLIGHT_CREDIT] = "recv_credit",      [FLIGHT_ANNOUNCED] = "recv_announced",
	[FLIGHT_RECEIVED] = "recv_release",   [FLIGHT_FAULT] = "recover_fault",
	[FLIGHT_FENCED] = "recover_fenced",   [FLIGHT_READY] = "recover_ready",
	[FLIGHT_VERIFIED] = "recover_verified", [FLIGHT_LETTER] = "recover_letter",
	[FLIGHT_TICK] = "recover_tick",	      [FLIGHT_ACTION] = "recover_next",
	[FLIGHT_AGAIN] = "recover_again_done",
};

static void say(const struct call *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct call *k, const char *fmt, ...)
{
	va_list args;

	if (k->print) {
		va_start(args, fmt);
		vfprintf(k->print, fmt, args);
		va_end(args);
	}
}

static void say_post(const struct call *k, const struct core_post *p)
{
	say(k, " -> lane %u, slot %u, unit %u, immediate 0x%08x", p->lane, p->slot, p->unit,
	    p->imm);
	if (p->group_n) {
		say(k, ", group of %u", p->group_n);
	} else {
		say(k, ", %u bytes at %u", p->bytes, p->offset);
	}
}

static void say_announce(const struct call *k, const struct core_announce *a)
{
	say(k, " -> lane %u, %u records from %u%s%s%s", a->lane, a->n, a->first,
	    a->signaled ? ", signaled" : "", a->credit ? ", credit" : "",
	    a->again ? ", again" : "");
}

static void say_letter(const struct call *k, const struct core_letter *l)
{
	static const char *const types[] = {
		[LETTER_FAULT] = "FAULT",	  [LETTER_FENCED] = "FENCED",
		[LETTER_ASK] = "ASK",		  [LETTER_ANSWER] = "ANSWER",
		[LETTER_OFFER] = "OFFER",	  [LETTER_ACCEPT] = "ACCEPT",
		[LETTER_REFUSE] = "REFUSE",	  [LETTER_CONNECTED] = "CONNECTED",
		[LETTER_LIVE] = "LIVE",
	};
	bool known = l->type >= LETTER_FAULT && l->type <= LETTER_LIVE;

	say(k, " %s(%u) of lane %u, %u items", known ? types[l->type] : "?", l->generation, l->lane,
	    l->n);
}

static void say_action(const struct call *k, const struct core_action *a,
		       const struct core_letter *letter)
{
	static const char *const types[] = {
		[ACT_FENCE] = "FENCE",	       [ACT_PREPARE] = "PREPARE",
		[ACT_CONNECT] = "CONNECT",     [ACT_VERIFY] = "VERIFY",
		[ACT_LETTER] = "LETTER",       [ACT_PROBE] = "PROBE",
		[ACT_ANNOUNCE] = "ANNOUNCE",   [ACT_SAY_FAILED] = "SAY_FAILED",
		[ACT_SAY_FENCED] = "SAY_FENCED", [ACT_SAY_OPEN] = "SAY_OPEN",
		[ACT_FAIL] = "FAIL",
	};

	say(k, " -> %s lane %u generation %u", types[a->type], a->lane, a->generation);
	if (a->type == ACT_LETTER) {
		say_letter(k, letter);
	} else if (a->type == ACT_PROBE) {
		say_post(k, &a->post);
	} else if (a->type == ACT_ANNOUNCE) {
		say_announce(k, &a->announce);
	}
}

/* --- inputs ------------------------------------------------------------------------------- */

static int take_port(struct call *k, struct flight_shadow *s)
{
	uint32_t i = k->r->lane;
	struct core_port port;

	if (i >= 2 * CORE_PORTS_MAX) {
		return -EPROTO;
	}
	memcpy(&port, k->r + 1, sizeof(port));
	*(i < CORE_PORTS_MAX ? &s->local[i] : &s->remote[i - CORE_PORTS_MAX]) = port;
	say(k, " %s %u: down %u, dead %u, pressure %u, %u Mbit/s, drain %u",
	    i < CORE_PORTS_MAX ? "local" : "remote", i % CORE_PORTS_MAX, port.down, port.dead,
	    port.pressure, port.mbps, port.drain);
	return 0;
}

static int take_load(struct call *k, struct flight_shadow *s)
{
	if (k->r->lane >= CORE_PORTS_MAX) {
		return -EPROTO;
	}
	struct core_load *load = &s->load[k->r->lane];

	memcpy(load, k->r + 1, sizeof(*load));
	say(k, " of port %u: %" PRIu64 " bytes in flight, %" PRIu64 " received, cost %u ns",
	    k->r->lane, load->inflight_bytes, load->rx_bytes, load->cost_ns);
	return 0;
}

static int take_ring(struct call *k, struct flight_shadow *s)
{
	if (k->c->kind != FLIGHT_SEND || k->r->a >= CORE_RING_RECORDS) {
		return -EPROTO;
	}
	struct core_cts *rec = &s->ring[k->r->a];

	memcpy(rec, k->r + 1, sizeof(*rec));
	if (k->r->a >= CORE_SLOTS) {
		say(k, " of credits, block %u", k->r->a - CORE_SLOTS);
	} else {
		say(k,
		    " of message %" PRIu64 ": %u bytes at 0x%" PRIx64 ", tag %u, member %u of %u",
		    rec->seq - 1, rec->size, rec->addr, rec->tag, rec->index, rec->n);
	}
	return 0;
}

static int take_sizes(struct call *k, struct flight_shadow *s)
{
	if (k->c->kind != FLIGHT_RECV || k->r->a >= CORE_SLOTS) {
		return -EPROTO;
	}
	memcpy(&s->sizes[k->r->a], k->r + 1, sizeof(s->sizes[0]));
	say(k, " at slot %u, of message %" PRIu64, k->r->a, s->sizes[k->r->a].seq - 1);
	return 0;
}

static int take_input(struct call *k)
{
	struct flight_shadow *s = k->c->shadow;

	switch (k->r->fn) {
	case FLIGHT_PORT:
		return take_port(k, s);
	case FLIGHT_LOAD:
		return take_load(k, s);
	case FLIGHT_RING:
		return take_ring(k, s);
	case FLIGHT_SIZES:
		return take_sizes(k, s);
	case FLIGHT_EPOCH:
		s->epoch = k->r->b;
		say(k, " %u", k->r->b);
		return 0;
	default:
		if (k->c->kind != FLIGHT_SEND) {
			return -EPROTO;
		}
		k->c->send->idle_polls = k->r->b;
		say(k, " without anything: %u", k->r->b);
		return 0;
	}
}

/* --- sender ------------------------------------------------------------------------------- */

/* The record that an isend of its tag fits must be the one that it took. */
static int record_of(const struct call *k, const struct core_cts **rec, uint64_t *seq)
{
	if (k->r->a >= CORE_SLOTS ||
	    core_send_match(k->c->send, k->c->shadow->ring[k->r->a].tag, rec, seq) != 0) {
		return -EPROTO;
	}
	return core_slot(*seq) == k->r->a ? 0 : -EPROTO;
}

static int call_start(struct call *k)
{
	struct core_send *c = k->c->send;
	const struct core_cts *rec;
	uint32_t size = k->r->b, unit;
	uint64_t seq;
	int lane;

	if (record_of(k, &rec, &seq) != 0) {
		return -EPROTO;
	}
	say(k, " message %" PRIu64 ", %u bytes", seq, size);
	switch (k->r->fn & ~FLIGHT_NOW_0) {
	case FLIGHT_MEMBER:
		k->hash = core_send_member(c, rec, seq, size);
		break;
	case FLIGHT_EQUAL:
		k->hash = core_send_equal(c, rec, seq, size, k->now_ns);
		break;
	case FLIGHT_START:
		k->hash = core_send_start(c, rec, seq, size, k->now_ns);
		return 0;
	default:
		lane = core_send_quick(c, rec, seq, size, &unit);
		k->lane = lane < 0 ? 0 : (uint32_t)lane;
		k->hash = lane < 0 ? 0 : flight_mix((uint64_t)lane + 1, unit);
		if (lane >= 0) {
			say(k, " -> lane %d, unit %u", lane, unit);
			return 0;
		}
		break;
	}
	say(k, k->hash ? " -> done" : " -> not so");
	return 0;
}

static void call_next(struct call *k)
{
	struct core_post post;

	if (core_send_next(k->c->send, k->now_ns, &post)) {
		k->hash = flight_check_post(1, &post);
		k->lane = post.lane;
		say_post(k, &post);
	} else {
		say(k, " -> nothing now");
	}
}

static int call_send(struct call *k)
{
	const struct flight_record *r = k->r;
	int rc;

	switch (r->fn & ~FLIGHT_NOW_0) {
	case FLIGHT_NEXT:
		call_next(k);
		return 0;
	case FLIGHT_COMPLETE:
		rc = core_send_complete(k->c->send, r->lane, r->b, r->a, k->now_ns);
		k->hash = (uint64_t)rc;
		k->lane = r->lane;
		say(k, " lane %u generation %u unit %u%s", r->lane, r->b, r->a,
		    rc ? " -> stale" : "");
		return 0;
	case FLIGHT_SENT:
		if (r->a >= CORE_SLOTS) {
			return -EPROTO;
		}
		core_send_release(k->c->send, r->a);
		say(k, " slot %u", r->a);
		return 0;
	default:
		return call_start(k);
	}
}

/* --- receiver ----------------------------------------------------------------------------- */

static int call_post(struct call *k)
{
	struct core_recv_buffer buffers[CORE_GROUP_MAX];
	uint32_t n = k->r->a, slot = 0;
	struct core_announce a;

	if (n < 1 || n > CORE_GROUP_MAX) {
		return -EPROTO;
	}
	memcpy(buffers, k->r + 1, n * sizeof(buffers[0]));
	say(k, " of %u, %u bytes, tag %u", n, buffers[0].size, buffers[0].tag);
	int rc = core_recv_post(k->c->recv, n, buffers, &slot, &a);

	k->hash = rc == 0 ? flight_check_announce(slot, &a, k->c->recv->staging) : (uint64_t)rc;
	if (rc == 0) {
		k->lane = a.lane;
		say_announce(k, &a);
	} else {
		say(k, " -> not now");
	}
	return 0;
}

static void call_credit(struct call *k)
{
	struct core_announce a;

	if (core_recv_credit(k->c->recv, &a)) {
		k->hash = flight_check_announce(1, &a, k->c->recv->staging);
		k->lane = a.lane;
		say_announce(k, &a);
	} else {
		say(k, " -> none due");
	}
}

static int call_recv(struct call *k)
{
	const struct flight_record *r = k->r;
	int rc;

	switch (r->fn) {
	case FLIGHT_POST:
		return call_post(k);
	case FLIGHT_CREDIT:
		call_credit(k);
		return 0;
	case FLIGHT_RECEIVED:
		if (r->a >= CORE_SLOTS) {
			return -EPROTO;
		}
		core_recv_release(k->c->recv, r->a);
		say(k, " slot %u", r->a);
		return 0;
	case FLIGHT_IMM:
		rc = core_recv_imm(k->c->recv, r->lane, r->b, r->word);
		k->hash = (uint64_t)rc;
		say(k, " 0x%08x on lane %u, %u bytes%s", r->b, r->lane, r->word,
		    rc == 0 ? "" : rc == -ESTALE ? " -> stale" : " -> cannot be");
		break;
	case FLIGHT_REFILLED:
		core_recv_refilled(k->c->recv, r->lane, r->a);
		say(k, " lane %u, %u receive WRs", r->lane, r->a);
		break;
	default:
		core_recv_announced(k->c->recv, r->lane, r->a != 0);
		say(k, " lane %u%s", r->lane, r->a ? ", credit" : "");
		break;
	}
	k->lane = r->lane;
	return 0;
}

/* --- recovery ----------------------------------------------------------------------------- */

static int call_letter(struct call *k)
{
	struct core_letter in, answer;

	if (flight_letter_unpack((const uint8_t *)(k->r + 1), k->r->a, &in) != 0) {
		return -EPROTO;
	}
	say_letter(k, &in);
	int rc = core_recover_letter(k->c->recover, &in, &answer, k->now_ns);

	k->hash = rc == 0 && answer.type != 0 ? flight_check_letter(1, &answer) : (uint64_t)rc;
	k->lane = in.lane < k->c->lanes ? in.lane : 0;
	if (rc != 0) {
		say(k, rc == CORE_LETTER_LATER ? " -> later" : " -> cannot be");
	} else if (answer.type != 0) {
		say(k, " ->");
		say_letter(k, &answer);
	}
	return 0;
}

static void call_action(struct call *k)
{
	struct core_letter letter;
	struct core_action a;

	if (core_recover_next(k->c->recover, &a, &letter, k->now_ns)) {
		k->hash = flight_check_action(1, &a, &letter);
		k->lane = a.lane;
		say_action(k, &a, &letter);
	} else {
		say(k, " -> nothing");
	}
}

static int call_recover(struct call *k)
{
	const struct flight_record *r = k->r;
	struct core_recover *c = k->c->recover;

	switch (r->fn & ~FLIGHT_NOW_0) {
	case FLIGHT_LETTER:
		return call_letter(k);
	case FLIGHT_TICK:
		core_recover_tick(c, k->now_ns);
		return 0;
	case FLIGHT_ACTION:
		call_action(k);
		return 0;
	case FLIGHT_FAULT:
		if (r->a >= CAUSE_COUNT) {
			return -EPROTO;
		}
		k->hash = core_recover_fault(c, r->lane, r->b, (enum core_cause)r->a, k->now_ns);
		say(k, " lane %u generation %u: %s%s", r->lane, r->b,
		    core_cause_text((enum core_cause)r->a), k->hash ? "" : " -> known");
		break;
	case FLIGHT_FENCED:
		core_recover_fenced(c, r->lane, k->now_ns);
		say(k, " lane %u", r->lane);
		break;
	case FLIGHT_READY:
		core_recover_ready(c, r->lane, (int)r->b, k->now_ns);
		say(k, " lane %u: %d", r->lane, (int)r->b);
		break;
	case FLIGHT_VERIFIED:
		core_recover_verified(c, r->lane, r->b, k->now_ns);
		say(k, " lane %u generation %u", r->lane, r->b);
		break;
	default:
		if (k->c->kind != FLIGHT_RECV) {
			return -EPROTO;
		}
		core_recover_again_done(c, r->lane, k->now_ns);
		say(k, " lane %u", r->lane);
		break;
	}
	k->lane = r->lane;
	return 0;
}

/* ------------------------------------------------------------------------------------------ */

int replay_call(const struct flight_core *c, const struct flight_record *r, uint64_t now_ns,
		FILE *print, uint16_t *check)
{
	uint8_t fn = (uint8_t)(r->fn & ~FLIGHT_NOW_0);
	struct call k = { .c = c, .r = r, .now_ns = now_ns, .print = print };
	int rc;

	if (fn < FLIGHT_PORT || fn >= FLIGHT_FNS || (fn != FLIGHT_PORT && r->lane >= c->lanes &&
						     fn != FLIGHT_LOAD)) {
		return -EPROTO;
	}
	say(&k, "%s", names[fn]);
	if (fn <= FLIGHT_POLLS) {
		rc = take_input(&k);
	} else if (fn <= FLIGHT_SENT) {
		rc = c->kind == FLIGHT_SEND ? call_send(&k) : -EPROTO;
	} else if (fn <= FLIGHT_RECEIVED) {
		rc = c->kind == FLIGHT_RECV ? call_recv(&k) : -EPROTO;
	} else {
		rc = call_recover(&k);
	}
	say(&k, "\n");
	*check = rc != 0 || fn <= FLIGHT_POLLS ? 0 : flight_check_end(k.hash, c, k.lane);
	return rc;
}
