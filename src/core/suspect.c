/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * suspect.c - see suspect.h. Suspicion is no proof: what counts is that another lane moved while
 * this one stood still, by our own clock; a peer that is stopped stalls all lanes alike.
 */
#include "suspect.h"

enum { SAMPLES_TRUSTED = 4, UNMEASURED = 10 };

void suspect_clear(struct core_recover_lane *lane, uint64_t now_ns)
{
	lane->still_ns = now_ns;
	lane->doubt_ns = 0;
	lane->proof_ns = 0;
}

/*
 * What passed by our own clock since the last look, but no more than a look is meant to take: if
 * this thread did not run for long, neither may others have.
 */
static uint64_t passed_ns(const struct core_recover *r, uint64_t now_ns)
{
	uint64_t passed = now_ns - r->tick_ns, most = r->times.stall_ns / SUSPECT_LOOKS;

	return passed < most ? passed : most;
}

void suspect_tick(struct core_recover *r, uint64_t now_ns)
{
	r->passed_ns = passed_ns(r, now_ns);
	r->tick_ns = now_ns;
}

/*
 * A lane stands still since still_ns. Time counts as proof from when another lane has moved: where
 * all stood still alike, the first one to move again does not condemn the others at once.
 */
static void still(struct core_recover *r, uint32_t l)
{
	struct core_recover_lane *lane = &r->lane[l];

	lane->doubt_ns += r->passed_ns;
	for (uint32_t i = 0; i < r->lane_count; i++) {
		if (i != l && r->lane[i].state == RL_ACTIVE &&
		    r->lane[i].moved_ns > lane->still_ns) {
			lane->proof_ns += r->passed_ns;
			break;
		}
	}
}

void suspect_sender(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];
	uint32_t units = core_send_lane_units(r->send, l);
	uint16_t done = (uint16_t)(r->send->lane[l].posted - units);

	if (done != lane->seen) {
		lane->seen = done;
		lane->moved_ns = now_ns;
		suspect_clear(lane, now_ns);
	} else if (units == 0 || !lane->waits) {
		suspect_clear(lane, now_ns); /* what is in flight was posted since */
	} else {
		still(r, l);
	}
	lane->waits = units != 0;
}

void suspect_shown(struct core_recover_lane *lane, uint32_t times)
{
	uint32_t room = (uint32_t)UINT8_MAX - lane->shown;

	lane->shown = (uint8_t)(lane->shown + (times < room ? times : room));
}

/*
 * Data that arrives clears the lane, for its sender would not go on without our acks; but it does
 * not condemn another one, whose announcement may wait in a longer queue.
 */
void suspect_receiver(struct core_recover *r, uint32_t l, uint64_t now_ns)
{
	struct core_recover_lane *lane = &r->lane[l];
	uint16_t come = core_recv_lane_arrivals(r->recv, l);

	if (come != lane->seen) {
		suspect_shown(lane, (uint16_t)(come - lane->seen));
		lane->seen = come;
		suspect_clear(lane, now_ns);
	} else if (lane->asked) {
		still(r, l);
	}
}

/* How long a port is busy with what all comms sent through it. */
static uint64_t port_busy_ns(const struct core_recover *r, uint32_t l)
{
	const struct core_load *load = r->cfg->load[r->cfg->lane[l].port];

	if (load == NULL) {
		return 0;
	}
	return __atomic_load_n(&load->inflight_bytes, __ATOMIC_RELAXED) *
	       __atomic_load_n(&load->cost_ns, __ATOMIC_RELAXED) / CORE_COST_UNIT;
}

/* How long a lane may stand still before it is suspect; one of unknown rate longer. */
static uint64_t patience_ns(const struct core_recover *r, uint32_t l)
{
	uint64_t due = 2 * port_busy_ns(r, l), least = r->times.stall_ns;

	if (r->send != NULL) {
		const struct core_lane *lane = &r->send->lane[l];
		uint64_t own = 2 * (lane->inflight_bytes * lane->cost_ns / CORE_COST_UNIT);

		due = own > due ? own : due;
		if (lane->samples < SAMPLES_TRUSTED &&
		    lane->inflight_bytes >= CORE_MEASURED_BYTES) {
			least *= UNMEASURED;
		}
	} else if (r->lane[l].shown < SAMPLES_TRUSTED) {
		least *= UNMEASURED;
	}
	return (due > least ? due : least) << r->lane[l].patience;
}

enum suspect_verdict suspect_of(const struct core_recover *r, uint32_t l)
{
	const struct core_recover_lane *lane = &r->lane[l];

	if (lane->doubt_ns < patience_ns(r, l)) {
		return SUSPECT_NOT;
	}
	return lane->proof_ns >= (r->times.stall_ns / 2) << lane->patience ? SUSPECT_PROVEN :
									     SUSPECT_DOUBTED;
}
