/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_send.c - the sender half of a comm: matching, cutting, lanes, credits, completion.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "core/send.h"

enum {
	SMALL = 1024,
	CREDIT = CORE_RQ_WRS
};

static struct core_send s;
static struct core_cts ring[CORE_RING_RECORDS];
static struct core_port ports[2][4];
static struct core_load load[4];
static struct core_config cfg;
static uint32_t epoch;
static struct core_post p;
static uint64_t now;

static void configure(uint32_t paths, uint32_t per_path)
{
	memset(&cfg, 0, sizeof(cfg));
	memset(ports, 0, sizeof(ports));
	memset(load, 0, sizeof(load));
	memset(ring, 0, sizeof(ring));
	cfg.path_count = cfg.port_count = paths;
	cfg.lane_count = paths * per_path;
	cfg.small_bytes = SMALL;
	cfg.window_us = 1000;
	cfg.pressure_max_pct = 25;
	cfg.ar_threshold = 2048;
	cfg.signal_epoch = &epoch;
	for (uint32_t i = 0; i < paths; i++) {
		ports[0][i].mbps = ports[1][i].mbps = 100000;
		cfg.local[i] = &ports[0][i];
		cfg.remote[i] = &ports[1][i];
		cfg.load[i] = &load[i];
	}
	for (uint32_t i = 0; i < cfg.lane_count; i++) {
		cfg.lane[i].port = cfg.lane[i].remote = (uint8_t)(i % paths);
	}
}

static void open_lanes(uint16_t credit)
{
	now = 1000000;
	cr_assert_eq(core_send_init(&s, &cfg, ring), 0);
	for (uint32_t i = 0; i < cfg.lane_count; i++) {
		core_send_lane_open(&s, i, 1, credit);
	}
}

static void begin(uint32_t paths)
{
	configure(paths, 1);
	open_lanes(CREDIT);
}

/* The peer announces member `index` of a group of `n`. */
static struct core_cts *announce(uint64_t seq, uint32_t n, uint32_t index, uint32_t tag,
				 uint32_t size)
{
	struct core_cts *rec = &ring[core_slot(seq)];

	rec->addr = 0x100000 * (seq + 1);
	rec->size = size;
	rec->tag = tag;
	rec->mr_id = 9;
	rec->n = (uint8_t)n;
	rec->index = (uint8_t)index;
	rec->seq = seq + 1;
	for (uint32_t i = 0; i < CORE_CREDIT_BLOCK; i++) {
		rec->posted[i] = CREDIT;
	}
	return rec;
}

static int match(uint32_t tag, uint64_t *seq)
{
	const struct core_cts *rec;

	return core_send_match(&s, tag, &rec, seq);
}

/* isend: match and start. Returns the slot. */
static uint32_t start(uint32_t tag, uint32_t size)
{
	const struct core_cts *rec;
	uint64_t seq;

	cr_assert_eq(core_send_match(&s, tag, &rec, &seq), 0);
	return core_send_start(&s, rec, seq, size, now);
}

static bool next(void)
{
	memset(&p, 0, sizeof(p));
	return core_send_next(&s, now, &p);
}

/* A message of one piece goes through; seq is its sequence. */
static void through(uint64_t seq, uint32_t size)
{
	announce(seq, 1, 0, 1, size);
	uint32_t slot = start(1, size);

	cr_assert(next());
	cr_assert_eq(core_send_complete(&s, p.lane, 1, p.unit, now), 0);
	cr_assert(core_send_done(&s, slot));
	core_send_release(&s, slot);
}

Test(send_match, finds_nothing_before_the_record_is_here)
{
	uint64_t seq;

	begin(1);
	cr_assert_eq(match(1, &seq), -EAGAIN);
	cr_assert_not(core_send_announced(&s));
	announce(0, 1, 0, 1, 100);
	cr_assert(core_send_announced(&s));
	cr_assert_eq(match(1, &seq), 0);
	cr_assert_eq(seq, 0);
}

Test(send_match, does_not_take_a_torn_record)
{
	uint64_t seq;

	begin(1);
	announce(0, 1, 0, 1, 100)->seq = 0;
	cr_assert_eq(match(1, &seq), -EAGAIN);
}

Test(send_match, does_not_take_the_record_of_the_lap_before)
{
	uint64_t seq;

	begin(1);
	for (uint64_t i = 0; i < CORE_SLOTS; i++) {
		through(i, 10);
	}
	cr_assert_eq(match(1, &seq), -EAGAIN);
	announce(CORE_SLOTS, 1, 0, 1, 100);
	cr_assert_eq(match(1, &seq), 0);
	cr_assert_eq(seq, CORE_SLOTS);
}

Test(send_match, waits_for_the_older_record_when_a_newer_one_is_here)
{
	uint64_t seq;

	begin(1);
	announce(1, 1, 0, 1, 100);
	cr_assert_eq(match(1, &seq), -EAGAIN);
	announce(0, 1, 0, 1, 100);
	cr_assert_eq(match(1, &seq), 0);
	cr_assert_eq(seq, 0);
}

Test(send_match, does_not_look_past_the_oldest_group)
{
	uint64_t seq;

	begin(1);
	announce(0, 1, 0, 1, 100);
	announce(1, 1, 0, 2, 100);
	cr_assert_eq(match(2, &seq), -EAGAIN);
}

Test(send_match, goes_by_tag_inside_a_group)
{
	uint64_t seq;

	begin(1);
	for (uint32_t i = 0; i < 3; i++) {
		announce(i, 3, i, 10 + i, 100);
	}
	cr_assert_eq(match(12, &seq), 0);
	cr_assert_eq(seq, 2);
	cr_assert_eq(match(10, &seq), 0);
	cr_assert_eq(seq, 0);
	cr_assert_eq(match(9, &seq), -EAGAIN);
}

Test(send_match, gives_members_of_one_tag_in_order)
{
	uint64_t seq;

	begin(1);
	for (uint32_t i = 0; i < 3; i++) {
		announce(i, 3, i, 10, 100);
	}
	for (uint64_t i = 0; i < 3; i++) {
		cr_assert_eq(match(10, &seq), 0);
		cr_assert_eq(seq, i);
		start(10, 50);
	}
	cr_assert_eq(match(10, &seq), -EAGAIN);
}

Test(send_match, needs_all_records_of_a_group)
{
	uint64_t seq;

	begin(1);
	announce(0, 3, 0, 10, 100);
	announce(2, 3, 2, 12, 100);
	cr_assert_eq(match(10, &seq), -EAGAIN);
	announce(1, 3, 1, 11, 100);
	cr_assert_eq(match(10, &seq), 0);
}

Test(send_match, refuses_nonsense)
{
	uint64_t seq;

	begin(1);
	announce(0, CORE_GROUP_MAX + 1, 0, 1, 100);
	cr_assert_eq(match(1, &seq), -EPROTO);
	announce(0, 0, 0, 1, 100);
	cr_assert_eq(match(1, &seq), -EPROTO);
	announce(0, 2, 0, 1, 100);
	announce(1, 2, 0, 2, 100);
	cr_assert_eq(match(1, &seq), -EPROTO, "two members 0");
	announce(1, 3, 1, 2, 100);
	cr_assert_eq(match(1, &seq), -EPROTO, "two sizes of one group");
}

Test(send_match, is_refused_while_the_slot_is_in_use)
{
	uint64_t seq;

	begin(1);
	announce(0, 1, 0, 1, 100);
	uint32_t slot = start(1, 100);

	cr_assert(next());
	uint32_t unit = p.unit;

	for (uint64_t i = 1; i < CORE_SLOTS; i++) {
		announce(i, 1, 0, 1, 10);
		start(1, 10);
		next();
	}
	announce(CORE_SLOTS, 1, 0, 1, 100);
	cr_assert_eq(match(1, &seq), -EAGAIN);
	cr_assert_eq(core_send_complete(&s, 0, 1, unit, now), 0);
	cr_assert_eq(match(1, &seq), -EAGAIN, "done, but not released");
	core_send_release(&s, slot);
	cr_assert_eq(match(1, &seq), 0);
}

Test(send_start, clips_to_the_buffer)
{
	begin(1);
	announce(0, 1, 0, 1, 100);
	start(1, 300);
	cr_assert(next());
	cr_assert_eq(p.bytes, 100);
	cr_assert_eq(s.msg[0].size, 100);
}

Test(send_next, hands_out_a_small_message_whole)
{
	begin(4);
	announce(0, 1, 0, 1, SMALL);
	start(1, SMALL);
	cr_assert(next());
	cr_assert_eq(p.bytes, SMALL);
	cr_assert_eq(p.addr, ring[0].addr);
	cr_assert_eq(p.mr_id, 9);
	cr_assert_eq(p.imm, core_imm(0, 0, 1));
	cr_assert_not(next());
}

Test(send_next, hands_out_a_message_of_no_bytes)
{
	begin(2);
	announce(0, 1, 0, 1, 100);
	uint32_t slot = start(1, 0);

	cr_assert(next());
	cr_assert_eq(p.bytes, 0);
	cr_assert_not(core_send_done(&s, slot));
	cr_assert_eq(core_send_complete(&s, p.lane, 1, p.unit, now), 0);
	cr_assert(core_send_done(&s, slot));
}

Test(send_next, splits_evenly_on_equal_lanes)
{
	uint32_t lanes = 0, at = 0;

	begin(4);
	announce(0, 1, 0, 1, 64 << 10);
	start(1, 64 << 10);
	for (uint32_t i = 0; i < 4; i++) {
		cr_assert(next());
		cr_assert_eq(p.bytes, 16 << 10);
		cr_assert_eq(p.offset, at);
		cr_assert_eq(p.imm, core_imm(0, i, 4));
		at += p.bytes;
		lanes |= 1u << p.lane;
	}
	cr_assert_not(next());
	cr_assert_eq(lanes, 0xf, "each lane once");
}

Test(send_next, cuts_at_lines_only)
{
	for (uint32_t size = SMALL + 1; size < 20000; size += 777) {
		uint32_t at = 0;

		begin(3);
		announce(0, 1, 0, 1, size);
		start(1, size);
		while (next()) {
			cr_assert_eq(p.offset, at);
			cr_assert_eq(p.offset % CORE_ALIGN, 0);
			at += p.bytes;
		}
		cr_assert_eq(at, size);
	}
}

Test(send_next, never_makes_more_than_256_pieces)
{
	uint32_t count = 0;

	begin(2);
	ports[0][1].down = 1;
	epoch++;
	announce(0, 1, 0, 1, 1u << 30);
	start(1, 1u << 30);
	while (next()) {
		cr_assert_leq((p.imm >> 24) + 1, CORE_PIECES_MAX);
		count++;
		cr_assert_eq(core_send_complete(&s, p.lane, 1, p.unit, now), 0);
	}
	cr_assert_leq(count, CORE_PIECES_MAX);
	cr_assert(core_send_done(&s, 0));
}

Test(send_next, gives_nothing_to_a_lane_whose_port_is_down)
{
	for (uint32_t side = 0; side < 2; side++) {
		uint32_t sum = 0;

		begin(2);
		ports[side][1].down = 1;
		epoch++;
		announce(0, 1, 0, 1, 64 << 10);
		start(1, 64 << 10);
		while (next()) {
			cr_assert_eq(p.lane, 0);
			cr_assert_eq(core_send_complete(&s, p.lane, 1, p.unit, now), 0);
			sum += p.bytes;
		}
		cr_assert_eq(sum, 64 << 10);
	}
}

Test(send_next, moves_equal_pieces_off_a_port_that_went_down_after_the_cut)
{
	begin(2);
	announce(0, 1, 0, 1, 64 << 10);
	start(1, 64 << 10);
	ports[0][0].down = 1;
	epoch++;
	cr_assert(next());
	cr_assert_eq(p.lane, 1);
	cr_assert(next());
	cr_assert_eq(p.lane, 1);
}

Test(send_next, waits_while_all_ports_are_down)
{
	begin(2);
	ports[0][0].down = ports[1][1].down = 1;
	epoch++;
	announce(0, 1, 0, 1, 100);
	start(1, 100);
	cr_assert_not(next());
	ports[0][0].down = 0;
	epoch++;
	cr_assert(next());
	cr_assert_eq(p.lane, 0);
}

Test(send_next, uses_a_drained_port_only_when_no_other_lives)
{
	begin(2);
	ports[0][0].drain = 1;
	epoch++;
	announce(0, 1, 0, 1, 100);
	start(1, 100);
	cr_assert(next());
	cr_assert_eq(p.lane, 1);
	ports[0][1].down = 1;
	epoch++;
	announce(1, 1, 0, 1, 100);
	start(1, 100);
	cr_assert(next());
	cr_assert_eq(p.lane, 0);
}

Test(send_next, uses_the_repaired_port_again_in_observe_mode)
{
	configure(2, 1);
	cfg.observe = true;
	open_lanes(CREDIT);
	ports[0][0].down = 1;
	epoch++;
	announce(0, 1, 0, 1, 64 << 10);
	start(1, 64 << 10);
	while (next()) {
		cr_assert_eq(p.lane, 1);
	}
	ports[0][0].down = 0;
	epoch++;
	cr_assert(next());
	cr_assert_eq(p.lane, 0);
}

Test(send_credit, stops_a_lane)
{
	configure(1, 1);
	open_lanes(2);
	for (uint64_t i = 0; i < 3; i++) {
		memset(announce(i, 1, 0, 1, 100)->posted, 0, sizeof(ring[0].posted));
		ring[i].posted[0] = 2;
		start(1, 100);
		cr_assert_eq(next(), i < 2);
	}
}

Test(send_credit, moves_a_small_message_to_another_lane)
{
	configure(2, 1);
	open_lanes(1);
	for (uint64_t i = 0; i < 2; i++) {
		uint32_t before = p.lane;

		announce(i, 1, 0, 1, 100);
		ring[i].posted[0] = ring[i].posted[1] = 1;
		start(1, 100);
		cr_assert(next());
		cr_assert(i == 0 || p.lane != before);
	}
}

Test(send_credit, is_read_from_a_credit_record)
{
	configure(1, 1);
	open_lanes(1);
	announce(0, 1, 0, 1, 100)->posted[0] = 1;
	announce(1, 1, 0, 1, 100)->posted[0] = 1;
	start(1, 100);
	start(1, 100);
	cr_assert(next());
	cr_assert_not(next());
	ring[CORE_SLOTS].posted[0] = 2;
	cr_assert(next());
}

Test(send_credit, is_read_from_a_record_that_is_not_matched_yet)
{
	configure(1, 1);
	open_lanes(1);
	announce(0, 1, 0, 1, 100)->posted[0] = 1;
	announce(1, 1, 0, 1, 100)->posted[0] = 1;
	start(1, 100);
	start(1, 100);
	cr_assert(next());
	cr_assert_not(next());
	announce(2, 1, 0, 5, 100)->posted[0] = 2;
	cr_assert(next());
}

Test(send_credit, does_not_go_back_with_an_old_record)
{
	configure(1, 1);
	open_lanes(2);
	announce(0, 1, 0, 1, 100)->posted[0] = 2;
	announce(1, 1, 0, 1, 100)->posted[0] = 1;
	announce(2, 1, 0, 1, 100)->posted[0] = 1;
	for (uint32_t i = 0; i < 3; i++) {
		start(1, 100);
		cr_assert_eq(next(), i < 2);
	}
	ring[CORE_SLOTS].posted[0] = 1;
	cr_assert_not(next());
}

/* A count is mod 2^16; one that is far behind must not look as if it were ahead. */
Test(send_credit, of_long_ago_is_not_new)
{
	configure(1, 1);
	open_lanes(1);
	announce(0, 1, 0, 1, 100)->posted[0] = 1;
	announce(1, 1, 0, 1, 100)->posted[0] = 1;
	start(1, 100);
	start(1, 100);
	cr_assert(next());
	ring[CORE_SLOTS].posted[0] = (uint16_t)(1 - 40000);
	cr_assert_not(next());
}

Test(send_credit, goes_over_65535)
{
	configure(1, 1);
	open_lanes(CREDIT);
	for (uint64_t i = 0; i < 70000; i++) {
		announce(i, 1, 0, 1, 10);
		for (uint32_t k = 0; k < CORE_CREDIT_BLOCK; k++) {
			ring[core_slot(i)].posted[k] = (uint16_t)(i + CREDIT);
		}
		uint32_t slot = start(1, 10);

		cr_assert(next(), "message %lu", (unsigned long)i);
		core_send_complete(&s, 0, 1, p.unit, now);
		core_send_release(&s, slot);
	}
}

Test(send_lane, holds_no_more_units_than_its_ring)
{
	uint32_t n = 0;

	begin(1);
	for (uint64_t i = 0; i < CORE_SLOTS; i++) {
		announce(i, 1, 0, 1, 10)->posted[0] = 2 * CREDIT;
		start(1, 10);
	}
	while (next()) {
		n++;
	}
	cr_assert_eq(n, CORE_WR_RING - 1, "a full ring would look empty");
}

Test(send_complete, stands_for_all_units_before)
{
	uint32_t slot[3], unit = 0;

	begin(1);
	for (uint32_t i = 0; i < 3; i++) {
		announce(i, 1, 0, 1, 10);
		slot[i] = start(1, 10);
		cr_assert(next());
		unit = i == 1 ? p.unit : unit;
	}
	cr_assert_eq(core_send_complete(&s, 0, 1, unit, now), 0);
	cr_assert(core_send_done(&s, slot[0]));
	cr_assert(core_send_done(&s, slot[1]));
	cr_assert_not(core_send_done(&s, slot[2]));
}

Test(send_complete, of_another_generation_changes_nothing)
{
	begin(1);
	announce(0, 1, 0, 1, 10);
	uint32_t slot = start(1, 10);

	cr_assert(next());
	cr_assert_eq(core_send_complete(&s, 0, 2, p.unit, now), -ESTALE);
	cr_assert_not(core_send_done(&s, slot));
}

Test(send_complete, of_a_unit_not_in_flight_is_stale)
{
	begin(1);
	announce(0, 1, 0, 1, 10);
	start(1, 10);
	cr_assert(next());
	cr_assert_eq(core_send_complete(&s, 0, 1, p.unit + 1, now), -ESTALE);
	cr_assert_eq(core_send_complete(&s, 0, 1, p.unit, now), 0);
	cr_assert_eq(core_send_complete(&s, 0, 1, p.unit, now), -ESTALE);
}

Test(send_complete, of_all_pieces_makes_the_message_done)
{
	struct core_post posts[4];

	begin(4);
	announce(0, 1, 0, 1, 64 << 10);
	uint32_t slot = start(1, 64 << 10);

	for (uint32_t i = 0; i < 4; i++) {
		cr_assert(next());
		posts[i] = p;
	}
	for (uint32_t i = 0; i < 4; i++) {
		cr_assert_not(core_send_done(&s, slot));
		cr_assert_eq(core_send_complete(&s, posts[3 - i].lane, 1, posts[3 - i].unit, now),
			     0);
	}
	cr_assert(core_send_done(&s, slot));
}

Test(send_busy, names_the_ports_to_poll)
{
	begin(4);
	cr_assert_eq(s.busy_ports, 0);
	announce(0, 1, 0, 1, 10);
	start(1, 10);
	cr_assert(next());
	cr_assert_eq(s.busy_ports, 1u << p.lane);
	core_send_complete(&s, p.lane, 1, p.unit, now);
	cr_assert_eq(s.busy_ports, 0);
}

Test(send_group, is_one_unit_once_all_members_are_matched)
{
	begin(2);
	for (uint32_t i = 0; i < 3; i++) {
		announce(i, 3, i, 10 + i, 100);
	}
	start(11, 50);
	cr_assert_not(next());
	start(12, 60);
	cr_assert_not(next());
	start(10, 70);
	cr_assert(next());
	cr_assert_eq(p.group_n, 3);
	cr_assert_eq(p.slot, 0);
	cr_assert_eq(p.imm, core_imm(0, CORE_IMM_GROUP, 3));
	cr_assert_eq(core_send_complete(&s, p.lane, 1, p.unit, now), 0);
	cr_assert_not(next());
	for (uint32_t i = 0; i < 3; i++) {
		cr_assert(core_send_done(&s, i));
	}
}

Test(send_group, takes_one_credit)
{
	configure(1, 1);
	open_lanes(1);
	announce(0, 2, 0, 10, 100)->posted[0] = 1;
	announce(1, 2, 1, 10, 100)->posted[0] = 1;
	start(10, 50);
	start(10, 50);
	cr_assert(next());
	cr_assert_eq(p.group_n, 2);
}

Test(send_group, with_a_member_that_is_cut_goes_as_pieces)
{
	uint32_t seen = 0;

	begin(2);
	for (uint32_t i = 0; i < 3; i++) {
		announce(i, 3, i, 10 + i, 64 << 10);
	}
	start(10, 100);
	start(11, 64 << 10);
	start(12, 100);
	while (next()) {
		cr_assert_eq(p.group_n, 0);
		seen |= 1u << p.slot;
		core_send_complete(&s, p.lane, 1, p.unit, now);
	}
	cr_assert_eq(seen, 7);
	for (uint32_t i = 0; i < 3; i++) {
		cr_assert(core_send_done(&s, i));
	}
}

Test(send_group, too_large_for_one_unit_goes_as_pieces)
{
	begin(1);
	for (uint32_t i = 0; i < 2; i++) {
		announce(i, 2, i, 10 + i, 3u << 30);
	}
	start(10, 3u << 30);
	start(11, 3u << 30);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(next());
		cr_assert_eq(p.group_n, 0);
		cr_assert_eq(p.bytes, 3u << 30);
	}
	cr_assert_eq(s.queued_bytes, 0);
}

Test(send_split, asks_for_two_work_requests_and_one_record)
{
	configure(2, 1);
	cfg.adaptive_routing = true;
	open_lanes(CREDIT);
	announce(0, 1, 0, 1, 64 << 10);
	start(1, 64 << 10);
	cr_assert(next());
	cr_assert(p.split_imm);
	cr_assert(p.sizes);
	cr_assert(next());
	cr_assert(p.split_imm);
	cr_assert_not(p.sizes);
}

Test(send_load, of_a_port_goes_back_to_zero)
{
	begin(2);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t size = i == 0 ? 40960 : 2048;
		const struct core_cts *rec;
		uint64_t seq;

		announce(i, 1, 0, 1, size);
		cr_assert_eq(core_send_match(&s, 1, &rec, &seq), 0);
		cr_assert(core_send_equal(&s, rec, seq, size, now));
		for (uint32_t l = 0; l < 2; l++) {
			cr_assert_eq(s.lane[l].inflight_bytes, size / 2);
			cr_assert_eq(load[l].inflight_bytes, i == 0 ? size / 2 : 0);
			core_send_complete(&s, l, 1, core_lane_newest(&s.lane[l]), now);
		}
		cr_assert(core_send_done(&s, i));
		cr_assert_eq(load[0].inflight_bytes + load[1].inflight_bytes, 0);
	}
}

Test(send_quick, does_what_start_and_next_do)
{
	const struct core_cts *rec;
	uint64_t seq;
	uint32_t unit;

	begin(1);
	through(0, 10);
	announce(1, 1, 0, 1, 100);
	cr_assert_eq(core_send_match(&s, 1, &rec, &seq), 0);
	cr_assert_eq(core_send_quick(&s, rec, seq, 300, &unit), 0);
	cr_assert_eq(s.msg[1].size, 100);
	cr_assert_eq(match(1, &seq), -EAGAIN, "the record is used up");
	cr_assert_not(core_send_done(&s, 1));
	cr_assert_eq(core_send_complete(&s, 0, 1, unit, now), 0);
	cr_assert(core_send_done(&s, 1));
}

Test(send_quick, declines_while_something_is_queued)
{
	const struct core_cts *rec;
	uint64_t seq;
	uint32_t unit;

	begin(1);
	through(0, 10);
	announce(1, 1, 0, 1, 100);
	announce(2, 1, 0, 1, 100);
	start(1, 10);
	cr_assert_eq(core_send_match(&s, 1, &rec, &seq), 0);
	cr_assert_lt(core_send_quick(&s, rec, seq, 10, &unit), 0);
}

Test(send_quick, declines_when_a_word_changed)
{
	const struct core_cts *rec;
	uint64_t seq;
	uint32_t unit;

	begin(1);
	through(0, 10);
	announce(1, 1, 0, 1, 100);
	ports[0][0].down = 1;
	epoch++;
	cr_assert_eq(core_send_match(&s, 1, &rec, &seq), 0);
	cr_assert_lt(core_send_quick(&s, rec, seq, 10, &unit), 0);
}

/* Two lanes with rates: when what is posted on them is through. */
struct wire {
	uint64_t free_at[2];
	uint64_t bytes[2];
	uint32_t ns_per_12_bytes[2];
	uint32_t n;
	struct core_post post[64];
	uint64_t end[64];
};

static void wire_post(struct wire *w)
{
	while (w->n < 64 && next()) {
		uint64_t *at = &w->free_at[p.lane];

		*at = (*at > now ? *at : now) + (uint64_t)p.bytes * w->ns_per_12_bytes[p.lane] / 12;
		w->bytes[p.lane] += p.bytes;
		w->end[w->n] = *at;
		w->post[w->n++] = p;
	}
}

static void wire_poll(struct wire *w)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < w->n; i++) {
		if (w->end[i] <= now) {
			core_send_complete(&s, w->post[i].lane, 1, w->post[i].unit, now);
			continue;
		}
		w->post[kept] = w->post[i];
		w->end[kept++] = w->end[i];
	}
	s.idle_polls += kept == w->n;
	w->n = kept;
}

static void wire_message(struct wire *w, uint64_t seq, uint32_t size)
{
	struct core_cts *rec = announce(seq, 1, 0, 1, size);

	rec->posted[0] = (uint16_t)(s.lane[0].posted + CREDIT);
	rec->posted[1] = (uint16_t)(s.lane[1].posted + CREDIT);
	uint32_t slot = start(1, size);

	while (!core_send_done(&s, slot)) {
		wire_post(w);
		now += 2000;
		wire_poll(w);
	}
	core_send_release(&s, slot);
}

Test(send_plan, gives_a_slow_lane_its_share_only)
{
	struct wire w = {.ns_per_12_bytes = {1, 4}};

	begin(2);
	for (uint64_t seq = 0; seq < 300; seq++) {
		if (seq == 100) {
			w.bytes[0] = w.bytes[1] = 0;
		}
		wire_message(&w, seq, 1 << 20);
	}
	/* Fair is 200 of 1000. */
	uint64_t share = w.bytes[1] * 1000 / (w.bytes[0] + w.bytes[1]);

	cr_assert(share >= 120 && share <= 260, "lane 1 got %lu of 1000", (unsigned long)share);
}

Test(send_plan, gives_equal_lanes_equal_shares)
{
	struct wire w = {.ns_per_12_bytes = {2, 2}};

	begin(2);
	for (uint64_t seq = 0; seq < 300; seq++) {
		wire_message(&w, seq, 1 << 20);
	}
	cr_assert_eq(w.bytes[0], w.bytes[1]);
}

Test(send_init, refuses_counts_out_of_bounds)
{
	configure(1, 1);
	cfg.lane_count = CORE_LANES_MAX + 1;
	cr_assert_eq(core_send_init(&s, &cfg, ring), -EINVAL);
	cfg.lane_count = 0;
	cr_assert_eq(core_send_init(&s, &cfg, ring), -EINVAL);
	configure(2, 1);
	cfg.path_count = 0;
	cr_assert_eq(core_send_init(&s, &cfg, ring), -EINVAL);
	cfg.path_count = 2;
	cfg.lane_count = 3;
	cr_assert_eq(core_send_init(&s, &cfg, ring), -EINVAL);
}
