/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_hca.c - NCCL_IB_HCA: the syntax, and which port an entry means.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "device_hca.h"

struct hca_case {
	const char *text;
	const char *ibdev;
	int port, ports;
	bool used, named;
	int rail, plane;
};

static const struct hca_case cases[] = {
	/* no filter */
	{"", "mlx5_0", 1, 1, true, false, -1, -1},
	{NULL, "mlx5_0", 1, 1, true, false, -1, -1},
	{"^", "mlx5_0", 1, 1, true, false, -1, -1},
	{"=", "mlx5_0", 1, 1, true, false, -1, -1},
	{",,", "mlx5_0", 1, 1, true, false, -1, -1},
	/* prefixes */
	{"mlx5", "mlx5_0", 1, 1, true, false, -1, -1},
	{"mlx5_1", "mlx5_10", 1, 1, true, false, -1, -1},
	{"mlx5_1", "mlx5_2", 1, 1, false, false, -1, -1},
	{"mlx5_1", "mlx5_", 1, 1, false, false, -1, -1},
	{"rxe0,mlx5", "mlx5_3", 1, 1, true, false, -1, -1},
	{"rxe0,,mlx5,", "mlx5_3", 1, 1, true, false, -1, -1},
	/* whole names */
	{"=mlx5_1", "mlx5_10", 1, 1, false, false, -1, -1},
	{"=mlx5_1", "mlx5_1", 1, 1, true, true, -1, -1},
	{"=mlx5_1", "mlx5_1", 2, 2, true, false, -1, -1},
	{"=mlx5_1:2", "mlx5_1", 2, 2, true, true, -1, -1},
	{"=mlx5_0,mlx5_1", "mlx5_1", 1, 1, true, true, -1, -1},
	/* a whole name without '=' is a prefix: a down port stays out, as NCCL has it */
	{"mlx5_1:1", "mlx5_1", 1, 1, true, false, -1, -1},
	/* ports */
	{"mlx5_0:2", "mlx5_0", 1, 2, false, false, -1, -1},
	{"mlx5_0:2", "mlx5_0", 2, 2, true, false, -1, -1},
	{"mlx5_0:-1", "mlx5_0", 2, 2, true, false, -1, -1},
	/* all but */
	{"^mlx5", "mlx5_0", 1, 1, false, false, -1, -1},
	{"^mlx5", "rxe0", 1, 1, true, false, -1, -1},
	{"^=mlx5_1", "mlx5_1", 1, 1, false, false, -1, -1},
	{"^=mlx5_1", "mlx5_10", 1, 1, true, false, -1, -1},
	{"^mlx5_0:2", "mlx5_0", 1, 2, true, false, -1, -1},
	/* rails and planes; the first entry that fits counts */
	{"mlx5_0:1:3:1", "mlx5_0", 1, 1, true, false, 3, 1},
	{"mlx5_0:1:3", "mlx5_0", 1, 1, true, false, 3, -1},
	{"mlx5_0:-1:-1:2", "mlx5_0", 1, 1, true, false, -1, 2},
	{"mlx5_0:1:0,mlx5:1:9", "mlx5_0", 1, 1, true, false, 0, -1},
	{"mlx5_0:1:0,mlx5:1:9", "mlx5_1", 1, 1, true, false, 9, -1},
	{"=mlx5_0:1:32767:16383", "mlx5_0", 1, 1, true, true, 32767, 16383},
};

Test(hca, an_entry_means_what_nccl_means)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct hca_case *c = &cases[i];
		struct hca_filter filter;
		struct hca_match match;
		char why[64];

		cr_assert_eq(hca_parse(c->text, &filter, why, sizeof(why)), 0, "%s", c->text);
		match = hca_match(&filter, c->ibdev, c->port, c->ports);
		cr_assert_eq(match.used, c->used, "%s %s:%d", c->text, c->ibdev, c->port);
		cr_assert_eq(match.named, c->named, "%s %s:%d", c->text, c->ibdev, c->port);
		cr_assert_eq(match.rail, c->rail, "%s %s:%d", c->text, c->ibdev, c->port);
		cr_assert_eq(match.plane, c->plane, "%s %s:%d", c->text, c->ibdev, c->port);
	}
}

static void refused(const char *text, const char *reason)
{
	struct hca_filter filter;
	char why[128] = "";

	cr_assert_eq(hca_parse(text, &filter, why, sizeof(why)), -EINVAL, "%s", text);
	cr_assert(strstr(why, reason), "%s: '%s' does not say '%s'", text, why, reason);
	cr_assert_eq(filter.count, 0, "%s", text);
	cr_assert(hca_match(&filter, "mlx5_0", 1, 1).used, "%s", text);
}

Test(hca, a_bad_list_says_where_and_filters_nothing)
{
	refused("rxe0,mlx5_0:x", "'mlx5_0:x'");
	refused(":1", "':1'");
	refused("mlx5_0:", "'mlx5_0:'");
	refused("mlx5_0:1:", "'mlx5_0:1:'");
	refused("mlx5_0:1:2:3:4", "'mlx5_0:1:2:3:4'");
	refused("mlx5_0:1x", "'mlx5_0:1x'");
	refused("mlx5_0:256", "'mlx5_0:256'");
	refused("mlx5_0:-2", "'mlx5_0:-2'");
	refused("mlx5_0:1:32768", "'mlx5_0:1:32768'");
	refused("mlx5_0:1:0:16384", "'mlx5_0:1:0:16384'");
	refused("mlx5_0:99999999999999999999", "'mlx5_0:9");
	refused("a2345678901234567890123456789012345678901234567890123456789012345", "'a23");
}

Test(hca, at_most_32_entries)
{
	struct hca_filter filter;
	char text[256] = "";
	char why[64];

	for (int i = 0; i < HCA_ENTRIES_MAX; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "a%d,", i);
	cr_assert_eq(hca_parse(text, &filter, why, sizeof(why)), 0);
	cr_assert_eq(filter.count, HCA_ENTRIES_MAX);
	strcat(text, "b");
	refused(text, "more than 32 entries");
}

Test(hca, at_most_12_planes)
{
	struct hca_filter filter;
	char text[512] = "";
	char why[64];

	for (int i = 0; i < 24; i++) /* each plane twice */
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "a%d:1:0:%d,", i, i / 2);
	cr_assert_eq(hca_parse(text, &filter, why, sizeof(why)), 0);
	strcat(text, "b:1:0:99");
	refused(text, "more than 12 different planes");
}
