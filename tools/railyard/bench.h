/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench.h - what all parts of `railyard bench` share: the options and the error voice.
 *
 * bench drives any ncclNet plugin as NCCL's proxy thread does, without NCCL and without a GPU:
 * ranks meet over TCP (bench_meet), open the plugin (bench_net), connect (bench_comm), move
 * messages (bench_engine) by the rules of one operation (bench_ops), check every byte (bench_data)
 * and report (bench_report, bench_json).
 *
 * Invariant: the plan is the same in every rank (rank 0 sends it out), so that every rank derives
 * the same messages; what differs from host to host is in struct bench_local only.
 */
#ifndef RY_BENCH_H
#define RY_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	BENCH_RANKS_MAX = 256,
	BENCH_DEVS_MAX = 32,		/* devices that one rank may use */
	BENCH_COMMS_MAX = 64,		/* connections per pair of ranks, as NCCL's channels */
	BENCH_GROUP_MAX = 8,		/* members of a grouped receive */
	BENCH_WINDOW_MAX = 32,		/* the most that the ABI lets a comm have outstanding */
};

/* Exit status of the command. */
enum {
	BENCH_OK = 0,
	BENCH_FAILED = 1,		/* did not run to the end */
	BENCH_USAGE = 2,
	BENCH_WRONG = 3,		/* ran, but data was wrong or written late */
};

enum bench_op_id {
	BENCH_SENDRECV,
	BENCH_PINGPONG,
	BENCH_ALLREDUCE,
	BENCH_ALLGATHER,
	BENCH_ALLTOALL,
	BENCH_OP_COUNT,
};

/* What is run: rank 0's options, sent to all ranks. Fixed-width, since it travels. */
struct bench_plan {
	uint32_t size_of_plan;		/* refuses a peer of another build */
	uint32_t op;			/* enum bench_op_id; BENCH_OP_COUNT = not given */
	uint64_t size_min;		/* bytes */
	uint64_t size_max;
	uint64_t size_step;		/* bytes; 0 = multiply by factor */
	uint32_t factor;
	uint32_t iters;
	uint32_t warmup;
	uint32_t window;		/* outstanding requests of one connection */
	uint64_t chunk_bytes;		/* larger messages are cut */
	uint32_t comms;			/* per pair of ranks; 0 until rank 0 knows its devices */
	uint32_t group;			/* members of each receive */
	uint32_t bidir;
	uint32_t reverse;		/* odd ranks send */
	uint32_t check;			/* compare every byte */
	uint32_t canary;		/* pattern in idle receive buffers */
	uint32_t test_all;		/* test() every outstanding request, not only the oldest */
	int32_t traffic_class;		/* -1 = not set */
	uint32_t duration_s;		/* 0 = count iterations */
	uint32_t interval_ms;		/* 0 = no throughput per interval */
	uint32_t timeout_s;		/* without any progress */
	uint32_t linger_s;		/* how long a rank goes on when another has ended */
	uint64_t comm_id;		/* what init gets as communicator id */
};

enum bench_poll {
	BENCH_POLL_YIELD,
	BENCH_POLL_SPIN,
	BENCH_POLL_SLEEP,
};

enum bench_merge {
	BENCH_MERGE_AUTO,		/* all into one if the plugin can, else none */
	BENCH_MERGE_ALL,
	BENCH_MERGE_NONE,
};

/* What belongs to this process. */
struct bench_local {
	const char *plugin;		/* file, or the x of libnccl-net-x.so */
	int abi;			/* 0 = newest that the plugin has */
	int rank;
	int ranks;			/* 0 = not given */
	int local;			/* ranks to start here, from rank on; 0 = only this */
	const char *meet;		/* HOST:PORT, NULL with all ranks local */
	const char *devs;		/* "all" or a list of numbers and names */
	enum bench_merge merge;
	enum bench_poll poll;
	int log_level;			/* enum ry_net_log_level */
	bool per_rank;			/* a line for each rank below each row */
	bool time_calls;
	bool log_times;			/* the plugin's lines with the time of day */
	const char *json;		/* file of rank 0's report, NULL = none */
};

/* Reads the command line. Prints what is wrong and ends the process on bad use, as argp does. */
void bench_options_parse(int argc, char **argv, struct bench_plan *plan, struct bench_local *local);

/* The size after @size, or 0 when @size was the last. */
uint64_t bench_plan_next_size(const struct bench_plan *plan, uint64_t size);

/* One line to stderr: "railyard bench: rank R: ...". The first is kept for bench_error_text(). */
void bench_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *bench_error_text(void);

/* Rank 0 was asked (SIGINT) to end a run by time now. */
bool bench_is_interrupted(void);

/* The rank that bench_error names; -1 = none yet. */
void bench_set_rank(int rank);

/* Monotonic time. */
uint64_t bench_now_ns(void);

/* Entry of the command: argv[0] is "bench". Returns the exit status. */
int cmd_bench(int argc, char **argv);

#endif /* RY_BENCH_H */
