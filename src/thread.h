/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * thread.h - the plugin thread (an epoll loop with timers) and the workers (one per RDMA device).
 *
 * Every thread made here: signals blocked, CPU affinity reset to all CPUs, named ("ry-plugin",
 * "ry-DEV"), joined at the last stop. The plugin thread never makes a slow verbs command: those are
 * jobs of the device's worker. Sleeping when idle: no timer set, no wake-up.
 */
#ifndef RAILYARD_THREAD_H
#define RAILYARD_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A descriptor watched by the plugin thread. `fn` runs there. */
struct watch {
	int fd;
	void (*fn)(struct watch *w, uint32_t epoll_events);
	uint32_t slot; /* thread.c's */
};

/*
 * A timer of the plugin thread: `fn` runs there once `at_ns` has come and returns the next time
 * (UINT64_MAX = off). Set from elsewhere while fn runs, the earlier of both times holds.
 */
struct timer {
	uint64_t at_ns;
	uint64_t (*fn)(struct timer *t, uint64_t now_ns);
	struct timer *next;
};

/* plugin_thread_start/stop - refcounted. start returns 0 or -errno. stop joins at the last user. */
int plugin_thread_start(void);
void plugin_thread_stop(void);
bool plugin_thread_is_self(void);

/*
 * From any thread. watch_del and timer_del return only when fn is not running (unless called from
 * the plugin thread): so the caller holds no lock that fn takes. add and mod return 0 or -errno.
 */
int watch_add(struct watch *w, uint32_t epoll_events);
int watch_mod(struct watch *w, uint32_t epoll_events);
void watch_del(struct watch *w);
void timer_set(struct timer *t, uint64_t at_ns); /* adds it if new; earlier or later both work */
void timer_del(struct timer *t);

/*
 * A slow job for a worker. `fn` runs on the worker; then `done` becomes 1 (release order), and
 * then `after` runs there, if there is one.
 */
struct job {
	int (*fn)(struct job *job);
	void (*after)(void);
	int result;      /* what fn returned; valid once done */
	uint32_t done;   /* read with job_done() */
	struct job *next;
};

struct worker;

/* Jobs in the order they came, and the thread that does them. */
struct job_queue {
	struct worker *worker;
	struct job *head, *tail;
	pthread_cond_t wake;
	pthread_t thread;
	bool started;
};

struct worker {
	pthread_mutex_t lock;
	struct job_queue jobs, late; /* the second one's thread starts with its first job */
	bool started, stop;
	char name[16];
};

int worker_start(struct worker *w, const char *name);
void worker_stop(struct worker *w); /* finishes what is queued, joins */
void worker_submit(struct worker *w, struct job *job);
/* For what nothing waits for and may take seconds: it holds up no other job. */
void worker_submit_late(struct worker *w, struct job *job);

static inline bool job_done(const struct job *job)
{
	return __atomic_load_n(&job->done, __ATOMIC_ACQUIRE) != 0;
}

#endif
