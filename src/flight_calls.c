/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight_calls.c - the core's calls, written to the flight log. The same checks are made by the
 * replay (tools/railyard/replay_call.c).
 */
#include "flight_names.h"

#define FLIGHT_CALLS_PLAIN
#include "flight_calls.h"

#include "flight_internal.h"

static struct flight *of_send(struct core_send *c)
{
	return CONTAINER_OF(c, struct send_comm, core)->base.flight;
}

static struct flight *of_recv(struct core_recv *c)
{
	return CONTAINER_OF(c, struct recv_comm, core)->base.flight;
}

static struct flight *of_recover(struct core_recover *r)
{
	return CONTAINER_OF(r, struct comm, recovery.core)->flight;
}

#define BEGIN(flight, ...) flight_begin(flight, &(struct flight_args){ __VA_ARGS__ })

/* --- the owner ---------------------------------------------------------------------------- */

bool flight_owner_try(uint32_t *word)
{
	struct flight *f = CONTAINER_OF(word, struct comm, owner)->flight;
	uint32_t free_word = FLIGHT_OWNER_FREE;

	if (f == NULL) {
		return owner_try(word);
	}
	if (!__atomic_compare_exchange_n(word, &free_word, 1, false, __ATOMIC_ACQUIRE,
					 __ATOMIC_RELAXED)) {
		return false;
	}
	flight_enter(f);
	return true;
}

void flight_owner_release(uint32_t *word)
{
	struct flight *f = CONTAINER_OF(word, struct comm, owner)->flight;

	if (f == NULL) {
		owner_release(word);
		return;
	}
	flight_leave(f);
	__atomic_store_n(word, FLIGHT_OWNER_FREE, __ATOMIC_RELEASE);
}

/* --- sender ------------------------------------------------------------------------------- */

int flight_send_match(const struct core_send *c, uint32_t tag, const struct core_cts **rec,
		      uint64_t *seq)
{
	return core_send_match(c, tag, rec, seq);
}

bool flight_send_member(struct core_send *c, const struct core_cts *rec, uint64_t seq,
			uint32_t size)
{
	struct flight *f = of_send(c);

	BEGIN(f, .fn = FLIGHT_MEMBER, .a = core_slot(seq), .b = size);
	bool ok = core_send_member(c, rec, seq, size);

	flight_end(f, ok, 0);
	return ok;
}

int flight_send_quick(struct core_send *c, const struct core_cts *rec, uint64_t seq, uint32_t size,
		      uint32_t *unit)
{
	struct flight *f = of_send(c);

	BEGIN(f, .fn = FLIGHT_QUICK, .a = core_slot(seq), .b = size);
	int lane = core_send_quick(c, rec, seq, size, unit);

	flight_end(f, lane < 0 ? 0 : flight_mix((uint64_t)lane + 1, *unit),
		   lane < 0 ? 0 : (uint32_t)lane);
	return lane;
}

bool flight_send_equal(struct core_send *c, const struct core_cts *rec, uint64_t seq, uint32_t size,
		       uint64_t now_ns)
{
	struct flight *f = of_send(c);

	BEGIN(f, .fn = FLIGHT_EQUAL, .a = core_slot(seq), .b = size, .now_ns = now_ns);
	bool ok = core_send_equal(c, rec, seq, size, now_ns);

	flight_end(f, ok, 0);
	return ok;
}

uint32_t flight_send_start(struct core_send *c, const struct core_cts *rec, uint64_t seq,
			   uint32_t size, uint64_t now_ns)
{
	struct flight *f = of_send(c);

	BEGIN(f, .fn = FLIGHT_START, .a = core_slot(seq), .b = size, .now_ns = now_ns);
	uint32_t slot = core_send_start(c, rec, seq, size, now_ns);

	flight_end(f, slot, 0);
	return slot;
}

bool flight_send_next(struct core_send *c, uint64_t now_ns, struct core_post *out)
{
	struct flight *f = of_send(c);

	BEGIN(f, .fn = FLIGHT_NEXT, .now_ns = now_ns);
	bool ok = core_send_next(c, now_ns, out);

	flight_end(f, ok ? flight_check_post(1, out) : 0, ok ? out->lane : 0);
	return ok;
}

int flight_send_complete(struct core_send *c, uint32_t lane, uint32_t generation, uint32_t unit,
			 uint64_t now_ns)
{
	struct flight *f = of_send(c);

	BEGIN(f, .fn = FLIGHT_COMPLETE, .lane = lane, .a = unit, .b = generation,
	      .now_ns = now_ns);
	int rc = core_send_complete(c, lane, generation, unit, now_ns);

	flight_end(f, (uint64_t)rc, lane);
	return rc;
}

void flight_send_release(struct core_send *c, uint32_t slot)
{
	struct flight *f = of_send(c);

	BEGIN(f, .fn = FLIGHT_SENT, .a = slot);
	core_send_release(c, slot);
	flight_end(f, 0, 0);
}

/* --- receiver ----------------------------------------------------------------------------- */

int flight_recv_post(struct core_recv *c, uint32_t n, const struct core_recv_buffer *buffers,
		     uint32_t *slot, struct core_announce *out)
{
	struct core_recv_buffer clean[CORE_GROUP_MAX] = { { 0 } }; /* without holes */
	struct flight *f = of_recv(c);

	for (uint32_t i = 0; i < n; i++) {
		clean[i].addr = buffers[i].addr;
		clean[i].size = buffers[i].size;
		clean[i].tag = buffers[i].tag;
		clean[i].mr_id = buffers[i].mr_id;
	}
	BEGIN(f, .fn = FLIGHT_POST, .a = n, .payload = clean,
	      .bytes = n * (uint32_t)sizeof(clean[0]));
	int rc = core_recv_post(c, n, buffers, slot, out);

	flight_end(f, rc == 0 ? flight_check_announce(*slot, out, c->staging) : (uint64_t)rc,
		   rc == 0 ? out->lane : 0);
	return rc;
}

/* An immediate stands for a sizes record that was written before it. */
int flight_recv_imm(struct core_recv *c, uint32_t lane, uint32_t imm, uint32_t bytes)
{
	struct flight *f = of_recv(c);

	if ((imm >> 16 & 0xff) == CORE_IMM_GROUP || c->cfg.adaptive_routing) {
		flight_sizes(f, core_slot(imm));
	}
	BEGIN(f, .fn = FLIGHT_IMM, .lane = lane, .word = bytes, .b = imm);
	int rc = core_recv_imm(c, lane, imm, bytes);

	flight_end(f, (uint64_t)rc, lane);
	return rc;
}

void flight_recv_refilled(struct core_recv *c, uint32_t lane, uint32_t n)
{
	struct flight *f = of_recv(c);

	BEGIN(f, .fn = FLIGHT_REFILLED, .lane = lane, .a = n);
	core_recv_refilled(c, lane, n);
	flight_end(f, 0, lane);
}

bool flight_recv_credit(struct core_recv *c, struct core_announce *out)
{
	struct flight *f = of_recv(c);

	BEGIN(f, .fn = FLIGHT_CREDIT);
	bool ok = core_recv_credit(c, out);

	flight_end(f, ok ? flight_check_announce(1, out, c->staging) : 0, ok ? out->lane : 0);
	return ok;
}

void flight_recv_announced(struct core_recv *c, uint32_t lane, bool credit)
{
	struct flight *f = of_recv(c);

	BEGIN(f, .fn = FLIGHT_ANNOUNCED, .lane = lane, .a = credit);
	core_recv_announced(c, lane, credit);
	flight_end(f, 0, lane);
}

void flight_recv_release(struct core_recv *c, uint32_t slot)
{
	struct flight *f = of_recv(c);

	BEGIN(f, .fn = FLIGHT_RECEIVED, .a = slot);
	core_recv_release(c, slot);
	flight_end(f, 0, 0);
}

/* --- recovery ----------------------------------------------------------------------------- */

bool flight_recover_fault(struct core_recover *r, uint32_t lane, uint32_t generation,
			  enum core_cause cause, uint64_t now_ns)
{
	struct flight *f = of_recover(r);

	if (f == NULL) {
		return core_recover_fault(r, lane, generation, cause, now_ns);
	}
	BEGIN(f, .fn = FLIGHT_FAULT, .lane = lane, .a = cause, .b = generation, .now_ns = now_ns);
	bool ok = core_recover_fault(r, lane, generation, cause, now_ns);

	flight_end(f, ok, lane);
	return ok;
}

void flight_recover_fenced(struct core_recover *r, uint32_t lane, uint64_t now_ns)
{
	struct flight *f = of_recover(r);

	if (f == NULL) {
		core_recover_fenced(r, lane, now_ns);
		return;
	}
	BEGIN(f, .fn = FLIGHT_FENCED, .lane = lane, .now_ns = now_ns);
	core_recover_fenced(r, lane, now_ns);
	flight_end(f, 0, lane);
}

void flight_recover_ready(struct core_recover *r, uint32_t lane, int rc, uint64_t now_ns)
{
	struct flight *f = of_recover(r);

	if (f == NULL) {
		core_recover_ready(r, lane, rc, now_ns);
		return;
	}
	BEGIN(f, .fn = FLIGHT_READY, .lane = lane, .b = (uint32_t)rc, .now_ns = now_ns);
	core_recover_ready(r, lane, rc, now_ns);
	flight_end(f, 0, lane);
}

void flight_recover_verified(struct core_recover *r, uint32_t lane, uint32_t generation,
			     uint64_t now_ns)
{
	struct flight *f = of_recover(r);

	if (f == NULL) {
		core_recover_verified(r, lane, generation, now_ns);
		return;
	}
	BEGIN(f, .fn = FLIGHT_VERIFIED, .lane = lane, .b = generation, .now_ns = now_ns);
	core_recover_verified(r, lane, generation, now_ns);
	flight_end(f, 0, lane);
}

int flight_recover_letter(struct core_recover *r, const struct core_letter *in,
			  struct core_letter *answer, uint64_t now_ns)
{
	struct flight *f = of_recover(r);
	uint8_t packed[FLIGHT_LETTER_MAX];

	if (f == NULL) {
		return core_recover_letter(r, in, answer, now_ns);
	}
	uint32_t bytes = flight_letter_pack(in, packed);

	BEGIN(f, .fn = FLIGHT_LETTER, .a = bytes, .payload = packed, .bytes = bytes,
	      .now_ns = now_ns);
	int rc = core_recover_letter(r, in, answer, now_ns);
	uint64_t h = rc == 0 && answer->type != 0 ? flight_check_letter(1, answer) : (uint64_t)rc;

	flight_end(f, h, in->lane < f->core.lanes ? in->lane : 0);
	return rc;
}

/* A look has seen the epoch, so the core must see what came with it. */
void flight_recover_tick(struct core_recover *r, uint64_t now_ns)
{
	struct flight *f = of_recover(r);

	if (f == NULL) {
		core_recover_tick(r, now_ns);
		return;
	}
	flight_leave(f);
	flight_enter(f);
	BEGIN(f, .fn = FLIGHT_TICK, .now_ns = now_ns);
	core_recover_tick(r, now_ns);
	flight_end(f, 0, 0);
}

bool flight_recover_next(struct core_recover *r, struct core_action *out,
			 struct core_letter *letter, uint64_t now_ns)
{
	struct flight *f = of_recover(r);

	if (f == NULL) {
		return core_recover_next(r, out, letter, now_ns);
	}
	BEGIN(f, .fn = FLIGHT_ACTION, .now_ns = now_ns);
	bool ok = core_recover_next(r, out, letter, now_ns);

	flight_end(f, ok ? flight_check_action(1, out, letter) : 0, ok ? out->lane : 0);
	return ok;
}

void flight_recover_again_done(struct core_recover *r, uint32_t lane, uint64_t now_ns)
{
	struct flight *f = of_recover(r);

	if (f == NULL) {
		core_recover_again_done(r, lane, now_ns);
		return;
	}
	BEGIN(f, .fn = FLIGHT_AGAIN, .lane = lane, .now_ns = now_ns);
	core_recover_again_done(r, lane, now_ns);
	flight_end(f, 0, lane);
}
