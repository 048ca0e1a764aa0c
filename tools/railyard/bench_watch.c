/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE
#include "bench_watch.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "bench_meet.h"
#include "bench_net.h"

enum { WAKE_MS = 200 };

static void *watch_main(void *arg)
{
	struct bench_watch *watch = arg;
	struct timespec pause = {.tv_nsec = WAKE_MS * 1000000L};
	uint64_t seq_seen = 0, since_ns = bench_now_ns();

	while (!atomic_load(&watch->is_over)) {
		const char *call = atomic_load_explicit(&watch->net->in_call,
							memory_order_relaxed);
		uint64_t seq = atomic_load_explicit(&watch->net->call_seq, memory_order_relaxed);
		uint64_t now_ns = bench_now_ns();
		unsigned timeout_s = atomic_load(&watch->timeout_s);

		if (!call || seq != seq_seen) {
			seq_seen = seq;
			since_ns = now_ns;
		} else if (now_ns - since_ns > timeout_s * UINT64_C(1000000000)) {
			bench_error("the plugin has not returned from %s for %u s (--timeout)",
				    call, timeout_s);
			meet_abort(watch->meet, bench_error_text());
			_exit(BENCH_FAILED);
		}
		nanosleep(&pause, NULL);
	}
	return NULL;
}

void watch_start(struct bench_watch *watch, const struct bench_net *net, struct bench_meet *meet,
		 unsigned timeout_s)
{
	sigset_t all, before;
	int rc;

	watch->net = net;
	watch->meet = meet;
	atomic_store(&watch->timeout_s, timeout_s);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&watch->thread, NULL, watch_main, watch);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		bench_error("no thread to watch the plugin's calls: %s", strerror(rc));
		return;
	}
	watch->is_running = true;
}

void watch_set_timeout(struct bench_watch *watch, unsigned timeout_s)
{
	atomic_store(&watch->timeout_s, timeout_s);
}

void watch_stop(struct bench_watch *watch)
{
	if (watch->is_running) {
		atomic_store(&watch->is_over, true);
		pthread_join(watch->thread, NULL);
		watch->is_running = false;
	}
}
