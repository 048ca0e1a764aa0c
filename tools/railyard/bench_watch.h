/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_watch.h - ends the process when a call into the plugin does not return.
 *
 * The engine's own watchdog sees requests that do not end; it cannot see a call that blocks, since
 * it waits in it. A thread that wakes once a second can.
 */
#ifndef RY_BENCH_WATCH_H
#define RY_BENCH_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct bench_net;
struct bench_meet;

struct bench_watch {
	const struct bench_net *net;
	struct bench_meet *meet;
	atomic_uint timeout_s;
	pthread_t thread;
	atomic_bool is_over;
	bool is_running;
};

/* @watch: zeroed. Without a thread the run goes on unwatched; says so. */
void watch_start(struct bench_watch *watch, const struct bench_net *net, struct bench_meet *meet,
		 unsigned timeout_s);
void watch_set_timeout(struct bench_watch *watch, unsigned timeout_s);
void watch_stop(struct bench_watch *watch);

#endif /* RY_BENCH_WATCH_H */
