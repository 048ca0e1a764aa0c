/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recover.h - drives the recovery core of every comm: letters, jobs, timers.
 *
 * The plugin thread runs it, as owner of the comm for the time of a look: it hands letters and
 * finished jobs to the core, lets it look at progress, and carries out what it says. NCCL's thread
 * only reports faults (recover_fault()) and wakes it. Verbs commands are jobs of the device's
 * worker, one at a time for each lane; a queue pair is detached from posting before a job may touch
 * it.
 */
#ifndef RAILYARD_RECOVER_H
#define RAILYARD_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/recover.h"
#include "device.h"
#include "thread.h"
#include "verbs.h"
#include "wire.h"

struct comm;

enum lane_work_phase {
	WORK_IDLE,
	WORK_FENCE,   /* job: to ERR, drain, reset or destroy */
	WORK_PREPARE, /* job: address, next queue pair to INIT */
	WORK_CONNECT  /* job: next queue pair to RTS */
};

struct lane_work;

/* A queue pair that is fenced by its reset, until it is destroyed: that may take seconds. */
struct retired {
	struct job job;
	struct retired *next;
	struct lane_work *work;
	struct ibv_qp *qp;
};

/* What is done to one lane outside of its use. The job's while one runs, else the owner's. */
struct lane_work {
	struct job job;
	struct comm *comm;
	uint8_t lane;
	uint8_t phase;       /* enum lane_work_phase */
	bool next_is_init;
	bool flush_seen;     /* a flush completion of the old queue pair */
	enum ibv_wc_status status; /* of the completion that failed first; 0 = none */
	uint32_t vendor_err;
	struct log_limit limit[3]; /* of its log lines: failed, fenced, in use */
	struct ibv_qp *old, *next;
	struct retired *retired; /* `old` was reset, not destroyed */
	struct ibv_qp *spare;    /* atomic: a queue pair to come, made before that destroy */
	bool spare_due;          /* atomic: there is none yet, nor a `next` */
	struct ibv_qp *flush_old, *flush_next; /* receiver: of the port, if that failed too */
	uint32_t generation;
	uint32_t psn;
	struct port_address from;        /* ours, as read for `next` */
	struct wire_lane_address to;     /* the peer's, by its last OFFER or ACCEPT ... */
	uint32_t to_generation;          /* ... of this generation */
	struct inbox_letter *later;      /* a question of the peer, until our fence is over */
};

struct inbox_letter {
	struct inbox_letter *next;
	struct wire_letter letter;
};

/* Part of a comm. */
struct recovery {
	struct core_recover core;
	uint32_t epoch; /* of the signals at the last look */
	uint32_t jobs;  /* lanes with a phase other than IDLE */
	bool woken;     /* a fault was reported */
	bool ending;    /* the comm is being closed: jobs must not wait */
	struct ibv_qp *flush_failed[CORE_PORTS_MAX]; /* by port, until it is made anew */
	struct inbox_letter *inbox, **inbox_tail; /* under the table's lock */
	struct retired *retired; /* whose jobs are queued, or over */
	struct lane_work work[CORE_LANES_MAX];
};

/* recover_stop - no more looks; at the last finalize. */
void recover_stop(void);

/* recover_attach - the comm is connected: look after it from now on. */
void recover_attach(struct comm *c);

/*
 * recover_completion - a completion of this lane and generation came with an error. Owner.
 * recover_fault - another cause. Both idempotent, and never wait.
 */
void recover_completion(struct comm *c, uint32_t lane, uint32_t generation,
			const struct ibv_wc *wc);
void recover_fault(struct comm *c, uint32_t lane, enum core_cause cause);

/* recover_verified, recover_again_done - completions of such writes. Owner. */
void recover_verified(struct comm *c, uint32_t lane, uint32_t generation);
void recover_again_done(struct comm *c, uint32_t lane);

/* recover_take - WIRE_LANE for this comm. Plugin thread, under the table's lock. */
void recover_take(struct comm *c, const uint8_t *body, size_t bytes);

/* recover_wake - look at all comms now. Any thread. */
void recover_wake(void);

/* recover_end - wait for the lanes' jobs (local verbs calls only), destroy what they hold. */
void recover_end(struct comm *c);

#endif
