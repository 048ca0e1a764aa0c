/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_config.c - config.h: defaults, parsing, one line per bad value, and the table as printed.
 */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "config.h"
#include "log_capture.h"

/* Variables of whoever runs the tests must not matter. */
static void clear(void)
{
	for (unsigned i = 0; i < config_count(); i++)
		unsetenv(config_name(i));
}

static void load(const char *name, const char *value)
{
	clear();
	setenv(name, value, 1);
	capture_start();
	config_reload();
}

TestSuite(config, .init = clear);

Test(config, defaults)
{
	capture_start();
	config_reload();
	cr_assert_eq(capture.count, 0);
	cr_assert_eq(config.ib_disable, 0);
	cr_assert_str_eq(config.ib_hca, "");
	cr_assert_eq(config.ib_merge_vfs, 1);
	cr_assert_eq(config.ib_pci_relaxed_ordering, 2);
	cr_assert_eq(config.ib_gid_index, -1);
	cr_assert_eq(config.ib_roce_version_num, 2);
	cr_assert_eq(config.ib_addr_family, AF_INET);
	cr_assert_eq(config.ib_timeout, 20);
	cr_assert_eq(config.ib_retry_cnt, 7);
	cr_assert_eq(config.ib_tc, -1);
	cr_assert_eq(config.ib_sl, -1);
	cr_assert_eq(config.ib_fifo_tc, -1);
	cr_assert_eq(config.ib_adaptive_routing, -2);
	cr_assert_eq(config.ib_ar_threshold, 8192);
	cr_assert_eq(config.ib_qps_per_connection, 1);
	cr_assert_eq(config.ib_mqp_retry_cnt, 34);
	cr_assert_eq(config.mode, MODE_ON);
	cr_assert_eq(config.small_bytes, 16384);
	cr_assert_eq(config.window_us, 10000);
	cr_assert_eq(config.pressure_max_pct, 25);
	cr_assert_eq(config.connect_timeout_ms, 60000);
	cr_assert_eq(config.outage_timeout_ms, 120000);
	cr_assert_eq(config.signal_poll_ms, 10);
	cr_assert_str_eq(config.bpffs, "");
}

Test(config, numbers)
{
	load("NCCL_IB_TC", "106");
	cr_assert_eq(config.ib_tc, 106);
	load("NCCL_IB_TC", "0x6A");
	cr_assert_eq(config.ib_tc, 106);
	load("NCCL_IB_TC", "010"); /* octal, as NCCL reads it */
	cr_assert_eq(config.ib_tc, 8);
	load("NCCL_IB_TC", "-1");
	cr_assert_eq(config.ib_tc, -1);
	load("NCCL_IB_ADAPTIVE_ROUTING", "-2");
	cr_assert_eq(config.ib_adaptive_routing, -2);
	cr_assert_eq(capture.count, 0);
}

Test(config, sizes_take_suffixes)
{
	static const struct {
		const char *text;
		int64_t bytes;
	} cases[] = {{"4096", 4096},   {"0x1000", 4096}, {"64K", 65536},   {"64k", 65536},
		     {"64KiB", 65536}, {"1M", 1 << 20},	 {"1MB", 1 << 20}, {"1G", 1 << 30},
		     {"512B", 512},    {"0", 0}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		load("RAILYARD_SMALL_BYTES", cases[i].text);
		cr_assert_eq(config.small_bytes, cases[i].bytes, "%s", cases[i].text);
		cr_assert_eq(capture.count, 0, "%s", cases[i].text);
	}
}

Test(config, seconds_become_milliseconds)
{
	load("RAILYARD_CONNECT_TIMEOUT", "5");
	cr_assert_eq(config.connect_timeout_ms, 5000);
	load("RAILYARD_OUTAGE_TIMEOUT", "86400");
	cr_assert_eq(config.outage_timeout_ms, 86400000);
}

Test(config, names)
{
	load("RAILYARD_MODE", "observe");
	cr_assert_eq(config.mode, MODE_OBSERVE);
	load("RAILYARD_MODE", "OFF");
	cr_assert_eq(config.mode, MODE_OFF);
	load("NCCL_IB_ADDR_FAMILY", "AF_INET6");
	cr_assert_eq(config.ib_addr_family, AF_INET6);
}

Test(config, any_number_but_0_is_yes_as_in_nccl)
{
	load("NCCL_IB_DISABLE", "1");
	cr_assert_eq(config.ib_disable, 1);
	load("NCCL_IB_DISABLE", "2");
	cr_assert_eq(config.ib_disable, 1);
	load("NCCL_IB_MERGE_NICS", "0");
	cr_assert_eq(config.ib_merge_nics, 0);
	cr_assert_eq(capture.count, 0);
}

Test(config, strings_and_their_return_to_empty)
{
	load("NCCL_IB_HCA", "^mlx5_bond");
	cr_assert_str_eq(config.ib_hca, "^mlx5_bond");
	load("NCCL_IB_HCA", "");
	cr_assert_str_eq(config.ib_hca, "");
	load("NCCL_IBVERBS_LIB", "/x/libibverbs.so");
	cr_assert_str_eq(config.ibverbs_lib, "/x/libibverbs.so");
}

Test(config, empty_is_unset)
{
	load("NCCL_IB_TIMEOUT", "");
	cr_assert_eq(config.ib_timeout, 20);
	cr_assert_eq(capture.count, 0);
}

/* Name, value, range and default are in the one line. */
static void refused(const char *name, const char *value, const char *range, const char *def)
{
	char head[128];

	load(name, value);
	snprintf(head, sizeof(head), "%s=%s ", name, value);
	cr_assert_eq(capture.count, 1, "%s", head);
	cr_assert_eq(capture.level[0], LOG_WARN);
	cr_assert(strstr(capture.text[0], head), "%s", capture.text[0]);
	cr_assert(strstr(capture.text[0], range), "%s", capture.text[0]);
	cr_assert(strstr(capture.text[0], def), "%s", capture.text[0]);
}

Test(config, a_bad_value_gives_one_line_and_the_default)
{
	refused("NCCL_IB_TIMEOUT", "32", "0..31", "default, 20");
	cr_assert_eq(config.ib_timeout, 20);
	refused("NCCL_IB_TIMEOUT", "-1", "0..31", "default, 20");
	refused("NCCL_IB_TIMEOUT", "ten", "0..31", "default, 20");
	refused("NCCL_IB_TIMEOUT", "20s", "0..31", "default, 20");
	refused("NCCL_IB_TIMEOUT", "99999999999999999999", "0..31", "default, 20");
	refused("NCCL_IB_TC", "256", "-1..255", "default, -1");
	refused("NCCL_IB_DISABLE", "yes", "0..1", "default, 0");
	cr_assert_eq(config.ib_disable, 0);
	refused("NCCL_IB_ADDR_FAMILY", "ipv4", "AF_INET|AF_INET6", "default, AF_INET");
	cr_assert_eq(config.ib_addr_family, AF_INET);
	refused("RAILYARD_MODE", "onn", "on|observe|off", "default, on");
	cr_assert_eq(config.mode, MODE_ON);
	refused("RAILYARD_SMALL_BYTES", "2G", "0..1073741824", "default, 16384");
	refused("RAILYARD_SMALL_BYTES", "9223372036854775807K", "0..1073741824", "default, 16384");
	refused("RAILYARD_SMALL_BYTES", "1T", "0..1073741824", "default, 16384");
	refused("RAILYARD_SMALL_BYTES", "1KK", "0..1073741824", "default, 16384");
	refused("RAILYARD_SMALL_BYTES", "K", "0..1073741824", "default, 16384");
	refused("RAILYARD_PRESSURE_MAX_PCT", "91", "0..90", "default, 25");
	refused("RAILYARD_CONNECT_TIMEOUT", "0", "1..86400", "default, 60");
	cr_assert_eq(config.connect_timeout_ms, 60000);
}

Test(config, each_bad_value_has_its_line_and_spoils_no_other)
{
	setenv("NCCL_IB_TIMEOUT", "x", 1);
	setenv("NCCL_IB_SL", "77", 1);
	setenv("NCCL_IB_TC", "3", 1);
	capture_start();
	config_reload();
	cr_assert_eq(capture.count, 2);
	cr_assert_eq(config.ib_tc, 3);
	cr_assert_eq(config.ib_sl, -1);
}

Test(config, what_has_no_effect_is_named_in_one_line)
{
	setenv("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1", 1);
	setenv("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "1", 1);
	capture_start();
	config_reload();
	cr_assert_eq(capture.count, 1);
	cr_assert_eq(capture.level[0], LOG_INFO);
	cr_assert(strstr(capture.text[0], "NCCL_IB_RESILIENCY_PORT_FAILOVER"));
	cr_assert(strstr(capture.text[0], "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS"));
}

Test(config, all_without_effect_fit_in_the_line)
{
	int named = 0;

	for (unsigned i = 0; i < config_count(); i++) {
		if (strncmp(config_text(i), "no effect: ", 11) == 0)
			setenv(config_name(i), "1", 1);
	}
	capture_start();
	config_reload();
	cr_assert_eq(capture.count, 1);
	for (unsigned i = 0; i < config_count(); i++) {
		if (strncmp(config_text(i), "no effect: ", 11) == 0) {
			cr_assert(strstr(capture.text[0], config_name(i)), "%s", config_name(i));
			named++;
		}
	}
	cr_assert_geq(named, 15);
}

Test(config, a_misspelt_name_is_said)
{
	load("RAILYARD_SMAL_BYTES", "1");
	cr_assert_eq(capture.count, 1);
	cr_assert(strstr(capture.text[0], "RAILYARD_SMAL_BYTES is set"));
	unsetenv("RAILYARD_SMAL_BYTES");
	load("RAILYARD_MODES", "on"); /* a known name is its prefix */
	cr_assert_eq(capture.count, 1);
}

Test(config, load_reads_once)
{
	config_load();
	setenv("NCCL_IB_TC", "9", 1);
	config_load();
	cr_assert_eq(config.ib_tc, -1);
	config_reload();
	cr_assert_eq(config.ib_tc, 9);
}

Test(config, every_variable_is_documented)
{
	for (unsigned i = 0; i < config_count(); i++) {
		const char *name = config_name(i);

		cr_assert(strncmp(name, "NCCL_", 5) == 0 || strncmp(name, "RAILYARD_", 9) == 0,
			  "%s", name);
		for (const char *c = name; *c; c++)
			cr_assert(isupper((unsigned char)*c) || isdigit((unsigned char)*c) ||
					  *c == '_',
				  "%s", name);
		cr_assert(config_unit(i) && *config_unit(i), "%s has no unit", name);
		cr_assert_leq(strlen(config_unit(i)), 8, "%s", name);
		cr_assert(config_text(i) && strlen(config_text(i)) >= 8, "%s has no text", name);
		for (unsigned j = 0; j < i; j++)
			cr_assert_str_neq(name, config_name(j));
	}
	cr_assert_null(config_name(config_count()));
	cr_assert_null(config_unit(config_count()));
	cr_assert_null(config_text(config_count()));
}

/* Every default of a row is inside its own range, or it could not be given by hand. */
Test(config, printed_defaults_are_accepted)
{
	char *text = NULL, *line, *save;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	int tried = 0;

	config_reload();
	config_print(out);
	fclose(out);
	strtok_r(text, "\n", &save);
	while ((line = strtok_r(NULL, "\n", &save))) {
		char name[80], type[16], def[32];

		cr_assert_eq(sscanf(line, "%79s %15s %31s", name, type, def), 3);
		if (strcmp(def, "-") == 0)
			continue;
		load(name, def);
		cr_assert_eq(capture.count, 0, "%s=%s: %s", name, def, capture.text[0]);
		tried++;
	}
	cr_assert_geq(tried, 30);
	free(text);
}

Test(config, the_table_is_aligned_and_shows_what_differs)
{
	char *text = NULL, *line, *save;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	unsigned rows = 0;
	size_t unit_at;

	setenv("NCCL_IB_TC", "106", 1);
	setenv("NCCL_IB_HCA", "=mlx5_0", 1);
	setenv("RAILYARD_CONNECT_TIMEOUT", "7", 1);
	setenv("RAILYARD_MODE", "observe", 1);
	config_reload();
	config_print(out);
	fclose(out);
	line = strtok_r(text, "\n", &save);
	unit_at = (size_t)(strstr(line, "UNIT") - line);
	while ((line = strtok_r(NULL, "\n", &save))) {
		bool differs = strstr(line, "[now ") != NULL;
		const char *name = config_name(rows);
		const char *unit = config_unit(rows++);

		cr_assert_eq(strncmp(line, name, strlen(name)), 0, "%s", line);
		cr_assert_eq(strncmp(line + unit_at, unit, strlen(unit)), 0, "%s", line);
		cr_assert_eq(line[unit_at - 1], ' ', "%s", line);
		cr_assert_eq(differs,
			     !strcmp(name, "NCCL_IB_TC") || !strcmp(name, "NCCL_IB_HCA") ||
				     !strcmp(name, "RAILYARD_CONNECT_TIMEOUT") ||
				     !strcmp(name, "RAILYARD_MODE"),
			     "%s", line);
		if (!strcmp(name, "RAILYARD_CONNECT_TIMEOUT"))
			cr_assert(strstr(line, "[now 7]"), "%s", line);
		if (!strcmp(name, "RAILYARD_MODE"))
			cr_assert(strstr(line, "[now observe]"), "%s", line);
	}
	cr_assert_eq(rows, config_count());
	free(text);
}
