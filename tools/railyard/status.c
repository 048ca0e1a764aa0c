/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * status.c - `railyard status`: is there a rail map to believe, which hooks fill it, who reads it,
 * and what is missing, in plain words. Changes nothing; root is told more, since only root may ask
 * the kernel which programs it takes.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "age.h"
#include "cmd.h"
#include "dump_page.h"
#include "hooks.h"
#include "railmap.h"
#include "util.h"

static const char status_help[] =
	"usage: railyard status [--bpffs DIR]\n"
	"\n"
	"Shows the rail map's health: kernel, hooks, heartbeat, rails, age of the counters of\n"
	"NICs, and what processes with the plugin make of their ports. As root it also says why\n"
	"a hook is not live. Exit status 0: there is a map that the plugin believes; 1: none.\n"
	"  --bpffs DIR  the map that `railyard load --bpffs DIR` made\n";

/* ---- this host ---- */

/* Effective capabilities of this process, as bits. */
static uint64_t own_capabilities(void)
{
	char line[128];
	uint64_t caps = 0;
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, "CapEff:", 7) == 0) {
			caps = strtoull(line + 7, NULL, 16);
		}
	}
	if (f) {
		fclose(f);
	}
	return caps;
}

static void print_capabilities(void)
{
	static const struct {
		unsigned int bit;
		const char *name, *use;
	} needed[] = {
		{39, "CAP_BPF", "to load programs and to run the publish program"},
		{38, "CAP_PERFMON", "to attach to tracepoints and functions"},
		{21, "CAP_SYS_ADMIN", "to mount a bpf file system, and for driver taps"},
	};
	uint64_t caps = own_capabilities();

	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		if (!(caps >> needed[i].bit & 1)) {
			printf("  missing  %s here: `railyard load` needs it %s\n", needed[i].name,
			       needed[i].use);
		}
	}
}

/* What would keep `railyard load` from working, each in a line. */
static void print_hindrances(void)
{
	struct stat st;

	if (access("/sys/kernel/btf/vmlinux", R_OK)) {
		printf("  missing  BTF of this kernel (/sys/kernel/btf/vmlinux): it needs "
		       "CONFIG_DEBUG_INFO_BTF\n");
	}
	if (hooks_locked_down()) {
		printf("  missing  permission of the kernel: lockdown is in confidentiality mode, "
		       "which refuses BPF that reads the kernel\n");
	}
	if (stat("/sys/fs/bpf", &st)) {
		printf("  missing  /sys/fs/bpf: mount -t bpf -o mode=0755 bpf /sys/fs/bpf\n");
	} else if ((st.st_mode & 0005) != 0005) {
		printf("  note     /sys/fs/bpf has mode %04o: `railyard load` uses "
		       RAILMAP_DIR_OWN "\n", (unsigned int)(st.st_mode & 07777));
	}
	print_capabilities();
}

/* ---- the map ---- */

static bool any_soft(const struct railmap *m)
{
	struct railmap_row row;
	bool soft = false;

	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		soft |= railmap_row_copy(m, i, &row) == 0 && (row.flags & RAILMAP_ROW_SOFT);
	}
	return soft;
}

/* A hook that the map lacks, after a probe of it if there was one. */
static void hook_lacks(struct hook_status *s, bool probed)
{
	if (!probed || s->state == HOOK_LIVE) {
		s->state = HOOK_MISSING;
		snprintf(s->why, sizeof(s->why), "%s",
			 probed ? "this kernel takes it now: `railyard load` again"
				: "as root this says why");
	}
}

static void print_hooks(const struct railmap *m)
{
	struct hook_status status[RAILMAP_HOOK_COUNT];
	bool soft = any_soft(m);
	bool probed = geteuid() == 0 && hooks_probe(soft, status) == 0;

	for (int i = 0; i < RAILMAP_HOOK_COUNT; i++) {
		enum railmap_hook hook = (enum railmap_hook)i;

		if (railmap_has_hook(m, hook)) {
			status[i].state = HOOK_LIVE;
		} else if (!hook_is_off(&status[i], hook, soft)) {
			hook_lacks(&status[i], probed);
		}
	}
	hooks_print(status);
}

static void print_rails(const struct railmap *m, uint64_t now)
{
	unsigned int rails = 0, down = 0, drained = 0;
	uint64_t sample_ns = 0;
	struct railmap_view view;
	struct railmap_row row;

	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		if (railmap_row_copy(m, i, &row) != 0 || railmap_read(m, i, &view) != 0) {
			continue;
		}
		rails++;
		down += view.link == RAILMAP_STATE_DOWN;
		drained += view.drained;
		sample_ns = row.hw_sample_ns > sample_ns ? row.hw_sample_ns : sample_ns;
	}
	printf("rails: %u, %u down, %u drained\n", rails, down, drained);
	if (sample_ns) {
		printf("counters of NICs: last read %.1f s ago\n",
		       age_s(now, sample_ns + m->clock_ahead_ns));
	} else {
		printf("counters of NICs: nobody has read any: no congestion signals of ports "
		       "whose packets the kernel does not see\n");
	}
}

static int print_map(const char *bpffs)
{
	char why[RAILMAP_WHY_BYTES];
	struct railmap m;
	uint64_t now = now_ns();

	if (railmap_open(&m, bpffs, now, why, sizeof(why))) {
		printf("%s\n", why);
		print_hindrances();
		return 1;
	}
	now = now_ns();
	printf("rail map: abi %u, generation %" PRIu64 ", loaded %.0f s ago by railyard %.15s\n",
	       m.hdr->abi, m.hdr->generation, age_s(now, m.hdr->load_ns + m.clock_ahead_ns),
	       m.hdr->version);
	printf("heartbeat: %.1f s ago, %" PRIu64 " so far\n",
	       age_s(now, m.hdr->heartbeat_ns + m.clock_ahead_ns), m.hdr->heartbeats);
	print_hooks(&m);
	print_rails(&m, now);
	railmap_close(&m);
	return 0;
}

/* ---- the plugins ---- */

static void print_port(const struct railstate_port *port)
{
	printf(" %s %s", port->name, port->dead    ? "given up"
				     : port->down  ? "down"
				     : port->drain ? "drained"
						   : "up");
	if (port->pressure) {
		printf(" (pressure %u %%)", port->pressure * 100 / 255);
	}
}

/* What one process makes of its ports; counts those that live. */
static void print_process(const char *path, void *count)
{
	unsigned int *alive = count;
	struct page *p = NULL;
	char why[512];

	if (page_read(path, &p, why, sizeof(why))) {
		return; /* of another user, of another version, or just ended */
	}
	if (p->alive) {
		++*alive;
		printf("process %u:", p->s.head.pid);
		for (uint32_t i = 0; i < p->port_count; i++) {
			print_port(&p->s.port[i]);
			printf("%s", i + 1 < p->port_count ? "," : "");
		}
		printf("\n");
	}
	free(p);
}

static void print_processes(void)
{
	unsigned int alive = 0;

	page_each(print_process, &alive);
	if (!alive) {
		printf("processes with the plugin: none that this user may see\n");
	}
}

int cmd_status(int argc, char **argv)
{
	static const struct option options[] = {
		{"bpffs", required_argument, NULL, 'b'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const char *bpffs = NULL;
	struct utsname kernel;
	int c, ret;

	while ((c = getopt_long(argc, argv, "b:h", options, NULL)) != -1) {
		if (c != 'b') {
			fputs(status_help, c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
		bpffs = optarg;
	}
	if (optind < argc) {
		fputs(status_help, stderr);
		return 2;
	}
	hooks_quiet();
	if (uname(&kernel) == 0) {
		printf("railyard %s, kernel %s\n", RAILYARD_VERSION, kernel.release);
	}
	ret = print_map(bpffs);
	print_processes();
	return ret;
}
