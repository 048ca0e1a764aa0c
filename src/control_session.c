/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_session.c - what of a peer survives its connections: counted messages and their acks,
 * heartbeats, and the verdict that it is gone.
 *
 * Plugin thread only. The rules are said in control_internal.h: "Session", "Detection", "Verdicts".
 */
#define _GNU_SOURCE
#include "control_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "log.h"
#include "util.h"

enum {
	/* Sessions' ticks fall together, so that many peers cost few wake-ups: parts of a beat. */
	TICKS_PER_BEAT = 5,
	SILENT_BEATS = 3
};

/* ---- messages out ---- */

struct frame *session_next(struct peer *peer)
{
	struct frame_queue fresh;

	if (peer->unsent) {
		return peer->unsent;
	}
	pthread_mutex_lock(&peer->lock); /* a splice: held for two stores */
	fresh = peer->queue;
	peer->queue = (struct frame_queue){NULL, NULL};
	pthread_mutex_unlock(&peer->lock);
	if (!fresh.head) {
		return NULL;
	}
	if (peer->kept.tail) {
		peer->kept.tail->next = fresh.head;
	} else {
		peer->kept.head = fresh.head;
	}
	peer->kept.tail = fresh.tail;
	peer->unsent = fresh.head;
	return peer->unsent;
}

void session_sent(struct peer *peer)
{
	peer->unsent = peer->unsent->next;
	peer->sent++;
	if (peer->sent > peer->sent_max) {
		peer->sent_max = peer->sent;
	}
}

/*
 * On a new connection the other end may know of more than this end has sent on it again. What is
 * not sent here stays, even so: the stream must go on as the greeting said.
 */
int session_acked(struct peer *peer, uint64_t received)
{
	size_t bytes = 0;

	if (received > peer->sent_max) {
		return -EPROTO;
	}
	while (peer->kept_first < received && peer->kept_first < peer->sent) {
		struct frame *f = peer->kept.head;

		peer->kept.head = f->next;
		if (!f->next) {
			peer->kept.tail = NULL;
		}
		bytes += f->counted ? f->bytes : 0;
		peer->kept_first++;
		free(f);
	}
	if (bytes > 0) {
		pthread_mutex_lock(&peer->lock);
		peer->queued_bytes -= bytes;
		pthread_mutex_unlock(&peer->lock);
	}
	return 0;
}

/* ---- messages in ---- */

bool session_is_new(struct conn *c, size_t bytes)
{
	if (c->skip > 0) {
		c->skip--;
		return false;
	}
	c->peer->received++;
	c->unacked_bytes += bytes;
	if (++c->unacked_frames >= ACK_FRAMES || c->unacked_bytes >= ACK_BYTES) {
		c->wants_ack = true;
	}
	return true;
}

int session_take_ack(struct conn *c, const uint8_t *body, size_t bytes)
{
	struct wire_ack ack;

	if (wire_ack_decode(body, bytes, &ack) || session_acked(c->peer, ack.received)) {
		return -EPROTO;
	}
	c->wants_ack |= ack.ask != 0;
	return 0;
}

static void session_add_addr(struct peer *peer, const struct wire_addr *addr)
{
	for (unsigned i = 0; i < peer->addr_count; i++) {
		if (addr_is_same_host(&peer->addr[i], addr) && peer->addr[i].port == addr->port) {
			return;
		}
	}
	if (peer->addr_count < PEER_ADDRS) {
		peer->addr[peer->addr_count++] = *addr; /* the order stays: a dial may be at one */
	}
}

/* The connection that is there shows one address at which the peer is reached. */
static void session_note_addr(struct peer *peer, const struct conn *c)
{
	for (unsigned i = 0; i < peer->addr_count; i++) {
		if (c->dialed ? i == c->dial.addr_index
			      : addr_is_same_host(&peer->addr[i], &c->from)) {
			peer->worked[i] = true;
			peer->addr_last = i;
			return;
		}
	}
}

int session_take_addrs(struct conn *c, const uint8_t *body, size_t bytes)
{
	struct peer *peer = c->peer;
	struct wire_addrs addrs;

	if (wire_addrs_decode(body, bytes, &addrs)) {
		return -EPROTO;
	}
	memcpy(peer->their_secret, addrs.secret, sizeof(peer->their_secret));
	peer->has_their_secret = true;
	for (unsigned i = 0; i < addrs.count; i++) {
		session_add_addr(peer, &addrs.addr[i]);
	}
	session_note_addr(peer, c);
	return 0;
}

static void session_tell_addrs(struct peer *peer, struct conn *c)
{
	uint8_t body[sizeof(struct wire_addrs) + 16];
	struct wire_addrs addrs = {.count = 0};

	memcpy(addrs.secret, peer->secret, sizeof(addrs.secret));
	pthread_mutex_lock(&ctl.lock);
	for (unsigned i = 0; i < WIRE_ADDRS_MAX; i++) {
		if (ctl.listener[i].addr.family) {
			addrs.addr[addrs.count++] = ctl.listener[i].addr;
		}
	}
	pthread_mutex_unlock(&ctl.lock);
	frame_push(&c->out, frame_make(WIRE_ADDRS, 0, body,
				       wire_addrs_encode(&addrs, body, sizeof(body))));
}

/* ---- ticks ---- */

static bool session_is_pending(const struct peer *peer)
{
	return peer->kept.head || !peer->conn || peer->asked ||
	       __atomic_load_n(&peer->watchers, __ATOMIC_RELAXED) > 0;
}

static uint64_t session_interval_ns(const struct peer *peer)
{
	return peer->kept.head && peer->conn ? control_limits.beat_ns : control_limits.watch_ns;
}

static void session_tick_at(struct peer *peer, uint64_t at_ns)
{
	uint64_t grain = control_limits.beat_ns / TICKS_PER_BEAT;

	peer->tick_ns = at_ns + grain - at_ns % grain;
	control_wake_at(peer->tick_ns);
}

void session_look(struct peer *peer)
{
	uint64_t now = now_ns(), at = now + session_interval_ns(peer);

	if (!session_is_pending(peer)) {
		return;
	}
	if (peer->tick_ns == UINT64_MAX) {
		peer->ticked_ns = now;
	}
	if (at < peer->tick_ns) {
		session_tick_at(peer, at);
	}
}

static void session_is_out(struct peer *peer)
{
	char why[PEER_WHY_BYTES];

	snprintf(why, sizeof(why), "nothing came from it for %u s (RAILYARD_OUTAGE_TIMEOUT), %s",
		 (unsigned)(peer->silent_ns / NS_PER_S),
		 peer->conn ? "over the connection that is there or a new one"
			    : "and it cannot be connected to");
	peer_fail(peer, why);
}

void session_tick(struct peer *peer, uint64_t now)
{
	uint64_t interval = session_interval_ns(peer), gap = now - peer->ticked_ns;
	uint64_t patience = SILENT_BEATS * interval, heard;

	peer->tick_ns = UINT64_MAX;
	peer->ticked_ns = now;
	if (peer->asked || !peer->conn) {
		peer->silent_ns += gap < 2 * interval ? gap : 2 * interval;
	}
	if (config.outage_timeout_ms > 0 &&
	    peer->silent_ns >= (uint64_t)config.outage_timeout_ms * NS_PER_MS) {
		session_is_out(peer);
		return;
	}
	if (!session_is_pending(peer)) {
		return;
	}
	patience = patience < control_limits.silent_ns ? control_limits.silent_ns : patience;
	if (!peer->conn) {
		dial_again(peer, peer->addr_last, 0); /* if it has ended for want of memory */
	} else if (peer->silent_ns >= patience) {
		dial_again(peer, peer->addr_last + 1, 0);
	}
	if (peer->conn) {
		peer_heard(peer, &heard);
		if (peer->kept.head || peer->asked || now - heard >= interval) {
			peer->asked = peer->conn->asks = true;
			conn_flush(peer->conn);
		}
	}
	session_tick_at(peer, now + interval);
}

void session_heard(struct conn *c)
{
	struct peer *peer = c->peer;
	struct conn *dial = peer->dial;

	__atomic_store_n(&peer->heard_ns, now_ns(), __ATOMIC_RELAXED);
	peer->asked = false;
	peer->silent_ns = 0;
	peer->confirmed = true;
	if (dial && (dial->state == CONN_WAIT || dial->state == CONN_CONNECTING)) {
		conn_close(dial); /* it was only slow; a HELLO that is out goes its way */
	}
}

/* ---- connections come and go ---- */

/*
 * Between two connections: nothing is half sent, so all that has come over there can go. What is
 * unread on the old one was not counted here, and will be sent again.
 */
void session_resume(struct peer *peer, uint64_t received)
{
	if (peer->conn) {
		conn_close(peer->conn);
	}
	peer->unsent = NULL;
	peer->sent = peer->sent_max;
	session_acked(peer, received);
}

static void session_link(struct peer *peer)
{
	peer->up_next = ctl.up;
	ctl.up = peer;
	ctl.ups++;
}

void session_connect(struct peer *peer, struct conn *c)
{
	uint64_t now = now_ns();

	c->state = CONN_UP;
	c->deadline_ns = UINT64_MAX;
	c->up_ns = now;
	c->ifindex = addr_ifindex(c->watch.fd);
	peer->conn = c;
	peer->unsent = peer->kept.head;
	peer->sent = peer->kept_first;
	peer->asked = false;
	peer->silent_ns = 0;
	__atomic_store_n(&peer->heard_ns, now, __ATOMIC_RELAXED);
	__atomic_store_n(&peer->is_connected, true, __ATOMIC_RELAXED);
	session_note_addr(peer, c);
	session_tell_addrs(peer, c);
	if (peer_state(peer) == PEER_DIALING) {
		session_link(peer);
	} else {
		log_limited(&peer->limit, LOG_INFO, __func__, __LINE__,
			    "control connection to %s is there again, now with %s, after %u ms",
			    peer_name(peer), c->addr,
			    peer->lost_ns ? (unsigned)((now - peer->lost_ns) / NS_PER_MS) : 0);
	}
	peer->lost_ns = 0;
	session_look(peer);
}

void control_link_down(int ifindex)
{
	if (!control_is_this_process()) {
		return;
	}
	for (struct peer *peer = ctl.up; peer; peer = peer->up_next) {
		if (peer->conn && peer->conn->ifindex == ifindex) {
			dial_again(peer, peer->addr_last + 1, 0);
		}
	}
}

void session_lost(struct peer *peer, struct conn *c, const char *why)
{
	bool is_second = ctl.instance > peer->instance;

	conn_close(c);
	__atomic_store_n(&peer->is_connected, false, __ATOMIC_RELAXED);
	peer->lost_ns = now_ns();
	log_limited(&peer->limit, LOG_INFO, __func__, __LINE__,
		    "control connection to %s lost: %s; making it again", peer_name(peer), why);
	if (!greet_parked(peer)) {
		dial_again(peer, peer->addr_last, is_second ? control_limits.second_ns : 0);
	}
	session_look(peer);
}

void session_end(struct peer *peer)
{
	struct peer **at = &ctl.up;

	while (*at && *at != peer) {
		at = &(*at)->up_next;
	}
	if (*at) {
		*at = peer->up_next;
		ctl.ups++;
	}
	peer->tick_ns = UINT64_MAX;
	peer->unsent = NULL;
	frames_free(&peer->kept);
	__atomic_store_n(&peer->is_connected, false, __ATOMIC_RELAXED);
}
