/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * send.h - the sender half of a comm: matching, the plan, credits, windows, completion.
 *
 * Life of a message here: core_send_match() finds the record that an isend fits, core_send_start()
 * takes it and cuts the message, core_send_next() hands out its pieces one by one as lanes have
 * room, core_send_complete() takes the lane's completions, core_send_done() says when all pieces
 * are in, core_send_release() frees the slot.
 *
 * Invariants: a piece is handed out once; never more pieces on a lane than the receiver has posted
 * receive WRs for; never more WRs than the send queue holds; a record is used once, in the order
 * of groups, inside a group by tag.
 *
 * The plan. One lane, or a small message: one piece on the best lane. Equal lanes with room: one
 * equal piece per home port. Else: finer pieces, assigned late, each to the lane with the earliest
 * expected finish among those with room in their window.
 */
#ifndef RAILYARD_CORE_SEND_H
#define RAILYARD_CORE_SEND_H

#include "core.h"

enum core_msg_state {
	MSG_FREE,
	MSG_HELD, /* matched, waits for the other members of its group */
	MSG_OPEN,
	MSG_GROUP /* first member of a group that is posted as one unit */
};

enum {
	UNIT_GROUP = 0x80, /* flags in core_unit.wrs */
	UNIT_PROBE = 0x40,
	UNIT_FLAGS = UNIT_GROUP | UNIT_PROBE,
	CORE_MEASURED_BYTES = 16384 /* smaller units are not measured */
};

/* One message, by slot. */
struct core_msg {
	uint64_t seq;
	uint64_t addr;        /* remote */
	uint32_t size;        /* bytes after clipping */
	uint32_t piece_bytes; /* all but the last piece */
	uint32_t mr_id;
	uint16_t count;       /* pieces */
	uint16_t next;        /* first piece not handed out */
	uint16_t done;        /* pieces completed */
	uint8_t state;        /* enum core_msg_state */
	uint8_t plan;         /* enum core_plan */
	uint8_t group_n;      /* members of its irecv */
	uint8_t group_index;
	uint8_t lane0;        /* equal plan: lane of piece 0 */
	uint8_t reserved0;
	uint16_t again;       /* pieces (or the group) to hand out once more: core_send.again */
	uint8_t reserved[18];
};
_Static_assert(sizeof(struct core_msg) == 64, "one message, one cache line");

enum core_plan { PLAN_ONE, PLAN_EQUAL, PLAN_LATE };

/* One unit in flight on a lane: a piece, a whole group, or a probe (of no message). */
struct core_unit {
	uint32_t bytes;
	uint16_t piece;
	uint8_t slot;
	/* send WRs it took; with UNIT_GROUP: a group from `slot` on, `piece` members */
	uint8_t wrs;
};

struct core_lane {
	uint8_t state; /* enum core_lane_state */
	uint8_t port;
	uint8_t remote;
	uint8_t pressure;       /* 0 .. 255, as taken at the last phase */
	uint32_t generation;
	uint64_t inflight_bytes;
	uint32_t cost_ns;       /* ns per CORE_COST_UNIT bytes, measured on busy time; never 0 */
	uint32_t cost_eff_ns;   /* the same with pressure taken off */
	uint32_t window_bytes;
	uint32_t samples;       /* measurements taken, saturating */
	bool blocked;           /* its window alone kept a piece away */
	uint8_t rested;         /* phases until a rate shows again after pacing kept a piece away */
	uint8_t pressed;        /* phases under pressure, in the present round of looks */
	uint8_t two_way;        /* measurements until its port counts as one that only sends */
	/* measured pieces in flight; `last_ns` counts while there are any */
	uint32_t timed;
	/* units ever posted, mod 2^16: receive WRs used up; mod 2^8: place of the newest */
	uint16_t posted;
	uint16_t credit;        /* receive WRs ever announced, mod 2^16 */
	uint16_t sq_used;       /* send WRs in flight */
	uint8_t port_bit;       /* 1 << port, of busy_ports */
	uint8_t tail;           /* place in unit[] of the newest completed unit */
	uint64_t last_ns;       /* until when busy time is accounted for */
	uint32_t rx_seen;       /* what its port had received at the last measurement, mod 2^32 */
	uint32_t calm_cost_ns;  /* cost_ns smoothed over many samples: one stall does not show */
	uint64_t acc_ns;        /* busy time and bytes since the last measurement */
	uint64_t acc_bytes;
	uint64_t err_ns;        /* how much of acc_ns may have been idle */
	uint32_t bound_ns;      /* cost by the last doubtful measurement: it is no more; 0 = none */
	uint32_t look_bytes;    /* acc_bytes at which the measurement is looked at */
	uint64_t post_ns;       /* last measured post */
	uint64_t total_bytes;   /* completed, for reports */
	uint32_t pace_ns;       /* per CORE_COST_UNIT bytes, of a pressed lane; 0 = not paced */
	uint64_t paced_ns;      /* it gets no new piece while this is far ahead */
	struct core_unit unit[CORE_WR_RING]; /* in flight: a ring */
};

struct core_send {
	const struct core_cts *ring; /* [CORE_RING_RECORDS], written by the peer's NIC */
	uint64_t head;        /* sequence of the first member of the group being matched */
	uint32_t matched;     /* bit per member of that group */
	uint32_t held;        /* members matched but waiting for the whole group */
	uint64_t newest;      /* sequence of the newest record taken; UINT64_MAX = none */
	uint64_t told;        /* records before this one were looked at for credits */
	uint64_t active;      /* bit per lane that may get pieces */
	uint64_t all;         /* bit per home lane */
	uint32_t lanes_total; /* standby lanes included */
	uint32_t epoch;       /* of the signals that `active` was made from */
	bool mixed;           /* the group being matched has a member of several pieces */
	bool due;             /* a measurement is long enough to be closed */
	bool measured;        /* a lane's cost moved since the lanes were compared */
	bool equal;           /* lanes are alike: equal plan */
	uint8_t unequal_votes; /* measurements in a row that speak against `equal` */
	uint8_t best;         /* path of small messages */
	uint32_t lanes_per_path;
	/* largest message of core_send_quick(); 0 = never but for empty ones */
	uint32_t quick_bytes;
	uint32_t member_bytes; /* largest member of core_send_member() */
	uint32_t equal_above; /* bytes of the largest message that is never cut into equal pieces */
	uint64_t measured_from; /* bytes; smaller units are not measured */
	uint64_t recheck;     /* mask of sequences at which small messages look for a better path */
	uint32_t window_us;   /* in force: grows when a lane runs dry with work queued */
	/* fruitless polls since the last batch of completions; caller counts */
	uint32_t idle_polls;
	uint64_t batch_ns;    /* when the last batch came, or work began */
	uint64_t gap_ns;      /* between the polls before it: how well its time is known */
	uint64_t phase_ns;    /* when pressure is taken anew */
	uint64_t calm_ns;     /* when the window may shrink again */
	uint64_t rate_sum;    /* bytes per ms of the active lanes */
	uint64_t queued_bytes;   /* matched but not handed out */
	uint64_t inflight_bytes; /* of all lanes */
	uint32_t busy_ports;  /* bit per local port with units in flight: where to poll */
	uint32_t port_units[CORE_PORTS_MAX];
	uint32_t q_head, q_tail; /* free-running places in queue[] */
	uint8_t queue[CORE_SLOTS]; /* slots with pieces to hand out, each once */
	uint64_t again[CORE_SLOTS][CORE_PIECES_MAX / 64]; /* bit per piece to hand out once more */
	struct core_config cfg;
	struct core_msg msg[CORE_SLOTS];
	struct core_lane lane[CORE_LANES_MAX]; /* [cfg.lane_count] in use */
};

/*
 * One thing to post. For a group: `group_n` members from `slot` on, one WRITE each (address and
 * size are in msg[]; addr, mr_id, offset and bytes here are not set), then the sizes record with
 * the immediate.
 */
struct core_post {
	uint32_t lane;
	uint32_t slot;
	uint32_t unit;     /* place in the lane's ring: goes into the wr_id */
	uint32_t group_n;  /* 0: a piece */
	uint64_t addr;     /* remote, of the piece */
	uint32_t mr_id;
	uint32_t offset;   /* into the message */
	uint32_t bytes;
	uint32_t imm;
	/* WRITE, then a WRITE_WITH_IMM of 0 bytes (of the sizes record if `sizes`) */
	bool split_imm;
	bool sizes;        /* piece 0 of a split_imm message: carry the sizes record */
};

/* core_send_init - set up in the caller's memory. `ring` must be zeroed before the peer may write
 * it. Returns 0; -EINVAL for counts out of bounds. */
int core_send_init(struct core_send *c, const struct core_config *cfg, const struct core_cts *ring);

/*
 * core_send_fini - take what is in flight off the ports' load; also of a core never started
 * (zeroed).
 */
void core_send_fini(struct core_send *c);

/* core_send_lane_open - lane `i` is connected in `generation`, with `credit` receive WRs posted. */
void core_send_lane_open(struct core_send *c, uint32_t i, uint32_t generation, uint16_t credit);

/*
 * core_send_lane_renew - the same for a later generation: CORE_RQ_WRS are posted, and the receiver
 * counts `count` by now.
 */
void core_send_lane_renew(struct core_send *c, uint32_t i, uint32_t generation, uint16_t count);

/* core_send_lane_state - recovery's verdict on a lane. */
void core_send_lane_state(struct core_send *c, uint32_t i, enum core_lane_state state);

/*
 * core_send_ask - what is in flight on a fenced lane, oldest first; probes are not listed. Returns
 * the number of items.
 */
uint32_t core_send_ask(const struct core_send *c, uint32_t lane,
		       struct core_item item[CORE_WR_RING]);

/*
 * core_send_answer - the receiver's answers (enum core_answer) to these n items: what landed is
 * complete, the rest will be handed out again by core_send_next(); the lane is empty afterwards.
 * Returns the number of units to send again; -EPROTO: other items, or the peer calls missing what
 * it has not announced any more.
 */
int core_send_answer(struct core_send *c, uint32_t lane, const uint8_t *answer, uint32_t n);

/* core_send_begun - no message from this one on was begun; members of a group come in any order. */
uint64_t core_send_begun(const struct core_send *c);

/* core_send_acked - all messages before this one are complete. */
uint64_t core_send_acked(const struct core_send *c);

/*
 * core_send_probe - an empty piece of no message, to see whether a lane still moves; false: it has
 * no room or something in flight.
 */
bool core_send_probe(struct core_send *c, uint32_t lane, struct core_post *out);

/* core_send_lane_units - units in flight, probes included. */
static inline uint32_t core_send_lane_units(const struct core_send *c, uint32_t l)
{
	return (uint8_t)(c->lane[l].posted - c->lane[l].tail);
}

/* core_send_announced - has the next record landed? If not, core_send_match() would say -EAGAIN. */
static inline bool core_send_announced(const struct core_send *c)
{
	return core_record_here(&c->ring[core_slot(c->head)], c->head);
}

/*
 * core_send_match - find the record for an isend with this tag; changes nothing.
 * *rec is the record (valid until core_send_start()), *seq its message sequence.
 * Returns 0; -EAGAIN: not announced yet, no member with this tag, or the slot is still in use;
 * -EPROTO: the peer wrote nonsense (the comm must fail).
 */
int core_send_match(const struct core_send *c, uint32_t tag, const struct core_cts **rec,
		    uint64_t *seq);

/*
 * core_send_start - take the record: open the message and cut it. Returns its slot.
 * @size: bytes of the isend (clipped to the record's)
 * @now_ns: needed when the message is not small and there are several lanes; else may be 0
 */
uint32_t core_send_start(struct core_send *c, const struct core_cts *rec, uint64_t seq,
			 uint32_t size, uint64_t now_ns);

/* core_lane_room - do a lane's credits and queues, as last known, leave room for `wrs` WRs? */
static inline bool core_lane_room(const struct core_lane *lane, uint32_t wrs)
{
	return lane->posted != lane->credit && (uint8_t)(lane->posted + 1) != lane->tail &&
	       lane->sq_used <= CORE_SQ_WRS - wrs;
}

/*
 * core_lane_ready - may a lane take a unit of `wrs` send WRs, by what is known without looking at
 * records?
 */
static inline bool core_lane_ready(const struct core_send *c, uint32_t l, uint32_t wrs)
{
	return (c->active >> l & 1) != 0 && core_lane_room(&c->lane[l], wrs);
}

/*
 * core_unit_book - a unit goes on a lane; returns its place in the lane's ring. Its bytes are not
 * in c->inflight_bytes yet.
 */
static inline uint32_t core_unit_book(struct core_send *c, struct core_lane *lane,
				      struct core_unit unit)
{
	uint32_t place = (uint8_t)++lane->posted;

	lane->unit[place] = unit;
	lane->sq_used = (uint16_t)(lane->sq_used + (unit.wrs & ~UNIT_FLAGS));
	lane->inflight_bytes += unit.bytes;
	c->port_units[lane->port]++;
	c->busy_ports |= lane->port_bit;
	return place;
}

/*
 * core_send_quick - start a message and hand out its only piece at once, where nothing needs
 * thought: one piece, no group, nothing queued, no signal changed, and the usual lane takes it.
 * Same effect as start and next. Returns the lane and *unit, or -1: nothing done, take the long
 * way.
 */
static inline int core_send_quick(struct core_send *c, const struct core_cts *rec, uint64_t seq,
				  uint32_t size, uint32_t *unit)
{
	uint32_t l = c->best, slot = core_slot(seq);
	struct core_msg *m = &c->msg[slot];

	size = size < rec->size ? size : rec->size;
	if (size > c->quick_bytes || rec->n != 1 || c->q_head != c->q_tail ||
	    c->epoch != __atomic_load_n(c->cfg.signal_epoch, __ATOMIC_ACQUIRE) ||
	    (seq & c->recheck) == 0 || !core_lane_ready(c, l, 1)) {
		return -1;
	}
	m->seq = seq;
	m->size = size;
	m->count = 1;
	m->next = 1;
	m->done = 0;
	m->state = MSG_OPEN;
	c->newest = seq;
	c->head++;
	c->inflight_bytes += size;
	*unit = core_unit_book(c, &c->lane[l], (struct core_unit){ .bytes = size,
								   .slot = (uint8_t)slot,
								   .wrs = 1 });
	return (int)l;
}

/*
 * core_send_equal - start a message and hand out all its pieces at once, where nothing needs
 * thought: no group, nothing queued, no signal changed, and the equal plan with all its lanes
 * ready. Same effect as start and next. Returns false: nothing done, take the long way. Else piece
 * i, of piece_bytes but for the last, is the newest unit (core_lane_newest()) of lane lane0 + i.
 */
bool core_send_equal(struct core_send *c, const struct core_cts *rec, uint64_t seq, uint32_t size,
		     uint64_t now_ns);

/*
 * core_send_member - take a member of a group where nothing needs thought: it is small, and so were
 * those before it. Same effect as core_send_start(). Returns false: nothing done, take the long
 * way.
 */
static inline bool core_send_member(struct core_send *c, const struct core_cts *rec, uint64_t seq,
				    uint32_t size)
{
	uint32_t slot = core_slot(seq), n = rec->n, bit = 1u << rec->index;
	struct core_msg *m = &c->msg[slot];

	size = size < rec->size ? size : rec->size;
	if (size > c->member_bytes || c->mixed) {
		return false;
	}
	m->seq = seq;
	m->addr = rec->addr;
	m->size = size;
	m->count = 1;
	m->next = 0;
	m->done = 0;
	m->state = MSG_HELD;
	m->plan = 0; /* PLAN_ONE */
	m->piece_bytes = size;
	m->group_n = (uint8_t)n;
	m->group_index = rec->index;
	c->newest = seq;
	c->queued_bytes += size;
	c->matched |= bit;
	c->held |= bit;
	if (c->matched == (1u << n) - 1) {
		uint32_t first = core_slot(c->head);

		c->msg[first].state = MSG_GROUP;
		c->queue[c->q_tail++ % CORE_SLOTS] = (uint8_t)first;
		c->head += n;
		c->matched = 0;
		c->held = 0;
	}
	return true;
}

/* core_lane_newest - place in the lane's ring of the unit that was handed out last. */
static inline uint32_t core_lane_newest(const struct core_lane *lane)
{
	return (uint8_t)lane->posted;
}

/* core_send_next - the next thing to post; false when nothing can be posted now. */
bool core_send_next(struct core_send *c, uint64_t now_ns, struct core_post *out);

/*
 * core_send_complete - a success completion of `unit` on a lane; RC completes in order, so all
 * units before it are done too. Returns 0; -ESTALE: another generation or not in flight (ignored).
 */
int core_send_complete(struct core_send *c, uint32_t lane, uint32_t generation, uint32_t unit,
		       uint64_t now_ns);

static inline bool core_send_done(const struct core_send *c, uint32_t slot)
{
	const struct core_msg *m = &c->msg[slot];

	return m->done == m->count;
}

static inline void core_send_release(struct core_send *c, uint32_t slot)
{
	c->msg[slot].state = MSG_FREE;
}

/*
 * core_send_signal - take the ports' link words anew. The core does so itself when the epoch
 * changed.
 */
void core_send_signal(struct core_send *c);

/*
 * core_send_deadline_ns - when core_send_next() may have something without an event; UINT64_MAX =
 * never.
 */
uint64_t core_send_deadline_ns(const struct core_send *c);

#endif
