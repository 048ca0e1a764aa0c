/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_recv.c - the receiver half of a comm: slots, pieces, groups, receive WRs, announcements.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "core/recv.h"

static struct core_recv r;
static struct core_cts staging[CORE_RING_RECORDS];
static struct core_sizes sizes[CORE_SLOTS];
static struct core_port ports[2][2];
static uint32_t epoch;
static struct core_announce ann;
static uint32_t slot;

/* A comm of `lanes` lanes on two ports (one port if there is one lane). */
static void begin_ar(uint32_t lanes, bool adaptive)
{
	struct core_config cfg = {.lane_count = lanes,
				  .port_count = lanes > 1 ? 2 : 1,
				  .path_count = lanes > 1 ? 2 : 1,
				  .adaptive_routing = adaptive,
				  .signal_epoch = &epoch};

	memset(ports, 0, sizeof(ports));
	memset(staging, 0, sizeof(staging));
	memset(sizes, 0, sizeof(sizes));
	for (uint32_t i = 0; i < 2; i++) {
		cfg.local[i] = &ports[0][i];
		cfg.remote[i] = &ports[1][i];
	}
	for (uint32_t i = 0; i < lanes; i++) {
		cfg.lane[i].port = cfg.lane[i].remote = (uint8_t)(i % cfg.path_count);
	}
	cr_assert_eq(core_recv_init(&r, &cfg, staging, sizes), 0);
	for (uint32_t i = 0; i < lanes; i++) {
		core_recv_lane_open(&r, i, 1, CORE_RQ_WRS);
	}
}

static void begin(uint32_t lanes)
{
	begin_ar(lanes, false);
}

static int post(uint32_t n, uint32_t size)
{
	struct core_recv_buffer b[CORE_GROUP_MAX];

	for (uint32_t i = 0; i < n; i++) {
		b[i] = (struct core_recv_buffer){
			.addr = 0x1000 * (i + 1), .size = size, .tag = 40 + i, .mr_id = 7};
	}
	return core_recv_post(&r, n, b, &slot, &ann);
}

Test(recv_post, fills_the_record_of_its_slot)
{
	begin(1);
	cr_assert_eq(post(1, 500), 0);
	cr_assert_eq(slot, 0);
	cr_assert_eq(staging[0].addr, 0x1000);
	cr_assert_eq(staging[0].size, 500);
	cr_assert_eq(staging[0].tag, 40);
	cr_assert_eq(staging[0].mr_id, 7);
	cr_assert_eq(staging[0].n, 1);
	cr_assert_eq(staging[0].seq, 1);
	cr_assert_eq(ann.first, 0);
	cr_assert_eq(ann.n, 1);
}

Test(recv_post, gives_slots_in_sequence)
{
	begin(1);
	cr_assert_eq(post(3, 10), 0);
	cr_assert_eq(post(1, 10), 0);
	cr_assert_eq(slot, 3);
	cr_assert_eq(staging[2].index, 2);
	cr_assert_eq(staging[2].n, 3);
	cr_assert_eq(staging[3].seq, 4);
}

Test(recv_post, tells_the_receive_wrs_of_its_lanes)
{
	begin(2);
	cr_assert_eq(post(1, 10), 0);
	cr_assert_eq(staging[0].block, 0);
	cr_assert_eq(staging[0].posted[0], CORE_RQ_WRS);
	cr_assert_eq(staging[0].posted[1], CORE_RQ_WRS);
}

Test(recv_post, is_refused_while_its_slot_is_in_use)
{
	begin(1);
	for (uint32_t i = 0; i < CORE_SLOTS; i++) {
		cr_assert_eq(post(1, 10), 0);
		if (ann.signaled) {
			core_recv_announced(&r, ann.lane, false);
		}
	}
	cr_assert_eq(post(1, 10), -EAGAIN);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 10), 0);
	cr_assert_eq(post(1, 10), -EAGAIN, "done, but not released");
	core_recv_release(&r, 0);
	cr_assert_eq(post(1, 10), 0);
	cr_assert_eq(staging[0].seq, CORE_SLOTS + 1);
}

Test(recv_post, needs_a_lane_whose_ports_are_up)
{
	begin(2);
	ports[0][0].down = 1;
	ports[1][1].down = 1;
	epoch++;
	cr_assert_eq(post(1, 10), -EAGAIN);
	ports[1][1].down = 0;
	epoch++;
	cr_assert_eq(post(1, 10), 0);
	cr_assert_eq(ann.lane, 1);
}

Test(recv_post, never_has_more_writes_open_than_the_queue_holds)
{
	uint32_t open = 0, covered = 0, signals = 0, i;

	begin(1);
	for (i = 0; i < 4 * CORE_SQ_WRS && post(1, 10) == 0; i++) {
		open++;
		signals += ann.signaled;
		covered = ann.signaled ? open : covered;
		cr_assert_eq(core_recv_imm(&r, 0, core_imm(i, 0, 1), 10), 0);
		core_recv_release(&r, slot);
	}
	cr_assert_leq(open, CORE_SQ_WRS);
	cr_assert_gt(signals, 0, "one of them must be completed, or the queue never empties");
	core_recv_announced(&r, 0, false);
	cr_assert_eq(post(1, 10), 0);
	cr_assert_gt(covered, 0);
}

Test(recv_imm, completes_a_message_of_one_piece)
{
	begin(1);
	post(1, 500);
	cr_assert_not(core_recv_done(&r, slot));
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 400), 0);
	cr_assert(core_recv_done(&r, slot));
	cr_assert_eq(core_recv_size(&r, slot, 0), 400);
}

Test(recv_imm, of_no_bytes_completes_too)
{
	begin(1);
	post(1, 0);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 0), 0);
	cr_assert(core_recv_done(&r, slot));
	cr_assert_eq(core_recv_size(&r, slot, 0), 0);
}

Test(recv_imm, takes_pieces_in_any_order)
{
	static const uint32_t order[] = {2, 0, 3, 1};

	begin(2);
	post(1, 500);
	for (uint32_t i = 0; i < 4; i++) {
		cr_assert_not(core_recv_done(&r, slot));
		cr_assert_eq(core_recv_imm(&r, i % 2, core_imm(0, order[i], 4), 100 + order[i]), 0);
	}
	cr_assert(core_recv_done(&r, slot));
	cr_assert_eq(core_recv_size(&r, slot, 0), 406);
}

Test(recv_imm, takes_256_pieces)
{
	begin(1);
	post(1, 256 * 128);
	for (uint32_t i = 0; i < 256; i++) {
		cr_assert_not(core_recv_done(&r, slot));
		cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, i, 256), 128), 0);
	}
	cr_assert(core_recv_done(&r, slot));
	cr_assert_eq(core_recv_size(&r, slot, 0), 256 * 128);
}

Test(recv_imm, refuses_a_piece_that_came_already)
{
	begin(1);
	post(1, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 1, 3), 100), 0);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 1, 3), 100), -EPROTO);
}

Test(recv_imm, refuses_another_count_of_pieces)
{
	begin(1);
	post(1, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 3), 100), 0);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 1, 4), 100), -EPROTO);
}

Test(recv_imm, refuses_more_bytes_than_the_buffer_has)
{
	begin(1);
	post(1, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 2), 400), 0);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 1, 2), 101), -EPROTO);
	begin(1);
	post(1, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 501), -EPROTO);
}

Test(recv_imm, refuses_an_index_past_the_count)
{
	begin(1);
	post(1, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 3, 3), 1), -EPROTO);
}

Test(recv_imm, of_another_slot_generation_changes_nothing)
{
	begin(1);
	post(1, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(CORE_SLOTS, 0, 1), 10), -ESTALE);
	cr_assert_not(core_recv_done(&r, slot));
	cr_assert_eq(r.stale_imms, 1);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 10), 0);
	cr_assert_eq(core_recv_size(&r, slot, 0), 10);
}

Test(recv_imm, of_a_free_slot_is_stale)
{
	begin(1);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 10), -ESTALE);
}

Test(recv_imm, of_a_done_message_is_stale)
{
	begin(1);
	post(1, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 10), 0);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), 10), -ESTALE);
	cr_assert_eq(core_recv_size(&r, slot, 0), 10);
}

static void sizes_tell(uint64_t seq, uint32_t n, uint32_t size)
{
	sizes[core_slot(seq)].seq = seq + 1;
	for (uint32_t i = 0; i < n; i++) {
		sizes[core_slot(seq)].size[i] = size + i;
	}
}

Test(recv_group, is_completed_by_one_immediate)
{
	begin(1);
	post(3, 500);
	sizes_tell(0, 3, 20);
	cr_assert_eq(
		core_recv_imm(&r, 0, core_imm(0, CORE_IMM_GROUP, 3), sizeof(struct core_sizes)), 0);
	cr_assert(core_recv_done(&r, slot));
	for (uint32_t i = 0; i < 3; i++) {
		cr_assert_eq(core_recv_size(&r, slot, i), 20 + i);
	}
}

Test(recv_group, is_done_only_with_all_members)
{
	begin(1);
	post(3, 500);
	for (uint32_t i = 0; i < 3; i++) {
		cr_assert_not(core_recv_done(&r, slot));
		cr_assert_eq(core_recv_imm(&r, 0, core_imm(2 - i, 0, 1), 5), 0);
	}
	cr_assert(core_recv_done(&r, slot));
}

Test(recv_group, refuses_an_immediate_without_its_sizes)
{
	begin(1);
	post(2, 500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, CORE_IMM_GROUP, 2), 64), -EPROTO);
}

Test(recv_group, refuses_another_number_of_members)
{
	begin(1);
	post(2, 500);
	sizes_tell(0, 3, 20);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, CORE_IMM_GROUP, 3), 64), -EPROTO);
}

Test(recv_group, refuses_sizes_larger_than_the_buffer)
{
	begin(1);
	post(2, 20);
	sizes_tell(0, 2, 20);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, CORE_IMM_GROUP, 2), 64), -EPROTO);
}

Test(recv_group, refuses_an_immediate_after_a_piece)
{
	begin(1);
	post(2, 500);
	sizes_tell(0, 2, 20);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(1, 0, 2), 10), 0);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, CORE_IMM_GROUP, 2), 64), -EPROTO);
}

Test(recv_group, lies_over_the_end_of_the_slots)
{
	begin(1);
	for (uint32_t i = 0; i < CORE_SLOTS - 2; i++) {
		cr_assert_eq(post(1, 10), 0);
		cr_assert_eq(core_recv_imm(&r, 0, core_imm(i, 0, 1), 10), 0);
		core_recv_release(&r, slot);
	}
	cr_assert_eq(post(4, 100), 0);
	cr_assert_eq(slot, CORE_SLOTS - 2);
	cr_assert_eq(staging[1].seq, CORE_SLOTS + 2);
	sizes_tell(CORE_SLOTS - 2, 4, 7);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(CORE_SLOTS - 2, CORE_IMM_GROUP, 4), 64), 0);
	cr_assert(core_recv_done(&r, slot));
	cr_assert_eq(core_recv_size(&r, slot, 3), 10);
}

Test(recv_split, takes_the_size_from_the_record)
{
	begin_ar(1, true);
	post(1, 5000);
	sizes_tell(0, 1, 4500);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 1, 2), 0), 0);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 2), sizeof(struct core_sizes)), 0);
	cr_assert(core_recv_done(&r, slot));
	cr_assert_eq(core_recv_size(&r, slot, 0), 4500);
}

Test(recv_split, does_not_take_a_plain_piece_of_64_bytes_for_a_record)
{
	begin_ar(1, true);
	post(1, 5000);
	cr_assert_eq(core_recv_imm(&r, 0, core_imm(0, 0, 1), sizeof(struct core_sizes)), 0);
	cr_assert_eq(core_recv_size(&r, slot, 0), 64);
}

/* `n` messages of one piece on a lane. */
static void traffic(uint32_t lane, uint64_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		cr_assert_eq(post(1, 10), 0);
		if (ann.signaled) {
			core_recv_announced(&r, ann.lane, false);
		}
		cr_assert_eq(core_recv_imm(&r, lane, core_imm(first + i, 0, 1), 10), 0);
		core_recv_release(&r, slot);
	}
}

Test(recv_refill, is_due_after_a_batch_was_taken)
{
	begin(1);
	traffic(0, 0, CORE_RQ_BATCH - 1);
	cr_assert_eq(core_recv_refill(&r, 0), 0);
	traffic(0, CORE_RQ_BATCH - 1, 1);
	cr_assert_eq(core_recv_refill(&r, 0), CORE_RQ_BATCH);
	core_recv_refilled(&r, 0, CORE_RQ_BATCH);
	cr_assert_eq(core_recv_refill(&r, 0), 0);
}

Test(recv_refill, counts_also_what_stale_immediates_took)
{
	begin(1);
	for (uint32_t i = 0; i < CORE_RQ_BATCH; i++) {
		core_recv_imm(&r, 0, core_imm(i, 0, 1), 10);
	}
	cr_assert_eq(core_recv_refill(&r, 0), CORE_RQ_BATCH);
}

Test(recv_refill, is_told_by_the_next_irecv)
{
	begin(1);
	traffic(0, 0, CORE_RQ_BATCH);
	core_recv_refilled(&r, 0, CORE_RQ_BATCH);
	cr_assert_eq(post(1, 10), 0);
	cr_assert_eq(staging[slot].posted[0], CORE_RQ_WRS + CORE_RQ_BATCH);
}

/* Take and post again a whole queue without any irecv: pieces of one message of many. */
static void queue_through(uint32_t lane)
{
	cr_assert_eq(post(1, 256 * 10), 0);
	for (uint32_t i = 0; i < CORE_RQ_WRS; i++) {
		cr_assert_eq(core_recv_imm(&r, lane, core_imm(r.next - 1, i, 256), 10), 0);
		if (core_recv_refill(&r, lane) != 0) {
			core_recv_refilled(&r, lane, CORE_RQ_BATCH);
		}
	}
	core_recv_release(&r, slot);
}

Test(recv_credit, is_due_before_the_peer_has_none_left)
{
	begin(1);
	cr_assert_not(core_recv_credit(&r, &ann));
	queue_through(0);
	cr_assert(core_recv_credit(&r, &ann));
	cr_assert(ann.credit);
	cr_assert(ann.signaled);
	cr_assert_eq(ann.first, CORE_SLOTS);
	cr_assert_eq(staging[CORE_SLOTS].posted[0], 2 * CORE_RQ_WRS);
	cr_assert_eq(staging[CORE_SLOTS].n, 0);
}

Test(recv_credit, has_one_record_on_its_way_at_a_time)
{
	begin(1);
	queue_through(0);
	cr_assert(core_recv_credit(&r, &ann));
	queue_through(0);
	cr_assert_not(core_recv_credit(&r, &ann));
	core_recv_announced(&r, ann.lane, true);
	queue_through(0);
	cr_assert(core_recv_credit(&r, &ann));
}

Test(recv_credit, waits_for_a_port_to_come_up)
{
	begin(1);
	queue_through(0);
	ports[0][0].down = 1;
	epoch++;
	cr_assert_not(core_recv_credit(&r, &ann));
	cr_assert(r.credit_waits);
	ports[0][0].down = 0;
	epoch++;
	cr_assert(core_recv_credit(&r, &ann));
	cr_assert_not(r.credit_waits);
}

Test(recv_credit, of_later_lanes_is_in_a_record_of_their_own)
{
	begin(16);
	queue_through(11);
	cr_assert(core_recv_credit(&r, &ann));
	cr_assert_eq(ann.first, CORE_SLOTS + 1);
	cr_assert_eq(staging[CORE_SLOTS + 1].block, 1);
	cr_assert_eq(staging[CORE_SLOTS + 1].posted[3], 2 * CORE_RQ_WRS);
}

Test(recv_init, refuses_counts_out_of_bounds)
{
	struct core_config cfg = {.lane_count = CORE_LANES_MAX + 1,
				  .port_count = 1,
				  .path_count = 1,
				  .signal_epoch = &epoch};

	cr_assert_eq(core_recv_init(&r, &cfg, staging, sizes), -EINVAL);
	cfg.lane_count = 0;
	cr_assert_eq(core_recv_init(&r, &cfg, staging, sizes), -EINVAL);
	cfg.lane_count = 1;
	cfg.port_count = CORE_PORTS_MAX + 1;
	cr_assert_eq(core_recv_init(&r, &cfg, staging, sizes), -EINVAL);
}
