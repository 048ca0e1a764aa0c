/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * drain.c - `railyard drain PORT` and `undrain PORT`: an operator's word in the rail map, which
 * every plugin on this host heeds: a drained port gets no new pieces while another can carry them.
 *
 * Only BPF writes the map, so the word goes through the pinned publish program. Loading in the
 * meantime would lose it (a new map takes over the words of the old one): hence the lock.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd.h"
#include "pins.h"
#include "railmap.h"
#include "util.h"

static const char drain_help[] =
	"usage: railyard drain|undrain [--bpffs DIR] PORT\n"
	"\n"
	"drain takes a port out of use, for maintenance: each process with the plugin finishes\n"
	"what it has posted there and uses its other ports. undrain gives the port its share\n"
	"again. Where all ports of a connection are drained, it goes on as if none were. Needs\n"
	"root and a rail map (`railyard load`). `railyard status` shows who heeds it.\n"
	"  PORT         as `railyard rails` shows it: mlx5_0:1, mlx5_0 (all ports), or a netdev\n"
	"  --bpffs DIR  the map that `railyard load --bpffs DIR` made\n";

struct drain_job {
	const char *verb; /* "drain" or "undrain" */
	bool drain;
	const char *bpffs;
	const char *port;
};

static void row_name(const struct railmap_row *row, char *out, size_t bytes)
{
	if (row->flags & RAILMAP_ROW_RDMA) {
		snprintf(out, bytes, "%.15s:%u", row->ibdev, row->ib_port);
	} else {
		snprintf(out, bytes, "%.15s", row->ifname);
	}
}

static bool row_is(const struct railmap_row *row, const char *port)
{
	char name[32];

	row_name(row, name, sizeof(name));
	return strcmp(name, port) == 0 ||
	       ((row->flags & RAILMAP_ROW_RDMA) && strcmp(row->ibdev, port) == 0);
}

/* A netdev's name means the caller's namespace, which is where `ip link` shows it. */
static bool row_has_netdev(const struct railmap_row *row, const char *port, uint32_t netns)
{
	return strcmp(row->ifname, port) == 0 && row->netns == netns;
}

/* Bits of the rows meant, RDMA names before netdevs. */
static uint64_t rows_meant(const struct railmap *m, const char *port)
{
	uint64_t by_rdma = 0, by_netdev = 0;
	struct railmap_row row;
	struct stat ns;
	uint32_t netns = stat("/proc/self/ns/net", &ns) == 0 ? (uint32_t)ns.st_ino : 0;

	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		if (railmap_row_copy(m, i, &row) != 0) {
			continue;
		}
		by_rdma |= (uint64_t)row_is(&row, port) << i;
		by_netdev |= (uint64_t)row_has_netdev(&row, port, netns) << i;
	}
	return by_rdma ? by_rdma : by_netdev;
}

_Static_assert(RAILMAP_ROWS <= 64, "a bit per row");

static int refuse(const struct drain_job *job, const char *what, int err)
{
	bool denied = err == -EPERM || err == -EACCES;

	fprintf(stderr, "railyard: %s: %s: %s%s\n", job->verb, what, strerror(-err),
		denied ? ": needs root with CAP_BPF, outside any user namespace" : "");
	return 1;
}

static int set_row(const struct drain_job *job, const struct railmap *m, int publish_fd,
		   uint32_t index)
{
	struct railmap_publish p = {.op = RAILMAP_OP_DRAIN, .index = index,
				    .value = job->drain};
	struct railmap_row row;
	char name[32];
	int ret = railmap_row_copy(m, index, &row);

	bool already = ret == 0 && (row.drained_ns != 0) == job->drain;

	if (ret == 0 && !already) {
		ret = pins_publish(publish_fd, &p);
	}
	if (ret) {
		return refuse(job, job->port, ret);
	}
	row_name(&row, name, sizeof(name));
	printf(already ? "%s: was %s already\n" : "%s: %s\n", name,
	       job->drain ? "drained" : "in service");
	return 0;
}

static int set_rows(const struct drain_job *job, const struct railmap *m, const char *dir)
{
	uint64_t meant = rows_meant(m, job->port);
	int ret = 0, fd;

	if (!meant) {
		fprintf(stderr,
			"railyard: %s: the rail map has no port '%s': `railyard rails` lists them, "
			"`railyard load --add` takes in new ones\n",
			job->verb, job->port);
		return 1;
	}
	fd = pins_open_publish(dir);
	if (fd < 0) {
		return refuse(job, "publish program", fd);
	}
	for (uint32_t i = 0; i < RAILMAP_ROWS && ret == 0; i++) {
		if (meant >> i & 1) {
			ret = set_row(job, m, fd, i);
		}
	}
	close(fd);
	return ret;
}

static int set_locked(const struct drain_job *job, const char *dir)
{
	char why[RAILMAP_WHY_BYTES];
	struct railmap m;
	int ret;

	if (railmap_open(&m, dir, now_ns(), why, sizeof(why))) {
		fprintf(stderr, "railyard: %s: %s\n", job->verb, why);
		return 1;
	}
	ret = set_rows(job, &m, dir);
	railmap_close(&m);
	return ret;
}

static int run(const struct drain_job *job)
{
	const char *dir;
	int lock, ret;

	for (unsigned int i = 0; (dir = pins_place(job->bpffs, i)) != NULL; i++) {
		if (!pins_exist(dir)) {
			continue;
		}
		lock = pins_lock(dir);
		if (lock < 0) {
			return refuse(job, dir, lock);
		}
		ret = set_locked(job, dir);
		close(lock);
		return ret;
	}
	fprintf(stderr, "railyard: %s: no rail map%s%s: `railyard load` makes it\n", job->verb,
		job->bpffs ? " in " : " on this host", job->bpffs ? job->bpffs : "");
	return 1;
}

int cmd_drain(int argc, char **argv)
{
	static const struct option options[] = {
		{"bpffs", required_argument, NULL, 'b'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct drain_job job = {.verb = argv[0], .drain = strcmp(argv[0], "drain") == 0};
	int c;

	while ((c = getopt_long(argc, argv, "b:h", options, NULL)) != -1) {
		if (c != 'b') {
			fputs(drain_help, c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
		job.bpffs = optarg;
	}
	if (argc - optind != 1) {
		fputs(drain_help, stderr);
		return 2;
	}
	job.port = argv[optind];
	if (geteuid() != 0) {
		fprintf(stderr, "railyard: %s: needs root\n", job.verb);
		return 1;
	}
	return run(&job);
}
