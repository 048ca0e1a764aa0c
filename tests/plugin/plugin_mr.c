/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_mr.c - memory: too little of it may be locked; regions that come and go beside traffic.
 */
#include "rig.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "control_internal.h"

enum {
	BYTES = 4096,
	LIMIT = 64 * 1024,
	SENDER_OBJECTS = 4 * 5, /* context, PD, CQ, ring and queue pair of four ports */
	ARENA = 1 << 21, /* at either end; the first half is registered all the time */
	PLACE = ARENA / 2 / 4,
	BATCH = 4,
	CHURN_MS = 3000
};

static const struct fake_config four = {.device_count = 4};

/* --- RLIMIT_MEMLOCK ----------------------------------------------------------------------- */

static void limit_set(rlim_t bytes)
{
	struct rlimit limit;

	CHECK_INT(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = bytes;
	CHECK_INT(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* The one line: the first device, the call, the limit, and what to do about it. */
static void limit_said(const char *call, unsigned lines)
{
	CHECK(rig_logged("NET/Railyard : fake0:1"));
	CHECK(rig_logged(call));
	CHECK(rig_logged("RLIMIT_MEMLOCK is 65536 bytes"));
	CHECK(rig_logged("ulimit -l unlimited"));
	CHECK(rig_logged("LimitMEMLOCK=infinity"));
	CHECK(!rig_logged(" : fake1:1"));
	CHECK_INT(rig_warnings(), lines);
}

static const struct refusal {
	const char *verb, *call;
	int error;
} refusals[] = {
	{"create_cq", "ibv_create_cq for a ", ENOMEM}, {"reg_mr", "ibv_reg_mr", ENOMEM},
	{"create_qp", "ibv_create_qp", ENOMEM}, {"create_cq", "ibv_create_cq", EAGAIN},
	{"reg_mr", "ibv_reg_mr", EAGAIN},	{"create_qp", "ibv_create_qp", EAGAIN},
};

static void limit_connect(void)
{
	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		enum ry_net_result rc = RY_NET_SUCCESS;
		struct pair p;

		limit_set(LIMIT);
		rig_begin(&four);
		pair_start(&p, 0);
		fake_fail_always(refusals[i].verb, refusals[i].error);
		for (int n = 0; rc == RY_NET_SUCCESS; n++) {
			CHECK(n < RIG_PATIENCE_MS);
			rc = rig_abi->connect(rig_ctx, rig_device(4), p.handle, &p.send);
			CHECK(!p.send);
			rig_pause_us(1000);
		}
		CHECK_INT(rc, RY_NET_SYSTEM_ERROR);
		limit_said(refusals[i].call, 1);
		CHECK(rig_logged("and 3 more ports"));
		pair_close(&p);
		rig_stop();
		rig_clean();
	}
}

/* The sender has all that it needs; its own line says that the peer refused, and why. */
static void limit_accept(void)
{
	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		enum ry_net_result send_rc = RY_NET_SUCCESS, recv_rc = RY_NET_SUCCESS;
		struct pair p;
		int dev;

		limit_set(LIMIT);
		rig_begin(&four);
		dev = rig_device(4);
		pair_start(&p, dev);
		for (int n = 0; fake_leaks(NULL, 0) < SENDER_OBJECTS; n++) {
			CHECK(n < RIG_PATIENCE_MS);
			CHECK_INT(rig_abi->connect(rig_ctx, dev, p.handle, &p.send), 0);
			rig_pause_us(1000);
		}
		fake_fail_always(refusals[i].verb, refusals[i].error);
		for (int n = 0; recv_rc == RY_NET_SUCCESS || send_rc == RY_NET_SUCCESS; n++) {
			CHECK(n < RIG_PATIENCE_MS);
			if (recv_rc == RY_NET_SUCCESS)
				recv_rc = rig_abi->accept(p.listen, &p.recv);
			if (send_rc == RY_NET_SUCCESS)
				send_rc = rig_abi->connect(rig_ctx, dev, p.handle, &p.send);
			CHECK(!p.send && !p.recv);
			rig_pause_us(1000);
		}
		CHECK_INT(recv_rc, RY_NET_SYSTEM_ERROR);
		CHECK_INT(send_rc, RY_NET_REMOTE_ERROR);
		limit_said(refusals[i].call, 2);
		CHECK(rig_logged("refused: "));
		pair_close(&p);
		rig_stop();
		rig_clean();
	}
}

/* A limit of 0 bytes is EPERM to a process without CAP_IPC_LOCK. */
static void limit_register(void)
{
	static const int errors[] = {ENOMEM, EAGAIN, EPERM};
	char *buffer = rig_buffer((size_t)4 * BYTES);

	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		void *mr = NULL;
		struct pair p;
		int dev;

		rig_begin(&four);
		dev = rig_device(4);
		pair_open(&p, dev, dev);
		limit_set(errors[i] == EPERM ? 0 : LIMIT);
		fake_fail_always("reg_mr", errors[i]);
		CHECK_INT(rig_net->regMr(p.send, buffer, BYTES + 1, RY_NET_PTR_HOST, &mr),
			  RY_NET_SYSTEM_ERROR);
		CHECK(!mr);
		CHECK(rig_logged("8192 bytes"));
		if (errors[i] == EPERM) {
			CHECK(rig_logged("RLIMIT_MEMLOCK is 0 bytes"));
			CHECK(rig_logged("ulimit -l unlimited"));
		} else {
			limit_said("ibv_reg_mr", 1);
		}
		rig_log_clear();
		fake_fail_always(NULL, 0);
		CHECK_INT(rig_net->regMr(p.recv, buffer, BYTES, RY_NET_PTR_HOST, &mr), 0);
		CHECK_INT(rig_net->deregMr(p.recv, mr), 0);
		pair_close(&p);
		rig_end();
	}
	rig_buffer_free(buffer, (size_t)4 * BYTES);
}

/* Not everything is the limit: another error does not name it, and no limit is said to be none. */
static void limit_not(void)
{
	char *buffer = rig_buffer(BYTES);
	struct rlimit limit;
	void *mr = NULL;
	struct pair p;

	rig_begin(&four);
	pair_open(&p, 0, 0);
	limit_set(LIMIT);
	fake_fail_always("reg_mr", EFAULT);
	CHECK(rig_net->regMr(p.send, buffer, BYTES, RY_NET_PTR_HOST, &mr) != RY_NET_SUCCESS);
	CHECK(rig_logged("Bad address"));
	CHECK(!rig_logged("MEMLOCK"));
	CHECK_INT(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	if (limit.rlim_max == RLIM_INFINITY) {
		limit_set(RLIM_INFINITY);
		fake_fail_always("reg_mr", ENOMEM);
		CHECK(rig_net->regMr(p.send, buffer, BYTES, RY_NET_PTR_HOST, &mr) !=
		      RY_NET_SUCCESS);
		CHECK(rig_logged("RLIMIT_MEMLOCK is unlimited"));
		CHECK(!rig_logged("ulimit -l"));
	}
	pair_close(&p);
	rig_stop();
	rig_clean();
	rig_buffer_free(buffer, BYTES);
}

/* --- a peer that takes no control messages for a while ------------------------------------ */

/* Its queue is full, so it cannot be told of regions: they are made all the same. */
static void keys_later(void)
{
	size_t queue_bytes = control_limits.queue_bytes, size = BYTES;
	char *buffer = rig_buffer((size_t)2 * BYTES);
	void *send_mr, *recv_mr, *data = buffer, *request = buffer, *sent;
	int tag = 3;
	struct pair p;

	rig_begin(&four);
	pair_open(&p, rig_device(4), rig_device(4));
	control_limits.queue_bytes = 0;
	CHECK_INT(rig_net->regMr(p.send, buffer + BYTES, BYTES, RY_NET_PTR_HOST, &send_mr), 0);
	CHECK_INT(rig_net->regMr(p.recv, buffer, BYTES, RY_NET_PTR_HOST, &recv_mr), 0);
	CHECK_INT(rig_abi->irecv(p.recv, 1, &data, &size, &tag, &recv_mr, &request), 0);
	CHECK(!request);
	control_limits.queue_bytes = queue_bytes;
	request = rig_irecv(&p, buffer, BYTES, tag, recv_mr);
	memset(buffer + BYTES, 0x5a, BYTES);
	sent = rig_isend(&p, buffer + BYTES, BYTES, tag, send_mr);
	rig_wait(sent, BYTES);
	rig_wait(request, BYTES);
	CHECK(memcmp(buffer, buffer + BYTES, BYTES) == 0);
	/* That it is gone cannot be told: no other region has its id. */
	control_limits.queue_bytes = 0;
	CHECK_INT(rig_net->deregMr(p.recv, recv_mr), 0);
	control_limits.queue_bytes = queue_bytes;
	CHECK_INT(rig_net->deregMr(p.send, send_mr), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(buffer, (size_t)2 * BYTES);
}

/* --- regions beside traffic --------------------------------------------------------------- */

/* Regions of the second half, made by one thread, used by the other, and given back. */
struct offer {
	void *send_mr, *recv_mr;
};

struct churn {
	struct pair pair;
	char *send, *recv; /* [ARENA] */
	struct offer *offered, *used;
	bool stop;
	unsigned regions, refusals, offers;
};

static size_t range_pick(uint64_t *random, size_t *bytes)
{
	static const size_t sizes[] = {1, 100, BYTES, BYTES + 1, 70000, ARENA / 2};

	*bytes = sizes[rig_random(random) % (sizeof(sizes) / sizeof(sizes[0]))];
	return rig_random(random) % (ARENA - *bytes + 1);
}

/* As NCCL's main thread does it: of one end, now and again a region that is there already. */
static void region_cycle(struct churn *c, uint64_t *random)
{
	bool is_send = rig_random(random) & 1;
	void *comm = is_send ? c->pair.send : c->pair.recv, *mr[8] = {NULL};
	char *arena = is_send ? c->send : c->recv;
	unsigned n = 1 + (unsigned)(rig_random(random) % 8);

	for (unsigned i = 0; i < n; i++) {
		size_t bytes, at = range_pick(random, &bytes);

		CHECK_INT(rig_net->regMr(comm, arena + at, bytes, RY_NET_PTR_HOST, &mr[i]), 0);
		CHECK(mr[i]);
	}
	c->regions += n;
	while (n > 0)
		CHECK_INT(rig_net->deregMr(comm, mr[--n]), 0);
}

static void dmabuf_refused(struct churn *c)
{
	void *mr = NULL;

	CHECK(rig_net->regMrDmaBuf(c->pair.recv, c->recv, BYTES, RY_NET_PTR_CUDA, 0, 0, &mr) !=
	      RY_NET_SUCCESS);
	CHECK(!mr);
	c->refusals++;
}

static void offer_end(struct churn *c, struct offer *o)
{
	if (!o)
		return;
	CHECK_INT(rig_net->deregMr(c->pair.send, o->send_mr), 0);
	CHECK_INT(rig_net->deregMr(c->pair.recv, o->recv_mr), 0);
	free(o);
}

static void offer_make(struct churn *c)
{
	struct offer *o = calloc(1, sizeof(*o));

	CHECK(o);
	CHECK_INT(rig_net->regMr(c->pair.send, c->send + ARENA / 2, ARENA / 2, RY_NET_PTR_HOST,
				 &o->send_mr), 0);
	CHECK_INT(rig_net->regMr(c->pair.recv, c->recv + ARENA / 2, ARENA / 2, RY_NET_PTR_HOST,
				 &o->recv_mr), 0);
	c->offers++;
	__atomic_store_n(&c->offered, o, __ATOMIC_RELEASE);
}

static void *churn_thread(void *arg)
{
	struct churn *c = arg;
	uint64_t random = 1;

	offer_make(c);
	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
		struct offer *back = __atomic_exchange_n(&c->used, NULL, __ATOMIC_ACQ_REL);

		region_cycle(c, &random);
		if (rig_random(&random) % 16 == 0)
			dmabuf_refused(c);
		if (back) {
			offer_end(c, back);
			offer_make(c);
		}
		rig_pause_us(100); /* else the peers' queues are full of keys all the time */
	}
	offer_end(c, __atomic_exchange_n(&c->used, NULL, __ATOMIC_ACQ_REL));
	offer_end(c, __atomic_exchange_n(&c->offered, NULL, __ATOMIC_ACQ_REL));
	return NULL;
}

/* BATCH messages of random sizes in one half of the arenas, every byte checked. */
static void batch_run(struct churn *c, size_t half, void *send_mr, void *recv_mr, uint64_t *random)
{
	static const size_t sizes[] = {0, 8, 129, BYTES, 70000, PLACE};
	void *recv[BATCH], *send[BATCH];
	size_t bytes[BATCH];

	for (int i = 0; i < BATCH; i++) {
		size_t at = half + (size_t)i * PLACE;

		bytes[i] = sizes[rig_random(random) % (sizeof(sizes) / sizeof(sizes[0]))];
		memset(c->send + at, (int)rig_random(random), PLACE);
		recv[i] = rig_irecv(&c->pair, c->recv + at, PLACE, i, recv_mr);
	}
	for (int i = 0; i < BATCH; i++)
		send[i] = rig_isend(&c->pair, c->send + half + (size_t)i * PLACE, bytes[i], i,
				    send_mr);
	for (int i = 0; i < BATCH; i++) {
		size_t at = half + (size_t)i * PLACE;

		rig_wait(send[i], bytes[i]);
		rig_wait(recv[i], bytes[i]);
		CHECK(memcmp(c->send + at, c->recv + at, bytes[i]) == 0);
	}
}

static uint64_t ms_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static unsigned traffic_beside(struct churn *c, void *send_mr, void *recv_mr)
{
	uint64_t end = ms_now() + rig_scaled(CHURN_MS), random = 2;
	unsigned batches = 0;

	while (ms_now() < end || batches < 20) {
		struct offer *o = __atomic_exchange_n(&c->offered, NULL, __ATOMIC_ACQ_REL);

		if (o) {
			batch_run(c, ARENA / 2, o->send_mr, o->recv_mr, &random);
			__atomic_store_n(&c->used, o, __ATOMIC_RELEASE);
		}
		batch_run(c, 0, send_mr, recv_mr, &random);
		batches++;
	}
	return batches;
}

static void beside(int ports)
{
	struct churn c = {.send = rig_buffer(ARENA), .recv = rig_buffer(ARENA)};
	void *send_mr, *recv_mr;
	pthread_t thread;
	unsigned batches;
	int dev;

	rig_begin(&four);
	dev = rig_device(ports);
	pair_open(&c.pair, dev, dev);
	CHECK_INT(rig_net->regMr(c.pair.send, c.send, ARENA / 2, RY_NET_PTR_HOST, &send_mr), 0);
	CHECK_INT(rig_net->regMr(c.pair.recv, c.recv, ARENA / 2, RY_NET_PTR_HOST, &recv_mr), 0);
	CHECK_INT(pthread_create(&thread, NULL, churn_thread, &c), 0);
	batches = traffic_beside(&c, send_mr, recv_mr);
	__atomic_store_n(&c.stop, true, __ATOMIC_RELEASE);
	CHECK_INT(pthread_join(thread, NULL), 0);
	CHECK_INT(rig_net->deregMr(c.pair.send, send_mr), 0);
	CHECK_INT(rig_net->deregMr(c.pair.recv, recv_mr), 0);
	pair_close(&c.pair);
	CHECK_INT(rig_warnings(), c.refusals);
	CHECK(c.refusals == 0 || rig_logged("ibv_reg_dmabuf_mr of 4096 bytes"));
	rig_log_clear();
	rig_end();
	printf("       %d ports: %u batches beside %u regions, %u handed over, %u refused\n", ports,
	       batches, c.regions, c.offers, c.refusals);
	CHECK(c.regions > 20 && c.offers > 2);
	rig_buffer_free(c.send, ARENA);
	rig_buffer_free(c.recv, ARENA);
}

static void beside_one(void)
{
	beside(1);
}

static void beside_four(void)
{
	beside(4);
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"limit_connect", limit_connect},
		{"limit_accept", limit_accept},
		{"limit_register", limit_register},
		{"limit_not", limit_not},
		{"keys_later", keys_later},
		{"beside_one", beside_one},
		{"beside_four", beside_four},
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
