/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_ops.h - the operations: who talks to whom, what each message holds, and its check.
 *
 * To add one: a row in the table of bench_ops.c with the functions below.
 */
#ifndef RY_BENCH_OPS_H
#define RY_BENCH_OPS_H

#include "bench_engine.h"

struct bench_op {
	const char *name;
	const char *type;		/* column of the table */
	bool is_serial;			/* at a rank, iterations do not overlap */
	bool is_paired;			/* ranks 0-1, 2-3, ...; one rank alone talks to itself */
	bool is_pingpong;		/* latency is half the first sender's round trip */
	bool takes_groups;

	/* Cuts a size to what the operation can do. */
	uint64_t (*round)(const struct bench_run *run, uint64_t size);
	/* Bytes of the ring's buffer; NULL = needs none. */
	size_t (*data_bytes)(const struct bench_run *run, uint64_t size);
	/* Elements, for the table. */
	uint64_t (*count)(const struct bench_run *run, uint64_t size);
	/* busbw / algbw. */
	double (*bus_factor)(const struct bench_run *run);
	/* Sets part, steps and slices of a stream for run->size. */
	void (*shape)(struct bench_stream *stream);
	void (*locate)(const struct bench_stream *stream, struct bench_msg *msg);
	/* May the contents be written, may it be sent? NULL = always. */
	bool (*may_prepare)(const struct bench_stream *stream, const struct bench_msg *msg);
	bool (*may_send)(const struct bench_stream *stream, const struct bench_msg *msg);
	void (*produce)(struct bench_stream *stream, const struct bench_msg *msg, void *slot);
	/* Uses and checks a received message; returns how much of it is wrong. */
	size_t (*consume)(struct bench_stream *stream, const struct bench_msg *msg,
			  const void *slot, size_t *first_bad);
};

extern const struct bench_op bench_ops[BENCH_OP_COUNT];

/* BENCH_OP_COUNT when there is no such operation. */
enum bench_op_id bench_op_find(const char *name);

/* Does this rank send to or receive from @peer? */
bool bench_op_sends(const struct bench_run *run, int peer);
bool bench_op_receives(const struct bench_run *run, int peer);

/* Says what does not go together, e.g. a ring of one rank. */
int bench_op_validate(const struct bench_plan *plan, int ranks);

#endif /* RY_BENCH_OPS_H */
