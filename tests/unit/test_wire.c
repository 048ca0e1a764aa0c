/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_wire.c - every message survives the wire, and no bytes of a peer can do harm.
 *
 * Decoders are fed copies in memory of exactly the given length, so that the sanitizers see a read
 * past the end. Random input comes from fixed seeds.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "util.h"
#include "wire.h"

union any {
	struct wire_hello hello;
	struct wire_welcome welcome;
	struct wire_ack ack;
	struct wire_addrs addrs;
	struct wire_refuse refuse;
	struct wire_connect connect;
	struct wire_keys keys;
	struct wire_ports ports;
};

struct kind {
	const char *name;
	size_t bytes;
	size_t (*encode)(const void *m, uint8_t *out, size_t bytes);
	int (*decode)(const uint8_t *in, size_t bytes, void *m);
	void (*make)(void *m, uint64_t seed);
};

#define CODEC(kind)                                                                                \
	static size_t kind##_encode(const void *m, uint8_t *out, size_t bytes)                     \
	{                                                                                          \
		return wire_##kind##_encode(m, out, bytes);                                        \
	}                                                                                          \
	static int kind##_decode(const uint8_t *in, size_t bytes, void *m)                         \
	{                                                                                          \
		return wire_##kind##_decode(in, bytes, m);                                         \
	}
CODEC(hello)
CODEC(welcome)
CODEC(ack)
CODEC(addrs)
CODEC(refuse)
CODEC(connect)
CODEC(keys)
CODEC(ports)

static uint64_t draw(uint64_t *seed)
{
	*seed = hash_u64(*seed);
	return *seed;
}

static void draw_bytes(void *to, size_t bytes, uint64_t *seed)
{
	uint8_t *at = to;

	for (size_t i = 0; i < bytes; i++) {
		at[i] = (uint8_t)draw(seed);
	}
}

static void draw_text(char *to, size_t bytes, uint64_t *seed)
{
	size_t length = draw(seed) % bytes;

	memset(to, 0, bytes);
	for (size_t i = 0; i < length; i++) {
		to[i] = (char)(' ' + draw(seed) % ('~' - ' ' + 1));
	}
}

static void make_hello(void *to, uint64_t seed)
{
	struct wire_hello *m = to;

	m->instance = draw(&seed);
	draw_bytes(m->secret, sizeof(m->secret), &seed);
	m->version_min = (uint16_t)(1 + draw(&seed) % 100);
	m->version_max = (uint16_t)(m->version_min + draw(&seed) % 100);
	m->pid = (uint32_t)draw(&seed);
	draw_text(m->host, sizeof(m->host), &seed);
	m->mine = draw(&seed) | 1;
	m->yours = draw(&seed);
	m->received = draw(&seed);
}

static void make_welcome(void *to, uint64_t seed)
{
	struct wire_welcome *m = to;

	m->instance = draw(&seed);
	m->version = (uint16_t)(1 + draw(&seed) % 65535);
	m->pid = (uint32_t)draw(&seed);
	draw_text(m->host, sizeof(m->host), &seed);
	m->mine = draw(&seed) | 1;
	m->yours = draw(&seed);
	m->received = draw(&seed);
	m->from = draw(&seed);
	draw_bytes(m->secret, sizeof(m->secret), &seed);
}

static void make_ack(void *to, uint64_t seed)
{
	struct wire_ack *m = to;

	m->received = draw(&seed);
	m->ask = (uint8_t)draw(&seed);
}

static void make_addrs(void *to, uint64_t seed)
{
	struct wire_addrs *m = to;

	draw_bytes(m->secret, sizeof(m->secret), &seed);
	m->count = (uint8_t)(draw(&seed) % (WIRE_ADDRS_MAX + 1));
	for (unsigned a = 0; a < m->count; a++) {
		m->addr[a].family = draw(&seed) % 2 ? 4 : 6;
		m->addr[a].port = (uint16_t)(1 + draw(&seed) % 65535);
		draw_bytes(m->addr[a].bytes, sizeof(m->addr[a].bytes), &seed);
	}
}

static void make_refuse(void *to, uint64_t seed)
{
	struct wire_refuse *m = to;

	m->code = (uint32_t)draw(&seed);
	draw_text(m->reason, sizeof(m->reason), &seed);
}

static void make_connect(void *to, uint64_t seed)
{
	struct wire_connect *m = to;

	m->comm = draw(&seed);
	draw_bytes(m->secret, sizeof(m->secret), &seed);
	m->ring_addr = draw(&seed);
	m->traffic_class = (uint8_t)draw(&seed);
	m->service_level = (uint8_t)draw(&seed);
	m->adaptive_routing = (uint8_t)draw(&seed);
	m->port_count = (uint8_t)(1 + draw(&seed) % CORE_PORTS_MAX);
	m->lane_count = (uint8_t)(1 + draw(&seed) % CORE_LANES_MAX);
	m->recv_wrs = (uint16_t)draw(&seed);
	for (unsigned p = 0; p < m->port_count; p++) {
		draw_text(m->port[p].name, sizeof(m->port[p].name), &seed);
		draw_bytes(m->port[p].gid, sizeof(m->port[p].gid), &seed);
		m->port[p].lid = (uint16_t)draw(&seed);
		m->port[p].link_layer = (uint8_t)draw(&seed);
		m->port[p].mtu = (uint8_t)draw(&seed);
		m->port[p].mbps = (uint32_t)draw(&seed);
		m->port[p].ring_rkey = (uint32_t)draw(&seed);
	}
	for (unsigned l = 0; l < m->lane_count; l++) {
		m->lane[l].qpn = (uint32_t)draw(&seed);
		m->lane[l].psn = (uint32_t)draw(&seed);
		m->lane[l].generation = (uint32_t)draw(&seed);
		m->lane[l].port = (uint8_t)(draw(&seed) % m->port_count);
		m->lane[l].of = (uint8_t)(draw(&seed) % CORE_LANES_MAX);
	}
}

static void make_keys(void *to, uint64_t seed)
{
	struct wire_keys *m = to;

	m->mr_id = (uint32_t)draw(&seed);
	m->port_count = (uint8_t)(draw(&seed) % (CORE_PORTS_MAX + 1));
	for (unsigned p = 0; p < m->port_count; p++) {
		m->rkey[p] = (uint32_t)draw(&seed);
	}
}

static void make_ports(void *to, uint64_t seed)
{
	struct wire_ports *m = to;

	m->port_count = (uint8_t)(1 + draw(&seed) % CORE_PORTS_MAX);
	draw_bytes(m->down, m->port_count, &seed);
	draw_bytes(m->pressure, m->port_count, &seed);
}

#define KIND(kind)                                                                                 \
	{                                                                                          \
		#kind, sizeof(struct wire_##kind), kind##_encode, kind##_decode, make_##kind       \
	}
static const struct kind kinds[] = {KIND(hello),   KIND(welcome), KIND(ack),  KIND(addrs),
				    KIND(refuse),  KIND(connect), KIND(keys), KIND(ports)};

/* Decodes a copy that ends where its memory ends. */
static int decode_tight(const struct kind *k, const uint8_t *in, size_t bytes, void *m)
{
	uint8_t *tight = malloc(bytes ? bytes : 1);
	int rc;

	memcpy(tight, in, bytes);
	rc = k->decode(tight, bytes, m);
	free(tight);
	return rc;
}

Test(wire, every_message_survives_a_round_trip)
{
	for (const struct kind *k = kinds; k < kinds + ARRAY_SIZE(kinds); k++) {
		for (uint64_t seed = 1; seed <= 200; seed++) {
			uint8_t body[WIRE_BODY_MAX];
			union any sent, got;
			size_t bytes;

			memset(&sent, 0, sizeof(sent));
			memset(&got, 0xee, sizeof(got));
			k->make(&sent, seed);
			bytes = k->encode(&sent, body, sizeof(body));
			cr_assert_gt(bytes, 0, "%s", k->name);
			cr_assert_eq(decode_tight(k, body, bytes, &got), 0, "%s", k->name);
			cr_assert_eq(memcmp(&sent, &got, k->bytes), 0, "%s, seed %lu", k->name,
				     (unsigned long)seed);
		}
	}
}

Test(wire, a_body_cut_anywhere_is_refused)
{
	for (const struct kind *k = kinds; k < kinds + ARRAY_SIZE(kinds); k++) {
		uint8_t body[WIRE_BODY_MAX];
		union any sent, got;
		size_t bytes;

		memset(&sent, 0, sizeof(sent));
		k->make(&sent, 7);
		bytes = k->encode(&sent, body, sizeof(body));
		for (size_t cut = 0; cut < bytes; cut++) {
			cr_assert_eq(decode_tight(k, body, cut, &got), -EPROTO, "%s cut to %zu",
				     k->name, cut);
		}
	}
}

Test(wire, a_longer_body_of_a_newer_version_is_accepted)
{
	for (const struct kind *k = kinds; k < kinds + ARRAY_SIZE(kinds); k++) {
		uint8_t body[WIRE_BODY_MAX];
		union any sent, got;
		size_t bytes;

		memset(&sent, 0, sizeof(sent));
		k->make(&sent, 11);
		bytes = k->encode(&sent, body, sizeof(body));
		memset(body + bytes, 0xab, 40);
		cr_assert_eq(decode_tight(k, body, bytes + 40, &got), 0);
		cr_assert_eq(memcmp(&sent, &got, k->bytes), 0, "%s", k->name);
	}
}

Test(wire, a_short_buffer_is_never_overrun_by_an_encoder)
{
	for (const struct kind *k = kinds; k < kinds + ARRAY_SIZE(kinds); k++) {
		uint8_t body[WIRE_BODY_MAX];
		union any sent;
		size_t bytes;

		memset(&sent, 0, sizeof(sent));
		k->make(&sent, 13);
		bytes = k->encode(&sent, body, sizeof(body));
		for (size_t room = 0; room < bytes; room++) {
			uint8_t *tight = malloc(room ? room : 1);

			cr_assert_eq(k->encode(&sent, tight, room), 0, "%s in %zu", k->name, room);
			free(tight);
		}
	}
}

Test(wire, random_bytes_are_decoded_to_sound_values_or_refused)
{
	uint64_t seed = 20240701;
	unsigned accepted = 0;

	for (unsigned round = 0; round < 20000; round++) {
		const struct kind *k = &kinds[round % ARRAY_SIZE(kinds)];
		uint8_t body[2048];
		size_t bytes = draw(&seed) % sizeof(body);
		union any got;

		draw_bytes(body, bytes < 64 ? bytes : 64, &seed);
		memset(body + 64, (int)(draw(&seed) & 0xff), sizeof(body) - 64);
		if (decode_tight(k, body, bytes, &got)) {
			continue;
		}
		accepted++;
		if (k->decode == connect_decode) {
			cr_assert(got.connect.port_count >= 1 &&
				  got.connect.port_count <= CORE_PORTS_MAX);
			cr_assert(got.connect.lane_count >= 1 &&
				  got.connect.lane_count <= CORE_LANES_MAX);
		}
		if (k->decode == addrs_decode) {
			cr_assert(got.addrs.count <= WIRE_ADDRS_MAX);
		}
		if (k->decode == hello_decode) {
			cr_assert_neq(got.hello.mine, 0);
		}
		if (k->decode == keys_decode) {
			cr_assert(got.keys.port_count <= CORE_PORTS_MAX);
		}
		if (k->decode == refuse_decode) {
			cr_assert_lt(strnlen(got.refuse.reason, sizeof(got.refuse.reason)),
				     sizeof(got.refuse.reason));
		}
	}
	cr_assert_gt(accepted, 500, "the fuzz hardly ever got past the first check");
}

Test(wire, counts_out_of_range_are_refused)
{
	struct wire_connect m, got;
	uint8_t body[WIRE_BODY_MAX];
	enum { PORT_COUNT_AT = 8 + 16 + 8 + 8 + 3, LANE_COUNT_AT = PORT_COUNT_AT + 1 };

	memset(&m, 0, sizeof(m));
	make_connect(&m, 3);
	wire_connect_encode(&m, body, sizeof(body));
	body[PORT_COUNT_AT] = 0;
	cr_assert_eq(wire_connect_decode(body, sizeof(body), &got), -EPROTO);
	body[PORT_COUNT_AT] = CORE_PORTS_MAX + 1;
	cr_assert_eq(wire_connect_decode(body, sizeof(body), &got), -EPROTO);
	body[PORT_COUNT_AT] = m.port_count;
	body[LANE_COUNT_AT] = 0;
	cr_assert_eq(wire_connect_decode(body, sizeof(body), &got), -EPROTO);
	body[LANE_COUNT_AT] = CORE_LANES_MAX + 1;
	cr_assert_eq(wire_connect_decode(body, sizeof(body), &got), -EPROTO);
	body[LANE_COUNT_AT] = m.lane_count;
	cr_assert_eq(wire_connect_decode(body, sizeof(body), &got), 0);
	m.lane_count = 0;
	cr_assert_eq(wire_connect_encode(&m, body, sizeof(body)), 0);
	m.lane_count = 1;
	m.port_count = CORE_PORTS_MAX + 1;
	cr_assert_eq(wire_connect_encode(&m, body, sizeof(body)), 0);
}

Test(wire, addresses_that_cannot_be_dialed_are_refused)
{
	struct wire_addrs m, got;
	uint8_t body[WIRE_BODY_MAX];
	enum { COUNT_AT = WIRE_SECRET_BYTES, FIRST_AT = COUNT_AT + 4, PORT_AT = FIRST_AT + 2 };

	memset(&m, 0, sizeof(m));
	m.count = 1;
	m.addr[0] = (struct wire_addr){.family = 4, .port = 7, .bytes = {10, 0, 0, 1}};
	wire_addrs_encode(&m, body, sizeof(body));
	cr_assert_eq(wire_addrs_decode(body, sizeof(body), &got), 0);
	body[FIRST_AT] = 5;
	cr_assert_eq(wire_addrs_decode(body, sizeof(body), &got), -EPROTO, "no such family");
	body[FIRST_AT] = 0;
	cr_assert_eq(wire_addrs_decode(body, sizeof(body), &got), -EPROTO, "no address");
	body[FIRST_AT] = 6;
	body[PORT_AT] = 0;
	cr_assert_eq(wire_addrs_decode(body, sizeof(body), &got), -EPROTO, "no port");
	body[PORT_AT] = 7;
	body[COUNT_AT] = WIRE_ADDRS_MAX + 1;
	cr_assert_eq(wire_addrs_decode(body, sizeof(body), &got), -EPROTO);
	m.count = WIRE_ADDRS_MAX + 1;
	cr_assert_eq(wire_addrs_encode(&m, body, sizeof(body)), 0);
}

Test(wire, a_greeting_without_a_session_is_refused)
{
	struct wire_welcome welcome, welcomed;
	struct wire_hello hello, got;
	uint8_t body[WIRE_BODY_MAX];

	memset(&hello, 0, sizeof(hello));
	memset(&welcome, 0, sizeof(welcome));
	make_hello(&hello, 4);
	make_welcome(&welcome, 4);
	hello.mine = welcome.mine = 0;
	wire_hello_encode(&hello, body, sizeof(body));
	cr_assert_eq(wire_hello_decode(body, sizeof(body), &got), -EPROTO);
	wire_welcome_encode(&welcome, body, sizeof(body));
	cr_assert_eq(wire_welcome_decode(body, sizeof(body), &welcomed), -EPROTO);
}

Test(wire, text_of_a_peer_ends_and_cannot_move_a_cursor)
{
	struct wire_refuse m, got;
	uint8_t body[WIRE_BODY_MAX];
	size_t bytes;

	memset(&m, 0, sizeof(m));
	memset(m.reason, 'x', sizeof(m.reason)); /* no terminator */
	bytes = wire_refuse_encode(&m, body, sizeof(body));
	memset(body + 4, 'y', bytes - 4);
	body[5] = 0x1b;
	body[6] = 0xff;
	cr_assert_eq(wire_refuse_decode(body, bytes, &got), 0);
	cr_assert_eq(strlen(got.reason), sizeof(got.reason) - 1);
	cr_assert_eq(memcmp(got.reason, "y??y", 4), 0);
}

Test(wire, frame_bounds)
{
	struct wire_frame f = {
		.bytes = WIRE_BODY_MAX, .type = WIRE_TYPE_LAST, .target = 1ull << 63};
	struct wire_frame got;
	uint8_t head[WIRE_FRAME_BYTES];

	wire_frame_encode(&f, head);
	cr_assert_eq(wire_frame_decode(head, &got), 0);
	cr_assert(got.bytes == f.bytes && got.type == f.type && got.target == f.target);
	f.bytes++;
	wire_frame_encode(&f, head);
	cr_assert_eq(wire_frame_decode(head, &got), -EPROTO);
	f.bytes = 0;
	f.type = 0;
	wire_frame_encode(&f, head);
	cr_assert_eq(wire_frame_decode(head, &got), -EPROTO);
	f.type = WIRE_TYPE_LAST + 1;
	wire_frame_encode(&f, head);
	cr_assert_eq(wire_frame_decode(head, &got), -EPROTO);
}

Test(wire, layout_is_little_endian_and_fixed)
{
	static const uint8_t want[WIRE_FRAME_BYTES] = {0x34, 0x12, 0, 0, 4,    0,    0,    0,
						       0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22,
						       0x11};
	struct wire_frame f = {.bytes = 0x1234, .type = 4, .target = 0x1122334455667788ull};
	uint8_t head[WIRE_FRAME_BYTES];

	wire_frame_encode(&f, head);
	cr_assert_eq(memcmp(head, want, sizeof(want)), 0);
}

/* ---- the handle ---- */

static struct wire_handle make_handle(void)
{
	struct wire_handle h;
	uint64_t seed = 99;

	memset(&h, 0, sizeof(h));
	h.instance = draw(&seed);
	h.listen_id = draw(&seed);
	draw_bytes(h.secret, sizeof(h.secret), &seed);
	h.addr[0] = (struct wire_addr){.family = 4, .port = 4711, .bytes = {10, 0, 0, 1}};
	h.addr[1] = (struct wire_addr){.family = 6, .port = 4712, .bytes = {0xfd, 1}};
	h.version_min = WIRE_VERSION_MIN;
	h.version_max = WIRE_VERSION_MAX;
	h.port_count = 2;
	return h;
}

static int decode_handle(const uint8_t bytes[128], char why[200])
{
	struct wire_handle got;

	why[0] = '\0';
	return wire_handle_decode(bytes, &got, why, 200);
}

Test(wire, handle_survives_and_leaves_no_stray_byte)
{
	struct wire_handle h = make_handle(), got;
	uint8_t a[128], b[128];
	char why[200];

	memset(a, 0x11, sizeof(a));
	memset(b, 0x22, sizeof(b));
	wire_handle_encode(&h, a);
	wire_handle_encode(&h, b);
	cr_assert_eq(memcmp(a, b, 128), 0);
	cr_assert_eq(memcmp(a, "RAILYARD", 8), 0);
	cr_assert_eq(a[8], 1, "the layout version follows the magic");
	cr_assert_eq(a[127], 0);
	memset(&got, 0, sizeof(got));
	cr_assert_eq(wire_handle_decode(a, &got, why, sizeof(why)), 0);
	cr_assert_eq(memcmp(&h, &got, sizeof(h)), 0);
}

Test(wire, a_foreign_handle_is_named)
{
	struct wire_handle h = make_handle();
	uint8_t bytes[128] = {0};
	sa_family_t family = AF_INET;
	char why[200];

	cr_assert_eq(decode_handle(bytes, why), -EPROTO);
	cr_assert_str_eq(why, "all zero (no listen?)");
	memcpy(bytes, &family, sizeof(family));
	cr_assert_eq(decode_handle(bytes, why), -EPROTO);
	cr_assert_str_eq(why, "a socket address: NCCL's own IB or Socket transport (this rank runs "
			      "without Railyard?)");
	family = AF_INET6;
	memcpy(bytes, &family, sizeof(family));
	cr_assert_eq(decode_handle(bytes, why), -EPROTO);
	cr_assert(strncmp(why, "a socket address", 16) == 0);
	memset(bytes, 0x5a, sizeof(bytes));
	cr_assert_eq(decode_handle(bytes, why), -EPROTO);
	cr_assert_str_eq(why, "unknown plugin");
	h.version_min = 7;
	h.version_max = 9;
	wire_handle_encode(&h, bytes);
	cr_assert_eq(decode_handle(bytes, why), -EPROTONOSUPPORT);
	cr_assert_str_eq(why, "Railyard wire version 7-9, this one speaks 1-1");
	h = make_handle();
	wire_handle_encode(&h, bytes);
	bytes[8] = 2;
	cr_assert_eq(decode_handle(bytes, why), -EPROTONOSUPPORT);
	cr_assert_str_eq(why, "Railyard handle layout 2, this one reads 1");
}

Test(wire, a_damaged_handle_is_refused_with_words)
{
	struct wire_handle h = make_handle(), got;
	uint64_t seed = 5;
	char why[200];

	for (unsigned round = 0; round < 20000; round++) {
		uint8_t bytes[128];

		wire_handle_encode(&h, bytes);
		for (unsigned flips = 0; flips < 4; flips++) {
			bytes[draw(&seed) % 128] ^= (uint8_t)draw(&seed);
		}
		why[0] = '\0';
		if (wire_handle_decode(bytes, &got, why, sizeof(why))) {
			cr_assert_gt(strlen(why), 0);
			continue;
		}
		cr_assert(got.port_count >= 1 && got.port_count <= CORE_PORTS_MAX);
		cr_assert(got.addr[0].family == 4 || got.addr[0].family == 6);
		cr_assert(got.version_min >= 1 && got.version_min <= got.version_max);
	}
}
