/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * taps.c - the user space side of bpf/taps.bpf.c. See taps.h.
 *
 * Each tap is an object of its own, loaded alone: a driver that is not there spoils nothing, and
 * of the maps only `rails` is shared, by its pin.
 */
#include "taps.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../bpf/taps.h"
#include "hooks.h"
#include "pins.h"
#include "railmap.h"
#include "railmap_names.h"
#include "taps.skel.h"

struct tap_info {
	const char *program;
	const char *name; /* what it is attached to */
	bool counters;
};

static const struct tap_info infos[] = {
	{"tap_mlx5_ib", "mlx5_ib_get_hw_stats", true},
	{"tap_bnxt_re_ib", "bnxt_re_ib_get_hw_stats", true},
	{"tap_irdma", "irdma_get_hw_stats", true},
	{"tap_hns_roce", "hns_roce_get_hw_stats", true},
	{"tap_ionic", "ionic_get_hw_stats", true},
	{"tap_rxe_ib", "rxe_ib_get_hw_stats", true},
	{"tap_events", "ib_dispatch_event", false},
};

#define TAP_COUNT (sizeof(infos) / sizeof(infos[0]))

struct live_tap {
	struct taps_bpf *skel; /* NULL: not live */
	struct bpf_link *link;
	struct hook_status status;
};

struct taps {
	struct live_tap tap[TAP_COUNT];
};

static void tap_drop(struct live_tap *t)
{
	bpf_link__destroy(t->link);
	taps_bpf__destroy(t->skel);
	t->link = NULL;
	t->skel = NULL;
}

static int tap_attach(struct live_tap *t, const struct tap_info *info, int rails_fd)
{
	struct bpf_program *prog;
	int ret;

	t->skel = taps_bpf__open();
	if (!t->skel) {
		return -errno;
	}
	prog = bpf_object__find_program_by_name(t->skel->obj, info->program);
	bpf_program__set_autoload(prog, true);
	ret = bpf_map__reuse_fd(t->skel->maps.rails, rails_fd);
	ret = ret ? ret : taps_bpf__load(t->skel);
	if (ret) {
		return ret;
	}
	t->link = bpf_program__attach(prog);
	return t->link ? 0 : -errno;
}

static void tap_missing(struct live_tap *t, int err)
{
	tap_drop(t);
	if (err == -ESRCH || err == -ENOENT) {
		t->status.state = HOOK_OFF;
		snprintf(t->status.why, sizeof(t->status.why), "its module is not loaded");
	} else {
		hook_refused(&t->status, "fexit programs on modules", err);
	}
}

int taps_open(struct taps **out, const char *dir, const struct railmap *m, char *why,
	      size_t why_bytes)
{
	char path[PIN_PATH_BYTES];
	struct taps *taps;
	int live = 0;
	int fd;

	snprintf(path, sizeof(path), "%.200s/" RAILMAP_SUBDIR "/rails", dir);
	fd = bpf_obj_get(path);
	if (fd < 0) {
		snprintf(why, why_bytes, "driver taps: %.120s: %s", path, strerror(errno));
		return -errno;
	}
	taps = calloc(1, sizeof(*taps));
	for (size_t i = 0; taps && i < TAP_COUNT; i++) {
		int ret = tap_attach(&taps->tap[i], &infos[i], fd);

		if (ret) {
			tap_missing(&taps->tap[i], ret);
		}
		live += ret == 0;
	}
	close(fd);
	if (!live) {
		snprintf(why, why_bytes, "driver taps: %s",
			 taps ? taps->tap[TAP_COUNT - 1].status.why : strerror(ENOMEM));
		taps_close(taps);
		return taps ? -ENODEV : -ENOMEM;
	}
	*out = taps;
	taps_refresh(taps, m);
	return live;
}

static int tap_ports(const struct live_tap *t, const struct railmap *m)
{
	int fd = bpf_map__fd(t->skel->maps.tap_ix);
	struct railmap_row row;

	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		struct tap_port key = {.port = 0};

		if (railmap_row_copy(m, i, &row) || !(row.flags & RAILMAP_ROW_RDMA)) {
			continue;
		}
		memcpy(key.ibdev, row.ibdev, sizeof(key.ibdev));
		key.port = row.ib_port;
		if (bpf_map_update_elem(fd, &key, &i, BPF_ANY)) {
			return -errno;
		}
	}
	return 0;
}

static void table_of(const struct tap_names *names, struct tap_table *table)
{
	memset(table, 0, sizeof(*table));
	table->count = names->count;
	for (uint32_t i = 0; i < names->count && i < TAP_NAMES_MAX; i++) {
		bool wrap32;
		int field = railmap_field(names->name[i], &wrap32);

		if (field >= 0) {
			table->valid |= 1u << field;
			table->wrap32 |= (uint32_t)wrap32 << field;
			table->at[field] = i;
		}
	}
}

/* Returns how many rows of this tap have a table; -errno. */
static int tap_tables(const struct live_tap *t)
{
	int names_fd = bpf_map__fd(t->skel->maps.tap_names);
	int tables_fd = bpf_map__fd(t->skel->maps.tap_tables);
	struct tap_names names;
	struct tap_table table;
	int known = 0;

	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		if (bpf_map_lookup_elem(names_fd, &i, &names) ||
		    bpf_map_lookup_elem(tables_fd, &i, &table)) {
			return -errno;
		}
		if (names.count && names.count != table.count) {
			table_of(&names, &table);
			if (bpf_map_update_elem(tables_fd, &i, &table, BPF_ANY)) {
				return -errno;
			}
		}
		known += table.valid != 0;
	}
	return known;
}

int taps_refresh(struct taps *taps, const struct railmap *m)
{
	int known = 0;

	for (size_t i = 0; i < TAP_COUNT; i++) {
		const struct live_tap *t = &taps->tap[i];
		int ret = t->skel ? tap_ports(t, m) : 0;

		if (ret == 0 && t->skel && infos[i].counters) {
			ret = tap_tables(t);
		}
		if (ret < 0) {
			return ret;
		}
		known += ret;
	}
	return known;
}

void taps_print(const struct taps *taps)
{
	printf("driver taps:\n");
	for (size_t i = 0; i < TAP_COUNT; i++) {
		hook_print(&taps->tap[i].status, infos[i].name,
			   infos[i].counters ? "counters, whoever reads them"
					     : "port events of the RDMA core");
	}
}

void taps_close(struct taps *taps)
{
	for (size_t i = 0; taps && i < TAP_COUNT; i++) {
		tap_drop(&taps->tap[i]);
	}
	free(taps);
}
