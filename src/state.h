/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * state.h - the writer of the state page (include/railyard/state.h): what `railyard dump` shows.
 *
 * state.c has the file and its records, state_comm.c fills them. Written by the plugin thread's
 * looks only (and given back when a comm is destroyed), under the lock of the table of comms;
 * nothing is decided by what the page says. Without a page (RAILYARD_STATE=0, no /dev/shm) all this
 * does nothing.
 */
#ifndef RAILYARD_STATE_H
#define RAILYARD_STATE_H

#include <railyard/state.h>

struct comm;

/* Part of a comm: where it is shown. Zeroed = nowhere. */
struct state_mark {
	bool shown, hidden;
	uint16_t comm;             /* its record */
	uint16_t lane, lane_count; /* its run of records */
	uint64_t sign;    /* of the lanes, as last written */
	uint64_t next_ns; /* not written before, unless the sign differs */
};

/* --- state.c ------------------------------------------------------------------------------ */

extern struct railstate *state_page; /* as last written; NULL = none */

/*
 * state_start - make the page of this process in `dir`, in place of one that a dead process left.
 * What keeps it from being made is said in one line, and the plugin goes on without.
 * state_stop - remove it; without one: nothing. No other thread may be in here. exit() removes its
 * name, too; a process that is killed leaves it.
 */
void state_start(const char *dir, uint64_t instance, const char *mode);
void state_stop(void);

/* state_write - replace a record of the page; its sequence count is kept, whatever `from` has. */
void state_write(void *record, const void *from, size_t bytes);

/*
 * state_take - a record for a comm and a run of them for its lanes, zeroed; false: no room, which
 * the head tells until a later try or state_give(), which is also for a mark never taken.
 */
bool state_take(struct state_mark *mark, uint32_t lane_count);
void state_give(struct state_mark *mark);

/* --- state_comm.c ------------------------------------------------------------------------- */

/*
 * state_comm_look - show a comm that works; its owner's. state_comm_failed - one that has failed;
 * anyone's. state_look - the end of a look at all: ports, stamps. Returns when to look again.
 */
void state_comm_look(struct comm *c, uint64_t now_ns);
void state_comm_failed(struct comm *c, uint64_t now_ns);
uint64_t state_look(uint64_t now_ns);

#endif
