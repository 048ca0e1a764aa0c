/* SPDX-License-Identifier: BSD-3-Clause */
#include "bench_data.h"

#include <string.h>

#define STEP64 UINT64_C(0x9e3779b97f4a7c15)
#define STEP32 UINT32_C(0x9e3779b1)
#define CANARY UINT64_C(0xdbc75ea1b63c2d97)

static uint64_t mix64(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

uint64_t data_seed(uint32_t src, uint32_t dst, uint64_t iter, uint32_t member)
{
	uint64_t pair = ((uint64_t)src << 40) | ((uint64_t)dst << 16) | member;

	return mix64(mix64(pair + STEP64) + iter * STEP64);
}

void data_fill(void *buf, size_t bytes, uint64_t seed, uint64_t offset)
{
	uint64_t *word = buf;
	uint64_t value = seed + offset / 8 * STEP64;
	size_t count = bytes / 8;

	for (size_t i = 0; i < count; i++) {
		word[i] = value + i * STEP64;
	}
	if (bytes % 8) {
		value += count * STEP64;
		memcpy(word + count, &value, bytes % 8);
	}
}

/* Slow and exact: taken only when a word differs, to count bytes. */
static size_t count_wrong(const uint8_t *got, size_t bytes, uint64_t want, size_t at, size_t *first)
{
	uint8_t expect[8];
	size_t wrong = 0;

	memcpy(expect, &want, sizeof(expect));
	for (size_t i = 0; i < bytes; i++) {
		if (got[i] != expect[i] && wrong++ == 0 && at + i < *first) {
			*first = at + i;
		}
	}
	return wrong;
}

size_t data_check(const void *buf, size_t bytes, uint64_t seed, uint64_t offset, size_t *first_bad)
{
	const uint64_t *word = buf;
	uint64_t value = seed + offset / 8 * STEP64;
	uint64_t differ = 0, tail = 0;
	size_t count = bytes / 8, wrong = 0, first = SIZE_MAX;

	for (size_t i = 0; i < count; i++) {
		differ |= word[i] ^ (value + i * STEP64);
	}
	if (bytes % 8) {
		tail = value + count * STEP64;
		memcpy(&tail, word + count, bytes % 8);
		differ |= tail ^ (value + count * STEP64);
	}
	if (!differ) {
		return 0;
	}
	for (size_t at = 0; at < bytes; at += 8) {
		size_t n = bytes - at < 8 ? bytes - at : 8;

		wrong += count_wrong((const uint8_t *)buf + at, n, value + at / 8 * STEP64, at,
				     &first);
	}
	*first_bad = first;
	return wrong;
}

void data32_fill(uint32_t *buf, size_t count, uint32_t seed, uint64_t first)
{
	uint32_t value = seed + (uint32_t)first * STEP32;

	for (size_t i = 0; i < count; i++) {
		buf[i] = value + (uint32_t)i * STEP32;
	}
}

void data32_add(uint32_t *out, const uint32_t *in, size_t count, uint32_t seed, uint64_t first)
{
	uint32_t value = seed + (uint32_t)first * STEP32;

	for (size_t i = 0; i < count; i++) {
		out[i] = in[i] + value + (uint32_t)i * STEP32;
	}
}

size_t data32_check(const uint32_t *buf, size_t count, uint32_t seed_sum, uint32_t ranks,
		    uint64_t first, size_t *first_bad)
{
	uint32_t step = STEP32 * ranks;
	uint32_t value = seed_sum + (uint32_t)first * step;
	uint32_t differ = 0;
	size_t wrong = 0;

	for (size_t i = 0; i < count; i++) {
		differ |= buf[i] ^ (value + (uint32_t)i * step);
	}
	for (size_t i = 0; differ && i < count; i++) {
		if (buf[i] != value + (uint32_t)i * step && wrong++ == 0) {
			*first_bad = i;
		}
	}
	return wrong;
}

void canary_fill(void *buf, size_t bytes)
{
	uint64_t *word = buf;
	size_t count = (bytes + 7) / 8;

	for (size_t i = 0; i < count; i++) {
		word[i] = CANARY;
	}
}

static size_t canary_check_bytes(const uint8_t *byte, size_t from, size_t to)
{
	const uint64_t pattern = CANARY;
	uint8_t expect[8];

	memcpy(expect, &pattern, sizeof(expect));
	while (from < to && byte[from] == expect[from % 8]) {
		from++;
	}
	return from;
}

size_t canary_check(const void *buf, size_t from, size_t to)
{
	const uint64_t *word = buf;
	size_t first = (from + 7) / 8, last = to / 8, head = first * 8 < to ? first * 8 : to;
	uint64_t differ = 0;
	size_t at = canary_check_bytes(buf, from, head);

	if (at < head || head == to) {
		return at;
	}
	for (size_t i = first; i < last; i++) {
		differ |= word[i] ^ CANARY;
	}
	return canary_check_bytes(buf, differ ? head : last * 8, to);
}
