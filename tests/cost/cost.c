/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cost.c - drives both ends of the plugin in one process over devices in memory, for counting.
 *
 *   cost counts PLUGIN FAKE       work requests, completions and doorbells per message beside
 *                                 net_ib's; fails if the plugin needs more of any. The test.
 *   cost instructions PLUGIN FAKE the loops that `run` measures under callgrind: it collects only
 *                                 inside one kind of call at a time, one profile for each.
 *
 * PLUGIN is an ncclNet v11 plugin and FAKE is libibverbs-fake.so.1, whose verbs complete at once.
 * No time is measured and none decides: under valgrind it would mean nothing.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <valgrind/callgrind.h>

#include "fake_verbs.h"
#include "nccl_net.h"

enum {
	DEVICES = 4,
	GROUP_MAX = 8,
	WINDOW_MAX = 8,
	BUFFER_BYTES = 8 << 20,
	WARM_MESSAGES = 512, /* two rounds of the slots: rings and keys are warm */
	SETUP_TRIES = 20000, /* of 1 ms */
};

/* The kinds of calls whose instructions are told apart. */
enum op {
	OP_NONE,
	OP_ISEND,
	OP_IRECV,
	OP_TEST_SEND,
	OP_TEST_RECV,
	OP_COUNT
};

static const char *const op_names[] = {"none", "isend", "irecv", "test_send", "test_recv"};

struct load {
	int devices, group, window;
	size_t bytes;
};

/* Both ends of one connection, and a buffer for each. */
struct rig {
	void *send, *recv, *listen;
	void *send_mr, *recv_mr;
	char *send_buffer, *recv_buffer;
};

static struct ry_net_v11 *net;
static void *net_ctx;
static enum op counted;

static struct {
	__typeof__(fake_init) *init;
	__typeof__(fake_counts_get) *counts_get;
	__typeof__(fake_counts_reset) *counts_reset;
	__typeof__(fake_fault) *fault;
	__typeof__(fake_leaks) *leaks;
} fakes;

static void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fputs("cost: ", stderr);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static void must(enum ry_net_result rc, const char *call)
{
	if (rc != RY_NET_SUCCESS)
		die("%s returned %d%s%s", call, (int)rc, fakes.fault() ? ": " : "",
		    fakes.fault() ? fakes.fault() : "");
}

static void log_print(enum ry_net_log_level level, unsigned long flags, const char *file, int line,
		      const char *fmt, ...)
{
	va_list args;

	(void)flags;
	if (level != RY_NET_LOG_WARN && !getenv("COST_VERBOSE"))
		return;
	va_start(args, fmt);
	fprintf(stderr, "%s:%d ", file, line);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
}

static void sleep_ms(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* The calls */

static void collect(enum op op)
{
	if (op == counted)
		CALLGRIND_TOGGLE_COLLECT;
}

/* Until it is taken: the first sends wait for the peer's keys. */
static void *isend(struct rig *rig, char *data, size_t bytes, int tag)
{
	void *request = NULL;
	enum ry_net_result rc = RY_NET_SUCCESS;

	for (int i = 0; !request && i < SETUP_TRIES; i++) {
		collect(OP_ISEND);
		rc = net->isend(rig->send, data, bytes, tag, rig->send_mr, NULL, &request);
		collect(OP_ISEND);
		must(rc, "isend");
		if (!request)
			sleep_ms();
	}
	if (!request)
		die("isend of %zu bytes is refused for ever", bytes);
	return request;
}

static void *irecv(struct rig *rig, int n, char *data, size_t bytes)
{
	void *buffers[GROUP_MAX], *mrs[GROUP_MAX], *request = NULL;
	size_t sizes[GROUP_MAX];
	int tags[GROUP_MAX];
	enum ry_net_result rc;

	for (int i = 0; i < n; i++) {
		buffers[i] = data + (size_t)i * bytes;
		mrs[i] = rig->recv_mr;
		sizes[i] = bytes;
		tags[i] = i;
	}
	/* The plugin's thread may have the comm for a moment: then it is asked again. */
	for (int i = 0; !request && i < 10000; i++) {
		collect(OP_IRECV);
		rc = net->irecv(rig->recv, n, buffers, sizes, tags, mrs, NULL, &request);
		collect(OP_IRECV);
		must(rc, "irecv");
		if (!request)
			sleep_ms();
	}
	if (!request)
		die("irecv is refused with fewer than %d groups under way", WINDOW_MAX);
	return request;
}

static bool test_once(enum op op, void *request, int *sizes)
{
	enum ry_net_result rc;
	int done = 0;

	collect(op);
	rc = net->test(request, &done, sizes);
	collect(op);
	must(rc, "test");
	return done != 0;
}

static void test_until_done(enum op op, void *request, int *sizes)
{
	for (int i = 0; i < SETUP_TRIES; i++) {
		if (test_once(op, request, sizes))
			return;
		if (i > 10)
			sleep_ms();
	}
	die("a %s is never done%s%s", op == OP_TEST_SEND ? "send" : "receive",
	    fakes.fault() ? ": " : "", fakes.fault() ? fakes.fault() : "");
}

/* One window of groups: all receives, all sends, then all tests. */
static void round_run(struct rig *rig, const struct load *load)
{
	size_t group_bytes = load->bytes * (size_t)load->group;
	void *recvs[WINDOW_MAX], *sends[WINDOW_MAX * GROUP_MAX];

	for (int w = 0; w < load->window; w++)
		recvs[w] = irecv(rig, load->group, rig->recv_buffer + (size_t)w * group_bytes,
				 load->bytes);
	for (int i = 0; i < load->window * load->group; i++)
		sends[i] = isend(rig, rig->send_buffer + (size_t)i * load->bytes, load->bytes,
				 i % load->group);
	for (int i = 0; i < load->window * load->group; i++) {
		int size = -1;

		test_until_done(OP_TEST_SEND, sends[i], &size);
	}
	for (int w = 0; w < load->window; w++) {
		int sizes[GROUP_MAX];

		test_until_done(OP_TEST_RECV, recvs[w], sizes);
		for (int i = 0; i < load->group; i++) {
			if ((size_t)sizes[i] != load->bytes)
				die("a receive says %d bytes, %zu were sent", sizes[i],
				    load->bytes);
		}
	}
}

static int rounds_of(const struct load *load, int messages)
{
	return messages / (load->window * load->group);
}

static void rounds_run(struct rig *rig, const struct load *load, int messages)
{
	for (int i = rounds_of(load, messages); i > 0; i--)
		round_run(rig, load);
}

/* What is counted must also be right: a fresh pattern has to arrive. */
static void verify(struct rig *rig, const struct load *load)
{
	size_t bytes = load->bytes * (size_t)(load->group * load->window);

	for (size_t i = 0; i < bytes; i++)
		rig->send_buffer[i] = (char)(i * 7 + i / 251 + load->bytes);
	memset(rig->recv_buffer, 0, bytes);
	round_run(rig, load);
	if (memcmp(rig->send_buffer, rig->recv_buffer, bytes) != 0)
		die("wrong bytes arrived (%zu bytes, groups of %d, %d devices)", load->bytes,
		    load->group, load->devices);
}

/* Set-up */

static int device_of(int members)
{
	struct ry_net_vdev_v9 vdev = {.ndevs = members};
	int dev = 0;

	if (members == 1)
		return 0;
	for (int i = 0; i < members; i++)
		vdev.devs[i] = i;
	must(net->makeVDevice(&dev, &vdev), "makeVDevice");
	return dev;
}

static char *buffer_make(void)
{
	void *at = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0);

	if (at == MAP_FAILED)
		die("no memory for the buffers");
	return at;
}

static void rig_open(struct rig *rig, int members)
{
	char handle[RY_NET_HANDLE_BYTES_MAX] = {0};
	int dev = device_of(members);

	*rig = (struct rig){.send_buffer = buffer_make(), .recv_buffer = buffer_make()};
	must(net->listen(net_ctx, dev, handle, &rig->listen), "listen");
	for (int i = 0; !(rig->send && rig->recv); i++) {
		if (i == SETUP_TRIES)
			die("connect and accept do not come to an end");
		if (!rig->send)
			must(net->connect(net_ctx, dev, handle, &rig->send, NULL), "connect");
		if (!rig->recv)
			must(net->accept(rig->listen, &rig->recv, NULL), "accept");
		sleep_ms();
	}
	must(net->regMr(rig->send, rig->send_buffer, BUFFER_BYTES, RY_NET_PTR_HOST, &rig->send_mr),
	     "regMr");
	must(net->regMr(rig->recv, rig->recv_buffer, BUFFER_BYTES, RY_NET_PTR_HOST, &rig->recv_mr),
	     "regMr");
}

static void rig_close(struct rig *rig)
{
	must(net->deregMr(rig->send, rig->send_mr), "deregMr");
	must(net->deregMr(rig->recv, rig->recv_mr), "deregMr");
	must(net->closeSend(rig->send), "closeSend");
	must(net->closeRecv(rig->recv), "closeRecv");
	must(net->closeListen(rig->listen), "closeListen");
	munmap(rig->send_buffer, BUFFER_BYTES);
	munmap(rig->recv_buffer, BUFFER_BYTES);
}

static void *symbol(void *library, const char *name)
{
	void *at = dlsym(library, name);

	if (!at)
		die("%s", dlerror());
	return at;
}

static void load_libraries(const char *plugin, const char *fake, uint32_t copy_max)
{
	struct fake_config config = {.device_count = DEVICES, .copy_max = copy_max};
	struct ry_net_config_v10 net_config = {.trafficClass = RY_NET_UNDEF};
	void *library = dlopen(fake, RTLD_NOW | RTLD_LOCAL);
	int count = 0;

	if (!library)
		die("%s", dlerror());
	fakes.init = (__typeof__(fakes.init))symbol(library, "fake_init");
	fakes.counts_get = (__typeof__(fakes.counts_get))symbol(library, "fake_counts_get");
	fakes.counts_reset = (__typeof__(fakes.counts_reset))symbol(library, "fake_counts_reset");
	fakes.fault = (__typeof__(fakes.fault))symbol(library, "fake_fault");
	fakes.leaks = (__typeof__(fakes.leaks))symbol(library, "fake_leaks");
	fakes.init(&config);

	setenv("NCCL_IBVERBS_LIB", fake, 1);
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		die("%s", dlerror());
	net = symbol(library, "ncclNetPlugin_v11");
	must(net->init(&net_ctx, 1, &net_config, log_print, NULL), "init");
	must(net->devices(&count), "devices");
	if (count != DEVICES)
		die("the plugin sees %d devices, %d were made", count, DEVICES);
}

/* Contexts may stay open (a communicator may come again); nothing else may. */
static void finish(void)
{
	char text[128];

	must(net->finalize(net_ctx), "finalize");
	if (fakes.fault())
		die("verbs used wrongly: %s", fakes.fault());
	fakes.leaks(text, sizeof(text));
	if (!strstr(text, " 0 PDs, 0 MRs, 0 CQs, 0 QPs"))
		die("left open after finalize: %s", text);
}

/* counts */

struct tally {
	double send_calls, send_wrs, recv_calls, recv_wrs, cqes;
};

/*
 * net_ib 2.30.7, per group of n messages over d devices: one CTS write and a signaled chain on each
 * device's QP; a chain is n writes, and one more that carries the sizes if n > 1. A receive WR on
 * each QP. One CTS in 256 is signaled.
 */
static struct tally net_ib(const struct load *load)
{
	double n = load->group, d = load->devices;
	double chain = load->group > 1 ? n + 1 : 1;

	return (struct tally){.send_calls = (1 + d) / n,
			      .send_wrs = (1 + d * chain) / n,
			      .recv_calls = d / n,
			      .recv_wrs = d / n,
			      .cqes = (2 * d + 1.0 / 256) / n};
}

static struct tally railyard(struct rig *rig, const struct load *load, int messages)
{
	struct fake_counts c;
	double n = rounds_of(load, messages) * load->window * load->group;

	rounds_run(rig, load, WARM_MESSAGES);
	verify(rig, load);
	fakes.counts_reset();
	rounds_run(rig, load, messages);
	fakes.counts_get(&c);
	return (struct tally){.send_calls = (double)c.post_send_calls / n,
			      .send_wrs = (double)c.send_wrs / n,
			      .recv_calls = (double)c.post_recv_calls / n,
			      .recv_wrs = (double)c.recv_wrs / n,
			      .cqes = (double)c.cqes / n};
}

static bool row_print(const struct load *load, const char *what, double ours, double theirs)
{
	/* Both are sums of whole calls over the same messages: only rounding is forgiven. */
	bool ok = ours <= theirs + 1e-6;

	printf("%7zu B x %d, %d dev, window %d: %-16s %8.4f %8.4f%s\n", load->bytes, load->group,
	       load->devices, load->window, what, ours, theirs, ok ? "" : "  MORE");
	return ok;
}

static bool load_count(struct rig *rig, const struct load *load)
{
	/* Times 256 CTS: whole periods of what either signals only now and then. */
	int messages = (load->bytes > 128 << 10 ? 512 : 2560) * load->group;
	struct tally ours = railyard(rig, load, messages), theirs = net_ib(load);
	bool ok = row_print(load, "post_send calls", ours.send_calls, theirs.send_calls);

	ok &= row_print(load, "send WRs", ours.send_wrs, theirs.send_wrs);
	ok &= row_print(load, "post_recv calls", ours.recv_calls, theirs.recv_calls);
	ok &= row_print(load, "receive WRs", ours.recv_wrs, theirs.recv_wrs);
	ok &= row_print(load, "completions", ours.cqes, theirs.cqes);
	return ok;
}

/* Each kind of traffic has a connection of its own, as NCCL's have. */
static bool kind_count(int members, int group, size_t bytes)
{
	struct rig rig;
	bool ok = true;

	rig_open(&rig, members);
	for (int w = 1; w <= WINDOW_MAX; w += WINDOW_MAX - 1) {
		struct load load = {
			.devices = members, .group = group, .window = w, .bytes = bytes};

		ok &= load_count(&rig, &load);
	}
	rig_close(&rig);
	return ok;
}

static bool counts(void)
{
	static const int members[] = {1, 2, 4};
	bool ok = true;

	printf("%-46s %8s %8s\n", "per message", "Railyard", "net_ib");
	for (int d = 0; d < 3; d++) {
		ok &= kind_count(members[d], 1, 8);
		ok &= kind_count(members[d], 1, 128 << 10);
		ok &= kind_count(members[d], 1, 1 << 20);
		ok &= kind_count(members[d], GROUP_MAX, 8);
	}
	return ok;
}

/* instructions */

static void dump(const struct load *load, const char *op, int calls)
{
	char name[128];

	snprintf(name, sizeof(name), "devices=%d bytes=%zu group=%d window=%d op=%s n=%d",
		 load->devices, load->bytes, load->group, load->window, op, calls);
	CALLGRIND_DUMP_STATS_AT(name);
}

static void load_profile(struct rig *rig, const struct load *load)
{
	enum {
		MESSAGES = 1024
	};

	rounds_run(rig, load, WARM_MESSAGES);
	for (counted = OP_ISEND; counted < OP_COUNT; counted++) {
		rounds_run(rig, load, MESSAGES);
		dump(load, op_names[counted],
		     rounds_of(load, MESSAGES) * load->window * load->group);
	}
	counted = OP_NONE;
}

/* A receive with no send, and a send with no receive: what NCCL does most. */
static void idle_profile(struct rig *rig, int members)
{
	struct load load = {.devices = members, .bytes = 8, .group = 1, .window = 1};
	void *recv, *send, *none = NULL;
	enum {
		CALLS = 1024
	};

	for (int i = 0; i < CALLS; i++) {
		CALLGRIND_TOGGLE_COLLECT;
		net->isend(rig->send, rig->send_buffer, 8, 0, rig->send_mr, NULL, &none);
		CALLGRIND_TOGGLE_COLLECT;
		if (none)
			die("isend was taken without an irecv");
	}
	dump(&load, "refused_isend", CALLS);
	recv = irecv(rig, 1, rig->recv_buffer, 8);
	counted = OP_TEST_RECV;
	for (int i = 0; i < CALLS; i++) {
		int size;

		if (test_once(OP_TEST_RECV, recv, &size))
			die("a receive was done without a send");
	}
	counted = OP_NONE;
	dump(&load, "empty_test", CALLS);
	send = isend(rig, rig->send_buffer, 8, 0);
	test_until_done(OP_TEST_SEND, send, &(int){0});
	test_until_done(OP_TEST_RECV, recv, &(int){0});
}

static void instructions(void)
{
	static const int members[] = {1, 2, 4};

	for (int d = 0; d < 3; d++) {
		struct rig rig;

		rig_open(&rig, members[d]);
		for (int w = 1; w <= WINDOW_MAX; w += WINDOW_MAX - 1) {
			struct load load = {
				.devices = members[d], .group = 1, .window = w, .bytes = 8};

			load_profile(&rig, &load);
			load.bytes = 128 << 10;
			load_profile(&rig, &load);
			load.bytes = 8;
			load.group = GROUP_MAX;
			load_profile(&rig, &load);
		}
		idle_profile(&rig, members[d]);
		rig_close(&rig);
	}
}

int main(int argc, char **argv)
{
	bool is_counts = argc == 4 && strcmp(argv[1], "counts") == 0;
	bool ok = true;

	if (!is_counts && !(argc == 4 && strcmp(argv[1], "instructions") == 0)) {
		fprintf(stderr, "usage: cost counts|instructions PLUGIN FAKE_VERBS_LIBRARY\n");
		return 2;
	}
	load_libraries(argv[2], argv[3], is_counts ? 0 : 4096);
	if (is_counts)
		ok = counts();
	else
		instructions();
	finish();
	return ok ? 0 : 1;
}
