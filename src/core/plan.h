/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plan.h - which lane takes which piece: the core's policy, inside the bounds that send.c keeps.
 *
 * The fast loop is a lane's own completions: rate = bytes delivered over busy time, window = rate
 * times a few ms. Pressure from counters is tens of ms old, so it only tilts: a bounded part off a
 * lane's rate, taken anew at a phase hashed per comm. Link words act at once and only stop new
 * pieces. Private to the core.
 */
#ifndef RAILYARD_CORE_PLAN_H
#define RAILYARD_CORE_PLAN_H

#include "send.h"

/* plan_quick - set what core_send_quick() may do. */
void plan_quick(struct core_send *c);

/* plan_cut - decide plan, piece size and count of a message. */
void plan_cut(struct core_send *c, struct core_msg *m, uint64_t now_ns);

/*
 * plan_lane - the lane for the next unit of m, which needs `wrs` send WRs; -1: none may take it
 * now.
 */
int plan_lane(struct core_send *c, struct core_msg *m, uint32_t wrs, uint64_t now_ns);

/* plan_lane_again - the same for a piece that is sent again, whatever the plan of m was. */
int plan_lane_again(struct core_send *c, struct core_msg *m, uint32_t wrs, uint64_t now_ns);

/* Measured are large units, and only where there is a choice of lanes. */
static inline bool plan_measures(const struct core_send *c, uint32_t bytes)
{
	return bytes >= c->measured_from;
}

/* Units that plan_measures() are about to be posted: the first after a rest starts the clock. */
static inline void plan_began(struct core_send *c, uint64_t now_ns)
{
	if (c->inflight_bytes == 0) {
		c->batch_ns = now_ns;
		c->idle_polls = 0;
	}
}

/* A unit that plan_measures() was posted: start or go on with the lane's clock. */
static inline void plan_posted(struct core_send *c, struct core_lane *lane, uint32_t bytes,
			       uint64_t now_ns)
{
	struct core_load *load = c->cfg.load[lane->port];

	if (lane->timed++ == 0) {
		lane->last_ns = now_ns;
	}
	lane->post_ns = now_ns;
	if (load != NULL) {
		__atomic_fetch_add(&load->inflight_bytes, bytes, __ATOMIC_RELAXED);
	}
	if (lane->pace_ns != 0) {
		uint64_t from = lane->paced_ns > now_ns ? lane->paced_ns : now_ns;

		lane->paced_ns = from + (uint64_t)bytes * lane->pace_ns / CORE_COST_UNIT;
	}
}

/*
 * plan_completed - units that plan_measures(), of `bytes` together, are through; they are off
 * lane->timed already.
 */
void plan_completed(struct core_send *c, struct core_lane *lane, uint64_t bytes, uint64_t now_ns);

/* plan_forget - take a lane's units in flight off its port's load. */
void plan_forget(struct core_send *c, struct core_lane *lane);

/* plan_lane_reset - a lane starts again: cost from the port's speed, nothing measured. */
void plan_lane_reset(struct core_send *c, uint32_t l);

#endif
