/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * status.c - `railyard status`: is there a rail map to believe, which hooks fill it, who reads it,
 * and what is missing, in plain words. Changes nothing; root is told more, since only root may ask
 * the kernel which programs it takes.
 */
#include <bpf/libbpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cmd.h"
#include "dump_page.h"
#include "hooks.h"
#include "railmap.h"

static const char status_help[] =
	"usage: railyard status [--bpffs DIR]\n"
	"\n"
	"Shows the rail map's health: kernel, hooks, heartbeat, rails, age of the counters of\n"
	"NICs, and what processes with the plugin make of their ports. As root it also says why\n"
	"a hook is not live. Exit status 0: there is a map that the plugin believes; 1: none.\n"
	"  --bpffs DIR  the map that `railyard load --bpffs DIR` made\n";

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double age_s(uint64_t now_ns, uint64_t then_ns)
{
	return then_ns && now_ns > then_ns ? (double)(now_ns - then_ns) / 1e9 : 0;
}

static int libbpf_quiet(enum libbpf_print_level level, const char *fmt, va_list args)
{
	(void)level;
	(void)fmt;
	(void)args;
	return 0;
}

/* ---- this host ---- */

/* First line of a small file; "" if it cannot be read. */
static void read_line(const char *path, char *line, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, line, bytes - 1) : 0;

	line[n > 0 ? n : 0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (fd >= 0) {
		close(fd);
	}
}

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
	char line[128];
	struct stat st;

	if (access("/sys/kernel/btf/vmlinux", R_OK)) {
		printf("  missing  BTF of this kernel (/sys/kernel/btf/vmlinux): it needs "
		       "CONFIG_DEBUG_INFO_BTF\n");
	}
	read_line("/sys/kernel/security/lockdown", line, sizeof(line));
	if (strstr(line, "[confidentiality]")) {
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

/* Why hook i is not live, as far as can be told now. */
static void why_not(enum railmap_hook i, const struct hook_status *probed, bool soft, char *why,
		    size_t bytes)
{
	if (hook_infos[i].tier == 1 && !soft) {
		snprintf(why, bytes, "no rail is soft RoCE");
	} else if (!probed) {
		snprintf(why, bytes, "as root this says why");
	} else if (probed->state == HOOK_LIVE) {
		snprintf(why, bytes, "this kernel takes it now: `railyard load` again");
	} else {
		snprintf(why, bytes, "%s", probed->why);
	}
}

static void print_hooks(const struct railmap *m)
{
	struct hook_status probed[RAILMAP_HOOK_COUNT];
	bool soft = any_soft(m);
	bool asked = geteuid() == 0 && hooks_probe(soft, probed) == 0;
	char why[HOOK_WHY_BYTES];

	printf("hooks:\n");
	for (int i = 0; i < RAILMAP_HOOK_COUNT; i++) {
		const struct hook_info *info = &hook_infos[i];
		bool off = info->tier == 1 && !soft;

		if (railmap_has_hook(m, (enum railmap_hook)i)) {
			printf("  live     %-23s %s\n", info->name, info->gives);
			continue;
		}
		why_not((enum railmap_hook)i, asked ? &probed[i] : NULL, soft, why, sizeof(why));
		printf("  %-8s %-23s %s%s%s\n", off ? "off" : "missing", info->name, why,
		       off ? "" : ": ", off ? "" : info->without);
	}
}

static void print_rails(const struct railmap *m, uint64_t now_ns)
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
		       age_s(now_ns, sample_ns + m->clock_ahead_ns));
	} else {
		printf("counters of NICs: nobody has read any: no congestion signals of ports "
		       "whose packets the kernel does not see\n");
	}
}

static int print_map(const char *bpffs)
{
	char why[RAILMAP_WHY_BYTES];
	struct railmap m;
	uint64_t now_ns = clock_ns();

	if (railmap_open(&m, bpffs, now_ns, why, sizeof(why))) {
		printf("%s\n", why);
		print_hindrances();
		return 1;
	}
	now_ns = clock_ns();
	printf("rail map: abi %u, generation %" PRIu64 ", loaded %.0f s ago by railyard %.15s\n",
	       m.hdr->abi, m.hdr->generation, age_s(now_ns, m.hdr->load_ns + m.clock_ahead_ns),
	       m.hdr->version);
	printf("heartbeat: %.1f s ago, %" PRIu64 " so far\n",
	       age_s(now_ns, m.hdr->heartbeat_ns + m.clock_ahead_ns), m.hdr->heartbeats);
	print_hooks(&m);
	print_rails(&m, now_ns);
	railmap_close(&m);
	return 0;
}

/* ---- the plugins ---- */

static int is_page(const struct dirent *entry)
{
	return strncmp(entry->d_name, RAILSTATE_PREFIX, strlen(RAILSTATE_PREFIX)) == 0;
}

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

/* What one process makes of its ports. Returns 1 if it lives. */
static int print_process(const char *path)
{
	struct page *p = NULL;
	char why[512];
	int alive;

	if (page_read(path, &p, why, sizeof(why))) {
		return 0; /* of another user, of another version, or just ended */
	}
	alive = p->alive;
	if (alive) {
		printf("process %u:", p->s.head.pid);
		for (uint32_t i = 0; i < p->port_count; i++) {
			print_port(&p->s.port[i]);
			printf("%s", i + 1 < p->port_count ? "," : "");
		}
		printf("\n");
	}
	free(p);
	return alive;
}

static void print_processes(void)
{
	struct dirent **entries;
	int count = scandir(RAILSTATE_DIR, &entries, is_page, alphasort);
	int alive = 0;

	for (int i = 0; i < count; i++) {
		char path[sizeof(RAILSTATE_DIR) + sizeof(entries[i]->d_name) + 1];

		snprintf(path, sizeof(path), RAILSTATE_DIR "/%s", entries[i]->d_name);
		alive += print_process(path);
		free(entries[i]);
	}
	if (count >= 0) {
		free(entries);
	}
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
	libbpf_set_print(libbpf_quiet);
	if (uname(&kernel) == 0) {
		printf("railyard %s, kernel %s\n", RAILYARD_VERSION, kernel.release);
	}
	ret = print_map(bpffs);
	print_processes();
	return ret;
}
