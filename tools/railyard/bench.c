/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench.c - `railyard bench`: from the command line to the exit status.
 *
 * Order in every rank: meet, open the plugin, agree on the plan, connect, then each size: warm up,
 * run, report. Whatever fails, the other ranks are told why, so that none waits for nothing.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_comm.h"
#include "bench_ops.h"
#include "bench_report.h"
#include "bench_watch.h"

static int own_rank = -1;
static volatile sig_atomic_t is_interrupted;
static char first_error[512];

void bench_set_rank(int rank)
{
	own_rank = rank;
}

void bench_error(const char *fmt, ...)
{
	char text[sizeof(first_error)];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (own_rank >= 0) {
		fprintf(stderr, "railyard bench: rank %d: %s\n", own_rank, text);
	} else {
		fprintf(stderr, "railyard bench: %s\n", text);
	}
	if (!first_error[0]) {
		memcpy(first_error, text, sizeof(first_error));
	}
}

const char *bench_error_text(void)
{
	return first_error[0] ? first_error : "unknown error";
}

bool bench_is_interrupted(void)
{
	return is_interrupted != 0;
}

uint64_t bench_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static void note_interrupt(int number)
{
	(void)number;
	is_interrupted = 1;
}

/* A run by time ends in order at the first SIGINT to rank 0, as if its time were over; the others
 * wait for rank 0 to say so. A second one ends the process, as ever. */
static void catch_interrupt(void)
{
	struct sigaction action = {.sa_handler = note_interrupt,
				   .sa_flags = (int)SA_RESETHAND | SA_RESTART};

	sigaction(SIGINT, &action, NULL);
}

static int open_plugin(struct bench_run *run, const struct bench_plan *plan)
{
	const struct bench_local *local = run->local;
	int rc = net_load(run->net, local->plugin, local->abi);

	run->net->time_calls = local->time_calls;
	net_set_log(local->log_level, local->log_times);
	if (!rc) {
		rc = net_init(run->net, plan->traffic_class, plan->comm_id);
	}
	return rc ? rc : comm_choose_devices(run);
}

/* What rank 0 leaves open in the plan until it knows its devices. */
static void complete_plan(const struct bench_run *run, struct bench_plan *plan)
{
	if (!plan->comms) {
		plan->comms = plan->op == BENCH_PINGPONG ? 1 : (uint32_t)run->dev_count;
	}
}

static int check_limits(const struct bench_run *run, const struct bench_plan *plan)
{
	struct bench_props props;
	int rc = net_props(run->net, run->devs[0], &props);

	if (rc) {
		return rc;
	}
	if (props.recvs_max < (int)plan->group) {
		bench_error("--group %u: %s takes groups of at most %d", plan->group, props.name,
			    props.recvs_max);
		return -EINVAL;
	}
	if (plan->chunk_bytes > props.p2p_bytes_max) {
		bench_error("--chunk %llu: %s takes at most %llu bytes",
			    (unsigned long long)plan->chunk_bytes, props.name,
			    (unsigned long long)props.p2p_bytes_max);
		return -EINVAL;
	}
	return 0;
}

/* Rank 0's plan becomes everybody's. An operation named by another rank has to be the same. */
static int agree(struct bench_run *run, struct bench_plan *plan)
{
	uint32_t own_op = plan->op;
	int rc = 0;

	if (run->rank == 0) {
		rc = bench_op_validate(plan, run->ranks);
		if (!rc && getrandom(&plan->comm_id, sizeof(plan->comm_id), 0) < 0) {
			plan->comm_id = bench_now_ns();
		}
		rc = rc ? rc : open_plugin(run, plan);
		if (!rc) {
			complete_plan(run, plan);
		}
	}
	rc = rc ? rc : meet_broadcast(run->meet, plan, sizeof(*plan));
	if (!rc && (plan->size_of_plan != sizeof(*plan) || plan->op >= BENCH_OP_COUNT)) {
		bench_error("rank 0 runs another build: use the same everywhere");
		rc = -EPROTO;
	}
	if (!rc && own_op != BENCH_OP_COUNT && own_op != plan->op) {
		bench_error("told to run %s, but rank 0 runs %s", bench_ops[own_op].name,
			    bench_ops[plan->op].name);
		rc = -EINVAL;
	}
	run->op = rc ? NULL : &bench_ops[plan->op];
	if (!rc && plan->duration_s) {
		catch_interrupt();
	}
	if (!rc && run->rank) {
		rc = open_plugin(run, plan);
	}
	return rc ? rc : check_limits(run, plan);
}

/* Errors seen in the warm-up count; its times do not. */
static void start_meter(struct bench_run *run)
{
	const struct bench_stat before = run->meter.stat;
	bool is_live = run->plan->duration_s && run->plan->interval_ms;
	bool receives = false;

	for (int i = 0; i < run->stream_count; i++) {
		receives |= !run->streams[i].is_send;
	}
	meter_start(&run->meter, bench_now_ns(), run->plan->interval_ms,
		    is_live && receives ? run->rank : -1);
	run->meter.stat.wrong = before.wrong;
	run->meter.stat.bad_sizes = before.bad_sizes;
	run->meter.stat.overruns = before.overruns;
	run->meter.stat.canaries = before.canaries;
}

static int run_size(struct bench_run *run, struct bench_report *report, uint64_t size)
{
	const struct bench_plan *plan = run->plan;
	int rc = 0;

	engine_start_size(run, size);
	meter_start(&run->meter, bench_now_ns(), 0, -1);
	if (plan->warmup) {
		rc = engine_run(run, plan->warmup);
	}
	rc = rc ? rc : meet_barrier(run->meet);
	if (!rc) {
		start_meter(run);
		rc = engine_run(run, plan->duration_s ? 0 : plan->iters);
	}
	rc = rc ? rc : meet_barrier(run->meet);
	if (!rc) {
		engine_check_idle(run);
		rc = report_size(report, run);
	}
	return rc;
}

static int run_sizes(struct bench_run *run, struct bench_report *report)
{
	uint64_t size = run->plan->size_min;
	int rc = report_start(report, run);

	rc = rc ? rc : comm_open(run);
	while (!rc) {
		uint64_t rounded = run->op->round(run, size);

		if (!report_has(report, rounded)) {
			rc = run_size(run, report, rounded);
		}
		size = bench_plan_next_size(run->plan, size);
		if (!size) {
			break;
		}
	}
	return rc ? rc : report_finish(report, run);
}

/* With --linger the others are told late, so that each finds out by itself, if its plugin can. */
static void tell_failure(struct bench_run *run, struct bench_report *report)
{
	struct timespec pause = {.tv_nsec = 100000000};
	uint64_t end_ns = bench_now_ns() + run->plan->linger_s * UINT64_C(1000000000);

	report_failure(report, run, bench_error_text());
	while (!run->lost_ns && run->op && bench_now_ns() < end_ns) {
		enum meet_control kind;
		uint64_t value;
		int from;

		if (meet_poll(run->meet, &kind, &value, &from)) {
			break;
		}
		nanosleep(&pause, NULL);
	}
	meet_abort(run->meet, bench_error_text());
}

/* Returns the exit status. @listen_fd: see meet_open. */
static int run_rank(struct bench_plan *plan, const struct bench_local *local, int rank,
		    int listen_fd)
{
	struct bench_net net = {0};
	struct bench_meet meet;
	struct bench_watch watch = {0};
	struct bench_report report = {0};
	struct bench_run run = {
		.plan = plan, .local = local, .net = &net, .meet = &meet,
		.rank = rank, .ranks = local->ranks,
	};
	int rc;

	bench_set_rank(rank);
	rc = meet_open(&meet, rank, local->ranks, local->meet, listen_fd, plan->timeout_s);
	if (rc) {
		return BENCH_FAILED;
	}
	watch_start(&watch, &net, &meet, plan->timeout_s);
	rc = agree(&run, plan);
	watch_set_timeout(&watch, plan->timeout_s);
	rc = rc ? rc : run_sizes(&run, &report);
	if (rc) {
		tell_failure(&run, &report);
	}
	comm_close(&run);
	watch_stop(&watch);
	net_close(&net);
	meter_fini(&run.meter);
	meet_close(&meet);
	return rc ? BENCH_FAILED : report.faults ? BENCH_WRONG : BENCH_OK;
}

/* ---- several ranks on this host -------------------------------------------------------------- */

/* Any free port of the loopback interface. */
static int listen_anywhere(char *address, size_t bytes)
{
	struct sockaddr_in name;
	socklen_t length = sizeof(name);
	int fd = meet_listen("127.0.0.1:0");

	if (fd >= 0 && getsockname(fd, (struct sockaddr *)&name, &length) == 0) {
		snprintf(address, bytes, "127.0.0.1:%d", ntohs(name.sin_port));
	}
	return fd;
}

static int wait_children(const pid_t *children, int count)
{
	int worst = BENCH_OK;

	for (int i = 0; i < count; i++) {
		int status, code;

		while (waitpid(children[i], &status, 0) < 0 && errno == EINTR) {
		}
		if (WIFSIGNALED(status)) {
			bench_error("process %d ended by signal %d (%s)", (int)children[i],
				    WTERMSIG(status), strsignal(WTERMSIG(status)));
		}
		code = WIFEXITED(status) ? WEXITSTATUS(status) : BENCH_FAILED;
		if (code == BENCH_FAILED || worst == BENCH_OK) {
			worst = code;
		}
	}
	return worst;
}

static int run_local_ranks(struct bench_plan *plan, struct bench_local *local)
{
	pid_t children[BENCH_RANKS_MAX];
	char address[32];
	int listen_fd = -1, count = 0;

	if (local->rank == 0) {
		listen_fd = local->meet ? meet_listen(local->meet)
					: listen_anywhere(address, sizeof(address));
		if (listen_fd < 0) {
			return BENCH_FAILED;
		}
		local->meet = local->meet ? local->meet : address;
	}
	fflush(NULL);
	while (count < local->local) {
		int rank = local->rank + count;
		pid_t child = fork();

		if (child == 0) {
			if (rank && listen_fd >= 0) {
				close(listen_fd);
			}
			exit(run_rank(plan, local, rank, rank ? -1 : listen_fd));
		}
		if (child < 0) {
			bench_error("cannot start rank %d: %s", rank, strerror(errno));
			break;
		}
		children[count++] = child;
	}
	if (listen_fd >= 0) {
		close(listen_fd);
	}
	if (plan->duration_s) {
		signal(SIGINT, SIG_IGN);
	}
	return count < local->local ? (wait_children(children, count), BENCH_FAILED)
				    : wait_children(children, count);
}

int cmd_bench(int argc, char **argv)
{
	struct bench_plan plan;
	struct bench_local local;

	bench_options_parse(argc, argv, &plan, &local);
	if (local.local > 1) {
		return run_local_ranks(&plan, &local);
	}
	return run_rank(&plan, &local, local.rank, -1);
}
