/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_report.h - joins the ranks' figures and shows them: nccl-tests' table, and JSON.
 *
 * Every rank calls the same functions; only rank 0 prints.
 */
#ifndef RY_BENCH_REPORT_H
#define RY_BENCH_REPORT_H

#include <jansson.h>

#include "bench_engine.h"

/* Figures of one size over all ranks. */
struct bench_row {
	uint64_t size, count, iters;
	double time_us;			/* per iteration, slowest rank; ping-pong: one way */
	double algbw, busbw;		/* GB/s */
	uint64_t wrong, bad_sizes, overruns, canaries, gap_ns;
	struct bench_hist latency;
};

struct bench_report {
	json_t *root;			/* rank 0 with --json, else NULL */
	uint64_t faults;		/* wrong, bad sizes, overruns, canaries of all rows */
	double busbw_sum;
	unsigned rows;
	uint64_t last_size;		/* valid when rows > 0 */
};

/* Exchanges who uses what, prints the head. Fails when ranks have opened different plugins. */
int report_start(struct bench_report *report, struct bench_run *run);

/* Is @size, rounded to what the operation can do, the one just reported? */
bool report_has(const struct bench_report *report, uint64_t size);

/* Joins what run->meter holds; prints a row. */
int report_size(struct bench_report *report, struct bench_run *run);

/* Prints the foot, writes the JSON file. */
int report_finish(struct bench_report *report, struct bench_run *run);

/* A run that broke off: writes what there is, with the reason. */
void report_failure(struct bench_report *report, const struct bench_run *run, const char *why);

/* bench_json.c: NULL report->root makes these do nothing. */
void json_start(struct bench_report *report, const struct bench_run *run);
void json_add_rank(struct bench_report *report, int rank, const char *host, int pid,
		   const char *devices, int speed_mbps);
void json_add_row(struct bench_report *report, const struct bench_row *row);
void json_add_row_rank(struct bench_report *report, int rank, const struct bench_stat *stat,
		       uint64_t start_wall_ms, const struct bench_interval *of_intervals,
		       uint32_t interval_ms);
void json_add_calls(struct bench_report *report, int rank, const struct bench_call_stat *calls);
int json_write(struct bench_report *report, const char *path);

extern const char *const bench_call_names[CALL_COUNT];

#endif /* RY_BENCH_REPORT_H */
