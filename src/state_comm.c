/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * state_comm.c - what comms and ports look like on the state page.
 *
 * A look at a comm where nothing happened costs the sum over its lanes' stamps: everything else
 * waits for a change of a lane, or for UPDATE_NS.
 */
#include "state.h"

#include <stdio.h>
#include <string.h>

#include "comm.h"
#include "signals.h"
#include "util.h"

enum { UPDATE_NS = 100000000, LOOK_NS = 1000000000 };

_Static_assert((int)RAILSTATE_ACTIVE == RL_ACTIVE && (int)RAILSTATE_ASKED == RL_ASKED &&
	       (int)RAILSTATE_OFFERED == RL_OFFERED && (int)RAILSTATE_READY == RL_READY &&
	       (int)RAILSTATE_WAIT_LIVE == RL_WAIT_LIVE, "states are shown as they are");
_Static_assert((int)RAILSTATE_SEND == COMM_SEND && (int)RAILSTATE_RECV == COMM_RECV, "kinds too");
_Static_assert(sizeof(((struct railstate_comm *)0)->peer_port) / 32 >= CORE_PORTS_MAX, "all fit");
_Static_assert(RAILSTATE_PORTS >= PORTS_MAX, "all fit");

/* Differs when a lane has another state, or another fault, than before. */
static uint64_t sign_of(const struct comm *c)
{
	const struct core_recover *r = &c->recovery.core;
	uint64_t sign = r->outage_ns;

	for (uint32_t l = 0; l < r->lane_count; l++) {
		sign = sign * 31 + r->lane[l].since_ns + r->lane[l].state;
	}
	return sign;
}

static void lane_cause(const struct comm *c, uint32_t l, char *text, size_t bytes)
{
	const struct lane_work *w = &c->recovery.work[l];
	enum core_cause cause = (enum core_cause)c->recovery.core.lane[l].cause;

	snprintf(text, bytes, "%s", cause == CAUSE_COMPLETION && w->status != 0 ?
					    verbs.status_name(w->status) :
					    core_cause_text(cause));
}

static void lane_write(const struct comm *c, uint32_t l)
{
	const struct core_recover_lane *lane = &c->recovery.core.lane[l];
	const struct core_send *send =
		c->kind == COMM_SEND ? &((const struct send_comm *)(const void *)c)->core : NULL;
	struct railstate_lane *record = &state_page->lane[c->state.lane + l], r = *record;

	r.comm = c->id;
	r.number = (uint8_t)l;
	r.state = lane->state;
	r.port = (uint8_t)c->dev->port[c->lane[l].port];
	r.peer_port = c->lane[l].remote;
	r.generation = lane->generation;
	r.since_ns = lane->since_ns;
	r.opened_ns = lane->opened != 0 ? lane->opened_ns : 0;
	r.tries = lane->tries;
	r.units = send != NULL ? core_send_lane_units(send, l) : 0;
	r.bytes = send != NULL ? send->lane[l].total_bytes : 0;
	if (lane->cause != CAUSE_NONE && lane->fault_ns != r.fault_ns) {
		r.fault_ns = lane->fault_ns;
		r.faults++;
		r.again_last = r.landed_last = 0;
		lane_cause(c, l, r.cause, sizeof(r.cause));
	}
	r.again += lane->again - r.again_last;
	r.landed += lane->landed - r.landed_last;
	r.again_last = lane->again;
	r.landed_last = lane->landed;
	state_write(record, &r, sizeof(r));
}

/* What is open: by the core's numbers, and since when as far as the looks know. */
static void messages_fill(struct comm *c, struct railstate_comm *r, uint64_t now)
{
	uint64_t oldest, next;
	bool wanted = false;

	if (c->kind == COMM_SEND) {
		oldest = core_send_acked(&send_comm(c)->core);
		next = send_comm(c)->core.head;
		wanted = core_send_announced(&send_comm(c)->core);
	} else {
		oldest = core_recv_oldest(&recv_comm(c)->core);
		next = recv_comm(c)->core.next;
	}
	if (oldest == next) {
		r->open_ns = 0;
	} else if (oldest != r->oldest || r->open_ns == 0) {
		r->open_ns = now;
	}
	if (!wanted) {
		r->wanted_ns = 0;
	} else if (next != r->next || r->wanted_ns == 0) {
		r->wanted_ns = now;
	}
	r->oldest = oldest;
	r->next = next;
}

static void comm_write(struct comm *c, uint64_t now)
{
	struct railstate_comm *record = &state_page->comm[c->state.comm], r = *record;

	r.kind = c->kind;
	r.peer_ports = (uint8_t)(c->peer_port_count + c->standby);
	r.lane_count = c->state.lane_count;
	r.id = c->id;
	r.peer_id = c->peer_id;
	r.error = comm_error(c);
	r.update_ns = now;
	r.outage_ns = c->recovery.core.outage_ns;
	r.connected = peer_is_connected(c->peer);
	(void)peer_heard(c->peer, &r.heard_ns);
	messages_fill(c, &r, now);
	snprintf(r.peer, sizeof(r.peer), "%s", peer_name(c->peer));
	for (uint32_t i = 0; i < r.peer_ports && i < CORE_PORTS_MAX; i++) {
		snprintf(r.peer_port[i], sizeof(r.peer_port[i]), "%.31s", c->peer_port[i].name);
	}
	state_write(record, &r, sizeof(r));
}

void state_comm_look(struct comm *c, uint64_t now)
{
	struct state_mark *m = &c->state;
	uint64_t sign;

	if (state_page == NULL) {
		return;
	}
	sign = sign_of(c);
	if (sign == m->sign && now < m->next_ns) {
		return;
	}
	m->sign = sign;
	m->next_ns = now + UPDATE_NS;
	if (!m->shown && !state_take(m, comm_lane_total(c))) {
		return;
	}
	for (uint32_t l = 0; l < m->lane_count; l++) {
		lane_write(c, l);
	}
	comm_write(c, now);
}

/* The core is its owner's, so its last state stays. */
void state_comm_failed(struct comm *c, uint64_t now)
{
	if (state_page == NULL || !c->state.shown) {
		return;
	}
	struct railstate_comm *record = &state_page->comm[c->state.comm], r = *record;

	if (r.error == 0) {
		r.error = comm_error(c);
		r.update_ns = now;
		state_write(record, &r, sizeof(r));
	}
}

static void port_look(const struct port *port, struct railstate_port *record, uint64_t now)
{
	struct railstate_port r = *record;

	r.down = core_word(&port->word.down);
	r.dead = core_word(&port->word.dead);
	r.drain = core_word(&port->word.drain);
	r.pressure = core_word(&port->word.pressure);
	r.mbps = port->mbps;
	if (r.down != record->down || r.dead != record->dead || r.drain != record->drain) {
		r.change_ns = now;
	}
	snprintf(r.name, sizeof(r.name), "%s", port->name);
	if (memcmp(&r, record, sizeof(r)) != 0) {
		state_write(record, &r, sizeof(r));
	}
}

uint64_t state_look(uint64_t now)
{
	static uint32_t epoch; /* of the words, at the last look */
	uint32_t is = __atomic_load_n(&signal_epoch, __ATOMIC_ACQUIRE);

	if (state_page == NULL) {
		return UINT64_MAX;
	}
	struct railstate_head *h = &state_page->head;

	for (int i = 0; (is != epoch || h->looks == 0) && i < port_count(); i++) {
		port_look(port_at(i), &state_page->port[i], now);
	}
	epoch = is;
	__atomic_store_n(&h->look_ns, now, __ATOMIC_RELAXED);
	__atomic_store_n(&h->looks, h->looks + 1, __ATOMIC_RELAXED);
	/* A comm may be given back meanwhile: then this looks once too often. */
	return core_word(&h->comms_shown) + core_word(&h->comms_hidden) != 0 ? now + LOOK_NS :
									      UINT64_MAX;
}
