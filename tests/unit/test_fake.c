/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_fake.c - the fake's devices and wires fail as real ones do: what is lost, what lands and yet
 * is not acknowledged, what is flushed, what a dead queue pair still takes and what it never does.
 */
#include <fcntl.h>
#include <pthread.h>

#include "fake_pair.h"
#include "util.h"

enum {
	RETRY_MS = 30,
	PATIENCE_MS = 10000
};

static struct ibv_wc poll_wait(struct end *end)
{
	uint64_t end_ns = now_ns() + PATIENCE_MS * NS_PER_MS;
	struct ibv_wc wc;

	while (verbs_poll_cq(end->cq, 1, &wc) == 0)
		cr_assert_lt(now_ns(), end_ns, "no completion");
	return wc;
}

static void expect(struct end *end, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = poll_wait(end);

	cr_assert_eq(wc.wr_id, wr_id, "WR %d, not %d", (int)wc.wr_id, (int)wr_id);
	cr_assert_eq(wc.status, status, "WR %d: status %d, not %d", (int)wr_id, (int)wc.status,
		     (int)status);
}

static int modify(struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	return verbs.modify_qp(end->qp, &attr, IBV_QP_STATE);
}

static struct ibv_qp *qp_again(struct end *end)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
					.send_cq = end->cq,
					.recv_cq = end->cq,
					.cap = {.max_send_wr = DEPTH,
						.max_recv_wr = DEPTH,
						.max_send_sge = 1,
						.max_recv_sge = 1}};
	struct ibv_qp *qp = NULL;

	cr_assert_eq(verbs.create_qp(end->pd, &init, &qp), 0);
	return qp;
}

static int write_imm(struct end *from, struct end *to, uint64_t id, char value)
{
	memset(from->buffer, value, 64);
	return send_wr(from, to, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, id, IBV_SEND_SIGNALED);
}

/* Losses */

Test(fake_loss, a_cut_fails_the_first_and_flushes_the_rest_after_the_retry_time)
{
	uint64_t start;

	pair_open((struct fake_config){0});
	fake_retry_set(RETRY_MS);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(recv_wr(&b, 51), 0);
	fake_port_lose(1, 2, FAKE_CUT);
	start = now_ns();
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(write_imm(&a, &b, 2, 'x'), 0);
	poll_none(&a);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	cr_assert_geq(now_ns() - start, RETRY_MS * NS_PER_MS);
	expect(&a, 2, IBV_WC_WR_FLUSH_ERR);
	poll_none(&a);
	cr_assert_eq(a.qp->state, IBV_QPS_ERR);
	cr_assert_eq(b.qp->state, IBV_QPS_RTS, "the far end knows nothing");
	poll_none(&b);
	cr_assert_eq(b.buffer[0], 0);
	fake_port_lose(1, 2, 0);
	cr_assert_eq(b.buffer[0], 0, "a dead queue pair sends nothing any more");
	pair_close();
}

Test(fake_loss, a_short_cut_only_delays)
{
	pair_open((struct fake_config){0});
	fake_retry_set(PATIENCE_MS);
	cr_assert_eq(recv_wr(&b, 50), 0);
	fake_port_lose(0, 1, FAKE_CUT);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	poll_none(&a);
	fake_port_lose(0, 1, 0);
	expect(&b, 50, IBV_WC_SUCCESS);
	expect(&a, 1, IBV_WC_SUCCESS);
	pair_close();
}

Test(fake_loss, without_a_retry_time_it_waits_for_ever)
{
	pair_open((struct fake_config){0});
	fake_port_lose(0, 1, FAKE_CUT);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	for (int i = 0; i < 1000; i++)
		poll_none(&a);
	fake_retry_exceeded(0, 1);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	pair_close();
}

struct loss_case {
	const char *what;
	int device, port; /* that loses */
	unsigned losses;
	bool a_to_b, b_to_a; /* data lands */
};

Test(fake_loss, either_way_can_be_lost_alone_and_nothing_is_acknowledged)
{
	static const struct loss_case cases[] = {
		{"out of a", 0, 1, FAKE_LOSE_OUT, false, true},
		{"into a", 0, 1, FAKE_LOSE_IN, true, false},
		{"out of b", 1, 2, FAKE_LOSE_OUT, true, false},
		{"into b", 1, 2, FAKE_LOSE_IN, false, true},
		{"acks at a", 0, 1, FAKE_LOSE_ACKS, true, true},
		{"acks at b", 1, 2, FAKE_LOSE_ACKS, true, true},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct loss_case *c = &cases[i];

		pair_open((struct fake_config){0});
		memset(a.buffer, 0, BYTES);
		memset(b.buffer, 0, BYTES);
		fake_retry_set(RETRY_MS);
		fake_port_lose(c->device, c->port, c->losses);
		a.buffer[0] = b.buffer[64] = 'x';
		cr_assert_eq(recv_wr(&a, 50), 0);
		cr_assert_eq(recv_wr(&b, 50), 0);
		cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, 1, 0), 0);
		cr_assert_eq(send_wr(&b, &a, IBV_WR_RDMA_WRITE_WITH_IMM, 64, 8, 1, 0), 0);
		cr_assert_eq(b.buffer[0], c->a_to_b ? 'x' : 0, "%s", c->what);
		cr_assert_eq(a.buffer[64], c->b_to_a ? 'x' : 0, "%s", c->what);
		if (c->b_to_a)
			expect(&a, 50, IBV_WC_SUCCESS);
		if (c->a_to_b)
			expect(&b, 50, IBV_WC_SUCCESS);
		expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
		expect(&b, 1, IBV_WC_RETRY_EXC_ERR);
		pair_close();
	}
}

Test(fake_loss, lost_acknowledgements_come_when_it_is_sent_again)
{
	pair_open((struct fake_config){0});
	fake_port_lose(0, 1, FAKE_LOSE_ACKS);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	expect(&b, 50, IBV_WC_SUCCESS);
	poll_none(&a);
	b.buffer[0] = 'y'; /* the repeat is known as such and writes nothing */
	fake_port_lose(0, 1, 0);
	expect(&a, 1, IBV_WC_SUCCESS);
	cr_assert_eq(b.buffer[0], 'y');
	poll_none(&b);
	pair_close();
}

Test(fake_loss, no_acknowledgement_comes_from_a_queue_pair_that_is_gone)
{
	pair_open((struct fake_config){0});
	fake_retry_set(RETRY_MS);
	fake_port_lose(0, 1, FAKE_LOSE_ACKS);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(verbs.destroy_qp(b.qp), 0);
	fake_port_lose(0, 1, 0);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	b.qp = qp_again(&b);
	pair_close();
}

Test(fake_loss, a_torn_write_has_landed_in_part_when_it_fails)
{
	unsigned landed = 0;

	pair_open((struct fake_config){.torn = true});
	fake_retry_set(RETRY_MS);
	memset(a.buffer, 'x', BYTES);
	memset(b.buffer, 0, BYTES);
	fake_port_lose(1, 2, FAKE_CUT);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(send_wr(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, BYTES, 1, 0), 0);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	while (landed < BYTES && b.buffer[landed] == 'x')
		landed++;
	cr_assert(landed >= 1024 && landed < BYTES && landed % 1024 == 0, "%u bytes", landed);
	for (unsigned i = landed; i < BYTES; i++)
		cr_assert_eq(b.buffer[i], 0);
	poll_none(&b);
	pair_close();
}

Test(fake_loss, a_port_that_is_down_is_as_cut_and_says_so)
{
	struct ibv_port_attr attr;
	struct ibv_async_event event;

	pair_open((struct fake_config){0});
	fake_retry_set(RETRY_MS);
	fake_port_set(0, 1, false);
	cr_assert_eq(verbs.query_port(a.ctx, 1, &attr), 0);
	cr_assert_eq(attr.state, IBV_PORT_DOWN);
	cr_assert_eq(verbs.get_async_event(a.ctx, &event), 0);
	cr_assert_eq(event.event_type, IBV_EVENT_PORT_ERR);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(write_imm(&b, &a, 2, 'x'), 0);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	expect(&b, 2, IBV_WC_RETRY_EXC_ERR);
	fake_port_set(0, 1, true);
	cr_assert_eq(verbs.get_async_event(a.ctx, &event), 0);
	cr_assert_eq(event.event_type, IBV_EVENT_PORT_ACTIVE);
	pair_close();
}

static void *set_later(void *arg)
{
	(void)arg;
	nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	fake_port_lose(1, 2, 0);
	return NULL;
}

Test(fake_loss, another_thread_may_repair_it)
{
	pthread_t thread;

	pair_open((struct fake_config){0});
	fake_retry_set(PATIENCE_MS);
	fake_port_lose(1, 2, FAKE_CUT);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(pthread_create(&thread, NULL, set_later, NULL), 0);
	expect(&a, 1, IBV_WC_SUCCESS);
	pthread_join(thread, NULL);
	pair_close();
}

/* States */

Test(fake_state, err_flushes_sends_and_receives_and_destroy_is_the_end)
{
	pair_open((struct fake_config){.delivery = FAKE_QUEUED});
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(recv_wr(&b, 51), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(write_imm(&b, &a, 2, 'x'), 0);
	cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
	expect(&b, 2, IBV_WC_WR_FLUSH_ERR);
	expect(&b, 50, IBV_WC_WR_FLUSH_ERR);
	expect(&b, 51, IBV_WC_WR_FLUSH_ERR);
	memset(b.buffer, 0, 64);
	fake_run();
	cr_assert_eq(b.buffer[0], 0);
	cr_assert_eq(verbs.destroy_qp(b.qp), 0);
	fake_run();
	cr_assert_eq(b.buffer[0], 0);
	poll_none(&a);
	b.qp = qp_again(&b);
	pair_close();
}

Test(fake_state, a_device_may_drop_the_flush_completions_of_receives)
{
	pair_open((struct fake_config){.delivery = FAKE_QUEUED, .no_recv_flush = true});
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&b, &a, 2, 'x'), 0);
	cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
	expect(&b, 2, IBV_WC_WR_FLUSH_ERR);
	poll_none(&b);
	pair_close();
}

Test(fake_state, a_queue_pair_in_err_may_still_take_data_until_it_is_destroyed)
{
	pair_open((struct fake_config){.err_lands = true});
	fake_retry_set(RETRY_MS);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
	expect(&b, 50, IBV_WC_WR_FLUSH_ERR);
	memset(b.buffer, 0, BYTES);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(b.buffer[0], 'x');
	poll_none(&b);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	pair_close();

	pair_open((struct fake_config){.err_lands = true});
	cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
	cr_assert_eq(verbs.destroy_qp(b.qp), 0);
	memset(b.buffer, 0, BYTES);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(b.buffer[0], 0);
	b.qp = qp_again(&b);
	pair_close();
}

Test(fake_state, every_legal_way_through_the_states_is_taken)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	pair_open((struct fake_config){0});
	for (int round = 0; round < 2; round++) {
		cr_assert_eq(modify(&a, IBV_QPS_RESET), 0);
		cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
		cr_assert_eq(modify(&b, IBV_QPS_RESET), 0);
		end_init(&a);
		attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
		cr_assert_eq(verbs.modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS), 0,
			     "INIT to INIT, of one attribute");
		cr_assert_eq(modify(&a, IBV_QPS_INIT), 0, "of none");
		attr.port_num = 9;
		cr_assert_eq(verbs.modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PORT), -EINVAL);
		cr_assert_eq(modify(&a, IBV_QPS_RESET), 0);
		end_connect(&a, &b, PSN_A, PSN_B);
		end_connect(&b, &a, PSN_B, PSN_A);
		cr_assert_eq(recv_wr(&b, 50), 0);
		cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
		expect(&a, 1, IBV_WC_SUCCESS);
		expect(&b, 50, IBV_WC_SUCCESS);
	}
	pair_close();
}

Test(fake_state, a_write_before_the_far_end_is_ready_to_receive_is_sent_again)
{
	struct ibv_qp_attr rtr;

	pair_open((struct fake_config){0});
	fake_retry_set(PATIENCE_MS);
	cr_assert_eq(modify(&b, IBV_QPS_RESET), 0);
	end_init(&b);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	poll_none(&a);
	rtr = rtr_attr(&b, &a, PSN_A);
	cr_assert_eq(verbs.modify_qp(b.qp, &rtr, RTR_MASK), 0);
	expect(&a, 1, IBV_WC_SUCCESS);
	expect(&b, 50, IBV_WC_SUCCESS);
	fake_retry_set(RETRY_MS);
	cr_assert_eq(modify(&b, IBV_QPS_RESET), 0);
	end_init(&b);
	cr_assert_eq(write_imm(&a, &b, 2, 'x'), 0);
	expect(&a, 2, IBV_WC_RETRY_EXC_ERR);
	pair_close();
}

Test(fake_state, ready_to_receive_needs_an_address_where_the_kernel_asks_for_it)
{
	struct ibv_qp_attr rtr;

	pair_open((struct fake_config){.resolve_ms = RETRY_MS});
	cr_assert_eq(modify(&a, IBV_QPS_RESET), 0);
	end_init(&a);
	rtr = rtr_attr(&a, &b, PSN_B);
	fake_port_set(1, 2, false);
	cr_assert_eq(verbs.modify_qp(a.qp, &rtr, RTR_MASK), -ETIMEDOUT);
	cr_assert_eq(a.qp->state, IBV_QPS_INIT);
	fake_port_set(1, 2, true);
	fake_port_lose(0, 1, FAKE_LOSE_IN);
	cr_assert_eq(verbs.modify_qp(a.qp, &rtr, RTR_MASK), -ETIMEDOUT);
	fake_port_lose(0, 1, 0);
	cr_assert_eq(verbs.modify_qp(a.qp, &rtr, RTR_MASK), 0);
	pair_close();
}

/* Ghosts */

/* One write of a to b, held in a queue; the sender has given it up. */
static void ghost_make(struct fake_config config)
{
	pair_open(config);
	memset(b.buffer, 0, BYTES);
	fake_retry_set(RETRY_MS);
	cr_assert_eq(recv_wr(&b, 50), 0);
	fake_port_lose(0, 1, FAKE_DELAY);
	cr_assert_eq(write_imm(&a, &b, 1, 'g'), 0);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	cr_assert_eq(fake_ghosts(), 1);
	fake_port_lose(0, 1, 0);
	cr_assert_eq(b.buffer[0], 0);
}

Test(fake_ghost, a_ghost_lands_where_its_queue_pair_still_waits_for_it)
{
	ghost_make((struct fake_config){0});
	memset(a.buffer, 'z', 64); /* it left long ago */
	cr_assert_eq(fake_ghosts_release(), 1);
	cr_assert_eq(fake_ghosts(), 0);
	cr_assert_eq(b.buffer[0], 'g');
	cr_assert_eq(ntohl(poll_one(&b).imm_data), 1);
	pair_close();
}

Test(fake_ghost, a_ghost_for_a_destroyed_or_dead_queue_pair_is_dropped)
{
	ghost_make((struct fake_config){0});
	cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
	cr_assert_eq(fake_ghosts_release(), 0);
	pair_close();

	ghost_make((struct fake_config){0});
	cr_assert_eq(verbs.destroy_qp(b.qp), 0);
	cr_assert_eq(fake_ghosts_release(), 0);
	cr_assert_eq(fake_ghosts_dropped(), 1);
	cr_assert_eq(b.buffer[0], 0);
	b.qp = qp_again(&b);
	pair_close();
}

/* The number is used again: the sequence number decides. */
static unsigned ghost_meets_next(uint32_t psn)
{
	uint32_t qpn;
	unsigned landed;

	ghost_make((struct fake_config){.reuse_qpn = true});
	qpn = b.qp->qp_num;
	cr_assert_eq(verbs.destroy_qp(a.qp), 0);
	cr_assert_eq(verbs.destroy_qp(b.qp), 0);
	a.qp = qp_again(&a);
	b.qp = qp_again(&b);
	cr_assert_eq(b.qp->qp_num, qpn);
	end_connect(&a, &b, psn, PSN_B);
	end_connect(&b, &a, PSN_B, psn);
	cr_assert_eq(recv_wr(&b, 51), 0);
	landed = fake_ghosts_release();
	cr_assert_eq(b.buffer[0], landed ? 'g' : 0);
	pair_close();
	return landed;
}

Test(fake_ghost, a_ghost_meets_the_next_owner_of_its_number)
{
	cr_assert_eq(ghost_meets_next(PSN_A), 1, "the same sequence number: it lands");
	cr_assert_eq(ghost_meets_next(PSN_A + 1), 0);
	cr_assert_eq(ghost_meets_next(PSN_A - 1), 0);
}

Test(fake_ghost, what_was_sent_again_meanwhile_makes_a_ghost_a_duplicate)
{
	pair_open((struct fake_config){0});
	cr_assert_eq(recv_wr(&b, 50), 0);
	fake_port_lose(0, 1, FAKE_DELAY);
	cr_assert_eq(write_imm(&a, &b, 1, 'g'), 0);
	fake_port_lose(0, 1, 0);
	expect(&a, 1, IBV_WC_SUCCESS);
	expect(&b, 50, IBV_WC_SUCCESS);
	b.buffer[0] = 'y';
	cr_assert_eq(recv_wr(&b, 51), 0);
	cr_assert_eq(fake_ghosts_release(), 0);
	cr_assert_eq(b.buffer[0], 'y');
	pair_close();
}

Test(fake_ghost, what_a_ghost_brought_is_only_acknowledged_when_sent_again)
{
	pair_open((struct fake_config){0});
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(recv_wr(&b, 51), 0);
	fake_port_lose(0, 1, FAKE_DELAY);
	cr_assert_eq(write_imm(&a, &b, 1, 'g'), 0);
	cr_assert_eq(write_imm(&a, &b, 2, 'h'), 0);
	cr_assert_eq(fake_ghosts_release(), 2);
	expect(&b, 50, IBV_WC_SUCCESS);
	expect(&b, 51, IBV_WC_SUCCESS);
	poll_none(&a);
	b.buffer[0] = 'y';
	fake_port_lose(0, 1, 0);
	expect(&a, 1, IBV_WC_SUCCESS);
	expect(&a, 2, IBV_WC_SUCCESS);
	cr_assert_eq(b.buffer[0], 'y');
	poll_none(&b);
	pair_close();
}

/* Ports and devices */

Test(fake_device, another_gid_ends_the_old_way_and_opens_a_new_one)
{
	union ibv_gid gid, old;

	pair_open((struct fake_config){0});
	fake_retry_set(RETRY_MS);
	old = b.gid;
	gid = b.gid;
	gid.raw[15] = 99;
	fake_gid_set(1, 2, FAKE_GID_INDEX_IPV4_V2, NULL, 0);
	cr_assert_eq(verbs.query_gid_version(b.ctx, 2, FAKE_GID_INDEX_IPV4_V2), -ENOENT);
	fake_gid_set(1, 2, FAKE_GID_INDEX_IPV4_V2, &gid, 2);
	cr_assert_eq(verbs.query_gid_version(b.ctx, 2, FAKE_GID_INDEX_IPV4_V2), 2);
	cr_assert_eq(verbs.query_gid(b.ctx, 2, FAKE_GID_INDEX_IPV4_V2, &b.gid), 0);
	cr_assert_eq(memcmp(&b.gid, &gid, sizeof(gid)), 0);
	cr_assert_neq(memcmp(&b.gid, &old, sizeof(gid)), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	cr_assert_eq(modify(&a, IBV_QPS_RESET), 0);
	cr_assert_eq(modify(&b, IBV_QPS_RESET), 0);
	end_connect(&a, &b, PSN_A, PSN_B);
	end_connect(&b, &a, PSN_B, PSN_A);
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&a, &b, 2, 'x'), 0);
	expect(&a, 2, IBV_WC_SUCCESS);
	pair_close();
}

Test(fake_device, commands_hang_and_data_goes_on)
{
	uint64_t start;
	struct ibv_qp *qp;

	pair_open((struct fake_config){0});
	fake_hang(1, 50);
	start = now_ns();
	cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	expect(&a, 1, IBV_WC_SUCCESS);
	qp = qp_again(&b);
	cr_assert_eq(verbs.destroy_qp(qp), 0);
	cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
	cr_assert_geq(now_ns() - start, 150 * NS_PER_MS);
	fake_hang(1, 0);
	pair_close();
}

Test(fake_device, the_nth_call_of_a_name_fails_once)
{
	pair_open((struct fake_config){0});
	fake_fail_nth_of("post_send", 2, ENOMEM);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(recv_wr(&b, 50), 0);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(write_imm(&a, &b, 2, 'x'), -ENOMEM);
	cr_assert_str_eq(fake_failed(), "post_send");
	cr_assert_eq(write_imm(&a, &b, 3, 'x'), 0);
	expect(&a, 1, IBV_WC_SUCCESS);
	expect(&a, 3, IBV_WC_SUCCESS);
	pair_close();
}

Test(fake_device, a_dead_device_says_so_once_and_then_lies)
{
	struct ibv_async_event event;
	struct ibv_port_attr attr;
	struct ibv_qp *qp = a.qp;

	pair_open((struct fake_config){0});
	fake_retry_set(RETRY_MS);
	cr_assert_eq(fcntl(b.ctx->async_fd, F_SETFL, O_NONBLOCK), 0);
	cr_assert_eq(recv_wr(&b, 50), 0);
	fake_device_fatal(1);
	cr_assert_eq(verbs.get_async_event(b.ctx, &event), 0);
	cr_assert_eq(event.event_type, IBV_EVENT_DEVICE_FATAL);
	cr_assert_eq(verbs.get_async_event(b.ctx, &event), -EAGAIN);
	cr_assert_eq(write_imm(&a, &b, 1, 'x'), 0);
	cr_assert_eq(write_imm(&b, &a, 2, 'x'), 0);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	cr_assert_eq(verbs.query_port(b.ctx, 2, &attr), -EIO);
	cr_assert_eq(verbs.create_qp(b.pd, &(struct ibv_qp_init_attr){0}, &qp), -EIO);
	cr_assert_eq(modify(&b, IBV_QPS_ERR), 0);
	poll_none(&b);
	cr_assert_eq(modify(&b, IBV_QPS_RTR), -EIO);
	pair_close();
}
