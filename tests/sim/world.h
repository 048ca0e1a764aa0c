/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * world.h - one run: two halves of a comm, their applications, the wire, an adversary.
 *
 * The adversary picks one enabled event at a time (a post, a packet, an ack, a poll, a port word
 * ...) until its budget is spent; then the world heals: ports come up, everything moves, and all
 * messages must be done within a bound. Time is virtual. The world drives the core as the plugin
 * does and looks at it only through its functions; what is right is judged by the checker.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <stdio.h>

#include "check.h"
#include "choice.h"
#include "core/recv.h"
#include "core/send.h"
#include "fabric.h"

/* Events. 0 is the one that a shortened run falls back to. */
enum world_event {
	EV_PUMP,      /* sender: hand out pieces */
	EV_RECV_POST, /* receiver: irecv */
	EV_SEND_TRY,  /* sender: isend */
	EV_SEND_POLL, /* sender: take completions of a lane */
	EV_SEND_TEST,
	EV_RECV_POLL, /* receiver: take completions of a lane */
	EV_RECV_TEST,
	EV_REFILL, /* receiver: post receive WRs, tell credits */
	EV_LAND,   /* a packet of data */
	EV_ACK,
	EV_ANN_LAND, /* words of an announcement */
	EV_ANN_ACK,
	EV_ANN_POLL, /* receiver: completion of an announcement */
	EV_PORT,     /* a port's word changes */
	EV_TIME,     /* time jumps */
	EV_COUNT
};

enum world_scope {
	SCOPE_RANDOM, /* everything from the choices */
	SCOPE_SMALL   /* fixed small comm, only events from the choices */
};

enum {
	WORLD_TAGS = 9,
	WORLD_GROUPS = 256
};

/* What the adversary draws once per run: which faults at all, and how much of each. */
struct world_shape {
	uint32_t messages;
	uint32_t steps;
	uint32_t step_ns;
	uint32_t tags;
	uint32_t group_max;
	uint32_t bytes_max;
	uint32_t packet;
	uint32_t recv_open_max; /* messages */
	uint32_t send_open_max;
	uint32_t credit; /* receive WRs at the start */
	uint32_t ghosts; /* immediates of another slot generation that may arrive */
	bool torn;	 /* announcements land in parts */
	bool lazy_pump, lazy_refill;
	bool skip_completions; /* one completion may stand for several */
	bool quick;	       /* the sender tries core_send_quick() first */
	bool fixed_sizes;
	uint32_t weight[EV_COUNT];
	uint32_t lane_weight[CORE_LANES_MAX];
};

/* What is to be sent, by message; made just before it is needed. */
struct world_script {
	uint32_t tag, recv_bytes, send_bytes;
	uint8_t n, index;
};

struct world_send {
	uint64_t seq;
	uint32_t slot;
};

struct world_recv {
	uint64_t first;
	uint32_t n, slot;
	uint32_t buffer[CORE_GROUP_MAX];
};

struct world_end {
	struct core_port port[2][CORE_PORTS_MAX]; /* [0] local, [1] remote, as this end sees them */
	uint32_t told_down[2], told_drain[2];	  /* all the time since the epoch last changed */
	uint32_t maybe[2];			  /* down or drained at some time since */
	uint32_t epoch;
	struct core_load load[CORE_PORTS_MAX];
	bool load_kept;
};

enum {
	SCRIPT_RING = 4096
};

struct world {
	struct choice *choice; /* borrowed */
	FILE *trace;	       /* NULL: silent */
	uint64_t hash;
	uint64_t now_ns;
	uint64_t steps;
	bool healing;
	struct world_shape shape;
	struct core_config cfg_send, cfg_recv;
	struct world_end end[2]; /* 0 sender, 1 receiver */
	struct world_script script[SCRIPT_RING];
	uint64_t script_end;
	uint64_t tag_next[WORLD_TAGS]; /* first message of this tag that is not sent yet */
	struct world_send send[CORE_SLOTS];
	uint32_t send_count;
	struct world_recv recv[WORLD_GROUPS];
	uint32_t recv_count, recv_msgs;
	uint32_t free_buffer[CHECK_BUFFERS];
	uint32_t free_count;
	uint64_t credit_total[CORE_LANES_MAX]; /* receive WRs ever posted */
	uint64_t unit_total[CORE_LANES_MAX];   /* immediates ever sent */
	uint64_t seq_of_slot[CORE_SLOTS];      /* of open sends */
	struct core_cts staging[CORE_RING_RECORDS], ring[CORE_RING_RECORDS];
	struct core_sizes sizes[CORE_SLOTS];
	struct core_send core_send;
	struct core_recv core_recv;
	struct fabric fabric;
	struct check check;
};

/*
 * world_run - one run with the answers of `choice`. check.rule tells whether a rule was broken.
 * The memory of `w` may be what an earlier run left.
 */
void world_run(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace);

/* Parts, for world.c only. */
void shape_draw(struct world *w, enum world_scope scope);
void script_reach(struct world *w, uint64_t end);
void world_note(struct world *w, const char *what, uint64_t a, uint64_t b, uint64_t c);

#endif
