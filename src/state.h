/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * state.h - the writer of the state page (include/railyard/state.h): what `railyard dump` shows.
 *
 * state.c has the file and its records, state_comm.c fills those of comms and ports. Written by the
 * plugin thread's looks only (and given back when a comm is destroyed), always under the lock of
 * the table of comms; nothing is ever decided by what the page says. Without a page (RAILYARD_STATE=0,
 * no /dev/shm) all of this does nothing.
 */
#ifndef RAILYARD_STATE_H
#define RAILYARD_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include <railyard/state.h>

struct comm;

/* Part of a comm: where it is shown. Zeroed = nowhere. */
struct state_mark {
	bool shown, hidden;
	uint16_t comm; /* its record */
	uint16_t lane, lane_count; /* its run of records */
	uint64_t sign;    /* of the lanes, as last written */
	uint64_t next_ns; /* not written before, unless the sign differs */
};

/* --- state.c ------------------------------------------------------------------------------ */

/*
 * state_start - make the page of this process in `dir`, in place of one that a dead process left.
 * What keeps it from being made is said in one line, and the plugin goes on without.
 * state_stop - remove it; without one: nothing. No other thread may be in here.
 */
void state_start(const char *dir, uint64_t instance, const char *mode);
void state_stop(void);
bool state_is_on(void);

/* state_looked - stamp the head: a look was taken. */
void state_looked(uint64_t now_ns);

/*
 * state_take - a record for a comm and a run for its lanes, zeroed; false: no room, which the head
 * tells until state_give() or a later try.
 * state_give - not in use any more. Also of a mark that was never taken.
 */
bool state_take(struct state_mark *mark, uint32_t lane_count);
void state_give(struct state_mark *mark);

/*
 * state_comm, state_lane, state_port - a record as last written, or NULL without a page.
 * state_write - replace the record; its sequence count is kept by this, whatever `from` has.
 */
const struct railstate_comm *state_comm(uint32_t i);
const struct railstate_lane *state_lane(uint32_t i);
const struct railstate_port *state_port(uint32_t i);
void state_comm_write(uint32_t i, const struct railstate_comm *from);
void state_lane_write(uint32_t i, const struct railstate_lane *from);
void state_port_write(uint32_t i, const struct railstate_port *from);

/* --- state_comm.c ------------------------------------------------------------------------- */

/*
 * state_comm_look - show a comm that works; its owner's. state_comm_failed - one that has failed;
 * anyone's. state_comm_gone - it is being destroyed.
 */
void state_comm_look(struct comm *c, uint64_t now_ns);
void state_comm_failed(struct comm *c, uint64_t now_ns);
void state_comm_gone(struct comm *c);

/* state_look - the end of a look at all comms: the ports, the head. Returns when to look again. */
uint64_t state_look(uint64_t now_ns);

#endif
