/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * core.h - words, limits and wire records of the transfer core.
 *
 * The core decides which piece of which message goes on which lane, and when a message is done. It
 * does no I/O, reads no clock, allocates nothing and calls nobody: it works in the caller's memory,
 * `now_ns` is handed in, and what is to be done comes back as values (core_send_next(),
 * core_recv_post() ...). Five users drive the same code: plugin, unit tests, simulator, fuzzer,
 * replay. Integer arithmetic only, so that traces are equal on every compiler.
 *
 * A comm carries messages one way. Its sender half is `struct core_send` (send.h), its receiver
 * half `struct core_recv` (recv.h). Each half belongs to one thread at a time: the comm's owner.
 *
 * Wire records and the immediate are little-endian, as every host this runs on is.
 */
#ifndef RAILYARD_CORE_H
#define RAILYARD_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wire records are little-endian");

enum {
	CORE_SLOTS = 256,      /* messages of a comm that may be open at once */
	CORE_GROUP_MAX = 8,    /* members of a grouped receive */
	CORE_PORTS_MAX = 8,    /* home ports of a comm */
	CORE_LANES_MAX = 64,   /* queue pairs of a comm */
	CORE_PIECES_MAX = 256, /* pieces of a message */
	CORE_ALIGN = 128,      /* LL128 polls flags in the data: a line is never cut */
	CORE_WR_RING = 256,    /* units (pieces or groups) in flight on a lane */
	CORE_SQ_WRS = 512,     /* send WRs of a queue pair */
	CORE_RQ_WRS = 256,     /* receive WRs of a queue pair */
	CORE_RQ_BATCH = 64,    /* receive WRs posted again at a time */
	CORE_CREDIT_BLOCK = 8, /* lanes whose receive-WR counts one record carries */
	CORE_CREDIT_BLOCKS = CORE_LANES_MAX / CORE_CREDIT_BLOCK,
	CORE_RING_RECORDS = CORE_SLOTS + CORE_CREDIT_BLOCKS, /* of struct core_cts at the sender */
	CORE_IMM_GROUP = 255,  /* index of an immediate that completes a whole group */
	CORE_IMM_PROBE = 254,  /* index (of count 1) of an immediate that carries nothing */
	CORE_COST_UNIT = 65536 /* a lane's cost is the ns that this many bytes take */
};

_Static_assert(CORE_RQ_WRS <= CORE_WR_RING, "credits bound the units in flight");

/*
 * Clear-to-send: what one member of an irecv announces to the sender, RDMA-written into place
 * (message sequence mod CORE_SLOTS) of the sender's ring. The NIC writes a record in address order,
 * so a record whose last word is right is whole. A record at place CORE_SLOTS + b carries no
 * buffer (n = 0), only the receive-WR counts of lanes 8b .. 8b+7.
 */
struct core_cts {
	uint64_t addr;
	uint32_t size;   /* bytes of the buffer */
	uint32_t tag;    /* as NCCL gave it */
	uint32_t mr_id;  /* names the remote keys, which travel by control */
	uint8_t n;       /* members of this irecv, 1 .. CORE_GROUP_MAX */
	uint8_t index;   /* of this member */
	uint8_t block;   /* lanes 8*block .. that `posted` is about */
	uint8_t reserved0;
	uint8_t pressure[CORE_PORTS_MAX];    /* of the receiver's ports, 0 .. 255 */
	uint16_t posted[CORE_CREDIT_BLOCK];  /* receive WRs ever posted on the lane, mod 2^16 */
	uint64_t reserved1;
	uint64_t seq;    /* message sequence + 1; 0 = never written */
};
_Static_assert(sizeof(struct core_cts) == 64, "one record, one cache line");
_Static_assert(offsetof(struct core_cts, seq) == 56, "the sequence is the last word");
_Static_assert(offsetof(struct core_cts, posted) == offsetof(struct core_cts, pressure) + 8,
	       "pressure and counts are copied as one");

/* The NIC writes a record in address order: with the last word in place the rest is too. */
static inline bool core_record_here(const struct core_cts *rec, uint64_t seq)
{
	return __atomic_load_n(&rec->seq, __ATOMIC_ACQUIRE) == seq + 1;
}

/*
 * Sizes of a group (or of a message whose pieces do not carry them), written at first seq mod
 * CORE_SLOTS.
 */
struct core_sizes {
	uint64_t seq; /* sequence of the first member + 1 */
	uint32_t size[CORE_GROUP_MAX];
	uint8_t reserved[24];
};
_Static_assert(sizeof(struct core_sizes) == 64, "one record, one cache line");

/* The immediate names a piece completely: slot, generation of the slot, index, count - 1. */
static inline uint32_t core_imm(uint64_t seq, uint32_t index, uint32_t count)
{
	return (uint32_t)(seq & 0xff) | (uint32_t)((seq >> 8) & 0xff) << 8 | (index & 0xff) << 16 |
	       ((count - 1) & 0xff) << 24;
}

static inline uint32_t core_slot(uint64_t seq)
{
	return (uint32_t)(seq % CORE_SLOTS);
}

/* A unit that the sender saw no completion of; index and count as in its immediate. */
struct core_item {
	uint64_t seq;
	uint16_t index;
	uint16_t count;
};

/* What the receiver says of it; DONE: its message is over. */
enum core_answer { ANSWER_MISSING, ANSWER_LANDED, ANSWER_DONE };

/* Life of a lane. Only ACTIVE gets new pieces; the others belong to recovery. */
enum core_lane_state { LANE_ACTIVE, LANE_FENCING, LANE_DOWN, LANE_PROBING };

/*
 * One port as all comms of the process see it. Written by the plugin thread (or the simulator),
 * read by the core through core_word() only: each field is one word, so none can be torn.
 */
struct core_port {
	uint32_t down;     /* 1: the kernel or the peer says that the link is down: no new pieces */
	uint32_t dead;     /* 1: and that is confirmed (never told of a remote port): fence */
	uint32_t pressure; /* 0 .. 255 */
	uint32_t mbps;     /* speed, megabit/s; 0 = unknown */
	uint32_t drain;    /* 1: an operator drains it: no new pieces while another lane lives */
};

/* A word that another thread may write at any time: as cheap as a plain load. */
static inline uint32_t core_word(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/*
 * Load of one local port over all comms of the process; senders add and subtract, anyone reads.
 * Relaxed atomics: a hint for where small messages and announcements go, and for windows.
 */
struct core_load {
	uint64_t inflight_bytes;
	uint64_t rx_bytes; /* of pieces; two receivers at once may lose one: only a move counts */
	uint32_t cost_ns; /* ns per CORE_COST_UNIT bytes, last measured; 0 = unknown */
	uint32_t reserved;
};

/* What both halves are told once, at creation. */
struct core_config {
	uint32_t lane_count;              /* on home ports */
	/* lanes on borrowed ports, after those: used while no home lane can be */
	uint32_t standby_count;
	uint32_t port_count;              /* home ports of this end */
	uint32_t path_count;              /* lane i is on path i % path_count; divides lane_count */
	/* a message up to this is one piece (all ports together) */
	uint32_t small_bytes;
	/* a lane holds about this much time of work; 0 = default */
	uint32_t window_us;
	uint32_t pressure_max_pct;        /* at most this much is taken off a pressed lane's rate */
	uint32_t hash;                    /* of the comm: spreads first choices and phases */
	bool split_all;                   /* NCCL_IB_SPLIT_DATA_ON_QPS */
	bool observe;                     /* equal striping whatever is measured */
	/* bytes; above it a piece is WRITE + 0-byte WRITE_WITH_IMM */
	uint32_t ar_threshold;
	bool adaptive_routing;
	struct {
		uint8_t port;   /* local port index */
		uint8_t remote; /* remote port index */
	} lane[CORE_LANES_MAX];
	const struct core_port *local[CORE_PORTS_MAX];  /* borrowed, outlive the core */
	const struct core_port *remote[CORE_PORTS_MAX]; /* borrowed */
	/* by local port, borrowed; NULL = not kept */
	struct core_load *load[CORE_PORTS_MAX];
	const uint32_t *signal_epoch; /* borrowed; changes whenever a port's word changed */
};

#endif
