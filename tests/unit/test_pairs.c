/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_pairs.c - pairing of ports: by subnet where addresses show it, else by index.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "pairs.h"

enum { ETHERNET = 2, INFINIBAND = 1 };

/* Port with address 10.77.SUBNET.HOST. */
static struct wire_port port_v4(uint8_t subnet, uint8_t host)
{
	struct wire_port p = { .link_layer = ETHERNET };
	const uint8_t gid[16] = { [10] = 0xff, [11] = 0xff, 10, 77, subnet, host };

	memcpy(p.gid, gid, sizeof(gid));
	return p;
}

static void expect(const struct pair *got, int path, int theirs, int ours)
{
	cr_expect_eq(got->path, path);
	cr_expect_eq(got->theirs, theirs);
	cr_expect_eq(got->ours, ours);
}

Test(pairs, equal_rails_pair_by_index)
{
	struct wire_port a[4], b[4];
	struct pair out[CORE_PORTS_MAX];

	for (uint8_t i = 0; i < 4; i++) {
		a[i] = port_v4(i, 1);
		b[i] = port_v4(i, 2);
	}
	cr_assert_eq(pairs_choose(a, 4, b, 4, out), 4);
	for (int i = 0; i < 4; i++) {
		expect(&out[i], i, i, i);
	}
}

Test(pairs, one_port_meets_only_its_own_rail_of_four)
{
	struct wire_port a = port_v4(2, 1), b[4];
	struct pair out[CORE_PORTS_MAX];

	for (uint8_t i = 0; i < 4; i++) {
		b[i] = port_v4(i, 2);
	}
	cr_assert_eq(pairs_choose(&a, 1, b, 4, out), 1);
	expect(&out[0], 0, 0, 2);
	cr_assert_eq(pairs_choose(b, 4, &a, 1, out), 1);
	expect(&out[0], 2, 2, 0);
}

Test(pairs, rails_in_another_order_find_each_other)
{
	struct wire_port a[2] = { port_v4(0, 1), port_v4(1, 1) };
	struct wire_port b[2] = { port_v4(1, 2), port_v4(0, 2) };
	struct pair out[CORE_PORTS_MAX];

	cr_assert_eq(pairs_choose(a, 2, b, 2, out), 2);
	expect(&out[0], 0, 0, 1);
	expect(&out[1], 1, 1, 0);
}

Test(pairs, one_flat_subnet_uses_every_port_of_the_wider_end)
{
	struct wire_port a = port_v4(9, 1), b[4];
	struct pair out[CORE_PORTS_MAX];

	for (uint8_t i = 0; i < 4; i++) {
		b[i] = port_v4(9, (uint8_t)(10 + i));
	}
	cr_assert_eq(pairs_choose(&a, 1, b, 4, out), 4);
	for (int i = 0; i < 4; i++) {
		expect(&out[i], i, 0, i);
	}
}

Test(pairs, routed_subnets_that_nobody_shares_pair_by_index)
{
	struct wire_port a[2] = { port_v4(1, 1), port_v4(2, 1) };
	struct wire_port b[3] = { port_v4(11, 1), port_v4(12, 1), port_v4(13, 1) };
	struct pair out[CORE_PORTS_MAX];

	cr_assert_eq(pairs_choose(a, 2, b, 3, out), 3);
	expect(&out[0], 0, 0, 0);
	expect(&out[1], 1, 1, 1);
	expect(&out[2], 2, 0, 2);
}

Test(pairs, infiniband_and_ethernet_never_pair)
{
	struct wire_port a = port_v4(1, 1), b = port_v4(1, 2);
	struct pair out[CORE_PORTS_MAX];

	b.link_layer = INFINIBAND;
	cr_assert_eq(pairs_choose(&a, 1, &b, 1, out), 0);
}
