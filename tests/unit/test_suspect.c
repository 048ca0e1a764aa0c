/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_suspect.c - when a receiver gives a lane up: its announcement does not complete while one on
 * another lane does. Data that waits in a slow rail's queue delays both alike, and is no proof.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "core/recover.h"
#include "core/recv.h"

enum { MS = 1000000, STALL_MS = 100, STEP_MS = 5 };

static const struct core_recover_times times = {.stall_ns = STALL_MS * (uint64_t)MS,
						.retest_ns = 1000 * (uint64_t)MS,
						.verify_ns = 50 * (uint64_t)MS,
						.outage_ns = 60000 * (uint64_t)MS};
static struct core_recv c;
static struct core_recover r;
static struct core_cts staging[CORE_RING_RECORDS];
static struct core_sizes sizes[CORE_SLOTS];
static struct core_port ports[2][2];
static uint32_t epoch, failed;
static uint64_t now_ms, answered;

/* Two lanes in use, `open` messages expected. */
static void begin(uint32_t open)
{
	struct core_config cfg = {
		.lane_count = 2, .port_count = 2, .path_count = 2, .signal_epoch = &epoch};

	memset(ports, 0, sizeof(ports));
	for (uint32_t i = 0; i < 2; i++) {
		cfg.local[i] = &ports[0][i];
		cfg.remote[i] = &ports[1][i];
		cfg.lane[i].port = cfg.lane[i].remote = (uint8_t)i;
	}
	cr_assert_eq(core_recv_init(&c, &cfg, staging, sizes), 0);
	for (uint32_t i = 0; i < 2; i++) {
		core_recv_lane_open(&c, i, 1, CORE_RQ_WRS);
	}
	failed = 0;
	answered = 0;
	now_ms = 1000;
	core_recover_init(&r, &times, NULL, &c, 0, now_ms * MS);
	for (uint32_t i = 0; i < open; i++) {
		struct core_recv_buffer b = {.addr = 0x1000, .size = 10, .tag = 0, .mr_id = 1};
		struct core_announce ann;
		uint32_t slot;

		cr_assert_eq(core_recv_post(&c, 1, &b, &slot, &ann), 0);
		if (ann.signaled) {
			core_recv_announced(&c, ann.lane, false);
		}
	}
}

/* For `ms`: what lanes of `well` are asked is answered at once, of the others never. */
static void pass(uint64_t ms, uint64_t well)
{
	for (uint64_t end = now_ms + ms; now_ms < end; now_ms += STEP_MS) {
		struct core_action a;
		struct core_letter letter;

		core_recover_tick(&r, now_ms * MS);
		while (core_recover_next(&r, &a, &letter, now_ms * MS)) {
			failed |= a.type == ACT_SAY_FAILED ? 1u << a.lane : 0;
			if (a.type == ACT_ANNOUNCE && (well >> a.lane & 1) != 0) {
				core_recover_again_done(&r, a.lane, now_ms * MS);
				answered++;
			}
		}
	}
}

/* The next message arrives on a lane. */
static void arrive(uint32_t lane, uint32_t slot)
{
	cr_assert_eq(core_recv_imm(&c, lane, core_imm(slot, 0, 1), 10), 0);
	core_recv_release(&c, slot);
}

static void measured(void)
{
	begin(32);
	for (uint32_t i = 0; i < 8; i++) {
		arrive(i % 2, i);
	}
}

Test(suspect, a_silent_lane_is_given_up_while_another_moves)
{
	measured();
	pass(8 * STALL_MS, 1 << 0);
	cr_assert_gt(answered, 0);
	cr_assert_eq(failed, 1 << 1);
}

Test(suspect, no_lane_is_given_up_while_none_moves)
{
	measured();
	pass(20 * STALL_MS, 0);
	cr_assert_eq(failed, 0);
}

Test(suspect, a_lane_of_unknown_rate_gets_more_time)
{
	begin(32);
	pass(8 * STALL_MS, 1 << 0);
	cr_assert_gt(answered, 0);
	cr_assert_eq(failed, 0, "nothing is known of the other rail yet but that it may be slow");
	pass(40 * STALL_MS, 1 << 0);
	cr_assert_eq(failed, 1 << 1, "yet not for ever");
}

Test(suspect, a_lane_whose_data_arrives_moves)
{
	measured();
	for (uint32_t i = 8; i < 30; i++) {
		pass(STALL_MS + 4 * STEP_MS, 1 << 0);
		arrive(1, i);
	}
	cr_assert_gt(answered, 0);
	cr_assert_eq(failed, 0);
}
