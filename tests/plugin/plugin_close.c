/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_close.c - closing in every state: half-made connections, requests under way, lanes that
 * are being fenced or made anew, commands that hang, a peer that is gone. Each close comes back,
 * and when all are closed nothing is left open.
 *
 * RIG_SEED gives the random cases another seed.
 */
#include "rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util.h"

enum {
	RAILS = 4,
	PORTS = 2 * RAILS,
	RETRY_MS = 20,
	CLOSE_MS = 30000, /* no close takes this long on any machine */
	GONE_MS = 30000	  /* by when a dead peer has been noticed */
};

static uint64_t longest_close_ns;

static uint64_t seed(void)
{
	const char *text = getenv("RIG_SEED");

	return text ? strtoull(text, NULL, 0) : 1;
}

static void closed(uint64_t start)
{
	uint64_t ns = now_ns() - start;

	CHECK(ns < CLOSE_MS * NS_PER_MS);
	if (ns > longest_close_ns)
		longest_close_ns = ns;
}

static void close_send(struct pair *p)
{
	uint64_t start = now_ns();

	if (p->send)
		CHECK_INT(rig_net->closeSend(p->send), RY_NET_SUCCESS);
	p->send = NULL;
	closed(start);
}

static void close_recv(struct pair *p)
{
	uint64_t start = now_ns();

	if (p->recv)
		CHECK_INT(rig_net->closeRecv(p->recv), RY_NET_SUCCESS);
	p->recv = NULL;
	closed(start);
}

static void close_listen(struct pair *p)
{
	uint64_t start = now_ns();

	if (p->listen)
		CHECK_INT(rig_net->closeListen(p->listen), RY_NET_SUCCESS);
	p->listen = NULL;
	closed(start);
}

static void close_in_order(struct pair *p, unsigned order)
{
	static void (*const calls[6][3])(struct pair *) = {
		{close_send, close_recv, close_listen}, {close_recv, close_send, close_listen},
		{close_listen, close_send, close_recv}, {close_listen, close_recv, close_send},
		{close_send, close_listen, close_recv}, {close_recv, close_listen, close_send},
	};

	for (int i = 0; i < 3; i++)
		calls[order % 6][i](p);
	free(p->handle);
	p->handle = NULL;
}

static int upper_device(void)
{
	struct ry_net_vdev_v12 v = {.ndevs = RAILS, .devs = {4, 5, 6, 7}};
	int dev;

	CHECK_INT(ncclNetPlugin_v12.makeVDevice(&dev, &v), RY_NET_SUCCESS);
	return dev;
}

static void hang_all(unsigned ms)
{
	for (int i = 0; i < PORTS; i++)
		fake_hang(i, ms);
}

/* No fault but by keys: a message may still be under way to a buffer that was given up. */
static void clean(void)
{
	rig_stop();
	if (fake_fault() && strstr(fake_fault(), " key "))
		fake_fault_clear();
	rig_clean();
}

/* ---- half-made connections ---- */

/* One step of both ends, errors taken; true once both are there or one has failed. */
static bool half_step(struct pair *p, int send_dev)
{
	if (!p->send && rig_abi->connect(rig_ctx, send_dev, p->handle, &p->send) != RY_NET_SUCCESS)
		return true;
	if (!p->recv && rig_abi->accept(p->listen, &p->recv) != RY_NET_SUCCESS)
		return true;
	return p->send && p->recv;
}

/* Closed after so many steps; true if the connection was there by then. */
static bool stage(unsigned steps, unsigned hang_ms)
{
	bool made = false;
	struct pair p;
	int low, high;

	rig_begin(&(struct fake_config){.device_count = PORTS});
	low = rig_device(RAILS);
	high = upper_device();
	hang_all(hang_ms);
	pair_start(&p, high);
	for (unsigned i = 0; i < steps && !made; i++) {
		made = half_step(&p, low);
		rig_pause_us(500);
	}
	close_in_order(&p, steps);
	clean();
	return made;
}

static void stages(void)
{
	unsigned steps = 0, jump = TEST_SCALE < 100 ? 5 : 1;

	while (!stage(steps, 1))
		steps += jump;
	printf("       there after %u steps\n", steps);
	CHECK(steps >= 5);
}

/* Only one end steps: what it waits for never comes. */
static void one_end(void)
{
	for (unsigned i = 0; i < rig_scaled(40); i++) {
		struct pair p;

		rig_begin(&(struct fake_config){.device_count = PORTS});
		pair_start(&p, upper_device());
		for (unsigned k = 0; k < i; k++) {
			if (i % 2)
				CHECK_INT(rig_abi->accept(p.listen, &p.recv), RY_NET_SUCCESS);
			else
				CHECK_INT(rig_abi->connect(rig_ctx, rig_device(RAILS), p.handle,
							   &p.send),
					  RY_NET_SUCCESS);
			rig_pause_us(500);
		}
		CHECK(!p.send && !p.recv);
		close_in_order(&p, i);
		clean();
	}
}

/* Ports are down or lose everything already while the connection is made. */
static void stages_failing(void)
{
	uint64_t random = seed();

	for (unsigned i = 0; i < rig_scaled(40); i++) {
		struct pair p;
		int low, high;

		rig_begin(&(struct fake_config){.device_count = PORTS});
		fake_retry_set(RETRY_MS);
		low = rig_device(RAILS);
		high = upper_device();
		pair_start(&p, high);
		for (unsigned k = 0; k < i * 2; k++) {
			int device = (int)(rig_random(&random) % PORTS);

			if (k % 4 == 0)
				fake_port_set(device, 1, k % 8 == 0);
			if (k % 4 == 2)
				fake_port_lose(device, 1, k % 8 == 2 ? FAKE_CUT : 0);
			if (half_step(&p, low))
				break;
			rig_pause_us(500);
		}
		close_in_order(&p, i);
		clean();
	}
}

/* ---- with requests under way ---- */

struct busy {
	struct pair p;
	struct run *run;
	uint64_t random;
};

static void busy_open(struct busy *b, const struct fake_config *more)
{
	struct fake_config fakes = *more;
	struct traffic t = {.members = 4,
			    .random_members = true,
			    .window = 6,
			    .bytes_max = 1 << 20,
			    .may_fail = true,
			    .seed = b->random};

	fakes.device_count = PORTS;
	rig_begin(&fakes);
	fake_retry_set(RETRY_MS);
	pair_open(&b->p, rig_device(RAILS), upper_device());
	b->run = traffic_start(&b->p, &t);
}

static void busy_run(struct busy *b, unsigned us)
{
	uint64_t end_ns = now_ns() + us * NS_PER_US;

	while (now_ns() < end_ns) {
		if (!traffic_step(b->run))
			rig_pause_us(20);
	}
}

static void fault_random(struct busy *b)
{
	int device = (int)(rig_random(&b->random) % PORTS);

	switch (rig_random(&b->random) % 5) {
	case 0:
		fake_port_set(device, 1, false);
		break;
	case 1:
		fake_port_lose(device, 1, FAKE_LOSE_ACKS);
		break;
	case 2:
		fake_retry_exceeded(device, 1);
		break;
	case 3:
		fake_fail_nth_of("post_send", 3, EIO);
		break;
	default:
		fake_port_lose(device, 1, FAKE_CUT);
		break;
	}
}

static void repair(struct busy *b)
{
	for (int i = 0; i < PORTS; i++) {
		if (rig_random(&b->random) % 2) {
			fake_port_set(i, 1, true);
			fake_port_lose(i, 1, 0);
		}
	}
}

static void busy_close(struct busy *b, unsigned order)
{
	fake_fail_nth(0, 0);
	traffic_stop(b->run);
	close_in_order(&b->p, order);
	clean();
}

/* Some time after a fault, or after its repair: every state of a lane comes about. */
static void recovering_with(unsigned rounds, unsigned hang_ms)
{
	struct busy b = {.random = seed()};

	for (unsigned i = 0; i < rounds; i++) {
		busy_open(&b, &(struct fake_config){.err_lands = i % 2});
		busy_run(&b, 1000);
		hang_all(hang_ms);
		for (uint64_t n = 1 + rig_random(&b.random) % 3; n > 0; n--)
			fault_random(&b);
		busy_run(&b, (unsigned)(rig_random(&b.random) % 60000));
		if (i % 3) {
			repair(&b);
			busy_run(&b, (unsigned)(rig_random(&b.random) % 60000));
		}
		busy_close(&b, i);
	}
	printf("       longest close %.1f ms\n", (double)longest_close_ns / 1e6);
}

static void recovering(void)
{
	rig_env("RAILYARD_RETEST_MS", "20");
	recovering_with(rig_scaled(100), 0);
}

static void recovering_hung(void)
{
	rig_env("RAILYARD_RETEST_MS", "20");
	recovering_with(rig_scaled(20), 30);
}

/* Everything hangs for longer than any close should take in sum. */
static void hung(void)
{
	struct busy b = {.random = seed()};

	busy_open(&b, &(struct fake_config){0});
	busy_run(&b, 1000);
	for (int i = 0; i < RAILS; i++)
		fake_port_lose(i, 1, FAKE_CUT);
	hang_all(500);
	busy_run(&b, 3 * RETRY_MS * 1000);
	busy_close(&b, 0);
	printf("       longest close %.1f ms with commands of 500 ms\n",
	       (double)longest_close_ns / 1e6);
}

static void dead_device(void)
{
	struct busy b = {.random = seed()};

	for (unsigned i = 0; i < rig_scaled(10); i++) {
		busy_open(&b, &(struct fake_config){0});
		busy_run(&b, 1000);
		fake_device_fatal((int)(i % PORTS));
		busy_run(&b, i * 10000);
		busy_close(&b, i);
	}
}

/* Both ends at once from two threads, as ranks of one process do. */
static void *recv_closer(void *arg)
{
	close_recv(arg);
	return NULL;
}

static void two_threads(void)
{
	struct busy b = {.random = seed()};

	for (unsigned i = 0; i < rig_scaled(50); i++) {
		pthread_t thread;

		busy_open(&b, &(struct fake_config){0});
		busy_run(&b, 500);
		fault_random(&b);
		busy_run(&b, (unsigned)(rig_random(&b.random) % 50000));
		fake_fail_nth(0, 0);
		traffic_stop(b.run);
		CHECK_INT(pthread_create(&thread, NULL, recv_closer, &b.p), 0);
		rig_pause_us((unsigned)(rig_random(&b.random) % 500));
		CHECK_INT(rig_net->closeSend(b.p.send), RY_NET_SUCCESS);
		CHECK_INT(pthread_join(thread, NULL), 0);
		b.p.send = NULL;
		close_in_order(&b.p, 0);
		clean();
	}
}

/* ---- a peer that is gone ---- */

/*
 * Another process, reached by control only: its devices are memory of its own, so that no data
 * ever gets there.
 */
static pid_t peer_start(int *link)
{
	int fd[2];
	pid_t child;

	CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	fflush(NULL);
	child = fork();
	CHECK(child >= 0);
	*link = fd[child == 0];
	close(fd[child != 0]);
	return child;
}

/* Both ways: our listen for the peer's connect, and the other way round. */
static void half_pair(struct pair p[2], int link, int dev)
{
	char *theirs = calloc(1, RY_NET_HANDLE_BYTES_MAX);

	CHECK(theirs);
	pair_start(&p[0], dev);
	CHECK_INT(write(link, p[0].handle, RY_NET_HANDLE_BYTES_MAX), RY_NET_HANDLE_BYTES_MAX);
	CHECK_INT(read(link, theirs, RY_NET_HANDLE_BYTES_MAX), RY_NET_HANDLE_BYTES_MAX);
	p[1] = (struct pair){.handle = theirs};
}

static void peer_main(int link) __attribute__((noreturn));
static void peer_main(int link)
{
	struct pair p[2];

	rig_begin(&(struct fake_config){.device_count = PORTS});
	half_pair(p, link, upper_device());
	while (true) {
		if (!p[0].recv)
			(void)rig_abi->accept(p[0].listen, &p[0].recv);
		if (!p[1].send)
			(void)rig_abi->connect(rig_ctx, upper_device(), p[1].handle, &p[1].send);
		rig_pause_us(500);
	}
}

static uint64_t error_after(struct pair *p, bool is_send, void *buffer, void *mr)
{
	enum ry_net_result rc = RY_NET_SUCCESS;
	uint64_t start = now_ns();
	void *request = NULL;
	size_t bytes = 4096;
	int tag = 1, done;

	while (rc == RY_NET_SUCCESS) {
		CHECK(now_ns() - start < GONE_MS * NS_PER_MS);
		if (request)
			rc = rig_net->test(request, &done, NULL);
		else if (is_send)
			rc = rig_abi->isend(p->send, buffer, bytes, tag, mr, &request);
		else
			rc = rig_abi->irecv(p->recv, 1, &buffer, &bytes, &tag, &mr, &request);
		rig_pause_us(200);
	}
	CHECK_INT(rc, RY_NET_REMOTE_ERROR);
	return now_ns() - start;
}

static void peer_dies(void)
{
	void *buffer = rig_buffer(4096), *mr[2];
	struct pair p[2];
	int link, dev;
	pid_t child = peer_start(&link);
	uint64_t ns;

	if (child == 0)
		peer_main(link);
	rig_begin(&(struct fake_config){.device_count = PORTS});
	dev = rig_device(RAILS);
	half_pair(p, link, dev);
	for (int i = 0; !(p[0].recv && p[1].send); i++) {
		CHECK(i < RIG_PATIENCE_MS);
		if (!p[0].recv)
			CHECK_INT(rig_abi->accept(p[0].listen, &p[0].recv), RY_NET_SUCCESS);
		if (!p[1].send)
			CHECK_INT(rig_abi->connect(rig_ctx, dev, p[1].handle, &p[1].send),
				  RY_NET_SUCCESS);
		rig_pause_us(1000);
	}
	CHECK_INT(rig_net->regMr(p[1].send, buffer, 4096, RY_NET_PTR_HOST, &mr[0]), 0);
	CHECK_INT(rig_net->regMr(p[0].recv, buffer, 4096, RY_NET_PTR_HOST, &mr[1]), 0);
	CHECK_INT(kill(child, SIGKILL), 0);
	CHECK_INT(waitpid(child, NULL, 0), child);
	ns = error_after(&p[1], true, buffer, mr[0]);
	ns += error_after(&p[0], false, buffer, mr[1]);
	printf("       both ends failed %.1f ms after the peer was killed\n", (double)ns / 1e6);
	CHECK_INT(rig_net->deregMr(p[1].send, mr[0]), 0);
	CHECK_INT(rig_net->deregMr(p[0].recv, mr[1]), 0);
	close_in_order(&p[0], 0);
	close_in_order(&p[1], 0);
	clean();
	close(link);
	rig_buffer_free(buffer, 4096);
}

/* It goes while the connections are made. */
static void peer_dies_early(void)
{
	rig_env("RAILYARD_CONNECT_TIMEOUT", "2");
	for (unsigned i = 0; i < rig_scaled(12); i++) {
		struct pair p[2];
		int link, dev;
		pid_t child = peer_start(&link);

		if (child == 0)
			peer_main(link);
		rig_begin(&(struct fake_config){.device_count = PORTS});
		dev = rig_device(RAILS);
		half_pair(p, link, dev);
		for (unsigned k = 0; k < i * 4; k++) {
			if (!p[0].recv)
				(void)rig_abi->accept(p[0].listen, &p[0].recv);
			if (!p[1].send)
				(void)rig_abi->connect(rig_ctx, dev, p[1].handle, &p[1].send);
			rig_pause_us(300);
		}
		CHECK_INT(kill(child, SIGKILL), 0);
		CHECK_INT(waitpid(child, NULL, 0), child);
		rig_pause_us(i % 3 * 20000);
		close_in_order(&p[0], i);
		close_in_order(&p[1], i);
		clean();
		close(link);
	}
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"stages", stages},
		{"one_end", one_end},
		{"stages_failing", stages_failing},
		{"recovering", recovering},
		{"recovering_hung", recovering_hung},
		{"hung", hung},
		{"dead_device", dead_device},
		{"two_threads", two_threads},
		{"peer_dies", peer_dies},
		{"peer_dies_early", peer_dies_early},
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
