/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * load.c - `railyard load`: put the BPF programs into the kernel, make the rail map and its rows,
 * pin all of it, and go. Nothing of ours keeps running.
 *
 * A new map is complete before it takes the old one's name, and only then is the old one retired:
 * readers see one or the other, never half. What an operator drained stays drained.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd.h"
#include "hooks.h"
#include "pins.h"
#include "ports.h"
#include "railmap.h"
#include "util.h"
#include "railyard.skel.h"

#define LINK_COUNT RAILMAP_HOOK_COUNT

struct load_options {
	const char *bpffs;
	bool add;
	bool quiet;
	bool verbose;
};

struct loaded {
	struct railyard_bpf *skel;
	struct bpf_link *links[LINK_COUNT];
	struct hook_status hooks[RAILMAP_HOOK_COUNT];
};

static const char load_help[] =
	"usage: railyard load [--bpffs DIR] [--add] [--quiet] [--verbose] [NETDEV ...]\n"
	"\n"
	"Loads the BPF programs, makes the rail map with one row for each RDMA port and each "
	"NETDEV\n"
	"named, and pins all of it; nothing keeps running. Loading again replaces what is there.\n"
	"  --bpffs DIR  pin under DIR/v1 (default: " RAILMAP_DIR_SYSTEM ", or, where that is not\n"
	"               open to everybody, a bpf file system mounted at " RAILMAP_DIR_OWN ")\n"
	"  --add        keep the map that is loaded, only add or refresh rows (for udev)\n"
	"  --quiet      print errors only\n"
	"  --verbose    also print what libbpf and the kernel's verifier say\n";

/* ---- small parts ---- */

static int fail(int err, const char *what)
{
	fprintf(stderr, "railyard: load: %s: %s\n", what, strerror(-err));
	return err;
}

static int parse(int argc, char **argv, struct load_options *o)
{
	static const struct option options[] = {
		{"bpffs", required_argument, NULL, 'b'}, {"add", no_argument, NULL, 'a'},
		{"quiet", no_argument, NULL, 'q'},	 {"verbose", no_argument, NULL, 'v'},
		{"help", no_argument, NULL, 'h'},	 {NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "b:aqvh", options, NULL)) != -1) {
		switch (c) {
		case 'b':
			o->bpffs = optarg;
			break;
		case 'a':
			o->add = true;
			break;
		case 'q':
			o->quiet = true;
			break;
		case 'v':
			o->verbose = true;
			break;
		case 'h':
			fputs(load_help, stdout);
			return 1;
		default:
			fputs(load_help, stderr);
			return -EINVAL;
		}
	}
	return 0;
}

static int find_ports(struct port_list *ports, int count, char **names)
{
	int ret = ports_scan(ports);

	if (ret) {
		return fail(ret, "/sys/class/infiniband");
	}
	for (int i = 0; i < count; i++) {
		ret = ports_add_netdev(ports, names[i]);
		if (ret == -ENODEV) {
			fprintf(stderr, "railyard: load: no network device '%s' here\n", names[i]);
			return ret;
		}
	}
	if (ports->dropped) {
		fprintf(stderr, "railyard: load: the map has %u rows: %u ports left out\n",
			RAILMAP_ROWS, ports->dropped);
	}
	return 0;
}

static int make_rows(int publish_fd, struct port_list *ports)
{
	for (unsigned int i = 0; i < ports->count; i++) {
		int ret;

		ports->rows[i].op = RAILMAP_OP_ROW;
		ret = pins_publish(publish_fd, &ports->rows[i]);
		if (ret) {
			return fail(ret, ports->rows[i].ifname);
		}
	}
	return 0;
}

/* ---- the old map ---- */

static void drain_again(int publish_fd, const struct railmap *old, const struct port_list *ports)
{
	for (unsigned int i = 0; i < ports->count; i++) {
		const struct railmap_publish *port = &ports->rows[i];
		struct railmap_who who = {0};
		struct railmap_publish p = {
			.op = RAILMAP_OP_DRAIN, .index = port->index, .value = 1};
		struct railmap_row row;
		int was;

		if (port->flags & RAILMAP_ROW_PORT) {
			who.ibdev = port->name; /* its PCI function may have a row too */
			who.ib_port = port->ib_port;
		} else if (port->flags & RAILMAP_ROW_PCI) {
			who.pci = port->pci;
			who.dev_port = port->dev_port;
		} else {
			who.ifname = port->ifname;
			who.netns = port->netns;
		}
		was = railmap_find(old, &who);
		if (was >= 0 && railmap_row_copy(old, (uint32_t)was, &row) == 0 && row.drained_ns) {
			pins_publish(publish_fd, &p);
		}
	}
}

/* ---- a new map ---- */

static int load_object(struct loaded *l)
{
	struct bpf_program *prog;
	int ret;

	l->skel = railyard_bpf__open();
	if (!l->skel) {
		return fail(-errno, "BPF object");
	}
	for (int i = 0; i < RAILMAP_HOOK_COUNT; i++) {
		if (!hook_infos[i].program || l->hooks[i].state == HOOK_LIVE) {
			continue;
		}
		prog = bpf_object__find_program_by_name(l->skel->obj, hook_infos[i].program);
		bpf_program__set_autoload(prog, false);
	}
	ret = railyard_bpf__load(l->skel);
	return ret ? fail(ret, "BPF object") : 0;
}

static int freeze(struct loaded *l)
{
	int ret = bpf_map_freeze(bpf_map__fd(l->skel->maps.rail_hdr));

	if (ret == 0) {
		ret = bpf_map_freeze(bpf_map__fd(l->skel->maps.rails));
	}
	return ret ? fail(ret, "cannot freeze the map") : 0;
}

static int start(int publish_fd, uint64_t generation)
{
	struct railmap_publish p = {
		.op = RAILMAP_OP_START, .value = generation, .loader_pid = (uint32_t)getpid()};
	int ret;

	snprintf(p.name, sizeof(p.name), "%s", RAILYARD_VERSION);
	ret = pins_publish(publish_fd, &p);
	return ret ? fail(ret, "cannot start the heartbeat") : 0;
}

static int attach(struct loaded *l, int publish_fd)
{
	struct railmap_publish p = {.op = RAILMAP_OP_HOOKS};
	int ret;

	for (int i = 0; i < RAILMAP_HOOK_COUNT; i++) {
		struct bpf_program *prog;

		if (l->hooks[i].state != HOOK_LIVE) {
			continue;
		}
		if (hook_infos[i].program) {
			prog = bpf_object__find_program_by_name(l->skel->obj,
								hook_infos[i].program);
			l->links[i] = bpf_program__attach(prog);
			if (!l->links[i]) {
				hook_missing(&l->hooks[i], (enum railmap_hook)i, -errno);
				continue;
			}
		}
		p.value |= 1ull << i;
	}
	ret = pins_publish(publish_fd, &p);
	return ret ? fail(ret, "cannot publish the hooks") : 0;
}

/* ---- pins ---- */

static int pin_map(const struct bpf_map *map, const char *dir, mode_t mode)
{
	char path[PIN_PATH_BYTES];

	snprintf(path, sizeof(path), "%.200s/%s", dir, bpf_map__name(map));
	if (bpf_obj_pin(bpf_map__fd(map), path) || chmod(path, mode)) {
		return fail(-errno, path);
	}
	return 0;
}

static int pin_fd(int fd, const char *dir, const char *name)
{
	char path[PIN_PATH_BYTES];

	snprintf(path, sizeof(path), "%.200s/%s", dir, name);
	return bpf_obj_pin(fd, path) || chmod(path, 0600) ? fail(-errno, path) : 0;
}

static int pin_links(const struct loaded *l, const char *dir)
{
	char sub[PIN_PATH_BYTES];
	int ret = 0;

	snprintf(sub, sizeof(sub), "%.200s/links", dir);
	if (mkdir(sub, 0700)) {
		return fail(-errno, sub);
	}
	for (int i = 0; ret == 0 && i < LINK_COUNT; i++) {
		if (l->links[i]) {
			ret = pin_fd(bpf_link__fd(l->links[i]), sub, hook_infos[i].name);
		}
	}
	return ret;
}

static int pin_all(const struct loaded *l, const char *dir)
{
	struct bpf_map *map;
	bool is_public;
	int ret = 0;

	if (mkdir(dir, 0755) || chmod(dir, 0755)) {
		return fail(-errno, dir);
	}
	bpf_object__for_each_map(map, l->skel->obj)
	{
		if (bpf_map__is_internal(map)) {
			continue; /* constants: the programs hold them */
		}
		is_public = map == l->skel->maps.rails || map == l->skel->maps.rail_hdr;

		ret = pin_map(map, dir, is_public ? 0666 : 0600);
		if (ret) {
			return ret;
		}
	}
	ret = pin_fd(bpf_program__fd(l->skel->progs.publish), dir, "publish");
	return ret ? ret : pin_links(l, dir);
}

/* Give the new map the name, then take the old one away. */
static int swap_in(const char *dir)
{
	char now[PIN_PATH_BYTES];
	char old[PIN_PATH_BYTES];
	char fresh[PIN_PATH_BYTES];

	snprintf(now, sizeof(now), "%.200s/" RAILMAP_SUBDIR, dir);
	snprintf(old, sizeof(old), "%.200s/" PINS_OLD, dir);
	snprintf(fresh, sizeof(fresh), "%.200s/" PINS_NEW, dir);
	if (rename(now, old) && errno != ENOENT) {
		return fail(-errno, now);
	}
	if (rename(fresh, now)) {
		return fail(-errno, fresh);
	}
	return pins_clear(dir, PINS_OLD);
}

static int pin_and_swap(const struct loaded *l, const char *dir)
{
	char fresh[PIN_PATH_BYTES];
	int ret;

	snprintf(fresh, sizeof(fresh), "%.200s/" PINS_NEW, dir);
	ret = pin_all(l, fresh);
	if (ret) {
		pins_clear(dir, PINS_NEW);
		return ret;
	}
	return swap_in(dir);
}

static void unload_object(struct loaded *l)
{
	for (int i = 0; i < LINK_COUNT; i++) {
		bpf_link__destroy(l->links[i]); /* detaches only what is not pinned */
	}
	railyard_bpf__destroy(l->skel);
}

/* ---- the two ways to load ---- */

static void report(const struct loaded *l, const char *dir, uint64_t generation,
		   const struct port_list *ports)
{
	printf("rail map: %s/" RAILMAP_SUBDIR ", abi %u, generation %llu\n", dir, RAILMAP_ABI,
	       (unsigned long long)generation);
	hooks_print(l->hooks);
	printf("rails: %u\n", ports->count);
	for (unsigned int i = 0; i < ports->count; i++) {
		const struct railmap_publish *p = &ports->rows[i];

		printf("  %-3u %s%s%.0u %s%s%s\n", p->index, p->name[0] ? p->name : p->ifname,
		       p->name[0] ? ":" : "", p->ib_port, p->name[0] ? p->ifname : "",
		       p->flags & RAILMAP_ROW_PCI ? " " : "", p->pci);
	}
	if (!ports->count) {
		printf("  no RDMA port found; name network devices to watch those\n");
	}
}

static int load_into(const char *dir, struct port_list *ports, const struct load_options *o)
{
	struct loaded l = {0};
	struct railmap old;
	char why[RAILMAP_WHY_BYTES];
	uint64_t generation = 1;
	bool had_old = railmap_open(&old, dir, now_ns(), why, sizeof(why)) == 0;
	int publish_fd;
	int ret = hooks_probe(ports_any_soft(ports), l.hooks);

	if (had_old) {
		generation = old.hdr->generation + 1;
	}
	ret = ret ? ret : load_object(&l);
	ret = ret ? ret : freeze(&l);
	if (ret) {
		goto out;
	}
	publish_fd = bpf_program__fd(l.skel->progs.publish);
	ret = start(publish_fd, generation);
	ret = ret ? ret : make_rows(publish_fd, ports);
	if (ret == 0 && had_old) {
		drain_again(publish_fd, &old, ports);
	}
	ret = ret ? ret : attach(&l, publish_fd);
	if (ret == 0) {
		ports_look_again(ports); /* a link may have changed before the hooks were there */
		ret = make_rows(publish_fd, ports);
	}
	ret = ret ? ret : pin_and_swap(&l, dir);
	if (ret == 0 && !o->quiet) {
		report(&l, dir, generation, ports);
	}
out:
	unload_object(&l);
	if (had_old) {
		railmap_close(&old);
	}
	return ret;
}

/* Add rows to the map that is there. Returns 1 if it lacks hooks that they need. */
static int add_rows(const char *dir, struct port_list *ports, const struct load_options *o)
{
	const uint64_t packet_hooks = 1u << RAILMAP_HOOK_TX_PACKET | 1u << RAILMAP_HOOK_RX_PACKET;
	struct railmap m;
	char why[RAILMAP_WHY_BYTES];
	int fd;
	int ret = railmap_open(&m, dir, now_ns(), why, sizeof(why));

	if (ret) {
		return 1; /* of another version, or dead: replace it */
	}
	ret = ports_any_soft(ports) && !(m.hdr->hooks & packet_hooks);
	railmap_close(&m);
	if (ret) {
		return 1;
	}
	fd = pins_open_publish(dir);
	if (fd < 0) {
		return fail(fd, "publish program");
	}
	ret = make_rows(fd, ports);
	close(fd);
	if (ret == 0 && !o->quiet) {
		printf("rail map: %s/" RAILMAP_SUBDIR ": %u rails refreshed\n", dir, ports->count);
	}
	return ret;
}

/* Maps at another of the usual places (say, from before /sys/fs/bpf was mounted) would mislead. */
static void clear_elsewhere(const char *dir)
{
	const char *place;

	for (unsigned int i = 0; (place = pins_place(NULL, i)) != NULL; i++) {
		if (strcmp(place, dir) != 0 && pins_exist(place)) {
			pins_clear(place, RAILMAP_SUBDIR);
			pins_forget(place);
		}
	}
}

static int load_locked(const char *dir, struct port_list *ports, const struct load_options *o)
{
	int ret = 1;

	pins_clear(dir, PINS_NEW); /* of a load that was killed */
	pins_clear(dir, PINS_OLD);
	if (o->add) {
		ret = add_rows(dir, ports, o);
	}
	if (ret == 1) {
		ret = load_into(dir, ports, o);
	}
	if (ret == 0 && !o->bpffs) {
		clear_elsewhere(dir);
	}
	return ret;
}

int cmd_load(int argc, char **argv)
{
	struct load_options o = {0};
	static struct port_list ports;
	char dir[PIN_PATH_BYTES];
	int lock;
	int ret = parse(argc, argv, &o);

	if (ret) {
		return ret > 0 ? 0 : 2;
	}
	if (geteuid() != 0) {
		fprintf(stderr, "railyard: load: needs root\n");
		return 1;
	}
	if (!o.verbose) {
		hooks_quiet();
	}
	if (find_ports(&ports, argc - optind, argv + optind) || pins_prepare(o.bpffs, dir)) {
		return 1;
	}
	lock = pins_lock(dir);
	if (lock < 0) {
		fail(lock, dir);
		return 1;
	}
	ret = load_locked(dir, &ports, &o);
	close(lock);
	return ret ? 1 : 0;
}
