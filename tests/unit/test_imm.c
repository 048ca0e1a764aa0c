/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_imm.c - the immediate and the wire records of core.h: what the two ends must agree on.
 */
#include <criterion/criterion.h>

#include "core/core.h"

Test(imm, has_slot_generation_index_and_count_in_bytes_from_the_lowest)
{
	cr_assert_eq(core_imm(0x1234, 5, 7), 0x06051234u);
}

Test(imm, of_a_slot_differs_after_256_messages)
{
	cr_assert_neq(core_imm(3, 0, 1), core_imm(3 + CORE_SLOTS, 0, 1));
	cr_assert_eq(core_imm(3, 0, 1) & 0xff, core_imm(3 + CORE_SLOTS, 0, 1) & 0xff);
}

Test(imm, comes_again_only_after_65536_messages)
{
	for (uint64_t seq = 1; seq < 65536; seq++) {
		cr_assert_neq(core_imm(seq, 0, 1), core_imm(0, 0, 1));
	}
	cr_assert_eq(core_imm(65536, 0, 1), core_imm(0, 0, 1));
}

Test(imm, of_256_pieces_fits)
{
	cr_assert_eq(core_imm(0, 255, 256), 0xffff0000u);
}

Test(imm, of_the_last_of_256_pieces_is_no_group)
{
	for (uint32_t n = 1; n <= CORE_GROUP_MAX; n++) {
		cr_assert_neq(core_imm(9, CORE_IMM_GROUP, n), core_imm(9, 255, 256));
	}
}

Test(imm, slot_is_the_sequence_modulo_256)
{
	cr_assert_eq(core_slot(0x123456789abull), 0xab);
}

Test(records, are_one_cache_line_with_the_sequence_last)
{
	cr_assert_eq(sizeof(struct core_cts), 64);
	cr_assert_eq(offsetof(struct core_cts, seq) + sizeof(uint64_t), 64);
	cr_assert_eq(offsetof(struct core_cts, addr), 0);
	cr_assert_eq(offsetof(struct core_cts, size), 8);
	cr_assert_eq(offsetof(struct core_cts, tag), 12);
	cr_assert_eq(offsetof(struct core_cts, mr_id), 16);
	cr_assert_eq(offsetof(struct core_cts, n), 20);
	cr_assert_eq(offsetof(struct core_cts, pressure), 24);
	cr_assert_eq(offsetof(struct core_cts, posted), 32);
}

Test(records, of_sizes_begin_with_the_sequence)
{
	cr_assert_eq(sizeof(struct core_sizes), 64);
	cr_assert_eq(offsetof(struct core_sizes, seq), 0);
	cr_assert_eq(offsetof(struct core_sizes, size), 8);
}
