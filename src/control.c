/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control.c - start and stop, listens and their secrets, the plugin thread's turns.
 *
 * Who owns what: control_internal.h.
 */
#define _GNU_SOURCE
#include "control_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

struct control_limits control_limits = {
	.hello_ns = 5 * NS_PER_S,
	.attempt_ns = 5 * NS_PER_S,
	.pause_ns = 250 * NS_PER_MS,
	.refused_ns = 3 * NS_PER_S,
	.park_ns = 500 * NS_PER_MS,
	.linger_ns = 1 * NS_PER_S,
	.beat_ns = 50 * NS_PER_MS,
	.watch_ns = 500 * NS_PER_MS,
	.silent_ns = 250 * NS_PER_MS,
	.second_ns = 30 * NS_PER_MS,
	.unknown_max = 64,
	.queue_bytes = 16 << 20,
};

static uint64_t control_work(struct timer *t, uint64_t now);
static uint64_t control_deadlines(struct timer *t, uint64_t now);

struct control ctl = {
	.life = PTHREAD_MUTEX_INITIALIZER,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.stopped_cond = PTHREAD_COND_INITIALIZER,
	.work_lock = PTHREAD_MUTEX_INITIALIZER,
	.work_timer = {.fn = control_work, .at_ns = UINT64_MAX},
	.deadline_timer = {.fn = control_deadlines, .at_ns = UINT64_MAX},
	.listener = {[0 ... WIRE_ADDRS_MAX - 1] = {.watch.fd = -1}},
};

bool control_is_this_process(void)
{
	return __atomic_load_n(&ctl.pid, __ATOMIC_RELAXED) == getpid();
}

uint64_t control_instance(void)
{
	return ctl.instance;
}

/* ---- listens ---- */

int random_fill(void *to, size_t bytes)
{
	return getrandom(to, bytes, 0) == (ssize_t)bytes ? 0 : -EIO;
}

int control_listen(struct wire_handle *handle)
{
	struct listen *l = calloc(1, sizeof(*l));
	unsigned count = 0;

	if (!l || random_fill(l->secret, sizeof(l->secret))) {
		free(l);
		return -ENOMEM;
	}
	pthread_mutex_lock(&ctl.lock);
	if (!control_is_this_process() || !ctl.started || ctl.stopping) {
		pthread_mutex_unlock(&ctl.lock);
		free(l);
		return -ESHUTDOWN;
	}
	l->id = ++ctl.listen_next;
	l->next = ctl.listens;
	ctl.listens = l;
	handle->instance = ctl.instance;
	handle->listen_id = l->id;
	memcpy(handle->secret, l->secret, sizeof(handle->secret));
	handle->version_min = WIRE_VERSION_MIN;
	handle->version_max = WIRE_VERSION_MAX;
	memset(handle->addr, 0, sizeof(handle->addr));
	for (unsigned i = 0; i < WIRE_ADDRS_MAX && count < WIRE_HANDLE_ADDRS; i++) {
		if (ctl.listener[i].addr.family) {
			handle->addr[count++] = ctl.listener[i].addr;
		}
	}
	pthread_mutex_unlock(&ctl.lock);
	return 0;
}

void control_unlisten(uint64_t listen_id)
{
	struct listen **at = &ctl.listens, *l;

	pthread_mutex_lock(&ctl.lock);
	while (*at && (*at)->id != listen_id) {
		at = &(*at)->next;
	}
	l = *at;
	if (l) {
		*at = l->next;
	}
	pthread_mutex_unlock(&ctl.lock);
	free(l);
}

/* The same time whatever matches, and however far. */
bool secret_is_equal(const uint8_t *a, const uint8_t *b)
{
	uint8_t differ = 0;

	for (unsigned i = 0; i < WIRE_SECRET_BYTES; i++) {
		differ |= (uint8_t)(a[i] ^ b[i]);
	}
	return __atomic_load_n(&differ, __ATOMIC_RELAXED) == 0;
}

int control_secret_listen(const uint8_t secret[WIRE_SECRET_BYTES], uint64_t *listen_id)
{
	uint64_t found = 0;

	pthread_mutex_lock(&ctl.lock);
	for (struct listen *l = ctl.listens; l; l = l->next) {
		found |= l->id & (0 - (uint64_t)secret_is_equal(l->secret, secret));
	}
	pthread_mutex_unlock(&ctl.lock);
	if (found == 0) {
		return -ENOENT;
	}
	*listen_id = found;
	return 0;
}

/* ---- the plugin thread's turns ---- */

static void conns_expire(uint64_t now)
{
	struct conn *c, *next;

	for (c = ctl.conns; c; c = next) {
		next = c->next;
		if (c->deadline_ns <= now) {
			conn_expired(c);
			next = ctl.conns; /* any conn may have died: begin again */
			if (c->state != CONN_DEAD && c->deadline_ns <= now) {
				c->deadline_ns = UINT64_MAX; /* it has had its turn */
			}
		}
	}
}

static void sessions_tick(uint64_t now)
{
	struct peer *peer, *next;

	for (peer = ctl.up; peer; peer = next) {
		unsigned ups = ctl.ups;

		next = peer->up_next;
		if (peer->tick_ns <= now) {
			session_tick(peer, now);
			next = ups == ctl.ups ? peer->up_next : ctl.up;
		}
	}
}

static uint64_t control_deadlines(struct timer *t, uint64_t now)
{
	(void)t;
	ctl.deadline_ns = UINT64_MAX;
	if (ctl.resume_ns <= now) {
		listeners_resume();
	}
	conns_expire(now);
	if (!ctl.leaving) {
		sessions_tick(now);
	}
	conn_reap();
	ctl.deadline_ns = ctl.resume_ns;
	for (struct conn *c = ctl.conns; c; c = c->next) {
		ctl.deadline_ns = c->deadline_ns < ctl.deadline_ns ? c->deadline_ns
								   : ctl.deadline_ns;
	}
	for (struct peer *peer = ctl.leaving ? NULL : ctl.up; peer; peer = peer->up_next) {
		ctl.deadline_ns = peer->tick_ns < ctl.deadline_ns ? peer->tick_ns
								  : ctl.deadline_ns;
	}
	return ctl.deadline_ns;
}

void control_wake_at(uint64_t at_ns)
{
	if (at_ns < ctl.deadline_ns) {
		ctl.deadline_ns = at_ns;
		timer_set(&ctl.deadline_timer, at_ns);
	}
}

static void conn_say_bye(struct conn *c, uint64_t now)
{
	struct frame *bye = frame_make(WIRE_BYE, 0, NULL, 0);

	pthread_mutex_lock(&c->peer->lock);
	frame_push(&c->peer->queue, bye);
	pthread_mutex_unlock(&c->peer->lock);
	c->state = CONN_LEAVING;
	c->in_bytes = 0; /* nobody is left to hear it */
	conn_set_deadline(c, now + control_limits.linger_ns);
	conn_flush(c);
}

static void control_leave(uint64_t now)
{
	struct conn *c, *next;

	ctl.leaving = true;
	for (unsigned i = 0; i < WIRE_ADDRS_MAX; i++) {
		listener_close(&ctl.listener[i]);
	}
	for (c = ctl.conns; c; c = next) {
		next = c->next; /* nothing here closes another conn */
		if (c->state == CONN_UP) {
			conn_say_bye(c, now);
		} else {
			conn_close(c);
		}
	}
}

void control_left(void)
{
	pthread_mutex_lock(&ctl.lock);
	ctl.stopped = true;
	pthread_cond_broadcast(&ctl.stopped_cond);
	pthread_mutex_unlock(&ctl.lock);
}

static uint64_t control_work(struct timer *t, uint64_t now)
{
	struct peer *list = work_take_all(), *peer;
	bool stopping;

	(void)t;
	while ((peer = work_take(&list)) != NULL) {
		if (peer->conn) {
			conn_flush(peer->conn);
		} else if (peer_state(peer) == PEER_DIALING && !peer->dial && !ctl.leaving) {
			dial_start(peer);
		}
		if (peer_state(peer) == PEER_UP && !ctl.leaving) {
			session_look(peer);
		}
		peer_put(peer);
	}
	pthread_mutex_lock(&ctl.lock);
	stopping = ctl.stopping;
	pthread_mutex_unlock(&ctl.lock);
	if (stopping && !ctl.leaving) {
		control_leave(now);
	}
	conn_reap();
	return UINT64_MAX;
}

/* ---- start and stop ---- */

static void listeners_say(void)
{
	char text[WIRE_ADDRS_MAX * (ADDR_TEXT_BYTES + 2)] = "", addr[ADDR_TEXT_BYTES];
	struct sockaddr_storage at;
	size_t used = 0;

	for (unsigned i = 0; i < WIRE_ADDRS_MAX; i++) {
		if (ctl.listener[i].addr.family) {
			addr_to_sockaddr(&ctl.listener[i].addr, &at);
			addr_text(&at, addr);
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s",
						 used ? ", " : "", addr);
		}
	}
	log_info("control connections on %s", text);
}

static int listeners_open(void)
{
	struct wire_addr addr[WIRE_ADDRS_MAX];
	unsigned found = 0, open = 0;
	char text[64];
	int rc = addr_find_interfaces(addr, &found);

	if (rc) {
		return rc; /* said there */
	}
	for (unsigned i = 0; i < found; i++) {
		rc = listener_open(&ctl.listener[i], &addr[i]);
		open += rc == 0;
	}
	if (open > 0) {
		listeners_say();
		return 0;
	}
	log_warn("cannot listen for control connections: %s",
		 strerror_r(-rc, text, sizeof(text)));
	return rc;
}

static int control_open(const struct control_handler *handler)
{
	int rc = plugin_thread_start();

	if (rc) {
		return rc;
	}
	ctl.handler = handler;
	ctl.unknown = 0;
	ctl.paused = ctl.leaving = false;
	ctl.deadline_ns = ctl.resume_ns = UINT64_MAX;
	gethostname(ctl.host, sizeof(ctl.host));
	ctl.host[sizeof(ctl.host) - 1] = '\0';
	rc = random_fill(&ctl.instance, sizeof(ctl.instance));
	if (rc == 0) {
		rc = listeners_open();
	}
	if (rc) {
		plugin_thread_stop();
		return rc;
	}
	pthread_mutex_lock(&ctl.lock);
	ctl.started = true;
	ctl.stopping = ctl.stopped = false;
	pthread_mutex_unlock(&ctl.lock);
	return 0;
}

/*
 * In a forked child all of this is the parent's: its sockets must not be used here, its locks may
 * be held by threads that do not exist, its lists may be half changed. They are dropped unread.
 */
static void control_forget_parent(void)
{
	static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static const pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

	ctl.life = ctl.lock = ctl.work_lock = mutex;
	ctl.stopped_cond = cond;
	ctl.users = 0;
	ctl.started = ctl.stopping = ctl.stopped = false;
	ctl.listens = NULL;
	ctl.peers = ctl.work = ctl.up = NULL;
	ctl.conns = ctl.dead = NULL;
	ctl.work_timer.next = ctl.deadline_timer.next = NULL;
	for (unsigned i = 0; i < WIRE_ADDRS_MAX; i++) {
		if (ctl.listener[i].watch.fd >= 0) {
			close(ctl.listener[i].watch.fd);
		}
		ctl.listener[i].watch.fd = -1;
		memset(&ctl.listener[i].addr, 0, sizeof(ctl.listener[i].addr));
	}
}

int control_start(const struct control_handler *handler)
{
	pid_t pid = __atomic_load_n(&ctl.pid, __ATOMIC_RELAXED);
	int rc = 0;

	if (pid != 0 && pid != getpid()) {
		control_forget_parent();
	}
	pthread_mutex_lock(&ctl.life);
	if (!control_is_this_process()) {
		__atomic_store_n(&ctl.pid, getpid(), __ATOMIC_RELAXED);
	}
	if (ctl.users == 0) {
		rc = control_open(handler);
	}
	ctl.users += rc == 0;
	pthread_mutex_unlock(&ctl.life);
	return rc;
}

static void control_close(void)
{
	pthread_mutex_lock(&ctl.lock);
	ctl.stopping = true;
	pthread_mutex_unlock(&ctl.lock);
	timer_set(&ctl.work_timer, 0);
	pthread_mutex_lock(&ctl.lock);
	while (!ctl.stopped) {
		pthread_cond_wait(&ctl.stopped_cond, &ctl.lock);
	}
	ctl.started = false;
	pthread_mutex_unlock(&ctl.lock);
	timer_del(&ctl.work_timer);
	timer_del(&ctl.deadline_timer);
	ctl.up = NULL;
	peers_forget();
	pthread_mutex_lock(&ctl.lock);
	while (ctl.listens) {
		struct listen *l = ctl.listens;

		ctl.listens = l->next;
		free(l);
	}
	pthread_mutex_unlock(&ctl.lock);
	plugin_thread_stop();
}

void control_stop(void)
{
	if (!control_is_this_process()) {
		return;
	}
	pthread_mutex_lock(&ctl.life);
	if (ctl.users > 0 && --ctl.users == 0) {
		control_close();
	}
	pthread_mutex_unlock(&ctl.life);
}
