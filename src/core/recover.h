/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recover.h - failure and recovery of the lanes of one half of a comm, as a state machine.
 *
 * Pure, as all of the core: what happened comes in by calls, what is to be done goes out by
 * core_recover_next(). Letters to the other half travel over a channel that is reliable and
 * ordered (control); nothing here is repeated, and a letter of an old generation changes nothing.
 * The table of states and timers opens recover.c.
 *
 * Thread: the comm's owner, as for core_send and core_recv.
 */
#ifndef RAILYARD_CORE_RECOVER_H
#define RAILYARD_CORE_RECOVER_H

#include "recv.h"
#include "send.h"

/* Why a lane is fenced; the first cause, never the flush that followed it. */
enum core_cause {
	CAUSE_NONE,
	CAUSE_COMPLETION, /* a work request failed */
	CAUSE_PORT,       /* the local port is down, confirmed */
	CAUSE_FATAL,      /* the device or the queue pair says so by an async event */
	CAUSE_POST,       /* posting failed */
	CAUSE_STALL,      /* no progress while another lane had some */
	CAUSE_SETUP,      /* a step of making the next generation failed */
	CAUSE_VERIFY,     /* the verified write did not complete in time */
	CAUSE_PEER,       /* the other half says so */
	CAUSE_COUNT
};

enum core_letter_type {
	LETTER_FAULT = 1, /* I fence this generation, do so too */
	LETTER_FENCED,    /* my queue pair of this generation can do nothing more */
	LETTER_ASK,       /* sender, fenced: which of these have landed? Of generation 0: no
			     question, only `acked` */
	LETTER_ANSWER,    /* receiver: `answer`, item by item */
	LETTER_OFFER,     /* sender: a queue pair of a new generation */
	LETTER_ACCEPT,    /* receiver: connected to it, mine; `posted` */
	LETTER_REFUSE,    /* receiver: not now */
	LETTER_CONNECTED, /* sender: mine is connected too: write */
	LETTER_LIVE       /* my verified write is through */
};

struct core_letter {
	uint8_t type; /* enum core_letter_type; 0 = none */
	uint8_t lane;
	uint8_t cause;       /* FAULT: enum core_cause */
	uint32_t generation; /* that it is about */
	uint16_t posted;     /* ACCEPT: count of receive WRs, mod 2^16 */
	uint16_t n;          /* ASK, ANSWER: items */
	uint64_t acked;      /* ASK: all messages before this one were acknowledged whole */
	struct core_item item[CORE_WR_RING];  /* ASK */
	uint8_t answer[CORE_WR_RING];         /* ANSWER: enum core_answer */
};

/* State of a lane, finer than enum core_lane_state; the table is in recover.c. */
enum core_recover_state {
	RL_ACTIVE,
	RL_FENCING,
	RL_FENCED,
	RL_ASKED,
	RL_DOWN,
	RL_PREPARING,
	RL_OFFERED,
	RL_CONNECTING,
	RL_READY,
	RL_VERIFYING,
	RL_WAIT_LIVE
};

struct core_recover_lane {
	uint8_t state; /* enum core_recover_state */
	uint8_t cause; /* enum core_cause, of the last fault */
	bool heard;    /* the peer knows of this generation */
	bool busy;     /* a job of the owner's is under way */
	bool blocked;  /* a port's word kept it from being tried */
	bool peer_live;
	bool stalled;  /* the last fault was a suspicion of ours */
	bool asked;    /* receiver: a record was written again to see it move */
	bool waits;    /* sender: something was in flight at the last look */
	uint8_t tries; /* failed ones since it was active */
	uint8_t patience; /* doublings of its patience: it was suspected in vain */
	uint8_t shown;    /* receiver: times it has moved since it was opened, to 255 */
	uint16_t seen; /* at the last look: units completed (sender), immediates (receiver) */
	uint32_t todo; /* what core_recover_next() has to hand out: recover.c's */
	uint16_t peer_posted;
	uint32_t generation;
	uint32_t peer_fenced; /* newest generation that the peer has fenced */
	uint32_t refused;     /* generation of the offer to refuse */
	uint32_t opened;      /* newest generation that was ACTIVE */
	uint32_t again, landed; /* of the last fence: units sent again, units that had landed */
	uint64_t fault_ns, opened_ns, since_ns; /* last fault, last opening, last change of state */
	uint64_t retry_ns; /* sender, DOWN: not before */
	uint64_t hold_ns;  /* extra wait of a lane that flaps */
	uint64_t still_ns; /* no progress since */
	uint64_t moved_ns; /* last progress */
	uint64_t doubt_ns; /* how long it stands still, by our own clock */
	uint64_t proof_ns; /* of that, since another lane has moved */
};

/* Times, ns. */
struct core_recover_times {
	uint64_t stall_ns;  /* no progress for so long is suspect */
	uint64_t retest_ns; /* longest pause between tries is twice this */
	uint64_t verify_ns; /* a verified write that takes longer has failed */
	uint64_t outage_ns; /* no lane for so long: the comm fails */
};

struct core_recover {
	struct core_send *send; /* one of the two, borrowed */
	struct core_recv *recv;
	const struct core_config *cfg; /* of that one */
	struct core_recover_times times;
	uint32_t lane_count;  /* standby lanes included */
	uint64_t todo;        /* bit per lane with something to hand out */
	uint64_t outage_ns;   /* no lane since; 0 = there is one */
	uint8_t first_cause;  /* of the outage */
	uint8_t first_lane;
	bool failed, fail_told;
	bool hole;            /* the comm fails because acknowledged data is missing */
	bool want_standby;
	uint8_t tell_lane;
	uint64_t tell_to; /* sender: to tell once all messages before this are complete; 0 = no */
	uint64_t acked; /* receiver: messages before this one were acknowledged, the peer says */
	uint64_t hole_seq, hole_ns; /* one of them that is open, and since when it is the oldest */
	uint64_t quiet_ns, quiet_wait_ns; /* receiver: nothing arrived since; next doubt after */
	uint32_t arrivals;
	uint64_t tick_ns; /* last core_recover_tick() */
	uint64_t passed_ns; /* before it, by our own clock */
	uint64_t now_ns;  /* the latest time told */
	struct core_recover_lane lane[CORE_LANES_MAX];
};

enum core_action_type {
	ACT_FENCE,    /* detach the queue pair; then core_recover_fenced() */
	ACT_PREPARE,  /* sender: read the port anew, next queue pair to INIT; then ready() */
	ACT_CONNECT,  /* connect to the peer's; receiver posts receive WRs; core_recover_ready() */
	ACT_VERIFY,   /* post the verified write of a full MTU; then core_recover_verified() */
	ACT_LETTER,   /* send `letter` */
	ACT_PROBE,    /* sender: post `post` (an empty piece) */
	ACT_ANNOUNCE, /* receiver: write `announce` */
	ACT_SAY_FAILED, ACT_SAY_FENCED, ACT_SAY_OPEN, /* one log line about the lane */
	ACT_FAIL      /* the comm fails: outage, or `hole` */
};

struct core_action {
	enum core_action_type type;
	uint32_t lane;
	uint32_t generation;
	struct core_post post;
	struct core_announce announce;
};

/*
 * core_recover_init - for one half; `send` or `recv` is NULL. All lanes are ACTIVE in generation 1
 * afterwards but standby lanes, which are DOWN in generation 0, and those in `down`, DOWN in 1.
 */
void core_recover_init(struct core_recover *r, const struct core_recover_times *times,
		       struct core_send *send, struct core_recv *recv, uint64_t down,
		       uint64_t now_ns);

/*
 * core_recover_fault - a lane has failed in this generation. Idempotent; of another generation:
 * nothing. True if this began the fence.
 */
bool core_recover_fault(struct core_recover *r, uint32_t lane, uint32_t generation,
			enum core_cause cause, uint64_t now_ns);

/* core_recover_fenced - ACT_FENCE is over: destroyed, and every completion has been fed. */
void core_recover_fenced(struct core_recover *r, uint32_t lane, uint64_t now_ns);

/* core_recover_ready - ACT_PREPARE or ACT_CONNECT is over; rc 0 or -errno. */
void core_recover_ready(struct core_recover *r, uint32_t lane, int rc, uint64_t now_ns);

/* core_recover_verified - the verified write of this generation has completed. */
void core_recover_verified(struct core_recover *r, uint32_t lane, uint32_t generation,
			   uint64_t now_ns);

enum { CORE_LETTER_LATER = 1 };

/*
 * core_recover_letter - a letter of the other half. All completions must have been fed before a
 * LETTER_ASK. *answer is the letter to send back, type 0 if none. Returns 0; CORE_LETTER_LATER: it
 * is to be kept, and given again once core_recover_fenced() of its lane was called and
 * core_recover_next() has nothing more; -EPROTO: it makes no sense, the comm must fail.
 */
int core_recover_letter(struct core_recover *r, const struct core_letter *in,
			struct core_letter *answer, uint64_t now_ns);

/* core_recover_tick - look at ports, timers and progress; at core_recover_deadline_ns(). */
void core_recover_tick(struct core_recover *r, uint64_t now_ns);
uint64_t core_recover_deadline_ns(const struct core_recover *r);

/*
 * core_recover_next - what is to be done; false: nothing. `letter` is filled for ACT_LETTER. To be
 * called until false after any of the calls above; then core_send_next() may have pieces to send
 * again, and core_recv_credit() counts to tell.
 */
bool core_recover_next(struct core_recover *r, struct core_action *out,
		       struct core_letter *letter, uint64_t now_ns);

/* core_recover_again_done - receiver: an announcement with `again` has completed. */
void core_recover_again_done(struct core_recover *r, uint32_t lane, uint64_t now_ns);

/* core_cause_text - in words, for log lines. */
const char *core_cause_text(enum core_cause cause);

#endif
