/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * signals.h - link state and congestion of the local ports, from whatever this process may see.
 *
 * Sources: the rail map (if it can be believed), rtnetlink, verbs async events. The plugin thread
 * turns them into the ports' words (struct core_port) and bumps signal_epoch; whoever started the
 * signals tells the peers. Signals are hints: a word stops new pieces, nothing more. The newest
 * evidence wins, so that a stale "down" cannot outlive a link that is up.
 */
#ifndef RAILYARD_SIGNALS_H
#define RAILYARD_SIGNALS_H

#include <stdbool.h>
#include <stdint.h>

/* Changes whenever a word of a local or remote port changed. Read by the cores. */
extern uint32_t signal_epoch;

static inline void signal_bump(void)
{
	__atomic_fetch_add(&signal_epoch, 1, __ATOMIC_RELEASE);
}

/*
 * signals_start/stop - begin and end watching (refcounted by the plugin's init). start logs one
 * line: which signals there are, and why the rail map is not among them if it is not.
 * on_read runs on the plugin thread after the words were read: it tells peers, and says whether to
 * go on reading (false: nobody needs the words). Thread: init's.
 */
int signals_start(bool (*on_read)(void));
void signals_stop(void);

/* signals_wake - a comm was made: read the signals now, and go on while comms exist. */
void signals_wake(void);

#endif
