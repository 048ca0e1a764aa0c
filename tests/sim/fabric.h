/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fabric.h - a packet-grained model of RC queue pairs between the two halves of a comm.
 *
 * A link is the pair of queue pairs of one generation of a lane; packets belong to their link, so
 * one that was held back finds its queue pair or none. Per link and direction: work requests are
 * executed in order, a WRITE's packets land one by one in address order, an immediate completes
 * after all that was posted before it; the NIC may ack what it has received before that is visible;
 * a completion is seen when it is polled. Links are not ordered among each other. Announcements are
 * read from the staging memory when they are sent, not when they are posted; their records land in
 * any order, each in 8-byte words of increasing address.
 *
 * Failure: a direction of a lane may be cut (nothing lands, or no ack comes back); a queue pair in
 * ERR sends no more, but what is in the network lands, and packets land on it, too, until it is
 * destroyed: only that is the fence. Destroying may delete completions that were not polled.
 *
 * What a comm must never do is a breach of a rule here: overflow of a send or receive queue, an
 * immediate that finds no receive WR, a record that changes while it may still be sent, an older
 * record over a newer one, a post without a queue pair.
 */
#ifndef SIM_FABRIC_H
#define SIM_FABRIC_H

#include "check.h"
#include "core/core.h"

enum {
	FABRIC_SQ = CORE_SQ_WRS,
	FABRIC_RING = 1024, /* places for WRs of a queue pair, posted .. polled */
	FABRIC_WORDS = sizeof(struct core_cts) / 8,
	FABRIC_LINKS = 2 /* generations of a lane that may live at once */
};

/* The two ends of a link; also the direction: from that end. */
enum fabric_end {
	END_SEND,
	END_RECV
};

enum fabric_qp {
	QP_NONE,
	QP_INIT,
	QP_READY,
	QP_ERR,
	QP_GONE
};

enum fabric_kind {
	WR_UNIT,    /* part of a unit of the core */
	WR_PROBE,   /* an empty piece of no message */
	WR_VERIFY,  /* the verified write */
	WR_RECORDS, /* announcement */
	WR_CREDITS, /* credit record */
	WR_AGAIN    /* announcement of records written before */
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
	uint8_t kind; /* enum fabric_kind */
	bool has_imm; /* it is also signaled then */
	bool data;    /* counts as a data WR of `seq` */
	bool sizes;   /* payload: the record below */
	bool lost;    /* the receiver's queue pair went before its completion was seen */
	struct core_sizes record;
};

/* An announcement of the receiver: `n` records from `first` on, in one WR. */
struct fabric_announce {
	uint32_t first;
	uint32_t n;
	uint32_t words[CORE_GROUP_MAX]; /* landed of each record */
	uint8_t kind;			/* enum fabric_kind */
	bool signaled;
	struct core_cts posted[CORE_GROUP_MAX]; /* what the records were when they were posted */
};

struct fabric_cqe {
	uint32_t imm;
	uint32_t bytes;
};

/* What a poll of a send queue finds. */
struct fabric_done {
	uint8_t kind;
	bool error;
	uint32_t unit;
};

/*
 * Free-running indices: posted >= got >= landed, got >= ackable >= acked >= ready >= polled. `got`
 * was received by the other NIC (it need not be visible), `ready` is past a signaled WR, WRs from
 * `limit` on never reach the network.
 */
struct fabric_queue {
	uint32_t posted, limit, got, landed, ackable, acked, ready, polled;
};

struct fabric_link {
	uint8_t lane, place;
	uint8_t qp[2];	/* enum fabric_qp, by end */
	bool error[2];	/* an error completion waits there */
	uint32_t generation;
	uint32_t units, credit;	 /* immediates ever sent, receive WRs ever posted */
	uint32_t recv_wrs;	 /* empty receive WRs */
	uint32_t arrived, taken; /* receive completions, free-running */
	struct fabric_queue q[2]; /* data, announcements: by the end that sends */
	struct fabric_wr wr[FABRIC_RING];
	struct fabric_announce ann[FABRIC_RING];
	struct fabric_cqe cqe[FABRIC_RING];
};

/* Links with something to do, by kind and sending end: one bit a lane. */
struct fabric {
	struct check *check;	  /* borrowed */
	struct core_cts *staging; /* at the receiver; borrowed */
	struct core_cts *ring;	  /* at the sender; borrowed */
	struct core_sizes *sizes; /* at the receiver; borrowed */
	uint64_t can_land[2][FABRIC_LINKS], can_ack[2][FABRIC_LINKS], can_poll[2][FABRIC_LINKS];
	uint64_t can_take[FABRIC_LINKS];
	uint64_t cut[2]; /* bit per lane: packets from this end are lost */
	/*
	 * Destroying deletes what was not polled. Then ERR is a barrier: what was acked before it
	 * has its completion in the queue, what lands after it is not acked.
	 */
	bool cleans;
	bool credits_change; /* a credit record may be written anew once its lane has failed */
	uint32_t lane_count;
	struct fabric_link link[CORE_LANES_MAX][FABRIC_LINKS];
};

void fabric_init(struct fabric *f, struct check *check, uint32_t lanes);

/* fabric_link - of this generation of a lane; NULL if it has none (any more). */
struct fabric_link *fabric_link(struct fabric *f, uint32_t lane, uint32_t generation);

/* fabric_create - a queue pair of a new generation in INIT; then fabric_connect: it may send. */
struct fabric_link *fabric_create(struct fabric *f, uint32_t lane, uint32_t generation,
				  enum fabric_end end);
void fabric_connect(struct fabric *f, struct fabric_link *k, enum fabric_end end);

/* fabric_error - to ERR: of the `posted - landed` WRs under way, `late` are in the network. */
void fabric_error(struct fabric *f, struct fabric_link *k, enum fabric_end end, uint32_t late,
		  bool completion);

/*
 * fabric_destroy - the queue pair goes. What its NIC has received is visible now (but for `lie`),
 * completions that nobody polled may be deleted (`clean`), and nothing lands on it any more.
 */
void fabric_destroy(struct fabric *f, struct fabric_link *k, enum fabric_end end, bool clean,
		    bool lie);

/* Work requests. fabric_poll takes the next completion of a send queue, an error at last. */
void fabric_send(struct fabric *f, struct fabric_link *k, const struct fabric_wr *wr);
void fabric_announce(struct fabric *f, struct fabric_link *k, uint32_t first, uint32_t n,
		     bool signaled, enum fabric_kind kind);
bool fabric_poll(struct fabric *f, struct fabric_link *k, enum fabric_end end,
		 struct fabric_done *done);
void fabric_recv(struct fabric *f, struct fabric_link *k, uint32_t wrs);
bool fabric_take(struct fabric *f, struct fabric_link *k, struct fabric_cqe *cqe);

/* The wire. fabric_land moves at most `bytes` of the oldest WR; acks cover what was received. */
void fabric_land(struct fabric *f, struct fabric_link *k, uint32_t bytes);
/* fabric_announce_land - `words` more of record `r` (taken mod those of the write) land. */
void fabric_announce_land(struct fabric *f, struct fabric_link *k, uint32_t r, uint32_t words);
/* fabric_get - the NIC receives `n` more WRs than have landed, and may ack them. */
void fabric_get(struct fabric *f, struct fabric_link *k, enum fabric_end end, uint32_t n);
void fabric_ack(struct fabric *f, struct fabric_link *k, enum fabric_end end);
void fabric_cut(struct fabric *f, enum fabric_end from, uint64_t lanes);

static inline bool fabric_path_cut(const struct fabric *f, const struct fabric_link *k)
{
	return ((f->cut[0] | f->cut[1]) >> k->lane & 1) != 0;
}

/* Something was sent and not acked. */
static inline bool fabric_waits(const struct fabric_link *k, enum fabric_end end)
{
	return k->qp[end] == QP_READY && k->q[end].acked != k->q[end].posted;
}

bool fabric_idle(const struct fabric *f);

#endif
