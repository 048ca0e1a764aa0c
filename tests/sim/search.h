/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * search.h - all states of two lanes, two messages of two pieces, and a number of faults.
 *
 * At message grain: a work request lands whole and is acked, unless the ack is lost with its queue
 * pair or on the way; the ends poll, send and test as soon as they can. All
 * orders of landing, letters and steps of slow commands are tried, with every fault at every
 * point: a queue pair that fails at one end, with or without packets in the network, and loss of
 * all packets from one end. Timers run out only when nothing else can happen, and then what was cut
 * is whole again.
 */
#ifndef SIM_SEARCH_H
#define SIM_SEARCH_H

#include "world.h"

struct search_result {
	uint64_t states, steps, ends;
	uint32_t depth; /* longest path */
};

/*
 * search_run - visit all states with at most `faults` faults, or up to `states_max` states; in a
 * `coarse` search commands that are no fences are over at once. The
 * first breach of a rule is in w->check; its path is printed to `out`. Returns 0; 1: a breach;
 * 2: too many states, or no memory.
 */
int search_run(struct world *w, uint32_t faults, bool coarse, uint64_t states_max,
	       struct search_result *result, FILE *out);

#endif
