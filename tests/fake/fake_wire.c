/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fake_wire.c - what moves: posting, landing in the peer's memory, acknowledging, polling.
 *
 * A WR has two steps, so that tests can come between them: it *lands* (bytes and the receiver's
 * completion), and it is *acked* (the sender's completion). Both go in order within a QP. A path
 * that is closed, or whose far QP is not ready, stops both; fake_path.c knows which are, and fails
 * what has waited too long.
 */
#include "fake_internal.h"

#include <string.h>

enum {
	LAND_OK = 0,
	LAND_BLOCKED = -1
}; /* else an ibv_wc_status of the sender */

static struct fake_recv *recv_at(struct fake_qp *qp, uint64_t seq)
{
	return &qp->rq[seq % qp->cap.max_recv_wr];
}

static void cq_push(struct fake_cq *cq, const struct ibv_wc *wc, struct fake_qp *qp, uint64_t seq,
		    bool is_send)
{
	struct ibv_async_event event = {.element.cq = &cq->ibv, .event_type = IBV_EVENT_CQ_ERR};
	struct fake_cqe *cqe;

	if (qp->device->fatal)
		return;
	if (cq->head - cq->tail == (uint64_t)cq->ibv.cqe) {
		fake_fault_add("a CQ of %d entries overran", cq->ibv.cqe);
		if (!cq->overrun)
			fake_raise(cq->ibv.context, event, &cq->unacked);
		cq->overrun = true;
		return;
	}
	cqe = &cq->ring[cq->head++ % (uint64_t)cq->ibv.cqe];
	*cqe = (struct fake_cqe){.wc = *wc, .qp = qp, .seq = seq, .is_send = is_send};
}

/* Of a failed WR only these fields mean anything; the rest is filled so as to mislead. */
static void push_error(struct fake_qp *qp, uint64_t wr_id, uint64_t seq, bool is_send,
		       enum ibv_wc_status status)
{
	struct ibv_wc wc;

	memset(&wc, 0xa5, sizeof(wc));
	wc.wr_id = wr_id;
	wc.status = status;
	wc.vendor_err = status == IBV_WC_WR_FLUSH_ERR ? 249 : 129;
	wc.qp_num = qp->ibv.qp_num;
	cq_push(fake_cq_of(is_send ? qp->ibv.send_cq : qp->ibv.recv_cq), &wc, qp, seq, is_send);
}

void fake_qp_fail(struct fake_qp *qp, enum ibv_wc_status status)
{
	qp->ibv.state = IBV_QPS_ERR;
	fake.epoch++;
	for (; qp->sq_acked < qp->sq_posted; qp->sq_acked++) {
		push_error(qp, fake_send_at(qp, qp->sq_acked)->wr_id, qp->sq_acked + 1, true,
			   status);
		fake.waiting--;
		status = IBV_WC_WR_FLUSH_ERR;
	}
	qp->sq_landed = qp->sq_acked;
	qp->blocked_ns = 0;
	for (; qp->rq_taken < qp->rq_posted; qp->rq_taken++) {
		if (!fake.config.no_recv_flush)
			push_error(qp, recv_at(qp, qp->rq_taken)->wr_id, qp->rq_taken + 1, false,
				   IBV_WC_WR_FLUSH_ERR);
	}
}

/* Memory */

static const char *mr_reach(const struct fake_qp *qp, uint32_t key, bool remote, uint64_t addr,
			    uint32_t bytes, int access, void **out)
{
	const struct fake_device *device = qp->device;
	uint32_t index = (key >> 8) - (uint32_t)device->index * 4096;
	const struct fake_mr *mr;

	if (index >= (uint32_t)device->mr_room || !device->mr[index])
		return "no such key";
	mr = device->mr[index];
	if (key != (remote ? mr->ibv.rkey : mr->ibv.lkey))
		return key == (remote ? mr->ibv.lkey : mr->ibv.rkey) ? "the other kind of key"
								     : "an old key";
	if (mr->ibv.pd != qp->ibv.pd)
		return "key of another PD";
	if ((mr->access & access) != access)
		return "the MR does not allow this access";
	if (addr < mr->iova || bytes > mr->ibv.length || addr - mr->iova > mr->ibv.length - bytes)
		return "outside the MR";
	*out = (char *)mr->ibv.addr + (addr - mr->iova);
	return NULL;
}

static bool reach(const struct fake_qp *qp, uint32_t key, bool remote, uint64_t addr,
		  uint32_t bytes, int access, void **out)
{
	const char *why;

	*out = NULL;
	if (bytes == 0)
		return true;
	why = mr_reach(qp, key, remote, addr, bytes, access, out);
	if (why)
		fake_fault_add("%s key 0x%x at 0x%llx+%u on QP 0x%x: %s",
			       remote ? "remote" : "local", key, (unsigned long long)addr, bytes,
			       qp->ibv.qp_num, why);
	return why == NULL;
}

/*
 * Small aligned blocks go word by word with release order: a ring that is polled for its last word
 * then has the words before it, also as ThreadSanitizer sees it. A word that is there already, from
 * a write that is repeated, is left alone: the reader may be at it.
 */
static void copy_bytes(void *to, const void *from, size_t bytes)
{
	if (fake.config.copy_max && bytes > fake.config.copy_max)
		bytes = fake.config.copy_max;
	if (bytes > 1024 || ((uintptr_t)to | (uintptr_t)from | bytes) % 8 != 0) {
		memcpy(to, from, bytes);
		return;
	}
	for (size_t i = 0; i < bytes / 8; i++) {
		uint64_t word = __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED);

		if (__atomic_load_n((uint64_t *)to + i, __ATOMIC_RELAXED) != word)
			__atomic_store_n((uint64_t *)to + i, word, __ATOMIC_RELEASE);
	}
}

static uint32_t sge_bytes(const struct ibv_sge *sge, int count)
{
	uint32_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += sge[i].length;
	return bytes;
}

/* Gather or scatter between a list of local buffers and one block. */
static bool sge_copy(struct fake_qp *qp, const struct ibv_sge *sge, int count, char *block,
		     uint32_t bytes, bool to_block)
{
	for (int i = 0; i < count && bytes > 0; i++) {
		uint32_t part = sge[i].length < bytes ? sge[i].length : bytes;
		void *local;

		if (!reach(qp, sge[i].lkey, false, sge[i].addr, part,
			   to_block ? 0 : IBV_ACCESS_LOCAL_WRITE, &local))
			return false;
		if (part > 0 && to_block)
			copy_bytes(block, local, part);
		else if (part > 0)
			copy_bytes(local, block, part);
		block += part;
		bytes -= part;
	}
	return true;
}

/* Landing */

static bool takes_recv(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND ||
	       opcode == IBV_WR_SEND_WITH_IMM;
}

static bool has_imm(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_IMM;
}

static const void *inline_at(struct fake_qp *qp, uint64_t seq)
{
	return qp->inline_data + seq % qp->cap.max_send_wr * qp->cap.max_inline_data;
}

/* The far side NAKs: its QP breaks too, as RoCE says of access errors. */
static int refuse(struct fake_qp *peer, enum ibv_wc_status status)
{
	struct ibv_async_event event = {.element.qp = &peer->ibv,
					.event_type = IBV_EVENT_QP_ACCESS_ERR};

	fake_raise(peer->ibv.context, event, &peer->unacked);
	fake_qp_fail(peer, IBV_WC_WR_FLUSH_ERR);
	return (int)status;
}

bool fake_gather(struct fake_qp *qp, uint64_t seq, void *block, uint32_t bytes)
{
	const struct fake_send *wr = fake_send_at(qp, seq);

	if (bytes == 0)
		return true;
	if (!(wr->flags & IBV_SEND_INLINE))
		return sge_copy(qp, wr->sge, wr->sge_count, block, bytes, true);
	copy_bytes(block, inline_at(qp, seq), bytes);
	return true;
}

static int land_block(struct fake_qp *qp, const struct fake_send *wr, void *block)
{
	return fake_gather(qp, qp->sq_landed, block, wr->bytes) ? LAND_OK : IBV_WC_LOC_PROT_ERR;
}

static int land_write(struct fake_qp *qp, struct fake_qp *peer, const struct fake_send *wr)
{
	void *block;

	if (wr->bytes && !(peer->access & IBV_ACCESS_REMOTE_WRITE)) {
		fake_fault_add("QP 0x%x does not allow remote writes", peer->ibv.qp_num);
		return refuse(peer, IBV_WC_REM_ACCESS_ERR);
	}
	if (!reach(peer, wr->rkey, true, wr->remote_addr, wr->bytes, IBV_ACCESS_REMOTE_WRITE,
		   &block))
		return refuse(peer, IBV_WC_REM_ACCESS_ERR);
	return land_block(qp, wr, block);
}

static int land_read(struct fake_qp *qp, struct fake_qp *peer, const struct fake_send *wr)
{
	void *block;

	if (!(peer->access & IBV_ACCESS_REMOTE_READ) || !qp->rd_atomic || !peer->dest_rd_atomic) {
		fake_fault_add("QP 0x%x or 0x%x does not allow reads", qp->ibv.qp_num,
			       peer->ibv.qp_num);
		return refuse(peer, IBV_WC_REM_ACCESS_ERR);
	}
	if (!reach(peer, wr->rkey, true, wr->remote_addr, wr->bytes, IBV_ACCESS_REMOTE_READ,
		   &block))
		return refuse(peer, IBV_WC_REM_ACCESS_ERR);
	return sge_copy(qp, wr->sge, wr->sge_count, block, wr->bytes, false) ? LAND_OK
									     : IBV_WC_LOC_PROT_ERR;
}

/* A SEND goes through a block of its own, since both sides may be lists. */
static int land_send(struct fake_qp *qp, struct fake_qp *peer, const struct fake_send *wr)
{
	const struct fake_recv *recv = recv_at(peer, peer->rq_taken);
	static char block[65536];
	int rc;

	if (wr->bytes > sizeof(block) || wr->bytes > sge_bytes(recv->sge, recv->sge_count)) {
		fake_fault_add("a SEND of %u bytes does not fit its receive", wr->bytes);
		return refuse(peer, IBV_WC_REM_INV_REQ_ERR);
	}
	rc = land_block(qp, wr, block);
	if (rc == LAND_OK && !sge_copy(peer, recv->sge, recv->sge_count, block, wr->bytes, false))
		return refuse(peer, IBV_WC_REM_OP_ERR);
	return rc;
}

static void take_recv(uint32_t src_qpn, struct fake_qp *peer, const struct fake_send *wr)
{
	bool is_write = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct ibv_wc wc = {.wr_id = recv_at(peer, peer->rq_taken)->wr_id,
			    .status = IBV_WC_SUCCESS,
			    .opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
			    .byte_len = wr->bytes,
			    .qp_num = peer->ibv.qp_num,
			    .src_qp = src_qpn};

	if (has_imm(wr->opcode)) {
		wc.imm_data = wr->imm;
		wc.wc_flags = IBV_WC_WITH_IMM;
	}
	peer->rq_taken++;
	cq_push(fake_cq_of(peer->ibv.recv_cq), &wc, peer, peer->rq_taken, false);
}

/* Where the next WR stands among what the peer has taken: 0 next, < 0 taken already, > 0 ahead. */
static int psn_order(const struct fake_qp *qp, const struct fake_qp *peer)
{
	uint32_t ahead = (qp->sq_next - peer->rq_next) & 0xffffff;

	return ahead == 0 ? 0 : ahead < 0x800000 ? 1 : -1;
}

static int land_new(struct fake_qp *qp, struct fake_qp *peer, const struct fake_send *wr)
{
	int rc;

	if (takes_recv(wr->opcode) && peer->rq_taken == peer->rq_posted) {
		fake_fault_add("QP 0x%x has no receive WR for %s", peer->ibv.qp_num,
			       has_imm(wr->opcode) ? "an immediate" : "a send");
		return IBV_WC_RNR_RETRY_EXC_ERR;
	}
	if (wr->opcode == IBV_WR_RDMA_READ)
		rc = land_read(qp, peer, wr);
	else if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		rc = land_write(qp, peer, wr);
	else
		rc = land_send(qp, peer, wr);
	if (rc == LAND_OK && takes_recv(wr->opcode))
		take_recv(qp->ibv.qp_num, peer, wr);
	return rc;
}

/* What the peer has taken already, as a ghost that was in front of it, changes nothing. */
static int land_one(struct fake_qp *qp, struct fake_qp *peer, const struct fake_send *wr)
{
	bool is_new = psn_order(qp, peer) == 0;
	int rc = is_new || wr->opcode == IBV_WR_RDMA_READ ? land_new(qp, peer, wr) : LAND_OK;

	if (rc == LAND_OK) {
		qp->sq_next = (qp->sq_next + fake_packets(qp, wr->bytes)) & 0xffffff;
		if (is_new)
			peer->rq_next = qp->sq_next;
	}
	return rc;
}

static bool finds_way(struct fake_qp *qp)
{
	fake_path_look(qp);
	return qp->peer && qp->forward && psn_order(qp, qp->peer) <= 0;
}

static bool can_land(struct fake_qp *qp)
{
	if (qp->ibv.state != IBV_QPS_RTS || qp->sq_landed == qp->sq_posted || !finds_way(qp))
		return false;
	return fake.config.rnr != FAKE_RNR_WAIT || qp->peer->rq_taken < qp->peer->rq_posted ||
	       !takes_recv(fake_send_at(qp, qp->sq_landed)->opcode) || psn_order(qp, qp->peer) < 0;
}

static bool can_ack(struct fake_qp *qp)
{
	if (qp->sq_acked == qp->sq_landed)
		return false;
	fake_path_look(qp);
	return qp->peer && qp->back;
}

bool fake_qp_is_stuck(struct fake_qp *qp)
{
	if (qp->ibv.state != IBV_QPS_RTS || qp->sq_acked == qp->sq_posted || qp->device->fatal)
		return false;
	return qp->sq_acked < qp->sq_landed ? !can_ack(qp) : !finds_way(qp);
}

static void ack_one(struct fake_qp *qp)
{
	const struct fake_send *wr = fake_send_at(qp, qp->sq_acked);
	struct ibv_wc wc = {.wr_id = wr->wr_id,
			    .status = IBV_WC_SUCCESS,
			    .byte_len = wr->bytes,
			    .qp_num = qp->ibv.qp_num};

	qp->sq_acked++;
	qp->blocked_ns = 0;
	fake.waiting--;
	if (!qp->sig_all && !(wr->flags & IBV_SEND_SIGNALED))
		return;
	wc.opcode = wr->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
		    : wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM
			    ? IBV_WC_SEND
			    : IBV_WC_RDMA_WRITE;
	cq_push(fake_cq_of(qp->ibv.send_cq), &wc, qp, qp->sq_acked, true);
}

static void land(struct fake_qp *qp)
{
	int rc = land_one(qp, qp->peer, fake_send_at(qp, qp->sq_landed));

	if (rc == LAND_OK) {
		qp->sq_landed++;
		return;
	}
	/* A NAK acknowledges what came before it. */
	while (qp->sq_acked < qp->sq_landed)
		ack_one(qp);
	fake_qp_fail(qp, (enum ibv_wc_status)rc);
}

static bool advance(struct fake_qp *qp)
{
	bool moved = false;

	while (true) {
		if (can_ack(qp))
			ack_one(qp);
		else if (can_land(qp))
			land(qp);
		else
			return moved;
		moved = true;
	}
}

void fake_settle(void)
{
	bool moved = fake.config.delivery == FAKE_IMMEDIATE;

	while (moved && fake.waiting > 0) {
		moved = false;
		for (struct fake_qp *qp = fake.qps; qp; qp = qp->next)
			moved |= advance(qp);
	}
	fake_watch(NULL);
}

/* What comes out of the network without a sender. */

void fake_spill(struct fake_qp *qp, struct fake_qp *peer, uint64_t seq, uint32_t bytes)
{
	const struct fake_send *wr = fake_send_at(qp, seq);
	void *block;

	if (bytes && !mr_reach(peer, wr->rkey, true, wr->remote_addr, wr->bytes,
			       IBV_ACCESS_REMOTE_WRITE, &block))
		fake_gather(qp, seq, block, bytes);
}

bool fake_ghost_land(struct fake_qp *peer, const struct fake_ghost *ghost)
{
	const struct fake_send *wr = &ghost->wr;
	void *block;

	if (peer->rq_next != ghost->psn ||
	    (takes_recv(wr->opcode) && peer->rq_taken == peer->rq_posted))
		return false;
	if (wr->bytes && mr_reach(peer, wr->rkey, true, wr->remote_addr, wr->bytes,
				  IBV_ACCESS_REMOTE_WRITE, &block))
		return false;
	if (wr->bytes)
		copy_bytes(block, ghost->data, wr->bytes);
	if (takes_recv(wr->opcode))
		take_recv(ghost->src_qpn, peer, wr);
	peer->rq_next = (peer->rq_next + ghost->packets) & 0xffffff;
	return true;
}

/* Steps */

uint64_t fake_random(void)
{
	uint64_t x = fake.random += 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* Calls the nth thing that can move; counts them when n is not among them. */
static uint64_t move_nth(uint64_t n, bool *moved)
{
	uint64_t count = 0;

	for (struct fake_qp *qp = fake.qps; qp; qp = qp->next) {
		if (can_land(qp) && count++ == n) {
			land(qp);
			*moved = true;
			return count;
		}
		if (can_ack(qp) && count++ == n) {
			ack_one(qp);
			*moved = true;
			return count;
		}
	}
	return count;
}

bool fake_step(void)
{
	bool moved = false;
	uint64_t count;

	fake_lock();
	fake_watch(NULL);
	count = move_nth(UINT64_MAX, &moved);
	if (count)
		move_nth(fake_random() % count, &moved);
	pthread_mutex_unlock(&fake.lock);
	return moved;
}

unsigned fake_run(void)
{
	unsigned steps = 0;

	while (fake_step())
		steps++;
	return steps;
}

/* Posting and polling */

static int send_check(const struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	bool is_inline = wr->send_flags & IBV_SEND_INLINE;
	uint32_t bytes;

	if (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_ERR)
		return EINVAL;
	if (qp->sq_posted - qp->sq_freed >= qp->cap.max_send_wr)
		return ENOMEM;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge)
		return EINVAL;
	bytes = sge_bytes(wr->sg_list, wr->num_sge);
	if (is_inline && (bytes > qp->cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ))
		return EINVAL;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return 0;
	default:
		return EOPNOTSUPP;
	}
}

static void send_store(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	struct fake_send *slot = fake_send_at(qp, qp->sq_posted);
	char *at = (char *)qp->inline_data +
		   qp->sq_posted % qp->cap.max_send_wr * qp->cap.max_inline_data;

	slot->wr_id = wr->wr_id;
	slot->opcode = wr->opcode;
	slot->flags = wr->send_flags;
	slot->imm = wr->imm_data;
	slot->remote_addr = wr->wr.rdma.remote_addr;
	slot->rkey = wr->wr.rdma.rkey;
	slot->bytes = sge_bytes(wr->sg_list, wr->num_sge);
	slot->sge_count = wr->num_sge;
	for (int i = 0; i < wr->num_sge; i++) {
		slot->sge[i] = wr->sg_list[i];
		if (wr->send_flags & IBV_SEND_INLINE) {
			memcpy(at, (const void *)(uintptr_t)wr->sg_list[i].addr,
			       wr->sg_list[i].length);
			at += wr->sg_list[i].length;
		}
	}
	qp->sq_posted++;
	fake.waiting++;
	fake.counts.send_wrs++;
	fake.counts.send_bytes += slot->bytes;
	qp->device->port[qp->port].bytes += slot->bytes;
}

int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	int rc = fake_enter("post_send");

	if (rc == 0 && wr)
		fake.counts.post_send_calls++;
	for (; wr && rc == 0; wr = wr->next) {
		rc = send_check(qp, wr);
		if (rc)
			break;
		send_store(qp, wr);
	}
	if (rc)
		*bad = wr;
	if (qp->ibv.state == IBV_QPS_ERR)
		fake_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
	else if (fake.config.delivery == FAKE_IMMEDIATE)
		advance(qp);
	fake_watch(qp);
	fake_leave();
	return rc;
}

static int recv_check(const struct fake_qp *qp, const struct ibv_recv_wr *wr)
{
	if (qp->ibv.state == IBV_QPS_RESET)
		return EINVAL;
	if (qp->rq_posted - qp->rq_freed >= qp->cap.max_recv_wr)
		return ENOMEM;
	return wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_recv_sge ? EINVAL : 0;
}

int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	int rc = fake_enter("post_recv");

	if (rc == 0 && wr)
		fake.counts.post_recv_calls++;
	for (; wr && rc == 0; wr = wr->next) {
		struct fake_recv *slot;

		rc = recv_check(qp, wr);
		if (rc)
			break;
		slot = recv_at(qp, qp->rq_posted++);
		slot->wr_id = wr->wr_id;
		slot->sge_count = wr->num_sge;
		for (int i = 0; i < wr->num_sge; i++)
			slot->sge[i] = wr->sg_list[i];
		fake.counts.recv_wrs++;
	}
	if (rc)
		*bad = wr;
	if (qp->ibv.state == IBV_QPS_ERR)
		fake_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
	fake_settle();
	fake_leave();
	return rc;
}

int fake_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc)
{
	struct fake_cq *cq = fake_cq_of(ibv);
	int rc = fake_enter("poll_cq");
	int found = 0;

	if (rc) {
		fake_leave();
		return -rc;
	}
	fake_watch(NULL);
	for (; found < n && cq->tail < cq->head; found++) {
		const struct fake_cqe *cqe = &cq->ring[cq->tail++ % (uint64_t)cq->ibv.cqe];

		wc[found] = cqe->wc;
		if (cqe->qp && cqe->is_send)
			cqe->qp->sq_freed = cqe->seq;
		else if (cqe->qp)
			cqe->qp->rq_freed = cqe->seq;
	}
	fake.counts.poll_calls++;
	fake.counts.poll_empty += found == 0;
	fake.counts.cqes += (uint64_t)found;
	fake_leave();
	return found;
}
