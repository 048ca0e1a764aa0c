/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_meet.h - the ranks' own TCP star, beside the plugin.
 *
 * Rank 0 listens, all others connect to it. Carries the plan, the plugin's handles, barriers and
 * results: what NCCL's bootstrap does. During a run it only carries the few control frames below,
 * read without blocking, and the news that a rank has failed or gone.
 *
 * Must not: carry payload, or depend on the plugin in any way.
 */
#ifndef RY_BENCH_MEET_H
#define RY_BENCH_MEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_meet {
	int rank, ranks;
	int listen_fd;			/* -1 unless it was given or made here */
	int *fd;			/* rank 0: [ranks]; others: only fd[0]; -1 = none */
	bool *is_quiet;			/* a DATA frame waits there: not looked at during a run */
	bool is_broken;			/* a rank failed or left; it was said */
};

/* Control frames of a run that ends by time. Each carries one number. */
enum meet_control {
	MEET_NONE = 0,
	MEET_STOP = 3,			/* rank 0: tell what you have begun and begin no more */
	MEET_BEGUN = 4,			/* answer: iterations begun */
	MEET_LAST = 5,			/* rank 0: run until this many are done */
};

/* Listens on @address (HOST:PORT). Returns the socket or -errno; says what failed. */
int meet_listen(const char *address);

/* Joins the others. @address: HOST:PORT of rank 0. @listen_fd: rank 0's socket, owned from now on,
 * or -1 (rank 0 then listens on @address). Waits at most @timeout_s. */
int meet_open(struct bench_meet *meet, int rank, int ranks, const char *address, int listen_fd,
	      unsigned timeout_s);
void meet_close(struct bench_meet *meet);

/* Rank 0's @bytes bytes to all. */
int meet_broadcast(struct bench_meet *meet, void *data, size_t bytes);

/* Everybody's @bytes bytes, in order of rank, into @all (ranks * bytes) of every rank. */
int meet_allgather(struct bench_meet *meet, const void *mine, size_t bytes, void *all);

int meet_barrier(struct bench_meet *meet);

/* Rank 0 gets everybody's block in blocks[rank] (malloc'ed, freed by the caller) of lengths[rank]
 * bytes; the others pass NULL for both. */
int meet_gather(struct bench_meet *meet, const void *mine, size_t bytes, void **blocks,
		size_t *lengths);

/* Non-blocking look for a control frame. *@kind MEET_NONE: nothing. -ECONNRESET: a rank is gone. */
int meet_poll(struct bench_meet *meet, enum meet_control *kind, uint64_t *value, int *from);

/* Rank 0: to all others; others: to rank 0. */
int meet_send_control(struct bench_meet *meet, enum meet_control kind, uint64_t value);

/* Last words of a rank that gives up; errors are ignored. */
void meet_abort(struct bench_meet *meet, const char *text);

#endif /* RY_BENCH_MEET_H */
