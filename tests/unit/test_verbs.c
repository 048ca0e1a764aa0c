/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_verbs.c - the loader of src/verbs.c, and the fake that other tests stand on.
 *
 * The fake is judged by the rules of RC that the plugin leans on: what lands and when, in which
 * order, what a wrong key, a missing receive or a dead QP does.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>

#include "config.h"
#include "fake_pair.h"

/* The loader */

Test(verbs, a_missing_library_gives_one_line_and_no_table)
{
	struct ibv_device **list = NULL;
	char why[256] = "";
	int count = -1;

	config.ibverbs_lib = "/nonexistent/libibverbs.so";
	cr_assert_eq(verbs_load(why, sizeof(why)), -ENOENT);
	cr_assert_not_null(strstr(why, "/nonexistent/libibverbs.so"));
	cr_assert_not_null(strstr(why, "NCCL_IBVERBS_LIB"));
	cr_assert_eq(verbs.get_device_list(&list, &count), -EOPNOTSUPP);
	cr_assert_null(list);
	cr_assert_eq(count, -1);
}

Test(verbs, a_library_without_verbs_is_refused_by_name)
{
	char why[256] = "";

	config.ibverbs_lib = "libm.so.6";
	cr_assert_eq(verbs_load(why, sizeof(why)), -ENOENT);
	cr_assert_not_null(strstr(why, "libm.so.6 has no ibv_"));
}

Test(verbs, a_table_filled_by_a_test_is_left_alone)
{
	char why[256] = "";

	config.ibverbs_lib = "/nonexistent/libibverbs.so";
	verbs = fake_verbs_ops;
	cr_assert_eq(verbs_load(why, sizeof(why)), 0);
	cr_assert_eq(verbs.reg_mr, fake_verbs_ops.reg_mr);
}

Test(verbs, calls_of_a_loaded_library_return_errno_negated)
{
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_port_attr attr;
	struct ibv_qp_init_attr bad = {.qp_type = IBV_QPT_UD};
	struct ibv_async_event event;
	struct ibv_ece ece;
	struct ibv_qp *qp = NULL;
	struct ibv_pd *pd;
	struct ibv_cq *cq = NULL;
	struct ibv_mr *mr = NULL;
	union ibv_gid gid;
	char why[256] = "", buffer[64];
	uint64_t mbps = 7;
	int count;

	config.ibverbs_lib = FAKE_LIBRARY;
	cr_assert_eq(verbs_load(why, sizeof(why)), 0, "%s", why);
	cr_assert_eq(verbs_load(why, sizeof(why)), 0);
	cr_assert_eq(verbs.get_device_list(&list, &count), 0);
	cr_assert_eq(count, 1);
	cr_assert_str_eq(verbs.get_device_name(list[0]), "fake0");
	cr_assert_eq(verbs.open_device(list[0], &ctx), 0);
	verbs.free_device_list(list);

	memset(&attr, 0xff, sizeof(attr));
	cr_assert_eq(verbs.query_port(ctx, 9, &attr), -EINVAL);
	cr_assert_eq(attr.lid, 0xffff, "an output is set only on success");
	cr_assert_eq(verbs.query_port(ctx, 1, &attr), 0);
	cr_assert_eq(attr.state, IBV_PORT_ACTIVE);
	cr_assert_eq(attr.port_cap_flags2, 0, "what the library does not fill is zero");
	cr_assert_eq(verbs.query_port_speed(ctx, 1, &mbps), -EOPNOTSUPP);
	cr_assert_eq(mbps, 7);
	cr_assert_eq(verbs.query_gid(ctx, 1, 99, &gid), -EINVAL);
	cr_assert_eq(verbs.query_gid_version(ctx, 1, FAKE_GID_INDEX_IPV4_V2), 2);
	cr_assert_eq(verbs.query_gid_version(ctx, 1, FAKE_GID_INDEX_IPV4_V2 - 1), 1);
	cr_assert_eq(verbs.query_gid_version(ctx, 1, FAKE_GIDS - 1), -ENOENT);

	cr_assert_eq(verbs.alloc_pd(ctx, &pd), 0);
	cr_assert_eq(verbs.create_cq(ctx, 0, NULL, &cq), -EINVAL);
	cr_assert_null(cq);
	cr_assert_eq(verbs.create_qp(pd, &bad, &qp), -EINVAL);
	cr_assert_eq(verbs.reg_mr(pd, buffer, 0, (uintptr_t)buffer, 0, &mr), -EINVAL);
	cr_assert_null(mr);
	cr_assert_eq(verbs.reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0, &mr), -EOPNOTSUPP);
	cr_assert_eq(verbs.query_ece(qp, &ece), -EOPNOTSUPP, "the library has no such symbol");
	cr_assert_eq(verbs.supports_iova2(), 1);
	cr_assert_eq(fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK), 0);
	cr_assert_eq(verbs.get_async_event(ctx, &event), -EAGAIN);
	cr_assert_eq(verbs.close_device(ctx), -EBUSY);
	cr_assert_eq(verbs.dealloc_pd(pd), 0);
	cr_assert_eq(verbs.close_device(ctx), 0);
}

/* The fake */

Test(fake, a_write_lands_with_its_immediate_and_completes)
{
	struct ibv_wc wc;

	pair_open((struct fake_config){0});
	cr_assert_eq(recv_wr(&b, 70), 0);
	strcpy(a.buffer, "by the first rail");
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 32, 9, IBV_SEND_SIGNALED), 0);
	cr_assert_str_eq(b.buffer, "by the first rail");
	wc = poll_one(&a);
	cr_assert_eq(wc.wr_id, 9);
	cr_assert_eq(wc.status, IBV_WC_SUCCESS);
	cr_assert_eq(wc.opcode, IBV_WC_RDMA_WRITE);
	cr_assert_eq(wc.qp_num, a.qp->qp_num);
	wc = poll_one(&b);
	cr_assert_eq(wc.wr_id, 70);
	cr_assert_eq(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	cr_assert_eq(wc.byte_len, 32);
	cr_assert_eq(ntohl(wc.imm_data), 9);
	poll_none(&a);
	poll_none(&b);
	pair_close();
}

Test(fake, a_plain_write_takes_no_receive_and_an_unsignaled_one_no_completion)
{
	pair_open((struct fake_config){0});
	a.buffer[5] = 'x';
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 5, 1, 1, 0), 0);
	cr_assert_eq(b.buffer[5], 'x');
	poll_none(&a);
	poll_none(&b);
	pair_close();
}

Test(fake, inline_data_is_taken_at_post_time_and_other_data_at_landing)
{
	pair_open((struct fake_config){.delivery = FAKE_QUEUED});
	memcpy(a.buffer, "AAAAAAAABBBBBBBB", 16);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 1, IBV_SEND_INLINE), 0);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 8, 8, 2, 0), 0);
	memset(a.buffer, 'z', 16);
	fake_run();
	cr_assert_eq(memcmp(b.buffer, "AAAAAAAAzzzzzzzz", 16), 0);
	pair_close();
}

Test(fake, a_read_brings_the_far_bytes_and_loopback_works)
{
	verbs = fake_verbs_ops;
	fake_init(&(struct fake_config){.device_count = 1});
	end_open(&a, 0, 1);
	end_open(&b, 0, 1);
	end_connect(&a, &b, PSN_A, PSN_B);
	end_connect(&b, &a, PSN_B, PSN_A);
	strcpy(b.buffer, "flushed");
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_READ, 0, 16, 3, IBV_SEND_SIGNALED), 0);
	cr_assert_str_eq(a.buffer, "flushed");
	cr_assert_eq(poll_one(&a).opcode, IBV_WC_RDMA_READ);
	pair_close();
}

Test(fake, a_send_fills_the_receive_buffer)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = {.wr_id = 4, .sg_list = &sge, .num_sge = 1};
	struct ibv_wc wc;

	pair_open((struct fake_config){0});
	sge = (struct ibv_sge){.addr = (uintptr_t)b.buffer + 100, .length = 64, .lkey = b.mr->lkey};
	cr_assert_eq(verbs_post_recv(b.qp, &wr), 0);
	strcpy(a.buffer, "hello");
	cr_assert_eq(send_wr(&a, &b, IBV_WR_SEND, 0, 6, 1, IBV_SEND_INLINE), 0);
	wc = poll_one(&b);
	cr_assert_eq(wc.opcode, IBV_WC_RECV);
	cr_assert_eq(wc.byte_len, 6);
	cr_assert_str_eq(b.buffer + 100, "hello");
	pair_close();
}

struct key_case {
	const char *what, *fault;
	int64_t addr, bytes;
	bool bad_lkey, bad_rkey, swap_keys;
	enum ibv_wc_status status;
};

Test(fake, wrong_keys_and_bounds_fail_both_ends_and_move_nothing)
{
	static const struct key_case cases[] = {
		{"past the end", "outside", BYTES - 4, 8, false, false, false,
		 IBV_WC_REM_ACCESS_ERR},
		{"before the start", "outside", -8, 8, false, false, false, IBV_WC_REM_ACCESS_ERR},
		{"unknown rkey", "no such key", 0, 8, false, true, false, IBV_WC_REM_ACCESS_ERR},
		{"lkey as rkey", "the other kind", 0, 8, false, false, true, IBV_WC_REM_ACCESS_ERR},
		{"unknown lkey", "no such key", 0, 8, true, false, false, IBV_WC_LOC_PROT_ERR},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct key_case *c = &cases[i];
		struct ibv_send_wr wr = {.wr_id = i, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
		struct ibv_sge sge;

		pair_open((struct fake_config){0});
		memset(a.buffer, 1, BYTES);
		memset(b.buffer, 0, BYTES);
		sge = (struct ibv_sge){.addr = (uintptr_t)a.buffer,
				       .length = (uint32_t)c->bytes,
				       .lkey = a.mr->lkey + (c->bad_lkey ? 0x100000 : 0)};
		wr.sg_list = &sge;
		wr.wr.rdma.remote_addr = (uintptr_t)b.buffer + (uint64_t)c->addr;
		wr.wr.rdma.rkey =
			c->swap_keys ? b.mr->lkey : b.mr->rkey + (c->bad_rkey ? 0x100000 : 0);
		cr_assert_eq(verbs_post_send(a.qp, &wr), 0);
		cr_assert_eq(poll_one(&a).status, c->status, "%s", c->what);
		cr_assert_eq(b.qp->state == IBV_QPS_ERR, c->status == IBV_WC_REM_ACCESS_ERR, "%s",
			     c->what);
		cr_assert_eq(a.qp->state, IBV_QPS_ERR);
		for (int j = 0; j < BYTES; j++)
			cr_assert_eq(b.buffer[j], 0, "%s", c->what);
		cr_assert_not_null(fake_fault());
		cr_assert_not_null(strstr(fake_fault(), c->fault), "%s: %s", c->what, fake_fault());
		fake_fault_clear();
		pair_close();
	}
}

Test(fake, a_key_dies_with_its_region)
{
	uint32_t old;

	pair_open((struct fake_config){0});
	old = b.mr->rkey;
	cr_assert_eq(verbs.dereg_mr(b.mr), 0);
	cr_assert_eq(verbs.reg_mr(b.pd, b.buffer, BYTES, (uintptr_t)b.buffer,
				  IBV_ACCESS_LOCAL_WRITE, &b.mr),
		     0);
	cr_assert_neq(b.mr->rkey, old);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 1, 0), 0);
	cr_assert_eq(poll_one(&a).status, IBV_WC_REM_ACCESS_ERR);
	cr_assert_not_null(strstr(fake_fault(), "does not allow"), "%s", fake_fault());
	fake_fault_clear();
	pair_close();
}

Test(fake, an_immediate_without_a_receive_is_a_fault_by_default)
{
	pair_open((struct fake_config){0});
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, 1, 0), 0);
	cr_assert_eq(poll_one(&a).status, IBV_WC_RNR_RETRY_EXC_ERR);
	cr_assert_not_null(strstr(fake_fault(), "no receive WR"));
	fake_fault_clear();
	pair_close();
}

Test(fake, an_immediate_waits_for_a_receive_where_rnr_retry_is_endless)
{
	pair_open((struct fake_config){.rnr = FAKE_RNR_WAIT});
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, 1, IBV_SEND_SIGNALED), 0);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 8, 8, 2, IBV_SEND_SIGNALED), 0);
	poll_none(&a);
	cr_assert_eq(recv_wr(&b, 5), 0);
	cr_assert_eq(poll_one(&b).wr_id, 5);
	cr_assert_eq(poll_one(&a).wr_id, 1);
	cr_assert_eq(poll_one(&a).wr_id, 2);
	pair_close();
}

/* Two QPs from a to b, in steps: each in order, the pair of them in every order over the seeds. */
Test(fake, queued_delivery_keeps_order_in_a_qp_and_not_between_qps)
{
	bool a_first = false, b_first = false;

	for (uint64_t seed = 0; seed < 64; seed++) {
		int last_a = 0, last_b = 0;
		bool any = false;

		pair_open((struct fake_config){.delivery = FAKE_QUEUED, .seed = seed});
		for (uint64_t id = 1; id <= 4; id++) {
			cr_assert_eq(recv_wr(&a, id), 0);
			cr_assert_eq(recv_wr(&b, id), 0);
			cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, id, 0), 0);
			cr_assert_eq(send_wr(&b, &a, IBV_WR_RDMA_WRITE_WITH_IMM, 64, 8, id, 0), 0);
		}
		poll_none(&a);
		while (fake_step()) {
			struct ibv_wc wc;

			if (verbs_poll_cq(a.cq, 1, &wc) == 1) {
				cr_assert_eq((int)ntohl(wc.imm_data), ++last_a);
				b_first |= !any;
				any = true;
			}
			if (verbs_poll_cq(b.cq, 1, &wc) == 1) {
				cr_assert_eq((int)ntohl(wc.imm_data), ++last_b);
				a_first |= !any;
				any = true;
			}
		}
		cr_assert_eq(last_a, 4);
		cr_assert_eq(last_b, 4);
		pair_close();
	}
	cr_assert(a_first && b_first, "the seed decides which QP goes first");
}

Test(fake, the_same_seed_gives_the_same_order)
{
	char order[2][64] = {"", ""};

	for (int run = 0; run < 2; run++) {
		pair_open((struct fake_config){.delivery = FAKE_QUEUED, .seed = 7});
		for (uint64_t id = 1; id <= 8; id++) {
			cr_assert_eq(
				send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, id, IBV_SEND_SIGNALED), 0);
			cr_assert_eq(
				send_wr(&b, &a, IBV_WR_RDMA_WRITE, 64, 8, id, IBV_SEND_SIGNALED),
				0);
		}
		while (fake_step()) {
			struct ibv_wc wc;

			strcat(order[run], verbs_poll_cq(a.cq, 1, &wc) == 1   ? "a"
					   : verbs_poll_cq(b.cq, 1, &wc) == 1 ? "b"
									      : "-");
		}
		pair_close();
	}
	cr_assert_eq(strlen(order[0]), 32);
	cr_assert_str_eq(order[0], order[1]);
}

Test(fake, landing_and_completion_are_separate_steps)
{
	pair_open((struct fake_config){.delivery = FAKE_QUEUED});
	a.buffer[0] = 'y';
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 1, 1, IBV_SEND_SIGNALED), 0);
	cr_assert(fake_step());
	cr_assert_eq(b.buffer[0], 'y');
	poll_none(&a);
	fake_port_lose(1, 2, FAKE_CUT);
	cr_assert_not(fake_step(), "the ack does not pass a cut");
	fake_retry_exceeded(0, 1);
	cr_assert_eq(poll_one(&a).status, IBV_WC_RETRY_EXC_ERR,
		     "landed, and the sender cannot know");
	pair_close();
}

Test(fake, going_to_err_flushes_what_is_posted_and_what_comes_after)
{
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	struct ibv_wc wc;

	pair_open((struct fake_config){.delivery = FAKE_QUEUED});
	cr_assert_eq(recv_wr(&a, 50), 0);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 1, 0), 0);
	cr_assert_eq(verbs.modify_qp(a.qp, &err, IBV_QP_STATE), 0);
	wc = poll_one(&a);
	cr_assert_eq(wc.wr_id, 1);
	cr_assert_eq(wc.status, IBV_WC_WR_FLUSH_ERR);
	cr_assert_eq(wc.qp_num, a.qp->qp_num);
	cr_assert_eq(poll_one(&a).wr_id, 50);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 2, 0), 0);
	cr_assert_eq(recv_wr(&a, 51), 0);
	cr_assert_eq(poll_one(&a).wr_id, 2);
	cr_assert_eq(poll_one(&a).wr_id, 51);
	poll_none(&a);
	pair_close();
}

Test(fake, a_down_port_stops_both_directions_tells_and_comes_back)
{
	struct ibv_async_event event;
	struct ibv_port_attr attr;

	pair_open((struct fake_config){0});
	fake_port_set(1, 2, false);
	cr_assert_eq(verbs.query_port(b.ctx, 2, &attr), 0);
	cr_assert_eq(attr.state, IBV_PORT_DOWN);
	cr_assert_eq(verbs.get_async_event(b.ctx, &event), 0);
	cr_assert_eq(event.event_type, IBV_EVENT_PORT_ERR);
	cr_assert_eq(event.element.port_num, 2);
	verbs.ack_async_event(&event);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 1, IBV_SEND_SIGNALED), 0);
	cr_assert_eq(send_wr(&b, &a, IBV_WR_RDMA_WRITE, 64, 8, 2, IBV_SEND_SIGNALED), 0);
	poll_none(&a);
	poll_none(&b);
	fake_port_set(1, 2, true);
	cr_assert_eq(poll_one(&a).status, IBV_WC_SUCCESS);
	cr_assert_eq(poll_one(&b).status, IBV_WC_SUCCESS);
	cr_assert_eq(verbs.get_async_event(b.ctx, &event), 0);
	cr_assert_eq(event.event_type, IBV_EVENT_PORT_ACTIVE);
	pair_close();
}

Test(fake, a_slot_is_free_only_once_a_completion_is_polled)
{
	struct ibv_wc wc;

	pair_open((struct fake_config){0});
	for (uint64_t id = 0; id < DEPTH; id++)
		cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, id,
				     id == DEPTH - 1 ? IBV_SEND_SIGNALED : 0),
			     0);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 99, 0), -ENOMEM);
	wc = poll_one(&a);
	cr_assert_eq(wc.wr_id, DEPTH - 1);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 99, 0), 0);
	for (uint64_t id = 0; id < DEPTH; id++)
		cr_assert_eq(recv_wr(&b, id), 0);
	cr_assert_eq(recv_wr(&b, 99), -ENOMEM);
	pair_close();
}

Test(fake, an_overrun_cq_is_a_fault_and_an_event)
{
	struct ibv_async_event event;
	struct ibv_wc wc;

	pair_open((struct fake_config){.rnr = FAKE_RNR_WAIT});
	cr_assert_eq(verbs.destroy_qp(a.qp), 0);
	cr_assert_eq(verbs.destroy_cq(a.cq), 0);
	cr_assert_eq(verbs.create_cq(a.ctx, 2, NULL, &a.cq), 0);
	a.qp = NULL;
	cr_assert_eq(verbs.create_qp(a.pd,
				     &(struct ibv_qp_init_attr){
					     .qp_type = IBV_QPT_RC,
					     .send_cq = a.cq,
					     .recv_cq = a.cq,
					     .sq_sig_all = 1,
					     .cap = {.max_send_wr = 8, .max_send_sge = 1}},
				     &a.qp),
		     0);
	cr_assert_eq(verbs.destroy_qp(b.qp), 0);
	cr_assert_eq(verbs.create_qp(b.pd,
				     &(struct ibv_qp_init_attr){
					     .qp_type = IBV_QPT_RC,
					     .send_cq = b.cq,
					     .recv_cq = b.cq,
					     .cap = {.max_recv_wr = 8, .max_recv_sge = 1}},
				     &b.qp),
		     0);
	end_connect(&a, &b, PSN_A, PSN_B);
	end_connect(&b, &a, PSN_B, PSN_A);
	for (uint64_t id = 0; id < 3; id++)
		cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, id, 0), 0);
	cr_assert_not_null(strstr(fake_fault(), "overran"));
	cr_assert_eq(verbs.get_async_event(a.ctx, &event), 0);
	cr_assert_eq(event.event_type, IBV_EVENT_CQ_ERR);
	verbs.ack_async_event(&event);
	cr_assert_eq(verbs_poll_cq(a.cq, 1, &wc), 1);
	fake_fault_clear();
	pair_close();
}

Test(fake, the_state_machine_wants_every_attribute_in_order)
{
	struct ibv_qp_attr attr;

	verbs = fake_verbs_ops;
	fake_init(&(struct fake_config){.mtu = IBV_MTU_1024});
	end_open(&a, 0, 1);
	end_open(&b, 0, 1);
	attr = rtr_attr(&a, &b, PSN_A);
	cr_assert_eq(verbs.modify_qp(a.qp, &attr, RTR_MASK), -EINVAL, "RESET to RTR");
	end_init(&a);
	cr_assert_eq(verbs.modify_qp(a.qp, &attr, RTR_MASK & ~IBV_QP_RQ_PSN), -EINVAL);
	attr.path_mtu = IBV_MTU_2048;
	cr_assert_eq(verbs.modify_qp(a.qp, &attr, RTR_MASK), -EINVAL, "MTU above the port's");
	attr.path_mtu = IBV_MTU_1024;
	attr.ah_attr.is_global = 0;
	cr_assert_eq(verbs.modify_qp(a.qp, &attr, RTR_MASK), -EINVAL, "RoCE without GRH");
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.sgid_index = FAKE_GIDS - 1;
	cr_assert_eq(verbs.modify_qp(a.qp, &attr, RTR_MASK), -EINVAL, "an empty GID");
	attr.ah_attr.grh.sgid_index = FAKE_GID_INDEX_IPV4_V2;
	cr_assert_eq(verbs.modify_qp(a.qp, &attr, RTR_MASK), 0);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 1, 0), -EINVAL, "not yet RTS");
	pair_close();
}

Test(fake, a_packet_of_another_psn_or_qp_does_not_fit)
{
	verbs = fake_verbs_ops;
	fake_init(&(struct fake_config){.device_count = 1});
	end_open(&a, 0, 1);
	end_open(&b, 0, 1);
	end_connect(&a, &b, PSN_A, PSN_B);
	end_connect(&b, &a, PSN_B, PSN_A + 1);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 1, IBV_SEND_SIGNALED), 0);
	poll_none(&a);
	cr_assert_not_null(strstr(fake_fault(), "PSN"));
	fake_fault_clear();
	pair_close();
}

Test(fake, completions_outlive_their_qp_unless_the_device_cleans)
{
	for (int cleans = 0; cleans < 2; cleans++) {
		struct ibv_wc wc;
		uint32_t qpn;

		pair_open((struct fake_config){.destroy_cleans_cq = cleans});
		cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 3, IBV_SEND_SIGNALED), 0);
		qpn = a.qp->qp_num;
		cr_assert_eq(verbs.destroy_qp(a.qp), 0);
		cr_assert_eq(verbs_poll_cq(a.cq, 1, &wc), cleans ? 0 : 1);
		if (!cleans)
			cr_assert_eq(wc.qp_num, qpn);
		cr_assert_eq(verbs.create_qp(a.pd,
					     &(struct ibv_qp_init_attr){.qp_type = IBV_QPT_RC,
									.send_cq = a.cq,
									.recv_cq = a.cq},
					     &a.qp),
			     0);
		cr_assert_neq(a.qp->qp_num, qpn);
		pair_close();
	}
}

Test(fake, the_nth_call_fails_once_and_changes_nothing)
{
	struct ibv_pd *pd = NULL;
	struct ibv_wc wc;

	pair_open((struct fake_config){0});
	fake_fail_nth(2, ENOSPC);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE, 0, 8, 1, IBV_SEND_SIGNALED), 0);
	cr_assert_null(fake_failed());
	cr_assert_eq(verbs.alloc_pd(a.ctx, &pd), -ENOSPC);
	cr_assert_null(pd);
	cr_assert_str_eq(fake_failed(), "alloc_pd");
	cr_assert_eq(verbs.alloc_pd(a.ctx, &pd), 0);
	cr_assert_eq(verbs.dealloc_pd(pd), 0);
	fake_fail_nth(1, EIO);
	cr_assert_eq(verbs_poll_cq(a.cq, 1, &wc), -EIO);
	cr_assert_eq(verbs_poll_cq(a.cq, 1, &wc), 1);
	pair_close();
}

Test(fake, work_is_counted)
{
	struct fake_counts counts;
	struct ibv_sge sge;
	struct ibv_send_wr second = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1};
	struct ibv_send_wr first = second;
	struct ibv_wc wc[4];

	pair_open((struct fake_config){0});
	sge = (struct ibv_sge){.addr = (uintptr_t)a.buffer, .length = 100, .lkey = a.mr->lkey};
	first.wr.rdma.remote_addr = second.wr.rdma.remote_addr = (uintptr_t)b.buffer;
	first.wr.rdma.rkey = second.wr.rdma.rkey = b.mr->rkey;
	first.next = &second;
	second.send_flags = IBV_SEND_SIGNALED;
	fake_counts_reset();
	cr_assert_eq(verbs_post_send(a.qp, &first), 0);
	cr_assert_eq(recv_wr(&b, 1), 0);
	cr_assert_eq(verbs_poll_cq(a.cq, 4, wc), 1);
	cr_assert_eq(verbs_poll_cq(a.cq, 4, wc), 0);
	fake_counts_get(&counts);
	cr_assert_eq(counts.post_send_calls, 1);
	cr_assert_eq(counts.send_wrs, 2);
	cr_assert_eq(counts.send_bytes, 200);
	cr_assert_eq(counts.post_recv_calls, 1);
	cr_assert_eq(counts.recv_wrs, 1);
	cr_assert_eq(counts.poll_calls, 2);
	cr_assert_eq(counts.poll_empty, 1);
	cr_assert_eq(counts.cqes, 1);
	cr_assert_eq(fake_port_bytes(0, 1), 200);
	cr_assert_eq(fake_port_bytes(1, 2), 0);
	pair_close();
}

Test(fake, leaks_and_unacked_events_are_seen)
{
	struct ibv_async_event event;
	char text[128];

	pair_open((struct fake_config){0});
	cr_assert_eq(fake_leaks(text, sizeof(text)), 10);
	cr_assert_str_eq(text, "2 contexts, 2 PDs, 2 MRs, 2 CQs, 2 QPs");
	fake_event_qp(a.qp, IBV_EVENT_QP_FATAL);
	cr_assert_eq(verbs.get_async_event(a.ctx, &event), 0);
	cr_assert_eq(event.element.qp, a.qp);
	end_close(&a);
	cr_assert_not_null(strstr(fake_fault(), "not acked"));
	fake_fault_clear();
	end_close(&b);
	cr_assert_eq(fake_leaks(NULL, 0), 0);
}
