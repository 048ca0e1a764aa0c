/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * thread_loop.c - the plugin thread and the workers under many callers; made for ThreadSanitizer.
 *
 * A plain program (Criterion aborts under TSan). Every check aborts with its line.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "thread.h"
#include "unit/log_kept.h"

/* ---- watches ---- */

struct line {
	struct watch watch;
	int far;
	unsigned got; /* plugin thread, then whoever has deleted the watch */
};

static void line_read(struct watch *w, uint32_t events)
{
	struct line *l = CONTAINER_OF(w, struct line, watch);
	char byte;

	CHECK(plugin_thread_is_self());
	CHECK(events & EPOLLIN);
	while (recv(w->fd, &byte, 1, MSG_DONTWAIT) == 1) {
		l->got++;
	}
}

/* After watch_del() the watch is the caller's again, whatever the loop was doing. */
static void *watch_caller(void *arg)
{
	(void)arg;
	for (unsigned round = 0; round < scaled(300); round++) {
		struct line *l = calloc(1, sizeof(*l));
		unsigned sent = 0;
		int pair[2];

		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		l->watch.fd = pair[0];
		l->watch.fn = line_read;
		l->far = pair[1];
		CHECK(watch_add(&l->watch, EPOLLIN) == 0);
		for (; sent < 3; sent++) {
			CHECK(write(l->far, "x", 1) == 1);
		}
		if (round % 3 == 0) {
			CHECK(watch_mod(&l->watch, 0) == 0);
			CHECK(watch_mod(&l->watch, EPOLLIN) == 0);
		}
		watch_del(&l->watch);
		watch_del(&l->watch); /* twice is harmless */
		CHECK(watch_mod(&l->watch, EPOLLIN) == -ENOENT);
		CHECK(l->got <= sent);
		close(pair[0]);
		close(pair[1]);
		free(l);
	}
	return NULL;
}

/* ---- timers ---- */

struct beat {
	struct timer timer;
	unsigned count, limit; /* atomic */
};

static uint64_t beat_run(struct timer *t, uint64_t now)
{
	struct beat *b = CONTAINER_OF(t, struct beat, timer);
	unsigned n = __atomic_add_fetch(&b->count, 1, __ATOMIC_RELAXED);

	CHECK(plugin_thread_is_self());
	return n < b->limit ? now + 100 * NS_PER_US : UINT64_MAX;
}

static void *timer_caller(void *arg)
{
	(void)arg;
	for (unsigned round = 0; round < scaled(300); round++) {
		struct beat *b = calloc(1, sizeof(*b));

		b->timer.fn = beat_run;
		b->limit = 3;
		timer_set(&b->timer, UINT64_MAX);
		timer_set(&b->timer, now_ns() + 3600 * NS_PER_S);
		timer_set(&b->timer, 0); /* earlier */
		if (round % 2) {
			CHECK(EVENTUALLY(__atomic_load_n(&b->count, __ATOMIC_RELAXED) >= 1));
		}
		timer_del(&b->timer);
		free(b);
	}
	return NULL;
}

static uint64_t delete_myself(struct timer *t, uint64_t now)
{
	timer_del(t);
	free(CONTAINER_OF(t, struct beat, timer));
	return now; /* of a timer that is no more: must not be looked at */
}

static void check_timers(void)
{
	struct beat b = {.timer.fn = beat_run, .limit = 5}, *gone = calloc(1, sizeof(*gone));
	uint64_t since = now_ns();

	timer_set(&b.timer, since + 20 * NS_PER_MS);
	CHECK(EVENTUALLY(__atomic_load_n(&b.count, __ATOMIC_RELAXED) == 5));
	CHECK(now_ns() - since >= 20 * NS_PER_MS);
	gone->timer.fn = delete_myself;
	timer_set(&gone->timer, 0);
	timer_set(&b.timer, 0); /* off, and set again; the loop runs it after the one that goes */
	CHECK(EVENTUALLY(__atomic_load_n(&b.count, __ATOMIC_RELAXED) == 6));
	timer_del(&b.timer);
}

/* No timer, no event: no wake-up. */
static uint64_t note_switches(struct timer *t, uint64_t now)
{
	struct beat *b = CONTAINER_OF(t, struct beat, timer);
	struct rusage use;

	(void)now;
	getrusage(RUSAGE_THREAD, &use);
	__atomic_store_n(&b->limit, (unsigned)use.ru_nvcsw, __ATOMIC_RELAXED);
	__atomic_add_fetch(&b->count, 1, __ATOMIC_RELEASE);
	return UINT64_MAX;
}

static void check_idle(void)
{
	struct beat b = {.timer.fn = note_switches};
	unsigned before;

	timer_set(&b.timer, 0);
	CHECK(EVENTUALLY(__atomic_load_n(&b.count, __ATOMIC_ACQUIRE) == 1));
	before = b.limit;
	usleep(300000);
	timer_set(&b.timer, 0);
	CHECK(EVENTUALLY(__atomic_load_n(&b.count, __ATOMIC_ACQUIRE) == 2));
	CHECK(b.limit - before <= 3);
	timer_del(&b.timer);
}

/* ---- what a thread of ours is like ---- */

struct nature {
	struct job job;
	struct timer timer;
	sigset_t blocked;
	int cpus;
	char name[16];
	unsigned seen; /* atomic */
};

static void nature_look(struct nature *n)
{
	cpu_set_t cpus;

	pthread_sigmask(SIG_SETMASK, NULL, &n->blocked);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	n->cpus = CPU_COUNT(&cpus);
	pthread_getname_np(pthread_self(), n->name, sizeof(n->name));
	__atomic_store_n(&n->seen, 1, __ATOMIC_RELEASE);
}

static int nature_job(struct job *job)
{
	nature_look(CONTAINER_OF(job, struct nature, job));
	return -EXDEV;
}

static uint64_t nature_timer(struct timer *t, uint64_t now)
{
	(void)now;
	nature_look(CONTAINER_OF(t, struct nature, timer));
	return UINT64_MAX;
}

static void check_nature(const struct nature *n, const char *name, int cpus)
{
	CHECK(strcmp(n->name, name) == 0);
	CHECK(n->cpus == cpus);
	CHECK(sigismember(&n->blocked, SIGTERM) && sigismember(&n->blocked, SIGUSR1) &&
	      sigismember(&n->blocked, SIGINT) && sigismember(&n->blocked, SIGCHLD));
}

/* Started from a thread that is pinned, as NCCL's is during init. */
static void check_natures(void)
{
	struct nature a = {.job.fn = nature_job}, b = {.timer.fn = nature_timer};
	struct worker w;
	cpu_set_t all, one;
	sigset_t mask;
	size_t cpu = 0;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	while (!CPU_ISSET(cpu, &all)) {
		cpu++;
	}
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	CHECK(worker_start(&w, "ry-mlx5_0") == 0);
	CHECK(plugin_thread_start() == 0);
	worker_submit(&w, &a.job);
	timer_set(&b.timer, 0);
	CHECK(EVENTUALLY(job_done(&a.job)));
	CHECK(a.job.result == -EXDEV);
	CHECK(EVENTUALLY(__atomic_load_n(&b.seen, __ATOMIC_ACQUIRE)));
	CHECK(sched_setaffinity(0, sizeof(all), &all) == 0);
	check_nature(&a, "ry-mlx5_0", CPU_COUNT(&all));
	check_nature(&b, "ry-plugin", CPU_COUNT(&all));
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	CHECK(!sigismember(&mask, SIGTERM)); /* the creator's own are as before */
	timer_del(&b.timer);
	plugin_thread_stop();
	worker_stop(&w);
}

/* ---- workers ---- */

static unsigned jobs_run; /* atomic */

static int count_job(struct job *job)
{
	(void)job;
	return (int)__atomic_add_fetch(&jobs_run, 1, __ATOMIC_RELAXED);
}

enum { JOBS = 200, CALLERS = 4 };

static void *job_caller(void *arg)
{
	struct worker *w = arg;
	struct job *jobs = calloc(JOBS, sizeof(*jobs));

	for (unsigned i = 0; i < JOBS; i++) {
		jobs[i].fn = count_job;
		worker_submit(w, &jobs[i]);
	}
	for (unsigned i = 0; i < JOBS; i++) {
		CHECK(EVENTUALLY(job_done(&jobs[i])));
		CHECK(jobs[i].result > 0);
	}
	free(jobs);
	return NULL;
}

static void check_worker(void)
{
	struct job last[8] = {{0}};
	struct worker w;

	CHECK(worker_start(&w, "ry-test") == 0);
	run_together(CALLERS, job_caller, &w);
	for (unsigned i = 0; i < 8; i++) {
		last[i].fn = count_job;
		worker_submit(&w, &last[i]);
	}
	worker_stop(&w);
	for (unsigned i = 0; i < 8; i++) {
		CHECK(job_done(&last[i])); /* a stop finishes what is queued */
	}
	CHECK(jobs_run == CALLERS * JOBS + 8);
}

static bool late_may_end; /* atomic */

static int late_job(struct job *job)
{
	(void)job;
	return EVENTUALLY(__atomic_load_n(&late_may_end, __ATOMIC_ACQUIRE)) ? 0 : -ETIME;
}

/* A late job that takes for ever holds up no other, and a stop waits for it. */
static void check_late(void)
{
	struct job late[2] = {{.fn = late_job}, {.fn = count_job}}, other = {.fn = count_job};
	struct worker w;

	CHECK(worker_start(&w, "ry-test") == 0);
	for (unsigned i = 0; i < 2; i++) {
		worker_submit_late(&w, &late[i]);
	}
	worker_submit(&w, &other);
	CHECK(EVENTUALLY(job_done(&other)));
	CHECK(!job_done(&late[0]) && !job_done(&late[1]));
	__atomic_store_n(&late_may_end, true, __ATOMIC_RELEASE);
	worker_stop(&w);
	CHECK(job_done(&late[0]) && late[0].result == 0);
	CHECK(job_done(&late[1]));
}

/* ---- life ---- */

static void *life_caller(void *arg)
{
	(void)arg;
	for (unsigned round = 0; round < scaled(100); round++) {
		struct beat b = {.timer.fn = beat_run, .limit = 1};

		CHECK(plugin_thread_start() == 0);
		timer_set(&b.timer, 0);
		CHECK(EVENTUALLY(__atomic_load_n(&b.count, __ATOMIC_RELAXED) == 1));
		timer_del(&b.timer);
		plugin_thread_stop();
	}
	return NULL;
}

int main(void)
{
	struct watch idle = {.fd = 0};

	alarm(100);
	CHECK(watch_add(&idle, EPOLLIN) == -ESHUTDOWN);
	plugin_thread_stop(); /* one too many is harmless */
	check_natures();
	check_worker();
	check_late();
	run_together(3, life_caller, NULL);
	CHECK(plugin_thread_start() == 0);
	CHECK(!plugin_thread_is_self());
	check_timers();
	check_idle();
	run_together(2, watch_caller, NULL);
	run_together(2, timer_caller, NULL);
	plugin_thread_stop();
	printf("thread_loop: ok\n");
	return 0;
}
