/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * world.h - one run: two halves of a comm, their applications, the wire, an adversary.
 *
 * The adversary picks one enabled event at a time (a post, a packet, an ack, a poll, a port word, a
 * cut, a letter ...) until its budget is spent; then the world heals: ports come up, everything
 * moves, and all messages must be done and all home lanes be in use within a bound; or it ends in
 * an outage, and both halves must say so in time. Time is virtual. The world drives the core as the
 * plugin does and looks at it only through its functions; what is right is judged by the checker.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <stdio.h>

#include "check.h"
#include "choice.h"
#include "core/recover.h"
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
	EV_GET,      /* a NIC receives what is not visible yet */
	EV_LETTER,   /* a letter arrives */
	EV_JOB,      /* a slow command takes a step */
	EV_TICK,     /* an owner looks at its timers */
	EV_ACT,      /* an owner does what its recovery asks for */
	EV_FAULT,    /* something breaks */
	EV_MEND,     /* what was cut is whole again */
	EV_RETRY,    /* a queue pair gives up */
	EV_WORD,     /* an end hears what its ports, or the peer's, are like */
	EV_PAUSE,    /* a process stops, or goes on */
	EV_COUNT
};

enum world_scope {
	SCOPE_RANDOM, /* everything from the choices */
	SCOPE_SMALL,  /* fixed small comm, only events from the choices */
	SCOPE_STATES  /* the same for search.c, and lanes may fail */
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
	bool pairs; /* SCOPE_STATES */
	bool faulty;	      /* recovery is at work */
	bool calm;	      /* nothing breaks, but processes pause: no lane may be given up */
	bool liar;	      /* a NIC may lose what it acked */
	bool outage;	      /* the run ends with all cut, not with healing */
	bool flushes;	      /* ERR makes error completions */
	bool cleans;	      /* destroying deletes completions */
	bool lates;	      /* packets land after ERR */
	bool lazy_act;	      /* what recovery asks for waits for its event */
	uint32_t faults;      /* that may still come */
	uint32_t job_fails;   /* one in so many, 0 = none */
	uint32_t post_fails;  /* one in so many, 0 = none */
	struct core_recover_times times;
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

enum world_job_kind {
	JOB_NONE,
	JOB_FENCE,
	JOB_PREPARE,
	JOB_CONNECT
};

/* A slow command of an owner about a lane. */
struct world_job {
	uint8_t kind, phase;
	uint32_t generation;
};

/* Recovery at one end, as the plugin has it. */
struct world_owner {
	struct core_recover recover;
	struct world_job job[CORE_LANES_MAX];
	uint64_t jobs;			     /* bit per lane with one */
	uint32_t generation[CORE_LANES_MAX]; /* of the queue pair in use; 0 = none */
	uint64_t open;			     /* bit per lane, as the end's log says */
	uint64_t said[CORE_LANES_MAX];	     /* lines about a lane */
	uint64_t shut_ns;		     /* no lane is open since; 0 = one is */
	uint64_t tick_ns;		     /* last look at the timers */
	uint32_t head, tail;		     /* of the letters to this end */
	uint32_t spins;			     /* looks in a row that left a timer due */
	bool paused, failed;
};

enum {
	SCRIPT_RING = 4096,
	LETTER_RING = 1024
};

struct world {
	struct choice *choice; /* borrowed */
	FILE *trace;	       /* NULL: silent */
	uint64_t hash;
	uint64_t now_ns;
	uint64_t steps;
	bool healing;
	uint64_t heal_ns; /* since then */
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
	uint64_t moves;	       /* letters, jobs, faults: what is progress besides messages */
	uint64_t port_cut[2];  /* bit per port that is broken, by end */
	uint64_t lane_cut[2];  /* bit per lane that is cut besides, by sending end */
	struct world_owner owner[2]; /* by enum fabric_end */
	uint32_t lanes;		     /* standby lanes included */
	uint64_t seq_of_slot[CORE_SLOTS];      /* of open sends */
	struct core_cts staging[CORE_RING_RECORDS], ring[CORE_RING_RECORDS];
	struct core_sizes sizes[CORE_SLOTS];
	struct core_send core_send;
	struct core_recv core_recv;
	struct core_letter letter[2][LETTER_RING]; /* by the end that they go to */
	struct fabric fabric;
	struct check check;
};

/*
 * world_run - one run with the answers of `choice`. check.rule tells whether a rule was broken.
 * The memory of `w` may be what an earlier run left.
 */
void world_run(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace);

/* world_begin - the same up to the first event; world_done, world_well - what it ends with. */
void world_begin(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace);
bool world_done(const struct world *w);
bool world_well(const struct world *w);

/* Parts, for the files of the world only. */
void shape_draw(struct world *w, enum world_scope scope);
void script_reach(struct world *w, uint64_t end);
void world_note(struct world *w, const char *what, uint64_t a, uint64_t b, uint64_t c);

static inline bool world_failed(const struct world *w)
{
	return w->check.rule != NULL;
}

/* One of the links that a mask of the fabric names. */
struct fabric_link *link_pick(struct world *w, const uint64_t mask[FABRIC_LINKS]);

/* data.c: what the application and the data path of either end do. */
bool ev_recv_post(struct world *w);
bool ev_send_try(struct world *w);
bool send_try(struct world *w, uint32_t tag);
bool send_test(struct world *w, uint32_t i);
bool recv_test(struct world *w, uint32_t i);
bool recv_can_post(struct world *w);
void pump(struct world *w);
void refill(struct world *w);
void announce(struct world *w, const struct core_announce *a);
void announce_land(struct world *w, struct fabric_link *k);
void post(struct world *w, const struct core_post *p);
void data_poll(struct world *w, struct fabric_link *k, enum fabric_end end, uint32_t most);
void data_take(struct world *w, struct fabric_link *k, uint32_t most);
bool link_polled(const struct world *w, const struct fabric_link *k, enum fabric_end end);
void epoch_change(struct world_end *end);
void word_changed(struct world_end *end, uint32_t side);

/* owner.c: recovery at either end, and what breaks. */
void owner_init(struct world *w);
void owner_act(struct world *w, enum fabric_end end);
void owner_after(struct world *w, enum fabric_end end);
bool owner_fault(struct world *w, enum fabric_end end, uint32_t lane, uint32_t generation,
		 enum core_cause cause);
void owner_tick(struct world *w, enum fabric_end end);
void owner_letter(struct world *w, enum fabric_end end);
void owner_job(struct world *w, enum fabric_end end, uint32_t lane);
bool owner_attached(const struct world *w, enum fabric_end end, uint32_t lane);
uint64_t owner_deadline_ns(const struct world *w);
void fault_draw(struct world *w);
void fault_mend(struct world *w);
void fault_retry(struct world *w);
void fault_word(struct world *w);
void fault_pause(struct world *w);
void fault_cut_all(struct world *w);
void fault_heal(struct world *w);
void cuts_apply(struct world *w);
bool retry_possible(const struct world *w);

#endif
