/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_data.h - payload that can be checked byte by byte without keeping a copy.
 *
 * Word w of a message is seed + w * odd constant, so every word of a message is different, a
 * shifted, stale or foreign word cannot pass, and filling and checking run at memory speed. For
 * all-reduce the same with 32-bit words: the sum over ranks is again such a progression, exact
 * modulo 2^32.
 *
 * Must not: know about messages, ranks or plugins beyond the seed.
 */
#ifndef RY_BENCH_DATA_H
#define RY_BENCH_DATA_H

#include <stddef.h>
#include <stdint.h>

/* Seed of the bytes that @src sends to @dst in iteration @iter as member @member of a group. */
uint64_t data_seed(uint32_t src, uint32_t dst, uint64_t iter, uint32_t member);

/* Writes bytes [@offset, @offset + @bytes) of a message. @buf and @offset: multiples of 8. */
void data_fill(void *buf, size_t bytes, uint64_t seed, uint64_t offset);

/* Returns how many bytes differ; *@first_bad is the index of the first in @buf if any does. */
size_t data_check(const void *buf, size_t bytes, uint64_t seed, uint64_t offset, size_t *first_bad);

/* The same for elements of an all-reduce. @first: index of buf[0] in the message. */
void data32_fill(uint32_t *buf, size_t count, uint32_t seed, uint64_t first);

/* out[i] = in[i] + own element i: one step of a reduction. */
void data32_add(uint32_t *out, const uint32_t *in, size_t count, uint32_t seed, uint64_t first);

/* Checks a sum over @ranks ranks whose seeds add up to @seed_sum. Returns wrong elements. */
size_t data32_check(const uint32_t *buf, size_t count, uint32_t seed_sum, uint32_t ranks,
		    uint64_t first, size_t *first_bad);

/* Pattern of an idle receive buffer: byte i depends on i % 8 only. @buf: multiple of 8; the last
 * word is written whole. */
void canary_fill(void *buf, size_t bytes);

/* Index of the first byte in [@from, @to) of @buf that is not the pattern; @to when all are. */
size_t canary_check(const void *buf, size_t from, size_t to);

#endif /* RY_BENCH_DATA_H */
