/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rig.c - starting, stopping, connecting; cases and the log. Traffic is in traffic.c.
 */
#include "rig.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "device.h"
#include "plugin.h"

enum {
	LOG_BYTES = 1 << 16
};

extern const struct ry_net_v9 ncclNetPlugin_v9;
extern const struct ry_net_v10 ncclNetPlugin_v10;
extern const struct ry_net_v11 ncclNetPlugin_v11;

const struct ry_net_v11 *const rig_net = &ncclNetPlugin_v11;
void *rig_ctx;

static struct {
	pthread_mutex_t lock;
	char text[LOG_BYTES];
	size_t used;
	unsigned warnings;
} logged = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the log ---- */

static void log_keep(enum ry_net_log_level level, unsigned long flags, const char *file, int line,
		     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void log_keep(enum ry_net_log_level level, unsigned long flags, const char *file, int line,
		     const char *fmt, ...)
{
	char text[1024];
	va_list args;
	int n;

	(void)flags;
	va_start(args, fmt);
	n = vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	CHECK(n >= 0 && (size_t)n < sizeof(text));
	if (getenv("RIG_VERBOSE"))
		fprintf(stderr, "%s %s:%d %s\n", level == RY_NET_LOG_WARN ? "WARN" : "info", file,
			line, text);
	pthread_mutex_lock(&logged.lock);
	logged.warnings += level == RY_NET_LOG_WARN;
	if (logged.used + (size_t)n + 2 < sizeof(logged.text))
		logged.used += (size_t)sprintf(logged.text + logged.used, "%s\n", text);
	pthread_mutex_unlock(&logged.lock);
}

unsigned rig_warnings(void)
{
	unsigned n;

	pthread_mutex_lock(&logged.lock);
	n = logged.warnings;
	pthread_mutex_unlock(&logged.lock);
	return n;
}

bool rig_logged(const char *text)
{
	bool found;

	pthread_mutex_lock(&logged.lock);
	found = strstr(logged.text, text) != NULL;
	pthread_mutex_unlock(&logged.lock);
	return found;
}

void rig_log_clear(void)
{
	pthread_mutex_lock(&logged.lock);
	logged.used = 0;
	logged.text[0] = '\0';
	logged.warnings = 0;
	pthread_mutex_unlock(&logged.lock);
}

void rig_log_print(void)
{
	fprintf(stderr, "--- the plugin's log\n%s---\n", logged.text);
}

void rig_die(const char *file, int line, const char *fmt, ...)
{
	va_list args;

	if (fake_fault())
		fprintf(stderr, "fake verbs: %s\n", fake_fault());
	rig_log_print();
	fprintf(stderr, "%s:%d: ", file, line);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

/* ---- odds and ends ---- */

unsigned rig_scaled(unsigned rounds)
{
	unsigned n = rounds * TEST_SCALE / 100;

	return n ? n : 1;
}

void rig_pause_us(unsigned us)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

uint64_t rig_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

void *rig_buffer(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

void rig_buffer_free(void *buffer, size_t bytes)
{
	munmap(buffer, bytes);
}

static int case_fork(const struct rig_case *c)
{
	pid_t child;
	int status;

	fflush(NULL);
	child = fork();
	if (child == 0) {
		c->fn();
		exit(0);
	}
	waitpid(child, &status, 0);
	printf("%s %s\n", WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "ok    " : "FAILED",
	       c->name);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

int rig_main(int argc, char **argv, const struct rig_case *cases, unsigned count)
{
	int rc = 0;

	for (unsigned i = 0; i < count; i++) {
		if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
			cases[i].fn();
			return 0;
		}
		if (argc == 1)
			rc |= case_fork(&cases[i]);
	}
	if (argc == 1)
		return rc;
	fprintf(stderr, "%s: there is no case %s\n", argv[0], argv[1]);
	return 2;
}

/* ---- ABI versions ---- */

static struct ry_net_config_v10 net_config = {.trafficClass = RY_NET_UNDEF};

static enum ry_net_result init_8(void **ctx)
{
	*ctx = NULL;
	return ncclNetPlugin_v8.init(log_keep);
}

static enum ry_net_result init_9(void **ctx)
{
	*ctx = NULL;
	return ncclNetPlugin_v9.init(log_keep);
}

static enum ry_net_result init_10(void **ctx)
{
	*ctx = NULL;
	return ncclNetPlugin_v10.init(log_keep, NULL);
}

static enum ry_net_result init_11(void **ctx)
{
	return ncclNetPlugin_v11.init(ctx, 1, &net_config, log_keep, NULL);
}

static enum ry_net_result init_12(void **ctx)
{
	return ncclNetPlugin_v12.init(ctx, 1, &net_config, log_keep, NULL);
}

static enum ry_net_result fuse_9(int *dev, int count)
{
	struct ry_net_vdev_v9 v = {.ndevs = count};

	for (int i = 0; i < count; i++)
		v.devs[i] = i;
	return ncclNetPlugin_v9.makeVDevice(dev, &v);
}

static enum ry_net_result fuse_12(int *dev, int count)
{
	struct ry_net_vdev_v12 v = {.ndevs = count};

	for (int i = 0; i < count; i++)
		v.devs[i] = i;
	return ncclNetPlugin_v12.makeVDevice(dev, &v);
}

static enum ry_net_result listen_8(void *ctx, int dev, void *handle, void **comm)
{
	(void)ctx;
	return ncclNetPlugin_v8.listen(dev, handle, comm);
}

static enum ry_net_result connect_8(void *ctx, int dev, void *handle, void **comm)
{
	struct ry_net_device_handle *none;

	(void)ctx;
	return ncclNetPlugin_v8.connect(dev, handle, comm, &none);
}

static enum ry_net_result connect_10(void *ctx, int dev, void *handle, void **comm)
{
	struct ry_net_device_handle *none;

	(void)ctx;
	return ncclNetPlugin_v10.connect(dev, &net_config, handle, comm, &none);
}

static enum ry_net_result connect_11(void *ctx, int dev, void *handle, void **comm)
{
	struct ry_net_device_handle *none;

	return ncclNetPlugin_v11.connect(ctx, dev, handle, comm, &none);
}

static enum ry_net_result accept_8(void *listen, void **comm)
{
	struct ry_net_device_handle *none;

	return ncclNetPlugin_v8.accept(listen, comm, &none);
}

static enum ry_net_result isend_8(void *comm, void *data, size_t bytes, int tag, void *mr,
				  void **request)
{
	return ncclNetPlugin_v8.isend(comm, data, (int)bytes, tag, mr, request);
}

static enum ry_net_result isend_9(void *comm, void *data, size_t bytes, int tag, void *mr,
				  void **request)
{
	return ncclNetPlugin_v9.isend(comm, data, bytes, tag, mr, request);
}

static enum ry_net_result isend_10(void *comm, void *data, size_t bytes, int tag, void *mr,
				   void **request)
{
	return ncclNetPlugin_v10.isend(comm, data, bytes, tag, mr, NULL, request);
}

static enum ry_net_result irecv_8(void *comm, int n, void **data, size_t *bytes, int *tags,
				  void **mrs, void **request)
{
	int narrow[RIG_GROUP_MAX];

	for (int i = 0; i < n; i++)
		narrow[i] = (int)bytes[i];
	return ncclNetPlugin_v8.irecv(comm, n, data, narrow, tags, mrs, request);
}

static enum ry_net_result irecv_9(void *comm, int n, void **data, size_t *bytes, int *tags,
				  void **mrs, void **request)
{
	return ncclNetPlugin_v9.irecv(comm, n, data, bytes, tags, mrs, request);
}

static enum ry_net_result irecv_10(void *comm, int n, void **data, size_t *bytes, int *tags,
				   void **mrs, void **request)
{
	return ncclNetPlugin_v10.irecv(comm, n, data, bytes, tags, mrs, NULL, request);
}

static enum ry_net_result finalize_11(void *ctx)
{
	return ncclNetPlugin_v11.finalize(ctx);
}

static enum ry_net_result listen_11(void *ctx, int dev, void *handle, void **comm)
{
	return ncclNetPlugin_v11.listen(ctx, dev, handle, comm);
}

const struct rig_abi rig_abis[] = {
	{8, init_8, NULL, fuse_9, listen_8, connect_8, accept_8, isend_8, irecv_8},
	{9, init_9, NULL, fuse_9, listen_8, connect_8, accept_8, isend_9, irecv_9},
	{10, init_10, NULL, fuse_9, listen_8, connect_10, accept_8, isend_10, irecv_10},
	{11, init_11, finalize_11, fuse_9, listen_11, connect_11, accept_8, isend_10, irecv_10},
	{12, init_12, finalize_11, fuse_12, listen_11, connect_11, accept_8, isend_10, irecv_10},
};
const struct rig_abi *rig_abi = &rig_abis[3];

/* ---- the process ---- */

void rig_env(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

enum ry_net_result rig_start(const struct fake_config *fakes)
{
	fake_init(fakes);
	return rig_restart();
}

enum ry_net_result rig_restart(void)
{
	static bool is_again;

	verbs = fake_verbs_ops;
	setenv("NCCL_SOCKET_IFNAME", "lo", 0);
	setenv("RAILYARD_BPFFS", "/nonexistent", 0);
	rig_log_clear();
	if (is_again)
		config_reload(); /* the first init reads the environment itself */
	is_again = true;
	return rig_abi->init(&rig_ctx);
}

void rig_begin(const struct fake_config *fakes)
{
	int count = 0;

	CHECK_INT(rig_start(fakes), RY_NET_SUCCESS);
	CHECK_INT(rig_net->devices(&count), RY_NET_SUCCESS);
	CHECK_INT(count, (fakes->device_count ? fakes->device_count : 1) *
				 (fakes->port_count ? fakes->port_count : 1));
}

void rig_stop(void)
{
	if (rig_abi->finalize)
		CHECK_INT(rig_abi->finalize(rig_ctx), RY_NET_SUCCESS);
	else
		plugin_fini();
	device_forget();
}

void rig_clean(void)
{
	char text[128];

	if (fake_fault())
		rig_die(__FILE__, __LINE__, "verbs were used wrongly");
	if (fake_leaks(text, sizeof(text)) != 0)
		rig_die(__FILE__, __LINE__, "left open: %s", text);
}

void rig_end(void)
{
	rig_stop();
	rig_clean();
	CHECK_INT(rig_warnings(), 0);
}

int rig_device(int ports)
{
	int dev = 0;

	if (ports > 1)
		CHECK_INT((ports > RY_NET_VDEV_MAX_V9 ? fuse_12 : rig_abi->fuse)(&dev, ports),
			  RY_NET_SUCCESS);
	return dev;
}

/* ---- one connection ---- */

void pair_start(struct pair *p, int recv_dev)
{
	*p = (struct pair){.handle = calloc(1, RY_NET_HANDLE_BYTES_MAX)};
	CHECK(p->handle);
	CHECK_INT(rig_abi->listen(rig_ctx, recv_dev, p->handle, &p->listen), RY_NET_SUCCESS);
	CHECK(p->listen);
}

bool pair_step(struct pair *p, int send_dev)
{
	if (!p->send)
		CHECK_INT(rig_abi->connect(rig_ctx, send_dev, p->handle, &p->send), RY_NET_SUCCESS);
	if (!p->recv)
		CHECK_INT(rig_abi->accept(p->listen, &p->recv), RY_NET_SUCCESS);
	return p->send && p->recv;
}

void pair_open(struct pair *p, int send_dev, int recv_dev)
{
	pair_start(p, recv_dev);
	for (int i = 0; !pair_step(p, send_dev); i++) {
		CHECK(i < RIG_PATIENCE_MS * 5);
		rig_pause_us(200);
	}
}

void pair_close(struct pair *p)
{
	if (p->send)
		CHECK_INT(rig_net->closeSend(p->send), RY_NET_SUCCESS);
	if (p->recv)
		CHECK_INT(rig_net->closeRecv(p->recv), RY_NET_SUCCESS);
	if (p->listen)
		CHECK_INT(rig_net->closeListen(p->listen), RY_NET_SUCCESS);
	free(p->handle);
	*p = (struct pair){0};
}
