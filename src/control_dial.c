/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_dial.c - the dialing end: addresses in turn, HELLO, and what the answer means.
 *
 * Plugin thread only. A dial tries each address of the peer in turn, in rounds, one socket at a
 * time. The first dial of a session is patient with an address and ends in time; a later one is
 * brief, takes a local address of ours as its source in every other round or so, and goes on until
 * it is answered or a verdict falls (control_internal.h).
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

enum {
	/* Of a session that is dialed again, in its first round; twice that in the next ... */
	AGAIN_ATTEMPT_MS = 300,
	AGAIN_ATTEMPT_MAX_MS = 1000,
	AGAIN_ANSWER_MS = 1000,
	AGAIN_ANSWER_MAX_MS = 5000,
	/* Pauses grow to so many times the first. */
	PAUSES_MAX = 4
};

static bool is_first_dial(const struct conn *c)
{
	return peer_state(c->peer) == PEER_DIALING;
}

/* Doubles with each round. */
static uint64_t grown_ns(const struct conn *c, uint64_t first_ms, uint64_t max_ms)
{
	unsigned round = c->dial.round < 8 ? c->dial.round : 8;

	return earlier(first_ms << round, max_ms) * NS_PER_MS;
}

static uint64_t attempt_ns(const struct conn *c)
{
	return is_first_dial(c) ? control_limits.attempt_ns
				: earlier(control_limits.attempt_ns,
					  grown_ns(c, AGAIN_ATTEMPT_MS, AGAIN_ATTEMPT_MAX_MS));
}

/* ---- the end of a dial ---- */

/* What each address said; a list too long for the line ends in the middle. */
static void dial_give_up(struct conn *c, const char *what)
{
	char why[PEER_WHY_BYTES];
	size_t used = (size_t)snprintf(why, sizeof(why), "%s", what);

	for (unsigned i = 0; i < c->peer->addr_count && used < sizeof(why); i++) {
		struct sockaddr_storage at;
		char addr[ADDR_TEXT_BYTES];

		addr_to_sockaddr(&c->peer->addr[i], &at);
		addr_text(&at, addr);
		used += (size_t)snprintf(why + used, sizeof(why) - used, "%s%s: %s",
					 i ? "; " : ": ", addr,
					 *c->dial.cause[i] ? c->dial.cause[i]
							   : "not tried in time");
	}
	peer_fail(c->peer, why);
}

static bool has_worked(const struct peer *peer)
{
	bool any = false;

	for (unsigned i = 0; i < peer->addr_count; i++) {
		any |= peer->worked[i];
	}
	return any;
}

/* What a round says of the peer's process: see "Verdicts". */
static bool round_says_dead(const struct conn *c)
{
	const struct dial *d = &c->dial;

	if (is_first_dial(c) || !has_worked(c->peer)) {
		return d->tried > 0 && d->refused == d->tried;
	}
	return d->known_refused > 0 && d->reached == 0;
}

static void dial_round_over(struct conn *c)
{
	struct dial *d = &c->dial;
	bool says_dead = round_says_dead(c), is_first = is_first_dial(c);
	unsigned pauses = is_first ? 1 : 1 + d->round;
	uint64_t now = now_ns(), next;

	next = now + (pauses < PAUSES_MAX ? pauses : PAUSES_MAX) * control_limits.pause_ns;
	if (!says_dead && (is_first || d->reached > 0)) {
		d->refused_since_ns = 0;
	} else if (says_dead && d->refused_since_ns == 0) {
		d->refused_since_ns = now;
	}
	if (now >= d->give_up_ns) {
		dial_give_up(c, "cannot connect to it");
		return;
	}
	if (says_dead && ((is_first && d->refused_in_words) ||
			  now - d->refused_since_ns >= control_limits.refused_ns)) {
		dial_give_up(c, is_first ? "cannot connect to it" : "its process is gone");
		return;
	}
	if (says_dead) {
		next = earlier(next, d->refused_since_ns + control_limits.refused_ns);
	}
	d->round++;
	c->state = CONN_WAIT;
	conn_set_deadline(c, earlier(next, d->give_up_ns));
}

static void dial_note(struct conn *c, const char *why, enum dial_outcome outcome)
{
	struct dial *d = &c->dial;
	bool refused = outcome == DIAL_REFUSED || outcome == DIAL_REFUSED_IN_WORDS;

	snprintf(d->cause[d->addr_index], CAUSE_BYTES, "%s", why);
	d->tried++;
	d->refused += refused;
	d->known_refused += refused && c->peer->worked[d->addr_index];
	d->refused_in_words |= outcome == DIAL_REFUSED_IN_WORDS;
	d->reached += outcome == DIAL_SILENT;
}

/* ---- one address ---- */

/* A source that the kernel would not choose: another way to the peer, where routes go by source. */
static void dial_bind(const struct conn *c, int fd, const struct wire_addr *to)
{
	unsigned turn = c->dial.round % (WIRE_ADDRS_MAX + 1), seen = 0;
	struct sockaddr_storage at;
	int on = 1;

	for (unsigned i = 0; i < WIRE_ADDRS_MAX && turn > 0; i++) {
		struct wire_addr from = ctl.listener[i].addr;

		if (from.family == to->family && ++seen == turn) {
			from.port = 0;
			setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
			bind(fd, (struct sockaddr *)&at, addr_to_sockaddr(&from, &at));
		}
	}
}

/* One TCP connect on its way: its socket, or -errno. */
static int dial_socket(const struct conn *c, const struct wire_addr *to, bool binds)
{
	struct sockaddr_storage at;
	socklen_t bytes = addr_to_sockaddr(to, &at);
	int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc;

	if (fd < 0) {
		return -errno;
	}
	socket_tune(fd);
	if (binds) {
		dial_bind(c, fd, to);
	}
	if (connect(fd, (struct sockaddr *)&at, bytes) != 0 && errno != EINPROGRESS) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

static int dial_attempt(struct conn *c)
{
	const struct wire_addr *to = &c->peer->addr[c->dial.addr_index];
	bool binds = !is_first_dial(c) && c->dial.round > 0;
	struct sockaddr_storage at;
	int fd = dial_socket(c, to, binds), rc;

	if (fd < 0 && fd != -ECONNREFUSED && binds) {
		fd = dial_socket(c, to, false);
	}
	if (fd < 0) {
		return fd;
	}
	addr_to_sockaddr(to, &at);
	addr_text(&at, c->addr);
	rc = conn_watch(c, fd, EPOLLIN | EPOLLOUT);
	if (rc) {
		return rc;
	}
	c->wants_out = true;
	c->state = CONN_CONNECTING;
	conn_set_deadline(c, earlier(now_ns() + attempt_ns(c), c->dial.give_up_ns));
	return 0;
}

static void dial_step(struct conn *c)
{
	c->dial.addr_index = (c->dial.addr_index + 1) % c->peer->addr_count;
	c->dial.left--;
}

/* From the present address on: the first that can be tried. */
static void dial_next(struct conn *c)
{
	char text[64];

	for (; c->dial.left > 0; dial_step(c)) {
		int rc = dial_attempt(c);

		if (rc == 0) {
			return;
		}
		dial_note(c, strerror_r(-rc, text, sizeof(text)),
			  rc == -ECONNREFUSED ? DIAL_REFUSED : DIAL_FAILED);
	}
	dial_round_over(c);
}

void dial_round(struct conn *c)
{
	struct dial *d = &c->dial;

	d->left = c->peer->addr_count;
	d->addr_index = d->left ? d->begun_at % d->left : 0;
	d->tried = d->refused = d->known_refused = d->reached = 0;
	d->refused_in_words = false;
	dial_next(c);
}

/* This address did not work. The other end's own dial, if it waits, is as good as another try. */
void dial_failed(struct conn *c, const char *why, enum dial_outcome outcome)
{
	struct peer *peer = c->peer;

	dial_note(c, why, outcome);
	conn_unwatch(c);
	c->state = CONN_WAIT;
	if (greet_parked(peer)) {
		return;
	}
	if (now_ns() >= c->dial.give_up_ns) {
		dial_give_up(c, "cannot connect to it");
	} else {
		dial_step(c);
		dial_next(c);
	}
}

/* ---- its beginning ---- */

static struct conn *dial_create(struct peer *peer, uint64_t give_up_ns)
{
	struct conn *c = conn_create(CONN_WAIT);

	if (!c) {
		return NULL;
	}
	peer_hold(peer);
	c->peer = peer;
	c->dialed = true;
	c->dial.give_up_ns = give_up_ns;
	peer->dial = c;
	return c;
}

void dial_start(struct peer *peer)
{
	struct conn *c =
		dial_create(peer, now_ns() + (uint64_t)config.connect_timeout_ms * NS_PER_MS);

	if (!c) {
		peer_fail(peer, "out of memory");
		return;
	}
	dial_round(c);
}

void dial_again(struct peer *peer, unsigned addr_index, uint64_t delay_ns)
{
	struct conn *c;

	if (peer->dial || peer->is_own_accepted || peer->addr_count == 0 ||
	    !peer->has_their_secret || ctl.leaving) {
		return;
	}
	c = dial_create(peer, UINT64_MAX);
	if (c) { /* else the next tick tries again */
		c->dial.begun_at = addr_index;
		conn_set_deadline(c, now_ns() + delay_ns);
	}
}

/* ---- greeting ---- */

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

static void dial_greet(struct conn *c)
{
	struct peer *peer = c->peer;
	struct wire_hello hello = {.instance = ctl.instance,
				   .version_min = WIRE_VERSION_MIN,
				   .version_max = WIRE_VERSION_MAX,
				   .pid = (uint32_t)ctl.pid,
				   .mine = peer->mine,
				   .yours = peer->theirs,
				   .received = peer->received};
	uint8_t body[sizeof(hello) + 16];

	memcpy(hello.secret, peer->theirs ? peer->their_secret : peer->handle.secret,
	       sizeof(hello.secret));
	memcpy(hello.host, ctl.host, sizeof(hello.host));
	c->dial.told_received = peer->received;
	conn_send(c, WIRE_HELLO, body, wire_hello_encode(&hello, body, sizeof(body)));
}

void dial_connected(struct conn *c)
{
	uint64_t now = now_ns(), left;
	socklen_t bytes = sizeof(int);
	char text[64];
	int err = 0;

	getsockopt(c->watch.fd, SOL_SOCKET, SO_ERROR, &err, &bytes);
	if (err == 0 && is_connected_to_itself(c->watch.fd)) {
		err = ECONNREFUSED;
	}
	if (err) {
		dial_failed(c, strerror_r(err, text, sizeof(text)),
			    err == ECONNREFUSED ? DIAL_REFUSED : DIAL_FAILED);
		return;
	}
	c->state = CONN_GREETING;
	if (is_first_dial(c)) {
		left = c->dial.give_up_ns > now ? c->dial.give_up_ns - now : 0;
		conn_set_deadline(c, now + (c->dial.left > 1 ? left / 2 : left));
	} else {
		conn_set_deadline(c, now + grown_ns(c, AGAIN_ANSWER_MS, AGAIN_ANSWER_MAX_MS));
	}
	dial_greet(c);
}

/* It is the end that we dialed: who answers in its place does not know these. */
static const char *welcome_is_wrong(const struct peer *peer, const struct wire_welcome *welcome)
{
	if (welcome->instance != peer->instance) {
		return "another process answers there";
	}
	if (welcome->version < WIRE_VERSION_MIN || welcome->version > WIRE_VERSION_MAX) {
		return "it chose a wire version that was not offered";
	}
	if (welcome->yours != peer->mine ||
	    (peer->theirs != 0 && peer->theirs != welcome->mine)) {
		return "it answers for another session";
	}
	if (welcome->received < peer->kept_first || welcome->received > peer->sent_max ||
	    welcome->from > peer->received) {
		return "its count of messages does not fit";
	}
	return NULL;
}

static void dial_welcomed(struct conn *c, const struct wire_welcome *welcome)
{
	struct peer *peer = c->peer;
	bool is_first = is_first_dial(c);

	peer->dial = NULL;
	peer->theirs = welcome->mine;
	peer->confirmed = true;
	memcpy(peer->their_secret, welcome->secret, sizeof(peer->their_secret));
	peer->has_their_secret = true;
	session_resume(peer, welcome->received);
	c->skip = peer->received - welcome->from;
	session_connect(peer, c);
	if (peer->parked) {
		conn_set_deadline(peer->parked, now_ns() + control_limits.park_ns);
	}
	if (is_first) {
		peer_set_up(peer, welcome->host, welcome->pid, c->addr);
	}
	conn_flush(c);
}

void dial_answer(struct conn *c, uint16_t type, const uint8_t *body, size_t bytes)
{
	struct wire_welcome welcome;
	struct wire_refuse refuse;
	const char *wrong;

	if (type == WIRE_REFUSE && wire_refuse_decode(body, bytes, &refuse) == 0) {
		dial_failed(c, refuse.reason, DIAL_REFUSED_IN_WORDS);
		return;
	}
	if (type != WIRE_WELCOME || wire_welcome_decode(body, bytes, &welcome)) {
		dial_failed(c, "its answer to HELLO is not Railyard's", DIAL_REFUSED);
		return;
	}
	wrong = welcome_is_wrong(c->peer, &welcome);
	if (wrong) {
		dial_failed(c, wrong, DIAL_REFUSED);
	} else {
		dial_welcomed(c, &welcome);
	}
}
