/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_data.c - the payload generator and the meters of bench: what they accept and what they
 * notice. A plain program, so that it also runs under the thread sanitizer.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_data.h"
#include "bench_stat.h"

#define EXPECT(condition)                                                       \
	do {                                                                    \
		if (!(condition)) {                                             \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                \
		}                                                               \
	} while (0)

enum { ROOM = 4096 };

static uint64_t words[ROOM / 8];
static uint8_t *const buf = (uint8_t *)words;

static void every_length_fits_its_own_payload(void)
{
	size_t first = 0;

	for (size_t bytes = 0; bytes < 200; bytes++) {
		memset(buf, 0xee, 256);
		data_fill(buf, bytes, 12345, 64);
		EXPECT(data_check(buf, bytes, 12345, 64, &first) == 0);
		EXPECT(buf[bytes] == 0xee);
	}
}

static void one_wrong_byte_is_found_anywhere(void)
{
	for (size_t bytes = 1; bytes < 100; bytes++) {
		for (size_t at = 0; at < bytes; at++) {
			size_t first = SIZE_MAX;

			data_fill(buf, bytes, 99, 0);
			buf[at] ^= 1;
			EXPECT(data_check(buf, bytes, 99, 0, &first) == 1);
			EXPECT(first == at);
		}
	}
}

static void shifted_stale_and_foreign_data_are_found(void)
{
	uint64_t seed = data_seed(1, 2, 3, 0);
	size_t first;

	data_fill(buf, 1024, seed, 0);
	EXPECT(data_check(buf, 1024, seed, 8, &first) > 900);
	EXPECT(data_check(buf + 8, 1016, seed, 8, &first) == 0);
	EXPECT(data_check(buf, 1024, data_seed(1, 2, 4, 0), 0, &first) > 900);
	EXPECT(data_check(buf, 1024, data_seed(2, 1, 3, 0), 0, &first) > 900);
	EXPECT(data_check(buf, 1024, data_seed(1, 2, 3, 1), 0, &first) > 900);
}

static void a_reduction_has_the_sum_of_its_inputs(void)
{
	enum { COUNT = 501, FIRST = 77, RANKS = 5 };
	uint32_t *sum = (uint32_t *)words, seed_sum = 0;
	size_t first = 0;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		uint32_t seed = (uint32_t)data_seed(rank, rank, 9, 0);

		seed_sum += seed;
		if (rank == 0) {
			data32_fill(sum, COUNT, seed, FIRST);
		} else {
			data32_add(sum, sum, COUNT, seed, FIRST);
		}
	}
	EXPECT(data32_check(sum, COUNT, seed_sum, RANKS, FIRST, &first) == 0);
	sum[500]++;
	EXPECT(data32_check(sum, COUNT, seed_sum, RANKS, FIRST, &first) == 1 && first == 500);
	sum[500]--;
	EXPECT(data32_check(sum, COUNT, seed_sum, RANKS, FIRST + 1, &first) == COUNT);
}

static void a_canary_sees_every_byte(void)
{
	for (size_t from = 0; from < 40; from++) {
		for (size_t to = from; to < 60; to++) {
			canary_fill(buf, 64);
			EXPECT(canary_check(buf, from, to) == to);
			for (size_t at = 0; at < 64; at++) {
				size_t seen = at >= from && at < to ? at : to;

				buf[at] ^= 0x80;
				EXPECT(canary_check(buf, from, to) == seen);
				buf[at] ^= 0x80;
			}
		}
	}
}

static void percentiles_are_close(void)
{
	static struct bench_hist hist, more;

	EXPECT(hist_permille(&hist, 500) == 0);
	for (uint64_t value = 1; value <= 10000; value++) {
		hist_add(value % 2 ? &hist : &more, value * 1000);
	}
	hist_join(&hist, &more);
	EXPECT(hist.count == 10000 && hist.max == 10000000);
	EXPECT(hist_permille(&hist, 500) >= 5000000 && hist_permille(&hist, 500) < 5100000);
	EXPECT(hist_permille(&hist, 990) >= 9900000 && hist_permille(&hist, 990) <= 10000000);
	EXPECT(hist_permille(&hist, 1000) == 10000000);
	hist_add(&hist, UINT64_MAX);
	EXPECT(hist_permille(&hist, 500) < 5100000 && hist.max == UINT64_MAX);
}

static void intervals_hold_what_came_in_them(void)
{
	struct bench_meter meter = {0};
	uint64_t start = 1000000, ms = 1000000;

	meter_start(&meter, start, 10, -1);
	meter_add_recv(&meter, start + 1 * ms, 100);
	meter_add_recv(&meter, start + 9 * ms, 20);
	meter_add_recv(&meter, start + 35 * ms, 3);
	EXPECT(meter.stat.interval_count == 4);
	EXPECT(meter.intervals[0].bytes == 120 && meter.intervals[1].bytes == 0);
	EXPECT(meter.intervals[2].bytes == 0 && meter.intervals[3].bytes == 3);
	EXPECT(meter.intervals[0].gap_ns == 8 * ms && meter.intervals[2].gap_ns == 0);
	EXPECT(meter.intervals[3].gap_ns == 26 * ms);
	EXPECT(meter.stat.gap_ns == 26 * ms && meter.stat.recv_bytes == 123);
	EXPECT(stat_recv_rate(&meter.stat) > 676 && stat_recv_rate(&meter.stat) < 677);
	meter_start(&meter, start, 10, -1);
	EXPECT(meter.stat.interval_count == 0 && stat_recv_rate(&meter.stat) == 0);
	meter_fini(&meter);
}

int main(void)
{
	every_length_fits_its_own_payload();
	one_wrong_byte_is_found_anywhere();
	shifted_stale_and_foreign_data_are_found();
	a_reduction_has_the_sum_of_its_inputs();
	a_canary_sees_every_byte();
	percentiles_are_close();
	intervals_hold_what_came_in_them();
	return 0;
}
