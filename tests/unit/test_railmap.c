/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_railmap.c - the plugin's map reader without a kernel: which maps it refuses and with what
 * line, what it makes of rows in ordinary memory, and pressure.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "railmap.h"
#include "railmap_names.h"

#define MS 1000000ull

/* ---- refusals ---- */

static struct railmap_facts good_facts(void)
{
	return (struct railmap_facts){
		.on_bpffs = true,
		.owned_by_root = true,
		.frozen = true,
		.map_type = BPF_MAP_TYPE_ARRAY,
		.hdr_value_bytes = sizeof(struct railmap_hdr),
		.rows_value_bytes = sizeof(struct railmap_row),
		.rows_max = RAILMAP_ROWS,
		.abi = RAILMAP_ABI,
		.row_bytes = sizeof(struct railmap_row),
		.heartbeat_age_ns = 90 * MS,
	};
}

static void refused(const struct railmap_facts *f, int err, const char *says)
{
	char why[RAILMAP_WHY_BYTES] = "";

	cr_assert_eq(railmap_vet(f, why, sizeof(why)), err, "want %d for: %s", err, says);
	cr_assert(strstr(why, says), "'%s' lacks '%s'", why, says);
	cr_assert_not(strchr(why, '\n'), "one line only: %s", why);
}

Test(railmap, a_sound_map_is_believed)
{
	struct railmap_facts f = good_facts();
	char why[RAILMAP_WHY_BYTES] = "";

	cr_assert_eq(railmap_vet(&f, why, sizeof(why)), 0);
	cr_assert_str_empty(why);
}

Test(railmap, a_map_that_others_could_write_is_refused)
{
	struct railmap_facts f = good_facts();

	f.on_bpffs = false;
	refused(&f, -EPERM, "not on a bpf file system");
	f = good_facts();
	f.owned_by_root = false;
	refused(&f, -EPERM, "not owned by root");
	f = good_facts();
	f.frozen = false;
	refused(&f, -EPERM, "not frozen");
}

Test(railmap, another_layout_is_refused)
{
	struct railmap_facts f = good_facts();

	f.abi = 2;
	refused(&f, -EPROTO,
		"abi 2, this program reads 1: run `railyard load` of the same version");
	f.rows_value_bytes = 384; /* the abi is the better reason */
	refused(&f, -EPROTO, "abi 2");
	f = good_facts();
	f.rows_value_bytes = 384;
	refused(&f, -EPROTO, "64 rows of 384 bytes, this program reads 64 of 320");
	f = good_facts();
	f.row_bytes = 256;
	refused(&f, -EPROTO, "this program reads");
	f = good_facts();
	f.rows_max = 16;
	refused(&f, -EPROTO, "16 rows");
	f = good_facts();
	f.hdr_value_bytes = 192;
	refused(&f, -EPROTO, "this program reads");
	f.hdr_value_bytes = 4;
	refused(&f, -EPROTO, "some other program's map");
	f = good_facts();
	f.map_type = BPF_MAP_TYPE_HASH;
	refused(&f, -EPROTO, "some other program's map");
}

Test(railmap, a_dead_map_is_refused)
{
	struct railmap_facts f = good_facts();

	f.heartbeat_age_ns = 7100 * MS;
	refused(&f, -ESTALE, "no heartbeat for 7 s");
	f = good_facts();
	f.abi = 0;
	refused(&f, -ESTALE, "run `railyard load`");
}

Test(railmap, a_short_buffer_for_the_reason_is_kept_to)
{
	struct railmap_facts f = good_facts();
	char why[8] = {'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x'};

	f.frozen = false;
	cr_assert_eq(railmap_vet(&f, why, 4), -EPERM);
	cr_assert_eq(why[3], '\0');
	cr_assert_eq(why[4], 'x');
	cr_assert_eq(railmap_vet(&f, why, 0), -EPERM);
}

Test(railmap, no_map_and_no_bpf_file_system_are_said_plainly)
{
	char dir[] = "/tmp/railmap.XXXXXX";
	char path[64];
	char why[RAILMAP_WHY_BYTES] = "";
	struct railmap m;
	FILE *f;

	cr_assert(mkdtemp(dir));
	cr_assert_eq(railmap_open(&m, dir, MS, why, sizeof(why)), -ENOENT);
	cr_assert(strstr(why, "rail_hdr: not there: `railyard load` makes it"), "%s", why);
	cr_assert_null(m.hdr);

	/* A forged map: right size, wrong file system. */
	snprintf(path, sizeof(path), "%s/v1", dir);
	cr_assert_eq(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/v1/rail_hdr", dir);
	f = fopen(path, "w");
	cr_assert(f);
	fclose(f);
	cr_assert_eq(railmap_open(&m, dir, MS, why, sizeof(why)), -EPERM);
	cr_assert(strstr(why, "not on a bpf file system"), "%s", why);
	cr_assert_not(railmap_alive(&m, MS));
	railmap_close(&m);
	unlink(path);
	snprintf(path, sizeof(path), "%s/v1", dir);
	rmdir(path);
	rmdir(dir);
}

/* ---- rows ---- */

struct world {
	struct railmap_hdr hdr;
	struct railmap_row rows[RAILMAP_ROWS];
	struct railmap m;
};

static struct world *world_create(void)
{
	struct world *w = aligned_alloc(64, (sizeof(*w) + 63) / 64 * 64);

	cr_assert(w);
	memset(w, 0, sizeof(*w));
	w->m.hdr = &w->hdr;
	w->m.rows = w->rows;
	w->hdr.hooks = 1u << RAILMAP_HOOK_RX_PACKET | 1u << RAILMAP_HOOK_TX_PACKET;
	return w;
}

static struct railmap_row *add_row(struct world *w, uint32_t i, const char *ibdev,
				   const char *ifname)
{
	struct railmap_row *row = &w->rows[i];

	row->flags = RAILMAP_ROW_USED | RAILMAP_ROW_SOFT;
	snprintf(row->ibdev, sizeof(row->ibdev), "%s", ibdev);
	snprintf(row->ifname, sizeof(row->ifname), "%s", ifname);
	row->ib_port = 1;
	row->ifindex = 10 + i;
	row->netns = 7;
	return row;
}

Test(railmap, rows_are_found_by_every_name_they_have)
{
	struct world *w = world_create();
	struct railmap_row *row;

	add_row(w, 0, "rxe0", "eth0");
	row = add_row(w, 5, "mlx5_1", "eth1");
	row->flags |= RAILMAP_ROW_PCI;
	row->pci_domain = 0x10000;
	row->pci_bus = 0x3b;
	row->pci_devfn = 0x1f << 3 | 7;
	row->dev_port = 1;

	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ibdev = "mlx5_1"}), 5);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ibdev = "mlx5_1", .ib_port = 2}),
		     -ENOENT);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ifname = "eth0"}), 0);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ifname = "eth"}), -ENOENT);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ifindex = 15, .netns = 7}), 5);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ifindex = 15, .netns = 8}),
		     -ENOENT);
	cr_assert_eq(
		railmap_find(&w->m, &(struct railmap_who){.pci = "10000:3b:1f.7", .dev_port = 1}),
		5);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.pci = "10000:3b:1f.7"}), -ENOENT);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.pci = "rubbish"}), -ENOENT);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.netns = 7}), -ENOENT);
	free(w);
}

Test(railmap, a_pci_name_is_read_whole_or_not_at_all)
{
	static const char *const bad[] = {"",
					  "0000:3b:00",
					  "0000:3b:00.",
					  "0000:3b:20.0",
					  "0000:3b:00.8",
					  "0000:100:00.0",
					  "0000:3b:00.0x",
					  "virtio0",
					  ":3b:00.0",
					  "0000:-1:00.0",
					  "net",
					  "123456789:00:00.0"};
	uint32_t domain = 9;
	uint8_t bus = 9;
	uint8_t devfn = 9;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_not(railmap_parse_pci(bad[i], &domain, &bus, &devfn), "%s", bad[i]);
	}
	cr_assert_eq(domain, 9);
	cr_assert(railmap_parse_pci("10000:fe:1f.7", &domain, &bus, &devfn));
	cr_assert_eq(domain, 0x10000);
	cr_assert_eq(bus, 0xfe);
	cr_assert_eq(devfn, 0xff);
}

Test(railmap, a_name_too_long_for_its_field_is_still_found)
{
	struct world *w = world_create();

	add_row(w, 3, "rocep123s0f1np0", "eth0"); /* what 16 bytes keep of it */
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ibdev = "rocep123s0f1np0_vf12"}),
		     3);
	cr_assert_eq(railmap_find(&w->m, &(struct railmap_who){.ibdev = "rocep123s0f1np"}),
		     -ENOENT);
	free(w);
}

Test(railmap, the_newer_word_about_the_link_counts)
{
	struct world *w = world_create();
	struct railmap_row *row = add_row(w, 0, "rxe0", "eth0");
	struct railmap_view v;

	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.link, RAILMAP_STATE_UNKNOWN);
	cr_assert_eq(v.link_change_ns, 0);
	row->link_up_ns = 100;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.link, RAILMAP_STATE_UP);
	row->link_down_ns = 200;
	row->link_down_why = RAILMAP_WHY_ADMIN;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.link, RAILMAP_STATE_DOWN);
	cr_assert_eq(v.down_why, RAILMAP_WHY_ADMIN);
	cr_assert_eq(v.link_change_ns, 200);
	row->link_up_ns = 300;
	w->m.clock_ahead_ns = 1000;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.link, RAILMAP_STATE_UP);
	cr_assert_eq(v.link_change_ns, 1300);
	free(w);
}

Test(railmap, unused_rows_and_rows_beyond_the_map_are_not_there)
{
	struct world *w = world_create();
	struct railmap_view v;

	cr_assert_eq(railmap_read(&w->m, 0, &v), -ENOENT);
	cr_assert_eq(railmap_read(&w->m, RAILMAP_ROWS, &v), -ENOENT);
	free(w);
}

Test(railmap, a_row_that_is_being_written_is_not_read)
{
	struct world *w = world_create();
	struct railmap_row *row = add_row(w, 0, "rxe0", "eth0");
	struct railmap_view v;

	row->hw_seq = 3;
	cr_assert_eq(railmap_read(&w->m, 0, &v), -EAGAIN);
	row->hw_seq = 4;
	row->id_seq = 1;
	cr_assert_eq(railmap_read(&w->m, 0, &v), -EAGAIN);
	row->id_seq = 2;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	free(w);
}

Test(railmap, absent_is_not_zero)
{
	struct world *w = world_create();
	struct railmap_row *row = add_row(w, 0, "rxe0", "eth0");
	struct railmap_view v;

	row->soft_rx_ce = 4;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.valid,
		     RAILMAP_V_PKTS | RAILMAP_V_CE | RAILMAP_V_CNP | RAILMAP_V_NAK | RAILMAP_V_RNR);
	cr_assert_eq(v.rx_ce, 4);
	w->hdr.hooks = 0; /* nobody counts packets */
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.valid, 0);
	cr_assert_eq(v.rx_ce, 0);
	free(w);
}

Test(railmap, an_offloaded_port_shows_what_its_nic_counts)
{
	struct world *w = world_create();
	struct railmap_row *row = add_row(w, 0, "mlx5_0", "eth0");
	struct railmap_view v;

	row->flags &= (uint8_t)~RAILMAP_ROW_SOFT;
	row->soft_rx_ce = 99;
	row->hw_rx_ecn = 5;
	row->hw_rx_cnp = 6;
	row->hw_rx_nak_seq = 7;
	row->hw_valid = 1u << RAILMAP_HW_RX_ECN | 1u << RAILMAP_HW_RX_CNP;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.valid, 0, "never sampled");
	row->hw_sample_ns = 1;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert_eq(v.valid, RAILMAP_V_CE | RAILMAP_V_CNP);
	cr_assert_eq(v.rx_ce, 5);
	cr_assert_eq(v.rx_cnp, 6);
	cr_assert_eq(v.rx_nak, 0);
	free(w);
}

Test(railmap, drained_is_shown)
{
	struct world *w = world_create();
	struct railmap_view v;

	add_row(w, 0, "rxe0", "eth0")->drained_ns = 1;
	cr_assert_eq(railmap_read(&w->m, 0, &v), 0);
	cr_assert(v.drained);
	free(w);
}

Test(railmap, alive_while_the_heartbeat_moves)
{
	struct world *w = world_create();
	uint64_t now = 5000 * MS;

	w->hdr.heartbeat_ns = 1; /* another time namespace: only the change counts */
	cr_assert(railmap_alive(&w->m, now));
	cr_assert(railmap_alive(&w->m, now + 999 * MS));
	cr_assert_not(railmap_alive(&w->m, now + 1000 * MS));
	w->hdr.heartbeat_ns = 2;
	cr_assert(railmap_alive(&w->m, now + 1001 * MS));
	w->hdr.heartbeat_ns = 0; /* retired: at once */
	cr_assert_not(railmap_alive(&w->m, now + 1002 * MS));
	free(w);
}

/* ---- pressure ---- */

struct flow {
	struct pressure p;
	struct railmap_view v;
	uint64_t now_ns;
};

static struct flow flow_start(void)
{
	struct flow f = {.now_ns = 1000 * MS};

	f.v.valid = RAILMAP_V_PKTS | RAILMAP_V_CE | RAILMAP_V_CNP | RAILMAP_V_NAK;
	f.v.rx_ce = 12345; /* history from before we looked */
	f.v.rx_pkts = 1000000;
	pressure_update(&f.p, &f.v, f.now_ns);
	return f;
}

/* One window in which `pkts` packets came and `ce` of them were marked. */
static uint8_t flow_window(struct flow *f, uint64_t pkts, uint64_t ce)
{
	f->v.rx_pkts += pkts;
	f->v.rx_ce += ce;
	f->now_ns += PRESSURE_WINDOW_NS;
	return pressure_update(&f->p, &f->v, f->now_ns);
}

Test(pressure, history_and_clean_traffic_are_no_pressure)
{
	struct flow f = flow_start();

	cr_assert_eq(pressure_value(&f.p), 0);
	for (int i = 0; i < 10; i++) {
		cr_assert_eq(flow_window(&f, 1000, 0), 0);
	}
}

Test(pressure, one_mark_in_a_hundred_settles_at_half)
{
	struct flow f = flow_start();
	uint8_t value = 0;

	for (int i = 0; i < 20; i++) {
		value = flow_window(&f, 1000, 10);
	}
	cr_assert(value >= 126 && value <= 128, "%u", value);
}

Test(pressure, heavy_marking_shows_in_one_window_and_never_passes_full)
{
	struct flow f = flow_start();
	uint8_t value = flow_window(&f, 1000, 500);

	cr_assert(value >= 240, "%u", value);
	for (int i = 0; i < 40; i++) {
		value = flow_window(&f, 10, 1000000);
	}
	cr_assert(value >= 253, "%u", value);
}

Test(pressure, a_single_mark_may_be_chance)
{
	struct flow f = flow_start();
	uint8_t value = flow_window(&f, 10, 1);

	cr_assert(value > 64 && value < 128, "%u", value);
}

Test(pressure, more_marks_mean_more_pressure)
{
	unsigned int last = 0;

	for (uint64_t ce = 1; ce <= 1000; ce *= 10) {
		struct flow f = flow_start();
		unsigned int value = 0;

		for (int i = 0; i < 20; i++) {
			value = flow_window(&f, 1000, ce);
		}
		cr_assert(value > last, "%llu marks: %u after %u", (unsigned long long)ce, value,
			  last);
		last = value;
	}
}

Test(pressure, a_clean_port_is_back_at_zero_in_half_a_second_or_so)
{
	struct flow f = flow_start();
	int windows;

	for (int i = 0; i < 40; i++) {
		flow_window(&f, 1000, 1000);
	}
	for (windows = 0; pressure_value(&f.p); windows++) {
		flow_window(&f, 1000, 0);
		cr_assert(windows < 10);
	}
	cr_assert(windows >= 7, "forgets too fast: %d", windows);
}

Test(pressure, an_idle_port_forgets_too)
{
	struct flow f = flow_start();

	for (int i = 0; i < 10; i++) {
		flow_window(&f, 1000, 500);
	}
	f.now_ns += 1000 * MS; /* nobody called meanwhile */
	cr_assert_eq(pressure_update(&f.p, &f.v, f.now_ns), 0);
}

Test(pressure, calls_within_a_window_change_nothing)
{
	struct flow f = flow_start();

	for (uint64_t i = 1; i < 50; i++) {
		f.v.rx_ce += 100;
		f.v.rx_pkts += 100;
		cr_assert_eq(pressure_update(&f.p, &f.v, f.now_ns + i * MS), 0);
	}
	cr_assert(pressure_update(&f.p, &f.v, f.now_ns + 50 * MS) > 100);
}

Test(pressure, a_nak_weighs_more_than_a_mark)
{
	struct flow marked = flow_start();
	struct flow lossy = flow_start();

	flow_window(&marked, 1000, 5);
	lossy.v.rx_nak += 5;
	flow_window(&lossy, 1000, 0);
	cr_assert(pressure_value(&lossy.p) > pressure_value(&marked.p));
}

Test(pressure, counters_that_start_again_are_no_burst)
{
	struct flow f = flow_start();

	f.v.rx_ce = 0; /* the map was replaced */
	f.v.rx_pkts = 10;
	f.now_ns += PRESSURE_WINDOW_NS;
	cr_assert_eq(pressure_update(&f.p, &f.v, f.now_ns), 0);
	cr_assert_eq(flow_window(&f, 1000, 0), 0);
}

Test(pressure, without_packet_counts_marks_still_tell)
{
	struct flow f = flow_start();
	uint8_t value = 0;

	f.v.valid &= ~RAILMAP_V_PKTS;
	for (int i = 0; i < 20; i++) {
		value = flow_window(&f, 0, 41);
	}
	cr_assert(value > 110 && value < 140, "%u", value);
}

/* ---- counters of the drivers ---- */

Test(railmap, names_of_counters_find_their_field)
{
	bool wrap32;

	cr_assert_eq(railmap_field("rp_cnp_handled", &wrap32), RAILMAP_HW_RX_CNP);
	cr_assert(!wrap32);
	cr_assert_eq(railmap_field("packet_seq_err", &wrap32), RAILMAP_HW_RX_NAK_SEQ);
	cr_assert(wrap32);
	cr_assert_eq(railmap_field("rcvd_rnr_err", &wrap32), RAILMAP_HW_RX_RNR);
	cr_assert_eq(railmap_field("duplicate_request", &wrap32), -ENOENT);
	cr_assert_eq(railmap_field("", &wrap32), -ENOENT);
}

Test(railmap, a_32_bit_counter_goes_on_behind_its_wrap)
{
	cr_assert_eq(railmap_extend32(0, 5), 5);
	cr_assert_eq(railmap_extend32(5, 5), 5);
	cr_assert_eq(railmap_extend32(0, 0xfffffff0u), 0xfffffff0u);
	cr_assert_eq(railmap_extend32(0xfffffff0u, 0x10), 0x100000010ull);
	cr_assert_eq(railmap_extend32(0x100000010ull, 0x90000000u), 0x190000000ull);
}

Test(railmap, a_32_bit_counter_that_began_anew_is_no_wrap)
{
	cr_assert_eq(railmap_extend32(1000, 7), 7, "the driver was loaded again");
	cr_assert_eq(railmap_extend32(7, 9), 9);
	cr_assert_eq(railmap_extend32(0x1000003e8ull, 0), 0);
}
