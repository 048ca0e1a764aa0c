/* SPDX-License-Identifier: BSD-3-Clause */
#include "bench_stat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Values below 64 have a bucket each; above, 64 buckets per power of two. */
static unsigned bucket_of(uint64_t value)
{
	unsigned shift, index;

	if (value < (1u << HIST_SUB_BITS)) {
		return (unsigned)value;
	}
	shift = 63u - (unsigned)__builtin_clzll(value) - HIST_SUB_BITS;
	index = ((shift + 1) << HIST_SUB_BITS) +
		(unsigned)((value >> shift) & ((1u << HIST_SUB_BITS) - 1));
	return index < HIST_BUCKETS ? index : HIST_BUCKETS - 1;
}

/* Largest value of the bucket. */
static uint64_t bucket_top(unsigned index)
{
	unsigned shift = index >> HIST_SUB_BITS;
	uint64_t sub = index & ((1u << HIST_SUB_BITS) - 1);

	if (shift == 0) {
		return index;
	}
	return (((UINT64_C(1) << HIST_SUB_BITS) + sub + 1) << (shift - 1)) - 1;
}

void hist_add(struct bench_hist *hist, uint64_t value)
{
	hist->count++;
	hist->bucket[bucket_of(value)]++;
	if (value > hist->max) {
		hist->max = value;
	}
}

void hist_join(struct bench_hist *hist, const struct bench_hist *more)
{
	hist->count += more->count;
	for (unsigned i = 0; i < HIST_BUCKETS; i++) {
		hist->bucket[i] += more->bucket[i];
	}
	if (more->max > hist->max) {
		hist->max = more->max;
	}
}

uint64_t hist_permille(const struct bench_hist *hist, unsigned permille)
{
	uint64_t want = (hist->count * permille + 999) / 1000, seen = 0;

	for (unsigned i = 0; i < HIST_BUCKETS && hist->count; i++) {
		seen += hist->bucket[i];
		if (seen >= want) {
			uint64_t top = bucket_top(i);

			return top < hist->max ? top : hist->max;
		}
	}
	return 0;
}

void meter_start(struct bench_meter *meter, uint64_t now_ns, uint32_t interval_ms, int print_rank)
{
	struct timespec wall;

	clock_gettime(CLOCK_REALTIME, &wall);
	memset(&meter->stat, 0, sizeof(meter->stat));
	meter->start_ns = now_ns;
	meter->start_wall_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
	meter->interval_ns = interval_ms * UINT64_C(1000000);
	meter->print_rank = print_rank;
	meter->printed = 0;
}

void meter_fini(struct bench_meter *meter)
{
	free(meter->intervals);
	meter->intervals = NULL;
	meter->interval_room = 0;
}

/* Makes intervals 0 ... index exist. Without memory the later ones are left out of the report. */
static bool reach_interval(struct bench_meter *meter, size_t index)
{
	if (index >= meter->interval_room) {
		size_t room = (index + 1) * 2 + 64;
		struct bench_interval *more = realloc(meter->intervals, room * sizeof(more[0]));

		if (!more) {
			return false;
		}
		meter->intervals = more;
		meter->interval_room = room;
	}
	while (meter->stat.interval_count <= index) {
		meter->intervals[meter->stat.interval_count++] = (struct bench_interval){0};
	}
	return true;
}

static void print_interval(const struct bench_meter *meter, size_t index)
{
	double seconds = (double)meter->interval_ns * 1e-9;

	printf("interval  rank %d  %.3f s  %.3f MB/s\n", meter->print_rank,
	       (double)(index + 1) * seconds,
	       (double)meter->intervals[index].bytes / seconds * 1e-6);
	fflush(stdout);
}

void meter_tick(struct bench_meter *meter, uint64_t now_ns)
{
	size_t index;

	if (!meter->interval_ns || now_ns < meter->start_ns) {
		return;
	}
	index = (size_t)((now_ns - meter->start_ns) / meter->interval_ns);
	if (index < meter->stat.interval_count || !reach_interval(meter, index)) {
		return;
	}
	while (meter->printed < index) {
		if (meter->print_rank >= 0) {
			print_interval(meter, meter->printed);
		}
		meter->printed++;
	}
}

void meter_add_recv(struct bench_meter *meter, uint64_t now_ns, size_t bytes)
{
	struct bench_stat *stat = &meter->stat;
	struct bench_interval unused = {0}, *interval = &unused;
	uint64_t gap_ns = stat->recv_msgs ? now_ns - stat->last_ns : 0;

	meter_tick(meter, now_ns);
	if (meter->interval_ns && stat->interval_count) {
		interval = &meter->intervals[stat->interval_count - 1];
	}
	interval->bytes += bytes;
	interval->gap_ns = gap_ns > interval->gap_ns ? gap_ns : interval->gap_ns;
	stat->gap_ns = gap_ns > stat->gap_ns ? gap_ns : stat->gap_ns;
	if (stat->recv_msgs++ == 0) {
		stat->first_ns = now_ns;
		stat->first_bytes = bytes;
	}
	stat->last_ns = now_ns;
	stat->recv_bytes += bytes;
}

double stat_recv_rate(const struct bench_stat *stat)
{
	if (stat->recv_msgs < 2 || stat->last_ns <= stat->first_ns) {
		return 0;
	}
	return (double)(stat->recv_bytes - stat->first_bytes) * 1e9 /
	       (double)(stat->last_ns - stat->first_ns);
}
