/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight.h - the flight log (RAILYARD_FLIGHT=1): each comm's calls into the core and all that it
 * reads, in a file that `railyard replay` makes again, also after the process was killed.
 *
 *   flight.c         files and their halves, records, the core's copy of what it reads
 *   flight_calls.h   what request_flight.c and recover.c include to have their calls recorded
 *   flight_format.h  the file
 *
 * A comm without a log has `flight` NULL and pays nothing: what tells one with a log is that the
 * plain owner_try() never takes it, since its owner word is never 0. The file lies beside the state
 * page; it is removed when its comm is closed, unless that has failed.
 */
#ifndef RAILYARD_FLIGHT_H
#define RAILYARD_FLIGHT_H

#include <stdint.h>

struct comm;
struct flight;

enum { FLIGHT_OWNER_FREE = 2 }; /* owner word of a comm with a log that nobody drives */

/*
 * flight_start - record comms from now on, in files of `dir` with halves of `half_kib`; of what
 * dead processes left the newest FLIGHT_LEFT_MAX stay. flight_stop - no more. Neither while there
 * is a comm.
 */
void flight_start(const char *dir, uint32_t half_kib);
void flight_stop(void);

/*
 * flight_attach - begin the log of a comm whose core is set up, before anyone drives it; what
 * keeps it from being made is said in one line. flight_detach - end it; the core reads the real
 * words again. flight_failed - the comm has failed: its file stays. Any thread.
 */
void flight_attach(struct comm *c);
void flight_detach(struct comm *c);
void flight_failed(struct comm *c, int error);

#endif
