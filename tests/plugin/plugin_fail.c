/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_fail.c - every verbs call fails once: set-up, registration, messages and close end in
 * success or in an error that was logged, in bounded time, and nothing is left open.
 */
#include "rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	BYTES = 200000, /* several pieces */
	MESSAGES = 6,
	END_MS = 5000, /* by when the other end has noticed too */
	NO_SUCH_CALL = 10
};

struct script {
	struct pair p;
	char *send_buffer, *recv_buffer;
	void *send_mr, *recv_mr;
	enum ry_net_result send_rc, recv_rc; /* the first that was not success */
};

static bool is_over(const struct script *s)
{
	return s->send_rc != RY_NET_SUCCESS && s->recv_rc != RY_NET_SUCCESS;
}

/* Until both are there, or one has failed and the other too (or cannot know of it). */
static bool set_up(struct script *s, int dev)
{
	struct pair *p = &s->p;

	for (int i = 0; !(p->send && p->recv); i++) {
		if (!p->send && !s->send_rc)
			s->send_rc = rig_abi->connect(rig_ctx, dev, p->handle, &p->send);
		if (!p->recv && !s->recv_rc)
			s->recv_rc = rig_abi->accept(p->listen, &p->recv);
		if (s->send_rc && p->recv)
			return false; /* accept was faster: the comm says so where it is used */
		if (is_over(s) || (s->send_rc && i > 200))
			return false;
		CHECK(i < RIG_PATIENCE_MS);
		/* A refused sender knows at once. */
		CHECK(!(s->recv_rc && i > END_MS));
		rig_pause_us(1000);
	}
	return true;
}

static void *send_take(struct script *s, int i)
{
	void *request = NULL;

	s->send_rc = rig_abi->isend(s->p.send, s->send_buffer + i * BYTES, BYTES, i, s->send_mr,
				    &request);
	return s->send_rc ? NULL : request;
}

static void *recv_take(struct script *s, int i)
{
	void *data = s->recv_buffer + i * BYTES, *request = NULL;
	size_t bytes = BYTES;

	s->recv_rc = rig_abi->irecv(s->p.recv, 1, &data, &bytes, &i, &s->recv_mr, &request);
	return s->recv_rc ? NULL : request;
}

/* One end's view of message i: 1 done, 0 not yet. */
static int end_step(struct script *s, bool is_send, int i, void **request)
{
	enum ry_net_result *rc = is_send ? &s->send_rc : &s->recv_rc;
	int done = 0, size;

	if (*rc)
		return 0;
	if (!*request)
		*request = is_send ? send_take(s, i) : recv_take(s, i);
	else
		*rc = rig_net->test(*request, &done, &size);
	if (done && !*rc)
		CHECK_INT(size, BYTES);
	return done;
}

/* A failed end is closed, as NCCL does when it aborts: then the other end must notice. */
static void failed_close(struct script *s)
{
	if (s->send_rc && s->p.send) {
		CHECK_INT(rig_net->closeSend(s->p.send), RY_NET_SUCCESS);
		s->p.send = NULL;
	}
	if (s->recv_rc && s->p.recv) {
		CHECK_INT(rig_net->closeRecv(s->p.recv), RY_NET_SUCCESS);
		s->p.recv = NULL;
	}
}

static bool message(struct script *s, int i)
{
	void *send = NULL, *recv = NULL;
	bool sent = false, received = false;

	memset(s->send_buffer + i * BYTES, i + 1, BYTES);
	for (int n = 0; !(sent && received) && !is_over(s); n++) {
		if (!received)
			received = end_step(s, false, i, &recv) != 0;
		if (!sent)
			sent = end_step(s, true, i, &send) != 0;
		failed_close(s);
		if ((s->send_rc && received) || (s->recv_rc && sent))
			return false; /* done at one end before the other failed */
		CHECK(n < END_MS);
		if (n > 100)
			rig_pause_us(1000);
	}
	if (is_over(s))
		return false;
	CHECK(memcmp(s->send_buffer + i * BYTES, s->recv_buffer + i * BYTES, BYTES) == 0);
	return true;
}

static void script_run(struct script *s, int dev)
{
	if (!set_up(s, dev))
		return;
	s->send_rc = rig_net->regMr(s->p.send, s->send_buffer, BYTES * MESSAGES, RY_NET_PTR_HOST,
				    &s->send_mr);
	s->recv_rc = rig_net->regMr(s->p.recv, s->recv_buffer, BYTES * MESSAGES, RY_NET_PTR_HOST,
				    &s->recv_mr);
	if (s->send_rc || s->recv_rc)
		return;
	for (int i = 0; i < MESSAGES && message(s, i); i++) {
	}
}

static void script_close(struct script *s)
{
	if (s->send_mr)
		(void)rig_net->deregMr(s->p.send, s->send_mr);
	if (s->recv_mr)
		(void)rig_net->deregMr(s->p.recv, s->recv_mr);
	pair_close(&s->p);
}

/* What is not destroyed because destroying failed is no leak of ours. */
static bool is_destroyer(const char *call)
{
	return strncmp(call, "de", 2) == 0 || strcmp(call, "close_device") == 0;
}

static void end_check(const struct script *s, const char *failed, unsigned n, int error)
{
	char text[128];
	bool error_seen = s->send_rc || s->recv_rc;

	if (fake_fault())
		rig_die(__FILE__, __LINE__, "call %u (%s): verbs used wrongly", n, failed);
	if (!(failed && is_destroyer(failed)) && fake_leaks(text, sizeof(text)) != 0)
		rig_die(__FILE__, __LINE__, "call %u (%s): left open: %s", n, failed, text);
	if (error_seen && rig_warnings() == 0)
		rig_die(__FILE__, __LINE__, "call %u (%s): an error and no line", n, failed);
	if (failed && strncmp(failed, "de", 2) == 0 && rig_warnings() == 0)
		rig_die(__FILE__, __LINE__, "call %u (%s): what is left open is not said", n,
			failed);
	if (error == ETIMEDOUT && failed && strcmp(failed, "modify_qp") == 0 && error_seen)
		rig_die(__FILE__, __LINE__, "call %u: modify_qp is not tried again", n);
	if (!failed && (error_seen || rig_warnings() != 0))
		rig_die(__FILE__, __LINE__, "nothing failed, yet there was an error");
	if (rig_warnings() > 4)
		rig_die(__FILE__, __LINE__, "call %u (%s): %u lines", n, failed, rig_warnings());
}

static const char *run(const struct fake_config *fakes, int ports, unsigned n, int error)
{
	struct script s = {.send_buffer = rig_buffer((size_t)BYTES * MESSAGES),
			   .recv_buffer = rig_buffer((size_t)BYTES * MESSAGES)};
	const char *failed;
	int dev;

	rig_begin(fakes);
	dev = rig_device(ports);
	pair_start(&s.p, dev);
	fake_fail_nth(n, error);
	script_run(&s, dev);
	script_close(&s);
	rig_stop();
	failed = fake_failed();
	end_check(&s, failed, n, error);
	return failed;
}

/* Ends the child that made call n fail. What the fake still holds is no leak for LeakSanitizer. */
static void child_end(const char *failed) __attribute__((noreturn));
static void child_end(const char *failed)
{
	if (failed && is_destroyer(failed))
		_exit(0);
	exit(failed ? 0 : NO_SUCH_CALL);
}

/* Returns whether there was an n-th call; a process each, so that each is checked for leaks. */
static bool child_wait(pid_t child)
{
	int status;

	CHECK(child > 0);
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status));
	if (WEXITSTATUS(status) == NO_SUCH_CALL)
		return false;
	CHECK_INT(WEXITSTATUS(status), 0);
	return true;
}

static bool run_alone(const struct fake_config *fakes, int ports, unsigned n, int error)
{
	pid_t child = fork();

	if (child == 0)
		child_end(run(fakes, ports, n, error));
	return child_wait(child);
}

static void all_calls(const struct fake_config *fakes, int ports, int error)
{
	unsigned n = 1;
	unsigned step = TEST_SCALE < 100 ? 3 : 1;

	while (run_alone(fakes, ports, n, error))
		n += step;
	printf("       %d ports: %u calls\n", ports, n - 1);
	CHECK(n > 40);
}

static void one_port(void)
{
	all_calls(&(struct fake_config){.device_count = 1}, 1, EIO);
}

static void two_ports(void)
{
	all_calls(&(struct fake_config){.device_count = 2}, 2, ENOMEM);
}

static void gpu_ports(void)
{
	all_calls(&(struct fake_config){.device_count = 2, .dmabuf = true}, 2, EIO);
}

static void timed_out(void)
{
	rig_env("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1");
	all_calls(&(struct fake_config){.device_count = 1}, 1, ETIMEDOUT);
}

/* Discovery: a device that fails is left out, or init fails; never more. */
static const char *init_run(unsigned n)
{
	const char *failed;
	char text[128];
	int count = 2;

	fake_init(&(struct fake_config){.device_count = 2});
	fake_fail_nth(n, EIO);
	if (rig_restart() == RY_NET_SUCCESS) {
		CHECK_INT(rig_net->devices(&count), RY_NET_SUCCESS);
		CHECK(count >= 0 && count <= 2);
		rig_stop();
	}
	failed = fake_failed();
	CHECK(!fake_fault());
	if (!(failed && is_destroyer(failed)) && fake_leaks(text, sizeof(text)) != 0)
		rig_die(__FILE__, __LINE__, "call %u (%s): left open: %s", n, failed, text);
	CHECK(failed || count == 2);
	return failed;
}

static void init(void)
{
	bool again = true;
	unsigned n = 0;

	while (again) {
		pid_t child = fork();

		n++;
		if (child == 0)
			child_end(init_run(n));
		again = child_wait(child);
	}
	CHECK(n > 5);
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"one_port", one_port},	  {"two_ports", two_ports}, {"gpu_ports", gpu_ports},
		{"timed_out", timed_out}, {"init", init},
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
