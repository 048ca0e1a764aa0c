/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * thread_control.c - NCCL's threads and the plugin thread on the same peers; made for
 * ThreadSanitizer.
 *
 * A plain program (Criterion aborts under TSan). Every check aborts with its line.
 */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>

#include "unit/net_world.h"

enum { CALLERS = 4 };

static unsigned sent; /* atomic */

static void look_at(struct peer *peer, void *arg)
{
	(void)arg;
	CHECK(peer_send(peer, WIRE_PORTS, 0, NULL, 0) == 0);
	__atomic_add_fetch(&sent, 1, __ATOMIC_RELAXED);
	CHECK(peer_name(peer) != NULL);
	CHECK(peer_why(peer) != NULL);
}

/* What many comms of one pair of processes do at once. */
static void *caller(void *arg)
{
	const struct wire_handle *h = arg;

	for (unsigned i = 0; i < scaled(2000); i++) {
		uint8_t body[32] = {0};
		struct wire_handle own;
		struct peer *peer;
		uint64_t id;

		CHECK(peer_get(h, &peer) == 0);
		CHECK(peer_state(peer) != PEER_FAILED);
		CHECK(peer_send(peer, WIRE_PORTS, i, body, sizeof(body)) == 0);
		__atomic_add_fetch(&sent, 1, __ATOMIC_RELAXED);
		if (i % 16 == 0) {
			peer_each(look_at, NULL);
			memset(&own, 0, sizeof(own));
			CHECK(control_listen(&own) == 0);
			CHECK(control_secret_listen(own.secret, &id) == 0 && id == own.listen_id);
			control_unlisten(id);
		}
		peer_put(peer);
	}
	return NULL;
}

static void flow(const struct wire_handle *h, unsigned copies)
{
	struct wire_handle to = *h;

	sent = 0;
	run_together(CALLERS, caller, &to);
	CHECK(EVENTUALLY(rec_now().messages == copies * sent));
	CHECK(rec_now().downs == 0);
}

static void forget(void)
{
	pthread_mutex_lock(&world_lock);
	memset(&rec, 0, sizeof(rec));
	pthread_mutex_unlock(&world_lock);
}

static void check_self(void)
{
	struct wire_handle h;

	forget();
	CHECK(world_listen(&h) == 0);
	flow(&h, 1);
	control_stop();
}

/* Sends until the peer is gone, then dials anew until that is refused too. */
static void *caller_of_the_dead(void *arg)
{
	const struct wire_handle *h = arg;
	struct peer *peer;

	for (unsigned life = 0; life < 3; life++) {
		CHECK(peer_get(h, &peer) == 0);
		CHECK(EVENTUALLY(send_seq(peer, 0, 64) == -ENOTCONN));
		CHECK(peer_state(peer) == PEER_FAILED);
		CHECK(strlen(peer_why(peer)) > 0);
		peer_put(peer);
	}
	return NULL;
}

static void check_other(struct other *o)
{
	pthread_t killer[CALLERS];
	struct wire_handle h;

	CHECK(pipe_take(o->fd, &h, sizeof(h)));
	forget();
	control_limits.refused_ns = 50 * NS_PER_MS;
	control_limits.pause_ns = 10 * NS_PER_MS;
	CHECK(control_start(&recorder) == 0);
	flow(&h, 1);
	for (unsigned i = 0; i < CALLERS; i++) {
		CHECK(pthread_create(&killer[i], NULL, caller_of_the_dead, &h) == 0);
	}
	usleep(20000);
	kill(o->pid, SIGKILL);
	for (unsigned i = 0; i < CALLERS; i++) {
		pthread_join(killer[i], NULL);
	}
	control_stop();
	other_join(o);
}

/* Starts and stops overlap; a peer may be gone at any moment, and a held one must stay valid. */
static void *life_caller(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < scaled(60); i++) {
		struct wire_handle h;
		struct peer *peer;

		CHECK(world_listen(&h) == 0);
		CHECK(peer_get(&h, &peer) == 0);
		CHECK(send_seq(peer, 0, 64) == 0);
		if (i % 2) {
			CHECK(EVENTUALLY(peer_state(peer) == PEER_UP));
		}
		control_stop();
		(void)send_seq(peer, 0, 64); /* works as long as another caller is in */
		(void)peer_name(peer);
		peer_put(peer);
	}
	return NULL;
}

static void check_lives(void)
{
	forget();
	run_together(3, life_caller, NULL);
	CHECK(rec_now().downs == 0);
}

int main(void)
{
	struct other o;

	alarm(110);
	o = other_start(role_echo); /* before there are threads */
	check_self();
	check_other(&o);
	check_lives();
	printf("thread_control: ok\n");
	return 0;
}
