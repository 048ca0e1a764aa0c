/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * thread.c - the plugin thread and the workers.
 *
 * A watch is found through a slot and the slot's generation, never through a pointer kept by the
 * kernel: an event that was already fetched when its watch was deleted finds another generation and
 * is dropped. No callback runs under a lock. Deleting a watch or timer from another thread waits
 * for its callback, so the caller must not hold a lock which that callback takes.
 */
#define _GNU_SOURCE
#include "thread.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

enum { EVENTS_MAX = 32, CPUS_MAX = 8192, SLEEP_MS_MAX = 3600000, THREAD_NICE = -10 };

#define SLOT_WAKE UINT64_MAX

struct slot {
	struct watch *watch; /* NULL = free */
	uint32_t generation;
};

static struct {
	pthread_mutex_t life; /* start and stop, one at a time; held while joining */
	unsigned users;
	pid_t pid;
	pthread_t thread;

	pthread_mutex_t lock; /* all below */
	pthread_cond_t idle;  /* a callback has returned */
	int epoll_fd, wake_fd;
	bool stop;
	struct slot *slots;
	uint32_t slot_count;
	struct timer *timers; /* only those that are set */
	uint64_t wakes_ns;    /* when the thread next looks at them, if nobody wakes it */
	struct watch *running_watch;
	struct timer *running_timer;
	bool running_reset; /* the running timer was set meanwhile */
} plugin = {
	.life = PTHREAD_MUTEX_INITIALIZER,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.idle = PTHREAD_COND_INITIALIZER,
	.epoll_fd = -1,
	.wake_fd = -1,
};

static __thread bool is_plugin_thread;

/*
 * What every thread of ours needs: a name, the CPUs that its creator may have given up (NCCL pins
 * the thread that calls init, and a thread inherits that), and to run at once when it wakes beside
 * threads that spin: it sleeps nearly always, and traffic may stand until it has run. Who is not
 * privileged runs at the priority of all.
 */
static void thread_settle(const char *name)
{
	size_t bytes = CPU_ALLOC_SIZE(CPUS_MAX);
	cpu_set_t *all = CPU_ALLOC(CPUS_MAX);

	pthread_setname_np(pthread_self(), name);
	(void)setpriority(PRIO_PROCESS, (id_t)gettid(), THREAD_NICE);
	if (!all) {
		return;
	}
	memset(all, 0xff, bytes);
	if (sched_setaffinity(0, bytes, all) != 0) {
		log_trace("%s keeps its creator's CPUs: %m", name);
	}
	CPU_FREE(all);
}

/* Signals are blocked before the thread exists, so that it never has a moment without. */
static int thread_create(pthread_t *thread, void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -rc;
}

static void wake(void)
{
	uint64_t one = 1;
	ssize_t n;

	if (is_plugin_thread || plugin.wake_fd < 0) {
		return; /* it looks at the timers before it sleeps anyway */
	}
	n = write(plugin.wake_fd, &one, sizeof(one));
	(void)n; /* EAGAIN: the counter is full, so it wakes */
}

static void wake_drain(void)
{
	uint64_t count;
	ssize_t n = read(plugin.wake_fd, &count, sizeof(count));

	(void)n;
}

static void watch_dispatch(uint64_t key, uint32_t events)
{
	uint32_t index = (uint32_t)key;
	struct watch *w = NULL;

	pthread_mutex_lock(&plugin.lock);
	if (index < plugin.slot_count &&
	    plugin.slots[index].generation == (uint32_t)(key >> 32)) {
		w = plugin.slots[index].watch;
	}
	plugin.running_watch = w;
	pthread_mutex_unlock(&plugin.lock);
	if (!w) {
		return;
	}
	w->fn(w, events);
	pthread_mutex_lock(&plugin.lock);
	plugin.running_watch = NULL;
	pthread_cond_broadcast(&plugin.idle);
	pthread_mutex_unlock(&plugin.lock);
}

static struct timer **timer_find(const struct timer *t)
{
	struct timer **at = &plugin.timers;

	while (*at && *at != t) {
		at = &(*at)->next;
	}
	return at;
}

static void timer_link(struct timer *t, uint64_t at_ns)
{
	t->at_ns = at_ns;
	if (at_ns != UINT64_MAX && !*timer_find(t)) {
		t->next = plugin.timers;
		plugin.timers = t;
	}
}

static void timer_unlink(struct timer *t)
{
	struct timer **at = timer_find(t);

	if (*at) {
		*at = t->next;
		t->next = NULL;
	}
}

static struct timer *timer_first(void)
{
	struct timer *first = plugin.timers;

	for (struct timer *t = first; t; t = t->next) {
		first = t->at_ns < first->at_ns ? t : first;
	}
	return first;
}

/* Runs one timer. If it was set while it ran, the earlier of both times holds. */
static void timer_run(struct timer *t, uint64_t now)
{
	uint64_t again;

	plugin.running_timer = t;
	plugin.running_reset = false;
	pthread_mutex_unlock(&plugin.lock);
	again = t->fn(t, now);
	pthread_mutex_lock(&plugin.lock);
	if (plugin.running_timer == t) { /* else it deleted itself: its memory may be gone */
		if (plugin.running_reset && t->at_ns < again) {
			again = t->at_ns;
		}
		timer_unlink(t);
		timer_link(t, again);
	}
	plugin.running_timer = NULL;
	pthread_cond_broadcast(&plugin.idle);
}

/*
 * Runs what has come by now, as many timers as there are, so that one that sets itself to "now"
 * cannot keep the sockets waiting. Returns the milliseconds to sleep, -1 = until something happens.
 */
static int timers_run(void)
{
	uint64_t now = now_ns(), left_ms;
	unsigned budget = 0;
	struct timer *t;

	pthread_mutex_lock(&plugin.lock);
	for (t = plugin.timers; t; t = t->next) {
		budget++;
	}
	while (budget-- > 0 && (t = timer_first()) != NULL && t->at_ns <= now) {
		timer_unlink(t);
		timer_run(t, now);
	}
	t = timer_first();
	plugin.wakes_ns = t ? t->at_ns : UINT64_MAX;
	now = now_ns();
	left_ms = t && t->at_ns > now ? (t->at_ns - now + NS_PER_MS - 1) / NS_PER_MS : 0;
	pthread_mutex_unlock(&plugin.lock);
	if (!t) {
		return -1;
	}
	return left_ms > SLEEP_MS_MAX ? SLEEP_MS_MAX : (int)left_ms;
}

static bool plugin_stopping(void)
{
	bool stop;

	pthread_mutex_lock(&plugin.lock);
	stop = plugin.stop;
	pthread_mutex_unlock(&plugin.lock);
	return stop;
}

static void *plugin_main(void *arg)
{
	struct epoll_event event[EVENTS_MAX];
	int epoll_fd = plugin.epoll_fd;

	(void)arg;
	is_plugin_thread = true;
	thread_settle("ry-plugin");
	while (!plugin_stopping()) {
		int n = epoll_wait(epoll_fd, event, EVENTS_MAX, timers_run());

		for (int i = 0; i < n; i++) {
			if (event[i].data.u64 == SLOT_WAKE) {
				wake_drain();
			} else {
				watch_dispatch(event[i].data.u64, event[i].events);
			}
		}
	}
	return NULL;
}

/*
 * In a forked child the thread does not exist, its locks may be held by nobody, and the epoll set
 * is the parent's: a change to it here would reach there. So everything is dropped, unused.
 */
static void plugin_forget_parent(void)
{
	static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static const pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

	plugin.life = mutex;
	plugin.lock = mutex;
	plugin.idle = cond;
	plugin.users = 0;
	plugin.slots = NULL; /* leaked once: the allocator's state at the fork is unknown */
	plugin.slot_count = 0;
	plugin.timers = NULL;
	plugin.running_watch = NULL;
	plugin.running_timer = NULL;
	if (plugin.epoll_fd >= 0) {
		close(plugin.epoll_fd);
		close(plugin.wake_fd);
	}
	plugin.epoll_fd = plugin.wake_fd = -1;
	is_plugin_thread = false;
}

static int plugin_open(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = SLOT_WAKE};
	int rc;

	plugin.stop = false;
	plugin.wakes_ns = 0;
	plugin.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (plugin.epoll_fd < 0) {
		return -errno;
	}
	plugin.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (plugin.wake_fd < 0) {
		rc = -errno;
		goto err_epoll;
	}
	if (epoll_ctl(plugin.epoll_fd, EPOLL_CTL_ADD, plugin.wake_fd, &event) != 0) {
		rc = -errno;
		goto err_wake;
	}
	rc = thread_create(&plugin.thread, plugin_main, NULL);
	if (rc == 0) {
		return 0;
	}
err_wake:
	close(plugin.wake_fd);
err_epoll:
	close(plugin.epoll_fd);
	plugin.epoll_fd = plugin.wake_fd = -1;
	return rc;
}

int plugin_thread_start(void)
{
	pid_t pid = __atomic_load_n(&plugin.pid, __ATOMIC_RELAXED);
	char text[64];
	int rc = 0;

	if (pid != 0 && pid != getpid()) {
		plugin_forget_parent();
	}
	pthread_mutex_lock(&plugin.life);
	__atomic_store_n(&plugin.pid, getpid(), __ATOMIC_RELAXED);
	if (plugin.users == 0) {
		rc = plugin_open();
	}
	if (rc == 0) {
		plugin.users++;
	} else {
		log_warn("cannot start the plugin thread (%s): raise the limits of open files "
			 "and processes",
			 strerror_r(-rc, text, sizeof(text)));
	}
	pthread_mutex_unlock(&plugin.life);
	return rc;
}

static void plugin_close(void)
{
	pthread_mutex_lock(&plugin.lock);
	plugin.stop = true;
	pthread_mutex_unlock(&plugin.lock);
	wake();
	pthread_join(plugin.thread, NULL);
	pthread_mutex_lock(&plugin.lock);
	close(plugin.wake_fd);
	close(plugin.epoll_fd);
	plugin.epoll_fd = plugin.wake_fd = -1;
	free(plugin.slots);
	plugin.slots = NULL;
	plugin.slot_count = 0;
	plugin.timers = NULL;
	pthread_mutex_unlock(&plugin.lock);
}

void plugin_thread_stop(void)
{
	if (__atomic_load_n(&plugin.pid, __ATOMIC_RELAXED) != getpid()) {
		return; /* a forked child has no thread to stop */
	}
	pthread_mutex_lock(&plugin.life);
	if (plugin.users > 0 && --plugin.users == 0) {
		plugin_close();
	}
	pthread_mutex_unlock(&plugin.life);
}

bool plugin_thread_is_self(void)
{
	return is_plugin_thread;
}

static int slot_find_free(uint32_t *index)
{
	uint32_t count = plugin.slot_count ? 2 * plugin.slot_count : 16;
	struct slot *grown;

	for (uint32_t i = 0; i < plugin.slot_count; i++) {
		if (!plugin.slots[i].watch) {
			*index = i;
			return 0;
		}
	}
	grown = realloc(plugin.slots, count * sizeof(*grown));
	if (!grown) {
		return -ENOMEM;
	}
	memset(grown + plugin.slot_count, 0, (count - plugin.slot_count) * sizeof(*grown));
	*index = plugin.slot_count;
	plugin.slots = grown;
	plugin.slot_count = count;
	return 0;
}

static bool slot_is_of(const struct watch *w)
{
	return w->slot < plugin.slot_count && plugin.slots[w->slot].watch == w;
}

static int watch_ctl(struct watch *w, int op, uint32_t events)
{
	struct epoll_event event = {
		.events = events,
		.data.u64 = (uint64_t)plugin.slots[w->slot].generation << 32 | w->slot,
	};

	return epoll_ctl(plugin.epoll_fd, op, w->fd, &event) == 0 ? 0 : -errno;
}

int watch_add(struct watch *w, uint32_t epoll_events)
{
	int rc = -ESHUTDOWN;

	pthread_mutex_lock(&plugin.lock);
	if (plugin.epoll_fd >= 0) {
		rc = slot_find_free(&w->slot);
	}
	if (rc == 0) {
		plugin.slots[w->slot].watch = w;
		rc = watch_ctl(w, EPOLL_CTL_ADD, epoll_events);
		if (rc) {
			plugin.slots[w->slot].watch = NULL;
		}
	}
	pthread_mutex_unlock(&plugin.lock);
	return rc;
}

int watch_mod(struct watch *w, uint32_t epoll_events)
{
	int rc = -ENOENT;

	pthread_mutex_lock(&plugin.lock);
	if (slot_is_of(w)) {
		rc = watch_ctl(w, EPOLL_CTL_MOD, epoll_events);
	}
	pthread_mutex_unlock(&plugin.lock);
	return rc;
}

void watch_del(struct watch *w)
{
	pthread_mutex_lock(&plugin.lock);
	if (slot_is_of(w)) {
		watch_ctl(w, EPOLL_CTL_DEL, 0);
		plugin.slots[w->slot].watch = NULL;
		plugin.slots[w->slot].generation++;
	}
	while (plugin.running_watch == w && !is_plugin_thread) {
		pthread_cond_wait(&plugin.idle, &plugin.lock);
	}
	pthread_mutex_unlock(&plugin.lock);
}

void timer_set(struct timer *t, uint64_t at_ns)
{
	pthread_mutex_lock(&plugin.lock);
	if (plugin.running_timer == t) {
		if (!plugin.running_reset || at_ns < t->at_ns) {
			t->at_ns = at_ns;
		}
		plugin.running_reset = true;
	} else {
		timer_unlink(t);
		timer_link(t, at_ns);
	}
	if (at_ns < plugin.wakes_ns) {
		plugin.wakes_ns = 0;
		wake();
	}
	pthread_mutex_unlock(&plugin.lock);
}

void timer_del(struct timer *t)
{
	pthread_mutex_lock(&plugin.lock);
	timer_unlink(t);
	if (is_plugin_thread && plugin.running_timer == t) {
		plugin.running_timer = NULL;
	}
	while (plugin.running_timer == t && !is_plugin_thread) {
		pthread_cond_wait(&plugin.idle, &plugin.lock);
		timer_unlink(t);
	}
	pthread_mutex_unlock(&plugin.lock);
}

/* Returns the next job; NULL: the worker is to stop and all is done. Under the worker's lock. */
static struct job *job_get(struct job_queue *q)
{
	while (!q->head && !q->worker->stop) {
		pthread_cond_wait(&q->wake, &q->worker->lock);
	}
	struct job *job = q->head;

	if (job) {
		q->head = job->next;
		if (!q->head) {
			q->tail = NULL;
		}
	}
	return job;
}

static void *worker_main(void *arg)
{
	struct job_queue *q = arg;
	struct job *job;

	thread_settle(q->worker->name);
	pthread_mutex_lock(&q->worker->lock);
	while ((job = job_get(q)) != NULL) {
		void (*after)(void) = job->after;

		pthread_mutex_unlock(&q->worker->lock);
		job->result = job->fn(job);
		/* From here on the job's memory is its owner's. */
		__atomic_store_n(&job->done, 1, __ATOMIC_RELEASE);
		if (after) {
			after();
		}
		pthread_mutex_lock(&q->worker->lock);
	}
	pthread_mutex_unlock(&q->worker->lock);
	return NULL;
}

static int queue_start(struct worker *w, struct job_queue *q)
{
	int rc;

	q->worker = w;
	pthread_cond_init(&q->wake, NULL);
	rc = thread_create(&q->thread, worker_main, q);
	if (rc) {
		pthread_cond_destroy(&q->wake);
		return rc;
	}
	q->started = true;
	return 0;
}

static void queue_join(struct job_queue *q)
{
	if (q->started) {
		pthread_join(q->thread, NULL);
		pthread_cond_destroy(&q->wake);
	}
}

int worker_start(struct worker *w, const char *name)
{
	int rc;

	memset(w, 0, sizeof(*w));
	pthread_mutex_init(&w->lock, NULL);
	snprintf(w->name, sizeof(w->name), "%s", name);
	rc = queue_start(w, &w->jobs);
	if (rc) {
		pthread_mutex_destroy(&w->lock);
		return rc;
	}
	w->started = true;
	return 0;
}

void worker_stop(struct worker *w)
{
	if (!w->started) {
		return;
	}
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_signal(&w->jobs.wake);
	if (w->late.started) {
		pthread_cond_signal(&w->late.wake);
	}
	pthread_mutex_unlock(&w->lock);
	queue_join(&w->jobs);
	queue_join(&w->late);
	pthread_mutex_destroy(&w->lock);
	w->started = false;
}

/* Under the worker's lock. */
static void job_put(struct job_queue *q, struct job *job)
{
	job->next = NULL;
	__atomic_store_n(&job->done, 0, __ATOMIC_RELAXED);
	if (q->tail) {
		q->tail->next = job;
	} else {
		q->head = job;
	}
	q->tail = job;
	pthread_cond_signal(&q->wake);
}

void worker_submit(struct worker *w, struct job *job)
{
	assert(w->started);
	pthread_mutex_lock(&w->lock);
	job_put(&w->jobs, job);
	pthread_mutex_unlock(&w->lock);
}

void worker_submit_late(struct worker *w, struct job *job)
{
	assert(w->started);
	pthread_mutex_lock(&w->lock);
	if (!w->late.started && queue_start(w, &w->late) != 0) {
		job_put(&w->jobs, job); /* no thread more: then it has to be this one */
	} else {
		job_put(&w->late, job);
	}
	pthread_mutex_unlock(&w->lock);
}
