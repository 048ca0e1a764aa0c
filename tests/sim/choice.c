/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * choice.c - the four engines.
 */
#include "choice.h"

#include <string.h>

uint64_t splitmix64(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

void choice_seed(struct choice *c, uint64_t seed)
{
	memset(c, 0, sizeof(*c));
	c->engine = CHOICE_SEED;
	c->state = seed;
}

void choice_list(struct choice *c, const uint32_t *list, size_t count)
{
	memset(c, 0, sizeof(*c));
	c->engine = CHOICE_LIST;
	c->list = list;
	c->count = count;
}

void choice_bytes(struct choice *c, const uint8_t *bytes, size_t count)
{
	memset(c, 0, sizeof(*c));
	c->engine = CHOICE_BYTES;
	c->bytes = bytes;
	c->count = count;
}

void choice_enum(struct choice *c, uint32_t depth)
{
	memset(c, 0, sizeof(*c));
	c->engine = CHOICE_ENUM;
	c->depth = depth < CHOICE_ENUM_MAX ? depth : CHOICE_ENUM_MAX;
}

bool choice_enum_next(struct choice *c)
{
	uint32_t asked = c->pos < c->depth ? (uint32_t)c->pos : c->depth;

	while (asked > 0 && c->value[asked - 1] + 1 >= c->bound[asked - 1]) {
		asked--;
	}
	if (asked == 0) {
		return false;
	}
	c->value[asked - 1]++;
	for (uint32_t i = asked; i < c->depth; i++) {
		c->value[i] = 0;
	}
	c->pos = 0;
	return true;
}

static uint32_t from_enum(struct choice *c, uint32_t n)
{
	if (c->pos >= c->depth) {
		return 0;
	}
	c->bound[c->pos] = n;
	return c->value[c->pos];
}

static uint32_t from_bytes(const struct choice *c, uint32_t n)
{
	return c->pos < c->count ? (uint32_t)c->bytes[c->pos] % n : 0;
}

static void note(struct choice *c, uint32_t answer)
{
	c->pos++;
	if (c->record != NULL && c->record_count < c->record_max) {
		c->record[c->record_count++] = answer;
	}
}

uint32_t choose(struct choice *c, uint32_t n)
{
	uint32_t answer = 0;

	if (c->engine == CHOICE_SEED) {
		answer = (uint32_t)((splitmix64(&c->state) >> 32) * n >> 32);
	} else if (c->engine == CHOICE_LIST) {
		answer = c->pos < c->count ? c->list[c->pos] % n : 0;
	} else if (c->engine == CHOICE_ENUM) {
		answer = from_enum(c, n);
	} else {
		answer = from_bytes(c, n);
	}
	note(c, answer);
	return answer;
}

static uint32_t weighted_seed(struct choice *c, const uint32_t *weight, uint32_t n)
{
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < n; i++) {
		sum += weight[i];
	}
	uint64_t x = (splitmix64(&c->state) >> 32) * sum >> 32;

	for (i = 0; i + 1 < n && x >= weight[i]; i++) {
		x -= weight[i];
	}
	return i;
}

/* The k-th index that may be chosen. Recorded as it is among all n, so that a list stays readable.
 */
static uint32_t weighted_kth(const uint32_t *weight, uint32_t n, uint32_t k)
{
	uint32_t last = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (weight[i] != 0) {
			last = i;
			if (k-- == 0) {
				break;
			}
		}
	}
	return last;
}

static uint32_t weighted_list(const struct choice *c, const uint32_t *weight, uint32_t n)
{
	uint32_t i = c->pos < c->count ? c->list[c->pos] % n : 0;

	return weight[i] != 0 ? i : weighted_kth(weight, n, 0);
}

uint32_t choose_weighted(struct choice *c, const uint32_t *weight, uint32_t n)
{
	uint32_t possible = 0, answer = 0;

	for (uint32_t i = 0; i < n; i++) {
		possible += weight[i] != 0;
	}
	if (possible == 0) {
		possible = 1;
	}
	if (c->engine == CHOICE_SEED) {
		answer = weighted_seed(c, weight, n);
	} else if (c->engine == CHOICE_LIST) {
		answer = weighted_list(c, weight, n);
	} else if (c->engine == CHOICE_ENUM) {
		answer = weighted_kth(weight, n, from_enum(c, possible));
	} else {
		answer = weighted_kth(weight, n, from_bytes(c, possible));
	}
	note(c, answer);
	return answer;
}

bool choice_spent(const struct choice *c)
{
	if (c->engine == CHOICE_SEED) {
		return false;
	}
	return c->pos >= (c->engine == CHOICE_ENUM ? c->depth : c->count);
}
