/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * taps.h - driver taps: attach them, hold them, tell them which counter is which field.
 *
 * The taps live as long as the handle: nothing is pinned, since a link on a module holds the module
 * (close the handle, or end the process, before the driver is to be unloaded). Needs root with
 * CAP_SYS_ADMIN, for the BTF of modules, and a loaded rail map. One thread.
 */
#ifndef RAILYARD_TAPS_H
#define RAILYARD_TAPS_H

#include <stddef.h>

struct taps;
struct railmap;

/*
 * taps_open - attach a tap to each RDMA driver that is loaded, and to the RDMA core's events.
 * @dir: where the map is pinned (`railyard load --bpffs DIR`), not NULL
 * @m: the map that is there: its rows are the ports tapped
 * @why: gets one line, without a newline, on failure
 * Returns the number of taps that are live, 1 or more; -ENODEV if this host has nothing to tap;
 * else -errno. Takes some tenths of a second.
 */
int taps_open(struct taps **out, const char *dir, const struct railmap *m, char *why,
	      size_t why_bytes);

/*
 * taps_refresh - take in new rows and, after a port's first read, its driver's counters.
 * Call it after each round of reads, or each second. When the map was loaded anew (its generation
 * changed), close and open instead: the taps still write the old one.
 * Returns how many ports have a table that maps some counter; -errno.
 */
int taps_refresh(struct taps *taps, const struct railmap *m);

/* taps_print - one line per tap: live, or why not. */
void taps_print(const struct taps *taps);

void taps_close(struct taps *taps);

#endif
