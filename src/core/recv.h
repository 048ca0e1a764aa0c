/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recv.h - the receiver half of a comm: announcing buffers, taking pieces, re-posting receive WRs.
 *
 * Life of a receive here: core_recv_post() takes n slots, fills their records in the staging ring
 * and says on which lane to RDMA-write them; core_recv_imm() takes each arrived immediate;
 * core_recv_done() says when all members are in; core_recv_release() frees the slots.
 *
 * Invariants: slots are given out in sequence order; a piece is counted once; an immediate of
 * another slot generation changes nothing; a record's place is used again only after its message
 * is done (so the peer has read it) and no other copy of it can land any more: a record is written
 * again when a lane that may have lost it fails, and as a proof that a lane moves.
 */
#ifndef RAILYARD_CORE_RECV_H
#define RAILYARD_CORE_RECV_H

#include "core.h"

/* At most: two of announcements, one credit record, one of those written again. */
enum { CORE_ANNOUNCE_SIGNALS = 4 };

enum core_slot_state { SLOT_FREE, SLOT_OPEN, SLOT_DONE };

struct core_recv_slot {
	uint64_t seq;
	uint64_t bits[CORE_PIECES_MAX / 64];
	uint32_t room;    /* bytes of the buffer that nothing has arrived for */
	uint16_t count;   /* pieces; 0 = not known yet: none is in */
	uint16_t missing; /* of them, if known */
	uint32_t size;    /* of the buffer */
	uint8_t state;    /* enum core_slot_state */
	uint8_t n;        /* members of its irecv */
	uint8_t left;     /* first member's slot: members not done */
	uint8_t first;    /* slot of the first member */
	uint8_t reserved[8];
};
_Static_assert(sizeof(struct core_recv_slot) == 64, "one slot, one cache line");

struct core_recv_lane {
	uint8_t state; /* enum core_lane_state */
	uint8_t port;
	uint8_t remote;
	uint8_t reserved0;
	uint32_t generation;
	uint16_t posted;    /* receive WRs ever posted, mod 2^16 */
	uint16_t announced; /* the count that the peer has been told last */
	uint16_t taken;     /* consumed and not posted again yet */
	uint16_t sq_used;   /* announcement writes since the last completed one */
	uint16_t unsignaled;
	uint8_t covers_head, covers_tail;
	/* writes that each signaled one in flight stands for */
	uint16_t covers[CORE_ANNOUNCE_SIGNALS];
	bool again_out; /* a record written again is on its way here */
	uint8_t reserved1[3];
};
_Static_assert(sizeof(struct core_recv_lane) == 32, "lanes are found by a shift");

struct core_recv {
	/* [CORE_RING_RECORDS], what is RDMA-written; caller's, zeroed */
	struct core_cts *staging;
	/* [CORE_SLOTS], written by the peer's NIC; caller's, zeroed */
	const struct core_sizes *sizes;
	uint64_t next;         /* sequence of the next message */
	uint64_t active;       /* bit per lane that may carry announcements */
	uint32_t epoch;
	uint8_t cts_lane;
	bool model_old;
	bool credit_busy;      /* a credit record is on its way */
	bool credit_waits;     /* one is due, but no lane could carry it: ask again */
	uint8_t credit_block;
	struct core_cts model; /* pressure and counts as the next records tell them */
	uint64_t stale_imms;   /* immediates of another slot generation, dropped */
	/*
	 * Messages guard_from .. guard_to - 1 have more than one copy of their record under way:
	 * until none is, nothing may be announced in their places.
	 */
	uint64_t guard_from, guard_to;
	uint64_t guard_lanes;  /* failed ones whose copies may land: not fenced at both ends */
	/* working ones that have to complete a write first; and those where it is under way */
	uint64_t guard_old, guard_sent;
	uint64_t again_from;   /* records from here to again_to are to be written again */
	uint64_t again_to;
	uint32_t again_count;  /* lanes with again_out */
	uint8_t credit_lane;   /* carries the credit record that is on its way */
	struct core_config cfg;
	struct core_recv_slot slot[CORE_SLOTS];
	struct core_recv_lane lane[CORE_LANES_MAX];
};

/*
 * One RDMA write of staging records: `n` records from `first` on (it wraps at CORE_SLOTS: then two
 * WRs).
 */
struct core_announce {
	uint32_t lane;
	uint32_t first;
	uint32_t n;
	bool signaled; /* complete it, and tell core_recv_announced() */
	bool credit;   /* a credit record */
	bool again;    /* a record that was written before; tell core_recv_again_done() */
};

int core_recv_init(struct core_recv *c, const struct core_config *cfg, struct core_cts *staging,
		   const struct core_sizes *sizes);
void core_recv_lane_open(struct core_recv *c, uint32_t i, uint32_t generation, uint16_t posted);
void core_recv_lane_state(struct core_recv *c, uint32_t i, enum core_lane_state state);

/* core_recv_lane_base - the count of receive WRs to open a lane's next generation with. */
uint16_t core_recv_lane_base(const struct core_recv *c, uint32_t lane);

/*
 * core_recv_lane_fault - a lane has failed: nothing more goes there, and what it may have lost of
 * announcements goes again by core_recv_again(). core_recv_lane_fenced - it is fenced at both ends.
 */
void core_recv_lane_fault(struct core_recv *c, uint32_t lane);
void core_recv_lane_fenced(struct core_recv *c, uint32_t lane);

/* core_recv_again - the next write of records that are to be written again; false: none now. */
bool core_recv_again(struct core_recv *c, struct core_announce *out);

/*
 * core_recv_probe - write the oldest open record again on this lane, to see whether it moves;
 * false: nothing is open, or the lane has no room.
 */
bool core_recv_probe(struct core_recv *c, uint32_t lane, struct core_announce *out);

/* core_recv_again_done - such a write has completed. */
void core_recv_again_done(struct core_recv *c, uint32_t lane);

/*
 * core_recv_answer - has this unit of a fenced lane landed? Returns enum core_answer; -EPROTO:
 * there is no such message or piece.
 */
int core_recv_answer(const struct core_recv *c, const struct core_item *item);

/* core_recv_oldest - sequence of the oldest message not complete; `next` if there is none. */
uint64_t core_recv_oldest(const struct core_recv *c);

/* core_recv_arrivals - immediates that ever arrived, mod 2^32: only a move counts. */
uint32_t core_recv_arrivals(const struct core_recv *c);

/* core_recv_lane_arrivals - the same of one lane, mod 2^16. */
uint16_t core_recv_lane_arrivals(const struct core_recv *c, uint32_t lane);

/* One member of an irecv. */
struct core_recv_buffer {
	uint64_t addr;
	uint32_t size;
	uint32_t tag;
	uint32_t mr_id;
};

/*
 * core_recv_post - take n slots, fill their records, say where to write them. *slot is the first.
 * Returns 0; -EAGAIN: slots in use, no live lane, or the send queue is full.
 */
int core_recv_post(struct core_recv *c, uint32_t n, const struct core_recv_buffer *buffers,
		   uint32_t *slot, struct core_announce *out);

/*
 * core_recv_imm - an immediate arrived on a lane with `bytes` of payload.
 * Returns 0; -ESTALE: another generation, counted and dropped; -EPROTO: impossible (index, count,
 * more bytes than the buffer, a piece twice): the comm must fail.
 */
int core_recv_imm(struct core_recv *c, uint32_t lane, uint32_t imm, uint32_t bytes);

/* core_recv_announced - a signaled announcement on a lane has completed. */
void core_recv_announced(struct core_recv *c, uint32_t lane, bool credit);

/* core_recv_done - are all members of the receive that starts at `slot` in? */
static inline bool core_recv_done(const struct core_recv *c, uint32_t slot)
{
	return c->slot[slot].left == 0;
}

/* core_recv_size - bytes that arrived for member `i` of the receive at `slot`. */
static inline uint32_t core_recv_size(const struct core_recv *c, uint32_t slot, uint32_t i)
{
	const struct core_recv_slot *s = &c->slot[(slot + i) % CORE_SLOTS];

	return s->size - s->room;
}

void core_recv_release(struct core_recv *c, uint32_t slot);

/*
 * core_recv_refill - receive WRs to post on a lane now: 0 or CORE_RQ_BATCH. The caller posts them
 * and then calls core_recv_refilled().
 */
static inline uint32_t core_recv_refill(const struct core_recv *c, uint32_t lane)
{
	return c->lane[lane].taken >= CORE_RQ_BATCH ? CORE_RQ_BATCH : 0;
}

void core_recv_refilled(struct core_recv *c, uint32_t lane, uint32_t n);

/*
 * core_recv_credit - is a credit record due (many pieces came, no irecv told the new counts)? To be
 * asked after core_recv_refilled(), after a credit record was announced, and whenever a poll finds
 * `credit_waits` set: the peer may be out of credits, so nothing else would come to ask.
 */
bool core_recv_credit(struct core_recv *c, struct core_announce *out);

#endif
