/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pins.h - where the rail map is pinned, and the publish program found there.
 *
 * DIR is a directory on a bpf file system; the pins are in DIR/v1. It must be
 * passable for everybody, since the plugin runs as anybody.
 */
#ifndef RAILYARD_PINS_H
#define RAILYARD_PINS_H

#include <stdbool.h>
#include <stddef.h>

#include <railyard/railmap.h>

#define PIN_PATH_BYTES 256

/* Beside RAILMAP_SUBDIR while `load` replaces it. (bpffs keeps names with dots for itself.) */
#define PINS_NEW RAILMAP_SUBDIR "-new"
#define PINS_OLD RAILMAP_SUBDIR "-old"

/*
 * pins_prepare - choose DIR and make it ready, mounting a bpf file system if need be.
 * @wanted: from the command line; NULL = the usual places
 * Prints one line and returns -errno if it cannot.
 */
int pins_prepare(const char *wanted, char dir[PIN_PATH_BYTES]);

/* pins_place - the i-th DIR to look at: `wanted` alone, or the usual places. NULL past the last. */
const char *pins_place(const char *wanted, unsigned int i);

/* pins_exist - is there a rail map in DIR? */
bool pins_exist(const char *dir);

/* pins_lock - let one process at a time change what is in DIR. Returns a descriptor to close;
 * -errno. Waits for a second at most. */
int pins_lock(const char *dir);

/* pins_publish - run a publish program. Returns its result, or -errno if it could not run. */
int pins_publish(int prog_fd, struct railmap_publish *p);

/* pins_open_publish - the pinned one of DIR. Returns a descriptor; -errno. */
int pins_open_publish(const char *dir);

/* pins_clear - retire the map of DIR (if it is there) and remove what was pinned with it, under
 * `sub` (RAILMAP_SUBDIR or a name beside it). Returns 0, also if there was nothing; -errno. */
int pins_clear(const char *dir, const char *sub);

/* pins_forget - remove DIR itself if it is one of the usual places and nothing is left in it. */
void pins_forget(const char *dir);

#endif
