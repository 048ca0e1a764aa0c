/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_conn.c - one socket of a control connection: frames in, frames out, its end.
 *
 * Runs on the plugin thread only. A conn that dies in a callback stays readable (CONN_DEAD) until
 * conn_reap() at the end of that callback, so that no caller up the stack is left with freed
 * memory. What a frame means is decided elsewhere: before UP by control_greet.c and control_dial.c,
 * after that by control_session.c and the handler.
 */
#define _GNU_SOURCE
#include "control_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

enum {
	IN_BYTES_FIRST = WIRE_HELLO_MAX + WIRE_FRAME_BYTES,
	/* Of one conn in one go, so that it cannot starve the others. */
	READS_MAX = 16,
	WRITE_BYTES_MAX = 1 << 20
};

static void conn_event(struct watch *w, uint32_t events);

struct conn *conn_create(enum conn_state state)
{
	struct conn *c = calloc(1, sizeof(*c));

	if (!c) {
		return NULL;
	}
	c->in = malloc(IN_BYTES_FIRST);
	if (!c->in) {
		free(c);
		return NULL;
	}
	c->in_cap = IN_BYTES_FIRST;
	c->state = state;
	c->deadline_ns = UINT64_MAX;
	c->watch.fd = -1;
	c->watch.fn = conn_event;
	c->next = ctl.conns;
	ctl.conns = c;
	return c;
}

int conn_watch(struct conn *c, int fd, uint32_t epoll_events)
{
	int rc;

	c->watch.fd = fd;
	rc = watch_add(&c->watch, epoll_events);
	if (rc) {
		close(fd);
		c->watch.fd = -1;
	}
	return rc;
}

/* Closes the socket and forgets what was half sent and half read. */
void conn_unwatch(struct conn *c)
{
	if (c->watch.fd >= 0) {
		watch_del(&c->watch);
		close(c->watch.fd);
	}
	c->watch.fd = -1;
	c->life++;
	c->in_bytes = 0;
	c->wants_out = c->broken = c->wants_ack = c->asks = false;
	if (c->sending_own) {
		free(c->sending);
	}
	c->sending = NULL;
	c->sending_own = false;
	c->out_sent = 0;
	frames_free(&c->out);
}

static void conn_detach(struct conn *c)
{
	struct peer *peer = c->peer;

	if (!peer) {
		return;
	}
	peer->conn = peer->conn == c ? NULL : peer->conn;
	peer->dial = peer->dial == c ? NULL : peer->dial;
	peer->parked = peer->parked == c ? NULL : peer->parked;
	c->peer = NULL;
	peer_put(peer);
}

void conn_close(struct conn *c)
{
	struct conn **at = &ctl.conns;

	if (c->state == CONN_DEAD) {
		return;
	}
	if (c->state == CONN_UNKNOWN) {
		ctl.unknown--;
		listeners_resume();
	}
	c->state = CONN_DEAD;
	conn_unwatch(c);
	conn_detach(c);
	while (*at != c) {
		at = &(*at)->next;
	}
	*at = c->next;
	c->next = ctl.dead;
	ctl.dead = c;
}

void conn_reap(void)
{
	while (ctl.dead) {
		struct conn *c = ctl.dead;

		ctl.dead = c->next;
		free(c->in);
		free(c);
	}
	if (ctl.leaving && !ctl.conns) {
		control_left();
	}
}

void conn_set_deadline(struct conn *c, uint64_t at_ns)
{
	c->deadline_ns = at_ns;
	control_wake_at(at_ns);
}

static struct frame *conn_make_ack(struct conn *c)
{
	struct wire_ack ack = {.received = c->peer->received, .ask = c->asks};
	uint8_t body[sizeof(ack) + 16];

	c->wants_ack = c->asks = false;
	c->unacked_frames = 0;
	c->unacked_bytes = 0;
	return frame_make(WIRE_ACK, 0, body, wire_ack_encode(&ack, body, sizeof(body)));
}

/* What goes out next, between two frames: our own before the session's, the newest count last. */
static bool conn_pick(struct conn *c)
{
	bool is_up = c->state == CONN_UP || c->state == CONN_LEAVING;

	c->out_sent = 0;
	c->sending_own = true;
	c->sending = c->out.head;
	if (c->sending) {
		c->out.head = c->sending->next;
		c->out.tail = c->out.head ? c->out.tail : NULL;
		return true;
	}
	if (is_up && (c->wants_ack || c->asks)) {
		c->sending = conn_make_ack(c);
		if (c->sending) {
			return true;
		}
	}
	c->sending_own = false;
	c->sending = is_up ? session_next(c->peer) : NULL;
	return c->sending != NULL;
}

static void frame_sent(struct conn *c)
{
	if (c->sending_own) {
		free(c->sending);
	} else {
		session_sent(c->peer);
	}
	c->sending = NULL;
	c->sending_own = false;
}

static void conn_want_out(struct conn *c, bool wants)
{
	if (c->wants_out != wants) {
		c->wants_out = wants;
		watch_mod(&c->watch, wants ? EPOLLIN | EPOLLOUT : EPOLLIN);
	}
}

/*
 * The last stop's end of a connection: all is handed to the kernel. A close now could still lose
 * it, since an ACK that finds no socket is answered with a reset. So the other end closes first.
 */
static void conn_leave(struct conn *c)
{
	shutdown(c->watch.fd, SHUT_WR);
	c->broken = true;
}

/*
 * A socket that cannot be written any more may still hold what the peer said last (REFUSE, BYE): so
 * a send error only stops the sending, and the reader finds the end.
 */
void conn_flush(struct conn *c)
{
	size_t written = 0;

	while (!c->broken && (c->sending || conn_pick(c))) {
		struct frame *f = c->sending;
		ssize_t n = send(c->watch.fd, f->data + c->out_sent, f->bytes - c->out_sent,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) {
			conn_want_out(c, true);
			return;
		}
		if (n < 0) {
			c->broken = true;
			break;
		}
		c->out_sent += (size_t)n;
		if (c->out_sent == f->bytes) {
			frame_sent(c);
		}
		written += (size_t)n;
		if (written >= WRITE_BYTES_MAX) {
			conn_want_out(c, true);
			return;
		}
	}
	conn_want_out(c, false);
	if (c->state == CONN_LEAVING && !c->broken) {
		conn_leave(c);
	}
}

void conn_send(struct conn *c, uint16_t type, const void *body, size_t bytes)
{
	struct frame *f = frame_make(type, 0, body, bytes);

	if (!f) {
		conn_lost(c, "out of memory");
		return;
	}
	frame_push(&c->out, f);
	conn_flush(c);
}

/* The connection has ended by itself: what that means depends on how far it was. */
void conn_lost(struct conn *c, const char *why)
{
	struct peer *peer = c->peer;

	switch (c->state) {
	case CONN_CONNECTING:
		dial_failed(c, why, DIAL_FAILED);
		break;
	case CONN_GREETING: /* nobody there whom our HELLO concerns; or too many others are there */
		dial_failed(c, why, peer_state(peer) == PEER_DIALING ? DIAL_REFUSED : DIAL_SILENT);
		break;
	case CONN_UP:
		session_lost(peer, c, why);
		break;
	case CONN_UNKNOWN:
		log_trace("%s went away before its HELLO: %s", c->addr, why);
		conn_close(c);
		break;
	case CONN_PARKED:
	case CONN_LEAVING:
		conn_close(c);
		break;
	case CONN_WAIT:
	case CONN_DEAD:
		break;
	}
}

void conn_expired(struct conn *c)
{
	switch (c->state) {
	case CONN_WAIT:
		dial_round(c);
		break;
	case CONN_CONNECTING:
		dial_failed(c, "no answer to the TCP connect", DIAL_FAILED);
		break;
	case CONN_GREETING:
		dial_failed(c, "connected, but it did not answer HELLO", DIAL_SILENT);
		break;
	case CONN_UNKNOWN:
		log_warn_limited("%s connected to the control port and sent no complete HELLO in "
				 "%u ms: closed (a port scan, or a stopped process)",
				 c->addr, (unsigned)(control_limits.hello_ns / NS_PER_MS));
		conn_close(c);
		break;
	case CONN_PARKED:
		greet_parked_expired(c);
		break;
	case CONN_LEAVING:
		conn_close(c);
		break;
	case CONN_UP:
	case CONN_DEAD:
		break;
	}
}

static void conn_fail(struct conn *c, const char *why)
{
	struct peer *peer = c->peer;

	peer_hold(peer);
	peer_fail(peer, why);
	peer_put(peer);
}

static void conn_garbage(struct conn *c, const char *what)
{
	log_warn_limited("%s sent %s on a control connection: closed (not Railyard, or damaged)",
			 c->addr, what);
	if (c->state == CONN_UP) { /* who cannot be trusted with a frame, cannot with more */
		conn_fail(c, "it sent garbage");
	} else {
		conn_lost(c, "it sent garbage");
	}
}

/* REFUSE of the process, not of one connect. */
static void conn_refused(struct conn *c, const uint8_t *body, size_t bytes)
{
	struct wire_refuse refuse;

	if (wire_refuse_decode(body, bytes, &refuse)) {
		conn_garbage(c, "a damaged REFUSE");
	} else {
		conn_fail(c, refuse.reason);
	}
}

static void conn_message(struct conn *c, const struct wire_frame *f, const uint8_t *body)
{
	struct peer *peer = c->peer;

	if (!session_is_new(c, f->bytes)) {
		return;
	}
	peer_hold(peer);
	ctl.handler->on_message(peer, f->type, f->target, body, f->bytes);
	if (f->type == WIRE_BYE) { /* nothing follows it, and nothing is wanted there any more */
		peer_fail(peer, "its process has ended its use of Railyard");
	}
	peer_put(peer);
}

static void conn_up_frame(struct conn *c, const struct wire_frame *f, const uint8_t *body)
{
	switch (f->type) {
	case WIRE_HELLO:
	case WIRE_WELCOME:
		conn_garbage(c, "a second greeting");
		return;
	case WIRE_ACK:
		if (session_take_ack(c, body, f->bytes)) {
			conn_garbage(c, "an ACK of what was never sent");
		}
		return;
	case WIRE_ADDRS:
		if (session_take_addrs(c, body, f->bytes)) {
			conn_garbage(c, "damaged addresses");
		}
		return;
	default:
		if (f->type == WIRE_REFUSE && f->target == 0) {
			conn_refused(c, body, f->bytes);
		} else {
			conn_message(c, f, body);
		}
	}
}

static void conn_frame(struct conn *c, const struct wire_frame *f, const uint8_t *body)
{
	switch (c->state) {
	case CONN_UNKNOWN:
		greet_hello(c, body, f->bytes);
		break;
	case CONN_GREETING:
		dial_answer(c, f->type, body, f->bytes);
		break;
	case CONN_UP:
		conn_up_frame(c, f, body);
		break;
	case CONN_PARKED:
		conn_garbage(c, "a message before WELCOME");
		break;
	case CONN_WAIT:
	case CONN_CONNECTING:
	case CONN_LEAVING:
	case CONN_DEAD:
		break;
	}
}

/* Whether a frame of this kind and size may come now; sizes are checked before memory is taken. */
static bool frame_is_allowed(const struct conn *c, const struct wire_frame *f)
{
	size_t bytes = WIRE_FRAME_BYTES + f->bytes;

	if (c->state == CONN_UNKNOWN) {
		return f->type == WIRE_HELLO && bytes <= WIRE_HELLO_MAX;
	}
	return c->state != CONN_GREETING || bytes <= IN_BYTES_FIRST;
}

static int conn_grow(struct conn *c, size_t bytes)
{
	uint8_t *grown;

	if (bytes <= c->in_cap) {
		return 0;
	}
	grown = realloc(c->in, bytes);
	if (!grown) {
		conn_lost(c, "out of memory");
		return -ENOMEM;
	}
	c->in = grown;
	c->in_cap = bytes;
	return 0;
}

static void conn_parse(struct conn *c)
{
	unsigned life = c->life;
	struct wire_frame f;
	size_t done = 0;

	while (c->in_bytes - done >= WIRE_FRAME_BYTES) {
		size_t bytes;

		if (wire_frame_decode(c->in + done, &f) || !frame_is_allowed(c, &f)) {
			conn_garbage(c, "bytes that are no message");
			return;
		}
		bytes = WIRE_FRAME_BYTES + f.bytes;
		if (c->in_bytes - done < bytes) {
			if (conn_grow(c, bytes)) {
				return;
			}
			break;
		}
		conn_frame(c, &f, c->in + done + WIRE_FRAME_BYTES);
		if (c->life != life) {
			return; /* closed meanwhile, or dialing elsewhere: its bytes are gone */
		}
		done += bytes;
	}
	if (done > 0) {
		memmove(c->in, c->in + done, c->in_bytes - done);
		c->in_bytes -= done;
	}
}

static void conn_read(struct conn *c)
{
	unsigned life = c->life;
	char text[64];

	for (unsigned i = 0; i < READS_MAX && c->life == life; i++) {
		ssize_t n = recv(c->watch.fd, c->in + c->in_bytes, c->in_cap - c->in_bytes,
				 MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			return;
		}
		if (n < 0) {
			conn_lost(c, strerror_r(errno, text, sizeof(text)));
			return;
		}
		if (n == 0) {
			conn_lost(c, "it closed the connection");
			return;
		}
		if (c->state == CONN_LEAVING) {
			continue; /* nobody is left to hear it */
		}
		c->in_bytes += (size_t)n;
		if (c->state == CONN_UP) {
			session_heard(c);
		}
		conn_parse(c);
	}
}

static void conn_event(struct watch *w, uint32_t events)
{
	struct conn *c = CONTAINER_OF(w, struct conn, watch);
	unsigned life = c->life;

	if (c->state == CONN_CONNECTING) {
		dial_connected(c);
	} else {
		if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
			conn_read(c);
		}
		if (c->life == life && ((events & EPOLLOUT) || c->wants_ack)) {
			conn_flush(c);
		}
	}
	conn_reap();
}
