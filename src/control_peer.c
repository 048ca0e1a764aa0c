/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_peer.c - the table of peers, sending, and what else other threads call.
 *
 * NCCL's threads only change lists under a lock and wake the plugin thread; every socket call is
 * made there. Who owns what: control_internal.h.
 */
#define _GNU_SOURCE
#include "control_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

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

	if (!peer || random_fill(&peer->mine, sizeof(peer->mine)) ||
	    random_fill(peer->secret, sizeof(peer->secret))) {
		free(peer);
		return NULL;
	}
	peer->mine |= 1; /* never 0, which means "not told yet" */
	if (handle) {
		peer->handle = *handle;
		addr_to_sockaddr(&handle->addr[0], &at);
		addr_text(&at, addr);
		for (unsigned i = 0; i < WIRE_HANDLE_ADDRS; i++) {
			if (handle->addr[i].family) {
				peer->addr[peer->addr_count++] = handle->addr[i];
			}
		}
	}
	peer->tick_ns = UINT64_MAX;
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
	frames_free(&peer->kept);
	pthread_mutex_destroy(&peer->lock);
	free(peer);
}

enum peer_state peer_state(const struct peer *peer)
{
	return __atomic_load_n(&peer->state, __ATOMIC_ACQUIRE);
}

bool peer_is_connected(const struct peer *peer)
{
	return __atomic_load_n(&peer->is_connected, __ATOMIC_RELAXED);
}

bool peer_heard(const struct peer *peer, uint64_t *ns)
{
	*ns = __atomic_load_n(&peer->heard_ns, __ATOMIC_RELAXED);
	return *ns != 0;
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

static struct peer *table_find(uint64_t instance, bool is_own_accepted)
{
	struct peer *peer = ctl.peers;

	while (peer && (peer->instance != instance || peer->is_own_accepted != is_own_accepted)) {
		peer = peer->next;
	}
	return peer;
}

struct peer *peer_table_find(uint64_t instance, bool is_own_accepted)
{
	struct peer *peer;

	pthread_mutex_lock(&ctl.lock);
	peer = table_find(instance, is_own_accepted);
	if (peer) {
		peer_hold(peer);
	}
	pthread_mutex_unlock(&ctl.lock);
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
	peer = table_find(instance, is_own_accepted);
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
	session_end(peer);
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
		greet_again(parked);
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
	int rc = control_is_this_process() ? peer_table_get(handle->instance, false, handle, out)
				   : -ESHUTDOWN;

	if (rc == 0 && peer_state(*out) == PEER_DIALING) {
		peer_kick(*out);
	}
	return rc;
}

void peer_watch(struct peer *peer, bool watch)
{
	if (!watch) {
		__atomic_sub_fetch(&peer->watchers, 1, __ATOMIC_RELAXED);
	} else if (__atomic_add_fetch(&peer->watchers, 1, __ATOMIC_RELAXED) == 1 &&
		   control_is_this_process()) {
		peer_kick(peer);
	}
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

/* ---- the plugin thread's list ---- */

struct peer *work_take(struct peer **list)
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

struct peer *work_take_all(void)
{
	struct peer *list;

	pthread_mutex_lock(&ctl.work_lock);
	list = ctl.work;
	ctl.work = NULL;
	pthread_mutex_unlock(&ctl.work_lock);
	return list;
}

/* ---- the end ---- */

/* Every peer that somebody still holds is FAILED from here on, and freed by its last holder. */
void peers_forget(void)
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
		session_end(peer); /* the plugin thread has left them already */
		peer_put(peer);
	}
}
