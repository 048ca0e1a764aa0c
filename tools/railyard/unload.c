/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * unload.c - `railyard unload`: detach the hooks and remove the rail map. Readers that still have
 * it mapped see its heartbeat stop at once and go on without it.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "pins.h"

static const char unload_help[] =
	"usage: railyard unload [--bpffs DIR]\n"
	"\n"
	"Detaches the BPF programs and removes the rail map, wherever `railyard load` put them.\n";

static int unload_dir(const char *dir)
{
	int lock = pins_lock(dir);
	int ret = lock < 0 ? lock : 0;

	if (ret == 0) {
		ret = pins_clear(dir, RAILMAP_SUBDIR);
		close(lock);
	}
	if (ret) {
		fprintf(stderr, "railyard: unload: %s: %s\n", dir, strerror(-ret));
		return ret;
	}
	pins_forget(dir);
	printf("unloaded %s/" RAILMAP_SUBDIR "\n", dir);
	return 0;
}

int cmd_unload(int argc, char **argv)
{
	static const struct option options[] = {
		{"bpffs", required_argument, NULL, 'b'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const char *bpffs = NULL;
	char dir[PIN_PATH_BYTES];
	int found = 0;
	int c;

	while ((c = getopt_long(argc, argv, "b:h", options, NULL)) != -1) {
		if (c == 'b') {
			bpffs = optarg;
		} else {
			fputs(unload_help, c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
	}
	if (optind < argc) {
		fputs(unload_help, stderr);
		return 2;
	}
	if (geteuid() != 0) {
		fprintf(stderr, "railyard: unload: needs root\n");
		return 1;
	}
	while (pins_find(bpffs, dir) == 0) {
		if (unload_dir(dir)) {
			return 1;
		}
		found = 1;
	}
	if (!found) {
		printf("nothing is loaded\n");
	}
	return 0;
}
