/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_bad.c - wrong input and hard endings: one clear line, a bounded time, nothing left open.
 */
#include "rig.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "plugin.h"
#include "wire.h"

enum {
	BYTES = 4096
};

static const struct fake_config two = {.device_count = 2};

static uint64_t ms_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Warnings were expected; nothing else may be wrong. */
static void end_warned(unsigned lines)
{
	rig_stop();
	rig_clean();
	CHECK_INT(rig_warnings(), lines);
}

/* Call connect until it fails, and see that it does in time. */
static enum ry_net_result connect_until_error(char *handle, int dev, unsigned within_ms)
{
	uint64_t begin = ms_now();
	enum ry_net_result rc;
	void *comm = handle;

	do {
		rc = rig_abi->connect(rig_ctx, dev, handle, &comm);
		CHECK(comm == NULL);
		CHECK(ms_now() - begin < within_ms);
		rig_pause_us(1000);
	} while (rc == RY_NET_SUCCESS);
	return rc;
}

static void handle_foreign(void)
{
	char handle[RY_NET_HANDLE_BYTES_MAX];

	rig_begin(&two);
	for (int i = 0; i < RY_NET_HANDLE_BYTES_MAX; i++)
		handle[i] = (char)(i * 5 + 2);
	CHECK(connect_until_error(handle, 0, 100) != RY_NET_SUCCESS);
	CHECK(rig_logged("All ranks of a job must load the same plugin"));
	end_warned(1);
}

static void handle_damaged(void)
{
	struct pair p;

	rig_begin(&two);
	pair_start(&p, 0);
	for (int i = 0; i < 2000; i++) {
		char handle[RY_NET_HANDLE_BYTES_MAX];
		void *comm = handle;

		memcpy(handle, p.handle, sizeof(handle));
		handle[i % 100] ^= (char)(1 << i % 8);
		handle[i * 7 % 100] ^= (char)(i / 8);
		(void)rig_abi->connect(rig_ctx, 0, handle, &comm);
		CHECK(comm == NULL);
	}
	pair_close(&p);
	rig_stop(); /* abandons the attempts */
	rig_clean();
}

static void listen_closed(void)
{
	struct pair p;

	rig_begin(&two);
	pair_start(&p, 0);
	CHECK_INT(rig_net->closeListen(p.listen), RY_NET_SUCCESS);
	CHECK_INT(connect_until_error(p.handle, 0, 5000), RY_NET_REMOTE_ERROR);
	CHECK(rig_logged("no listen here has this secret"));
	free(p.handle);
	rig_stop();
	rig_clean();
}

/* The same, when the peer is already known from another connection. */
static void listen_closed_known(void)
{
	struct pair p, other;

	rig_begin(&two);
	pair_open(&other, 0, 0);
	pair_start(&p, 0);
	CHECK_INT(rig_net->closeListen(p.listen), RY_NET_SUCCESS);
	CHECK_INT(connect_until_error(p.handle, 0, 5000), RY_NET_REMOTE_ERROR);
	CHECK(rig_logged("no listen with this secret"));
	free(p.handle);
	traffic_run(&other, &(struct traffic){.groups = 20, .members = 1, .window = 2,
					      .bytes_max = 4000});
	pair_close(&other);
	end_warned(1);
}

static void read_all(int fd, char *to, size_t bytes)
{
	CHECK_INT(read(fd, to, bytes), (long long)bytes);
}

/* A process that listens, hands out its handle, and waits to be killed. */
static pid_t listener_process(char *handle, bool is_stopped)
{
	int fd[2];
	pid_t child;

	CHECK(pipe(fd) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct pair p;

		rig_begin(&two);
		pair_start(&p, 0);
		CHECK(write(fd[1], p.handle, RY_NET_HANDLE_BYTES_MAX) > 0);
		if (is_stopped)
			raise(SIGSTOP);
		sleep(60);
		_exit(0);
	}
	read_all(fd[0], handle, RY_NET_HANDLE_BYTES_MAX);
	close(fd[0]);
	close(fd[1]);
	return child;
}

static void process_end(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void process_gone(void)
{
	char handle[RY_NET_HANDLE_BYTES_MAX];
	pid_t child = listener_process(handle, false);

	process_end(child);
	rig_begin(&two);
	CHECK_INT(connect_until_error(handle, 0, 5000), RY_NET_REMOTE_ERROR);
	/* Its port may be another listener's by now, of a test that runs beside this one. */
	CHECK(rig_logged("Connection refused") || rig_logged("no listen here has this secret"));
	end_warned(1);
}

static void process_dies(void)
{
	char handle[RY_NET_HANDLE_BYTES_MAX];
	pid_t child = listener_process(handle, false);
	uint64_t end = ms_now() + 300;
	void *comm = NULL;

	rig_begin(&two);
	while (ms_now() < end) { /* it never accepts */
		CHECK_INT(rig_abi->connect(rig_ctx, 0, handle, &comm), RY_NET_SUCCESS);
		CHECK(comm == NULL);
		rig_pause_us(1000);
	}
	process_end(child);
	CHECK_INT(connect_until_error(handle, 0, 5000), RY_NET_REMOTE_ERROR);
	end_warned(1);
}

static void process_stopped(void)
{
	char handle[RY_NET_HANDLE_BYTES_MAX];
	pid_t child = listener_process(handle, true);

	rig_env("RAILYARD_CONNECT_TIMEOUT", "1");
	rig_begin(&two);
	CHECK_INT(connect_until_error(handle, 0, 5000), RY_NET_REMOTE_ERROR);
	CHECK(rig_warnings() >= 1);
	process_end(child);
	rig_stop();
	rig_clean();
}

/* Nobody accepts: the attempt ends by itself. */
static void accept_never(void)
{
	struct pair p;

	rig_env("RAILYARD_CONNECT_TIMEOUT", "1");
	rig_begin(&two);
	pair_start(&p, 0);
	CHECK_INT(connect_until_error(p.handle, 0, 5000), RY_NET_REMOTE_ERROR);
	CHECK(rig_logged("RAILYARD_CONNECT_TIMEOUT"));
	pair_close(&p);
	end_warned(1);
}

/* The listen closes while a sender waits for its accept. */
static void listen_closes(void)
{
	struct pair p;
	void *comm;

	rig_begin(&two);
	pair_start(&p, 0);
	for (int i = 0; i < 200; i++) {
		CHECK_INT(rig_abi->connect(rig_ctx, 0, p.handle, &comm), RY_NET_SUCCESS);
		rig_pause_us(1000);
	}
	CHECK_INT(rig_net->closeListen(p.listen), RY_NET_SUCCESS);
	CHECK_INT(connect_until_error(p.handle, 0, 5000), RY_NET_REMOTE_ERROR);
	CHECK(rig_logged("the listen was closed"));
	free(p.handle);
	end_warned(1);
}

static int control_dial(const char *handle)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	struct wire_handle h;
	char why[192];
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK_INT(wire_handle_decode((const uint8_t *)handle, &h, why, sizeof(why)), 0);
	CHECK_INT(h.addr[0].family, 4);
	at.sin_port = htons(h.addr[0].port);
	memcpy(&at.sin_addr, h.addr[0].bytes, 4);
	CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	return fd;
}

/* Strangers on the control port: garbage, silence, a connection closed at once. */
static void strangers(void)
{
	struct pair p;
	char junk[4000];
	int fd[12];

	rig_begin(&two);
	pair_start(&p, rig_device(2));
	for (size_t i = 0; i < sizeof(junk); i++)
		junk[i] = (char)(i * 31 + i / 7);
	for (int i = 0; i < 12; i++) {
		fd[i] = control_dial(p.handle);
		if (i % 3 == 0)
			CHECK(send(fd[i], junk, sizeof(junk), MSG_NOSIGNAL) > 0);
		if (i % 3 == 1)
			close(fd[i]);
	}
	while (!pair_step(&p, rig_device(2)))
		rig_pause_us(1000);
	traffic_run(&p, &(struct traffic){.groups = 50, .members = 2, .window = 2,
					  .bytes_max = 40000});
	for (int i = 0; i < 12; i++) {
		if (i % 3 != 1)
			close(fd[i]);
	}
	pair_close(&p);
	rig_stop();
	rig_clean();
}

/* --- configuration ------------------------------------------------------------------------ */

static void declines(const char *name, const char *value, const char *line, unsigned warnings)
{
	int count = -1;

	rig_env(name, value);
	if (rig_start(&two) == RY_NET_SUCCESS) {
		CHECK_INT(rig_net->devices(&count), RY_NET_SUCCESS);
		CHECK_INT(count, 0);
		rig_stop();
	}
	CHECK(rig_logged(line));
	CHECK_INT(rig_warnings(), warnings);
	rig_clean();
}

static void mode_off(void)
{
	declines("RAILYARD_MODE", "off", "RAILYARD_MODE=off", 0);
}

static void ib_disabled(void)
{
	declines("NCCL_IB_DISABLE", "1", "NCCL_IB_DISABLE=1", 0);
}

static void no_port(void)
{
	declines("NCCL_IB_HCA", "=nothing", "no usable RDMA port", 1);
}

static void no_library(void)
{
	rig_env("NCCL_IBVERBS_LIB", "/nonexistent/libibverbs.so.1");
	CHECK(rig_abi->init(&rig_ctx) != RY_NET_SUCCESS);
	CHECK(rig_logged("/nonexistent/libibverbs.so.1"));
	CHECK_INT(rig_warnings(), 0);
}

static void values_wrong(void)
{
	rig_env("NCCL_IB_TIMEOUT", "99");
	rig_env("RAILYARD_MODE", "fast");
	rig_env("RAILYARD_SMALL_BYTE", "1");
	rig_env("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1");
	rig_begin(&two);
	CHECK(rig_logged("NCCL_IB_TIMEOUT=99 is not in the allowed range 0..31"));
	CHECK(rig_logged("RAILYARD_MODE=fast is not in the allowed range on|observe|off"));
	CHECK(rig_logged("RAILYARD_SMALL_BYTE is set, but there is no such variable"));
	CHECK(rig_logged("without effect here: NCCL_IB_RESILIENCY_PORT_FAILOVER"));
	end_warned(3);
}

/* --- endings ------------------------------------------------------------------------------ */

/* Requests under way when both ends close: nothing of the buffers is touched afterwards. */
static void close_outstanding(void)
{
	for (int order = 0; order < 4; order++) {
		struct fake_config queued = {.device_count = 2, .delivery = FAKE_QUEUED};
		void *send_mr, *recv_mr, *request;
		char *buffer = rig_buffer(2 * BYTES);
		struct pair p;

		rig_begin(&queued);
		pair_open(&p, rig_device(2), rig_device(2));
		CHECK_INT(rig_net->regMr(p.send, buffer, BYTES, RY_NET_PTR_HOST, &send_mr), 0);
		CHECK_INT(rig_net->regMr(p.recv, buffer + BYTES, BYTES, RY_NET_PTR_HOST, &recv_mr),
			  0);
		for (int i = 0; i < 5; i++)
			rig_irecv(&p, buffer + BYTES, 100, i, recv_mr);
		fake_run();
		for (int i = 0; i < 3; i++) {
			request = rig_isend(&p, buffer, 100, i, send_mr);
			CHECK(request);
		}
		if (order & 1)
			fake_step();
		if (order & 2) {
			CHECK_INT(rig_net->deregMr(p.recv, recv_mr), 0);
			CHECK_INT(rig_net->deregMr(p.send, send_mr), 0);
			pair_close(&p);
		} else {
			CHECK_INT(rig_net->closeRecv(p.recv), 0);
			CHECK_INT(rig_net->closeSend(p.send), 0);
			CHECK_INT(rig_net->deregMr(NULL, recv_mr), 0);
			CHECK_INT(rig_net->deregMr(NULL, send_mr), 0);
			CHECK_INT(rig_net->closeListen(p.listen), 0);
			free(p.handle);
		}
		fake_run();
		rig_end();
		rig_buffer_free(buffer, 2 * BYTES);
	}
}

/* One end closes: the other end's calls say so, without a warning. */
static void close_one(bool is_sender)
{
	enum ry_net_result rc = RY_NET_SUCCESS;
	char *buffer = rig_buffer(BYTES);
	void *mr, *request = NULL;
	struct pair p;
	int done, size;

	rig_begin(&two);
	pair_open(&p, 0, 0);
	CHECK_INT(rig_net->regMr(p.recv, buffer, BYTES, RY_NET_PTR_HOST, &mr), 0);
	if (is_sender) {
		request = rig_irecv(&p, buffer, 10, 0, mr);
		CHECK_INT(rig_net->closeSend(p.send), 0);
		p.send = NULL;
	} else {
		CHECK_INT(rig_net->closeRecv(p.recv), 0);
		p.recv = NULL;
	}
	for (int i = 0; rc == RY_NET_SUCCESS; i++) {
		CHECK(i < 5000);
		rc = is_sender ? rig_net->test(request, &done, &size)
			       : rig_abi->isend(p.send, buffer, 10, 0, mr, &request);
		rig_pause_us(1000);
	}
	CHECK_INT(rc, RY_NET_REMOTE_ERROR);
	CHECK_INT(rig_net->deregMr(p.recv, mr), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(buffer, BYTES);
}

static void close_sender(void)
{
	close_one(true);
}

static void close_receiver(void)
{
	close_one(false);
}

/* An id that is used again must never mean the old keys. */
static void regions_again(void)
{
	char *buffer = rig_buffer((size_t)64 * BYTES);
	void *send_mr, *recv_mr, *recv, *send;
	struct pair p;

	rig_begin(&two);
	pair_open(&p, rig_device(2), rig_device(2));
	CHECK_INT(rig_net->regMr(p.send, buffer, BYTES, RY_NET_PTR_HOST, &send_mr), 0);
	for (int i = 0; i < 500; i++) {
		char *to = buffer + (1 + i % 60) * BYTES;

		CHECK_INT(rig_net->regMr(p.recv, to, BYTES, RY_NET_PTR_HOST, &recv_mr), 0);
		memset(buffer, i, BYTES);
		recv = rig_irecv(&p, to, BYTES, 0, recv_mr);
		send = rig_isend(&p, buffer, BYTES, 0, send_mr);
		rig_wait(recv, BYTES);
		rig_wait(send, BYTES);
		CHECK(memcmp(buffer, to, BYTES) == 0);
		CHECK_INT(rig_net->deregMr(p.recv, recv_mr), 0);
	}
	CHECK_INT(rig_net->deregMr(p.send, send_mr), 0);
	pair_close(&p);
	rig_end();
	rig_buffer_free(buffer, (size_t)64 * BYTES);
}

static void cycles(void)
{
	for (int i = 0; i < 15; i++) {
		struct pair p;

		rig_begin(&two);
		pair_open(&p, rig_device(2), 0);
		traffic_run(&p, &(struct traffic){.groups = 10, .members = 2, .window = 2,
						  .bytes_max = 40000});
		pair_close(&p);
		rig_end();
	}
}

/* finalize at every moment of a set-up that is never finished. */
static void finalize_half_done(void)
{
	for (int steps = 0; steps < 30; steps++) {
		struct pair p;

		rig_begin(&two);
		pair_start(&p, rig_device(2));
		for (int i = 0; i < steps; i++) {
			if (!p.send)
				CHECK_INT(rig_abi->connect(rig_ctx, 0, p.handle, &p.send), 0);
			if (i % 2 && !p.recv)
				CHECK_INT(rig_abi->accept(p.listen, &p.recv), 0);
			rig_pause_us(300);
		}
		if (p.send)
			CHECK_INT(rig_net->closeSend(p.send), 0);
		if (p.recv)
			CHECK_INT(rig_net->closeRecv(p.recv), 0);
		free(p.handle);
		rig_end();
	}
}

static void fork_after_init(void)
{
	struct pair p;
	pid_t child;
	int status;

	rig_begin(&two);
	pair_open(&p, 0, 0);
	child = fork();
	if (child == 0) {
		char handle[RY_NET_HANDLE_BYTES_MAX];
		void *ctx, *comm;

		alarm(10); /* a hang ends here */
		if (rig_abi->init(&ctx) == RY_NET_SUCCESS ||
		    rig_abi->listen(rig_ctx, 0, handle, &comm) == RY_NET_SUCCESS)
			_exit(1);
		(void)rig_abi->finalize(rig_ctx);
		_exit(0);
	}
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK_INT(status, 0);
	traffic_run(&p, &(struct traffic){.groups = 50, .members = 2, .window = 2,
					  .bytes_max = 40000});
	pair_close(&p);
	rig_end();
}

#define CASE(name)                                                                                 \
	{                                                                                          \
		#name, name                                                                        \
	}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		CASE(handle_foreign),
		CASE(handle_damaged),
		CASE(listen_closed),
		CASE(listen_closed_known),
		CASE(process_gone),
		CASE(process_dies),
		CASE(process_stopped),
		CASE(accept_never),
		CASE(listen_closes),
		CASE(strangers),
		CASE(mode_off),
		CASE(ib_disabled),
		CASE(no_port),
		CASE(no_library),
		CASE(values_wrong),
		CASE(close_outstanding),
		CASE(close_sender),
		CASE(close_receiver),
		CASE(regions_again),
		CASE(cycles),
		CASE(finalize_half_done),
		CASE(fork_after_init),
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
