/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shmfile.h - files in shared memory that outlive their process: the state page, flight logs.
 *
 * All of a file's memory is taken when it is made: a file system that fills up later then cannot
 * kill the process. The lock, not the pid in the name, says whether a file is in use: two
 * containers that share /dev/shm may have a process each with this pid.
 */
#ifndef RAILYARD_SHMFILE_H
#define RAILYARD_SHMFILE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * shmfile_make - a file of `bytes` zeros, mapped, in place of one that a dead process left. Returns
 * its descriptor, which keeps the lock until it is closed; or -errno, and there is no file:
 * -EBUSY: another process uses it; -EPERM: it is not ours.
 */
int shmfile_make(const char *path, size_t bytes, void **at);

/* shmfile_is_left - is it ours, and no process uses it? Not to be asked of a file made here. */
bool shmfile_is_left(const char *path);

/* shmfile_why - such an error in words. */
const char *shmfile_why(int rc);

#endif
