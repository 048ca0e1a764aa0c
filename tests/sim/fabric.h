/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fabric.h - a packet-grained model of RC queue pairs between the two halves of a comm.
 *
 * Per lane and direction: work requests are executed in order, a WRITE's packets land one by one
 * in address order, an immediate completes after all that was posted before it; the ack comes back
 * later; a completion is seen when it is polled. Lanes are not ordered among each other.
 * Announcements are read from the staging memory when they are sent, not when they are posted;
 * their records land in any order, each in 8-byte words of increasing address.
 *
 * What a healthy comm must never do is a breach of a rule here: overflow of a send or receive
 * queue, an immediate that finds no receive WR, a record that changes while it is being sent.
 */
#ifndef SIM_FABRIC_H
#define SIM_FABRIC_H

#include "check.h"
#include "core/core.h"

enum {
	FABRIC_SQ = CORE_SQ_WRS,
	FABRIC_RING = 1024, /* places for WRs of a queue pair, posted .. polled */
	FABRIC_WORDS = sizeof(struct core_cts) / 8
};

/* A data WR of the sender. */
struct fabric_wr {
	uint64_t seq; /* message it carries bytes of */
	uint64_t addr;
	uint64_t offset;
	uint32_t bytes;
	uint32_t landed;
	uint32_t imm;
	uint32_t unit;
	bool has_imm; /* it is also signaled then */
	bool data;    /* counts as a data WR of `seq` */
	bool sizes;   /* payload: the record below */
	struct core_sizes record;
};

/* An announcement of the receiver: `n` records from `first` on, in one WR. */
struct fabric_announce {
	uint32_t first;
	uint32_t n;
	uint32_t words[CORE_GROUP_MAX]; /* landed of each record */
	bool signaled;
	bool credit;
	struct core_cts posted[CORE_GROUP_MAX]; /* what the records were when they were posted */
};

struct fabric_cqe {
	uint32_t imm;
	uint32_t bytes;
};

/* Free-running indices: posted >= landed >= acked >= ready >= polled; ready is past a signaled WR.
 */
struct fabric_queue {
	uint32_t posted, landed, acked, ready, polled;
};

struct fabric_lane {
	struct fabric_queue data;
	struct fabric_queue announce;
	uint32_t recv_wrs;	 /* empty receive WRs */
	uint32_t arrived, taken; /* receive completions, free-running */
	struct fabric_wr wr[FABRIC_RING];
	struct fabric_announce ann[FABRIC_RING];
	struct fabric_cqe cqe[FABRIC_RING];
};

/* Lanes with something to do, by kind: one bit a lane. */
struct fabric {
	struct check *check;	  /* borrowed */
	struct core_cts *staging; /* at the receiver; borrowed */
	struct core_cts *ring;	  /* at the sender; borrowed */
	struct core_sizes *sizes; /* at the receiver; borrowed */
	uint64_t can_land, can_ack, can_poll, can_take;
	uint64_t ann_land, ann_ack, ann_poll;
	uint32_t lane_count;
	struct fabric_lane lane[CORE_LANES_MAX];
};

void fabric_init(struct fabric *f, struct check *check, uint32_t lanes);

/* Sender. fabric_send posts one WR; fabric_poll takes the next completion: true with its unit. */
void fabric_send(struct fabric *f, uint32_t lane, const struct fabric_wr *wr);
bool fabric_poll(struct fabric *f, uint32_t lane, uint32_t *unit);

/* Receiver. */
void fabric_recv(struct fabric *f, uint32_t lane, uint32_t wrs);
bool fabric_take(struct fabric *f, uint32_t lane, struct fabric_cqe *cqe);
void fabric_announce(struct fabric *f, uint32_t lane, uint32_t first, uint32_t n, bool signaled,
		     bool credit);
bool fabric_announce_poll(struct fabric *f, uint32_t lane, bool *credit);

/* The wire. fabric_land moves at most `bytes` of the oldest WR; acks cover all that has landed. */
void fabric_land(struct fabric *f, uint32_t lane, uint32_t bytes);
void fabric_ack(struct fabric *f, uint32_t lane);
/* fabric_announce_land - `words` more of record `r` (taken mod those of the write) land. */
void fabric_announce_land(struct fabric *f, uint32_t lane, uint32_t r, uint32_t words);
void fabric_announce_ack(struct fabric *f, uint32_t lane);

static inline bool fabric_idle(const struct fabric *f)
{
	return (f->can_land | f->can_ack | f->can_poll | f->can_take | f->ann_land | f->ann_ack |
		f->ann_poll) == 0;
}

#endif
