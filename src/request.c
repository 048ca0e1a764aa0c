/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * request.c - isend, irecv, iflush and test: the data path.
 *
 * Every call takes the comm's owner word or returns "not now"; none waits, allocates, locks or
 * makes a system call, but for the first irecv of a region that the peer does not know yet (its
 * keys are queued for control; regMr mostly has done so before). Progress happens in test: poll the
 * queues that can have something, feed the core, post what the core hands out. What is done is
 * reported even after the comm has failed; only then its error.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "comm.h"
#include "log.h"
#include "util.h"

enum { POLL_BATCH = 4 };

/*
 * A comm with a flight log, whose owner word cannot be taken here, goes another way:
 * request_flight.c, which is this file once more.
 */
#ifndef FLIGHT_DIVERT
#define FLIGHT_DIVERT(comm, call)                                                                  \
	do {                                                                                       \
		if (UNLIKELY((comm)->flight != NULL)) {                                            \
			return call;                                                               \
		}                                                                                  \
	} while (0)
#endif

/* --- errors ------------------------------------------------------------------------------- */

/*
 * A buffer that is not registered is no fault of the lane: it would fail on any other too. (On a
 * borrowed port it may be just that port which does not know it.)
 */
static const char *buffer_cause(const struct comm *c, const struct ibv_wc *wc)
{
	if (wr_id_lane(wc->wr_id) >= c->lane_count) {
		return NULL;
	}
	switch (wc->status) {
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		return "the peer's buffer is not registered any more";
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_LEN_ERR:
		return "the local buffer is not registered";
	default:
		return NULL;
	}
}

static void buffer_failed(struct comm *c, const struct ibv_wc *wc, const char *cause)
{
	uint32_t lane = wr_id_lane(wc->wr_id);

	if (comm_error(c) == 0 && !__atomic_load_n(&c->peer_closed, __ATOMIC_RELAXED)) {
		log_warn("lane %u, %s to %s of %s: %s (status %d, vendor error 0x%x): %s", lane,
			 c->port[c->lane[lane].port].port->name,
			 c->peer_port[c->lane[lane].remote].name, peer_name(c->peer),
			 verbs.status_name(wc->status), (int)wc->status, wc->vendor_err, cause);
	}
	comm_fail(c, -EREMOTEIO, cause);
}

/* A read through a port that has failed proves nothing: it is made again through another. */
static void flush_failed(struct recv_comm *c, const struct ibv_wc *wc)
{
	struct request *r = &c->flush[wr_id_unit(wc->wr_id)];
	struct comm_port *p = &c->base.port[wr_id_lane(wc->wr_id)];

	if (p->flush_qp != NULL && p->flush_qp->qp_num == wc->qp_num) {
		c->base.recovery.flush_failed[p->index] = p->flush_qp;
		p->flush_qp = NULL;
	}
	r->pending--;
	r->redo = true;
}

static __attribute__((cold, noinline)) void wc_failed(struct comm *c, const struct ibv_wc *wc)
{
	uint32_t lane = wr_id_lane(wc->wr_id), generation = wr_id_generation(wc->wr_id);

	if (wr_id_kind(wc->wr_id) == WR_FLUSH) {
		flush_failed(recv_comm(c), wc);
		return;
	}
	if (lane >= comm_lane_total(c)) {
		return;
	}
	const char *cause = buffer_cause(c, wc);

	if (cause != NULL && c->recovery.core.lane[lane].generation == generation &&
	    c->recovery.core.lane[lane].state == RL_ACTIVE) {
		buffer_failed(c, wc, cause);
	} else {
		recover_completion(c, lane, generation, wc);
	}
}

static inline int comm_poll(const struct comm *c, uint32_t port, struct ibv_wc *wc)
{
	return verbs_poll_cq(c->port[port].cq, POLL_BATCH, wc);
}

/* --- sending ------------------------------------------------------------------------------ */

static void wr_fill(struct ibv_send_wr *wr, struct ibv_sge *sge, const struct comm_port *port,
		    const struct request *r, uint32_t remote, uint64_t remote_addr, uint32_t offset,
		    uint32_t bytes)
{
	sge->addr = r->data + offset;
	sge->length = bytes;
	sge->lkey = r->mr != NULL ? r->mr->lkey[port->index] : 0;
	wr->next = NULL;
	wr->sg_list = sge;
	wr->num_sge = bytes != 0;
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->send_flags = 0;
	wr->wr.rdma.remote_addr = remote_addr;
	wr->wr.rdma.rkey = r->key != NULL ? r->key->rkey[remote] : 0;
}

static void wr_imm(struct ibv_send_wr *wr, uint64_t id, uint32_t imm)
{
	wr->wr_id = id;
	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->imm_data = htobe32(imm);
}

/* The sizes record of the messages from `slot` on, to the receiver's ring. */
static void wr_sizes(struct send_comm *c, struct ibv_send_wr *wr, struct ibv_sge *sge,
		     const struct comm_port *port, uint32_t remote, uint32_t slot, uint32_t n)
{
	struct core_sizes *rec = &c->sizes[slot];

	rec->seq = c->core.msg[slot].seq + 1;
	for (uint32_t i = 0; i < n; i++) {
		rec->size[i] = c->core.msg[(slot + i) % CORE_SLOTS].size;
	}
	sge->addr = (uintptr_t)rec;
	sge->length = offsetof(struct core_sizes, reserved);
	sge->lkey = port->ring_mr->lkey;
	wr->next = NULL;
	wr->sg_list = sge;
	wr->num_sge = 1;
	wr->wr.rdma.remote_addr = c->base.peer_ring_addr + slot * sizeof(*rec);
	wr->wr.rdma.rkey = c->base.peer_port[remote].ring_rkey;
}

static int post_group(struct send_comm *c, const struct core_post *p, struct comm_port *port,
		      uint32_t remote, uint64_t id)
{
	struct ibv_send_wr wr[CORE_GROUP_MAX + 1];
	struct ibv_sge sge[CORE_GROUP_MAX + 1];
	uint32_t n = p->group_n;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = (p->slot + i) % CORE_SLOTS;
		const struct core_msg *m = &c->core.msg[slot];

		wr_fill(&wr[i], &sge[i], port, &c->req[slot], remote, m->addr, 0, m->size);
		wr[i].wr_id = id;
		wr[i].next = &wr[i + 1];
	}
	wr_sizes(c, &wr[n], &sge[n], port, remote, p->slot, n);
	wr_imm(&wr[n], id, p->imm);
	return verbs_post_send(c->base.lane[p->lane].qp, wr);
}

/* Adaptive routing may reorder plain WRITEs only: the bulk goes as one, the immediate follows. */
static int post_split(struct send_comm *c, const struct core_post *p, struct comm_port *port,
		      uint32_t remote, uint64_t id)
{
	struct ibv_send_wr wr[2];
	struct ibv_sge sge[2];
	const struct request *r = &c->req[p->slot];

	wr_fill(&wr[0], &sge[0], port, r, remote, p->addr, p->offset, p->bytes);
	wr[0].wr_id = id;
	wr[0].next = &wr[1];
	if (p->sizes) {
		wr_sizes(c, &wr[1], &sge[1], port, remote, p->slot, 1);
	} else {
		wr_fill(&wr[1], &sge[1], port, r, remote, p->addr, 0, 0);
	}
	wr_imm(&wr[1], id, p->imm);
	return verbs_post_send(c->base.lane[p->lane].qp, wr);
}

static __attribute__((noinline)) int post_unusual(struct send_comm *c, const struct core_post *p,
						  uint64_t id)
{
	const struct core_lane *lane = &c->core.lane[p->lane];
	struct comm_port *port = &c->base.port[lane->port];

	return p->group_n != 0 ? post_group(c, p, port, lane->remote, id) :
				 post_split(c, p, port, lane->remote, id);
}

/* An empty piece has no buffer and needs no keys. */
static __attribute__((noinline)) int post_empty(struct comm_lane *to, uint64_t id, uint64_t addr,
						uint32_t imm)
{
	struct ibv_send_wr wr = to->wr;

	wr.num_sge = 0;
	wr.wr.rdma.remote_addr = addr;
	wr.wr_id = id;
	wr.imm_data = htobe32(imm);
	return verbs_post_send(to->qp, &wr);
}

static inline int post_bytes(struct comm_lane *to, const struct request *r, uint64_t id,
			     uint64_t addr, uint32_t offset, uint32_t bytes, uint32_t imm)
{
	to->sge.addr = r->data + offset;
	to->sge.length = bytes;
	to->sge.lkey = r->mr->lkey[to->port];
	to->wr.wr.rdma.rkey = r->key->rkey[to->remote];
	to->wr.wr.rdma.remote_addr = addr;
	to->wr.wr_id = id;
	to->wr.imm_data = htobe32(imm);
	return verbs_post_send(to->qp, &to->wr);
}

static inline int post_piece(struct send_comm *c, const struct request *r, uint32_t l,
			     uint32_t unit, uint64_t addr, uint32_t offset, uint32_t bytes,
			     uint32_t imm)
{
	struct comm_lane *to = &c->base.lane[l];

	if (UNLIKELY(bytes == 0)) {
		return post_empty(to, to->data_id | unit, addr, imm);
	}
	return post_bytes(to, r, to->data_id | unit, addr, offset, bytes, imm);
}

static int post_one(struct send_comm *c, const struct core_post *p)
{
	if (UNLIKELY(p->group_n != 0 || p->split_imm)) {
		return post_unusual(c, p, c->base.lane[p->lane].data_id | p->unit);
	}
	return post_piece(c, &c->req[p->slot], p->lane, p->unit, p->addr, p->offset, p->bytes,
			  p->imm);
}

/* What could not be posted is in the core's account of the lane, and goes again with the rest. */
static __attribute__((cold, noinline)) void post_failed(struct send_comm *c, uint32_t lane)
{
	recover_fault(&c->base, lane, CAUSE_POST);
}

static __attribute__((noinline)) void post_all(struct send_comm *c, uint64_t now)
{
	struct core_post post;

	while (core_send_next(&c->core, now, &post)) {
		if (UNLIKELY(post_one(c, &post) != 0)) {
			post_failed(c, post.lane);
		}
	}
}

/* The pieces of an equal message, one to each lane. */
static void post_equal(struct send_comm *c, const struct request *r, const struct core_msg *m)
{
	uint32_t imm = core_imm(m->seq, 0, m->count), left = m->size, bytes = m->piece_bytes;
	const struct core_lane *lane = &c->core.lane[m->lane0];
	struct comm_lane *to = &c->base.lane[m->lane0];
	uint64_t addr = m->addr;
	uint32_t offset = 0;

	do {
		bytes = left < bytes ? left : bytes;
		left -= bytes;
		if (UNLIKELY(post_bytes(to, r, to->data_id | core_lane_newest(lane), addr + offset,
					offset, bytes, imm) != 0)) {
			post_failed(c, (uint32_t)(to - c->base.lane));
		}
		offset += bytes;
		imm += 1u << 16; /* the next index */
		lane++;
		to++;
	} while (left != 0);
}

static __attribute__((noinline)) int send_owned(struct send_comm *c, void *data, size_t bytes,
						int tag, const struct mr *mr, struct request **out)
{
	const struct core_cts *rec;
	const struct peer_key *key = NULL;
	uint64_t seq, now = 0;
	int rc = core_send_match(&c->core, (uint32_t)tag, &rec, &seq);

	if (rc != 0) {
		if (LIKELY(rc == -EAGAIN)) {
			return comm_error(&c->base);
		}
		comm_fail(&c->base, -EPROTO, "the peer announced a buffer that makes no sense");
		return -EPROTO;
	}
	if (LIKELY(rec->mr_id != 0)) {
		key = keys_find(c->base.keys, rec->mr_id);
		if (UNLIKELY(key == NULL)) {
			return comm_error(&c->base); /* on its way by control */
		}
	}
	if (UNLIKELY(comm_error(&c->base) != 0)) {
		return comm_error(&c->base);
	}
	uint32_t size = bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
	uint32_t slot = core_slot(seq), unit;
	struct request *r = &c->req[slot];

	r->type = REQ_SEND;
	r->mr = mr;
	r->key = key;
	r->data = (uintptr_t)data;
	*out = r;
	if (rec->n != 1 && core_send_member(&c->core, rec, seq, size)) {
		if (c->core.matched == 0) { /* a member of a group waits for the others */
			post_all(c, c->core.queued_bytes >= c->core.measured_from ? now_ns() : 0);
		}
		return 0;
	}
	int lane = core_send_quick(&c->core, rec, seq, size, &unit);

	if (LIKELY(lane >= 0)) {
		rc = post_piece(c, r, (uint32_t)lane, unit, rec->addr, 0,
				c->core.msg[slot].size, core_imm(seq, 0, 1));
		if (UNLIKELY(rc != 0)) {
			post_failed(c, (uint32_t)lane);
		}
		return 0;
	}
	if (size > c->core.cfg.small_bytes && c->core.cfg.lane_count > 1) {
		now = now_ns();
		if (core_send_equal(&c->core, rec, seq, size, now)) {
			post_equal(c, r, &c->core.msg[slot]);
			return 0;
		}
	}
	core_send_start(&c->core, rec, seq, size, now);
	/* A member of a group waits for the others. */
	if (c->core.q_head != c->core.q_tail) {
		post_all(c, now);
	}
	return 0;
}

int request_send(struct send_comm *c, void *data, size_t bytes, int tag, const struct mr *mr,
		 struct request **out)
{
	*out = NULL;
	if (!owner_try(&c->base.owner)) {
		FLIGHT_DIVERT(&c->base, request_send_flight(c, data, bytes, tag, mr, out));
		return 0;
	}
	int rc = UNLIKELY(!core_send_announced(&c->core))
			 ? comm_error(&c->base)
			 : send_owned(c, data, bytes, tag, mr, out);

	owner_release(&c->base.owner);
	return rc;
}

/*
 * Feed a batch of completions to the core. RC completes in order, so of a run of one lane the last
 * speaks for the others.
 */
static inline void send_take(struct send_comm *c, const struct ibv_wc *wc, int n, uint64_t now)
{
	for (; n > 0; n--, wc++) {
		uint64_t id = wc->wr_id;

		if (UNLIKELY(wc->status != IBV_WC_SUCCESS)) {
			wc_failed(&c->base, wc);
		} else if (UNLIKELY(wr_id_kind(id) == WR_VERIFY)) {
			recover_verified(&c->base, wr_id_lane(id), wr_id_generation(id));
		} else if (n == 1 || wc[1].status != IBV_WC_SUCCESS ||
			   id >> 8 != wc[1].wr_id >> 8) { /* all but the unit */
			(void)core_send_complete(&c->core, wr_id_lane(id), wr_id_generation(id),
						 wr_id_unit(id), now);
		}
	}
}

/* If it is done, say so and free it. */
static inline bool send_finish(struct send_comm *c, struct request *r, int *done, int *sizes)
{
	if (!core_send_done(&c->core, r->slot)) {
		return false;
	}
	if (sizes != NULL) {
		sizes[0] = (int)c->core.msg[r->slot].size;
	}
	r->type = REQ_FREE;
	core_send_release(&c->core, r->slot);
	*done = 1;
	return true;
}

/* Something came from the lowest port in `left`: take it, and what the other ports in it have. */
static inline void send_drain(struct send_comm *c, uint32_t left, struct ibv_wc *wc, int n)
{
	struct core_send *core = &c->core;
	/* Only of large units the time is wanted. */
	uint64_t now = core->inflight_bytes >= core->measured_from ? now_ns() : 0;

	while (true) {
		if (UNLIKELY(n < 0)) {
			comm_fail(&c->base, -EIO, "ibv_poll_cq failed");
		}
		send_take(c, wc, n, now);
		if (n < POLL_BATCH) { /* that queue is empty */
			left &= left - 1;
			if (left == 0) {
				break;
			}
		}
		n = comm_poll(&c->base, (uint32_t)__builtin_ctz(left), wc);
	}
	if (UNLIKELY(core->q_head != core->q_tail) && comm_error(&c->base) == 0) {
		post_all(c, now != 0 ? now : now_ns());
	}
}

static __attribute__((noinline)) int send_poll(struct send_comm *c, struct request *r, int *done,
					       int *sizes)
{
	struct ibv_wc wc[POLL_BATCH];

	for (uint32_t left = c->core.busy_ports; left != 0; left &= left - 1) {
		int n = comm_poll(&c->base, (uint32_t)__builtin_ctz(left), wc);

		if (n != 0) {
			send_drain(c, left, wc, n);
			return send_finish(c, r, done, sizes) ? 0 : comm_error(&c->base);
		}
	}
	c->core.idle_polls++;
	if (UNLIKELY(c->core.q_head != c->core.q_tail) && comm_error(&c->base) == 0) {
		post_all(c, now_ns());
	}
	return comm_error(&c->base);
}

/* --- recovery, sender's part ---------------------------------------------------------------- */

void request_probe(struct send_comm *c, const struct core_post *p)
{
	struct comm_lane *to = &c->base.lane[p->lane];

	if (post_empty(to, to->data_id | p->unit, c->base.peer_scratch_addr, p->imm) != 0) {
		post_failed(c, p->lane);
	}
}

void request_verify(struct comm *c, uint32_t l)
{
	const struct comm_lane *lane = &c->lane[l];
	const struct lane_work *w = &c->recovery.work[l];
	const struct comm_port *port = &c->port[lane->port];
	enum ibv_mtu mtu = w->to.mtu < w->from.mtu ? (enum ibv_mtu)w->to.mtu : w->from.mtu;
	uint32_t bytes = 128u << mtu;
	struct ibv_sge sge = { .addr = (uintptr_t)comm_scratch(c),
			       .length = bytes > SCRATCH_BYTES ? SCRATCH_BYTES : bytes,
			       .lkey = port->ring_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id_make(WR_VERIFY, l, 0, lane->generation),
				  .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = c->peer_scratch_addr;
	wr.wr.rdma.rkey = c->peer_port[lane->remote].ring_rkey;
	if (verbs_post_send(lane->qp, &wr) != 0) {
		recover_fault(c, l, CAUSE_POST);
	}
}

/* --- receiving ---------------------------------------------------------------------------- */

/* A group that wraps around the ring's end takes two writes. */
static __attribute__((noinline)) int announce_wrapped(struct recv_comm *c,
						      const struct core_announce *a)
{
	const struct comm_lane *to = &c->base.lane[a->lane];
	uint32_t room = CORE_SLOTS - a->first;
	struct ibv_send_wr wr[2] = { to->wr, to->wr };
	struct ibv_sge sge[2] = { to->sge, to->sge };

	sge[0].addr = (uintptr_t)&c->staging[a->first];
	sge[0].length = room * (uint32_t)sizeof(struct core_cts);
	sge[1].addr = (uintptr_t)&c->staging[0];
	sge[1].length = (a->n - room) * (uint32_t)sizeof(struct core_cts);
	wr[0].sg_list = &sge[0];
	wr[0].next = &wr[1];
	wr[0].send_flags = 0;
	wr[0].wr.rdma.remote_addr = c->base.peer_ring_addr + a->first * sizeof(struct core_cts);
	wr[1].sg_list = &sge[1];
	wr[1].send_flags = a->signaled ? IBV_SEND_SIGNALED : 0;
	wr[1].wr.rdma.remote_addr = c->base.peer_ring_addr;
	return verbs_post_send(to->qp, wr);
}

static inline int announce_post(struct recv_comm *c,
				const struct core_announce *a)
{
	struct comm_lane *to = &c->base.lane[a->lane];

	if (UNLIKELY(a->first < CORE_SLOTS && a->first + a->n > CORE_SLOTS)) {
		return announce_wrapped(c, a);
	}
	to->sge.addr = (uintptr_t)&c->staging[a->first];
	to->sge.length = a->n * (uint32_t)sizeof(struct core_cts);
	to->wr.wr.rdma.remote_addr = c->base.peer_ring_addr + a->first * sizeof(struct core_cts);
	if (LIKELY(!a->signaled && !(c->base.inline_cts && a->n > 1))) {
		return verbs_post_send(to->qp, &to->wr);
	}
	struct ibv_send_wr wr = to->wr;

	wr.wr_id = wr_id_make(a->credit ? WR_CREDIT : a->again ? WR_AGAIN : WR_CTS, a->lane, 0,
			      c->core.lane[a->lane].generation);
	wr.send_flags = (a->signaled ? IBV_SEND_SIGNALED : 0) |
			(c->base.inline_cts && a->n == 1 ? IBV_SEND_INLINE : 0);
	return verbs_post_send(to->qp, &wr);
}

/* One that could not be posted is written again, as those that a failed lane may have lost. */
static inline void announce(struct recv_comm *c, const struct core_announce *a)
{
	if (UNLIKELY(announce_post(c, a) != 0)) {
		recover_fault(&c->base, a->lane, CAUSE_POST);
	}
}

void request_announce(struct recv_comm *c, const struct core_announce *a)
{
	announce(c, a);
}

/* Tell the counts of receive WRs if the peer may run out of them. */
static __attribute__((noinline)) void credit_tell(struct recv_comm *c)
{
	struct core_announce a;

	if (core_recv_credit(&c->core, &a)) {
		announce(c, &a);
	}
}

/* Receive WRs go back in batches, one doorbell each. */
static __attribute__((noinline)) void refill(struct recv_comm *c, uint32_t lane)
{
	if (UNLIKELY(c->base.lane[lane].qp == NULL)) {
		return; /* being fenced */
	}
	if (verbs_post_recv(c->base.lane[lane].qp, c->refill[lane]) != 0) {
		recover_fault(&c->base, lane, CAUSE_POST);
		return;
	}
	core_recv_refilled(&c->core, lane, CORE_RQ_BATCH);
	credit_tell(c);
}

static void recv_imm(struct recv_comm *c, const struct ibv_wc *wc)
{
	uint32_t lane = wr_id_lane(wc->wr_id);
	int rc = core_recv_imm(&c->core, lane, be32toh(wc->imm_data), wc->byte_len);

	if (UNLIKELY(rc != 0)) {
		if (rc == -ESTALE) {
			log_warn_limited("%s: an immediate of another slot generation was dropped "
					 "(0x%08x): please report this",
					 peer_name(c->base.peer), be32toh(wc->imm_data));
		} else {
			comm_fail(&c->base, -EPROTO, "the peer sent a piece that cannot be");
		}
	}
	if (core_recv_refill(&c->core, lane) != 0) {
		refill(c, lane);
	}
}

static __attribute__((noinline)) void recv_other(struct recv_comm *c, const struct ibv_wc *wc)
{
	enum wr_kind kind = wr_id_kind(wc->wr_id);

	if (kind == WR_FLUSH) {
		c->flush[wr_id_unit(wc->wr_id)].pending--;
		return;
	}
	if (UNLIKELY(kind == WR_VERIFY)) {
		recover_verified(&c->base, wr_id_lane(wc->wr_id), wr_id_generation(wc->wr_id));
		return;
	}
	if (UNLIKELY(kind == WR_AGAIN)) {
		recover_again_done(&c->base, wr_id_lane(wc->wr_id));
		return;
	}
	core_recv_announced(&c->core, wr_id_lane(wc->wr_id), kind == WR_CREDIT);
	if (kind == WR_CREDIT) {
		credit_tell(c);
	}
}

static inline void recv_take(struct recv_comm *c, const struct ibv_wc *wc, int n)
{
	do {
		if (UNLIKELY(wc->status != IBV_WC_SUCCESS)) {
			wc_failed(&c->base, wc);
		} else if (LIKELY(wr_id_kind(wc->wr_id) == WR_RECV)) {
			recv_imm(c, wc);
		} else {
			recv_other(c, wc);
		}
		wc++;
	} while (--n > 0);
}

static inline uint32_t next_port(const struct recv_comm *c, uint32_t port)
{
	return port + 1 < c->base.poll_ports ? port + 1 : 0;
}

/* Something came from `port`: take it, and go on with the other ports until *left is 0. */
static inline void recv_drain(struct recv_comm *c, uint32_t port, uint32_t ports,
			      const uint8_t *left, struct ibv_wc *wc, int n)
{
	while (true) {
		if (n > 0) {
			c->hot_port = (uint8_t)port;
			recv_take(c, wc, n);
		} else if (UNLIKELY(n < 0)) {
			comm_fail(&c->base, -EIO, "ibv_poll_cq failed");
		}
		if (n < POLL_BATCH) { /* that queue is empty */
			ports--;
			if (ports == 0 || *left == 0) {
				return;
			}
			port = next_port(c, port);
		}
		n = comm_poll(&c->base, port, wc);
	}
}

static __attribute__((noinline)) void recv_progress(struct recv_comm *c, uint32_t port,
						    uint32_t ports, const uint8_t *left)
{
	struct ibv_wc wc[POLL_BATCH];

	recv_drain(c, port, ports, left, wc, comm_poll(&c->base, port, wc));
}

static int recv_owned(struct recv_comm *c, int n, void **data, const size_t *bytes,
		      const int *tags, const struct mr **mrs, struct request **out)
{
	struct core_recv_buffer buffer[CORE_GROUP_MAX];
	struct core_announce a;
	uint32_t slot;

	if (UNLIKELY(comm_error(&c->base) != 0)) {
		return comm_error(&c->base);
	}
	for (int i = 0; i < n; i++) {
		buffer[i].addr = (uintptr_t)data[i];
		buffer[i].size = bytes[i] > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes[i];
		buffer[i].tag = (uint32_t)tags[i];
		buffer[i].mr_id = 0;
		if (LIKELY(mrs[i] != NULL)) {
			buffer[i].mr_id = mrs[i]->id;
			if (UNLIKELY(!keys_told(c->base.keys, mrs[i]->id)) &&
			    keys_tell(c->base.peer, c->base.keys, mrs[i]) != 0) {
				return 0;
			}
		}
	}
	if (core_recv_post(&c->core, (uint32_t)n, buffer, &slot, &a) != 0) {
		/*
		 * Full: with no receive open nobody would call test to take completions. Of all
		 * ports, since the usual lane's may be down and the others' queues full.
		 */
		recv_progress(c, c->core.lane[c->core.cts_lane].port % c->base.poll_ports,
			      c->base.poll_ports, &(uint8_t){ 1 });
		return comm_error(&c->base);
	}
	announce(c, &a);

	struct request *r = &c->req[slot];

	r->type = REQ_RECV;
	r->n = (uint8_t)n;
	*out = r;
	return 0;
}

int request_recv(struct recv_comm *c, int n, void **data, const size_t *bytes, const int *tags,
		 const struct mr **mrs, struct request **out)
{
	*out = NULL;
	if (UNLIKELY(n < 1 || n > CORE_GROUP_MAX)) {
		return -EINVAL;
	}
	if (!owner_try(&c->base.owner)) {
		FLIGHT_DIVERT(&c->base, request_recv_flight(c, n, data, bytes, tags, mrs, out));
		return 0;
	}
	int rc = recv_owned(c, n, data, bytes, tags, mrs, out);

	owner_release(&c->base.owner);
	return rc;
}

static inline bool recv_finish(struct recv_comm *c, struct request *r, int *done, int *sizes)
{
	if (!core_recv_done(&c->core, r->slot)) {
		return false;
	}
	for (uint32_t i = 0; sizes != NULL && i < r->n; i++) {
		sizes[i] = (int)core_recv_size(&c->core, r->slot, i);
	}
	r->type = REQ_FREE;
	core_recv_release(&c->core, r->slot);
	*done = 1;
	return true;
}

/* Small messages keep to one port: look first where something was found last. */
static __attribute__((noinline)) int recv_poll(struct recv_comm *c, struct request *r, int *done,
					       int *sizes)
{
	struct ibv_wc wc[POLL_BATCH];
	uint32_t port = c->hot_port, ports = c->base.poll_ports;
	int n;

	while ((n = comm_poll(&c->base, port, wc)) == 0 && --ports != 0) {
		port = next_port(c, port);
	}
	if (n != 0) {
		recv_drain(c, port, ports, &c->core.slot[r->slot].left, wc, n);
		if (recv_finish(c, r, done, sizes)) {
			return 0;
		}
	}
	/*
	 * No lane could carry it when it was due: without credits nothing else would come to ask.
	 */
	if (UNLIKELY(c->core.credit_waits)) {
		credit_tell(c);
	}
	return comm_error(&c->base);
}

/* --- flushing ----------------------------------------------------------------------------- */

/* The last buffer that is not empty: a read of one byte there orders all writes before it. */
static int flush_buffer(int n, const int *bytes)
{
	int last = -1;

	for (int i = 0; i < n; i++) {
		if (bytes[i] > 0) {
			last = i;
		}
	}
	return last;
}

static int flush_post(struct recv_comm *c, struct comm_port *port, struct request *r)
{
	struct ibv_sge sge = { .addr = (uintptr_t)&c->flush_word, .length = 1,
			       .lkey = port->ring_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id_make(WR_FLUSH, (uint32_t)port->index, r->slot, 0),
				  .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				  .send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = r->data;
	wr.wr.rdma.rkey = r->mr->rkey[port->index];
	return verbs_post_send(port->flush_qp, &wr);
}

/*
 * A read through each port that can; with none, or if one fails, flush_test() tries again: never is
 * a buffer taken for flushed that was not.
 */
static void flush_post_all(struct recv_comm *c, struct request *r)
{
	r->redo = true;
	for (uint32_t i = 0; i < c->base.poll_ports; i++) {
		if (c->base.port[i].flush_qp != NULL &&
		    flush_post(c, &c->base.port[i], r) == 0) {
			r->pending++;
			r->redo = false;
		}
	}
}

static int flush_owned(struct recv_comm *c, int last, void **data, const struct mr **mrs,
		       struct request **out)
{
	struct request *r = &c->flush[c->flush_next];

	if (comm_error(&c->base) != 0) {
		return comm_error(&c->base);
	}
	if (r->type != REQ_FREE) {
		comm_fail(&c->base, -EINVAL, "more flushes outstanding than requests");
		return -EINVAL;
	}
	c->flush_next++;
	r->type = REQ_FLUSH;
	r->pending = 0;
	r->mr = mrs[last];
	r->data = (uintptr_t)data[last];
	flush_post_all(c, r);
	*out = r;
	return 0;
}

int request_flush(struct recv_comm *c, int n, void **data, const int *bytes, const struct mr **mrs,
		  struct request **out)
{
	int last = flush_buffer(n, bytes);

	*out = NULL;
	if (last < 0 || !c->has_flush) {
		return 0; /* nothing arrived, or no port reaches GPU memory */
	}
	/*
	 * NULL would mean "already flushed", so the word must be had; only the plugin thread can
	 * hold it, for microseconds.
	 */
	while (!owner_try(&c->base.owner)) {
		FLIGHT_DIVERT(&c->base, request_flush_flight(c, n, data, bytes, mrs, out));
	}
	int rc = flush_owned(c, last, data, mrs, out);

	owner_release(&c->base.owner);
	return rc;
}

static __attribute__((noinline)) int flush_test(struct recv_comm *c, struct request *r, int *done)
{
	if (r->pending != 0) {
		recv_progress(c, 0, c->base.poll_ports, &r->pending);
		if (r->pending != 0) {
			return comm_error(&c->base);
		}
	}
	if (UNLIKELY(r->redo)) {
		flush_post_all(c, r);
		return comm_error(&c->base);
	}
	r->type = REQ_FREE;
	*done = 1;
	return 0;
}

/* --- recovery ----------------------------------------------------------------------------- */

static void send_drain_all(struct send_comm *c)
{
	struct ibv_wc wc[POLL_BATCH];
	uint64_t now = now_ns();

	for (uint32_t port = 0; port < c->base.poll_ports; port++) {
		int n = comm_poll(&c->base, port, wc);

		while (n > 0) {
			send_take(c, wc, n, now);
			n = comm_poll(&c->base, port, wc);
		}
	}
}

static void recv_drain_all(struct recv_comm *c)
{
	struct ibv_wc wc[POLL_BATCH];

	for (uint32_t port = 0; port < c->base.poll_ports; port++) {
		int n = comm_poll(&c->base, port, wc);

		while (n > 0) {
			recv_take(c, wc, n);
			n = comm_poll(&c->base, port, wc);
		}
	}
}

void request_drain(struct comm *c)
{
	FLIGHT_DIVERT(c, request_drain_flight(c));
	if (c->kind == COMM_SEND) {
		send_drain_all(send_comm(c));
	} else {
		recv_drain_all(recv_comm(c));
	}
}

void request_abandon(struct comm *c, const struct mr *mr)
{
	bool used = false;

	if (c == NULL || c->kind != COMM_SEND) {
		return;
	}
	/* The plugin thread may be at it, for microseconds. */
	while (!owner_try(&c->owner)) {
		FLIGHT_DIVERT(c, request_abandon_flight(c, mr));
	}
	for (uint32_t i = 0; i < CORE_SLOTS; i++) {
		const struct request *r = &send_comm(c)->req[i];

		used |= r->type == REQ_SEND && r->mr == mr;
	}
	int none = 0;

	/* Without a line: whoever does this knows. */
	if (used) {
		(void)__atomic_compare_exchange_n(&c->error, &none, -ECANCELED, false,
						  __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
	owner_release(&c->owner);
}

void request_progress(struct comm *c)
{
	FLIGHT_DIVERT(c, request_progress_flight(c));
	if (c->kind == COMM_RECV) {
		if (recv_comm(c)->core.credit_waits) {
			credit_tell(recv_comm(c));
		}
	} else if (send_comm(c)->core.q_head != send_comm(c)->core.q_tail) {
		post_all(send_comm(c), now_ns());
	}
}

/* ------------------------------------------------------------------------------------------ */

/* What is done already needs no polling, and without the calls that poll few registers. */
static inline int test_owned(struct comm *c, struct request *r, int *done, int *sizes)
{
	if (r->type == REQ_SEND) {
		return send_finish(send_comm(c), r, done, sizes) ?
			       0 :
			       send_poll(send_comm(c), r, done, sizes);
	}
	if (LIKELY(r->type == REQ_RECV)) {
		return recv_finish(recv_comm(c), r, done, sizes) ?
			       0 :
			       recv_poll(recv_comm(c), r, done, sizes);
	}
	return r->type == REQ_FLUSH ? flush_test(recv_comm(c), r, done) : -EINVAL;
}

int request_test(struct request *r, int *done, int *sizes)
{
	struct comm *c = r->comm;

	*done = 0;
	if (!owner_try(&c->owner)) {
		FLIGHT_DIVERT(c, request_test_flight(r, done, sizes));
		return 0;
	}
	int rc = test_owned(c, r, done, sizes);

	owner_release(&c->owner);
	return rc;
}
