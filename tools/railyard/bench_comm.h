/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_comm.h - the devices a rank uses and its connections to the other ranks.
 *
 * Connections are made as NCCL makes them: listen and exchange of the handles first, then connect
 * and accept polled together, the listen comm closed at once, memory registered per comm.
 */
#ifndef RY_BENCH_COMM_H
#define RY_BENCH_COMM_H

#include "bench_engine.h"

/* Fills run->devs from --dev and --merge. */
int comm_choose_devices(struct bench_run *run);

/* Makes all streams of the plan's operation, connected and registered. On failure, comm_close. */
int comm_open(struct bench_run *run);

/* Closes what is open; may be called with requests outstanding. */
void comm_close(struct bench_run *run);

#endif /* RY_BENCH_COMM_H */
