/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rails.c - `railyard rails`: print the rail map, through the same reader as the plugin, so what
 * it shows is what the plugin sees. Needs no privileges.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "age.h"
#include "cmd.h"
#include "hooks.h"
#include "railmap.h"
#include "util.h"

static const char rails_help[] =
	"usage: railyard rails [--bpffs DIR] [--json] [--watch]\n"
	"\n"
	"Shows the rail map: one line per port. Counters are totals since the row was made; '-' "
	"means\n"
	"that nobody counts this here.\n"
	"  --bpffs DIR  the map that `railyard load --bpffs DIR` made\n"
	"  --json       one JSON object (with --watch: one per line and second)\n"
	"  --watch      again each second, until interrupted\n";

static const char *link_word(const struct railmap_view *view)
{
	static const char *const down[RAILMAP_WHY_COUNT] = {
		[RAILMAP_WHY_ADMIN] = "admin down",
		[RAILMAP_WHY_FATAL] = "device failed",
	};
	const char *word;

	switch (view->link) {
	case RAILMAP_STATE_UP:
		return "up";
	case RAILMAP_STATE_DOWN:
		word = view->down_why < RAILMAP_WHY_COUNT ? down[view->down_why] : NULL;
		return word ? word : "down";
	case RAILMAP_STATE_UNKNOWN:
		break;
	}
	return "unknown";
}

struct counter {
	const char *name;
	uint64_t value;
	bool valid;
};

#define COUNTER_COUNT 8

/* The bytes are counted where the packet hooks count, and nowhere else. */
static void counters_of(const struct railmap_row *row, const struct railmap_view *v,
			struct counter c[COUNTER_COUNT])
{
	bool soft = (row->flags & RAILMAP_ROW_SOFT) && (v->valid & RAILMAP_V_PKTS);

	c[0] = (struct counter){"rx_packets", v->rx_pkts, v->valid & RAILMAP_V_PKTS};
	c[1] = (struct counter){"tx_packets", v->tx_pkts, v->valid & RAILMAP_V_PKTS};
	c[2] = (struct counter){"rx_bytes", row->soft_rx_bytes, soft};
	c[3] = (struct counter){"tx_bytes", row->soft_tx_bytes, soft};
	c[4] = (struct counter){"rx_ce", v->rx_ce, v->valid & RAILMAP_V_CE};
	c[5] = (struct counter){"rx_cnp", v->rx_cnp, v->valid & RAILMAP_V_CNP};
	c[6] = (struct counter){"rx_nak", v->rx_nak, v->valid & RAILMAP_V_NAK};
	c[7] = (struct counter){"rx_rnr", v->rx_rnr, v->valid & RAILMAP_V_RNR};
}

static void port_name(const struct railmap_row *row, char *out, size_t bytes)
{
	if (row->flags & RAILMAP_ROW_RDMA) {
		snprintf(out, bytes, "%.15s:%u", row->ibdev, row->ib_port);
	} else {
		snprintf(out, bytes, "-");
	}
}

/* ---- table ---- */

static void print_row(uint32_t index, const struct railmap_row *row, const struct railmap_view *v,
		      uint64_t now)
{
	struct counter c[COUNTER_COUNT];
	char port[32];
	char since[16] = "-";

	port_name(row, port, sizeof(port));
	if (v->link_change_ns) {
		snprintf(since, sizeof(since), "%.1f s", age_s(now, v->link_change_ns));
	}
	printf("%-4u %-12s %-10.15s %-10s %10s", index, port, row->ifname[0] ? row->ifname : "-",
	       link_word(v), since);
	counters_of(row, v, c);
	for (int i = 0; i < COUNTER_COUNT; i++) {
		if (c[i].valid) {
			printf(" %*llu", i < 4 ? 11 : 7, (unsigned long long)c[i].value);
		} else {
			printf(" %*s", i < 4 ? 11 : 7, "-");
		}
	}
	printf("%s\n", v->drained ? "  drained" : "");
}

static void print_table(const struct railmap *m, uint64_t now)
{
	struct railmap_row row;
	struct railmap_view view;

	printf("%-4s %-12s %-10s %-10s %10s %11s %11s %11s %11s %7s %7s %7s %7s\n", "RAIL", "PORT",
	       "NETDEV", "LINK", "SINCE", "RX-PKTS", "TX-PKTS", "RX-BYTES", "TX-BYTES", "CE", "CNP",
	       "NAK", "RNR");
	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		if (railmap_row_copy(m, i, &row) == 0 && railmap_read(m, i, &view) == 0) {
			print_row(i, &row, &view, now);
		}
	}
}

/* ---- JSON ---- */

static json_t *json_row(uint32_t index, const struct railmap_row *row, const struct railmap_view *v,
			uint64_t now)
{
	struct counter c[COUNTER_COUNT];
	json_t *out = json_object();
	char pci[32];

	json_object_set_new(out, "rail", json_integer(index));
	if (row->flags & RAILMAP_ROW_RDMA) {
		json_object_set_new(out, "ibdev", json_string(row->ibdev));
		json_object_set_new(out, "ib_port", json_integer(row->ib_port));
	}
	json_object_set_new(out, "netdev", json_string(row->ifname));
	json_object_set_new(out, "ifindex", json_integer(row->ifindex));
	json_object_set_new(out, "netns", json_integer(row->netns));
	if (row->flags & RAILMAP_ROW_PCI) {
		snprintf(pci, sizeof(pci), "%04x:%02x:%02x.%u", row->pci_domain, row->pci_bus,
			 row->pci_devfn >> 3, row->pci_devfn & 7u);
		json_object_set_new(out, "pci", json_string(pci));
		json_object_set_new(out, "dev_port", json_integer(row->dev_port));
	}
	json_object_set_new(out, "link", json_string(link_word(v)));
	if (v->link_change_ns) {
		json_object_set_new(out, "link_age_s", json_real(age_s(now, v->link_change_ns)));
	}
	json_object_set_new(out, "link_downs", json_integer((json_int_t)row->link_downs));
	json_object_set_new(out, "link_ups", json_integer((json_int_t)row->link_ups));
	json_object_set_new(out, "tx_timeouts", json_integer((json_int_t)row->tx_timeouts));
	json_object_set_new(out, "drained", json_boolean(v->drained));
	counters_of(row, v, c);
	for (int i = 0; i < COUNTER_COUNT; i++) {
		if (c[i].valid) {
			json_object_set_new(out, c[i].name, json_integer((json_int_t)c[i].value));
		}
	}
	return out;
}

static json_t *json_map(const struct railmap *m, uint64_t now)
{
	json_t *out = json_object();
	json_t *hooks = json_array();
	json_t *rails = json_array();
	struct railmap_row row;
	struct railmap_view view;

	json_object_set_new(out, "abi", json_integer(m->hdr->abi));
	json_object_set_new(out, "generation", json_integer((json_int_t)m->hdr->generation));
	json_object_set_new(out, "version", json_string(m->hdr->version));
	for (int i = 0; i < RAILMAP_HOOK_COUNT; i++) {
		if (railmap_has_hook(m, (enum railmap_hook)i)) {
			json_array_append_new(hooks, json_string(hook_infos[i].name));
		}
	}
	json_object_set_new(out, "hooks", hooks);
	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		if (railmap_row_copy(m, i, &row) == 0 && railmap_read(m, i, &view) == 0) {
			json_array_append_new(rails, json_row(i, &row, &view, now));
		}
	}
	json_object_set_new(out, "rails", rails);
	return out;
}

static void print_json(const struct railmap *m, uint64_t now, bool one_line)
{
	json_t *map = json_map(m, now);

	json_dumpf(map, stdout, one_line ? JSON_COMPACT : JSON_INDENT(2));
	printf("\n");
	json_decref(map);
}

/* ---- the command ---- */

struct rails_options {
	const char *bpffs;
	bool json;
	bool watch;
};

static int parse(int argc, char **argv, struct rails_options *o)
{
	static const struct option options[] = {
		{"bpffs", required_argument, NULL, 'b'},
		{"json", no_argument, NULL, 'j'},
		{"watch", no_argument, NULL, 'w'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "b:jwh", options, NULL)) != -1) {
		switch (c) {
		case 'b':
			o->bpffs = optarg;
			break;
		case 'j':
			o->json = true;
			break;
		case 'w':
			o->watch = true;
			break;
		case 'h':
			fputs(rails_help, stdout);
			return 1;
		default:
			fputs(rails_help, stderr);
			return -EINVAL;
		}
	}
	if (optind < argc) {
		fputs(rails_help, stderr);
		return -EINVAL;
	}
	return 0;
}

static int show(const struct rails_options *o)
{
	char why[RAILMAP_WHY_BYTES];
	struct railmap m;
	uint64_t now = now_ns();

	if (railmap_open(&m, o->bpffs, now, why, sizeof(why))) {
		fprintf(stderr, "railyard: %s\n", why);
		return 1;
	}
	if (o->json) {
		print_json(&m, now, o->watch);
	} else {
		if (o->watch && isatty(STDOUT_FILENO)) {
			printf("\033[H\033[J");
		}
		print_table(&m, now);
	}
	fflush(stdout);
	railmap_close(&m);
	return 0;
}

int cmd_rails(int argc, char **argv)
{
	struct rails_options o = {0};
	int ret = parse(argc, argv, &o);

	if (ret) {
		return ret > 0 ? 0 : 2;
	}
	do {
		/* Opened anew each time: the map may be replaced while we watch. */
		ret = show(&o);
	} while (ret == 0 && o.watch && sleep(1) == 0);
	return ret;
}
