/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_engine.h - moves the messages of an operation through a plugin, as NCCL's proxy does.
 *
 * A stream is one direction of one connection: an endless row of messages, numbered from 0 for each
 * size, of which a window is outstanding. Each pass tests what is outstanding, posts what may be
 * posted, then looks at what has arrived. What a message is - its place, size, contents - is the
 * operation's business (bench_ops.h).
 *
 * Invariant: an idle receive slot holds the canary pattern from its arrival until it is posted
 * again, and there are twice as many slots as the window, so each rests for a window of messages.
 * Must not: block, or call the plugin for a request that test() has reported done.
 */
#ifndef RY_BENCH_ENGINE_H
#define RY_BENCH_ENGINE_H

#include "bench.h"
#include "bench_meet.h"
#include "bench_net.h"
#include "bench_stat.h"

struct bench_op;
struct bench_run;

enum {
	BENCH_REQUESTS_MAX = BENCH_WINDOW_MAX * BENCH_GROUP_MAX,
	BENCH_GUARD_BYTES = 64,		/* behind every slot, never posted */
};

/* No run reaches this many iterations. */
#define BENCH_ITERS_MAX (UINT64_C(1) << 40)

struct bench_request {
	void *request;
	uint64_t posted_ns;
	bool is_finished;
	int sizes[BENCH_GROUP_MAX];	/* as told by test() */
};

struct bench_stream {
	struct bench_run *run;
	struct bench_stream *twin;	/* a send's receive that feeds it, or NULL */
	bool is_send;
	int peer;
	int comm_idx;
	int dev;
	void *comm, *listen_comm, *mhandle;
	uint8_t handle[RY_NET_HANDLE_BYTES_MAX];	/* connect may keep its progress in it */

	uint8_t *arena;			/* [slot_count][stride] */
	size_t arena_bytes, stride;
	uint32_t slot_count;

	/* Of the present size; set by the operation's shape(). */
	uint64_t part_offset;		/* this connection's part of a message */
	uint64_t part_bytes;
	uint64_t steps;			/* messages per iteration; a multiple of the group */
	uint64_t slices;		/* ring: messages per step of the ring */
	size_t capacity;		/* what is posted for a receive */

	/* Progress since the size began, in requests (one message, or one group of a receive):
	 * done <= arrived <= posted <= prepared. */
	uint64_t prepared, posted, arrived, done;
	struct bench_request requests[BENCH_REQUESTS_MAX];
};

/* Where a message lies in its iteration. */
struct bench_msg {
	uint64_t number;		/* in its stream */
	uint64_t iter;
	uint64_t offset;		/* bytes, in the operation's data */
	size_t bytes;
	uint32_t member;		/* of its group */
	uint32_t step;			/* of the ring */
	uint32_t block;			/* of the ring */
};

struct bench_run {
	const struct bench_plan *plan;
	const struct bench_local *local;
	const struct bench_op *op;
	struct bench_net *net;
	struct bench_meet *meet;
	int rank, ranks;
	int devs[BENCH_DEVS_MAX];
	int dev_count;
	struct bench_stream *streams;	/* [stream_count] */
	int stream_count;
	uint8_t *data;			/* of ring operations */
	size_t data_bytes;

	uint64_t size;			/* present size */
	uint64_t epoch;			/* which size of the run: part of the payload */
	uint64_t current;		/* serial operations: iteration that is open */
	uint64_t last;			/* iterations to do, counted from the start of the size */
	uint64_t iter_start_ns;
	uint64_t moved_ns;		/* when anything last went on */
	uint64_t looked_ns;
	uint64_t lost_ns;		/* --linger: since when a rank is gone; 0 = all are there */
	uint64_t stop_ns;		/* rank 0: when to stop; 0 = by iterations */
	bool is_open_ended;		/* last is not agreed yet */
	uint64_t begun_max;		/* rank 0: answers to MEET_STOP */
	int begun_answers;
	unsigned complaints;		/* lines about wrong data so far */
	struct bench_meter meter;
};

/* Prepares all streams for @size. */
int engine_start_size(struct bench_run *run, uint64_t size);

/* Runs @iters further iterations, or for plan->duration_s seconds when @iters is 0. */
int engine_run(struct bench_run *run, uint64_t iters);

/* Looks for late writes in every idle receive slot; counts them. */
void engine_check_idle(struct bench_run *run);

#endif /* RY_BENCH_ENGINE_H */
