/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * hold_taps.c - attach the driver taps and hold them until standard input ends.
 *
 * hold_taps DIR    DIR is where the rail map is pinned. Prints which taps live, "tables N" whenever
 *                  the number of ports with a table changes. Exit 1 if nothing can be tapped.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "../../tools/railyard/taps.h"
#include "railmap.h"
#include "util.h"

#define REFRESH_MS 100

static void hold(struct taps *taps, const struct railmap *m)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	int before = -1;

	do {
		int now = taps_refresh(taps, m);

		if (now != before) {
			printf("tables %d\n", now);
			fflush(stdout);
		}
		before = now;
	} while (poll(&in, 1, REFRESH_MS) == 0);
}

int main(int argc, char **argv)
{
	char why[RAILMAP_WHY_BYTES];
	struct railmap m;
	struct taps *taps;

	if (argc != 2) {
		fprintf(stderr, "usage: hold_taps DIR\n");
		return 2;
	}
	if (railmap_open(&m, argv[1], now_ns(), why, sizeof(why))) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	if (taps_open(&taps, argv[1], &m, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s\n", why);
		railmap_close(&m);
		return 1;
	}
	taps_print(taps);
	hold(taps, &m);
	taps_close(taps);
	railmap_close(&m);
	return 0;
}
