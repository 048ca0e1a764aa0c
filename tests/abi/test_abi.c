/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_abi.c - what NCCL's loader relies on, checked on the plugin's shared object itself.
 *
 * test_abi CASE PLUGIN [FAKE]: one case per process, since an engine's start is once per process.
 * With FAKE (libibverbs-fake.so.1) there are four devices; without it whatever this machine has,
 * usually none, where a clean refusal is all that is asked for.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_verbs.h"
#include "nccl_net.h"

enum { FAKE_DEVICES = 4 };

#define EXPECT(condition)                                                               \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

struct plugin {
	void *lib;
	const struct ry_net_v8 *v8;
	const struct ry_net_v9 *v9;
	const struct ry_net_v10 *v10;
	const struct ry_net_v11 *v11;
	const struct ry_net_v12 *v12;
};

static struct {
	int (*init)(const struct fake_config *config);
	const char *(*fault)(void);
	int (*leaks)(char *text, size_t text_bytes);
} fake;

__attribute__((format(printf, 5, 6)))
static void log_line(enum ry_net_log_level level, unsigned long flags, const char *file, int line,
		     const char *fmt, ...)
{
	(void)level;
	(void)flags;
	(void)file;
	(void)line;
	EXPECT(fmt != NULL);
}

static struct plugin load(const char *path)
{
	struct plugin p = {.lib = dlopen(path, RTLD_NOW | RTLD_LOCAL)};

	if (!p.lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	p.v8 = dlsym(p.lib, "ncclNetPlugin_v8");
	p.v9 = dlsym(p.lib, "ncclNetPlugin_v9");
	p.v10 = dlsym(p.lib, "ncclNetPlugin_v10");
	p.v11 = dlsym(p.lib, "ncclNetPlugin_v11");
	p.v12 = dlsym(p.lib, "ncclNetPlugin_v12");
	EXPECT(p.v8 && p.v9 && p.v10 && p.v11 && p.v12);
	return p;
}

/* The plugin opens the library that this names; opened here first, it is the same copy. */
static void load_fake(const char *path)
{
	struct fake_config config = {.device_count = FAKE_DEVICES};
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	EXPECT(lib != NULL);
	fake.init = (int (*)(const struct fake_config *))dlsym(lib, "fake_init");
	fake.fault = (const char *(*)(void))dlsym(lib, "fake_fault");
	fake.leaks = (int (*)(char *, size_t))dlsym(lib, "fake_leaks");
	EXPECT(fake.init && fake.fault && fake.leaks);
	EXPECT(fake.init(&config) == 0);
	EXPECT(setenv("NCCL_IBVERBS_LIB", path, 1) == 0);
}

static int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;

	EXPECT(dir != NULL);
	while (readdir(dir)) {
		count++;
	}
	closedir(dir);
	return count;
}

static int threads(void)
{
	return count_entries("/proc/self/task");
}

static int descriptors(void)
{
	return count_entries("/proc/self/fd");
}

static void *init_v11(const struct plugin *p)
{
	struct ry_net_config_v10 config = {.trafficClass = RY_NET_UNDEF};
	void *ctx = NULL;

	EXPECT(p->v11->init(&ctx, 7, &config, log_line, NULL) == RY_NET_SUCCESS);
	return ctx;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void walk(const char *name, const void *table, size_t bytes, const size_t *optional,
		 size_t optional_count)
{
	EXPECT(strcmp(*(const char *const *)table, "Railyard") == 0);
	for (size_t at = sizeof(void *); at < bytes; at += sizeof(void *)) {
		void *member;
		bool may_be_null = false;

		memcpy(&member, (const char *)table + at, sizeof(member));
		for (size_t i = 0; i < optional_count; i++) {
			may_be_null |= optional[i] == at;
		}
		if (!member && !may_be_null) {
			fprintf(stderr, "%s: the member at byte %zu is NULL\n", name, at);
			exit(1);
		}
	}
}

static void tables(const struct plugin *p)
{
	const size_t optional[] = {offsetof(struct ry_net_v12, getDeviceMr),
				   offsetof(struct ry_net_v12, irecvConsumed),
				   offsetof(struct ry_net_v12, setNetAttr)};

	walk("v8", p->v8, sizeof(*p->v8), optional, 3);
	walk("v9", p->v9, sizeof(*p->v9), optional, 3);
	walk("v10", p->v10, sizeof(*p->v10), optional, 3);
	walk("v11", p->v11, sizeof(*p->v11), optional, 3);
	walk("v12", p->v12, sizeof(*p->v12), optional, 3);
}

/* Whatever this machine has: init works or refuses, and no thread or descriptor piles up. */
static void any_machine(const struct plugin *p)
{
	struct ry_net_config_v10 config = {.trafficClass = RY_NET_UNDEF};
	int thread_count = threads(), fd_count = 0;

	for (int round = 0; round < 3; round++) {
		void *ctx = NULL;
		int count = -1;

		if (p->v12->init(&ctx, 1, &config, log_line, NULL) != RY_NET_SUCCESS) {
			printf("init refuses on this machine\n");
		} else {
			EXPECT(p->v12->devices(&count) == RY_NET_SUCCESS && count >= 0);
			printf("%d devices\n", count);
			EXPECT(p->v12->finalize(ctx) == RY_NET_SUCCESS);
		}
		EXPECT(threads() == thread_count);
		EXPECT(round == 0 || descriptors() == fd_count);
		fd_count = descriptors();
	}
}

/* One context per communicator; the engine lives from the first init to the last finalize. Devices,
 * once opened, stay open: NCCL keeps their numbers. */
static void contexts(const struct plugin *p)
{
	int thread_count = threads(), fd_count = 0, open_count = 0, count;

	for (int round = 0; round < 3; round++) {
		void *first = init_v11(p), *second = init_v11(p);

		EXPECT(first && second && first != second);
		EXPECT(threads() > thread_count);
		EXPECT(p->v11->devices(&count) == RY_NET_SUCCESS && count == FAKE_DEVICES);
		EXPECT(p->v11->finalize(first) == RY_NET_SUCCESS);
		EXPECT(threads() > thread_count);
		EXPECT(p->v11->devices(&count) == RY_NET_SUCCESS && count == FAKE_DEVICES);
		EXPECT(p->v11->finalize(second) == RY_NET_SUCCESS);
		/* The first round may leave a thread of the sanitizer's own. */
		EXPECT((round == 0 || threads() == thread_count) && fake.fault() == NULL);
		thread_count = threads();
		EXPECT(round == 0 || descriptors() == fd_count);
		EXPECT(round == 0 || fake.leaks(NULL, 0) == open_count);
		fd_count = descriptors();
		open_count = fake.leaks(NULL, 0);
	}
}

/* The versions tell the same of a device, as far as each can. */
static void properties(const struct plugin *p)
{
	void *ctx = init_v11(p);

	for (int dev = 0; dev < FAKE_DEVICES; dev++) {
		struct ry_net_props_v8 a;
		struct ry_net_props_v9 b, c;
		struct ry_net_props_v11 d;
		struct ry_net_props_v12 e;

		EXPECT(p->v8->getProperties(dev, &a) == RY_NET_SUCCESS);
		EXPECT(p->v9->getProperties(dev, &b) == RY_NET_SUCCESS);
		EXPECT(p->v10->getProperties(dev, &c) == RY_NET_SUCCESS);
		EXPECT(p->v11->getProperties(dev, &d) == RY_NET_SUCCESS);
		EXPECT(p->v12->getProperties(dev, &e) == RY_NET_SUCCESS);
		EXPECT(strcmp(a.name, e.name) == 0 && strcmp(b.name, e.name) == 0);
		EXPECT(a.speed == e.speed && b.speed == e.speed && d.speed == e.speed);
		EXPECT(a.speed > 0 && a.guid == e.guid && a.port == e.port);
		EXPECT(a.maxRecvs == 8 && c.maxRecvs == 8 && e.maxRecvs == 8);
		EXPECT(a.netDeviceType == RY_NET_DEVICE_HOST && (a.ptrSupport & RY_NET_PTR_HOST));
		EXPECT(b.vProps.ndevs == 1 && b.vProps.devs[0] == dev);
		EXPECT(e.vProps.ndevs == 1 && e.vProps.devs[0] == dev);
		EXPECT(b.maxP2pBytes > 0 && b.maxP2pBytes <= RY_NET_BYTES_MAX);
		EXPECT(e.maxP2pBytes == b.maxP2pBytes && d.maxMultiRequestSize == 1);
	}
	for (int dev = -1; dev <= FAKE_DEVICES; dev += FAKE_DEVICES + 1) {
		struct ry_net_props_v12 e;

		EXPECT(p->v12->getProperties(dev, &e) != RY_NET_SUCCESS);
	}
	EXPECT(p->v11->finalize(ctx) == RY_NET_SUCCESS);
}

static void fusion(const struct plugin *p)
{
	void *ctx = init_v11(p);
	struct ry_net_vdev_v9 two = {.ndevs = 2, .devs = {0, 1}};
	struct ry_net_vdev_v12 four = {.ndevs = 4, .devs = {0, 1, 2, 3}};
	struct ry_net_vdev_v9 wrong = {.ndevs = 2, .devs = {0, FAKE_DEVICES + 20}};
	struct ry_net_props_v12 one, props;
	int dev = -1, other = -1;

	EXPECT(p->v12->getProperties(0, &one) == RY_NET_SUCCESS);
	EXPECT(p->v11->makeVDevice(&dev, &two) == RY_NET_SUCCESS && dev >= FAKE_DEVICES);
	EXPECT(p->v12->getProperties(dev, &props) == RY_NET_SUCCESS);
	EXPECT(props.vProps.ndevs == 2 && props.vProps.devs[1] == 1);
	EXPECT(props.speed == 2 * one.speed && strchr(props.name, '+') != NULL);
	EXPECT(p->v12->makeVDevice(&other, &four) == RY_NET_SUCCESS && other > dev);
	EXPECT(p->v12->getProperties(other, &props) == RY_NET_SUCCESS);
	EXPECT(props.vProps.ndevs == 4 && props.speed == 4 * one.speed);
	EXPECT(p->v9->makeVDevice(&dev, &wrong) != RY_NET_SUCCESS);
	EXPECT(p->v11->finalize(ctx) == RY_NET_SUCCESS);
}

/* v8 to v10 know no finalize: their init may be called again, and the library go and come back. */
static void reload(struct plugin *p, const char *path)
{
	int count = -1;

	EXPECT(p->v8->init(log_line) == RY_NET_SUCCESS);
	EXPECT(p->v10->init(log_line, NULL) == RY_NET_SUCCESS);
	EXPECT(dlclose(p->lib) == 0);
	*p = load(path);
	EXPECT(p->v8->devices(&count) == RY_NET_SUCCESS && count == FAKE_DEVICES);
	EXPECT(p->v8->init(log_line) == RY_NET_SUCCESS);

	void *ctx = init_v11(p);

	EXPECT(p->v11->finalize(ctx) == RY_NET_SUCCESS);
	EXPECT(dlclose(p->lib) == 0);
	*p = load(path);
	tables(p);
	ctx = init_v11(p);
	EXPECT(p->v11->devices(&count) == RY_NET_SUCCESS && count == FAKE_DEVICES);
	EXPECT(p->v11->finalize(ctx) == RY_NET_SUCCESS);
}

/* A child of an initialised process has none of its threads: it must be told, not hang. */
static void fork_after_init(const struct plugin *p)
{
	struct ry_net_config_v10 config = {.trafficClass = RY_NET_UNDEF};
	void *ctx = init_v11(p), *more = NULL;
	int status;
	pid_t child = fork();

	EXPECT(child >= 0);
	if (child == 0) {
		alarm(10);
		_exit(p->v11->init(&more, 1, &config, log_line, NULL) == RY_NET_SUCCESS);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT(p->v11->finalize(ctx) == RY_NET_SUCCESS);
}

static void mode_off(const struct plugin *p)
{
	struct ry_net_config_v10 config = {.trafficClass = RY_NET_UNDEF};
	void *ctx = NULL;
	int thread_count = threads();

	EXPECT(setenv("RAILYARD_MODE", "off", 1) == 0);
	EXPECT(p->v8->init(log_line) != RY_NET_SUCCESS);
	EXPECT(p->v12->init(&ctx, 1, &config, log_line, NULL) != RY_NET_SUCCESS);
	EXPECT(threads() == thread_count);
}

int main(int argc, char **argv)
{
	struct plugin p;

	if (argc < 3) {
		fprintf(stderr, "usage: %s CASE PLUGIN [FAKE]\n", argv[0]);
		return 2;
	}
	if (argc > 3) {
		load_fake(argv[3]);
	}
	p = load(argv[2]);
	if (strcmp(argv[1], "tables") == 0) {
		tables(&p);
	} else if (strcmp(argv[1], "any_machine") == 0) {
		any_machine(&p);
	} else if (strcmp(argv[1], "contexts") == 0) {
		contexts(&p);
	} else if (strcmp(argv[1], "properties") == 0) {
		properties(&p);
	} else if (strcmp(argv[1], "fusion") == 0) {
		fusion(&p);
	} else if (strcmp(argv[1], "reload") == 0) {
		reload(&p, argv[2]);
	} else if (strcmp(argv[1], "fork_after_init") == 0) {
		fork_after_init(&p);
	} else if (strcmp(argv[1], "mode_off") == 0) {
		mode_off(&p);
	} else {
		fprintf(stderr, "no case %s\n", argv[1]);
		return 2;
	}
	return 0;
}
