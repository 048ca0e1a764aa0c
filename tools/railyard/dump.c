/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * dump.c - `railyard dump`: what a process that has the plugin waits for, and what became of its
 * lanes, from its state page; also from the page that a dead process left.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "age.h"
#include "cmd.h"
#include "dump_page.h"
#include "util.h"

static const char dump_help[] =
	"usage: railyard dump [PID|FILE] [--json]\n"
	"\n"
	"Shows the state page of a process (" RAILSTATE_DIR "/" RAILSTATE_PREFIX
	"PID): who waits for whom, and its\n"
	"lanes, those not in use first. Without PID or FILE: which pages there are.\n"
	"  --json  JSON; ages in seconds, null for what never was\n";

#define PREFIX RAILSTATE_DIR "/" RAILSTATE_PREFIX

enum { AGE_BYTES = 24 };

static uint64_t dump_ns; /* all ages of one dump are as of then */

static const char *age_text(uint64_t then_ns, char text[AGE_BYTES])
{
	double s = age_s(dump_ns, then_ns);

	if (!then_ns) {
		return "-";
	}
	snprintf(text, AGE_BYTES, s < 10 ? "%.2f s" : s < 600 ? "%.0f s" : "%.0f min",
		 s < 600 ? s : s / 60);
	return text;
}

static const char *kind_word(const struct railstate_comm *c)
{
	return !c ? "?" : c->kind == RAILSTATE_SEND ? "send" : "receive";
}

static const char *state_word(const struct railstate_lane *lane)
{
	static const char *const words[RAILSTATE_LANE_STATES] = {
		[RAILSTATE_ACTIVE] = "in use",	      [RAILSTATE_FENCING] = "fencing",
		[RAILSTATE_FENCED] = "fenced",	      [RAILSTATE_ASKED] = "asking",
		[RAILSTATE_DOWN] = "down",	      [RAILSTATE_PREPARING] = "preparing",
		[RAILSTATE_OFFERED] = "offered",      [RAILSTATE_CONNECTING] = "connecting",
		[RAILSTATE_READY] = "connected",      [RAILSTATE_VERIFYING] = "testing",
		[RAILSTATE_WAIT_LIVE] = "tested here",
	};

	return words[lane->state];
}

static const char *port_word(const struct railstate_port *port)
{
	return port->dead ? "down, given up" : port->down ? "down" : port->drain ? "drained" : "up";
}

static const char *peer_port(const struct railstate_comm *c, const struct railstate_lane *lane)
{
	return c ? c->peer_port[lane->peer_port] : "?";
}

/* ---- text ---- */

static void print_head(const struct page *p)
{
	const struct railstate_head *h = &p->s.head;
	char start[AGE_BYTES], look[AGE_BYTES];

	printf("process %u of %s: %s; last look %s ago\n", h->pid, h->host,
	       p->alive ? "alive" : "GONE, this is its last state", age_text(h->look_ns, look));
	printf("Railyard %s, mode %s, instance %016" PRIx64 ", started %s ago, %" PRIu64
	       " looks, %u comms\n", h->plugin, h->mode, h->instance, age_text(h->start_ns, start),
	       h->looks, p->comm_count);
	if (h->comms_hidden) {
		printf("%u more comms have no room on the page\n", h->comms_hidden);
	}
	if (p->damaged) {
		printf("%u records are half written or damaged, and left out\n", p->damaged);
	}
}

static void print_ports(const struct page *p)
{
	char since[AGE_BYTES];

	printf("\n%-20s %-16s %9s %9s %9s\n", "PORT", "LINK", "SINCE", "PRESSURE", "MBIT/S");
	for (uint32_t i = 0; i < p->port_count; i++) {
		const struct railstate_port *port = &p->s.port[i];

		printf("%-20s %-16s %9s %8u%% %9u\n", port->name, port_word(port),
		       age_text(port->change_ns, since), port->pressure * 100 / 255, port->mbps);
	}
}

static void print_comm(const struct railstate_comm *c)
{
	char age[AGE_BYTES];

	printf("\n%s comm %" PRIu64 " with comm %" PRIu64 " of %s, as of %s ago\n", kind_word(c),
	       c->id, c->peer_id, c->peer, age_text(c->update_ns, age));
	printf("  control %s, peer last heard %s ago\n", c->connected ? "up" : "DOWN",
	       age_text(c->heard_ns, age));
	if (c->error) {
		printf("  has failed: %s\n", strerror(-c->error));
	}
	if (c->outage_ns) {
		printf("  no lane in use for %s\n", age_text(c->outage_ns, age));
	}
	if (c->open_ns) {
		printf("  waits for the peer: message %" PRIu64 " open for %s, %" PRIu64
		       " up to the newest\n",
		       c->oldest, age_text(c->open_ns, age), c->next - c->oldest);
	}
	if (c->wanted_ns) {
		printf("  the peer waits for message %" PRIu64 ", not sent here, for %s\n", c->next,
		       age_text(c->wanted_ns, age));
	}
	if (!c->error && !c->open_ns && !c->wanted_ns) {
		printf("  nothing open; next is message %" PRIu64 "\n", c->next);
	}
}

static void print_lanes(const struct page *p)
{
	char since[AGE_BYTES], fault[AGE_BYTES];

	printf("\n%5s %-7s %4s %-16s %-16s %-11s %9s %3s %5s %12s %6s %6s %6s %9s %s\n", "COMM",
	       "KIND", "LANE", "PORT", "PEER-PORT", "STATE", "SINCE", "GEN", "UNITS", "BYTES",
	       "FAULTS", "AGAIN", "LANDED", "FAULT", "CAUSE");
	for (uint32_t i = 0; i < p->lane_count; i++) {
		const struct railstate_lane *l = &p->s.lane[i];
		const struct railstate_comm *c = page_comm(p, l);

		printf("%5" PRIu64 " %-7s %4u %-16s %-16s %-11s %9s %3u %5u %12" PRIu64
		       " %6u %6u %6u %9s %s\n",
		       l->comm, kind_word(c), l->number, p->s.port[l->port].name, peer_port(c, l),
		       state_word(l), age_text(l->since_ns, since), l->generation, l->units,
		       l->bytes, l->faults, l->again, l->landed, age_text(l->fault_ns, fault),
		       l->cause[0] ? l->cause : "-");
	}
}

/* ---- JSON ---- */

#define INT(value) (json_int_t)(value)

static json_t *json_age(uint64_t then_ns)
{
	return then_ns ? json_real(age_s(dump_ns, then_ns)) : json_null();
}

static json_t *json_head(const struct page *p)
{
	const struct railstate_head *h = &p->s.head;
	char instance[24];

	snprintf(instance, sizeof(instance), "%016" PRIx64, h->instance);
	return json_pack("{s:I, s:b, s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I}", "pid",
			 INT(h->pid), "alive", p->alive, "host", h->host, "plugin", h->plugin,
			 "mode", h->mode, "instance", instance, "start_s", json_age(h->start_ns),
			 "look_s", json_age(h->look_ns), "looks", INT(h->looks), "comms_shown",
			 INT(p->comm_count), "comms_hidden", INT(h->comms_hidden), "damaged",
			 INT(p->damaged));
}

static json_t *json_port(const struct railstate_port *port)
{
	return json_pack("{s:s, s:b, s:b, s:b, s:I, s:I, s:o}", "name", port->name, "down",
			 port->down, "dead", port->dead, "drain", port->drain, "pressure",
			 INT(port->pressure), "mbps", INT(port->mbps), "change_s",
			 json_age(port->change_ns));
}

static json_t *json_comm(const struct railstate_comm *c)
{
	return json_pack("{s:I, s:I, s:s, s:s, s:b, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "id",
			 INT(c->id), "peer_id", INT(c->peer_id), "kind", kind_word(c), "peer",
			 c->peer, "connected", c->connected, "heard_s", json_age(c->heard_ns),
			 "error", INT(c->error), "oldest", INT(c->oldest), "next", INT(c->next),
			 "open_s", json_age(c->open_ns), "wanted_s", json_age(c->wanted_ns),
			 "outage_s", json_age(c->outage_ns), "update_s", json_age(c->update_ns));
}

static json_t *json_lane(const struct page *p, const struct railstate_lane *l)
{
	return json_pack("{s:I, s:I, s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, "
			 "s:o, s:s}",
			 "comm", INT(l->comm), "lane", INT(l->number), "port",
			 p->s.port[l->port].name, "peer_port", peer_port(page_comm(p, l), l),
			 "state", state_word(l), "since_s", json_age(l->since_ns), "generation",
			 INT(l->generation), "units", INT(l->units), "bytes", INT(l->bytes),
			 "faults", INT(l->faults), "tries", INT(l->tries), "again", INT(l->again),
			 "landed", INT(l->landed), "opened_s", json_age(l->opened_ns), "fault_s",
			 json_age(l->fault_ns), "cause", l->cause);
}

static json_t *json_page(const struct page *p)
{
	json_t *out = json_head(p), *ports = json_array(), *comms = json_array(),
	       *lanes = json_array();

	for (uint32_t i = 0; i < p->port_count; i++) {
		json_array_append_new(ports, json_port(&p->s.port[i]));
	}
	for (uint32_t i = 0; i < p->comm_count; i++) {
		json_array_append_new(comms, json_comm(&p->s.comm[i]));
	}
	for (uint32_t i = 0; i < p->lane_count; i++) {
		json_array_append_new(lanes, json_lane(p, &p->s.lane[i]));
	}
	json_object_set_new(out, "ports", ports);
	json_object_set_new(out, "comms", comms);
	json_object_set_new(out, "lanes", lanes);
	return out;
}

static void print_json(json_t *json)
{
	json_dumpf(json, stdout, JSON_INDENT(2));
	printf("\n");
	json_decref(json);
}

/* ---- the command ---- */

/* `ignore`: an error that is none. */
static struct page *read_said(const char *path, int ignore)
{
	struct page *p = NULL;
	char why[512];
	int rc = page_read(path, &p, why, sizeof(why));

	if (rc != 0 && rc != ignore) {
		fprintf(stderr, "railyard: dump: %s\n", why);
	}
	return p;
}

static int show(const char *path, bool json)
{
	struct page *p = read_said(path, 0);

	if (!p) {
		return 1;
	}
	if (json) {
		print_json(json_page(p));
	} else {
		print_head(p);
		print_ports(p);
		for (uint32_t i = 0; i < p->comm_count; i++) {
			print_comm(&p->s.comm[i]);
		}
		print_lanes(p);
	}
	free(p);
	return 0;
}

/* `all`: an array to put it into; NULL: print it. */
static void list_one(const char *path, void *all)
{
	struct page *p = read_said(path, -ENOENT); /* it has ended just now */

	if (p && all) {
		json_array_append_new(all, json_head(p));
	} else if (p) {
		print_head(p);
	}
	free(p);
}

static int list(bool json)
{
	json_t *all = json ? json_array() : NULL;
	int count = page_each(list_one, all);

	if (json) {
		print_json(all);
	} else if (count == 0) {
		printf("no process shows its state in " RAILSTATE_DIR "\n");
	}
	return 0;
}

int cmd_dump(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	char path[64 + sizeof(PREFIX)];
	bool json = false;
	int c;

	while ((c = getopt_long(argc, argv, "jh", options, NULL)) != -1) {
		if (c != 'j') {
			fputs(dump_help, c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
		json = true;
	}
	if (argc - optind > 1) {
		fputs(dump_help, stderr);
		return 2;
	}
	dump_ns = now_ns();
	if (optind == argc) {
		return list(json);
	}
	if (argv[optind][strspn(argv[optind], "0123456789")] != '\0') {
		return show(argv[optind], json);
	}
	snprintf(path, sizeof(path), PREFIX "%.60s", argv[optind]);
	return show(path, json);
}
