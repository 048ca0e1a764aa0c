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

/* Returns 1 if a map was there, 0 if not; -errno. */
static int unload_dir(const char *dir)
{
	static const char *const subs[] = {RAILMAP_SUBDIR, PINS_NEW, PINS_OLD};
	int found = pins_exist(dir);
	int lock = pins_lock(dir);
	int ret = lock;

	if (lock == -ENOENT || lock == -ENOTDIR) {
		return 0;
	}
	for (size_t i = 0; ret >= 0 && i < sizeof(subs) / sizeof(subs[0]); i++) {
		ret = pins_clear(dir, subs[i]);
	}
	if (lock >= 0) {
		close(lock);
	}
	if (ret < 0) {
		fprintf(stderr, "railyard: unload: %s: %s\n", dir, strerror(-ret));
		return ret;
	}
	pins_forget(dir);
	if (found) {
		printf("unloaded %s/" RAILMAP_SUBDIR "\n", dir);
	}
	return found;
}

static int unload_all(const char *wanted)
{
	const char *place;
	int found = 0;

	for (unsigned int i = 0; (place = pins_place(wanted, i)) != NULL; i++) {
		int ret = unload_dir(place);

		if (ret < 0) {
			return 1;
		}
		found |= ret;
	}
	if (!found) {
		printf("nothing is loaded\n");
	}
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
	return unload_all(bpffs);
}
