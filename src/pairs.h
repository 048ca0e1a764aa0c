/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pairs.h - which port of one end talks to which port of the other. Pure.
 *
 * Rails are often islands: port 0 here reaches port 0 there and no other. Where the addresses show
 * that (ports of a pair share a subnet), only such pairs become paths; the ends may then have
 * different numbers of ports, in any order. Where they show nothing (every port in a subnet of its
 * own, routed), pairs go by index, and the wider end's ports are all used.
 */
#ifndef RAILYARD_PAIRS_H
#define RAILYARD_PAIRS_H

#include <stdint.h>

#include "wire.h"

struct pair {
	uint8_t path;   /* of the paths that the connecting end proposed */
	uint8_t theirs; /* its port */
	uint8_t ours;   /* port of the accepting end */
};

/*
 * pairs_choose - the paths to use of max(their_count, our_count) proposed ones, proposed path p
 * being on their port p % their_count. Returns their number, 1 or more; 0: no two ports can be
 * connected.
 */
int pairs_choose(const struct wire_port *theirs, int their_count, const struct wire_port *ours,
		 int our_count, struct pair out[CORE_PORTS_MAX]);

#endif
