/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_stat.h - what one rank measures for one size, and how the ranks' figures are joined.
 *
 * Latencies go into a log-linear histogram (relative error below 1/64), so memory is fixed however
 * long the run is. Bytes count when their receive is done. The struct travels as it is: all ranks
 * run the same build.
 */
#ifndef RY_BENCH_STAT_H
#define RY_BENCH_STAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	HIST_SUB_BITS = 6,		/* 64 buckets per power of two */
	HIST_BUCKETS = (48 << HIST_SUB_BITS),
};

struct bench_hist {
	uint64_t count;
	uint64_t max;
	uint64_t bucket[HIST_BUCKETS];
};

void hist_add(struct bench_hist *hist, uint64_t value);
void hist_join(struct bench_hist *hist, const struct bench_hist *more);

/* Smallest value that at least @permille of 1,000 samples do not exceed; 0 when empty. */
uint64_t hist_permille(const struct bench_hist *hist, unsigned permille);

struct bench_stat {
	uint64_t elapsed_ns;		/* of the timed iterations, this rank */
	uint64_t iters;
	uint64_t sent_msgs, sent_bytes;
	uint64_t recv_msgs, recv_bytes;
	uint64_t first_ns, last_ns;	/* times of the first and the last done receive */
	uint64_t first_bytes;		/* bytes that were in by first_ns: not part of the rate */
	uint64_t gap_ns;		/* longest time between two done receives */
	uint64_t wrong;			/* bytes, or elements of an all-reduce */
	uint64_t bad_sizes;		/* test() told another size than was sent */
	uint64_t overruns;		/* bytes past the message were touched */
	uint64_t canaries;		/* bytes of a finished receive changed afterwards */
	struct bench_hist latency;	/* ns; see the operation for what a sample is */
	uint64_t interval_count;
};

/* What one interval saw. Travels as it is. */
struct bench_interval {
	uint64_t bytes;			/* whose receive was done in it */
	uint64_t gap_ns;		/* longest time between two receives, ended in it */
};

/* A stat with its intervals. */
struct bench_meter {
	struct bench_stat stat;
	uint64_t start_ns;
	uint64_t start_wall_ms;		/* since the epoch, to match with other hosts' logs */
	uint64_t interval_ns;		/* 0 = none are kept */
	struct bench_interval *intervals;	/* [interval_room] */
	size_t interval_room;
	size_t printed;
	int print_rank;			/* prints each interval as it ends; -1 = does not */
};

/* Starts anew at @now_ns. */
void meter_start(struct bench_meter *meter, uint64_t now_ns, uint32_t interval_ms, int print_rank);
void meter_fini(struct bench_meter *meter);

/* A receive of @bytes is done. */
void meter_add_recv(struct bench_meter *meter, uint64_t now_ns, size_t bytes);

/* Time has passed: closes intervals (with nothing in them, when nothing came). */
void meter_tick(struct bench_meter *meter, uint64_t now_ns);

/* Receive rate between the first and the last completion, bytes/s; 0 when there were not two. */
double stat_recv_rate(const struct bench_stat *stat);

#endif /* RY_BENCH_STAT_H */
