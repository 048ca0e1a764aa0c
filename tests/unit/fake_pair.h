/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fake_pair.h - two connected queue pairs over devices in memory, for tests of the fake itself: end
 * a on port 1 of device 0, end b on port 2 of device 1.
 */
#ifndef RAILYARD_UNIT_FAKE_PAIR_H
#define RAILYARD_UNIT_FAKE_PAIR_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>

#include "fake_verbs.h"

enum {
	BYTES = 4096,
	DEPTH = 8,
	PSN_A = 0x123456,
	PSN_B = 0x00abcd
};

/* One end of a connection: everything that a QP needs. */
struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	int port;
	union ibv_gid gid;
	char buffer[BYTES] __attribute__((aligned(64)));
};

static struct end a, b;

static inline void end_open(struct end *end, int device, int port)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = DEPTH,
						.max_recv_wr = DEPTH,
						.max_send_sge = 1,
						.max_recv_sge = 1,
						.max_inline_data = 64}};
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_device **list;
	int count;

	cr_assert_eq(verbs.get_device_list(&list, &count), 0);
	cr_assert_lt(device, count);
	cr_assert_eq(verbs.open_device(list[device], &end->ctx), 0);
	verbs.free_device_list(list);
	cr_assert_eq(verbs.alloc_pd(end->ctx, &end->pd), 0);
	cr_assert_eq(verbs.create_cq(end->ctx, 4 * DEPTH, NULL, &end->cq), 0);
	init.send_cq = init.recv_cq = end->cq;
	cr_assert_eq(verbs.create_qp(end->pd, &init, &end->qp), 0);
	cr_assert_eq(
		verbs.reg_mr(end->pd, end->buffer, BYTES, (uintptr_t)end->buffer, access, &end->mr),
		0);
	end->port = port;
	cr_assert_eq(verbs.query_gid(end->ctx, (uint8_t)port, FAKE_GID_INDEX_IPV4_V2, &end->gid),
		     0);
}

static inline void end_close(struct end *end)
{
	cr_assert_eq(verbs.destroy_qp(end->qp), 0);
	cr_assert_eq(verbs.dereg_mr(end->mr), 0);
	cr_assert_eq(verbs.destroy_cq(end->cq), 0);
	cr_assert_eq(verbs.dealloc_pd(end->pd), 0);
	cr_assert_eq(verbs.close_device(end->ctx), 0);
}

static inline void end_init(struct end *end)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = (uint8_t)end->port,
				   .qp_access_flags =
					   IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};

	cr_assert_eq(verbs.modify_qp(end->qp, &attr,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					     IBV_QP_ACCESS_FLAGS),
		     0);
}

static inline struct ibv_qp_attr rtr_attr(const struct end *end, const struct end *peer,
					  uint32_t psn)
{
	return (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
				    .path_mtu = IBV_MTU_1024,
				    .rq_psn = psn,
				    .dest_qp_num = peer->qp->qp_num,
				    .max_dest_rd_atomic = 1,
				    .min_rnr_timer = 12,
				    .ah_attr = {.is_global = 1,
						.port_num = (uint8_t)end->port,
						.grh = {.dgid = peer->gid,
							.sgid_index = FAKE_GID_INDEX_IPV4_V2,
							.hop_limit = 255}}};
}

enum {
	RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RTS_MASK = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
};

static inline void end_connect(struct end *end, const struct end *peer, uint32_t sq_psn,
			       uint32_t rq_psn)
{
	struct ibv_qp_attr rtr = rtr_attr(end, peer, rq_psn);
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .sq_psn = sq_psn,
				  .timeout = 14,
				  .retry_cnt = 7,
				  .rnr_retry = 7,
				  .max_rd_atomic = 1};

	end_init(end);
	cr_assert_eq(verbs.modify_qp(end->qp, &rtr, RTR_MASK), 0);
	cr_assert_eq(verbs.modify_qp(end->qp, &rts, RTS_MASK), 0);
}

static inline void pair_open(struct fake_config setup)
{
	setup.device_count = 2;
	setup.port_count = 2;
	verbs = fake_verbs_ops;
	fake_init(&setup);
	end_open(&a, 0, 1);
	end_open(&b, 1, 2);
	end_connect(&a, &b, PSN_A, PSN_B);
	end_connect(&b, &a, PSN_B, PSN_A);
}

static inline void pair_close(void)
{
	char text[128];

	end_close(&a);
	end_close(&b);
	cr_assert_eq(fake_leaks(text, sizeof(text)), 0, "%s", text);
	cr_assert_null(fake_fault(), "%s", fake_fault());
}

static inline int send_wr(struct end *from, struct end *to, enum ibv_wr_opcode opcode,
			  uint32_t offset, uint32_t bytes, uint64_t id, unsigned flags)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)from->buffer + offset, .length = bytes, .lkey = from->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = opcode,
				 .send_flags = flags,
				 .imm_data = htonl((uint32_t)id)};

	wr.wr.rdma.remote_addr = (uintptr_t)to->buffer + offset;
	wr.wr.rdma.rkey = to->mr->rkey;
	return verbs_post_send(from->qp, &wr);
}

static inline int recv_wr(struct end *end, uint64_t id)
{
	struct ibv_recv_wr wr = {.wr_id = id};

	return verbs_post_recv(end->qp, &wr);
}

static inline struct ibv_wc poll_one(struct end *end)
{
	struct ibv_wc wc;

	cr_assert_eq(verbs_poll_cq(end->cq, 1, &wc), 1);
	return wc;
}

static inline void poll_none(struct end *end)
{
	struct ibv_wc wc;

	cr_assert_eq(verbs_poll_cq(end->cq, 1, &wc), 0);
}

#endif
