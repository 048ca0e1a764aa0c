/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fault.c - what breaks, what mends, and what either end hears of it.
 */
#include "marks.h"
#include "world.h"

enum fault_kind {
	FAULT_CUT_DATA, /* silent loss one way ... */
	FAULT_CUT_BACK, /* ... the other way ... */
	FAULT_CUT_BOTH,
	FAULT_PORT, /* a port goes down: all its lanes */
	FAULT_ERROR, /* a queue pair fails for no reason that is seen */
	FAULT_FATAL, /* an async event about it */
	FAULT_STALE, /* a report about a generation that is over */
	FAULT_COUNT
};

enum {
	LATE_MAX = 8
};

/* Which packets are lost now: lanes that are cut, and all lanes of a broken port. */
void cuts_apply(struct world *w)
{
	uint64_t cut[2] = {w->lane_cut[0], w->lane_cut[1]};

	for (uint32_t i = 0; i < w->lanes; i++) {
		if ((w->port_cut[END_SEND] >> w->cfg_send.lane[i].port & 1) != 0 ||
		    (w->port_cut[END_RECV] >> w->cfg_recv.lane[i].port & 1) != 0) {
			cut[0] |= 1ull << i;
			cut[1] |= 1ull << i;
		}
	}
	fabric_cut(&w->fabric, END_SEND, cut[0]);
	fabric_cut(&w->fabric, END_RECV, cut[1]);
}

static void fault_qp(struct world *w, enum fault_kind kind, uint32_t lane)
{
	enum fabric_end end = choose(w->choice, 2) == 0 ? END_SEND : END_RECV;
	uint32_t g = w->owner[end].generation[lane];
	struct fabric_link *k = fabric_link(&w->fabric, lane, g);

	if (kind == FAULT_STALE && g != 0) {
		g = g > 1 ? g - 1 : g + 1;
		if (owner_fault(w, end, lane, g, CAUSE_COMPLETION)) {
			check_fail(&w->check, "stale",
				   "lane %u is given up for a report about generation %u", lane, g);
		}
		return;
	}
	if (k == NULL || k->qp[end] != QP_READY) {
		return;
	}
	fabric_error(&w->fabric, k, end, w->shape.lates ? choose(w->choice, LATE_MAX) : 0,
		     kind == FAULT_ERROR);
	if (kind == FAULT_FATAL) {
		owner_fault(w, end, lane, g, CAUSE_FATAL);
	}
}

void fault_draw(struct world *w)
{
	enum fault_kind kind = (enum fault_kind)choose(w->choice, FAULT_COUNT);
	uint32_t lane = choose(w->choice, w->lanes);
	uint64_t bit = 1ull << lane;

	w->shape.faults--;
	w->moves++;
	world_note(w, "break", kind, lane, w->shape.faults);
	if (w->owner[END_SEND].jobs != 0 || w->owner[END_RECV].jobs != 0) {
		MARK(fault_in_recovery);
	}
	if (kind == FAULT_CUT_DATA || kind == FAULT_CUT_BOTH) {
		w->lane_cut[END_SEND] |= bit;
	}
	if (kind == FAULT_CUT_BACK || kind == FAULT_CUT_BOTH) {
		w->lane_cut[END_RECV] |= bit;
	}
	if (kind == FAULT_PORT) {
		uint32_t end = choose(w->choice, 2);
		const struct core_config *cfg = end == 0 ? &w->cfg_send : &w->cfg_recv;

		w->port_cut[end] |= 1ull << cfg->lane[lane].port;
	}
	if (kind <= FAULT_PORT) {
		cuts_apply(w);
	} else {
		fault_qp(w, kind, lane);
	}
}

void fault_mend(struct world *w)
{
	uint32_t what = choose(w->choice, 4);

	world_note(w, "mend", what, 0, 0);
	w->lane_cut[what & 1] &= what < 2 ? 0 : ~(1ull << choose(w->choice, w->lanes));
	w->port_cut[what & 1] &= what < 2 ? 0 : ~(1ull << choose(w->choice, CORE_PORTS_MAX));
	cuts_apply(w);
}

static bool gives_up(const struct world *w, const struct fabric_link *k, enum fabric_end end)
{
	return fabric_waits(k, end) &&
	       (fabric_path_cut(&w->fabric, k) || k->qp[1 - end] != QP_READY);
}

bool retry_possible(const struct world *w)
{
	for (uint32_t l = 0; l < w->lanes; l++) {
		for (uint32_t g = 0; g < FABRIC_LINKS; g++) {
			const struct fabric_link *k = &w->fabric.link[l][g];

			if (gives_up(w, k, END_SEND) || gives_up(w, k, END_RECV)) {
				return true;
			}
		}
	}
	return false;
}

/* A queue pair whose packets are not acked gives up: one of them, or when healing all. */
void fault_retry(struct world *w)
{
	uint32_t from = w->healing ? 0 : choose(w->choice, w->lanes * 4);

	for (uint32_t i = 0; i < w->lanes * 4; i++) {
		uint32_t at = (from + i) % (w->lanes * 4);
		enum fabric_end end = at & 1 ? END_RECV : END_SEND;
		struct fabric_link *k = &w->fabric.link[at / 4][at >> 1 & 1];

		if (!gives_up(w, k, end)) {
			continue;
		}
		world_note(w, "retries over", k->lane, k->generation, end);
		fabric_error(&w->fabric, k, end,
			     w->shape.lates && !w->healing ? choose(w->choice, LATE_MAX) : 0, true);
		w->moves++;
		if (!w->healing) {
			return;
		}
	}
}

/* What an end is told of a port: its own ones surely, the peer's by and by. */
static void word_tell(struct world *w, uint32_t end, uint32_t side, uint32_t i)
{
	struct core_port *p = &w->end[end].port[side][i];
	uint32_t down = w->port_cut[side == 0 ? end : 1 - end] >> i & 1;

	p->down = down;
	p->dead = side == 0 ? down : 0;
}

void fault_word(struct world *w)
{
	uint32_t end = choose(w->choice, 2), side = choose(w->choice, 2);
	uint32_t first = choose(w->choice, CORE_PORTS_MAX);

	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		word_tell(w, end, side, (first + i) % CORE_PORTS_MAX);
	}
	word_changed(&w->end[end], side);
	epoch_change(&w->end[end]);
	world_note(w, "word", end, side, w->port_cut[side == 0 ? end : 1 - end]);
}

static void words_tell_all(struct world *w)
{
	for (uint32_t e = 0; e < 2; e++) {
		for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
			word_tell(w, e, 0, i);
			word_tell(w, e, 1, i);
			w->end[e].port[0][i].drain = w->end[e].port[1][i].drain = 0;
		}
		epoch_change(&w->end[e]);
	}
}

void fault_pause(struct world *w)
{
	struct world_owner *o = &w->owner[choose(w->choice, 2)];

	o->paused = !o->paused;
	MARK(paused);
	world_note(w, "pause", o == &w->owner[1], o->paused, 0);
}

/* Everything breaks for good: silently, or with the ports' words. */
void fault_cut_all(struct world *w)
{
	bool silent = choose(w->choice, 2) == 0;

	for (uint32_t e = 0; e < 2; e++) {
		w->lane_cut[e] = UINT64_MAX;
		w->port_cut[e] = silent ? 0 : UINT64_MAX;
		w->owner[e].paused = false;
	}
	cuts_apply(w);
	words_tell_all(w);
}

void fault_heal(struct world *w)
{
	for (uint32_t e = 0; e < 2; e++) {
		w->lane_cut[e] = 0;
		w->port_cut[e] = 0;
		w->owner[e].paused = false;
	}
	cuts_apply(w);
	words_tell_all(w);
}
