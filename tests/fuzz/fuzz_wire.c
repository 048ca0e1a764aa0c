/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_wire.c - a hostile peer's bytes through the parser into the core (libFuzzer).
 *
 * The input is a script. Each step is an opcode and, for messages, a length and that many bytes:
 * they are decoded as control messages are, and letters about lanes go on to the recovery core of a
 * sender and of a receiver with traffic in flight. The fuzzer also writes the memory that a peer's
 * NIC may write: announcements and sizes. Nothing may crash, read out of bounds or fail an assert;
 * a core that says -EPROTO is done with its peer.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "core/recover.h"
#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LANES = 3, HOME = 2, STEPS_MAX = 4096 };

enum op {
	OP_MESSAGE, OP_RING, OP_SIZES, OP_ISEND, OP_IRECV, OP_IMM, OP_COMPLETE, OP_TICK, OP_COUNT
};

struct script {
	const uint8_t *at;
	size_t left;
};

static struct {
	struct core_port port[2][CORE_PORTS_MAX];
	struct core_load load[CORE_PORTS_MAX];
	struct core_config cfg;
	struct core_cts ring[CORE_RING_RECORDS], staging[CORE_RING_RECORDS];
	struct core_sizes sizes[CORE_SLOTS];
	struct core_send send;
	struct core_recv recv;
	struct core_recover of_send, of_recv;
	uint32_t epoch;
	uint64_t now_ns;
	bool send_over, recv_over;
} w;

static uint64_t take(struct script *s, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes && s->left > 0; i++, s->left--) {
		value = value << 8 | *s->at++;
	}
	return value;
}

static size_t take_bytes(struct script *s, void *to, size_t bytes)
{
	size_t n = bytes < s->left ? bytes : s->left;

	memcpy(to, s->at, n);
	s->at += n;
	s->left -= n;
	return n;
}

static void begin(void)
{
	static const struct core_recover_times times = { .stall_ns = 100000000,
							 .retest_ns = 1000000000,
							 .verify_ns = 500000000,
							 .outage_ns = 120000000000 };

	memset(&w, 0, sizeof(w));
	w.cfg = (struct core_config){ .lane_count = HOME, .standby_count = LANES - HOME,
				      .port_count = HOME, .path_count = HOME,
				      .small_bytes = 16384, .window_us = 10000,
				      .pressure_max_pct = 25, .signal_epoch = &w.epoch };
	for (uint32_t i = 0; i < LANES; i++) {
		w.cfg.lane[i].port = w.cfg.lane[i].remote = (uint8_t)i;
		w.cfg.local[i] = &w.port[0][i];
		w.cfg.remote[i] = &w.port[1][i];
		w.cfg.load[i] = &w.load[i];
	}
	core_send_init(&w.send, &w.cfg, w.ring);
	core_recv_init(&w.recv, &w.cfg, w.staging, w.sizes);
	for (uint32_t i = 0; i < HOME; i++) {
		core_send_lane_open(&w.send, i, 1, CORE_RQ_WRS);
		core_recv_lane_open(&w.recv, i, 1, CORE_RQ_WRS);
	}
	core_recover_init(&w.of_send, &times, &w.send, NULL, 0, 0);
	core_recover_init(&w.of_recv, &times, NULL, &w.recv, 0, 0);
}

/* The owner: jobs end at once and well; what is to be written goes nowhere. */
static void drain(struct core_recover *r)
{
	static struct core_letter letter;
	struct core_action a;
	struct core_post post;
	struct core_announce announce;

	for (int i = 0; i < STEPS_MAX && core_recover_next(r, &a, &letter, w.now_ns); i++) {
		if (a.type == ACT_FENCE) {
			core_recover_fenced(r, a.lane, w.now_ns);
		} else if (a.type == ACT_PREPARE || a.type == ACT_CONNECT) {
			core_recover_ready(r, a.lane, 0, w.now_ns);
		} else if (a.type == ACT_VERIFY) {
			core_recover_verified(r, a.lane, a.generation, w.now_ns);
		}
	}
	for (int i = 0; i < STEPS_MAX && r->send != NULL &&
			core_send_next(r->send, w.now_ns, &post); i++) {
	}
	if (r->recv != NULL) {
		(void)core_recv_credit(r->recv, &announce);
	}
}

static void letter_give(const struct core_letter *in)
{
	static struct core_letter answer;

	if (!w.send_over) {
		w.send_over = core_recover_letter(&w.of_send, in, &answer, w.now_ns) != 0;
		drain(&w.of_send);
	}
	if (!w.recv_over) {
		w.recv_over = core_recover_letter(&w.of_recv, in, &answer, w.now_ns) != 0;
		drain(&w.of_recv);
	}
}

/* Every decoder sees the bytes: which one gets them is the peer's choice. */
static void message(struct script *s)
{
	static union {
		struct wire_handle handle;
		struct wire_hello hello;
		struct wire_welcome welcome;
		struct wire_refuse refuse;
		struct wire_connect connect;
		struct wire_keys keys;
		struct wire_ports ports;
		struct wire_letter letter;
	} m;
	static uint8_t body[WIRE_BODY_MAX];
	size_t bytes = take_bytes(s, body, take(s, 2) % sizeof(body));
	uint8_t handle[128] = { 0 };
	char why[192];

	memcpy(handle, body, bytes < sizeof(handle) ? bytes : sizeof(handle));
	(void)wire_handle_decode(handle, &m.handle, why, sizeof(why));
	(void)wire_hello_decode(body, bytes, &m.hello);
	(void)wire_welcome_decode(body, bytes, &m.welcome);
	(void)wire_refuse_decode(body, bytes, &m.refuse);
	(void)wire_connect_decode(body, bytes, &m.connect);
	(void)wire_keys_decode(body, bytes, &m.keys);
	(void)wire_ports_decode(body, bytes, &m.ports);
	if (wire_letter_decode(body, bytes, &m.letter) == 0) {
		letter_give(&m.letter.letter);
	}
}

/* A record that the plugin could have written, bent in one byte: most inputs then get further. */
static void ring_write(struct script *s)
{
	struct core_cts *rec = &w.ring[take(s, 2) % CORE_RING_RECORDS];
	uint8_t at = (uint8_t)take(s, 1);

	*rec = (struct core_cts){ .addr = 1 << 20, .size = (uint32_t)take(s, 3), .tag = 1,
				  .n = 1, .seq = take(s, 1) + 1 };
	((uint8_t *)rec)[at % sizeof(*rec)] ^= (uint8_t)take(s, 1);
}

static void isend(struct script *s)
{
	const struct core_cts *rec;
	struct core_post post;
	uint64_t seq;
	int rc = core_send_match(&w.send, (uint32_t)take(s, 1), &rec, &seq);

	w.send_over |= rc == -EPROTO;
	if (rc != 0) {
		return;
	}
	core_send_start(&w.send, rec, seq, (uint32_t)take(s, 3), w.now_ns);
	for (int i = 0; i < STEPS_MAX && core_send_next(&w.send, w.now_ns, &post); i++) {
	}
}

static void irecv(struct script *s)
{
	struct core_recv_buffer buffer[CORE_GROUP_MAX] = { { 0 } };
	struct core_announce a;
	uint32_t n = (uint32_t)take(s, 1) % CORE_GROUP_MAX + 1, slot;

	for (uint32_t i = 0; i < n; i++) {
		buffer[i].size = (uint32_t)take(s, 3);
	}
	(void)core_recv_post(&w.recv, n, buffer, &slot, &a);
}

static void imm(struct script *s)
{
	uint32_t lane = (uint32_t)take(s, 1) % LANES, value = (uint32_t)take(s, 4);

	w.recv_over |= core_recv_imm(&w.recv, lane, value, (uint32_t)take(s, 3)) == -EPROTO;
	if (core_recv_refill(&w.recv, lane) != 0) {
		core_recv_refilled(&w.recv, lane, CORE_RQ_BATCH);
	}
}

static void tick(struct script *s)
{
	uint32_t lane = (uint32_t)take(s, 1);

	w.now_ns += take(s, 1) * 1000000ull;
	if (lane < LANES) {
		w.port[0][lane].dead ^= 1;
		w.port[0][lane].down = w.port[0][lane].dead;
		w.epoch++;
	}
	if (!w.send_over) {
		core_recover_tick(&w.of_send, w.now_ns);
		drain(&w.of_send);
	}
	if (!w.recv_over) {
		core_recover_tick(&w.of_recv, w.now_ns);
		drain(&w.of_recv);
	}
}

static void step(struct script *s)
{
	uint32_t lane;

	switch ((enum op)(take(s, 1) % OP_COUNT)) {
	case OP_MESSAGE:
		message(s);
		break;
	case OP_RING:
		ring_write(s);
		break;
	case OP_SIZES:
		(void)take_bytes(s, &w.sizes[take(s, 1) % CORE_SLOTS], sizeof(w.sizes[0]));
		break;
	case OP_ISEND:
		if (!w.send_over) {
			isend(s);
		}
		break;
	case OP_IRECV:
		if (!w.recv_over) {
			irecv(s);
		}
		break;
	case OP_IMM:
		if (!w.recv_over) {
			imm(s);
		}
		break;
	case OP_COMPLETE:
		lane = (uint32_t)take(s, 1) % LANES;
		(void)core_send_complete(&w.send, lane, w.send.lane[lane].generation,
					 (uint32_t)take(s, 1), w.now_ns);
		break;
	default:
		tick(s);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = { data, size };

	begin();
	for (int i = 0; i < STEPS_MAX && s.left > 0; i++) {
		step(&s);
	}
	core_send_fini(&w.send);
	return 0;
}
