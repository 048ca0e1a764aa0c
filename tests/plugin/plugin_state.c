/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_state.c - the state page of this very process: comms, lanes and messages appear on it, a
 * port that fails shows as cause of its lanes, and all of it goes away again.
 */
#include "rig.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm.h"

#include <railyard/state.h>

enum {
	PORTS = 4,
	BYTES = 4096
};

static char path[64];

static const struct railstate *page_map(void)
{
	void *at;
	int fd;

	snprintf(path, sizeof(path), RAILSTATE_DIR "/" RAILSTATE_PREFIX "%d", (int)getpid());
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	at = mmap(NULL, sizeof(struct railstate), PROT_READ, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	close(fd);
	return at;
}

static bool comm_get(const struct railstate *s, const void *comm, struct railstate_comm *out)
{
	const struct comm *c = comm;

	for (uint32_t i = 0; i < RAILSTATE_COMMS; i++) {
		if (railstate_copy(out, &s->comm[i], sizeof(*out)) && out->id == c->id)
			return true;
	}
	return false;
}

static bool lane_get(const struct railstate *s, const void *comm, uint32_t number,
		     struct railstate_lane *out)
{
	const struct comm *c = comm;

	for (uint32_t i = 0; i < RAILSTATE_LANES; i++) {
		if (railstate_copy(out, &s->lane[i], sizeof(*out)) && out->comm == c->id &&
		    out->number == number)
			return true;
	}
	return false;
}

/* Until an expression holds; the page lags a look behind, which is never more than 2 s. */
#define AWAIT(expr)                                                                                \
	for (int tries_ = 0; !(expr); tries_++) {                                                  \
		if (tries_ >= RIG_PATIENCE_MS)                                                     \
			rig_die(__FILE__, __LINE__, "%s did not come true", #expr);                \
		rig_pause_us(1000);                                                                \
	}

static bool lane_is(const struct railstate *s, const void *comm, uint32_t number, int state)
{
	struct railstate_lane lane;

	return lane_get(s, comm, number, &lane) && lane.state == state;
}

static bool cause_is(const struct railstate *s, const void *comm, uint32_t number,
		     const char *cause)
{
	struct railstate_lane lane;

	return lane_get(s, comm, number, &lane) && lane.state != RAILSTATE_ACTIVE &&
	       strcmp(lane.cause, cause) == 0;
}

static bool is_calm(const struct railstate *s, const void *comm, uint64_t next)
{
	struct railstate_comm c;

	return comm_get(s, comm, &c) && c.next == next && c.oldest == next && c.open_ns == 0 &&
	       c.wanted_ns == 0 && c.error == 0;
}

static void comms_are_shown(const struct railstate *s, const struct pair *p)
{
	const struct comm *send = p->send, *recv = p->recv;
	struct railstate_comm c;
	struct railstate_lane lane;

	AWAIT(is_calm(s, p->send, 0) && is_calm(s, p->recv, 0));
	CHECK(comm_get(s, send, &c));
	CHECK_INT(c.kind, RAILSTATE_SEND);
	CHECK(c.peer_id == recv->id);
	CHECK_INT(c.lane_count, PORTS);
	CHECK(strstr(c.peer, "pid"));
	CHECK(strcmp(c.peer_port[1], "fake1:1") == 0);
	CHECK(comm_get(s, recv, &c));
	CHECK_INT(c.kind, RAILSTATE_RECV);
	for (uint32_t l = 0; l < PORTS; l++) {
		CHECK(lane_get(s, send, l, &lane));
		CHECK_INT(lane.state, RAILSTATE_ACTIVE);
		CHECK_INT(lane.generation, 1);
		CHECK_INT(lane.faults, 0);
		CHECK(lane.opened_ns != 0 && lane.fault_ns == 0);
		CHECK(strcmp(s->port[lane.port].name, send->port[l].port->name) == 0);
	}
	CHECK_INT(s->head.comms_shown, 2);
	CHECK_INT(s->head.comms_hidden, 0);
}

static void port_fails(void)
{
	const struct railstate *s;
	struct railstate_lane lane;
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = PORTS});
	s = page_map();
	CHECK(s->head.magic == RAILSTATE_MAGIC);
	CHECK_INT(s->head.pid, getpid());
	CHECK(s->head.instance != 0);
	pair_open(&p, rig_device(PORTS), rig_device(PORTS));
	comms_are_shown(s, &p);
	traffic_run(&p, &(struct traffic){.groups = 64, .members = 1, .window = 4, .fixed = true,
					  .bytes = 1 << 20});
	AWAIT(is_calm(s, p.send, 64) && is_calm(s, p.recv, 64));
	CHECK(lane_get(s, p.send, 1, &lane));
	CHECK(lane.bytes > 1 << 20);

	fake_event(1, IBV_EVENT_PORT_ERR, 1);
	AWAIT(s->port[1].down == 1 && s->port[1].dead == 1);
	CHECK(s->port[1].change_ns != 0);
	AWAIT(cause_is(s, p.send, 1, "the local port is down"));
	AWAIT(cause_is(s, p.recv, 1, "the local port is down")); /* both ends are on it */
	AWAIT(lane_is(s, p.send, 1, RAILSTATE_DOWN));
	CHECK(lane_is(s, p.send, 0, RAILSTATE_ACTIVE));
	CHECK(lane_get(s, p.send, 1, &lane));
	CHECK_INT(lane.faults, 1);
	CHECK(lane.fault_ns >= s->head.start_ns && lane.since_ns >= lane.fault_ns);

	fake_event(1, IBV_EVENT_PORT_ACTIVE, 1);
	AWAIT(lane_is(s, p.send, 1, RAILSTATE_ACTIVE) && lane_is(s, p.recv, 1, RAILSTATE_ACTIVE));
	CHECK(lane_get(s, p.send, 1, &lane));
	CHECK(lane.generation >= 2 && lane.faults >= 1 && lane.fault_ns != 0);
	CHECK(lane.opened_ns > lane.fault_ns);
	AWAIT(s->port[1].down == 0);
	pair_close(&p);
	CHECK_INT(s->head.comms_shown, 0);
	CHECK(!lane_get(s, &(struct comm){.id = lane.comm}, 1, &lane));
	rig_end();
	CHECK(access(path, F_OK) != 0);
}

/* Who waits for whom: a receive without its send, then a message that is under way nowhere. */
static void waits(void)
{
	char *data = rig_buffer(2 * BYTES);
	void *send_mr, *recv_mr, *recv, *send;
	const struct railstate *s;
	struct railstate_comm c;
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 1});
	s = page_map();
	pair_open(&p, 0, 0);
	CHECK_INT(rig_net->regMr(p.send, data, BYTES, RY_NET_PTR_HOST, &send_mr), 0);
	CHECK_INT(rig_net->regMr(p.recv, data + BYTES, BYTES, RY_NET_PTR_HOST, &recv_mr), 0);
	recv = rig_irecv(&p, data + BYTES, BYTES, 7, recv_mr);
	AWAIT(comm_get(s, p.recv, &c) && c.open_ns != 0 && c.oldest == 0 && c.next == 1);
	AWAIT(comm_get(s, p.send, &c) && c.wanted_ns != 0 && c.open_ns == 0 && c.next == 0);
	CHECK(c.wanted_ns >= s->head.start_ns && c.update_ns >= c.wanted_ns);
	fake_port_lose(0, 1, FAKE_CUT);
	send = rig_isend(&p, data, BYTES, 7, send_mr);
	AWAIT(comm_get(s, p.send, &c) && c.wanted_ns == 0 && c.open_ns != 0 && c.oldest == 0 &&
	      c.next == 1);
	fake_port_lose(0, 1, 0);
	rig_wait(send, BYTES);
	rig_wait(recv, BYTES);
	AWAIT(is_calm(s, p.send, 1) && is_calm(s, p.recv, 1));
	CHECK_INT(rig_net->deregMr(p.send, send_mr), 0);
	CHECK_INT(rig_net->deregMr(p.recv, recv_mr), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(data, 2 * BYTES);
}

static void comm_fails(void)
{
	const struct railstate *s;
	struct railstate_comm c;
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 1});
	s = page_map();
	pair_open(&p, 0, 0);
	AWAIT(is_calm(s, p.recv, 0));
	CHECK_INT(rig_net->closeSend(p.send), RY_NET_SUCCESS);
	p.send = NULL;
	AWAIT(comm_get(s, p.recv, &c) && c.error != 0);
	pair_close(&p);
	CHECK_INT(s->head.comms_shown, 0);
	rig_end();
}

static void off(void)
{
	struct pair p;

	rig_env("RAILYARD_STATE", "0");
	rig_begin(&(struct fake_config){.device_count = 1});
	snprintf(path, sizeof(path), RAILSTATE_DIR "/" RAILSTATE_PREFIX "%d", (int)getpid());
	CHECK(access(path, F_OK) != 0);
	pair_open(&p, 0, 0);
	traffic_run(&p, &(struct traffic){.groups = 8, .members = 1, .window = 2, .fixed = true,
					  .bytes = BYTES});
	pair_close(&p);
	rig_end();
}

/* A second life of the engine has a page of its own. */
static void again(void)
{
	struct fake_config fakes = {.device_count = 1};
	const struct railstate *first, *second;
	struct pair p;

	rig_begin(&fakes);
	first = page_map();
	rig_end();
	rig_begin(&fakes);
	second = page_map();
	CHECK(first->head.instance != second->head.instance);
	pair_open(&p, 0, 0);
	AWAIT(is_calm(second, p.send, 0));
	CHECK_INT(first->head.comms_shown, 0);
	pair_close(&p);
	rig_end();
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"port_fails", port_fails}, {"waits", waits}, {"comm_fails", comm_fails},
		{"off", off},		    {"again", again},
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
