/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * wire.c - encoding and decoding of the control messages.
 *
 * Two cursors do all the work: `struct out` never writes past its end, `struct in` never reads
 * past it, and both remember that they would have. So a message's layout is one list of fields, and
 * the check is made once at the end of it. No struct is copied to or from the wire as it lies in
 * memory.
 */
#include "wire.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { HANDLE_BYTES = 128, HANDLE_LAYOUT = 1 };

static const uint8_t handle_magic[8] = {'R', 'A', 'I', 'L', 'Y', 'A', 'R', 'D'};

struct out {
	uint8_t *at;
	size_t left, used;
	bool over;
};

struct in {
	const uint8_t *at;
	size_t left;
	bool over;
};

static void put_bytes(struct out *o, const void *from, size_t bytes)
{
	if (bytes > o->left) {
		o->over = true;
		o->left = 0;
		return;
	}
	memcpy(o->at, from, bytes);
	o->at += bytes;
	o->left -= bytes;
	o->used += bytes;
}

static void put_uint(struct out *o, uint64_t value, size_t bytes)
{
	uint8_t le[8];

	for (size_t i = 0; i < bytes; i++) {
		le[i] = (uint8_t)(value >> (8 * i));
	}
	put_bytes(o, le, bytes);
}

static void put_u8(struct out *o, uint8_t value)
{
	put_uint(o, value, 1);
}

static void put_u16(struct out *o, uint16_t value)
{
	put_uint(o, value, 2);
}

static void put_u32(struct out *o, uint32_t value)
{
	put_uint(o, value, 4);
}

static void put_u64(struct out *o, uint64_t value)
{
	put_uint(o, value, 8);
}

/* The text, then zeros up to `bytes`: nothing that lay behind the terminator leaves the process. */
static void put_text(struct out *o, const char *text, size_t bytes)
{
	size_t used = strnlen(text, bytes - 1);

	put_bytes(o, text, used);
	for (size_t i = used; i < bytes; i++) {
		put_u8(o, 0);
	}
}

static size_t out_done(const struct out *o)
{
	return o->over ? 0 : o->used;
}

static void get_bytes(struct in *i, void *to, size_t bytes)
{
	if (bytes > i->left) {
		i->over = true;
		i->left = 0;
		memset(to, 0, bytes);
		return;
	}
	memcpy(to, i->at, bytes);
	i->at += bytes;
	i->left -= bytes;
}

static uint64_t get_uint(struct in *i, size_t bytes)
{
	uint8_t le[8];
	uint64_t value = 0;

	get_bytes(i, le, bytes);
	for (size_t k = 0; k < bytes; k++) {
		value |= (uint64_t)le[k] << (8 * k);
	}
	return value;
}

static uint8_t get_u8(struct in *i)
{
	return (uint8_t)get_uint(i, 1);
}

static uint16_t get_u16(struct in *i)
{
	return (uint16_t)get_uint(i, 2);
}

static uint32_t get_u32(struct in *i)
{
	return (uint32_t)get_uint(i, 4);
}

static uint64_t get_u64(struct in *i)
{
	return get_uint(i, 8);
}

/* Peer's text goes to log lines: terminated, and what could move a terminal's cursor is masked. */
static void get_text(struct in *i, char *text, size_t bytes)
{
	get_bytes(i, text, bytes);
	text[bytes - 1] = '\0';
	for (char *c = text; *c; c++) {
		if (*c < ' ' || *c > '~') {
			*c = '?';
		}
	}
	memset(text + strlen(text), 0, bytes - strlen(text));
}

static int in_done(const struct in *i)
{
	return i->over ? -EPROTO : 0;
}

static bool range_is_valid(uint16_t min, uint16_t max)
{
	return min > 0 && min <= max;
}

static void put_addr(struct out *o, const struct wire_addr *a)
{
	put_u8(o, a->family);
	put_u8(o, 0);
	put_u16(o, a->port);
	put_bytes(o, a->bytes, sizeof(a->bytes));
}

static bool get_addr(struct in *i, struct wire_addr *a)
{
	a->family = get_u8(i);
	get_u8(i);
	a->port = get_u16(i);
	get_bytes(i, a->bytes, sizeof(a->bytes));
	return a->family == 0 || ((a->family == 4 || a->family == 6) && a->port != 0);
}

void wire_handle_encode(const struct wire_handle *h, uint8_t out[128])
{
	struct out o = {.at = out, .left = HANDLE_BYTES};

	memset(out, 0, HANDLE_BYTES);
	put_bytes(&o, handle_magic, sizeof(handle_magic));
	put_u16(&o, HANDLE_LAYOUT);
	put_u16(&o, h->version_min);
	put_u16(&o, h->version_max);
	put_u8(&o, h->port_count);
	put_u8(&o, 0);
	put_u64(&o, h->instance);
	put_u64(&o, h->listen_id);
	put_bytes(&o, h->secret, sizeof(h->secret));
	for (unsigned i = 0; i < WIRE_HANDLE_ADDRS; i++) {
		put_addr(&o, &h->addr[i]);
	}
}

/* Names the transport that most likely wrote a handle without our magic. */
static int handle_foreign(const uint8_t in[128], char *why, size_t why_bytes)
{
	static const uint8_t zero[HANDLE_BYTES];
	uint16_t family;

	memcpy(&family, in, sizeof(family)); /* a sockaddr begins with it, in host order */
	if (memcmp(in, zero, HANDLE_BYTES) == 0) {
		snprintf(why, why_bytes, "all zero (no listen?)");
	} else if (family == AF_INET || family == AF_INET6) {
		snprintf(why, why_bytes, "a socket address: NCCL's own IB or Socket transport "
					 "(this rank runs without Railyard?)");
	} else {
		snprintf(why, why_bytes, "unknown plugin");
	}
	return -EPROTO;
}

static int handle_versions(uint16_t layout, const struct wire_handle *h, char *why,
			   size_t why_bytes)
{
	if (h->version_min > WIRE_VERSION_MAX || h->version_max < WIRE_VERSION_MIN) {
		snprintf(why, why_bytes, "Railyard wire version %u-%u, this one speaks %d-%d",
			 h->version_min, h->version_max, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
		return -EPROTONOSUPPORT;
	}
	if (layout != HANDLE_LAYOUT) {
		snprintf(why, why_bytes, "Railyard handle layout %u, this one reads %d", layout,
			 HANDLE_LAYOUT);
		return -EPROTONOSUPPORT;
	}
	return 0;
}

int wire_handle_decode(const uint8_t in[128], struct wire_handle *h, char *why, size_t why_bytes)
{
	struct in i = {.at = in, .left = HANDLE_BYTES};
	struct wire_handle got;
	uint8_t magic[sizeof(handle_magic)];
	uint16_t layout;
	bool valid;
	int rc;

	get_bytes(&i, magic, sizeof(magic));
	if (memcmp(magic, handle_magic, sizeof(magic)) != 0) {
		return handle_foreign(in, why, why_bytes);
	}
	memset(&got, 0, sizeof(got));
	layout = get_u16(&i);
	got.version_min = get_u16(&i);
	got.version_max = get_u16(&i);
	rc = handle_versions(layout, &got, why, why_bytes);
	if (rc) {
		return rc;
	}
	got.port_count = get_u8(&i);
	get_u8(&i);
	got.instance = get_u64(&i);
	got.listen_id = get_u64(&i);
	get_bytes(&i, got.secret, sizeof(got.secret));
	valid = range_is_valid(got.version_min, got.version_max) && got.port_count >= 1 &&
		got.port_count <= CORE_PORTS_MAX;
	for (unsigned a = 0; a < WIRE_HANDLE_ADDRS; a++) {
		valid &= get_addr(&i, &got.addr[a]);
	}
	if (!valid || got.addr[0].family == 0) { /* NCCL carried it, so this is a bug somewhere */
		snprintf(why, why_bytes, "Railyard's, but damaged on its way here");
		return -EPROTO;
	}
	*h = got;
	return 0;
}

void wire_frame_encode(const struct wire_frame *f, uint8_t out[WIRE_FRAME_BYTES])
{
	struct out o = {.at = out, .left = WIRE_FRAME_BYTES};

	put_u32(&o, f->bytes);
	put_u16(&o, f->type);
	put_u16(&o, 0);
	put_u64(&o, f->target);
}

int wire_frame_decode(const uint8_t in[WIRE_FRAME_BYTES], struct wire_frame *f)
{
	struct in i = {.at = in, .left = WIRE_FRAME_BYTES};

	f->bytes = get_u32(&i);
	f->type = get_u16(&i);
	get_u16(&i);
	f->target = get_u64(&i);
	if (f->bytes > WIRE_BODY_MAX || f->type < WIRE_HELLO || f->type > WIRE_TYPE_LAST) {
		return -EPROTO;
	}
	return 0;
}

size_t wire_hello_encode(const struct wire_hello *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	put_u64(&o, m->instance);
	put_bytes(&o, m->secret, sizeof(m->secret));
	put_u16(&o, m->version_min);
	put_u16(&o, m->version_max);
	put_u32(&o, m->pid);
	put_text(&o, m->host, sizeof(m->host));
	put_u64(&o, m->mine);
	put_u64(&o, m->yours);
	put_u64(&o, m->received);
	return out_done(&o);
}

int wire_hello_decode(const uint8_t *in, size_t bytes, struct wire_hello *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	m->instance = get_u64(&i);
	get_bytes(&i, m->secret, sizeof(m->secret));
	m->version_min = get_u16(&i);
	m->version_max = get_u16(&i);
	m->pid = get_u32(&i);
	get_text(&i, m->host, sizeof(m->host));
	m->mine = get_u64(&i);
	m->yours = get_u64(&i);
	m->received = get_u64(&i);
	return range_is_valid(m->version_min, m->version_max) && m->mine != 0 ? in_done(&i)
									      : -EPROTO;
}

size_t wire_welcome_encode(const struct wire_welcome *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	put_u64(&o, m->instance);
	put_u16(&o, m->version);
	put_u16(&o, 0);
	put_u32(&o, m->pid);
	put_text(&o, m->host, sizeof(m->host));
	put_u64(&o, m->mine);
	put_u64(&o, m->yours);
	put_u64(&o, m->received);
	put_u64(&o, m->from);
	put_bytes(&o, m->secret, sizeof(m->secret));
	return out_done(&o);
}

int wire_welcome_decode(const uint8_t *in, size_t bytes, struct wire_welcome *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	m->instance = get_u64(&i);
	m->version = get_u16(&i);
	get_u16(&i);
	m->pid = get_u32(&i);
	get_text(&i, m->host, sizeof(m->host));
	m->mine = get_u64(&i);
	m->yours = get_u64(&i);
	m->received = get_u64(&i);
	m->from = get_u64(&i);
	get_bytes(&i, m->secret, sizeof(m->secret));
	return m->version > 0 && m->mine != 0 ? in_done(&i) : -EPROTO;
}

size_t wire_ack_encode(const struct wire_ack *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	put_u64(&o, m->received);
	put_u8(&o, m->ask);
	put_uint(&o, 0, 3);
	return out_done(&o);
}

int wire_ack_decode(const uint8_t *in, size_t bytes, struct wire_ack *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	m->received = get_u64(&i);
	m->ask = get_u8(&i);
	get_uint(&i, 3);
	return in_done(&i);
}

size_t wire_addrs_encode(const struct wire_addrs *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	if (m->count > WIRE_ADDRS_MAX) {
		return 0;
	}
	put_bytes(&o, m->secret, sizeof(m->secret));
	put_u8(&o, m->count);
	put_uint(&o, 0, 3);
	for (unsigned a = 0; a < m->count; a++) {
		put_addr(&o, &m->addr[a]);
	}
	return out_done(&o);
}

int wire_addrs_decode(const uint8_t *in, size_t bytes, struct wire_addrs *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	get_bytes(&i, m->secret, sizeof(m->secret));
	m->count = get_u8(&i);
	get_uint(&i, 3);
	if (m->count > WIRE_ADDRS_MAX) {
		return -EPROTO;
	}
	for (unsigned a = 0; a < m->count; a++) {
		if (!get_addr(&i, &m->addr[a]) || m->addr[a].family == 0) {
			return -EPROTO;
		}
	}
	return in_done(&i);
}

size_t wire_refuse_encode(const struct wire_refuse *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	put_u32(&o, m->code);
	put_text(&o, m->reason, sizeof(m->reason));
	return out_done(&o);
}

int wire_refuse_decode(const uint8_t *in, size_t bytes, struct wire_refuse *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	m->code = get_u32(&i);
	get_text(&i, m->reason, sizeof(m->reason));
	return in_done(&i);
}

static bool connect_counts_are_valid(const struct wire_connect *m)
{
	return m->port_count >= 1 && m->standby <= 1 &&
	       m->port_count + m->standby <= CORE_PORTS_MAX && m->lane_count >= 1 &&
	       m->lane_count + m->standby <= CORE_LANES_MAX;
}

static const struct wire_port *ports_end(const struct wire_connect *m)
{
	return m->port + m->port_count + m->standby;
}

size_t wire_connect_encode(const struct wire_connect *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	if (!connect_counts_are_valid(m)) {
		return 0;
	}
	put_u64(&o, m->comm);
	put_bytes(&o, m->secret, sizeof(m->secret));
	put_u64(&o, m->ring_addr);
	put_u64(&o, m->scratch_addr);
	put_u8(&o, m->traffic_class);
	put_u8(&o, m->service_level);
	put_u8(&o, m->adaptive_routing);
	put_u8(&o, m->port_count);
	put_u8(&o, m->lane_count);
	put_u8(&o, m->standby);
	put_u16(&o, m->recv_wrs);
	for (const struct wire_port *p = m->port; p < ports_end(m); p++) {
		put_text(&o, p->name, sizeof(p->name));
		put_bytes(&o, p->gid, sizeof(p->gid));
		put_u16(&o, p->lid);
		put_u8(&o, p->link_layer);
		put_u8(&o, p->mtu);
		put_u32(&o, p->mbps);
		put_u32(&o, p->ring_rkey);
	}
	for (const struct wire_lane *l = m->lane; l < m->lane + m->lane_count; l++) {
		put_u32(&o, l->qpn);
		put_u32(&o, l->psn);
		put_u32(&o, l->generation);
		put_u8(&o, l->port);
		put_u8(&o, l->of);
		put_u16(&o, 0);
	}
	return out_done(&o);
}

int wire_connect_decode(const uint8_t *in, size_t bytes, struct wire_connect *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	m->comm = get_u64(&i);
	get_bytes(&i, m->secret, sizeof(m->secret));
	m->ring_addr = get_u64(&i);
	m->scratch_addr = get_u64(&i);
	m->traffic_class = get_u8(&i);
	m->service_level = get_u8(&i);
	m->adaptive_routing = get_u8(&i);
	m->port_count = get_u8(&i);
	m->lane_count = get_u8(&i);
	m->standby = get_u8(&i);
	m->recv_wrs = get_u16(&i);
	if (!connect_counts_are_valid(m)) {
		return -EPROTO;
	}
	for (struct wire_port *p = m->port; p < ports_end(m); p++) {
		get_text(&i, p->name, sizeof(p->name));
		get_bytes(&i, p->gid, sizeof(p->gid));
		p->lid = get_u16(&i);
		p->link_layer = get_u8(&i);
		p->mtu = get_u8(&i);
		p->mbps = get_u32(&i);
		p->ring_rkey = get_u32(&i);
	}
	for (struct wire_lane *l = m->lane; l < m->lane + m->lane_count; l++) {
		l->qpn = get_u32(&i);
		l->psn = get_u32(&i);
		l->generation = get_u32(&i);
		l->port = get_u8(&i);
		l->of = get_u8(&i);
		get_u16(&i);
		if (l->port >= m->port_count || l->of >= CORE_LANES_MAX) {
			return -EPROTO;
		}
	}
	return in_done(&i);
}

static bool has_address(const struct core_letter *m)
{
	return m->type == LETTER_OFFER || m->type == LETTER_ACCEPT;
}

static void put_address(struct out *o, const struct wire_lane_address *a)
{
	put_u32(o, a->qpn);
	put_u32(o, a->psn);
	put_u32(o, a->ring_rkey);
	put_bytes(o, a->gid, sizeof(a->gid));
	put_u16(o, a->lid);
	put_u8(o, a->link_layer);
	put_u8(o, a->mtu);
}

static void get_address(struct in *i, struct wire_lane_address *a)
{
	a->qpn = get_u32(i);
	a->psn = get_u32(i);
	a->ring_rkey = get_u32(i);
	get_bytes(i, a->gid, sizeof(a->gid));
	a->lid = get_u16(i);
	a->link_layer = get_u8(i);
	a->mtu = get_u8(i);
}

size_t wire_letter_encode(const struct wire_letter *w, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};
	const struct core_letter *m = &w->letter;

	if (m->n > CORE_WR_RING) {
		return 0;
	}
	put_u8(&o, m->type);
	put_u8(&o, m->lane);
	put_u8(&o, m->cause);
	put_u8(&o, 0);
	put_u32(&o, m->generation);
	put_u16(&o, m->posted);
	put_u16(&o, m->n);
	put_u64(&o, m->acked);
	for (unsigned k = 0; k < m->n && m->type == LETTER_ASK; k++) {
		put_u64(&o, m->item[k].seq);
		put_u16(&o, m->item[k].index);
		put_u16(&o, m->item[k].count);
	}
	if (m->type == LETTER_ANSWER) {
		put_bytes(&o, m->answer, m->n);
	}
	if (has_address(m)) {
		put_address(&o, &w->address);
	}
	return out_done(&o);
}

int wire_letter_decode(const uint8_t *in, size_t bytes, struct wire_letter *w)
{
	struct in i = {.at = in, .left = bytes};
	struct core_letter *m = &w->letter;

	memset(w, 0, sizeof(*w));
	m->type = get_u8(&i);
	m->lane = get_u8(&i);
	m->cause = get_u8(&i);
	get_u8(&i);
	m->generation = get_u32(&i);
	m->posted = get_u16(&i);
	m->n = get_u16(&i);
	m->acked = get_u64(&i);
	if (m->n > CORE_WR_RING || m->lane >= CORE_LANES_MAX || m->cause >= CAUSE_COUNT) {
		return -EPROTO;
	}
	for (unsigned k = 0; k < m->n && m->type == LETTER_ASK; k++) {
		m->item[k].seq = get_u64(&i);
		m->item[k].index = get_u16(&i);
		m->item[k].count = get_u16(&i);
	}
	if (m->type == LETTER_ANSWER) {
		get_bytes(&i, m->answer, m->n);
	}
	if (has_address(m)) {
		get_address(&i, &w->address);
	}
	return in_done(&i);
}

size_t wire_keys_encode(const struct wire_keys *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	if (m->port_count > CORE_PORTS_MAX) {
		return 0;
	}
	put_u32(&o, m->mr_id);
	put_u8(&o, m->port_count);
	put_uint(&o, 0, 3);
	for (unsigned p = 0; p < m->port_count; p++) {
		put_u32(&o, m->rkey[p]);
	}
	return out_done(&o);
}

int wire_keys_decode(const uint8_t *in, size_t bytes, struct wire_keys *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	m->mr_id = get_u32(&i);
	m->port_count = get_u8(&i);
	get_uint(&i, 3);
	if (m->port_count > CORE_PORTS_MAX) {
		return -EPROTO;
	}
	for (unsigned p = 0; p < m->port_count; p++) {
		m->rkey[p] = get_u32(&i);
	}
	return in_done(&i);
}

size_t wire_ports_encode(const struct wire_ports *m, uint8_t *out, size_t bytes)
{
	struct out o = {.at = out, .left = bytes};

	if (m->port_count < 1 || m->port_count > CORE_PORTS_MAX) {
		return 0;
	}
	put_u8(&o, m->port_count);
	put_uint(&o, 0, 3);
	for (unsigned p = 0; p < m->port_count; p++) {
		put_u8(&o, m->down[p]);
		put_u8(&o, m->pressure[p]);
	}
	return out_done(&o);
}

int wire_ports_decode(const uint8_t *in, size_t bytes, struct wire_ports *m)
{
	struct in i = {.at = in, .left = bytes};

	memset(m, 0, sizeof(*m));
	m->port_count = get_u8(&i);
	get_uint(&i, 3);
	if (m->port_count < 1 || m->port_count > CORE_PORTS_MAX) {
		return -EPROTO;
	}
	for (unsigned p = 0; p < m->port_count; p++) {
		m->down[p] = get_u8(&i);
		m->pressure[p] = get_u8(&i);
	}
	return in_done(&i);
}
