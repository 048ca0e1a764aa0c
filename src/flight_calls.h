/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight_calls.h - to be included last by a file whose calls into the core are to be recorded.
 *
 * From here on the names of the core's calls, and of taking and releasing an owner word, stand for
 * those below: the same, but written to the comm's flight log. The calls of the data path are for
 * comms with a log only (request_flight.c); those of recovery and the owner's are for all. Calls
 * that change nothing are not recorded.
 */
#ifndef RAILYARD_FLIGHT_CALLS_H
#define RAILYARD_FLIGHT_CALLS_H

#include "comm.h"
#include "util.h"

/* --- the owner ---------------------------------------------------------------------------- */

bool flight_owner_try(uint32_t *word);
void flight_owner_release(uint32_t *word);

/* --- sender ------------------------------------------------------------------------------- */

/* Changes nothing, and is not recorded; here for what flight_names.h says. */
int flight_send_match(const struct core_send *c, uint32_t tag, const struct core_cts **rec,
		      uint64_t *seq);
bool flight_send_member(struct core_send *c, const struct core_cts *rec, uint64_t seq,
			uint32_t size);
int flight_send_quick(struct core_send *c, const struct core_cts *rec, uint64_t seq, uint32_t size,
		      uint32_t *unit);
bool flight_send_equal(struct core_send *c, const struct core_cts *rec, uint64_t seq, uint32_t size,
		       uint64_t now_ns);
uint32_t flight_send_start(struct core_send *c, const struct core_cts *rec, uint64_t seq,
			   uint32_t size, uint64_t now_ns);
bool flight_send_next(struct core_send *c, uint64_t now_ns, struct core_post *out);
int flight_send_complete(struct core_send *c, uint32_t lane, uint32_t generation, uint32_t unit,
			 uint64_t now_ns);
void flight_send_release(struct core_send *c, uint32_t slot);

/* --- receiver ----------------------------------------------------------------------------- */

int flight_recv_post(struct core_recv *c, uint32_t n, const struct core_recv_buffer *buffers,
		     uint32_t *slot, struct core_announce *out);
int flight_recv_imm(struct core_recv *c, uint32_t lane, uint32_t imm, uint32_t bytes);
void flight_recv_refilled(struct core_recv *c, uint32_t lane, uint32_t n);
bool flight_recv_credit(struct core_recv *c, struct core_announce *out);
void flight_recv_announced(struct core_recv *c, uint32_t lane, bool credit);
void flight_recv_release(struct core_recv *c, uint32_t slot);

/* --- recovery ----------------------------------------------------------------------------- */

bool flight_recover_fault(struct core_recover *r, uint32_t lane, uint32_t generation,
			  enum core_cause cause, uint64_t now_ns);
void flight_recover_fenced(struct core_recover *r, uint32_t lane, uint64_t now_ns);
void flight_recover_ready(struct core_recover *r, uint32_t lane, int rc, uint64_t now_ns);
void flight_recover_verified(struct core_recover *r, uint32_t lane, uint32_t generation,
			     uint64_t now_ns);
int flight_recover_letter(struct core_recover *r, const struct core_letter *in,
			  struct core_letter *answer, uint64_t now_ns);
void flight_recover_tick(struct core_recover *r, uint64_t now_ns);
bool flight_recover_next(struct core_recover *r, struct core_action *out,
			 struct core_letter *letter, uint64_t now_ns);
void flight_recover_again_done(struct core_recover *r, uint32_t lane, uint64_t now_ns);

#ifndef FLIGHT_CALLS_PLAIN /* flight_calls.c itself */
#define owner_try	       flight_owner_try
#define owner_release	       flight_owner_release
#define core_send_match	       flight_send_match
#define core_send_member       flight_send_member
#define core_send_quick	       flight_send_quick
#define core_send_equal	       flight_send_equal
#define core_send_start	       flight_send_start
#define core_send_next	       flight_send_next
#define core_send_complete     flight_send_complete
#define core_send_release      flight_send_release
#define core_recv_post	       flight_recv_post
#define core_recv_imm	       flight_recv_imm
#define core_recv_refilled     flight_recv_refilled
#define core_recv_credit       flight_recv_credit
#define core_recv_announced    flight_recv_announced
#define core_recv_release      flight_recv_release
#define core_recover_fault     flight_recover_fault
#define core_recover_fenced    flight_recover_fenced
#define core_recover_ready     flight_recover_ready
#define core_recover_verified  flight_recover_verified
#define core_recover_letter    flight_recover_letter
#define core_recover_tick      flight_recover_tick
#define core_recover_next      flight_recover_next
#define core_recover_again_done flight_recover_again_done
#endif

#endif
