/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight_format.c - images, seals and check words of flight logs.
 *
 * Hashed are fields, never structs with holes: what is in a hole may differ between two builds.
 * Images are hashed whole: the core zeroes its memory and writes fields.
 */
#include "flight_format.h"

#include <errno.h>
#include <string.h>

uint64_t flight_hash(uint64_t h, const void *at, size_t bytes)
{
	const uint8_t *p = at;
	uint64_t word = 0;

	for (; bytes >= sizeof(word); bytes -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		h = flight_mix(h, word);
	}
	word = bytes;
	memcpy(&word, p, bytes);
	return flight_mix(h, word);
}

uint32_t flight_layout(void)
{
	static const uint16_t sizes[] = {
		sizeof(struct core_config), offsetof(struct core_config, signal_epoch),
		sizeof(struct core_msg), sizeof(struct core_lane), sizeof(struct core_unit),
		offsetof(struct core_lane, unit), offsetof(struct core_send, cfg),
		offsetof(struct core_send, lane), offsetof(struct core_send, again),
		sizeof(struct core_recv_slot), sizeof(struct core_recv_lane),
		offsetof(struct core_recv, cfg), offsetof(struct core_recv, lane),
		sizeof(struct core_recover), sizeof(struct core_recover_lane),
		offsetof(struct core_recover, lane), sizeof(struct flight_shadow),
		sizeof(struct core_cts), sizeof(struct core_sizes), CORE_SLOTS, CORE_LANES_MAX,
		CORE_WR_RING, FLIGHT_FNS,
	};

	return (uint32_t)flight_hash(FLIGHT_VERSION, sizes, sizeof(sizes));
}

uint64_t flight_head_hash(const struct flight_head *head)
{
	return flight_hash(FLIGHT_MAGIC, head, offsetof(struct flight_head, hash));
}

uint64_t flight_half_hash(const struct flight_half *half, uint64_t number)
{
	return flight_mix(flight_mix(flight_mix(FLIGHT_MAGIC, number), half->start_ns),
			  half->image_hash);
}

/* --- images ------------------------------------------------------------------------------- */

/* Lanes come last in each struct, so those not in use are left out. */
static size_t half_bytes(uint8_t kind, uint32_t lanes)
{
	return kind == FLIGHT_SEND ?
		       offsetof(struct core_send, lane) + lanes * sizeof(struct core_lane) :
		       offsetof(struct core_recv, lane) + lanes * sizeof(struct core_recv_lane);
}

static size_t recover_bytes(uint32_t lanes)
{
	return offsetof(struct core_recover, lane) + lanes * sizeof(struct core_recover_lane);
}

uint32_t flight_image_bytes(uint8_t kind, uint32_t lanes)
{
	return (uint32_t)(half_bytes(kind, lanes) + recover_bytes(lanes) +
			  sizeof(struct flight_shadow));
}

static void pointer_blank(uint8_t *at)
{
	static const uintptr_t none, one = 1;

	memcpy(at, memcmp(at, &none, sizeof(none)) == 0 ? &none : &one, sizeof(none));
}

static void config_blank(uint8_t *cfg)
{
	for (size_t i = 0; i < CORE_PORTS_MAX; i++) {
		pointer_blank(cfg + offsetof(struct core_config, local) + i * sizeof(void *));
		pointer_blank(cfg + offsetof(struct core_config, remote) + i * sizeof(void *));
		pointer_blank(cfg + offsetof(struct core_config, load) + i * sizeof(void *));
	}
	pointer_blank(cfg + offsetof(struct core_config, signal_epoch));
}

void flight_image_pack(const struct flight_core *c, void *to)
{
	size_t half = half_bytes(c->kind, c->lanes), recover = recover_bytes(c->lanes);
	uint8_t *at = to;

	if (c->kind == FLIGHT_SEND) {
		memcpy(at, c->send, half);
		pointer_blank(at + offsetof(struct core_send, ring));
		config_blank(at + offsetof(struct core_send, cfg));
	} else {
		memcpy(at, c->recv, half);
		pointer_blank(at + offsetof(struct core_recv, staging));
		pointer_blank(at + offsetof(struct core_recv, sizes));
		config_blank(at + offsetof(struct core_recv, cfg));
	}
	at += half;
	memcpy(at, c->recover, recover);
	pointer_blank(at + offsetof(struct core_recover, send));
	pointer_blank(at + offsetof(struct core_recover, recv));
	pointer_blank(at + offsetof(struct core_recover, cfg));
	memcpy(at + recover, c->shadow, sizeof(*c->shadow));
}

void flight_config_divert(struct core_config *cfg, struct flight_shadow *shadow)
{
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		cfg->local[i] = cfg->local[i] != NULL ? &shadow->local[i] : NULL;
		cfg->remote[i] = cfg->remote[i] != NULL ? &shadow->remote[i] : NULL;
		cfg->load[i] = cfg->load[i] != NULL ? &shadow->load[i] : NULL;
	}
	cfg->signal_epoch = &shadow->epoch;
}

/* An image is hashed, so this is about logs of a core that has written over itself. */
static bool config_is_sound(const struct core_config *cfg, uint32_t lanes)
{
	if (cfg->lane_count < 1 || cfg->lane_count > lanes ||
	    cfg->standby_count != lanes - cfg->lane_count || cfg->path_count < 1 ||
	    cfg->path_count > cfg->lane_count || cfg->port_count < 1 ||
	    cfg->port_count > CORE_PORTS_MAX) {
		return false;
	}
	for (uint32_t i = 0; i < lanes; i++) {
		if (cfg->lane[i].port >= CORE_PORTS_MAX || cfg->lane[i].remote >= CORE_PORTS_MAX ||
		    cfg->local[cfg->lane[i].port] == NULL ||
		    cfg->remote[cfg->lane[i].remote] == NULL) {
			return false;
		}
	}
	for (uint32_t i = 0; i < cfg->port_count; i++) {
		if (cfg->local[i] == NULL) {
			return false;
		}
	}
	return true;
}

int flight_image_unpack(const struct flight_core *c, const void *from, struct core_cts *staging)
{
	size_t half = half_bytes(c->kind, c->lanes), recover = recover_bytes(c->lanes);
	const uint8_t *at = from;
	struct core_config *cfg;

	memcpy(c->recover, at + half, recover);
	memcpy(c->shadow, at + half + recover, sizeof(*c->shadow));
	if (c->kind == FLIGHT_SEND) {
		memcpy(c->send, at, half);
		c->send->ring = c->shadow->ring;
		cfg = &c->send->cfg;
	} else {
		memcpy(c->recv, at, half);
		c->recv->staging = staging;
		c->recv->sizes = c->shadow->sizes;
		cfg = &c->recv->cfg;
	}
	c->recover->send = c->kind == FLIGHT_SEND ? c->send : NULL;
	c->recover->recv = c->kind == FLIGHT_SEND ? NULL : c->recv;
	c->recover->cfg = cfg;
	flight_config_divert(cfg, c->shadow);
	return config_is_sound(cfg, c->lanes) && c->recover->lane_count == c->lanes ? 0 : -EPROTO;
}

/* --- records ------------------------------------------------------------------------------ */

uint32_t flight_payload_bytes(const struct flight_record *r)
{
	switch (r->fn & ~FLIGHT_NOW_0) {
	case FLIGHT_PORT:
		return sizeof(struct core_port);
	case FLIGHT_LOAD:
		return sizeof(struct core_load);
	case FLIGHT_RING:
		return sizeof(struct core_cts);
	case FLIGHT_SIZES:
		return sizeof(struct core_sizes);
	case FLIGHT_POST:
		return r->a * (uint32_t)sizeof(struct core_recv_buffer);
	case FLIGHT_LETTER:
		return r->a;
	default:
		return 0;
	}
}

uint16_t flight_seal(const struct flight_record *r, const void *payload, uint64_t number,
		     uint64_t place, bool open)
{
	uint64_t h = flight_mix(number << 32 ^ place, open);

	h = flight_hash(h, r, offsetof(struct flight_record, seal));
	if (flight_payload_bytes(r) != 0) {
		h = flight_hash(h, payload,
				flight_record_bytes(flight_payload_bytes(r)) - sizeof(*r));
	}
	return (uint16_t)(h >> 48);
}

uint32_t flight_letter_pack(const struct core_letter *in, uint8_t to[FLIGHT_LETTER_MAX])
{
	uint32_t n = in->n < CORE_WR_RING ? in->n : CORE_WR_RING;
	uint32_t bytes = sizeof(struct flight_letter);
	struct flight_letter letter = { .type = in->type, .lane = in->lane, .cause = in->cause,
					.generation = in->generation, .posted = in->posted,
					.n = in->n, .acked = in->acked };

	memcpy(to, &letter, sizeof(letter));
	for (uint32_t i = 0; i < n && in->type == LETTER_ASK; i++) {
		struct flight_item item = { .seq = in->item[i].seq, .index = in->item[i].index,
					    .count = in->item[i].count };

		memcpy(to + bytes, &item, sizeof(item));
		bytes += (uint32_t)sizeof(item);
	}
	if (in->type == LETTER_ANSWER) {
		memcpy(to + bytes, in->answer, n);
		bytes += n;
	}
	return bytes;
}

int flight_letter_unpack(const uint8_t *from, uint32_t bytes, struct core_letter *out)
{
	struct flight_letter letter;
	uint32_t n, each;

	memset(out, 0, sizeof(*out));
	if (bytes < sizeof(letter)) {
		return -EPROTO;
	}
	memcpy(&letter, from, sizeof(letter));
	out->type = letter.type;
	out->lane = letter.lane;
	out->cause = letter.cause;
	out->generation = letter.generation;
	out->posted = letter.posted;
	out->n = letter.n;
	out->acked = letter.acked;
	n = letter.n < CORE_WR_RING ? letter.n : CORE_WR_RING;
	each = letter.type == LETTER_ASK ? (uint32_t)sizeof(struct flight_item) :
	       letter.type == LETTER_ANSWER;
	if (bytes != sizeof(letter) + n * each) {
		return -EPROTO;
	}
	from += sizeof(letter);
	for (uint32_t i = 0; i < n && letter.type == LETTER_ASK; i++) {
		struct flight_item item;

		memcpy(&item, from + i * sizeof(item), sizeof(item));
		out->item[i] = (struct core_item){ item.seq, item.index, item.count };
	}
	if (letter.type == LETTER_ANSWER) {
		memcpy(out->answer, from, n);
	}
	return 0;
}

/* --- check words -------------------------------------------------------------------------- */

uint64_t flight_check_post(uint64_t h, const struct core_post *p)
{
	h = flight_mix(h, p->lane | (uint64_t)p->slot << 8 | (uint64_t)p->unit << 16 |
				  (uint64_t)p->group_n << 24 | (uint64_t)p->imm << 32);
	h = flight_mix(h, (uint64_t)p->split_imm << 1 | p->sizes);
	if (p->group_n == 0) {
		h = flight_mix(flight_mix(h, p->addr), p->mr_id);
		h = flight_mix(h, p->offset | (uint64_t)p->bytes << 32);
	}
	return h;
}

uint64_t flight_check_announce(uint64_t h, const struct core_announce *a,
			       const struct core_cts *staging)
{
	h = flight_mix(h, a->lane | (uint64_t)a->first << 8 | (uint64_t)a->n << 32 |
				  (uint64_t)a->signaled << 40 | (uint64_t)a->credit << 41 |
				  (uint64_t)a->again << 42);
	for (uint32_t i = 0; i < a->n && !a->again && staging != NULL; i++) {
		uint32_t place = a->credit ? a->first : (a->first + i) % CORE_SLOTS;

		h = flight_hash(h, &staging[place], sizeof(staging[place]));
	}
	return h;
}

uint64_t flight_check_letter(uint64_t h, const struct core_letter *letter)
{
	uint8_t packed[FLIGHT_LETTER_MAX];

	return flight_hash(h, packed, flight_letter_pack(letter, packed));
}

uint64_t flight_check_action(uint64_t h, const struct core_action *a,
			     const struct core_letter *letter)
{
	h = flight_mix(h, a->type | (uint64_t)a->lane << 8 | (uint64_t)a->generation << 32);
	switch (a->type) {
	case ACT_LETTER:
		return flight_check_letter(h, letter);
	case ACT_PROBE:
		return flight_check_post(h, &a->post);
	case ACT_ANNOUNCE:
		return flight_check_announce(h, &a->announce, NULL);
	default:
		return h;
	}
}

static uint64_t check_send(uint64_t h, const struct core_send *c, uint32_t l)
{
	const struct core_lane *lane = &c->lane[l];

	h = flight_mix(flight_mix(h, c->head), c->active);
	h = flight_mix(flight_mix(h, c->queued_bytes), c->inflight_bytes);
	h = flight_mix(h, c->q_head | (uint64_t)c->q_tail << 32);
	h = flight_mix(h, lane->posted | (uint64_t)lane->tail << 16 | (uint64_t)lane->credit << 32 |
				  (uint64_t)lane->sq_used << 48);
	return flight_mix(h, lane->cost_ns | (uint64_t)lane->window_bytes << 32);
}

static uint64_t check_recv(uint64_t h, const struct core_recv *c, uint32_t l)
{
	const struct core_recv_lane *lane = &c->lane[l];

	h = flight_mix(flight_mix(h, c->next), c->active);
	h = flight_mix(flight_mix(h, c->guard_from), c->guard_to);
	h = flight_mix(flight_mix(h, c->guard_lanes), c->guard_old);
	h = flight_mix(flight_mix(h, c->again_from), c->again_to);
	return flight_mix(h, lane->posted | (uint64_t)lane->taken << 16 |
				     (uint64_t)lane->sq_used << 32 |
				     (uint64_t)lane->announced << 48);
}

uint16_t flight_check_end(uint64_t h, const struct flight_core *c, uint32_t l)
{
	const struct core_recover_lane *lane = &c->recover->lane[l];

	h = c->kind == FLIGHT_SEND ? check_send(h, c->send, l) : check_recv(h, c->recv, l);
	h = flight_mix(flight_mix(h, c->recover->todo), c->recover->outage_ns);
	h = flight_mix(h, lane->state | (uint64_t)lane->todo << 8 |
				  (uint64_t)lane->generation << 32);
	return (uint16_t)(flight_mix(h, lane->since_ns) >> 48);
}
