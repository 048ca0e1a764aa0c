/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_data.c - messages through the whole plugin: every ABI version, size, grouping, set of
 * ports and mode, with deliveries at once and in any order between queue pairs.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

enum {
	BIG = (1 << 20) + 1
};

/* One kind of traffic over one connection, begun and ended with the plugin. */
static void one(struct fake_config config, int send_ports, int recv_ports, struct traffic t)
{
	struct pair p;

	config.delivery = t.queued ? FAKE_QUEUED : FAKE_IMMEDIATE;
	config.seed = t.seed;
	rig_begin(&config);
	pair_open(&p, rig_device(send_ports), rig_device(recv_ports));
	traffic_run(&p, &t);
	pair_close(&p);
	rig_end();
}

/* The same mix of everything, at once and reordered. */
static void mix(int send_ports, int recv_ports)
{
	struct fake_config config = {.device_count = send_ports > recv_ports ? send_ports
									      : recv_ports};
	struct traffic t = {.groups = rig_scaled(300),
			    .members = RIG_GROUP_MAX,
			    .random_members = true,
			    .clips = true,
			    .window = 8,
			    .bytes_max = 200000};

	one(config, send_ports, recv_ports, t);
	t.queued = true;
	for (t.seed = 1; t.seed <= 2 + rig_scaled(6); t.seed++)
		one(config, send_ports, recv_ports, t);
}

static void abi(int index)
{
	rig_abi = &rig_abis[index];
	one((struct fake_config){.device_count = 2}, 2, 2,
	    (struct traffic){.groups = 100,
			     .members = RIG_GROUP_MAX,
			     .random_members = true,
			     .window = 4,
			     .bytes_max = BIG});
}

static void abi_v8(void)
{
	abi(0);
}

static void abi_v9(void)
{
	abi(1);
}

static void abi_v10(void)
{
	abi(2);
}

static void abi_v11(void)
{
	abi(3);
}

static void abi_v12(void)
{
	abi(4);
}

static void sizes(void)
{
	static const size_t bytes[] = {0, 1, 127, 128, 129, 16384, 16385, BIG};
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 1});
	pair_open(&p, 0, 0);
	for (unsigned i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++)
		traffic_run(&p, &(struct traffic){.groups = 20,
						  .members = 1,
						  .window = 3,
						  .fixed = true,
						  .bytes = bytes[i]});
	pair_close(&p);
	rig_end();
}

static void tags_equal(void)
{
	struct traffic t = {.groups = rig_scaled(300),
			    .members = RIG_GROUP_MAX,
			    .equal_tags = true,
			    .window = 8,
			    .bytes_max = 100000};

	one((struct fake_config){.device_count = 2}, 2, 2, t);
	t.queued = true;
	one((struct fake_config){.device_count = 2}, 2, 2, t);
}

static void wrap(void)
{
	/* Groups of 1 .. 8 land on every place of the ring, round and round. */
	struct traffic t = {.groups = 3000,
			    .members = RIG_GROUP_MAX,
			    .random_members = true,
			    .window = 30,
			    .bytes_max = 300};

	one((struct fake_config){.device_count = 1}, 1, 1, t);
	t.queued = true;
	one((struct fake_config){.device_count = 4}, 4, 4, t);
}

static void ports_1(void)
{
	mix(1, 1);
}

static void ports_2(void)
{
	mix(2, 2);
}

static void ports_4(void)
{
	mix(4, 4);
}

static void ports_8(void)
{
	mix(8, 8);
}

static void ports_1_4(void)
{
	mix(1, 4);
}

static void ports_2_3(void)
{
	mix(2, 3);
}

static void ports_4_1(void)
{
	mix(4, 1);
}

static void qps_2(void)
{
	rig_env("NCCL_IB_QPS_PER_CONNECTION", "2");
	mix(2, 2);
}

static void qps_2_split(void)
{
	rig_env("NCCL_IB_QPS_PER_CONNECTION", "2");
	rig_env("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
	mix(2, 2);
}

static void qps_128(void)
{
	rig_env("NCCL_IB_QPS_PER_CONNECTION", "128");
	mix(3, 2);
}

static void adaptive_routing(void)
{
	rig_env("NCCL_IB_ADAPTIVE_ROUTING", "1");
	rig_env("NCCL_IB_AR_THRESHOLD", "256");
	mix(2, 2);
	mix(1, 1);
}

static void adaptive_routing_all(void)
{
	rig_env("NCCL_IB_ADAPTIVE_ROUTING", "1");
	rig_env("NCCL_IB_AR_THRESHOLD", "0");
	mix(4, 1);
}

static void inline_cts(void)
{
	rig_env("NCCL_IB_USE_INLINE", "1");
	mix(2, 2);
}

static void observe(void)
{
	rig_env("RAILYARD_MODE", "observe");
	mix(4, 4);
}

static void small_pieces(void)
{
	rig_env("RAILYARD_SMALL_BYTES", "0");
	rig_env("RAILYARD_WINDOW_US", "10");
	mix(2, 2);
}

/* 256 receives may be outstanding, as NCCL's own transport has it; one more is not now. */
static void slots_full(void)
{
	void *request[RIG_SLOTS], *send[RIG_SLOTS], *more = &more, *send_mr, *recv_mr, *data;
	size_t size = 8;
	struct pair p;
	char *buffer = rig_buffer(2 * RIG_SLOTS * 8);
	int tag = 7;

	rig_begin(&(struct fake_config){.device_count = 2});
	pair_open(&p, rig_device(2), rig_device(2));
	CHECK_INT(rig_net->regMr(p.send, buffer, 2 * RIG_SLOTS * 8, RY_NET_PTR_HOST, &send_mr), 0);
	CHECK_INT(rig_net->regMr(p.recv, buffer, 2 * RIG_SLOTS * 8, RY_NET_PTR_HOST, &recv_mr), 0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < RIG_SLOTS; i++)
			request[i] = rig_irecv(&p, buffer + (RIG_SLOTS + i) * 8, 8, tag, recv_mr);
		data = buffer;
		CHECK_INT(rig_abi->irecv(p.recv, 1, &data, &size, &tag, &recv_mr, &more), 0);
		CHECK(more == NULL);
		for (int i = 0; i < RIG_SLOTS; i++) {
			memcpy(buffer + i * 8, (uint64_t[]){(uint64_t)(i * 3 + round)}, 8);
			send[i] = rig_isend(&p, buffer + i * 8, 8, tag, send_mr);
		}
		CHECK_INT(rig_abi->isend(p.send, buffer, 8, tag, send_mr, &more), 0);
		CHECK(more == NULL);
		for (int i = RIG_SLOTS - 1; i >= 0; i--)
			rig_wait(send[i], 8);
		for (int i = 0; i < RIG_SLOTS; i++)
			rig_wait(request[i], 8);
		CHECK(memcmp(buffer, buffer + RIG_SLOTS * 8, RIG_SLOTS * 8) == 0);
	}
	CHECK_INT(rig_net->deregMr(p.send, send_mr), 0);
	CHECK_INT(rig_net->deregMr(p.recv, recv_mr), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(buffer, 2 * RIG_SLOTS * 8);
}

/* Only a send with the tag of a member of the lowest group is taken. */
static void tags_wrong(void)
{
	char *buffer = rig_buffer(4096);
	void *send_mr, *recv_mr, *request[2], *sent[2], *none = buffer;
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 1});
	pair_open(&p, 0, 0);
	CHECK_INT(rig_net->regMr(p.send, buffer, 4096, RY_NET_PTR_HOST, &send_mr), 0);
	CHECK_INT(rig_net->regMr(p.recv, buffer, 4096, RY_NET_PTR_HOST, &recv_mr), 0);
	request[0] = rig_irecv(&p, buffer + 2048, 10, 1, recv_mr);
	request[1] = rig_irecv(&p, buffer + 3072, 10, -2, recv_mr);
	rig_pause_us(100000); /* the keys are there */
	CHECK_INT(rig_abi->isend(p.send, buffer, 10, -2, send_mr, &none), 0);
	CHECK(none == NULL);
	sent[0] = rig_isend(&p, buffer, 10, 1, send_mr);
	sent[1] = rig_isend(&p, buffer, 10, -2, send_mr);
	for (int i = 0; i < 2; i++) {
		rig_wait(sent[i], 10);
		rig_wait(request[i], 10);
	}
	CHECK_INT(rig_net->deregMr(p.send, send_mr), 0);
	CHECK_INT(rig_net->deregMr(p.recv, recv_mr), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(buffer, 4096);
}

/* NCCL opens many connections between the same ends, set up side by side. */
static void comms_many(void)
{
	enum {
		PAIRS = 12
	};
	struct pair p[PAIRS];
	int left = PAIRS;

	rig_begin(&(struct fake_config){.device_count = 2});
	for (int i = 0; i < PAIRS; i++)
		pair_start(&p[i], i % 3 == 2 ? rig_device(2) : i % 3);
	for (int tries = 0; left > 0; tries++) {
		CHECK(tries < RIG_PATIENCE_MS);
		left = PAIRS;
		for (int i = 0; i < PAIRS; i++)
			left -= pair_step(&p[i], i % 2);
		rig_pause_us(1000);
	}
	for (int i = 0; i < PAIRS; i++)
		traffic_run(&p[i], &(struct traffic){.groups = 40,
						     .members = 4,
						     .random_members = true,
						     .window = 4,
						     .bytes_max = 40000,
						     .seed = (uint64_t)i});
	for (int i = 0; i < PAIRS; i++)
		pair_close(&p[(i * 5 + 3) % PAIRS]);
	rig_end();
}

/* One listen serves several senders in turn, as NCCL's bootstrap may use it. */
static void listen_twice(void)
{
	struct pair p, second;

	rig_begin(&(struct fake_config){.device_count = 1});
	pair_open(&p, 0, 0);
	second = (struct pair){.listen = p.listen, .handle = calloc(1, RY_NET_HANDLE_BYTES_MAX)};
	memcpy(second.handle, p.handle, RY_NET_HANDLE_BYTES_MAX);
	while (!pair_step(&second, 0))
		rig_pause_us(1000);
	second.listen = NULL;
	pair_close(&second);
	pair_close(&p);
	rig_end();
}

static void sizes_negative(void)
{
	void *buffer = rig_buffer(4096), *mr, *request = buffer;
	int bytes = -1, tag = 0;
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 1});
	pair_open(&p, 0, 0);
	CHECK_INT(rig_net->regMr(p.recv, buffer, 4096, RY_NET_PTR_HOST, &mr), 0);
	CHECK_INT(ncclNetPlugin_v8.irecv(p.recv, 1, &buffer, &bytes, &tag, &mr, &request),
		  RY_NET_INVALID_ARGUMENT);
	CHECK(request == NULL);
	request = buffer;
	CHECK_INT(ncclNetPlugin_v8.isend(p.send, buffer, -1, 0, mr, &request),
		  RY_NET_INVALID_ARGUMENT);
	CHECK(request == NULL);
	for (int n = 0; n <= 9; n += 9) {
		size_t many[9] = {0};
		int tags[9] = {0};
		void *data[9] = {0}, *mrs[9] = {0};

		request = buffer;
		CHECK_INT(rig_net->irecv(p.recv, n, data, many, tags, mrs, NULL, &request),
			  RY_NET_INVALID_ARGUMENT);
		CHECK(request == NULL);
	}
	CHECK_INT(rig_net->deregMr(p.recv, mr), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(buffer, 4096);
}

/* Zero bytes need no memory region, as NCCL's barriers and empty sends do not give one. */
static void no_region(void)
{
	void *request, *sent;
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 2});
	pair_open(&p, rig_device(2), rig_device(2));
	for (int i = 0; i < 600; i++) {
		request = rig_irecv(&p, NULL, 0, i, NULL);
		sent = rig_isend(&p, NULL, 0, i, NULL);
		rig_wait(sent, 0);
		rig_wait(request, 0);
	}
	pair_close(&p);
	rig_end();
}

/* What each port has carried since the last call. */
static void port_bytes(uint64_t before[4], uint64_t out[4])
{
	for (int i = 0; i < 4; i++) {
		uint64_t now = fake_port_bytes(i, 1);

		out[i] = now - before[i];
		before[i] = now;
	}
}

/* One 8 B message; with `queued` deliveries it takes a while, in any order. */
static void small_message(struct pair *p, char *buffer, void *send_mr, void *recv_mr, bool queued)
{
	void *recv = NULL, *send = NULL, *data = buffer + 8;
	int sent = 0, received = 0, size, tag = 1;
	size_t bytes = 8;

	for (int i = 0; !recv; i++) { /* the plugin's thread may have the comm for a moment */
		CHECK(i < RIG_PATIENCE_MS * 5);
		CHECK_INT(rig_abi->irecv(p->recv, 1, &data, &bytes, &tag, &recv_mr, &recv), 0);
		if (!recv)
			rig_pause_us(200);
	}
	while (!sent || !received) {
		if (!send)
			CHECK_INT(rig_abi->isend(p->send, buffer, 8, 1, send_mr, &send), 0);
		if (queued)
			fake_step();
		if (send && !sent)
			CHECK_INT(rig_net->test(send, &sent, &size), 0);
		if (!received)
			CHECK_INT(rig_net->test(recv, &received, &size), 0);
	}
	CHECK(memcmp(buffer, buffer + 8, 8) == 0);
}

/* A comm's small messages and their announcements all go over one path, and stay there. */
static void small_stays_with(enum fake_delivery delivery)
{
	enum {
		MESSAGES = 1000,
		PAIRS = 6
	};
	uint64_t before[4] = {0}, bytes[4];
	char *buffer = rig_buffer(4096);
	struct pair p[PAIRS];
	void *mr[PAIRS][2];

	rig_begin(&(struct fake_config){.device_count = 4, .delivery = delivery});
	for (int i = 0; i < PAIRS; i++) {
		pair_open(&p[i], rig_device(4), rig_device(4));
		CHECK_INT(rig_net->regMr(p[i].send, buffer, 4096, RY_NET_PTR_HOST, &mr[i][0]), 0);
		CHECK_INT(rig_net->regMr(p[i].recv, buffer, 4096, RY_NET_PTR_HOST, &mr[i][1]), 0);
	}
	for (int i = 0; i < PAIRS; i++) {
		int used = 0;

		port_bytes(before, bytes);
		for (int m = 0; m < MESSAGES; m++)
			small_message(&p[i], buffer, mr[i][0], mr[i][1], delivery == FAKE_QUEUED);
		port_bytes(before, bytes);
		for (int k = 0; k < 4; k++)
			used += bytes[k] != 0;
		CHECK(bytes[0] + bytes[1] + bytes[2] + bytes[3] == MESSAGES * (8 + 64));
		CHECK_INT(used, 1);
	}
	for (int i = 0; i < PAIRS; i++) {
		CHECK_INT(rig_net->deregMr(p[i].send, mr[i][0]), 0);
		CHECK_INT(rig_net->deregMr(p[i].recv, mr[i][1]), 0);
		pair_close(&p[i]);
	}
	rig_end();
	rig_buffer_free(buffer, 4096);
}

static void small_stays(void)
{
	small_stays_with(FAKE_IMMEDIATE);
	small_stays_with(FAKE_QUEUED);
}

/*
 * Announcements went over paths that no data came by, until their send queues were full: when the
 * one that is left goes down, with no receive open, the others are found to be free again.
 */
static void announcements_elsewhere(void)
{
	char *buffer = rig_buffer(4096);
	struct core_recv *core;
	void *mr[2];
	struct pair p;
	uint32_t data;

	rig_begin(&(struct fake_config){.device_count = 4});
	pair_open(&p, rig_device(4), rig_device(4));
	CHECK_INT(rig_net->regMr(p.send, buffer, 4096, RY_NET_PTR_HOST, &mr[0]), 0);
	CHECK_INT(rig_net->regMr(p.recv, buffer, 4096, RY_NET_PTR_HOST, &mr[1]), 0);
	core = &recv_comm(p.recv)->core;
	data = send_comm(p.send)->core.best;
	core->cts_lane = (uint8_t)((data + 1) % 4);
	for (int m = 0; m < 4 * CORE_SQ_WRS && core->cts_lane != data; m++)
		small_message(&p, buffer, mr[0], mr[1], false);
	CHECK_INT(core->cts_lane, data);
	fake_port_set(core->lane[data].port, 1, false);
	while (!rig_logged("link down"))
		rig_pause_us(1000);
	small_message(&p, buffer, mr[0], mr[1], false);
	CHECK(core->cts_lane != data);
	CHECK_INT(rig_net->deregMr(p.send, mr[0]), 0);
	CHECK_INT(rig_net->deregMr(p.recv, mr[1]), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(buffer, 4096);
}

#define CASE(name)                                                                                 \
	{                                                                                          \
		#name, name                                                                        \
	}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		CASE(abi_v8),	 CASE(abi_v9),	      CASE(abi_v10),
		CASE(abi_v11),	 CASE(abi_v12),	      CASE(sizes),
		CASE(tags_equal), CASE(tags_wrong),   CASE(wrap),
		CASE(ports_1),	 CASE(ports_2),	      CASE(ports_4),
		CASE(ports_8),	 CASE(ports_1_4),     CASE(ports_2_3),
		CASE(ports_4_1), CASE(qps_2),	      CASE(qps_2_split),
		CASE(qps_128),	 CASE(adaptive_routing), CASE(adaptive_routing_all),
		CASE(inline_cts), CASE(observe),      CASE(small_pieces),
		CASE(small_stays), CASE(announcements_elsewhere),
		CASE(slots_full), CASE(comms_many),   CASE(listen_twice),
		CASE(sizes_negative), CASE(no_region),
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
