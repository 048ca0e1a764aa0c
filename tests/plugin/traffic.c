/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * traffic.c - groups of messages with random sizes, tags and order of calls; every byte and every
 * reported size is checked, and that nothing beside the buffers is written.
 */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "util.h"

enum {
	CANARY_BYTES = 64,
	PIECE = 256, /* of the pattern; see there */
	CANARY = 0xc5,
	SENT = 0x5e, /* what a buffer holds once it is sent */
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
	unsigned groups;		/* to do */
	unsigned posted, sending, open; /* groups: irecvs taken, first not fully sent, not done */
	enum ry_net_result send_rc, recv_rc;
	struct traffic own; /* what t is of a run in steps */
	uint64_t random;
};

static struct {
	uint64_t longest_ns;
	uint64_t count[64]; /* calls of less than 2^i ns */
	bool is_watched;
	unsigned waits;
	uint64_t longest_wait_ns;
} times;

static uint64_t call_began;
static long sleeps_began;

/* How often this thread has gone to sleep by itself: being put off does not count. */
static long sleeps(void)
{
	struct rusage usage;

	if (!times.is_watched)
		return 0;
	CHECK_INT(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_nvcsw;
}

static void call_begins(void)
{
	sleeps_began = sleeps();
	call_began = now_ns();
}

static void call_ended(void)
{
	uint64_t ns = now_ns() - call_began;

	if (sleeps() != sleeps_began) {
		times.waits++;
		if (ns > times.longest_wait_ns)
			times.longest_wait_ns = ns;
	}
	if (ns > times.longest_ns)
		times.longest_ns = ns;
	times.count[ns ? 64 - __builtin_clzll(ns) : 0]++;
}

/* rc = CALL(...), timed. */
#define TIMED(call)                                                                                \
	do {                                                                                       \
		call_begins();                                                                     \
		rc = (call);                                                                       \
		call_ended();                                                                      \
	} while (0)

uint64_t traffic_longest_wait_ns(void)
{
	return times.longest_wait_ns;
}

void traffic_times_reset(bool watch_waits)
{
	memset(&times, 0, sizeof(times));
	times.is_watched = watch_waits;
}

void traffic_times_print(const char *what)
{
	uint64_t calls = 0, above = 0;
	int i = 63;

	for (int k = 0; k < 64; k++)
		calls += times.count[k];
	while (i > 0 && (above += times.count[i]) <= calls / 1000)
		i--;
	printf("       %s: %llu calls, 99.9 %% of them below %.1f us, longest %.1f us\n", what,
	       (unsigned long long)calls, (double)(1ull << i) / 1000.,
	       (double)times.longest_ns / 1000.);
	if (times.is_watched)
		printf("       %s: %u calls slept, longest %.1f us\n", what, times.waits,
		       (double)times.longest_wait_ns / 1000.);
}

/* Of a call that failed: whether the traffic goes on without it. */
static bool is_good(struct run *r, enum ry_net_result rc, enum ry_net_result *first)
{
	if (rc == RY_NET_SUCCESS)
		return true;
	if (!r->t->may_fail)
		rig_die(__FILE__, __LINE__, "a call returned %d; %u groups were done", (int)rc,
			r->open);
	if (*first == RY_NET_SUCCESS)
		*first = rc;
	return false;
}

static unsigned pick(struct run *r, unsigned n)
{
	return (unsigned)(rig_random(&r->random) % n);
}

static size_t size_pick(struct run *r)
{
	static const size_t edges[] = {0,     1,     127,   128,   129,	   4096,
				       16383, 16384, 16385, 65537, 131072, (1 << 20) + 1};
	size_t size;

	if (r->t->fixed)
		return r->t->bytes;
	if (pick(r, r->t->rare ? r->t->rare : 4) != 0)
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

/*
 * The next PIECE bytes of a member from i on, a multiple of PIECE: byte i is group * 37 +
 * member * 11 + i * 7 + i / 2^8 + i / 2^16. So a piece is a part of the ring of 7's multiples. As a
 * piece and not by the byte, since ThreadSanitizer looks at every access of ours: that took three
 * quarters of the time.
 */
static const uint8_t *pattern(const struct group *g, int member, size_t i)
{
	static uint8_t ring[2 * PIECE];
	unsigned first = g->number * 37 + (unsigned)member * 11 + (unsigned)(i >> 8) +
			 (unsigned)(i >> 16);

	for (unsigned k = 0; ring[1] == 0 && k < sizeof(ring); k++)
		ring[k] = (uint8_t)(k * 7);
	return ring + (uint8_t)(first * 183); /* 183 * 7 is 1, modulo 256 */
}

static void pattern_put(uint8_t *to, size_t bytes, const struct group *g, int member)
{
	for (size_t i = 0; i < bytes; i += PIECE)
		memcpy(to + i, pattern(g, member, i), min_size(PIECE, bytes - i));
}

static void pattern_check(const uint8_t *got, size_t bytes, const struct group *g, int member)
{
	for (size_t i = 0; i < bytes; i += PIECE) {
		const uint8_t *want = pattern(g, member, i);
		size_t k = 0;

		if (memcmp(got + i, want, min_size(PIECE, bytes - i)) == 0)
			continue;
		while (got[i + k] == want[k])
			k++;
		rig_die(__FILE__, __LINE__, "group %u, member %d of %d: byte %zu of %zu is wrong",
			g->number, member, g->n, i + k, bytes);
	}
}

static void untouched_check(const uint8_t *at, size_t bytes, unsigned number)
{
	static uint8_t canary[PIECE];

	memset(canary, CANARY, sizeof(canary));
	for (size_t i = 0; i < bytes; i += PIECE) {
		if (memcmp(at + i, canary, min_size(PIECE, bytes - i)) != 0)
			rig_die(__FILE__, __LINE__,
				"group %u: something came to byte %zu or soon after it was done",
				number, i);
	}
}

/* What came after the place was last used. */
static void place_check(struct run *r, struct group *g)
{
	for (int i = 0; i < g->n; i++)
		untouched_check(place(r, r->recv, g, i), g->recv_bytes[i], g->number);
}

static void group_make(struct run *r, struct group *g, unsigned number)
{
	place_check(r, g);
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
		memset(to - CANARY_BYTES, CANARY, g->recv_bytes[i] + (size_t)2 * CANARY_BYTES);
		pattern_put(from, g->send_bytes[i], g, i);
	}
}

static bool group_post(struct run *r)
{
	struct group *g = &r->group[r->posted % r->t->window];
	void *data[RIG_GROUP_MAX], *mrs[RIG_GROUP_MAX];
	enum ry_net_result rc;

	if (r->recv_rc || r->posted == r->groups || r->posted - r->open == r->t->window)
		return false;
	if (!g->used)
		group_make(r, g, r->posted);
	for (int i = 0; i < g->n; i++) {
		data[i] = place(r, r->recv, g, i);
		mrs[i] = r->recv_mr;
	}
	TIMED(rig_abi->irecv(r->pair->recv, g->n, data, g->recv_bytes, g->tag, mrs,
			     &g->recv_request));
	if (!is_good(r, rc, &r->recv_rc) || !g->recv_request)
		return false;
	r->posted++;
	return true;
}

/*
 * The receiver's end has failed when all that it had posted was sent and done: no group is left by
 * which the sender's end would tell, so it is asked.
 */
static bool send_ask(struct run *r)
{
	enum ry_net_result rc;
	void *request;

	TIMED(rig_abi->isend(r->pair->send, r->send, 0, TAG_FIRST, r->send_mr, &request));
	return !is_good(r, rc, &r->send_rc);
}

static bool group_send(struct run *r)
{
	struct group *g = &r->group[r->sending % r->t->window];
	enum ry_net_result rc;
	int i;

	if (r->send_rc)
		return false;
	if (r->sending == r->posted)
		return r->recv_rc && send_ask(r);
	i = g->order[g->sent];
	TIMED(rig_abi->isend(r->pair->send, place(r, r->send, g, i), g->send_bytes[i], g->tag[i],
			     r->send_mr, &g->send_request[i]));
	if (!is_good(r, rc, &r->send_rc) || !g->send_request[i])
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
		pattern_check(got, bytes, g, i);
		for (size_t k = 0; k < CANARY_BYTES; k++) {
			CHECK_INT(got[bytes + k], CANARY);
			CHECK_INT(got[-(ptrdiff_t)k - 1], CANARY);
		}
	}
}

static bool send_test(struct run *r, struct group *g, int i)
{
	enum ry_net_result rc;
	int done, size;

	TIMED(rig_net->test(g->send_request[i], &done, &size));
	if (!is_good(r, rc, &r->send_rc) || !done)
		return false;
	CHECK_INT(size, (long long)min_size(g->send_bytes[i], g->recv_bytes[i]));
	memset(place(r, r->send, g, i), SENT, g->send_bytes[i]);
	g->send_request[i] = NULL;
	return true;
}

static bool recv_test(struct run *r, struct group *g)
{
	enum ry_net_result rc;
	int done, size[RIG_GROUP_MAX];

	TIMED(rig_net->test(g->recv_request, &done, size));
	if (!is_good(r, rc, &r->recv_rc) || !done)
		return false;
	group_verify(r, g, size);
	for (int i = 0; i < g->n; i++)
		memset(place(r, r->recv, g, i), CANARY, g->recv_bytes[i]);
	g->recv_request = NULL;
	return true;
}

static bool group_test(struct run *r, struct group *g)
{
	bool moved = false;

	for (int i = 0; i < g->n && !r->send_rc; i++) {
		if (g->send_request[i])
			moved |= send_test(r, g, i);
	}
	if (g->recv_request && !r->recv_rc)
		moved |= recv_test(r, g);
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

bool traffic_step(struct run *r)
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
				r,
				&r->group[(r->open + pick(r, r->posted - r->open)) % r->t->window]);
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

void traffic_drain(struct run *r)
{
	unsigned idle = 0, waits = 0;

	if (r->t == &r->own)
		r->groups = r->posted;
	while (r->open < r->groups) {
		if (traffic_step(r)) {
			idle = 0;
			waits = 0;
		} else if (++idle > 2000) { /* keys travel on another thread */
			if (++waits > RIG_PATIENCE_MS)
				rig_die(__FILE__, __LINE__,
					"no progress: %u of %u groups done, %u posted, %u sent",
					r->open, r->groups, r->posted, r->sending);
			rig_pause_us(500);
			idle = 0;
		}
	}
	for (unsigned i = 0; i < r->t->window; i++)
		place_check(r, &r->group[i]);
}

static void run_start(struct run *r, struct pair *p, const struct traffic *t)
{
	*r = (struct run){.t = t, .pair = p, .groups = t->groups, .random = t->seed};
	r->place = (t->fixed ? t->bytes : t->bytes_max) + (size_t)2 * CANARY_BYTES;
	r->arena = r->place * RIG_GROUP_MAX * t->window;
	r->send = rig_buffer(r->arena);
	r->recv = rig_buffer(r->arena);
	r->group = calloc(t->window, sizeof(*r->group));
	CHECK(r->group);
	CHECK_INT(rig_net->regMr(p->send, r->send, r->arena, RY_NET_PTR_HOST, &r->send_mr),
		  RY_NET_SUCCESS);
	CHECK_INT(rig_net->regMr(p->recv, r->recv, r->arena, RY_NET_PTR_HOST, &r->recv_mr),
		  RY_NET_SUCCESS);
}

static void run_end(struct run *r)
{
	CHECK_INT(rig_net->deregMr(r->pair->send, r->send_mr), RY_NET_SUCCESS);
	CHECK_INT(rig_net->deregMr(r->pair->recv, r->recv_mr), RY_NET_SUCCESS);
	free(r->group);
	rig_buffer_free(r->send, r->arena);
	rig_buffer_free(r->recv, r->arena);
}

void traffic_run(struct pair *p, const struct traffic *t)
{
	struct run r;

	run_start(&r, p, t);
	traffic_drain(&r);
	run_end(&r);
}

struct run *traffic_start(struct pair *p, const struct traffic *t)
{
	struct run *r = malloc(sizeof(*r));

	CHECK(r);
	run_start(r, p, t);
	r->own = *t;
	r->t = &r->own;
	r->groups = UINT32_MAX;
	return r;
}

void traffic_stop(struct run *r)
{
	run_end(r);
	free(r);
}

unsigned traffic_groups(const struct run *r)
{
	return r->open;
}

enum ry_net_result traffic_send_rc(const struct run *r)
{
	return r->send_rc;
}

enum ry_net_result traffic_recv_rc(const struct run *r)
{
	return r->recv_rc;
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
