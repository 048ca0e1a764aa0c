/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * suspect.h - does a lane that stands still do so alone? Part of recovery: it changes only the
 * doubt_ns ... moved_ns of core_recover_lane, and decides nothing but whether a lane is suspect.
 *
 * Thread: the comm's owner, as for all of the core.
 */
#ifndef RAILYARD_CORE_SUSPECT_H
#define RAILYARD_CORE_SUSPECT_H

#include "recover.h"

enum {
	SUSPECT_LOOKS = 4,       /* looks in the time that is suspect */
	SUSPECT_PATIENCE_MAX = 5 /* doublings of it */
};

enum suspect_verdict {
	SUSPECT_NOT,    /* it moves, or has not stood for long */
	SUSPECT_DOUBTED, /* it has, but so may all others */
	SUSPECT_PROVEN  /* it has, while another moved */
};

/* suspect_clear - it has moved, or nothing is asked of it: it stands still from now on. */
void suspect_clear(struct core_recover_lane *lane, uint64_t now_ns);

/*
 * suspect_tick - a look begins: how much time of ours counts in it. Then suspect_sender() or
 * suspect_receiver() for each lane in use, and last suspect_of(), which of a receiver's lane means
 * something only if it was asked to show itself.
 */
void suspect_tick(struct core_recover *r, uint64_t now_ns);
void suspect_sender(struct core_recover *r, uint32_t lane, uint64_t now_ns);
void suspect_receiver(struct core_recover *r, uint32_t lane, uint64_t now_ns);

/* suspect_shown - a receiver's lane has moved so many times more. */
void suspect_shown(struct core_recover_lane *lane, uint32_t times);
enum suspect_verdict suspect_of(const struct core_recover *r, uint32_t lane);

#endif
