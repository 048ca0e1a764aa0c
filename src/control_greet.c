/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_greet.c - the accepting end: listening, and whose HELLO it is.
 *
 * Plugin thread only. Who may connect, and which of two crossing connections stays, is said in
 * control_internal.h.
 */
#define _GNU_SOURCE
#include "control_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

enum {
	ACCEPT_PAUSE_MS = 100,
	/* Of one listener in one go, so that each of a flood has its turn to say HELLO. */
	ACCEPTS_MAX = 8
};

/* ---- listening ---- */

static void listeners_pause(void)
{
	ctl.paused = true;
	for (unsigned i = 0; i < WIRE_ADDRS_MAX; i++) {
		watch_mod(&ctl.listener[i].watch, 0);
	}
}

void listeners_resume(void)
{
	if (!ctl.paused || ctl.leaving) {
		return;
	}
	ctl.paused = false;
	ctl.resume_ns = UINT64_MAX;
	for (unsigned i = 0; i < WIRE_ADDRS_MAX; i++) {
		watch_mod(&ctl.listener[i].watch, EPOLLIN);
	}
}

/* The oldest makes room, so that those who say nothing cannot hold out those who do. */
static void unknown_make_room(void)
{
	struct conn *oldest = NULL;

	for (struct conn *c = ctl.conns; c; c = c->next) { /* the newest comes first */
		oldest = c->state == CONN_UNKNOWN ? c : oldest;
	}
	log_warn_limited("%u connections without a HELLO wait at the control port: the oldest, "
			 "from %s, is closed (a port scan?)",
			 ctl.unknown, oldest->addr);
	conn_close(oldest);
}

static void listener_take(int fd, const struct sockaddr_storage *from)
{
	struct conn *c;

	while (ctl.unknown > 0 && ctl.unknown >= control_limits.unknown_max) {
		unknown_make_room();
	}
	c = conn_create(CONN_UNKNOWN);
	if (!c) {
		close(fd);
		return;
	}
	ctl.unknown++;
	addr_from_sockaddr((const struct sockaddr *)from, &c->from);
	addr_text(from, c->addr);
	socket_tune(fd);
	if (conn_watch(c, fd, EPOLLIN)) {
		conn_close(c);
		return;
	}
	conn_set_deadline(c, now_ns() + control_limits.hello_ns);
}

static void listener_event(struct watch *w, uint32_t events)
{
	(void)events;
	for (unsigned i = 0; i < ACCEPTS_MAX && !ctl.leaving; i++) {
		struct sockaddr_storage from;
		socklen_t bytes = sizeof(from);
		char text[64];
		int fd = accept4(w->fd, (struct sockaddr *)&from, &bytes,
				 SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			listener_take(fd, &from);
		} else if (errno == EAGAIN) {
			break;
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			   errno == ENOMEM) {
			log_warn_limited("cannot accept control connections: %s (raise the limit "
					 "of open files); trying again",
					 strerror_r(errno, text, sizeof(text)));
			listeners_pause();
			ctl.resume_ns = now_ns() + ACCEPT_PAUSE_MS * NS_PER_MS;
			control_wake_at(ctl.resume_ns);
			break;
		}
	}
	conn_reap();
}

int listener_open(struct listener *l, const struct wire_addr *addr)
{
	struct sockaddr_storage at;
	socklen_t bytes = addr_to_sockaddr(addr, &at);
	int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc;

	if (fd < 0) {
		return -errno;
	}
	if (bind(fd, (struct sockaddr *)&at, bytes) != 0 || listen(fd, SOMAXCONN) != 0 ||
	    getsockname(fd, (struct sockaddr *)&at, &bytes) != 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	l->watch.fd = fd;
	l->watch.fn = listener_event;
	rc = watch_add(&l->watch, EPOLLIN);
	if (rc) {
		close(fd);
		l->watch.fd = -1;
		return rc;
	}
	addr_from_sockaddr((struct sockaddr *)&at, &l->addr);
	return 0;
}

void listener_close(struct listener *l)
{
	if (l->watch.fd >= 0) {
		watch_del(&l->watch);
		close(l->watch.fd);
	}
	l->watch.fd = -1;
	memset(&l->addr, 0, sizeof(l->addr));
}

/* ---- the accepting end ---- */

static void greet_known(struct conn *c, enum conn_state state)
{
	if (c->state == CONN_UNKNOWN) {
		ctl.unknown--;
	}
	c->state = state;
}

static void greet_refuse(struct conn *c, int code, const char *reason)
{
	struct wire_refuse refuse = {.code = (uint32_t)code};
	uint8_t body[sizeof(refuse) + 16];
	size_t bytes;

	if (c->hello.instance == ctl.instance) {
		/* Our own dial, of a listen that has been closed since: not news. */
		log_trace("refused a control connection of this process: %s", reason);
	} else {
		log_warn_limited("refused a control connection from %s: %s", c->addr, reason);
	}
	snprintf(refuse.reason, sizeof(refuse.reason), "%s", reason);
	bytes = wire_refuse_encode(&refuse, body, sizeof(body));
	conn_send(c, WIRE_REFUSE, body, bytes);
	if (c->state != CONN_DEAD) {
		shutdown(c->watch.fd, SHUT_WR);
		conn_close(c);
	}
}

static uint16_t version_common(uint16_t max)
{
	return max < WIRE_VERSION_MAX ? max : WIRE_VERSION_MAX;
}

/* Takes an accepted connection for the peer: whatever else there was is given up for it. */
static void greet_welcome(struct conn *c, struct peer *peer)
{
	struct wire_welcome welcome = {.instance = ctl.instance, .pid = (uint32_t)ctl.pid};
	uint8_t body[sizeof(welcome) + 16];
	bool is_first = peer_state(peer) == PEER_DIALING;

	if (peer->parked == c) {
		peer->parked = NULL;
	}
	if (!c->peer) {
		peer_hold(peer);
		c->peer = peer;
	}
	if (peer->parked) {
		conn_close(peer->parked);
	}
	if (peer->dial) {
		conn_close(peer->dial);
	}
	greet_known(c, CONN_UP);
	if (peer->theirs == 0) {
		memcpy(peer->first_secret, c->hello.secret, sizeof(peer->first_secret));
	}
	peer->theirs = c->hello.mine;
	session_resume(peer, c->hello.received);
	welcome.version = version_common(c->hello.version_max);
	memcpy(welcome.host, ctl.host, sizeof(welcome.host));
	welcome.mine = peer->mine;
	welcome.yours = peer->theirs;
	welcome.received = peer->received;
	welcome.from = peer->kept_first;
	memcpy(welcome.secret, peer->secret, sizeof(welcome.secret));
	frame_push(&c->out, frame_make(WIRE_WELCOME, 0, body,
				       wire_welcome_encode(&welcome, body, sizeof(body))));
	session_connect(peer, c);
	if (is_first) {
		peer_set_up(peer, c->hello.host, c->hello.pid, c->addr);
	}
	conn_flush(c);
}

static void greet_park(struct conn *c, struct peer *peer, uint64_t until_ns)
{
	if (peer->parked) {
		conn_close(peer->parked); /* its owner has dialed again since */
	}
	peer_hold(peer);
	c->peer = peer;
	peer->parked = c;
	greet_known(c, CONN_PARKED);
	conn_set_deadline(c, until_ns);
}

/* A HELLO of the first crossing, whose sender knows the session by now and will close it. */
static bool is_left_over(const struct conn *c, const struct peer *peer)
{
	return c->hello.yours == 0 && peer->confirmed;
}

static void greet_admit(struct conn *c, struct peer *peer)
{
	bool is_up = peer_state(peer) == PEER_UP;
	bool is_greeting = peer->dial && peer->dial->state == CONN_GREETING;
	bool is_fresh = peer->conn && peer->conn->dialed &&
			now_ns() - peer->conn->up_ns < control_limits.park_ns;

	if (is_left_over(c, peer) || is_fresh ||
	    (is_greeting && ctl.instance < peer->instance)) {
		greet_park(c, peer, is_up ? now_ns() + control_limits.park_ns : UINT64_MAX);
	} else {
		greet_welcome(c, peer);
	}
}

bool greet_parked(struct peer *peer)
{
	struct conn *c = peer->parked;

	if (c && is_left_over(c, peer)) {
		conn_close(c);
		c = NULL;
	}
	if (c) {
		greet_welcome(c, peer);
	}
	return c != NULL;
}

void greet_parked_expired(struct conn *c)
{
	greet_parked(c->peer);
}

/* A known session goes on: its own secret opens it. 0, or -errno to refuse with. */
static int greet_find_known(const struct wire_hello *hello, struct peer **out)
{
	struct peer *peer =
		peer_table_find(hello->instance, hello->instance == ctl.instance);
	int rc = 0;

	if (!peer || peer->mine != hello->yours || peer->theirs != hello->mine) {
		rc = -ESTALE;
	} else if (!secret_is_equal(peer->secret, hello->secret)) {
		rc = -EACCES;
	}
	if (rc) {
		peer_put(peer);
		return rc;
	}
	*out = peer;
	return 0;
}

/* A session begins, or its first HELLO comes again. A listen's secret opens it. */
static int greet_find_first(const struct wire_hello *hello, struct peer **out)
{
	bool is_own = hello->instance == ctl.instance;
	struct peer *peer = peer_table_find(hello->instance, is_own);
	bool is_again = peer && peer->theirs == hello->mine && !peer->confirmed;
	uint64_t listen_id;

	if (control_secret_listen(hello->secret, &listen_id) &&
	    !(is_again && secret_is_equal(peer->first_secret, hello->secret))) {
		peer_put(peer);
		return -EACCES;
	}
	while (peer && peer->theirs != 0 && peer->theirs != hello->mine) {
		peer_fail(peer, "it has opened a new session, so it lost the old one");
		peer_put(peer);
		peer = peer_table_find(hello->instance, is_own); /* of one that was parked */
	}
	if (!peer && peer_table_get(hello->instance, is_own, NULL, &peer)) {
		return -ESHUTDOWN;
	}
	*out = peer;
	return 0;
}

/* Its sender may have given it up meanwhile: then it must not take a good one's place. */
static bool greet_is_gone(const struct conn *c)
{
	char byte;
	ssize_t n = recv(c->watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void greet_identified(struct conn *c)
{
	const struct wire_hello *hello = &c->hello;
	struct peer *peer;
	int rc = hello->yours ? greet_find_known(hello, &peer) : greet_find_first(hello, &peer);

	if (rc == -ESTALE) {
		greet_refuse(c, ESTALE, "no such session here (it has ended, or its process)");
	} else if (rc == -EACCES) {
		greet_refuse(c, EACCES,
			     "no listen here has this secret (closed, or a handle of another run)");
	} else if (rc) {
		conn_close(c);
	} else if (hello->received > peer->sent_max) {
		greet_refuse(c, EPROTO, "it counts messages that were never sent");
		peer_put(peer);
	} else {
		greet_admit(c, peer);
		peer_put(peer);
	}
}

void greet_again(struct conn *c)
{
	greet_identified(c);
}

void greet_hello(struct conn *c, const uint8_t *body, size_t bytes)
{
	char text[128];

	if (wire_hello_decode(body, bytes, &c->hello)) {
		greet_refuse(c, EPROTO, "a damaged HELLO");
		return;
	}
	if (c->hello.version_min > WIRE_VERSION_MAX || c->hello.version_max < WIRE_VERSION_MIN) {
		snprintf(text, sizeof(text), "Railyard wire version %u-%u, this one speaks %d-%d",
			 c->hello.version_min, c->hello.version_max, WIRE_VERSION_MIN,
			 WIRE_VERSION_MAX);
		greet_refuse(c, EPROTONOSUPPORT, text);
		return;
	}
	if (greet_is_gone(c)) {
		conn_lost(c, "it gave up its HELLO");
		return;
	}
	greet_identified(c);
}
