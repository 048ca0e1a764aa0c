/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_control.c - two processes come to one connection, keep their messages, and survive anybody
 * else who connects.
 *
 * The other end is a forked process with a control plane of its own, or a raw socket where it must
 * misbehave at an exact moment. Limits in time are shortened where a test must wait for them.
 */
#include "net_world.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <sys/resource.h>

static struct wire_handle started(void)
{
	struct wire_handle h;

	cr_assert_eq(world_listen(&h), 0);
	return h;
}

/* ---- two processes ---- */

/* Starts the other and the control plane here, and dials: the peer. */
static struct peer *met(struct other *o, int (*role)(int fd), struct wire_handle *h)
{
	struct peer *peer;

	*o = other_start(role);
	cr_assert(pipe_take(o->fd, h, sizeof(*h)));
	started();
	cr_assert_eq(peer_get(h, &peer), 0);
	return peer;
}

Test(control, hello_brings_two_processes_together)
{
	struct other o;
	struct wire_handle h;
	struct peer *peer = met(&o, role_echo, &h), *again;

	cr_assert_eq(send_seq(peer, 0, 100), 0, "queues while it dials");
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	cr_assert_eq(rec_now().last_target, 6);
	cr_assert_eq(peer_state(peer), PEER_UP);
	cr_assert(strstr(peer_name(peer), "pid") != NULL, "%s", peer_name(peer));
	cr_assert_eq(peer_get(&h, &again), 0);
	cr_assert_eq(again, peer, "one connection per pair of processes");
	peer_put(again);
	peer_put(peer);
	control_stop();
	cr_assert_eq(other_join(&o), 0);
	cr_assert_eq(rec_now().downs, 0);
	cr_assert_eq(warnings(), 0, "%s", world_warning);
}

Test(control, ipv6_works)
{
	struct wire_handle h;
	struct peer *peer;

	config.socket_family = "AF_INET6";
	h = started();
	cr_assert_eq(h.addr[0].family, 6);
	cr_assert_eq(peer_get(&h, &peer), 0);
	send_seq(peer, 0, 8);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	peer_put(peer);
	control_stop();
}

Test(control, a_process_is_its_own_peer)
{
	struct wire_handle h = started();
	struct peer *peer, *other;

	cr_assert_eq(peer_get(&h, &peer), 0);
	send_seq(peer, 0, 8);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	other = rec_now().peer;
	cr_assert_neq(other, peer, "the accepting end is a peer of its own");
	send_seq(other, 1, 8);
	cr_assert(EVENTUALLY(rec_now().messages == 2));
	cr_assert_eq(rec_now().peer, peer);
	cr_assert_eq(rec_now().out_of_order, 0);
	peer_put(peer);
	control_stop();
	cr_assert_eq(rec_now().downs, 0);
}

Test(control, messages_of_the_largest_size_go_both_ways)
{
	struct other o;
	struct wire_handle h;
	struct peer *peer = met(&o, role_echo, &h);

	for (unsigned i = 0; i < 200; i++) {
		size_t bytes = i % 3 ? 8 + i : WIRE_BODY_MAX - i;

		cr_assert_eq(send_seq(peer, i, bytes), 0);
	}
	cr_assert(EVENTUALLY(rec_now().messages == 200));
	cr_assert_eq(rec_now().out_of_order, 0);
	peer_put(peer);
	control_stop();
	cr_assert_eq(other_join(&o), 0);
}

Test(control, a_killed_peer_is_reported_once)
{
	struct other o;
	struct wire_handle h;
	struct peer *peer = met(&o, role_echo, &h);

	*peer_data(peer) = &h;
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP));
	kill(o.pid, SIGKILL);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert_eq(peer_state(peer), PEER_FAILED);
	cr_assert_eq(send_seq(peer, 0, 8), -ENOTCONN);
	cr_assert(strlen(rec_now().why) > 0 && strchr(rec_now().why, '\n') == NULL);
	cr_assert_str_eq(peer_why(peer), rec_now().why);
	cr_assert_eq(rec_now().freed, 0);
	peer_put(peer);
	cr_assert(EVENTUALLY(rec_now().freed == 1), "its data goes with the last reference");
	/* The next dial finds nobody: refused at every address, so well within 5 s. */
	uint64_t since = now_ns();
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(rec_now().downs == 2));
	cr_assert_lt(now_ns() - since, 5 * NS_PER_S);
	cr_assert(strstr(rec_now().why, "Connection refused") != NULL, "%s", rec_now().why);
	peer_put(peer);
	control_stop();
	cr_assert_eq(rec_now().downs, 2);
	other_join(&o);
}

enum { STOP_MESSAGES = 2000 };

/* Counts what came before BYE; exits 0 if that was all of it. */
static int role_count(int fd)
{
	struct recorded got;

	if (!role_listen(fd)) {
		return 2;
	}
	if (!EVENTUALLY(rec_now().downs == 1)) {
		return 3;
	}
	got = rec_now();
	control_stop();
	return got.messages == STOP_MESSAGES && got.out_of_order == 0 && got.byes == 1 ? 0 : 4;
}

Test(control, the_last_stop_sends_what_is_queued_and_bye)
{
	struct other o;
	struct wire_handle h;
	struct peer *peer = met(&o, role_count, &h);

	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP));
	for (unsigned i = 0; i < STOP_MESSAGES; i++) {
		cr_assert_eq(send_seq(peer, i, 1024), 0);
	}
	control_stop();
	cr_assert_eq(peer_state(peer), PEER_FAILED);
	cr_assert_eq(send_seq(peer, 0, 8), -ENOTCONN);
	peer_put(peer);
	cr_assert_eq(rec_now().downs, 0, "our own stop is not news");
	cr_assert_eq(other_join(&o), 0);
}

/* ---- crossing ---- */

enum { CROSSINGS = 100, CROSSING_MESSAGES = 20 };

static unsigned peers_counted;

static void count_peer(struct peer *peer, void *arg)
{
	(void)arg;
	peers_counted += peer_state(peer) != PEER_FAILED;
}

/* One end of the crossing test: 0 = all messages of the other end came once, in order. */
static int cross_once(int fd)
{
	struct wire_handle mine, theirs;
	struct peer *peer;
	char done = 1;
	int rc = 0;

	memset(&rec, 0, sizeof(rec));
	if (world_listen(&mine)) {
		return 10;
	}
	if (!pipe_put(fd, &mine, sizeof(mine)) || !pipe_take(fd, &theirs, sizeof(theirs)) ||
	    peer_get(&theirs, &peer)) {
		return 11;
	}
	for (unsigned i = 0; i < CROSSING_MESSAGES; i++) {
		send_seq(peer, i, 64);
	}
	if (!EVENTUALLY(rec_now().messages == CROSSING_MESSAGES)) {
		rc = 12;
	}
	peers_counted = 0;
	peer_each(count_peer, NULL);
	if (rc == 0 && (rec_now().out_of_order || rec_now().downs || peers_counted != 1 ||
			peer_state(peer) != PEER_UP)) {
		rc = 13;
	}
	/* Neither stops before both have looked. */
	if (!pipe_put(fd, &done, 1) || !pipe_take(fd, &done, 1)) {
		rc = rc ? rc : 14;
	}
	peer_put(peer);
	control_stop();
	return rc;
}

static int role_cross(int fd)
{
	for (unsigned i = 0; i < CROSSINGS; i++) {
		int rc = cross_once(fd);

		if (rc) {
			return rc;
		}
	}
	return 0;
}

Test(control, crossing_dials_lose_nothing, .timeout = 100)
{
	struct other o = other_start(role_cross);

	for (unsigned i = 0; i < CROSSINGS; i++) {
		int rc = cross_once(o.fd);

		cr_assert_eq(rc, 0, "round %u: %d: %u messages, %lu out of order, %u down: %s", i,
			     rc, rec_now().messages, (unsigned long)rec_now().out_of_order,
			     rec_now().downs, rec_now().why);
	}
	cr_assert_eq(other_join(&o), 0);
	cr_assert_eq(warnings(), 0, "%s", world_warning);
}

/*
 * The crossing at its exact moment: we have dialed a raw end and sent HELLO, it has not answered,
 * and its own dial comes in. Returns the two raw ends.
 */
struct crossing {
	struct peer *peer;
	int ours, theirs; /* our dial as they see it; their dial */
	uint64_t instance, yours; /* theirs; our id of the session */
};

static struct crossing cross_raw(uint64_t their_instance_delta)
{
	struct wire_handle mine = started(), h;
	struct crossing x;
	int at;

	memset(&h, 0, sizeof(h));
	at = raw_listen(&h.addr[0]);
	h.instance = x.instance = mine.instance + their_instance_delta;
	cr_assert_eq(peer_get(&h, &x.peer), 0);
	cr_assert_eq(send_seq(x.peer, 0, 64), 0);
	x.ours = accept(at, NULL, NULL);
	close(at);
	cr_assert_neq(x.yours = raw_take_hello(x.ours), 0);
	x.theirs = raw_connect(&mine.addr[0]);
	raw_hello(x.theirs, x.instance, mine.secret, 1);
	return x;
}

Test(control, the_smaller_instance_keeps_its_dial)
{
	struct crossing x = cross_raw(1); /* we are smaller (unless the draw was the largest) */
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;

	cr_assert_not(raw_is_readable(x.theirs, 200), "theirs waits while ours is undecided");
	cr_assert_not(raw_is_readable(x.ours, 0), "ours waits for its answer");
	raw_welcome(x.ours, x.instance, x.yours);
	cr_assert_eq(raw_receive(x.ours, body, &bytes), WIRE_KEYS, "the queue goes on our dial");
	close(x.theirs); /* what the larger instance does with its own */
	cr_assert_eq(send_seq(x.peer, 1, 64), 0);
	cr_assert_eq(raw_receive(x.ours, body, &bytes), WIRE_KEYS);
	cr_assert_eq(rec_now().downs, 0);
	peer_put(x.peer);
	control_stop();
}

Test(control, the_larger_instance_takes_the_others_dial)
{
	struct crossing x = cross_raw(UINT64_MAX); /* theirs is ours - 1 */
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;

	cr_assert(raw_is_readable(x.theirs, 3000), "at once, not when our own has timed out");
	cr_assert_eq(raw_receive(x.theirs, body, &bytes), WIRE_WELCOME);
	cr_assert_eq(raw_receive(x.theirs, body, &bytes), WIRE_KEYS, "the queue goes on theirs");
	cr_assert_eq(raw_receive(x.ours, body, &bytes), 0, "our own dial is closed");
	cr_assert_eq(peer_state(x.peer), PEER_UP);
	cr_assert_eq(rec_now().downs, 0);
	peer_put(x.peer);
	control_stop();
}

Test(control, a_parked_dial_is_taken_when_our_own_fails)
{
	struct crossing x = cross_raw(1);
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;

	close(x.ours);
	cr_assert_eq(raw_receive(x.theirs, body, &bytes), WIRE_WELCOME);
	cr_assert_eq(raw_receive(x.theirs, body, &bytes), WIRE_KEYS);
	cr_assert_eq(rec_now().downs, 0);
	peer_put(x.peer);
	control_stop();
}

Test(control, one_who_talks_while_parked_is_dropped_and_ours_goes_on)
{
	struct crossing x = cross_raw(1);
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;

	raw_send(x.theirs, WIRE_CLOSE, NULL, 0);
	cr_assert_eq(raw_receive(x.theirs, body, &bytes), 0);
	raw_welcome(x.ours, x.instance, x.yours);
	cr_assert_eq(raw_receive(x.ours, body, &bytes), WIRE_KEYS);
	cr_assert_eq(rec_now().downs, 0);
	cr_assert_eq(rec_now().messages, 0);
	peer_put(x.peer);
	control_stop();
}

Test(control, a_dial_left_over_from_the_crossing_is_closed)
{
	struct crossing x;
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;

	control_limits.park_ns = 200 * NS_PER_MS;
	x = cross_raw(1);
	raw_welcome(x.ours, x.instance, x.yours);
	cr_assert_eq(raw_receive(x.ours, body, &bytes), WIRE_KEYS);
	cr_assert_eq(raw_receive(x.theirs, body, &bytes), 0, "after park_ns");
	cr_assert_eq(send_seq(x.peer, 1, 64), 0);
	cr_assert_eq(raw_receive(x.ours, body, &bytes), WIRE_KEYS, "ours is as it was");
	cr_assert_eq(rec_now().downs, 0);
	peer_put(x.peer);
	control_stop();
}

Test(control, a_new_session_of_a_peer_ends_the_old_one)
{
	struct wire_handle mine = started();
	struct wire_hello hello = raw_hello_make(42, mine.secret);
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;
	int first = raw_connect(&mine.addr[0]), second;

	raw_hello_of(first, &hello);
	cr_assert_eq(raw_receive(first, body, &bytes), WIRE_WELCOME);
	second = raw_connect(&mine.addr[0]);
	hello.mine++;
	raw_hello_of(second, &hello);
	cr_assert_eq(raw_receive(second, body, &bytes), WIRE_WELCOME);
	cr_assert_eq(raw_receive(first, body, &bytes), 0);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	raw_send(second, WIRE_CLOSE, NULL, 0);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	control_stop();
}

/* ---- addresses ---- */

Test(control, the_second_address_is_tried)
{
	struct wire_handle h = started();
	struct peer *peer;

	h.addr[1] = h.addr[0];
	close(raw_listen(&h.addr[0])); /* a port that was free a moment ago */
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP));
	peer_put(peer);
	control_stop();
}

Test(control, a_connect_without_answer_leaves_time_for_the_second_address)
{
	struct wire_handle h = started();
	struct wire_addr full;
	struct sockaddr_storage to;
	struct peer *peer;
	int at = raw_listen(&full), filler[8];
	socklen_t bytes = addr_to_sockaddr(&full, &to);

	cr_assert_eq(listen(at, 0), 0); /* a full queue drops the handshake, as a dead link does */
	for (unsigned i = 0; i < ARRAY_SIZE(filler); i++) {
		filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(filler[i], (struct sockaddr *)&to, bytes);
	}
	control_limits.attempt_ns = 200 * NS_PER_MS;
	h.addr[1] = h.addr[0];
	h.addr[0] = full;
	cr_assert_eq(peer_get(&h, &peer), 0);
	usleep(100000);
	cr_assert_eq(peer_state(peer), PEER_DIALING);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP));
	peer_put(peer);
	control_stop();
}

Test(control, refused_everywhere_fails_within_five_seconds)
{
	struct wire_handle h = started();
	uint64_t since = now_ns();
	struct peer *peer;

	h.instance++;
	close(raw_listen(&h.addr[0]));
	close(raw_listen(&h.addr[1]));
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_FAILED));
	cr_assert_lt(now_ns() - since, 5 * NS_PER_S);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	peer_put(peer);
	control_stop();
}

Test(control, a_silent_address_ends_with_the_connect_timeout)
{
	struct wire_handle h = started();
	uint64_t since = now_ns();
	struct peer *peer;
	int at = raw_listen(&h.addr[0]);

	config.connect_timeout_ms = 600;
	h.instance++;
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_FAILED));
	cr_assert(now_ns() - since > 500 * NS_PER_MS && now_ns() - since < 3 * NS_PER_S);
	cr_assert(strstr(rec_now().why, "did not answer HELLO") != NULL, "%s", rec_now().why);
	peer_put(peer);
	close(at);
	control_stop();
}

Test(control, another_process_at_the_address_is_noticed)
{
	struct wire_handle h = started();
	struct peer *peer;
	uint64_t yours;
	int at = raw_listen(&h.addr[0]), fd;

	control_limits.refused_ns = 0;
	h.instance++;
	cr_assert_eq(peer_get(&h, &peer), 0);
	fd = accept(at, NULL, NULL);
	cr_assert_neq(yours = raw_take_hello(fd), 0);
	raw_welcome(fd, h.instance + 1, yours);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert_eq(peer_state(peer), PEER_FAILED);
	cr_assert(strstr(rec_now().why, "another process answers there") != NULL, "%s",
		  rec_now().why);
	peer_put(peer);
	control_stop();
}

static unsigned interfaces(const char *list, const char *family,
			   struct wire_addr addr[WIRE_ADDRS_MAX])
{
	unsigned count = 0;

	config.socket_ifname = list;
	config.socket_family = family;
	addr_find_interfaces(addr, &count);
	return count;
}

Test(control, interfaces_are_chosen_as_nccl_chooses_them)
{
	static const struct wire_addr localhost = {.family = 4, .bytes = {127, 0, 0, 1}};
	struct wire_addr addr[WIRE_ADDRS_MAX];

	cr_assert_eq(interfaces("lo", "AF_INET", addr), 1);
	cr_assert_eq(memcmp(addr, &localhost, sizeof(localhost)), 0);
	cr_assert_eq(interfaces("nothere,l", "AF_INET", addr), 1, "a prefix, second in the list");
	cr_assert_eq(interfaces("=l", "AF_INET", addr), 0, "not the whole name");
	cr_assert_eq(interfaces("=lo", "AF_INET", addr), 1);
	cr_assert_eq(interfaces("lo:1234", "AF_INET", addr), 1, "a port is allowed, and ignored");
	cr_assert_eq(interfaces("lo", "AF_INET6", addr), 1);
	cr_assert_eq(addr[0].family, 6);
	cr_assert_eq(interfaces("lo", NULL, addr), 1, "one address per interface");
	for (unsigned i = 0; i < interfaces("^lo", "AF_INET", addr); i++) {
		cr_assert_neq(addr[i].bytes[0], 127);
	}
	cr_assert_gt(interfaces(NULL, NULL, addr), 0, "the last resort is lo");
	cr_assert_eq(interfaces("nosuch", "AF_INET", addr), 0);
	cr_assert(strstr(world_warning, "NCCL_SOCKET_IFNAME=nosuch") != NULL, "%s", world_warning);
}

Test(control, no_interface_is_one_line_and_no_start)
{
	config.socket_ifname = "nosuch";
	cr_assert_eq(control_start(&recorder), -ENODEV);
	cr_assert_eq(warnings(), 1);
	config.socket_ifname = "lo";
	started();
	control_stop();
}

/* ---- who else connects ---- */

/* What an accepted connection gets: 0 = it was closed. */
static int answer_to(int fd)
{
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;
	int type = raw_receive(fd, body, &bytes);

	return type;
}

static void refused(int fd, int code, const char *word)
{
	struct wire_refuse refuse;
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes = 0;

	cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_REFUSE);
	cr_assert_eq(wire_refuse_decode(body, bytes, &refuse), 0);
	cr_assert_eq(refuse.code, (uint32_t)code);
	cr_assert(strstr(refuse.reason, word) != NULL, "%s", refuse.reason);
	cr_assert_eq(raw_receive(fd, body, &bytes), 0, "and the connection ends");
	cr_assert_eq(warnings(), 1);
	cr_assert(strstr(world_warning, "127.0.0.1:") != NULL, "%s", world_warning);
}

Test(control, a_wrong_secret_is_refused)
{
	struct wire_handle h = started();
	int fd = raw_connect(&h.addr[0]);

	h.secret[15] ^= 1;
	raw_hello(fd, 42, h.secret, 1);
	refused(fd, EACCES, "secret");
	control_stop();
}

Test(control, the_secret_of_a_closed_listen_is_refused)
{
	struct wire_handle h = started();
	struct peer *peer;
	uint64_t id = 0;

	cr_assert_eq(control_secret_listen(h.secret, &id), 0);
	cr_assert_eq(id, h.listen_id);
	control_unlisten(h.listen_id);
	cr_assert_eq(control_secret_listen(h.secret, &id), -ENOENT);
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert(strstr(rec_now().why, "secret") != NULL, "%s", rec_now().why);
	peer_put(peer);
	control_stop();
}

Test(control, another_version_is_refused)
{
	struct wire_handle h = started();
	int fd = raw_connect(&h.addr[0]);

	raw_hello(fd, 42, h.secret, 9);
	refused(fd, EPROTONOSUPPORT, "version 9-9");
	control_stop();
}

Test(control, garbage_is_one_line_and_closed)
{
	static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	struct wire_handle h = started();
	int fd = raw_connect(&h.addr[0]);

	cr_assert_gt(send(fd, http, sizeof(http), 0), 0);
	cr_assert_eq(answer_to(fd), 0);
	cr_assert_eq(warnings(), 1);
	cr_assert(strstr(world_warning, "127.0.0.1:") != NULL, "%s", world_warning);
	control_stop();
}

Test(control, a_hello_over_its_limit_is_closed)
{
	struct wire_handle h = started();
	uint8_t body[WIRE_HELLO_MAX] = {0};
	int fd = raw_connect(&h.addr[0]);

	raw_send(fd, WIRE_HELLO, body, sizeof(body));
	cr_assert_eq(answer_to(fd), 0);
	fd = raw_connect(&h.addr[0]);
	raw_send(fd, WIRE_CONNECT, body, 100);
	cr_assert_eq(answer_to(fd), 0, "nothing but HELLO comes first");
	cr_assert_eq(warnings(), 2);
	control_stop();
}

Test(control, one_who_says_nothing_is_closed_in_time)
{
	struct wire_handle h;
	uint64_t since;
	int fd;

	cr_assert_eq(control_limits.hello_ns, 5 * NS_PER_S);
	control_limits.hello_ns = 200 * NS_PER_MS;
	h = started();
	since = now_ns();
	fd = raw_connect(&h.addr[0]);
	cr_assert_eq(send(fd, "\x10\0", 2, 0), 2, "nor one who stops in the middle");
	cr_assert_eq(answer_to(fd), 0);
	cr_assert(now_ns() - since >= 150 * NS_PER_MS && now_ns() - since < 3 * NS_PER_S);
	cr_assert_eq(warnings(), 1);
	cr_assert(strstr(world_warning, "200 ms") != NULL, "%s", world_warning);
	control_stop();
}

Test(control, one_who_comes_and_goes_is_no_news)
{
	struct wire_handle h = started();
	struct peer *peer;

	close(raw_connect(&h.addr[0]));
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP));
	cr_assert_eq(warnings(), 0, "%s", world_warning);
	peer_put(peer);
	control_stop();
}

Test(control, the_unknown_are_limited_and_the_good_get_through)
{
	struct wire_handle h;
	int idle[8], good;

	cr_assert_eq(control_limits.unknown_max, 64);
	control_limits.unknown_max = 8;
	control_limits.hello_ns = 3 * NS_PER_S;
	h = started();
	for (unsigned i = 0; i < ARRAY_SIZE(idle); i++) {
		idle[i] = raw_connect(&h.addr[0]);
		usleep(1000); /* accepted in this order */
	}
	good = raw_connect(&h.addr[0]);
	cr_assert_eq(answer_to(idle[0]), 0, "the oldest makes room");
	cr_assert_not(raw_is_readable(idle[1], 50), "and no other");
	raw_hello(good, 42, h.secret, 1);
	cr_assert_eq(answer_to(good), WIRE_WELCOME);
	cr_assert(strstr(world_warning, "8 connections without a HELLO") != NULL, "%s",
		  world_warning);
	cr_assert_eq(warnings(), 1);
	for (unsigned i = 1; i < ARRAY_SIZE(idle); i++) {
		cr_assert_eq(answer_to(idle[i]), 0, "the others in their time");
	}
	control_stop();
}

Test(control, a_peer_that_turns_to_garbage_is_dropped)
{
	struct wire_handle h = started();
	int fd = raw_connect(&h.addr[0]);

	raw_hello(fd, 42, h.secret, 1);
	cr_assert_eq(answer_to(fd), WIRE_WELCOME);
	raw_send(fd, WIRE_CLOSE, NULL, 0);
	raw_send(fd, WIRE_HELLO, NULL, 0);
	cr_assert_eq(answer_to(fd), 0);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert_eq(rec_now().messages, 1, "what came before it counts");
	cr_assert(strstr(rec_now().why, "garbage") != NULL, "%s", rec_now().why);
	control_stop();
}

static int known(const struct wire_handle *h)
{
	int fd = raw_connect(&h->addr[0]);

	raw_hello(fd, 42, h->secret, 1);
	cr_assert_eq(answer_to(fd), WIRE_WELCOME);
	return fd;
}

Test(control, a_late_refusal_and_a_damaged_one_are_reasons)
{
	struct wire_refuse refuse = {.code = EIO, .reason = "had enough"};
	struct wire_handle h = started();
	uint8_t body[1024];
	int fd = known(&h);

	raw_send(fd, WIRE_REFUSE, body, wire_refuse_encode(&refuse, body, sizeof(body)));
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	cr_assert_str_eq(rec_now().why, "had enough");
	fd = known(&h);
	raw_send(fd, WIRE_REFUSE, body, 3);
	cr_assert(EVENTUALLY(rec_now().downs == 2));
	cr_assert(strstr(rec_now().why, "garbage") != NULL);
	control_stop();
}

Test(control, no_descriptor_left_is_one_line_and_a_later_accept)
{
	struct wire_handle h = started();
	struct sockaddr_storage to;
	socklen_t bytes = addr_to_sockaddr(&h.addr[0], &to);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct rlimit old, low;

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = old;
	low.rlim_cur = 3; /* below what is open: nothing can be added */
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&to, bytes), 0);
	cr_assert(EVENTUALLY(warnings() >= 1));
	cr_assert(strstr(world_warning, "open files") != NULL, "%s", world_warning);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	raw_hello(fd, 42, h.secret, 1);
	cr_assert_eq(answer_to(fd), WIRE_WELCOME);
	control_stop();
}

Test(control, a_frame_over_the_limit_costs_no_memory)
{
	struct wire_handle h = started();
	uint8_t head[WIRE_FRAME_BYTES];
	struct wire_frame f = {.bytes = 0x7fffffff, .type = WIRE_KEYS};
	int fd = raw_connect(&h.addr[0]);

	raw_hello(fd, 42, h.secret, 1);
	cr_assert_eq(answer_to(fd), WIRE_WELCOME);
	wire_frame_encode(&f, head);
	send(fd, head, sizeof(head), 0);
	cr_assert_eq(answer_to(fd), 0);
	cr_assert(EVENTUALLY(rec_now().downs == 1));
	control_stop();
}

Test(control, random_bytes_do_no_harm, .timeout = 60)
{
	struct wire_handle h = started();
	struct peer *peer;
	uint64_t seed = 77;

	for (unsigned round = 0; round < 300; round++) {
		uint8_t junk[600];
		size_t bytes = 1 + hash_u64(seed + round) % sizeof(junk);
		int fd = raw_connect(&h.addr[0]);
		bool known = round % 2;

		if (known) {
			raw_hello(fd, 42 + round, h.secret, 1);
			cr_assert_eq(answer_to(fd), WIRE_WELCOME);
		}
		for (size_t i = 0; i < bytes; i++) {
			seed = hash_u64(seed);
			/* Often a length and type that pass, so that bodies are reached too. */
			junk[i] = i % 16 < 4 && round % 3 ? (uint8_t)(i % 16 == 0 ? seed % 64 : 0)
							  : (uint8_t)(seed >> 11);
			if (i % 16 == 4 || i % 16 == 5) {
				junk[i] = i % 16 == 4 ? (uint8_t)(1 + seed % 11) : 0;
			}
		}
		send(fd, junk, bytes, MSG_NOSIGNAL);
		close(fd);
	}
	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP), "still serving");
	peer_put(peer);
	control_stop();
}

/* ---- the queue ---- */

Test(control, the_queue_is_bounded_and_what_it_took_arrives, .timeout = 60)
{
	struct wire_handle h = started();
	uint8_t body[WIRE_BODY_MAX];
	unsigned queued = 0, got = 0;
	struct peer *peer;
	size_t bytes;
	int fd = raw_connect(&h.addr[0]), rc;

	raw_hello(fd, 42, h.secret, 1);
	cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_WELCOME);
	raw_send(fd, WIRE_CLOSE, NULL, 0);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	peer = rec_now().peer;
	peer_hold(peer);
	while ((rc = send_seq(peer, queued, WIRE_BODY_MAX)) == 0) {
		queued++;
		cr_assert_lt(queued, 4096, "64 MiB queued without a word");
	}
	cr_assert_eq(rc, -ENOBUFS);
	cr_assert_geq(queued, (16u << 20) / (WIRE_BODY_MAX + WIRE_FRAME_BYTES));
	cr_assert_eq(peer_send(peer, WIRE_KEYS, 0, body, WIRE_BODY_MAX + 1), -EMSGSIZE);
	for (; got < queued; got++) {
		uint64_t seq;

		cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_KEYS);
		memcpy(&seq, body, sizeof(seq));
		cr_assert_eq(seq, got);
	}
	cr_assert_eq(send_seq(peer, 0, 8), -ENOBUFS, "sent, but not acknowledged");
	raw_ack(fd, queued, false);
	cr_assert(EVENTUALLY(send_seq(peer, 0, 8) == 0), "room again");
	cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_KEYS);
	peer_put(peer);
	control_stop();
}

Test(control, a_peer_that_reads_nothing_cannot_hold_up_the_last_stop)
{
	struct wire_handle h;
	uint8_t body[WIRE_BODY_MAX];
	struct peer *peer;
	uint64_t since;
	size_t bytes;
	int fd;

	control_limits.linger_ns = 300 * NS_PER_MS;
	h = started();
	fd = raw_connect(&h.addr[0]);
	raw_hello(fd, 42, h.secret, 1);
	cr_assert_eq(raw_receive(fd, body, &bytes), WIRE_WELCOME);
	raw_send(fd, WIRE_CLOSE, NULL, 0);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	peer = rec_now().peer;
	peer_hold(peer);
	while (send_seq(peer, 0, WIRE_BODY_MAX) == 0) {
	}
	since = now_ns();
	control_stop();
	cr_assert(now_ns() - since >= 250 * NS_PER_MS && now_ns() - since < 3 * NS_PER_S);
	peer_put(peer);
}

/* ---- lives ---- */

Test(control, starts_again_as_another_instance)
{
	struct wire_handle first = started(), second;
	uint64_t id;

	cr_assert_eq(control_start(&recorder), 0);
	control_stop();
	cr_assert_eq(control_secret_listen(first.secret, &id), 0, "one user is left");
	control_stop();
	cr_assert_eq(control_secret_listen(first.secret, &id), -ENOENT);
	cr_assert_eq(control_listen(&second), -ESHUTDOWN);
	second = started();
	cr_assert_neq(first.instance, second.instance);
	cr_assert_neq(memcmp(first.secret, second.secret, WIRE_SECRET_BYTES), 0);
	control_stop();
	control_stop(); /* one too many is harmless */
}

Test(control, a_forked_child_does_not_touch_its_parents)
{
	struct wire_handle h = started(), mine;
	struct peer *peer;
	int status;
	pid_t pid;

	cr_assert_eq(peer_get(&h, &peer), 0);
	cr_assert(EVENTUALLY(peer_state(peer) == PEER_UP));
	pid = fork();
	if (pid == 0) {
		struct peer *own;

		memset(&mine, 0, sizeof(mine));
		alarm(20);
		control_stop();
		if (peer_get(&h, &own) != -ESHUTDOWN || control_listen(&mine) != -ESHUTDOWN) {
			_exit(1);
		}
		if (world_listen(&mine) || peer_get(&mine, &own)) {
			_exit(2);
		}
		if (!EVENTUALLY(peer_state(own) == PEER_UP)) {
			_exit(3);
		}
		control_stop();
		_exit(mine.instance == h.instance ? 4 : 0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
	cr_assert_eq(peer_state(peer), PEER_UP, "the parent's connection stands");
	send_seq(peer, 0, 8);
	cr_assert(EVENTUALLY(rec_now().messages == 1));
	peer_put(peer);
	control_stop();
}
