/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control.c - start and stop, listens and their secrets, the table of peers, sending.
 *
 * The part that NCCL's threads call. They only change lists under a lock and wake the plugin
 * thread; every socket call is made there. Who owns what: control_internal.h.
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
	.park_ns = 5 * NS_PER_S,
	.linger_ns = 1 * NS_PER_S,
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
	.listener = {{.watch.fd = -1}, {.watch.fd = -1}},
};

static bool is_this_process(void)
{
	return __atomic_load_n(&ctl.pid, __ATOMIC_RELAXED) == getpid();
}

/* ---- frames ---- */

struct frame *frame_make(uint16_t type, uint64_t target, const void *body, size_t bytes)
{
	struct wire_frame head = {.bytes = (uint32_t)bytes, .type = type, .target = target};
	struct frame *f = malloc(sizeof(*f) + WIRE_FRAME_BYTES + bytes);

	if (!f) {
		return NULL;
	}
	f->next = NULL;
	f->bytes = WIRE_FRAME_BYTES + bytes;
	f->counted = false;
	wire_frame_encode(&head, f->data);
	if (bytes > 0) {
		memcpy(f->data + WIRE_FRAME_BYTES, body, bytes);
	}
	return f;
}

void frame_push(struct frame_queue *q, struct frame *f)
{
	if (!f) {
		return; /* no memory: the connection will time out, which is all that can be said */
	}
	if (q->tail) {
		q->tail->next = f;
	} else {
		q->head = f;
	}
	q->tail = f;
}

void frames_free(struct frame_queue *q)
{
	while (q->head) {
		struct frame *f = q->head;

		q->head = f->next;
		free(f);
	}
	q->tail = NULL;
}

/* ---- peers ---- */

static struct peer *peer_create(uint64_t instance, const struct wire_handle *handle)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	struct sockaddr_storage at;
	char addr[ADDR_TEXT_BYTES] = "an unknown address";

	if (!peer) {
		return NULL;
	}
	if (handle) {
		peer->handle = *handle;
		addr_to_sockaddr(&handle->addr[0], &at);
		addr_text(&at, addr);
	}
	pthread_mutex_init(&peer->lock, NULL);
	peer->refs = 1;
	peer->instance = instance;
	peer->state = PEER_DIALING;
	snprintf(peer->name_dialed, sizeof(peer->name_dialed), "process at %s", addr);
	peer->name = peer->name_dialed;
	return peer;
}

void peer_hold(struct peer *peer)
{
	__atomic_add_fetch(&peer->refs, 1, __ATOMIC_RELAXED);
}

void peer_put(struct peer *peer)
{
	if (!peer || __atomic_sub_fetch(&peer->refs, 1, __ATOMIC_ACQ_REL) != 0) {
		return;
	}
	if (peer->data && ctl.handler && ctl.handler->on_free) {
		ctl.handler->on_free(peer->data);
	}
	frames_free(&peer->queue);
	pthread_mutex_destroy(&peer->lock);
	free(peer);
}

enum peer_state peer_state(const struct peer *peer)
{
	return __atomic_load_n(&peer->state, __ATOMIC_ACQUIRE);
}

const char *peer_name(const struct peer *peer)
{
	return __atomic_load_n(&peer->name, __ATOMIC_ACQUIRE);
}

const char *peer_why(const struct peer *peer)
{
	return peer_state(peer) == PEER_FAILED ? peer->why : "it has not failed";
}

void **peer_data(struct peer *peer)
{
	return &peer->data;
}

static void peer_set_state(struct peer *peer, enum peer_state state)
{
	pthread_mutex_lock(&peer->lock);
	__atomic_store_n(&peer->state, state, __ATOMIC_RELEASE);
	if (state == PEER_FAILED) {
		frames_free(&peer->queue);
		peer->queued_bytes = 0;
	}
	pthread_mutex_unlock(&peer->lock);
}

void peer_set_up(struct peer *peer, const char *host, uint32_t pid, const char *addr)
{
	snprintf(peer->name_known, sizeof(peer->name_known), "%s (pid %u, %s)", host, pid, addr);
	__atomic_store_n(&peer->name, peer->name_known, __ATOMIC_RELEASE);
	peer_set_state(peer, PEER_UP);
	log_info("control connection to %s is up", peer_name(peer));
}

static struct peer *peer_table_find(uint64_t instance, bool is_own_accepted)
{
	struct peer *peer = ctl.peers;

	while (peer && (peer->instance != instance || peer->is_own_accepted != is_own_accepted)) {
		peer = peer->next;
	}
	return peer;
}

int peer_table_get(uint64_t instance, bool is_own_accepted, const struct wire_handle *handle,
		   struct peer **out)
{
	struct peer *peer;
	int rc = 0;

	pthread_mutex_lock(&ctl.lock);
	if (!ctl.started || ctl.stopping) {
		rc = -ESHUTDOWN;
		goto unlock;
	}
	peer = peer_table_find(instance, is_own_accepted);
	if (!peer) {
		peer = peer_create(instance, handle);
		if (!peer) {
			rc = -ENOMEM;
			goto unlock;
		}
		peer->is_own_accepted = is_own_accepted;
		peer->next = ctl.peers;
		ctl.peers = peer;
	}
	peer_hold(peer);
	*out = peer;
unlock:
	pthread_mutex_unlock(&ctl.lock);
	return rc;
}

/* Whether it was in the table, whose reference is then the caller's. */
static bool peer_table_remove(struct peer *peer)
{
	struct peer **at = &ctl.peers;
	bool found;

	pthread_mutex_lock(&ctl.lock);
	while (*at && *at != peer) {
		at = &(*at)->next;
	}
	found = *at != NULL;
	if (found) {
		*at = peer->next;
	}
	pthread_mutex_unlock(&ctl.lock);
	return found;
}

void peer_fail(struct peer *peer, const char *why)
{
	struct conn *parked = peer->parked;

	if (!peer_table_remove(peer)) {
		return;
	}
	snprintf(peer->why, sizeof(peer->why), "%s", why);
	peer_set_state(peer, PEER_FAILED);
	if (peer->conn) {
		conn_close(peer->conn);
	}
	if (peer->dial) {
		conn_close(peer->dial);
	}
	ctl.handler->on_down(peer, peer->why);
	if (parked) { /* the other end's next connection */
		peer->parked = NULL;
		parked->peer = NULL;
		__atomic_sub_fetch(&peer->refs, 1, __ATOMIC_RELEASE); /* the table's is left */
		greet_admit(parked);
	}
	peer_put(peer);
}

/* Puts the peer on the plugin thread's list: to dial, or to send what it has queued. */
static void peer_kick(struct peer *peer)
{
	bool fresh;

	pthread_mutex_lock(&ctl.work_lock);
	fresh = !peer->in_work;
	if (fresh) {
		peer_hold(peer);
		peer->in_work = true;
		peer->work_next = ctl.work;
		ctl.work = peer;
	}
	pthread_mutex_unlock(&ctl.work_lock);
	if (fresh) {
		timer_set(&ctl.work_timer, 0);
	}
}

int peer_get(const struct wire_handle *handle, struct peer **out)
{
	int rc = is_this_process() ? peer_table_get(handle->instance, false, handle, out)
				   : -ESHUTDOWN;

	if (rc == 0 && peer_state(*out) == PEER_DIALING) {
		peer_kick(*out);
	}
	return rc;
}

int peer_send(struct peer *peer, uint16_t type, uint64_t target, const void *body, size_t bytes)
{
	struct frame *f;
	int rc = 0;

	if (bytes > WIRE_BODY_MAX) {
		return -EMSGSIZE;
	}
	f = frame_make(type, target, body, bytes);
	if (!f) {
		return -ENOMEM;
	}
	pthread_mutex_lock(&peer->lock);
	if (peer->state == PEER_FAILED) {
		rc = -ENOTCONN;
	} else if (peer->queued_bytes + f->bytes > control_limits.queue_bytes) {
		rc = -ENOBUFS;
	} else {
		f->counted = true;
		peer->queued_bytes += f->bytes;
		frame_push(&peer->queue, f);
	}
	pthread_mutex_unlock(&peer->lock);
	if (rc) {
		free(f);
		return rc;
	}
	peer_kick(peer);
	return 0;
}

void peer_each(void (*fn)(struct peer *peer, void *arg), void *arg)
{
	pthread_mutex_lock(&ctl.lock);
	for (struct peer *peer = ctl.peers; peer; peer = peer->next) {
		fn(peer, arg);
	}
	pthread_mutex_unlock(&ctl.lock);
}

/* ---- listens ---- */

static int random_fill(void *to, size_t bytes)
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
	if (!is_this_process() || !ctl.started || ctl.stopping) {
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
	for (unsigned i = 0; i < WIRE_ADDRS; i++) {
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
static bool secret_is_equal(const uint8_t *a, const uint8_t *b)
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

static uint64_t control_deadlines(struct timer *t, uint64_t now)
{
	struct conn *c, *next;

	(void)t;
	ctl.deadline_ns = UINT64_MAX;
	if (ctl.resume_ns <= now) {
		listeners_resume();
	}
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
	conn_reap();
	ctl.deadline_ns = ctl.resume_ns;
	for (c = ctl.conns; c; c = c->next) {
		if (c->deadline_ns < ctl.deadline_ns) {
			ctl.deadline_ns = c->deadline_ns;
		}
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

static struct peer *work_take(struct peer **list)
{
	struct peer *peer;

	pthread_mutex_lock(&ctl.work_lock);
	peer = *list;
	if (peer) {
		*list = peer->work_next;
		peer->in_work = false;
	}
	pthread_mutex_unlock(&ctl.work_lock);
	return peer;
}

static struct peer *work_take_all(void)
{
	struct peer *list;

	pthread_mutex_lock(&ctl.work_lock);
	list = ctl.work;
	ctl.work = NULL;
	pthread_mutex_unlock(&ctl.work_lock);
	return list;
}

static void conn_say_bye(struct conn *c, uint64_t now)
{
	struct frame *bye = frame_make(WIRE_BYE, 0, NULL, 0);

	pthread_mutex_lock(&c->peer->lock);
	frame_push(&c->peer->queue, bye);
	pthread_mutex_unlock(&c->peer->lock);
	c->state = CONN_LEAVING;
	conn_set_deadline(c, now + control_limits.linger_ns);
	conn_flush(c);
}

static void control_leave(uint64_t now)
{
	struct conn *c, *next;

	ctl.leaving = true;
	for (unsigned i = 0; i < WIRE_ADDRS; i++) {
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
	char text[WIRE_ADDRS][ADDR_TEXT_BYTES] = {"", ""};
	struct sockaddr_storage at;

	for (unsigned i = 0; i < WIRE_ADDRS; i++) {
		if (ctl.listener[i].addr.family) {
			addr_to_sockaddr(&ctl.listener[i].addr, &at);
			addr_text(&at, text[i]);
		}
	}
	log_info("control connections on %s%s%s", text[0], *text[0] && *text[1] ? ", " : "",
		 text[1]);
}

static int listeners_open(void)
{
	struct wire_addr addr[WIRE_ADDRS];
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
	ctl.peers = ctl.work = NULL;
	ctl.conns = ctl.dead = NULL;
	ctl.work_timer.next = ctl.deadline_timer.next = NULL;
	for (unsigned i = 0; i < WIRE_ADDRS; i++) {
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
	if (!is_this_process()) {
		__atomic_store_n(&ctl.pid, getpid(), __ATOMIC_RELAXED);
	}
	if (ctl.users == 0) {
		rc = control_open(handler);
	}
	ctl.users += rc == 0;
	pthread_mutex_unlock(&ctl.life);
	return rc;
}

/* Every peer that somebody still holds is FAILED from here on, and freed by its last holder. */
static void control_forget_peers(void)
{
	struct peer *peer, *list = work_take_all();

	while ((peer = work_take(&list)) != NULL) {
		peer_put(peer);
	}
	for (;;) {
		pthread_mutex_lock(&ctl.lock);
		peer = ctl.peers;
		if (peer) {
			ctl.peers = peer->next;
		}
		pthread_mutex_unlock(&ctl.lock);
		if (!peer) {
			break;
		}
		snprintf(peer->why, sizeof(peer->why), "stopped by this process");
		peer_set_state(peer, PEER_FAILED);
		peer_put(peer);
	}
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
	control_forget_peers();
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
	if (!is_this_process()) {
		return;
	}
	pthread_mutex_lock(&ctl.life);
	if (ctl.users > 0 && --ctl.users == 0) {
		control_close();
	}
	pthread_mutex_unlock(&ctl.life);
}
