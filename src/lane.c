/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lane.c - verbs commands of one queue pair.
 */
#include "lane.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "config.h"
#include "util.h"

enum { HOP_LIMIT = 255, RNR_TIMER = 12, RNR_RETRY_ENDLESS = 7, PSN_MASK = 0xffffff };

uint32_t lane_psn(void)
{
	uint32_t psn;

	if (getrandom(&psn, sizeof(psn), GRND_NONBLOCK) != (ssize_t)sizeof(psn)) {
		psn = (uint32_t)hash_u64(now_ns());
	}
	return psn & PSN_MASK;
}

/* Tries again as NCCL_IB_MQP_RETRY_* say, if `patient`: a later generation has its own retries. */
static int modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, bool patient)
{
	int rc = verbs.modify_qp(qp, attr, mask);

	for (int64_t i = 1; patient && i <= config.ib_mqp_retry_cnt && rc != 0; i++) {
		struct timespec pause = { 0 };
		int64_t ms = i * config.ib_mqp_retry_sleep_msec;

		if (rc != -ETIMEDOUT && !config.ib_mqp_retry_all) {
			break;
		}
		pause.tv_sec = ms / 1000;
		pause.tv_nsec = ms % 1000 * 1000000;
		nanosleep(&pause, NULL);
		rc = verbs.modify_qp(qp, attr, mask);
	}
	return rc;
}

static int qp_to_init(struct ibv_qp *qp, const struct port *port, int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = (uint16_t)config.ib_pkey,
		.port_num = port->num,
		.qp_access_flags = (unsigned int)access,
	};

	return modify(qp, &attr,
		      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, true);
}

static int cq_depth(const struct comm_port *p, int lanes)
{
	/* Two generations of what one lane can have outstanding, and flushes. */
	int depth = 2 * lanes * (CORE_WR_RING + CORE_ANNOUNCE_SIGNALS) + FLUSH_REQUESTS;

	return depth < p->port->attr.max_cqe || p->port->attr.max_cqe == 0 ? depth :
									      p->port->attr.max_cqe;
}

int lane_port_make(struct comm *c, struct comm_port *p, int lanes)
{
	void *start;
	size_t bytes;
	int rc;

	p->step = "ibv_alloc_pd";
	rc = port_pd_get(p->port, &p->pd);
	if (rc != 0) {
		return rc;
	}
	p->step = "ibv_create_cq";
	rc = verbs.create_cq(p->port->ctx, cq_depth(p, lanes), c, &p->cq);
	if (rc != 0) {
		return rc;
	}
	comm_ring_range(c, &start, &bytes);
	p->step = "ibv_reg_mr of the ring";
	return verbs.reg_mr(p->pd, start, bytes, (uintptr_t)start,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &p->ring_mr);
}

int lane_qp_create(struct comm *c, const struct comm_port *p, struct ibv_qp **out)
{
	bool sender = c->kind == COMM_SEND;
	struct ibv_qp_init_attr attr = {
		.qp_context = c,
		.send_cq = p->cq,
		.recv_cq = p->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = CORE_SQ_WRS,
			.max_recv_wr = sender ? 0 : CORE_RQ_WRS,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = c->inline_cts ? sizeof(struct core_cts) : 0,
		},
	};

	return verbs.create_qp(p->pd, &attr, out);
}

int lane_qp_init(struct ibv_qp *qp, const struct port *port)
{
	return qp_to_init(qp, port, IBV_ACCESS_REMOTE_WRITE);
}

static void ah_fill(const struct comm *c, const struct comm_port *p,
		    const struct port_address *from, const struct wire_lane_address *to,
		    struct ibv_ah_attr *ah)
{
	uint8_t tc = c->traffic_class;

	if (c->kind == COMM_RECV && config.ib_fifo_tc >= 0) {
		tc = (uint8_t)config.ib_fifo_tc;
	}
	ah->port_num = p->port->num;
	ah->sl = c->service_level;
	ah->dlid = to->lid;
	/* RoCE always has a GRH; InfiniBand needs one across subnets. */
	if (from->link_layer == IBV_LINK_LAYER_ETHERNET ||
	    memcmp(to->gid, from->gid.raw, 8) != 0) {
		ah->is_global = 1;
		memcpy(ah->grh.dgid.raw, to->gid, sizeof(to->gid));
		ah->grh.sgid_index = (uint8_t)from->gid_index;
		ah->grh.hop_limit = HOP_LIMIT;
		ah->grh.traffic_class = tc;
	}
}

static int qp_to_rts(struct ibv_qp *qp, struct ibv_ah_attr *ah, enum ibv_mtu mtu, uint32_t qpn,
		     uint32_t rq_psn, uint32_t sq_psn, bool patient)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = qpn,
		.rq_psn = rq_psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = *ah,
	};
	int rc = modify(qp, &attr,
			IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
			patient);

	if (rc != 0) {
		return rc;
	}
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = (uint8_t)config.ib_timeout;
	attr.retry_cnt = (uint8_t)config.ib_retry_cnt;
	attr.rnr_retry = RNR_RETRY_ENDLESS;
	attr.sq_psn = sq_psn;
	attr.max_rd_atomic = 1;
	return modify(qp, &attr,
		      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
		      patient);
}

int lane_qp_connect(const struct comm *c, const struct comm_port *p, struct ibv_qp *qp,
		    const struct port_address *from, uint32_t psn,
		    const struct wire_lane_address *to, bool patient)
{
	struct ibv_ah_attr ah = { 0 };
	enum ibv_mtu mtu = to->mtu < from->mtu ? (enum ibv_mtu)to->mtu : from->mtu;

	ah_fill(c, p, from, to, &ah);
	return qp_to_rts(qp, &ah, mtu, to->qpn, to->psn, psn, patient);
}

int lane_recv_post(struct recv_comm *c, int lane, struct ibv_qp *qp, uint32_t generation)
{
	struct ibv_recv_wr *chain = c->refill[lane];
	int rc = 0;

	for (int i = 0; i < CORE_RQ_BATCH; i++) {
		memset(&chain[i], 0, sizeof(chain[i]));
		chain[i].wr_id = wr_id_make(WR_RECV, (uint32_t)lane, 0, generation);
		chain[i].next = i + 1 < CORE_RQ_BATCH ? &chain[i + 1] : NULL;
	}
	for (int i = 0; i < CORE_RQ_WRS / CORE_RQ_BATCH && rc == 0; i++) {
		rc = verbs_post_recv(qp, chain);
	}
	return rc;
}

static int flush_connect(const struct comm *c, const struct comm_port *p, struct ibv_qp *qp,
			 const struct port_address *from)
{
	struct wire_lane_address self = { .qpn = qp->qp_num, .lid = from->lid };
	struct ibv_ah_attr ah = { 0 };
	int rc = qp_to_init(qp, p->port, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE);

	if (rc != 0) {
		return rc;
	}
	memcpy(self.gid, from->gid.raw, sizeof(self.gid));
	ah_fill(c, p, from, &self, &ah);
	return qp_to_rts(qp, &ah, from->mtu, qp->qp_num, 0, 0, true);
}

int lane_flush_make(struct comm *c, const struct comm_port *p, const struct port_address *from,
		    struct ibv_qp **out)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = c,
		.send_cq = p->cq,
		.recv_cq = p->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = FLUSH_REQUESTS, .max_send_sge = 1 },
	};
	struct ibv_qp *qp;
	int rc = verbs.create_qp(p->pd, &attr, &qp);

	if (rc != 0) {
		return rc;
	}
	rc = flush_connect(c, p, qp, from);
	if (rc != 0) {
		(void)verbs.destroy_qp(qp);
		return rc;
	}
	*out = qp;
	return 0;
}

/*
 * A sender's lane writes pieces with an immediate, a receiver's writes records of its staging ring.
 */
void lane_template(struct comm *c, uint32_t i)
{
	const struct comm_port *port = &c->port[c->lane[i].port];
	struct comm_lane *lane = &c->lane[i];

	memset(&lane->wr, 0, sizeof(lane->wr));
	lane->wr.sg_list = &lane->sge;
	lane->wr.num_sge = 1;
	if (c->kind == COMM_SEND) {
		lane->data_id = wr_id_make(WR_DATA, i, 0, lane->generation);
		lane->wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		lane->wr.send_flags = IBV_SEND_SIGNALED;
	} else {
		lane->wr.wr_id = wr_id_make(WR_CTS, i, 0, lane->generation);
		lane->wr.opcode = IBV_WR_RDMA_WRITE;
		lane->wr.send_flags = c->inline_cts ? IBV_SEND_INLINE : 0;
		lane->wr.wr.rdma.rkey = c->peer_port[lane->remote].ring_rkey;
		lane->sge.lkey = port->ring_mr->lkey;
	}
}
