/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_map.c - torn reads and costs of the rail map that is loaded.
 *
 * bench_map DIR READS [--costs]    one process writes the hw part of the last row through the
 *     publish program as fast as it can while this one reads whole rows: every value of a write is
 *     the same number, so a mixed row is a torn one. Exit 1 if one was seen, or if the writer did
 *     not write. --costs adds ns per write and, from the kernel's own statistics, per run of each
 *     hook. Needs root: it makes a row named "bench-map".
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../tools/railyard/pins.h"
#include "railmap.h"
#include "util.h"

#define WRITES_TIMED 200000

static int make_row(int publish_fd, uint32_t *index)
{
	struct railmap_publish p = {.op = RAILMAP_OP_ROW, .ifname = "bench-map"};
	int ret = pins_publish(publish_fd, &p);

	*index = p.index;
	return ret;
}

static void write_once(int publish_fd, uint32_t index, uint64_t value)
{
	struct railmap_publish p = {
		.op = RAILMAP_OP_HW, .index = index, .hw_valid = (1u << RAILMAP_HW_COUNT) - 1};

	for (int i = 0; i < RAILMAP_HW_COUNT; i++) {
		p.hw[i] = value;
	}
	pins_publish(publish_fd, &p);
}

static pid_t start_writer(int publish_fd, uint32_t index)
{
	pid_t pid = fork();

	for (uint64_t value = 1; pid == 0; value++) {
		write_once(publish_fd, index, value);
		if (getppid() == 1) {
			_exit(1); /* the reader died */
		}
	}
	return pid;
}

static bool torn(const struct railmap_row *row)
{
	const uint64_t *counter = &row->hw_rx_pkts;

	for (int i = 1; i < RAILMAP_HW_COUNT; i++) {
		if (counter[i] != counter[0]) {
			return true;
		}
	}
	return row->hw_seq & 1;
}

/* Returns 0 if every read was whole and the values moved. */
static int read_all(const struct railmap *m, uint32_t index, uint64_t reads)
{
	struct railmap_row row;
	uint64_t bad = 0;
	uint64_t again = 0;
	uint64_t moved = 0;
	uint64_t last = 0;
	uint64_t begin_ns = now_ns();

	for (uint64_t i = 0; i < reads; i++) {
		if (railmap_row_copy(m, index, &row)) {
			again++;
			continue;
		}
		bad += torn(&row);
		moved += row.hw_rx_pkts != last;
		last = row.hw_rx_pkts;
	}
	printf("torn reads: %llu of %llu (%llu saw a new value, %llu gave up), %.1f ns a read\n",
	       (unsigned long long)bad, (unsigned long long)reads, (unsigned long long)moved,
	       (unsigned long long)again, (double)(now_ns() - begin_ns) / (double)reads);
	return bad == 0 && moved > 1 ? 0 : 1;
}

static void time_calm(const struct railmap *m, int publish_fd, uint32_t index)
{
	struct railmap_view view;
	uint64_t begin_ns = now_ns();

	for (int i = 0; i < WRITES_TIMED; i++) {
		write_once(publish_fd, index, 1);
	}
	printf("publish: %.0f ns a call\n", (double)(now_ns() - begin_ns) / WRITES_TIMED);
	begin_ns = now_ns();
	for (int i = 0; i < WRITES_TIMED; i++) {
		railmap_read(m, index, &view);
	}
	printf("railmap_read: %.1f ns, nobody writing\n",
	       (double)(now_ns() - begin_ns) / WRITES_TIMED);
}

/* What ran while statistics were on; the caller has traffic for the packet hooks. */
static void print_hooks(void)
{
	struct bpf_prog_info info;
	uint32_t bytes;
	uint32_t id = 0;

	while (bpf_prog_get_next_id(id, &id) == 0) {
		int fd = bpf_prog_get_fd_by_id(id);

		memset(&info, 0, sizeof(info));
		bytes = sizeof(info);
		if (fd >= 0 && bpf_obj_get_info_by_fd(fd, &info, &bytes) == 0 && info.run_cnt &&
		    (strncmp(info.name, "on_", 3) == 0 || strcmp(info.name, "publish") == 0)) {
			printf("%s: %.0f ns a run, of %llu\n", info.name,
			       (double)info.run_time_ns / (double)info.run_cnt,
			       (unsigned long long)info.run_cnt);
		}
		if (fd >= 0) {
			close(fd);
		}
	}
}

static int measure(const struct railmap *m, int publish_fd, uint64_t reads, bool costs)
{
	int stats_fd = costs ? bpf_enable_stats(BPF_STATS_RUN_TIME) : -1;
	uint32_t index;
	pid_t writer;
	int ret = make_row(publish_fd, &index);

	if (ret) {
		fprintf(stderr, "bench_map: no row: %s\n", strerror(-ret));
		return 1;
	}
	writer = start_writer(publish_fd, index);
	ret = read_all(m, index, reads);
	kill(writer, SIGKILL);
	waitpid(writer, NULL, 0);
	if (costs) {
		print_hooks();
		close(stats_fd);
		time_calm(m, publish_fd, index);
	}
	return ret;
}

int main(int argc, char **argv)
{
	char why[RAILMAP_WHY_BYTES];
	struct railmap m;
	int fd;
	int ret;

	if (argc < 3) {
		fprintf(stderr, "usage: bench_map DIR READS [--costs]\n");
		return 2;
	}
	if (railmap_open(&m, argv[1], now_ns(), why, sizeof(why))) {
		fprintf(stderr, "bench_map: %s\n", why);
		return 1;
	}
	fd = pins_open_publish(argv[1]);
	if (fd < 0) {
		fprintf(stderr, "bench_map: publish program: %s\n", strerror(-fd));
		return 1;
	}
	ret = measure(&m, fd, strtoull(argv[2], NULL, 10), argc > 3);
	close(fd);
	railmap_close(&m);
	return ret;
}
