/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_session.c - the stream of messages survives its connections, whatever happens to them, and
 * ends only by a verdict.
 *
 * The other end is a forked process that echoes, behind proxies that cut and stall; each end tells
 * the proxies' addresses as its own, so that all re-connections go through them too. Or it is a raw
 * socket, where it must misbehave at an exact moment.
 */
#include "net_proxy.h"

#include <criterion/criterion.h>
#include <net/if.h>
#include <signal.h>

/* ---- two processes with proxies between them ---- */

static struct proxy to_other, to_other_too, to_us;
static bool has_two_ways; /* the other end is told of at two addresses */

static int role_behind(int fd)
{
	const struct proxy *told[] = {&to_other, &to_other_too};

	return proxy_role_echo(fd, told, has_two_ways ? 2 : 1);
}

/* Starts all and returns the peer, UP. */
static struct peer *world_start(struct other *o, uint64_t seed)
{
	struct wire_handle h;
	struct wire_addr real;
	struct peer *peer;

	proxy_make(&to_other, seed);
	proxy_make(&to_other_too, seed + 1);
	proxy_make(&to_us, seed + 2);
	*o = other_start(role_behind);
	cr_assert(proxy_take_echo(o, &h, &real));
	cr_assert_eq(control_start(&recorder), 0);
	proxy_start(&to_us, &ctl.listener[0].addr);
	proxy_announce(&to_us, 0);
	proxy_start(&to_other, &real);
	proxy_start(&to_other_too, &real);
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP));
	return peer;
}

static void world_stop(struct other *o, struct peer *peer)
{
	peer_put(peer);
	control_stop();
	cr_assert_eq(other_join(o), 0);
	proxy_stop(&to_us);
	proxy_stop(&to_other);
	proxy_stop(&to_other_too);
}

static uint64_t sent;

/* So many messages go there and come back, each once and in order. */
static void exchange(struct peer *peer, unsigned count, size_t bytes_max)
{
	uint64_t until = sent + count;

	for (; sent < until; sent++) {
		size_t bytes = 8 + hash_u64(sent) % (bytes_max - 8);

		cr_assert(EVENTUALLY(sent - rec_now().messages < 200), "%lu sent, %u came back",
			  (unsigned long)sent, rec_now().messages);
		cr_assert_eq(send_seq(peer, sent, bytes), 0);
	}
	cr_assert(EVENTUALLY(rec_now().messages >= sent), "%lu sent, %u came back: %s",
		  (unsigned long)sent, rec_now().messages, rec_now().why);
	cr_assert_eq(rec_now().messages, sent);
	cr_assert_eq(rec_now().out_of_order, 0);
}

static void cut_under_traffic(uint64_t seed, uint32_t cut_bytes, size_t bytes_max)
{
	struct other o;
	struct peer *peer = world_start(&o, seed);

	proxy_set(&to_other.cut_bytes, cut_bytes);
	proxy_set(&to_us.cut_bytes, cut_bytes);
	proxy_set(&to_other.stalls_new, 1); /* the first connection has no end in bytes */
	for (unsigned i = 0; i < 200 && to_other.cuts + to_us.cuts < 300; i++) {
		exchange(peer, 200, bytes_max);
	}
	cr_assert_geq(proxy_word(&to_other.cuts) + proxy_word(&to_us.cuts), 200);
	proxy_set(&to_other.cut_bytes, 0);
	proxy_set(&to_us.cut_bytes, 0);
	exchange(peer, 200, WIRE_BODY_MAX);
	usleep(200000);
	cr_assert_eq(rec_now().messages, sent, "none comes twice, late");
	cr_assert_eq(rec_now().downs, 0, "%s", rec_now().why);
	cr_assert_eq(warnings(), 0, "%s", world_warning);
	world_stop(&o, peer);
}

Test(session, cuts_anywhere_lose_and_double_nothing, .timeout = 100)
{
	cut_under_traffic(1, 20000, 700);
}

Test(session, cuts_while_both_ends_dial_lose_nothing, .timeout = 100)
{
	control_limits.second_ns = 0;
	cut_under_traffic(2, 20000, 700);
}

/* Hardly a greeting gets through. */
Test(session, cuts_of_greetings_lose_nothing, .timeout = 100)
{
	control_limits.pause_ns = 10 * NS_PER_MS;
	cut_under_traffic(3, 1500, 100);
}

Test(session, a_silent_connection_is_replaced)
{
	struct other o;
	struct peer *peer = world_start(&o, 4);
	uint64_t heard, before;

	exchange(peer, 10, 100);
	for (unsigned round = 0; round < 5; round++) {
		cr_assert(peer_heard(peer, &before));
		proxy_set(&to_other.stalls_new, 1);
		proxy_set(&to_us.stalls_new, 1);
		usleep(20000);
		exchange(peer, 10, 100);
		cr_assert(peer_heard(peer, &heard) && heard > before);
		cr_assert(peer_is_connected(peer));
	}
	cr_assert_eq(rec_now().downs, 0);
	world_stop(&o, peer);
}

Test(session, the_other_address_is_taken_when_one_is_dead)
{
	struct other o;
	struct peer *peer;

	has_two_ways = true;
	peer = world_start(&o, 5);
	exchange(peer, 10, 100);
	proxy_set(&to_us.stalled, 1); /* the other end cannot help */
	proxy_set(&to_other.stalled, 1);
	exchange(peer, 10, 100);
	cr_assert_geq(proxy_word(&to_other_too.links), 1);
	proxy_set(&to_other.stalled, 0);
	proxy_set(&to_other_too.stalled, 1);
	exchange(peer, 10, 100);
	cr_assert_eq(rec_now().downs, 0);
	proxy_set(&to_other_too.stalled, 0);
	proxy_set(&to_us.stalled, 0);
	world_stop(&o, peer);
}

static uint64_t link_down(struct timer *t, uint64_t now)
{
	(void)t;
	(void)now;
	control_link_down((int)if_nametoindex("lo"));
	return UINT64_MAX;
}

/* Long before silence would show it. */
Test(session, a_lost_link_moves_it_to_the_other_address)
{
	struct timer told = {.fn = link_down};
	struct other o;
	struct peer *peer;

	has_two_ways = true;
	control_limits.silent_ns = 3600 * NS_PER_S;
	peer = world_start(&o, 7);
	exchange(peer, 10, 100);
	proxy_set(&to_us.stalled, 1); /* the other end cannot help */
	proxy_set(&to_other.stalled, 1);
	timer_set(&told, 0);
	exchange(peer, 10, 100);
	cr_assert_geq(proxy_word(&to_other_too.links), 1);
	cr_assert_eq(rec_now().downs, 0);
	timer_del(&told);
	proxy_set(&to_other.stalled, 0);
	proxy_set(&to_us.stalled, 0);
	world_stop(&o, peer);
}

Test(session, messages_wait_for_a_network_that_comes_back)
{
	struct other o;
	struct peer *peer;
	unsigned queued = 0;
	int rc;

	control_limits.refused_ns = 300 * NS_PER_MS;
	control_limits.queue_bytes = 1 << 20;
	peer = world_start(&o, 6);
	exchange(peer, 10, 100);
	proxy_set(&to_other.drops, 1);
	proxy_set(&to_us.drops, 1);
	proxy_set(&to_other.cut_bytes, 1);
	proxy_set(&to_other.stalls_new, 1);
	cr_assert(EVENTUALLY(!peer_is_connected(peer) ||
			     (rc = send_seq(peer, sent + queued, 8000)) != 0 || queued++ > 9999));
	while ((rc = send_seq(peer, sent + queued, 8000)) == 0) {
		queued++;
	}
	cr_assert_eq(rc, -ENOBUFS);
	cr_assert_leq(queued * (8000u + WIRE_FRAME_BYTES), 1u << 20, "bounded all the same");
	usleep(1000000); /* more than refused_ns: a connection that is taken is no dead process */
	cr_assert_eq(peer_state(peer), PEER_UP);
	cr_assert_eq(rec_now().downs, 0, "%s", rec_now().why);
	proxy_set(&to_other.cut_bytes, 0);
	proxy_set(&to_us.drops, 0);
	proxy_set(&to_other.drops, 0);
	sent += queued;
	exchange(peer, 10, 100);
	world_stop(&o, peer);
}

Test(session, a_stopped_process_is_waited_for)
{
	struct other o;
	struct peer *peer;

	control_limits.refused_ns = 300 * NS_PER_MS;
	peer = world_start(&o, 7);
	exchange(peer, 10, 100);
	kill(o.pid, SIGSTOP);
	for (unsigned i = 0; i < 5; i++) {
		cr_assert_eq(send_seq(peer, sent++, 100), 0);
	}
	usleep(2500000);
	cr_assert_eq(peer_state(peer), PEER_UP);
	cr_assert_eq(rec_now().downs, 0, "%s", rec_now().why);
	kill(o.pid, SIGCONT);
	exchange(peer, 100, 100);
	cr_assert_eq(warnings(), 0, "%s", world_warning);
	world_stop(&o, peer);
}

Test(session, an_outage_ends_with_its_timeout)
{
	struct other o;
	struct peer *peer;
	uint64_t since;

	config.outage_timeout_ms = 1500;
	peer = world_start(&o, 8);
	exchange(peer, 10, 100);
	proxy_set(&to_us.stalled, 1);
	proxy_set(&to_other.stalled, 1);
	proxy_set(&to_other_too.stalled, 1);
	since = now_ns();
	cr_assert_eq(send_seq(peer, sent, 100), 0);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert_gt(now_ns() - since, 1200 * NS_PER_MS);
	cr_assert(strstr(rec_now().why, "RAILYARD_OUTAGE_TIMEOUT") != NULL, "%s", rec_now().why);
	cr_assert_eq(send_seq(peer, sent, 100), -ENOTCONN);
	proxy_set(&to_us.stalled, 0);
	proxy_set(&to_other.stalled, 0);
	world_stop(&o, peer);
}

Test(session, a_watched_peer_is_found_silent_though_nothing_is_sent)
{
	struct other o;
	struct peer *peer;

	config.outage_timeout_ms = 1500;
	control_limits.watch_ns = 50 * NS_PER_MS;
	peer = world_start(&o, 9);
	exchange(peer, 10, 100);
	peer_watch(peer, true);
	proxy_set(&to_us.stalled, 1);
	proxy_set(&to_other.stalled, 1);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	peer_watch(peer, false);
	proxy_set(&to_us.stalled, 0);
	proxy_set(&to_other.stalled, 0);
	world_stop(&o, peer);
}

/* No proxies: the kernel answers for the dead. */
Test(session, a_killed_process_is_found_dead_in_time)
{
	struct other o = other_start(role_echo);
	struct wire_handle h;
	struct peer *peer;
	uint64_t since;

	cr_assert_eq(control_limits.refused_ns, 3 * NS_PER_S);
	cr_assert(pipe_take(o.fd, &h, sizeof(h)));
	cr_assert_eq(control_start(&recorder), 0);
	cr_assert_eq(peer_get(&h, &peer), 0);
	exchange(peer, 10, 100);
	kill(o.pid, SIGKILL);
	since = now_ns();
	cr_assert(EVENTUALLY(!peer_is_connected(peer)));
	cr_assert_eq(peer_state(peer), PEER_UP, "not at once: it may only be the connection");
	cr_assert_eq(send_seq(peer, sent, 100), 0);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert_geq(now_ns() - since, 2500 * NS_PER_MS);
	cr_assert_lt(now_ns() - since, 10 * NS_PER_S, "5 s on a machine that is not slow");
	cr_assert(strstr(rec_now().why, "its process is gone") != NULL, "%s", rec_now().why);
	peer_put(peer);
	control_stop();
	other_join(&o);
}

Test(session, an_accepted_peer_that_is_killed_is_found_dead_too)
{
	struct other o = other_start(role_echo);
	struct wire_handle h, mine;
	struct peer *peer, *accepted;

	control_limits.refused_ns = 500 * NS_PER_MS;
	cr_assert(pipe_take(o.fd, &h, sizeof(h)));
	cr_assert_eq(world_listen(&mine), 0);
	cr_assert_eq(peer_get(&h, &peer), 0);
	exchange(peer, 10, 100);
	shutdown(peer->conn->watch.fd, SHUT_RDWR); /* now either end dials */
	exchange(peer, 10, 100);
	cr_assert_eq(peer_get(&h, &accepted), 0);
	cr_assert_eq(accepted, peer);
	kill(o.pid, SIGKILL);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	peer_put(accepted);
	peer_put(peer);
	control_stop();
	other_join(&o);
}

/* ---- raw ends ---- */

struct raw {
	struct wire_handle mine; /* ours */
	struct wire_hello hello;
	struct wire_welcome welcome;
	struct peer *peer;
	int fd;
};

/* Says HELLO, and what came back: 0 = closed. */
static int raw_greet(struct raw *r)
{
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;
	int type;

	r->fd = raw_connect(&r->mine.addr[0]);
	raw_hello_of(r->fd, &r->hello);
	type = raw_receive(r->fd, body, &bytes);
	if (type == WIRE_WELCOME) {
		cr_assert_eq(wire_welcome_decode(body, bytes, &r->welcome), 0);
		cr_assert_eq(r->welcome.yours, r->hello.mine);
	}
	return type;
}

static void raw_message(struct raw *r, uint64_t seq)
{
	raw_send(r->fd, WIRE_KEYS, &seq, sizeof(seq));
}

/* A session that has just begun. */
static struct raw raw_first(void)
{
	struct raw r;

	memset(&r, 0, sizeof(r));
	cr_assert_eq(world_listen(&r.mine), 0);
	r.hello = raw_hello_make(42, r.mine.secret);
	cr_assert_eq(raw_greet(&r), WIRE_WELCOME);
	return r;
}

/* One with a message from each end. */
static struct raw raw_session(void)
{
	struct raw r = raw_first();
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;

	cr_assert(r.welcome.received == 0 && r.welcome.from == 0);
	raw_message(&r, 0);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	r.peer = rec_now().peer;
	peer_hold(r.peer);
	cr_assert_eq(send_seq(r.peer, 0, 8), 0);
	cr_assert_eq(raw_receive(r.fd, body, &bytes), WIRE_KEYS);
	return r;
}

/* What a good peer would say now. */
static void raw_resume(struct raw *r, uint64_t received)
{
	r->hello.yours = r->welcome.mine;
	r->hello.received = received;
	memcpy(r->hello.secret, r->welcome.secret, sizeof(r->hello.secret));
}

static void raw_end(struct raw *r)
{
	close(r->fd);
	peer_put(r->peer);
	control_stop();
}

Test(session, each_end_sends_again_what_the_other_has_not_got)
{
	struct raw r = raw_session();
	uint8_t body[WIRE_BODY_MAX];
	uint64_t seq;
	size_t bytes;

	for (uint64_t i = 1; i < 4; i++) {
		raw_message(&r, i);
		cr_assert_eq(send_seq(r.peer, i, 8), 0);
	}
	cr_assert(EVENTUALLY(rec_now().messages == 4));
	close(r.fd);
	cr_assert(EVENTUALLY(!peer_is_connected(r.peer)));
	raw_resume(&r, 2);
	cr_assert_eq(raw_greet(&r), WIRE_WELCOME);
	cr_assert_eq(r.welcome.received, 4);
	cr_assert_eq(r.welcome.from, 2);
	for (uint64_t i = 2; i < 4; i++) {
		cr_assert_eq(raw_receive(r.fd, body, &bytes), WIRE_KEYS);
		memcpy(&seq, body, sizeof(seq));
		cr_assert_eq(seq, i);
	}
	cr_assert(peer_is_connected(r.peer));
	/* What was acknowledged in the old connection is not sent again, HELLO may say less. */
	raw_ack(r.fd, 4, true);
	do {
		cr_assert_eq(raw_receive_any(r.fd, body, &bytes), WIRE_ACK);
	} while (body[8]); /* not the answer: a question */
	cr_assert_eq(body[0], 4);
	cr_assert_eq(raw_greet(&r), WIRE_WELCOME);
	cr_assert_eq(r.welcome.from, 4);
	cr_assert_eq(rec_now().downs, 0);
	raw_end(&r);
}

static void refused(struct raw *r, int code)
{
	struct wire_refuse refuse;
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;
	int fd = raw_connect(&r->mine.addr[0]);

	raw_hello_of(fd, &r->hello);
	cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_REFUSE);
	cr_assert_eq(wire_refuse_decode(body, bytes, &refuse), 0);
	cr_assert_eq(refuse.code, (uint32_t)code, "%s", refuse.reason);
	close(fd);
}

Test(session, a_stranger_cannot_take_over)
{
	struct raw r = raw_session();
	struct wire_hello good;

	raw_resume(&r, 1);
	good = r.hello;
	r.hello.secret[15] ^= 1;
	refused(&r, EACCES);
	memcpy(r.hello.secret, r.mine.secret, sizeof(r.hello.secret)); /* a listen's: no more */
	refused(&r, EACCES);
	r.hello = good;
	r.hello.yours ^= 2;
	refused(&r, ESTALE);
	r.hello = good;
	r.hello.mine++;
	refused(&r, ESTALE);
	r.hello = good;
	r.hello.instance++;
	refused(&r, ESTALE);
	r.hello = good;
	r.hello.received = 2; /* only one was sent */
	refused(&r, EPROTO);
	r.hello = good;
	r.hello.yours = 0; /* the first HELLO again, of one who has shown that it was answered */
	memset(r.hello.secret, 0, sizeof(r.hello.secret));
	refused(&r, EACCES);
	raw_message(&r, 1);
	cr_assert(EVENTUALLY(rec_now().messages == 2), "the session goes on meanwhile");
	r.hello = good;
	close(r.fd);
	cr_assert_eq(raw_greet(&r), WIRE_WELCOME);
	cr_assert_eq(rec_now().downs, 0);
	raw_end(&r);
}

Test(session, the_first_hello_may_come_again_though_its_listen_has_closed)
{
	struct raw r = raw_first();
	uint64_t id = r.welcome.mine;

	close(r.fd); /* as if WELCOME had been lost */
	control_unlisten(r.mine.listen_id);
	cr_assert_eq(raw_greet(&r), WIRE_WELCOME);
	cr_assert_eq(r.welcome.mine, id, "the same session");
	raw_message(&r, 0);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	refused(&r, EACCES);
	cr_assert_eq(rec_now().downs, 0);
	close(r.fd);
	control_stop();
}

Test(session, an_ack_of_what_was_never_sent_ends_it)
{
	struct raw r = raw_session();

	raw_ack(r.fd, 2, false);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert(strstr(rec_now().why, "garbage") != NULL, "%s", rec_now().why);
	raw_end(&r);
}

Test(session, bye_ends_it_at_once)
{
	struct raw r = raw_session();

	raw_send(r.fd, WIRE_BYE, NULL, 0);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert_eq(rec_now().byes, 1);
	cr_assert(strstr(rec_now().why, "has ended") != NULL, "%s", rec_now().why);
	raw_resume(&r, 1);
	refused(&r, ESTALE);
	raw_end(&r);
}

/* How many questions come within so many milliseconds. */
static unsigned questions(int fd, unsigned ms)
{
	uint64_t until = now_ns() + ms * NS_PER_MS;
	uint8_t body[WIRE_BODY_MAX];
	unsigned count = 0;
	size_t bytes;

	while (now_ns() < until) {
		if (raw_is_readable(fd, 10) && raw_receive_any(fd, body, &bytes) == WIRE_ACK) {
			count += body[8];
		}
	}
	return count;
}

/* At last, however slow the machine is. */
static bool falls_silent(int fd)
{
	for (unsigned i = 0; i < 10; i++) {
		if (questions(fd, 700) == 0) {
			return true;
		}
	}
	return false;
}

Test(session, questions_are_asked_only_while_something_is_pending)
{
	struct raw r = raw_session();

	cr_assert_geq(questions(r.fd, 1000), 2, "its message is not acknowledged");
	raw_ack(r.fd, 1, false);
	cr_assert(falls_silent(r.fd), "idle");
	control_limits.watch_ns = 100 * NS_PER_MS;
	peer_watch(r.peer, true);
	peer_watch(r.peer, true);
	peer_watch(r.peer, false);
	cr_assert_geq(questions(r.fd, 1000), 2, "watched");
	peer_watch(r.peer, false);
	raw_ack(r.fd, 1, false);
	cr_assert(falls_silent(r.fd), "idle again");
	raw_end(&r);
}

Test(session, a_watch_from_before_the_greeting_counts)
{
	struct wire_handle h;
	struct peer *peer;
	uint64_t yours;
	int at, fd;

	control_limits.watch_ns = 100 * NS_PER_MS;
	memset(&h, 0, sizeof(h));
	cr_assert_eq(control_start(&recorder), 0);
	at = raw_listen(&h.addr[0]);
	h.instance = 42;
	cr_assert_eq(peer_get(&h, &peer), 0);
	peer_watch(peer, true);
	fd = accept(at, NULL, NULL);
	cr_assert_neq(yours = raw_take_hello(fd), 0);
	usleep(300000); /* what the watch began has passed */
	raw_welcome(fd, 42, yours);
	cr_assert_geq(questions(fd, 1500), 2);
	close(fd);
	peer_put(peer);
	control_stop();
	close(at);
}

Test(session, many_messages_are_acknowledged_without_a_question)
{
	struct raw r = raw_session();
	uint8_t body[WIRE_BODY_MAX];
	struct wire_ack ack;
	size_t bytes;
	int type;

	for (uint64_t i = 1; i < ACK_FRAMES; i++) {
		raw_message(&r, i);
	}
	do {
		type = raw_receive_any(r.fd, body, &bytes);
		cr_assert_eq(type, WIRE_ACK);
		cr_assert_eq(wire_ack_decode(body, bytes, &ack), 0);
	} while (ack.received < ACK_FRAMES);
	raw_end(&r);
}

static void raw_take(const struct raw *r, uint64_t first, uint64_t last)
{
	uint8_t body[WIRE_BODY_MAX];
	uint64_t seq;
	size_t bytes;

	for (uint64_t i = first; i <= last; i++) {
		cr_assert_eq(raw_receive(r->fd, body, &bytes), WIRE_KEYS, "of %lu",
			     (unsigned long)i);
		memcpy(&seq, body, sizeof(seq));
		cr_assert_eq(seq, i);
	}
}

/* More than the kernel takes: the ACK comes in the middle of what is sent again. */
Test(session, an_ack_that_is_ahead_of_what_is_sent_again_tears_nothing)
{
	enum { LAST = 700 };
	struct raw r = raw_session();
	int small = 65536;

	for (uint64_t i = 1; i <= LAST; i++) {
		cr_assert_eq(send_seq(r.peer, i, WIRE_BODY_MAX), 0);
	}
	raw_take(&r, 1, LAST);
	close(r.fd);
	raw_resume(&r, 1);
	cr_assert_eq(raw_greet(&r), WIRE_WELCOME);
	setsockopt(r.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	cr_assert_eq(r.welcome.from, 1);
	raw_ack(r.fd, LAST + 1, false);
	usleep(50000);
	raw_take(&r, 1, LAST);
	raw_ack(r.fd, LAST + 1, false);
	raw_message(&r, 1);
	cr_assert(EVENTUALLY(rec_now().messages == 2));
	close(r.fd);
	r.hello.received = LAST + 1;
	cr_assert_eq(raw_greet(&r), WIRE_WELCOME);
	cr_assert_eq(r.welcome.from, LAST + 1);
	raw_end(&r);
}

/* A silent listener: TCP connects, nobody answers. */
Test(session, a_silent_listener_is_not_a_dead_process)
{
	struct raw r;
	struct wire_addrs addrs = {.count = 1};
	uint8_t body[1024];
	int at;

	control_limits.refused_ns = 200 * NS_PER_MS;
	control_limits.pause_ns = 20 * NS_PER_MS;
	r = raw_session();
	at = raw_listen(&addrs.addr[0]);
	raw_send(r.fd, WIRE_ADDRS, body, wire_addrs_encode(&addrs, body, sizeof(body)));
	raw_message(&r, 1);
	cr_assert(EVENTUALLY(rec_now().messages == 2));
	close(r.fd);
	cr_assert(raw_is_readable(at, 15000), "it is dialed at the address that it told");
	usleep(2500000); /* an attempt waits a second for its answer */
	cr_assert_eq(rec_now().downs, 0, "%s", rec_now().why);
	close(at); /* now the kernel refuses */
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert(strstr(rec_now().why, "is gone") != NULL, "%s", rec_now().why);
	raw_end(&r);
}

/* Dialed again: the raw end is the listener that answers. */
Test(session, a_dial_answered_wrongly_is_no_connection)
{
	struct wire_welcome welcome = {.instance = 42, .version = 1, .host = "raw"};
	struct wire_addrs addrs = {.count = 1, .secret = {7, 7}};
	uint8_t body[WIRE_BODY_MAX];
	struct wire_hello hello;
	struct raw r;
	size_t bytes;
	uint64_t seq;
	int at, fd;

	control_limits.pause_ns = 20 * NS_PER_MS;
	r = raw_session();
	at = raw_listen(&addrs.addr[0]);
	raw_send(r.fd, WIRE_ADDRS, body, wire_addrs_encode(&addrs, body, sizeof(body)));
	raw_message(&r, 1);
	cr_assert(EVENTUALLY(rec_now().messages == 2));
	cr_assert_eq(send_seq(r.peer, 1, 8), 0);
	close(r.fd);
	for (unsigned wrong = 0; wrong < 6; wrong++) {
		cr_assert_gt(fd = accept(at, NULL, NULL), 0);
		cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_HELLO);
		cr_assert_eq(wire_hello_decode(body, bytes, &hello), 0);
		cr_assert_eq(memcmp(hello.secret, addrs.secret, sizeof(hello.secret)), 0);
		cr_assert(hello.yours == r.hello.mine && hello.mine == r.welcome.mine);
		cr_assert_eq(hello.received, 2);
		welcome.instance = wrong == 0 ? 41 : 42;
		welcome.mine = wrong == 1 ? 1 : r.hello.mine;
		welcome.yours = wrong == 2 ? 1 : hello.mine;
		welcome.received = wrong == 3 ? 3 : 1;
		welcome.from = wrong == 4 ? 3 : 1;
		raw_welcome_of(fd, &welcome);
		if (wrong < 5) {
			cr_assert_eq(raw_receive(fd, body, &bytes), 0, "wrong %u", wrong);
			close(fd);
		}
	}
	/* `from` was one less than what had come: that one is skipped. */
	cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_KEYS);
	memcpy(&seq, body, sizeof(seq));
	cr_assert_eq(seq, 1);
	r.fd = fd;
	raw_message(&r, 1);
	raw_message(&r, 2);
	cr_assert(EVENTUALLY(rec_now().messages == 3));
	cr_assert_eq(rec_now().out_of_order, 0);
	cr_assert_eq(rec_now().downs, 0, "%s", rec_now().why);
	raw_end(&r);
	close(at);
}
