/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_mr.c - memory: too little of it may be locked; regions that come and go beside traffic.
 */
#include "rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
	BYTES = 4096,
	LIMIT = 64 * 1024
};

static const struct fake_config four = {.device_count = 4};

/* --- RLIMIT_MEMLOCK ----------------------------------------------------------------------- */

static void limit_set(rlim_t bytes)
{
	struct rlimit limit;

	CHECK_INT(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = bytes;
	CHECK_INT(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* The one line: the first device, the call, the limit, and what to do about it. */
static void limit_said(const char *call, unsigned lines)
{
	CHECK(rig_logged("NET/Railyard : fake0:1"));
	CHECK(rig_logged(call));
	CHECK(rig_logged("RLIMIT_MEMLOCK is 65536 bytes"));
	CHECK(rig_logged("ulimit -l unlimited"));
	CHECK(rig_logged("LimitMEMLOCK=infinity"));
	CHECK(!rig_logged(" : fake1:1"));
	CHECK_INT(rig_warnings(), lines);
}

static const struct refusal {
	const char *verb, *call;
	int error;
} refusals[] = {
	{"create_cq", "ibv_create_cq for a ", ENOMEM}, {"reg_mr", "ibv_reg_mr", ENOMEM},
	{"create_qp", "ibv_create_qp", ENOMEM}, {"create_cq", "ibv_create_cq", EAGAIN},
	{"reg_mr", "ibv_reg_mr", EAGAIN},	{"create_qp", "ibv_create_qp", EAGAIN},
};

static void limit_connect(void)
{
	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		enum ry_net_result rc = RY_NET_SUCCESS;
		struct pair p;

		limit_set(LIMIT);
		rig_begin(&four);
		pair_start(&p, 0);
		fake_fail_always(refusals[i].verb, refusals[i].error);
		for (int n = 0; rc == RY_NET_SUCCESS; n++) {
			CHECK(n < RIG_PATIENCE_MS);
			rc = rig_abi->connect(rig_ctx, rig_device(4), p.handle, &p.send);
			CHECK(!p.send);
			rig_pause_us(1000);
		}
		CHECK_INT(rc, RY_NET_SYSTEM_ERROR);
		limit_said(refusals[i].call, 1);
		CHECK(rig_logged("and 3 more ports"));
		pair_close(&p);
		rig_stop();
		rig_clean();
	}
}

/* The sender has all that it needs; its own line says that the peer refused, and why. */
static void limit_accept(void)
{
	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		enum ry_net_result send_rc = RY_NET_SUCCESS, recv_rc = RY_NET_SUCCESS;
		struct pair p;
		int dev;

		limit_set(LIMIT);
		rig_begin(&four);
		dev = rig_device(4);
		pair_start(&p, dev);
		for (int n = 0; n < 100; n++) {
			CHECK_INT(rig_abi->connect(rig_ctx, dev, p.handle, &p.send), 0);
			rig_pause_us(1000);
		}
		fake_fail_always(refusals[i].verb, refusals[i].error);
		for (int n = 0; recv_rc == RY_NET_SUCCESS || send_rc == RY_NET_SUCCESS; n++) {
			CHECK(n < RIG_PATIENCE_MS);
			if (recv_rc == RY_NET_SUCCESS)
				recv_rc = rig_abi->accept(p.listen, &p.recv);
			if (send_rc == RY_NET_SUCCESS)
				send_rc = rig_abi->connect(rig_ctx, dev, p.handle, &p.send);
			CHECK(!p.send && !p.recv);
			rig_pause_us(1000);
		}
		CHECK_INT(recv_rc, RY_NET_SYSTEM_ERROR);
		CHECK_INT(send_rc, RY_NET_REMOTE_ERROR);
		limit_said(refusals[i].call, 2);
		CHECK(rig_logged("refused: "));
		pair_close(&p);
		rig_stop();
		rig_clean();
	}
}

/* A limit of 0 bytes is EPERM to a process without CAP_IPC_LOCK. */
static void limit_register(void)
{
	static const int errors[] = {ENOMEM, EAGAIN, EPERM};
	char *buffer = rig_buffer((size_t)4 * BYTES);

	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		void *mr = NULL;
		struct pair p;
		int dev;

		rig_begin(&four);
		dev = rig_device(4);
		pair_open(&p, dev, dev);
		limit_set(errors[i] == EPERM ? 0 : LIMIT);
		fake_fail_always("reg_mr", errors[i]);
		CHECK_INT(rig_net->regMr(p.send, buffer, BYTES + 1, RY_NET_PTR_HOST, &mr),
			  RY_NET_SYSTEM_ERROR);
		CHECK(!mr);
		CHECK(rig_logged("8192 bytes"));
		if (errors[i] == EPERM) {
			CHECK(rig_logged("RLIMIT_MEMLOCK is 0 bytes"));
			CHECK(rig_logged("ulimit -l unlimited"));
		} else {
			limit_said("ibv_reg_mr", 1);
		}
		rig_log_clear();
		fake_fail_always(NULL, 0);
		CHECK_INT(rig_net->regMr(p.recv, buffer, BYTES, RY_NET_PTR_HOST, &mr), 0);
		CHECK_INT(rig_net->deregMr(p.recv, mr), 0);
		pair_close(&p);
		rig_end();
	}
	rig_buffer_free(buffer, (size_t)4 * BYTES);
}

/* Not everything is the limit: another error does not name it, and no limit is said to be none. */
static void limit_not(void)
{
	char *buffer = rig_buffer(BYTES);
	struct rlimit limit;
	void *mr = NULL;
	struct pair p;

	rig_begin(&four);
	pair_open(&p, 0, 0);
	limit_set(LIMIT);
	fake_fail_always("reg_mr", EFAULT);
	CHECK(rig_net->regMr(p.send, buffer, BYTES, RY_NET_PTR_HOST, &mr) != RY_NET_SUCCESS);
	CHECK(rig_logged("Bad address"));
	CHECK(!rig_logged("MEMLOCK"));
	CHECK_INT(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	if (limit.rlim_max == RLIM_INFINITY) {
		limit_set(RLIM_INFINITY);
		fake_fail_always("reg_mr", ENOMEM);
		CHECK(rig_net->regMr(p.send, buffer, BYTES, RY_NET_PTR_HOST, &mr) !=
		      RY_NET_SUCCESS);
		CHECK(rig_logged("RLIMIT_MEMLOCK is unlimited"));
		CHECK(!rig_logged("ulimit -l"));
	}
	pair_close(&p);
	rig_stop();
	rig_clean();
	rig_buffer_free(buffer, BYTES);
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"limit_connect", limit_connect},
		{"limit_accept", limit_accept},
		{"limit_register", limit_register},
		{"limit_not", limit_not},
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
