/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_greet.c - how two processes come to one connection: listening, dialing, HELLO, WELCOME.
 *
 * Plugin thread only. Which of two crossing connections stays is said in control_internal.h.
 *
 * A dial tries each address of the handle in turn, in rounds, until `give_up_ns`. Refused at every
 * address means a dead peer and ends it early: a listener is open before its handle is given out.
 */
#define _GNU_SOURCE
#include "control_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config.h"
#include "log.h"
#include "util.h"

enum { ACCEPT_PAUSE_MS = 100 };

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static bool is_dialing(const struct peer *peer)
{
	return peer_state(peer) == PEER_DIALING;
}

/* ---- listening ---- */

static void listeners_pause(void)
{
	ctl.paused = true;
	for (unsigned i = 0; i < WIRE_ADDRS; i++) {
		watch_mod(&ctl.listener[i].watch, 0);
	}
}

void listeners_resume(void)
{
	if (!ctl.paused || ctl.unknown >= control_limits.unknown_max || ctl.leaving) {
		return;
	}
	ctl.paused = false;
	ctl.resume_ns = UINT64_MAX;
	for (unsigned i = 0; i < WIRE_ADDRS; i++) {
		watch_mod(&ctl.listener[i].watch, EPOLLIN);
	}
}

static void listener_take(int fd, const struct sockaddr_storage *from)
{
	struct conn *c = conn_create(CONN_UNKNOWN);

	if (!c) {
		close(fd);
		return;
	}
	ctl.unknown++;
	addr_text(from, c->addr);
	socket_tune(fd);
	if (conn_watch(c, fd, EPOLLIN)) {
		conn_close(c);
		return;
	}
	conn_set_deadline(c, now_ns() + control_limits.hello_ns);
}

/*
 * While too many are unknown, nobody is accepted: they wait in the kernel's queue, where a flood
 * costs us nothing and a good peer is only late.
 */
static void listener_event(struct watch *w, uint32_t events)
{
	(void)events;
	while (!ctl.leaving) {
		struct sockaddr_storage from;
		socklen_t bytes = sizeof(from);
		char text[64];
		int fd;

		if (ctl.unknown >= control_limits.unknown_max) {
			listeners_pause();
			break;
		}
		fd = accept4(w->fd, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
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
		c->state = state;
		ctl.unknown--;
		listeners_resume();
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

/* Takes an accepted connection for the peer; a dial or an older parked one is given up for it. */
static void greet_welcome(struct conn *c, struct peer *peer)
{
	struct wire_welcome welcome = {.instance = ctl.instance, .pid = (uint32_t)ctl.pid};
	uint8_t body[sizeof(welcome) + 16];
	size_t bytes;

	if (!c->peer) {
		peer_hold(peer);
		c->peer = peer;
	}
	if (peer->parked == c) {
		peer->parked = NULL;
	}
	if (peer->parked) {
		conn_close(peer->parked);
	}
	if (peer->dial) {
		conn_close(peer->dial);
	}
	greet_known(c, CONN_UP);
	c->deadline_ns = UINT64_MAX;
	peer->conn = c;
	welcome.version = version_common(c->hello.version_max);
	memcpy(welcome.host, ctl.host, sizeof(welcome.host));
	bytes = wire_welcome_encode(&welcome, body, sizeof(body));
	frame_push(&c->out, frame_make(WIRE_WELCOME, 0, body, bytes));
	peer_set_up(peer, c->hello.host, c->hello.pid, c->addr);
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

void greet_admit(struct conn *c)
{
	uint64_t instance = c->hello.instance;
	bool is_own = instance == ctl.instance;
	struct peer *peer;

	if (peer_table_get(instance, is_own, NULL, &peer)) {
		conn_close(c);
		return;
	}
	if (is_dialing(peer)) {
		if (peer->dial && peer->dial->state == CONN_GREETING && ctl.instance < instance) {
			greet_park(c, peer, UINT64_MAX);
		} else {
			greet_welcome(c, peer);
		}
	} else if (peer->conn && peer->conn->dialed) {
		greet_park(c, peer, now_ns() + control_limits.park_ns);
	} else {
		/* It dials one connection at a time: so it has given up the one we have. */
		peer_fail(peer, "it has opened a new connection, so it lost the old one");
		peer_put(peer);
		if (peer_table_get(instance, is_own, NULL, &peer)) {
			conn_close(c);
			return;
		}
		greet_welcome(c, peer);
	}
	peer_put(peer);
}

void greet_parked_expired(struct conn *c)
{
	struct peer *peer = c->peer;

	peer_hold(peer);
	peer_fail(peer, "it has opened a new connection, so it lost the old one");
	peer_put(peer);
}

void greet_hello(struct conn *c, const uint8_t *body, size_t bytes)
{
	uint64_t listen_id;
	char text[128];

	if (wire_hello_decode(body, bytes, &c->hello)) {
		greet_refuse(c, EPROTO, "a damaged HELLO");
		return;
	}
	if (control_secret_listen(c->hello.secret, &listen_id)) {
		greet_refuse(c, EACCES,
			     "no listen here has this secret (closed, or a handle of another run)");
		return;
	}
	if (c->hello.version_min > WIRE_VERSION_MAX || c->hello.version_max < WIRE_VERSION_MIN) {
		snprintf(text, sizeof(text), "Railyard wire version %u-%u, this one speaks %d-%d",
			 c->hello.version_min, c->hello.version_max, WIRE_VERSION_MIN,
			 WIRE_VERSION_MAX);
		greet_refuse(c, EPROTONOSUPPORT, text);
		return;
	}
	greet_admit(c);
}

/* ---- the dialing end ---- */

static unsigned addrs_left(const struct conn *c)
{
	unsigned left = 0;

	for (unsigned i = c->addr_index + 1; i < WIRE_ADDRS; i++) {
		left += c->peer->handle.addr[i].family != 0;
	}
	return left;
}

static void dial_give_up(struct conn *c)
{
	char why[2 * (ADDR_TEXT_BYTES + CAUSE_BYTES)];
	size_t used = 0;

	why[0] = '\0';
	for (unsigned i = 0; i < WIRE_ADDRS; i++) {
		struct sockaddr_storage at;
		char addr[ADDR_TEXT_BYTES];

		if (c->peer->handle.addr[i].family == 0) {
			continue;
		}
		addr_to_sockaddr(&c->peer->handle.addr[i], &at);
		addr_text(&at, addr);
		used += (size_t)snprintf(why + used, sizeof(why) - used, "%s%s: %s",
					 used ? "; " : "cannot connect to it: ", addr,
					 *c->cause[i] ? c->cause[i] : "not tried in time");
	}
	peer_fail(c->peer, why);
}

static void dial_note(struct conn *c, const char *why, bool refused, bool in_words)
{
	snprintf(c->cause[c->addr_index], CAUSE_BYTES, "%s", why);
	c->tried++;
	c->refused += refused;
	c->refused_in_words |= in_words;
}

/* One TCP connect; 0 = on its way. */
static int dial_attempt(struct conn *c)
{
	struct sockaddr_storage at;
	socklen_t bytes = addr_to_sockaddr(&c->peer->handle.addr[c->addr_index], &at);
	int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc;

	if (fd < 0) {
		return -errno;
	}
	socket_tune(fd);
	addr_text(&at, c->addr);
	if (connect(fd, (struct sockaddr *)&at, bytes) != 0 && errno != EINPROGRESS) {
		rc = -errno;
		close(fd);
		return rc;
	}
	rc = conn_watch(c, fd, EPOLLIN | EPOLLOUT);
	if (rc) {
		return rc;
	}
	c->wants_out = true;
	c->state = CONN_CONNECTING;
	conn_set_deadline(c, earlier(now_ns() + control_limits.attempt_ns, c->give_up_ns));
	return 0;
}

static void dial_round_over(struct conn *c)
{
	bool all_refused = c->tried > 0 && c->refused == c->tried;
	uint64_t now = now_ns();

	if (!all_refused) {
		c->refused_since_ns = 0;
	} else if (c->refused_since_ns == 0) {
		c->refused_since_ns = now;
	}
	if (now >= c->give_up_ns ||
	    (all_refused && (c->refused_in_words ||
			     now - c->refused_since_ns >= control_limits.refused_ns))) {
		dial_give_up(c);
		return;
	}
	c->state = CONN_WAIT;
	conn_set_deadline(c, earlier(now + control_limits.pause_ns, c->give_up_ns));
}

/* From the present address on: the first that can be tried. */
static void dial_next(struct conn *c)
{
	char text[64];

	for (; c->addr_index < WIRE_ADDRS; c->addr_index++) {
		int rc;

		if (c->peer->handle.addr[c->addr_index].family == 0) {
			continue;
		}
		rc = dial_attempt(c);
		if (rc == 0) {
			return;
		}
		dial_note(c, strerror_r(-rc, text, sizeof(text)), rc == -ECONNREFUSED, false);
	}
	dial_round_over(c);
}

void dial_round(struct conn *c)
{
	c->addr_index = c->tried = c->refused = 0;
	c->refused_in_words = false;
	dial_next(c);
}

void dial_start(struct peer *peer)
{
	struct conn *c = conn_create(CONN_WAIT);

	if (!c) {
		peer_fail(peer, "out of memory");
		return;
	}
	peer_hold(peer);
	c->peer = peer;
	c->dialed = true;
	c->give_up_ns = now_ns() + (uint64_t)config.connect_timeout_ms * NS_PER_MS;
	peer->dial = c;
	dial_round(c);
}

/* This address did not work. The other end's own dial, if it waits, is as good as another try. */
void dial_failed(struct conn *c, const char *why, bool refused, bool in_words)
{
	struct peer *peer = c->peer;

	dial_note(c, why, refused, in_words);
	conn_unwatch(c);
	c->state = CONN_WAIT;
	if (peer->parked) {
		greet_welcome(peer->parked, peer);
	} else if (now_ns() >= c->give_up_ns) {
		dial_give_up(c);
	} else {
		c->addr_index++;
		dial_next(c);
	}
}

/* A port of our own that nobody listens on can connect to itself: TCP's simultaneous open. */
static bool is_connected_to_itself(int fd)
{
	struct sockaddr_storage a, b;
	socklen_t a_bytes = sizeof(a), b_bytes = sizeof(b);

	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	return getsockname(fd, (struct sockaddr *)&a, &a_bytes) == 0 &&
	       getpeername(fd, (struct sockaddr *)&b, &b_bytes) == 0 && a_bytes == b_bytes &&
	       memcmp(&a, &b, a_bytes) == 0;
}

void dial_connected(struct conn *c)
{
	struct wire_hello hello = {.instance = ctl.instance,
				   .version_min = WIRE_VERSION_MIN,
				   .version_max = WIRE_VERSION_MAX,
				   .pid = (uint32_t)ctl.pid};
	uint8_t body[sizeof(hello) + 16];
	uint64_t now = now_ns(), left;
	socklen_t bytes = sizeof(int);
	char text[64];
	int err = 0;

	getsockopt(c->watch.fd, SOL_SOCKET, SO_ERROR, &err, &bytes);
	if (err == 0 && is_connected_to_itself(c->watch.fd)) {
		err = ECONNREFUSED;
	}
	if (err) {
		dial_failed(c, strerror_r(err, text, sizeof(text)), err == ECONNREFUSED, false);
		return;
	}
	c->state = CONN_GREETING;
	left = c->give_up_ns > now ? c->give_up_ns - now : 0;
	conn_set_deadline(c, now + (addrs_left(c) ? left / 2 : left));
	memcpy(hello.secret, c->peer->handle.secret, sizeof(hello.secret));
	memcpy(hello.host, ctl.host, sizeof(hello.host));
	conn_send(c, WIRE_HELLO, body, wire_hello_encode(&hello, body, sizeof(body)));
}

static void greet_welcomed(struct conn *c, const struct wire_welcome *welcome)
{
	struct peer *peer = c->peer;

	c->state = CONN_UP;
	c->deadline_ns = UINT64_MAX;
	peer->dial = NULL;
	peer->conn = c;
	if (peer->parked) {
		conn_set_deadline(peer->parked, now_ns() + control_limits.park_ns);
	}
	peer_set_up(peer, welcome->host, welcome->pid, c->addr);
	conn_flush(c);
}

void greet_answer(struct conn *c, uint16_t type, const uint8_t *body, size_t bytes)
{
	struct wire_welcome welcome;
	struct wire_refuse refuse;

	if (type == WIRE_REFUSE && wire_refuse_decode(body, bytes, &refuse) == 0) {
		dial_failed(c, refuse.reason, true, true);
	} else if (type != WIRE_WELCOME || wire_welcome_decode(body, bytes, &welcome)) {
		dial_failed(c, "its answer to HELLO is not Railyard's", true, false);
	} else if (welcome.instance != c->peer->instance) {
		dial_failed(c, "another process answers there", true, false);
	} else if (welcome.version < WIRE_VERSION_MIN || welcome.version > WIRE_VERSION_MAX) {
		dial_failed(c, "it chose a wire version that was not offered", true, false);
	} else {
		greet_welcomed(c, &welcome);
	}
}
