/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * traffic.c - groups of messages with random sizes, tags and order of calls; every byte and every
 * reported size is checked, and that nothing beside the buffers is written.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	CANARY_BYTES = 64,
	CANARY = 0xc5,
	TAG_FIRST = 1000
};

struct group {
	bool used;
	unsigned number;
	int n, sent; /* members; sends taken */
	int order[RIG_GROUP_MAX], tag[RIG_GROUP_MAX];
	size_t send_bytes[RIG_GROUP_MAX], recv_bytes[RIG_GROUP_MAX];
	void *send_request[RIG_GROUP_MAX], *recv_request;
};

/* Group g of the traffic is in group[g % window]. */
struct run {
	const struct traffic *t;
	struct pair *pair;
	size_t place, arena; /* bytes of a member, of all */
	uint8_t *send, *recv;
	void *send_mr, *recv_mr;
	struct group *group;
	unsigned posted, sending, open; /* groups: irecvs taken, first not fully sent, not done */
	uint64_t random;
};

static unsigned pick(struct run *r, unsigned n)
{
	return (unsigned)(rig_random(&r->random) % n);
}

static size_t size_pick(struct run *r)
{
	static const size_t edges[] = {0,     1,     127,   128,   129,	  4096,
				       16383, 16384, 16385, 65537, 131072, (1 << 20) + 1};
	size_t size;

	if (r->t->fixed)
		return r->t->bytes;
	if (pick(r, 4) != 0)
		size = edges[pick(r, sizeof(edges) / sizeof(edges[0]))];
	else
		size = (size_t)rig_random(&r->random);
	return size % (r->t->bytes_max + 1);
}

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

static uint8_t *place(struct run *r, uint8_t *arena, const struct group *g, int member)
{
	size_t index = (size_t)(g - r->group) * RIG_GROUP_MAX + (size_t)member;

	return arena + index * r->place + CANARY_BYTES;
}

static uint8_t pattern(const struct group *g, int member, size_t i)
{
	return (uint8_t)(g->number * 37 + (unsigned)member * 11 + i * 7 + (i >> 8) + (i >> 16));
}

static void group_make(struct run *r, struct group *g, unsigned number)
{
	*g = (struct group){.used = true, .number = number, .n = r->t->members};
	if (r->t->random_members)
		g->n = 1 + (int)pick(r, (unsigned)r->t->members);
	for (int i = 0; i < g->n; i++) {
		uint8_t *to = place(r, r->recv, g, i), *from = place(r, r->send, g, i);
		int at = r->t->equal_tags ? i : (int)pick(r, (unsigned)i + 1);

		g->tag[i] = r->t->equal_tags ? TAG_FIRST : TAG_FIRST + i;
		g->recv_bytes[i] = g->send_bytes[i] = size_pick(r);
		if (r->t->clips && pick(r, 3) == 0)
			g->send_bytes[i] = size_pick(r);
		g->order[i] = g->order[at]; /* a random order of the sends */
		g->order[at] = i;
		memset(to - CANARY_BYTES, CANARY, r->place);
		for (size_t k = 0; k < g->send_bytes[i]; k++)
			from[k] = pattern(g, i, k);
	}
}

static bool group_post(struct run *r)
{
	struct group *g = &r->group[r->posted % r->t->window];
	void *data[RIG_GROUP_MAX], *mrs[RIG_GROUP_MAX];

	if (r->posted == r->t->groups || r->posted - r->open == r->t->window)
		return false;
	if (!g->used)
		group_make(r, g, r->posted);
	for (int i = 0; i < g->n; i++) {
		data[i] = place(r, r->recv, g, i);
		mrs[i] = r->recv_mr;
	}
	CHECK_INT(rig_abi->irecv(r->pair->recv, g->n, data, g->recv_bytes, g->tag, mrs,
				 &g->recv_request),
		  RY_NET_SUCCESS);
	if (!g->recv_request)
		return false;
	r->posted++;
	return true;
}

static bool group_send(struct run *r)
{
	struct group *g = &r->group[r->sending % r->t->window];
	int i;

	if (r->sending == r->posted)
		return false;
	i = g->order[g->sent];
	CHECK_INT(rig_abi->isend(r->pair->send, place(r, r->send, g, i), g->send_bytes[i],
				 g->tag[i], r->send_mr, &g->send_request[i]),
		  RY_NET_SUCCESS);
	if (!g->send_request[i])
		return false;
	if (++g->sent == g->n)
		r->sending++;
	return true;
}

static void group_verify(struct run *r, struct group *g, const int *sizes)
{
	for (int i = 0; i < g->n; i++) {
		const uint8_t *got = place(r, r->recv, g, i);
		size_t bytes = min_size(g->send_bytes[i], g->recv_bytes[i]);

		CHECK_INT(sizes[i], (long long)bytes);
		for (size_t k = 0; k < bytes; k++) {
			if (got[k] != pattern(g, i, k))
				rig_die(__FILE__, __LINE__,
					"group %u, member %d of %d: byte %zu of %zu is wrong",
					g->number, i, g->n, k, bytes);
		}
		for (size_t k = 0; k < CANARY_BYTES; k++) {
			CHECK_INT(got[bytes + k], CANARY);
			CHECK_INT(got[-(ptrdiff_t)k - 1], CANARY);
		}
	}
}

static bool group_test(struct run *r, struct group *g)
{
	bool moved = false;
	int done, size[RIG_GROUP_MAX];

	for (int i = 0; i < g->n; i++) {
		if (!g->send_request[i])
			continue;
		CHECK_INT(rig_net->test(g->send_request[i], &done, size), RY_NET_SUCCESS);
		if (done) {
			CHECK_INT(size[0], (long long)min_size(g->send_bytes[i], g->recv_bytes[i]));
			g->send_request[i] = NULL;
			moved = true;
		}
	}
	if (g->recv_request) {
		CHECK_INT(rig_net->test(g->recv_request, &done, size), RY_NET_SUCCESS);
		if (done) {
			group_verify(r, g, size);
			g->recv_request = NULL;
			moved = true;
		}
	}
	return moved;
}

static bool group_is_done(const struct group *g)
{
	for (int i = 0; i < g->n; i++) {
		if (g->send_request[i])
			return false;
	}
	return g->sent == g->n && !g->recv_request;
}

static bool run_step(struct run *r)
{
	bool moved = false;

	switch (pick(r, 4)) {
	case 0:
		moved = group_post(r);
		break;
	case 1:
		moved = group_send(r);
		break;
	case 2:
		if (r->posted != r->open)
			moved = group_test(
				r, &r->group[(r->open + pick(r, r->posted - r->open)) %
					     r->t->window]);
		break;
	default:
		for (unsigned n = r->t->queued ? pick(r, 4) : 0; n > 0 && fake_step(); n--)
			moved = true;
		break;
	}
	while (r->open != r->posted && group_is_done(&r->group[r->open % r->t->window])) {
		r->group[r->open % r->t->window].used = false;
		r->open++;
		moved = true;
	}
	return moved;
}

static void run_loop(struct run *r)
{
	unsigned idle = 0, waits = 0;

	while (r->open < r->t->groups) {
		if (run_step(r)) {
			idle = 0;
			waits = 0;
		} else if (++idle > 2000) { /* keys travel on another thread */
			if (++waits > RIG_PATIENCE_MS)
				rig_die(__FILE__, __LINE__,
					"no progress: %u of %u groups done, %u posted, %u sent",
					r->open, r->t->groups, r->posted, r->sending);
			rig_pause_us(500);
			idle = 0;
		}
	}
}

void traffic_run(struct pair *p, const struct traffic *t)
{
	struct run r = {.t = t, .pair = p, .random = t->seed};

	r.place = (t->fixed ? t->bytes : t->bytes_max) + (size_t)2 * CANARY_BYTES;
	r.arena = r.place * RIG_GROUP_MAX * t->window;
	r.send = rig_buffer(r.arena);
	r.recv = rig_buffer(r.arena);
	r.group = calloc(t->window, sizeof(*r.group));
	CHECK(r.group);
	CHECK_INT(rig_net->regMr(p->send, r.send, r.arena, RY_NET_PTR_HOST, &r.send_mr),
		  RY_NET_SUCCESS);
	CHECK_INT(rig_net->regMr(p->recv, r.recv, r.arena, RY_NET_PTR_HOST, &r.recv_mr),
		  RY_NET_SUCCESS);
	run_loop(&r);
	CHECK_INT(rig_net->deregMr(p->send, r.send_mr), RY_NET_SUCCESS);
	CHECK_INT(rig_net->deregMr(p->recv, r.recv_mr), RY_NET_SUCCESS);
	free(r.group);
	rig_buffer_free(r.send, r.arena);
	rig_buffer_free(r.recv, r.arena);
}

/* ---- single steps ---- */

void *rig_isend(struct pair *p, void *data, size_t bytes, int tag, void *mr)
{
	void *request = NULL;

	for (int i = 0; !request; i++) {
		CHECK(i < RIG_PATIENCE_MS * 5);
		CHECK_INT(rig_abi->isend(p->send, data, bytes, tag, mr, &request), RY_NET_SUCCESS);
		if (!request)
			rig_pause_us(200);
	}
	return request;
}

void *rig_irecv(struct pair *p, void *data, size_t bytes, int tag, void *mr)
{
	void *request = NULL;

	/* The plugin's thread may have the comm for a moment. */
	for (int i = 0; !request; i++) {
		CHECK(i < RIG_PATIENCE_MS * 5);
		CHECK_INT(rig_abi->irecv(p->recv, 1, &data, &bytes, &tag, &mr, &request),
			  RY_NET_SUCCESS);
		if (!request)
			rig_pause_us(200);
	}
	return request;
}

void rig_wait(void *request, size_t bytes)
{
	int done = 0, size = -1;

	for (int i = 0; !done; i++) {
		CHECK(i < RIG_PATIENCE_MS * 5);
		CHECK_INT(rig_net->test(request, &done, &size), RY_NET_SUCCESS);
		if (!done)
			rig_pause_us(200);
	}
	CHECK_INT(size, (long long)bytes);
}
