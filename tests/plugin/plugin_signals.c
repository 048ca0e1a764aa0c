/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_signals.c - a port's word changes on an async event, both ends stop giving it new pieces,
 * and use it again afterwards. Where messages go is read from the devices' own counters.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "device.h"
#include "signals.h"

enum {
	PORTS = 4,
	BIG = 1 << 20
};

static void bytes_get(uint64_t out[2 * PORTS])
{
	for (int i = 0; i < 2 * PORTS; i++)
		out[i] = fake_port_bytes(i, 1);
}

/* Bytes per port for a few large messages. */
static void shares(struct pair *p, uint64_t out[2 * PORTS])
{
	uint64_t before[2 * PORTS];

	bytes_get(before);
	traffic_run(p, &(struct traffic){.groups = 64, .members = 1, .window = 2, .fixed = true,
					 .bytes = BIG});
	bytes_get(out);
	for (int i = 0; i < 2 * PORTS; i++)
		out[i] -= before[i];
}

static void await_value(const uint32_t *word, uint32_t value)
{
	for (int i = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; i++) {
		CHECK(i < 5000);
		rig_pause_us(1000);
	}
}

static void await_word(const struct pair *p, bool remote, int port, uint32_t down)
{
	const struct comm *c = p->send;

	await_value(remote ? &c->remote[port].down : &c->port[port].port->word.down, down);
}

/* A link that is up again is used again once its lane is made anew and tested. */
static void await_share(struct pair *p, int port)
{
	uint64_t bytes[2 * PORTS];
	int tries = 0;

	do {
		CHECK(tries++ < 3000);
		rig_pause_us(10000);
		shares(p, bytes);
	} while (bytes[port] <= (uint64_t)5 * BIG);
}

/* Sender on ports 0 .. 3, receiver on 4 .. 7: which end a port belongs to is then plain. */
static int upper_device(void)
{
	struct ry_net_vdev_v12 v = {.ndevs = PORTS, .devs = {4, 5, 6, 7}};
	int dev;

	CHECK_INT(ncclNetPlugin_v12.makeVDevice(&dev, &v), RY_NET_SUCCESS);
	return dev;
}

static void open_apart(struct pair *p)
{
	rig_begin(&(struct fake_config){.device_count = 2 * PORTS});
	pair_open(p, rig_device(PORTS), upper_device());
}

static void port_down(bool remote)
{
	int device = remote ? PORTS + 1 : 1;
	uint64_t bytes[2 * PORTS];
	struct pair p;

	open_apart(&p);
	shares(&p, bytes);
	for (int i = 0; i < PORTS; i++)
		CHECK(bytes[i] > (uint64_t)10 * BIG); /* of 64 */
	for (int round = 0; round < 3; round++) {
		/* The event alone: the link works on, so what is sent there would be seen. */
		fake_event(device, IBV_EVENT_PORT_ERR, 1);
		await_word(&p, remote, 1, 1);
		shares(&p, bytes);
		CHECK_INT((long long)bytes[1], 0);
		CHECK(!remote || bytes[PORTS + 1] == 0);
		CHECK(bytes[0] > (uint64_t)10 * BIG && bytes[2] > (uint64_t)10 * BIG);
		fake_event(device, IBV_EVENT_PORT_ACTIVE, 1);
		await_word(&p, remote, 1, 0);
		await_share(&p, 1);
	}
	pair_close(&p);
	rig_end();
}

static void local_down(void)
{
	port_down(false);
}

static void remote_down(void)
{
	port_down(true);
}

/* All ports down for a moment: nothing fails, and all are used again. */
static void all_down(void)
{
	struct pair p;

	open_apart(&p);
	for (int i = 0; i < PORTS; i++)
		fake_event(i, IBV_EVENT_PORT_ERR, 1);
	for (int i = 0; i < PORTS; i++)
		await_word(&p, false, i, 1);
	for (int i = 0; i < PORTS; i++)
		fake_event(i, IBV_EVENT_PORT_ACTIVE, 1);
	for (int i = 0; i < PORTS; i++)
		await_word(&p, false, i, 0);
	for (int i = 0; i < PORTS; i++)
		await_share(&p, i);
	pair_close(&p);
	rig_end();
}

/* A comm that is made while a port is down learns of it, and of its return. */
static void down_before(void)
{
	uint64_t bytes[2 * PORTS];
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 2 * PORTS});
	fake_event(PORTS + 2, IBV_EVENT_PORT_ERR, 1);
	pair_open(&p, rig_device(PORTS), upper_device());
	await_word(&p, true, 2, 1);
	shares(&p, bytes);
	CHECK_INT((long long)bytes[2], 0);
	fake_event(PORTS + 2, IBV_EVENT_PORT_ACTIVE, 1);
	await_word(&p, true, 2, 0);
	await_share(&p, 2);
	pair_close(&p);
	rig_end();
}

/* A port that the peer drains gets no new pieces. */
static void drained(void)
{
	uint64_t bytes[2 * PORTS];
	struct comm *c;
	struct pair p;

	open_apart(&p);
	c = p.send;
	__atomic_store_n(&c->remote[3].drain, 1, __ATOMIC_RELAXED);
	signal_bump();
	shares(&p, bytes);
	CHECK_INT((long long)bytes[3], 0);
	__atomic_store_n(&c->remote[3].drain, 0, __ATOMIC_RELAXED);
	signal_bump();
	shares(&p, bytes);
	CHECK(bytes[3] > (uint64_t)5 * BIG);
	pair_close(&p);
	rig_end();
}

/* Ports that an operator drains here, as the rail map tells: bits of `ports`. */
static void local_drain(struct pair *p, uint32_t ports)
{
	const struct comm *c = p->send;

	for (uint32_t i = 0; i < PORTS; i++)
		__atomic_store_n(&c->port[i].port->word.drain, ports >> i & 1, __ATOMIC_RELAXED);
	signal_bump();
}

/* With one port drained the others carry all; with all of them drained, they go on. */
static void drained_here(void)
{
	uint64_t bytes[2 * PORTS];
	struct pair p;

	open_apart(&p);
	local_drain(&p, 1u << 2);
	shares(&p, bytes);
	CHECK_INT((long long)bytes[2], 0);
	CHECK(bytes[0] > (uint64_t)10 * BIG && bytes[1] > (uint64_t)10 * BIG);
	local_drain(&p, (1u << PORTS) - 1);
	shares(&p, bytes); /* ends only when all has arrived */
	local_drain(&p, 0);
	shares(&p, bytes);
	CHECK(bytes[2] > (uint64_t)5 * BIG);
	pair_close(&p);
	rig_end();
}

/* The sender hears of the receiver's pressure without a new receive, but not of each small move. */
static void pressed(void)
{
	const uint32_t *told;
	struct core_port *word;
	struct comm *c;
	struct pair p;

	open_apart(&p);
	c = p.send;
	told = &c->remote[1].pressure;
	c = p.recv;
	word = &c->port[1].port->word;
	__atomic_store_n(&word->pressure, 200, __ATOMIC_RELAXED);
	await_value(told, 200);
	__atomic_store_n(&word->pressure, 220, __ATOMIC_RELAXED);
	rig_pause_us(100000);
	await_value(told, 200);
	__atomic_store_n(&word->pressure, 233, __ATOMIC_RELAXED);
	await_value(told, 233);
	__atomic_store_n(&word->pressure, 0, __ATOMIC_RELAXED);
	await_value(told, 0);
	pair_close(&p);
	rig_end();
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"local_down", local_down},   {"remote_down", remote_down},
		{"all_down", all_down},	      {"down_before", down_before},
		{"drained", drained},	      {"drained_here", drained_here},
		{"pressed", pressed},
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
