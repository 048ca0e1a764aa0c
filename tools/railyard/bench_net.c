/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE
#include "bench_net.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

/* The calls whose signature depends on the ABI version. */
struct bench_abi {
	int version;
	const char *symbol;
	int merge_max;
	void (*bind)(struct bench_net *net);
	enum ry_net_result (*init)(struct bench_net *net, uint64_t comm_id);
	enum ry_net_result (*props)(struct bench_net *net, int dev, struct bench_props *props);
	enum ry_net_result (*listen)(struct bench_net *net, int dev, void *handle, void **comm);
	enum ry_net_result (*connect)(struct bench_net *net, int dev, void *handle, void **comm);
	enum ry_net_result (*isend)(struct bench_net *net, void *comm, void *data, size_t bytes,
				    int tag, void *mhandle, void **request);
	enum ry_net_result (*irecv)(struct bench_net *net, void *comm, int n, void **data,
				    const size_t *bytes, int *tags, void **mhandles,
				    void **request);
	enum ry_net_result (*merge)(struct bench_net *net, const int *devs, int count, int *dev);
	enum ry_net_result (*finalize)(struct bench_net *net);	/* NULL before v11 */
};

static char poison;			/* its address in *request must not survive a call */
static int log_level_max = RY_NET_LOG_WARN;
static bool has_log_times;

__attribute__((format(printf, 5, 6)))
static void log_line(enum ry_net_log_level level, unsigned long flags, const char *file, int line,
		     const char *fmt, ...)
{
	static const char *const names[] = {"", "", "WARN", "INFO", "ABORT", "TRACE"};
	char text[1024], when[40] = "";
	struct timespec now;
	va_list args;

	(void)flags;
	if ((int)level > log_level_max) {
		return;
	}
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (has_log_times) {
		clock_gettime(CLOCK_REALTIME, &now);
		snprintf(when, sizeof(when), "%lld.%06ld ", (long long)now.tv_sec,
			 now.tv_nsec / 1000);
	}
	fprintf(stderr, "[%d] %s %s%s:%d %s\n", (int)getpid(),
		level <= RY_NET_LOG_TRACE ? names[level] : "?", when, file ? file : "?", line,
		text);
}

static enum ry_net_result profiler_event(void **ehandle, int type, void *phandle,
					 int64_t plugin_id, void *ext_data)
{
	(void)ehandle;
	(void)type;
	(void)phandle;
	(void)plugin_id;
	(void)ext_data;
	return RY_NET_SUCCESS;
}

const char *net_result_name(enum ry_net_result result)
{
	switch (result) {
	case RY_NET_SUCCESS:
		return "success";
	case RY_NET_UNHANDLED_CUDA_ERROR:
		return "unhandled CUDA error";
	case RY_NET_SYSTEM_ERROR:
		return "system error";
	case RY_NET_INTERNAL_ERROR:
		return "internal error";
	case RY_NET_INVALID_ARGUMENT:
		return "invalid argument";
	case RY_NET_INVALID_USAGE:
		return "invalid usage";
	case RY_NET_REMOTE_ERROR:
		return "remote error";
	case RY_NET_IN_PROGRESS:
		return "in progress";
	}
	return "unknown result";
}

/* ---- one table each -------------------------------------------------------------------------- */

#define TABLE(v) ((const struct ry_net_v##v *)net->table)

#define DEFINE_BIND(v)                                         \
	static void bind_v##v(struct bench_net *net)           \
	{                                                      \
		net->name = TABLE(v)->name;                    \
		net->devices = TABLE(v)->devices;              \
		net->accept = TABLE(v)->accept;                \
		net->regMr = TABLE(v)->regMr;                  \
		net->deregMr = TABLE(v)->deregMr;              \
		net->test = TABLE(v)->test;                    \
		net->closeSend = TABLE(v)->closeSend;          \
		net->closeRecv = TABLE(v)->closeRecv;          \
		net->closeListen = TABLE(v)->closeListen;      \
	}
DEFINE_BIND(8)
DEFINE_BIND(9)
DEFINE_BIND(10)
DEFINE_BIND(11)
DEFINE_BIND(12)

static enum ry_net_result init_v8(struct bench_net *net, uint64_t comm_id)
{
	(void)comm_id;
	return TABLE(8)->init(log_line);
}

static enum ry_net_result init_v9(struct bench_net *net, uint64_t comm_id)
{
	(void)comm_id;
	return TABLE(9)->init(log_line);
}

static enum ry_net_result init_v10(struct bench_net *net, uint64_t comm_id)
{
	(void)comm_id;
	return TABLE(10)->init(log_line, profiler_event);
}

static enum ry_net_result init_v11(struct bench_net *net, uint64_t comm_id)
{
	return TABLE(11)->init(&net->ctx, comm_id, &net->config, log_line, profiler_event);
}

static enum ry_net_result init_v12(struct bench_net *net, uint64_t comm_id)
{
	return TABLE(12)->init(&net->ctx, comm_id, &net->config, log_line, profiler_event);
}

#define COPY_PROPS_V8(out, in)                                                                     \
	do {                                                                                       \
		snprintf((out)->name, sizeof((out)->name), "%s", (in)->name ? (in)->name : "?");   \
		snprintf((out)->pci_path, sizeof((out)->pci_path), "%s",                           \
			 (in)->pciPath ? (in)->pciPath : "");                                      \
		(out)->guid = (in)->guid;                                                          \
		(out)->port = (in)->port;                                                          \
		(out)->speed_mbps = (in)->speed;                                                   \
		(out)->ptr_support = (in)->ptrSupport;                                             \
		(out)->comms_max = (in)->maxComms;                                                 \
		(out)->recvs_max = (in)->maxRecvs;                                                 \
	} while (0)

#define COPY_PROPS_V9(out, in)                                                                     \
	do {                                                                                       \
		COPY_PROPS_V8(out, in);                                                            \
		(out)->member_count = (in)->vProps.ndevs;                                          \
		(out)->p2p_bytes_max = (in)->maxP2pBytes;                                          \
	} while (0)

static enum ry_net_result props_v8(struct bench_net *net, int dev, struct bench_props *out)
{
	struct ry_net_props_v8 in = {0};
	enum ry_net_result result = TABLE(8)->getProperties(dev, &in);

	COPY_PROPS_V8(out, &in);
	out->p2p_bytes_max = RY_NET_P2P_BYTES_MAX_V8;
	return result;
}

static enum ry_net_result props_v9(struct bench_net *net, int dev, struct bench_props *out)
{
	struct ry_net_props_v9 in = {0};
	enum ry_net_result result = TABLE(9)->getProperties(dev, &in);

	COPY_PROPS_V9(out, &in);
	return result;
}

static enum ry_net_result props_v10(struct bench_net *net, int dev, struct bench_props *out)
{
	struct ry_net_props_v9 in = {0};
	enum ry_net_result result = TABLE(10)->getProperties(dev, &in);

	COPY_PROPS_V9(out, &in);
	return result;
}

static enum ry_net_result props_v11(struct bench_net *net, int dev, struct bench_props *out)
{
	struct ry_net_props_v11 in = {0};
	enum ry_net_result result = TABLE(11)->getProperties(dev, &in);

	COPY_PROPS_V9(out, &in);
	return result;
}

static enum ry_net_result props_v12(struct bench_net *net, int dev, struct bench_props *out)
{
	struct ry_net_props_v12 in = {0};
	enum ry_net_result result = TABLE(12)->getProperties(dev, &in);

	COPY_PROPS_V9(out, &in);
	out->rail_id = in.railId;
	out->plane_id = in.planeId;
	return result;
}

#define DEFINE_LISTEN(v, ...)                                                                      \
	static enum ry_net_result listen_v##v(struct bench_net *net, int dev, void *handle,        \
					      void **comm)                                         \
	{                                                                                          \
		return TABLE(v)->listen(__VA_ARGS__, handle, comm);                                \
	}
DEFINE_LISTEN(8, dev)
DEFINE_LISTEN(9, dev)
DEFINE_LISTEN(10, dev)
DEFINE_LISTEN(11, net->ctx, dev)
DEFINE_LISTEN(12, net->ctx, dev)

#define DEFINE_CONNECT(v, ...)                                                                     \
	static enum ry_net_result connect_v##v(struct bench_net *net, int dev, void *handle,       \
					       void **comm)                                        \
	{                                                                                          \
		struct ry_net_device_handle *device_handle = NULL;                                 \
		return TABLE(v)->connect(__VA_ARGS__, handle, comm, &device_handle);               \
	}
DEFINE_CONNECT(8, dev)
DEFINE_CONNECT(9, dev)
DEFINE_CONNECT(10, dev, &net->config)
DEFINE_CONNECT(11, net->ctx, dev)
DEFINE_CONNECT(12, net->ctx, dev)

static enum ry_net_result isend_v8(struct bench_net *net, void *comm, void *data, size_t bytes,
				   int tag, void *mhandle, void **request)
{
	if (bytes > RY_NET_P2P_BYTES_MAX_V8) {
		return RY_NET_INTERNAL_ERROR;
	}
	return TABLE(8)->isend(comm, data, (int)bytes, tag, mhandle, request);
}

static enum ry_net_result isend_v9(struct bench_net *net, void *comm, void *data, size_t bytes,
				   int tag, void *mhandle, void **request)
{
	return TABLE(9)->isend(comm, data, bytes, tag, mhandle, request);
}

#define DEFINE_ISEND(v)                                                                            \
	static enum ry_net_result isend_v##v(struct bench_net *net, void *comm, void *data,        \
					     size_t bytes, int tag, void *mhandle, void **request) \
	{                                                                                          \
		return TABLE(v)->isend(comm, data, bytes, tag, mhandle, NULL, request);            \
	}
DEFINE_ISEND(10)
DEFINE_ISEND(11)
DEFINE_ISEND(12)

static enum ry_net_result irecv_v8(struct bench_net *net, void *comm, int n, void **data,
				   const size_t *bytes, int *tags, void **mhandles, void **request)
{
	int sizes[BENCH_GROUP_MAX];

	for (int i = 0; i < n; i++) {
		if (bytes[i] > RY_NET_P2P_BYTES_MAX_V8) {
			return RY_NET_INTERNAL_ERROR;
		}
		sizes[i] = (int)bytes[i];
	}
	return TABLE(8)->irecv(comm, n, data, sizes, tags, mhandles, request);
}

static enum ry_net_result irecv_v9(struct bench_net *net, void *comm, int n, void **data,
				   const size_t *bytes, int *tags, void **mhandles, void **request)
{
	size_t sizes[BENCH_GROUP_MAX];

	memcpy(sizes, bytes, (size_t)n * sizeof(sizes[0]));
	return TABLE(9)->irecv(comm, n, data, sizes, tags, mhandles, request);
}

#define DEFINE_IRECV(v)                                                                            \
	static enum ry_net_result irecv_v##v(struct bench_net *net, void *comm, int n,             \
					     void **data, const size_t *bytes, int *tags,          \
					     void **mhandles, void **request)                      \
	{                                                                                          \
		size_t sizes[BENCH_GROUP_MAX];                                                     \
		void *phandles[BENCH_GROUP_MAX] = {NULL};                                          \
		memcpy(sizes, bytes, (size_t)n * sizeof(sizes[0]));                                \
		return TABLE(v)->irecv(comm, n, data, sizes, tags, mhandles, phandles, request);   \
	}
DEFINE_IRECV(10)
DEFINE_IRECV(11)
DEFINE_IRECV(12)

#define DEFINE_MERGE(v, type)                                                                      \
	static enum ry_net_result merge_v##v(struct bench_net *net, const int *devs, int count,    \
					     int *dev)                                             \
	{                                                                                          \
		struct type members = {.ndevs = count};                                            \
		memcpy(members.devs, devs, (size_t)count * sizeof(devs[0]));                       \
		return TABLE(v)->makeVDevice(dev, &members);                                       \
	}
DEFINE_MERGE(9, ry_net_vdev_v9)
DEFINE_MERGE(10, ry_net_vdev_v9)
DEFINE_MERGE(11, ry_net_vdev_v9)
DEFINE_MERGE(12, ry_net_vdev_v12)

static enum ry_net_result finalize_v11(struct bench_net *net)
{
	return TABLE(11)->finalize(net->ctx);
}

static enum ry_net_result finalize_v12(struct bench_net *net)
{
	return TABLE(12)->finalize(net->ctx);
}

#define ABI(v)                                                                                     \
	.version = v, .symbol = "ncclNetPlugin_v" #v, .bind = bind_v##v, .init = init_v##v,        \
	.props = props_v##v, .listen = listen_v##v, .connect = connect_v##v, .isend = isend_v##v,  \
	.irecv = irecv_v##v

/* Newest first: the order of the search. */
static const struct bench_abi abis[] = {
	{ABI(12), .merge_max = RY_NET_VDEV_MAX_V12, .merge = merge_v12, .finalize = finalize_v12},
	{ABI(11), .merge_max = RY_NET_VDEV_MAX_V9, .merge = merge_v11, .finalize = finalize_v11},
	{ABI(10), .merge_max = RY_NET_VDEV_MAX_V9, .merge = merge_v10},
	{ABI(9), .merge_max = RY_NET_VDEV_MAX_V9, .merge = merge_v9},
	{ABI(8)},
};

/* ---- loading --------------------------------------------------------------------------------- */

/* NCCL's order, then the places of an installed and of a freshly built tree. */
static void *open_library(const char *plugin, char *why, size_t why_bytes)
{
	char name[PATH_MAX], exe[PATH_MAX / 2], *slash;
	const char *const dirs[] = {"../lib", "../lib/x86_64-linux-gnu", "../../src"};
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	void *lib = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);

	if (lib) {
		return lib;
	}
	snprintf(why, why_bytes, "%s", dlerror());
	if (strchr(plugin, '/') || strncmp(plugin, "lib", 3) == 0) {
		return NULL;
	}
	snprintf(name, sizeof(name), "libnccl-net-%s.so", plugin);
	lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (lib) {
		return lib;
	}
	snprintf(why, why_bytes, "%s", dlerror());
	if (n <= 0) {
		return NULL;
	}
	exe[n] = '\0';
	slash = strrchr(exe, '/');
	*slash = '\0';
	for (size_t i = 0; !lib && i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		snprintf(name, sizeof(name), "%s/%s/libnccl-net-%s.so", exe, dirs[i], plugin);
		if (access(name, R_OK) == 0) {
			lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
			if (!lib) {
				snprintf(why, why_bytes, "%s", dlerror());
			}
		}
	}
	return lib;
}

static int take_table(struct bench_net *net, const char *plugin, int abi)
{
	for (size_t i = 0; i < sizeof(abis) / sizeof(abis[0]); i++) {
		if (abi && abis[i].version != abi) {
			continue;
		}
		net->table = dlsym(net->lib, abis[i].symbol);
		if (net->table) {
			net->calls = &abis[i];
			net->abi = abis[i].version;
			net->calls->bind(net);
			return 0;
		}
	}
	if (abi) {
		bench_error("%s has no ncclNetPlugin_v%d: try without --abi", plugin, abi);
	} else {
		bench_error("%s has none of ncclNetPlugin_v8 ... v12: not a net plugin, or older",
			    plugin);
	}
	return -ENOENT;
}

int net_load(struct bench_net *net, const char *plugin, int abi)
{
	char why[512] = "";
	Dl_info info;
	int rc;

	net->lib = open_library(plugin, why, sizeof(why));
	if (!net->lib) {
		bench_error("cannot load plugin \"%s\": %s", plugin, why);
		return -ENOENT;
	}
	rc = take_table(net, plugin, abi);
	if (rc) {
		net_close(net);
		return rc;
	}
	if (!dladdr(net->table, &info) || !realpath(info.dli_fname, net->path)) {
		snprintf(net->path, sizeof(net->path), "%s", plugin);
	}
	return 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Only the owner writes these; the watchdog reads them, so a plain load and store would do but for
 * the language's rules on data races. */
static uint64_t call_begin(struct bench_net *net, const char *name)
{
	uint64_t seq = atomic_load_explicit(&net->call_seq, memory_order_relaxed);

	atomic_store_explicit(&net->call_seq, seq + 1, memory_order_relaxed);
	atomic_store_explicit(&net->in_call, name, memory_order_relaxed);
	return net->time_calls ? bench_now_ns() : 0;
}

static void call_end(struct bench_net *net, enum bench_call call, uint64_t began_ns)
{
	struct bench_call_stat *stat = &net->stat[call];

	atomic_store_explicit(&net->in_call, NULL, memory_order_relaxed);
	stat->count++;
	if (net->time_calls) {
		uint64_t ns = bench_now_ns() - began_ns;

		stat->sum_ns += ns;
		hist_add(&stat->time, ns);
	}
}

/* Wraps one plugin call: @what names it for the watchdog and for errors. */
#define NET_CALL(net, call, what, result, expression)              \
	do {                                                       \
		uint64_t began_ns = call_begin(net, what);         \
		(result) = (expression);                           \
		call_end(net, call, began_ns);                     \
	} while (0)

static int outcome(struct bench_net *net, const char *what, enum ry_net_result result)
{
	static const int errors[] = {
		[RY_NET_SUCCESS] = 0,
		[RY_NET_UNHANDLED_CUDA_ERROR] = -EIO,
		[RY_NET_SYSTEM_ERROR] = -EIO,
		[RY_NET_INTERNAL_ERROR] = -EPROTO,
		[RY_NET_INVALID_ARGUMENT] = -EINVAL,
		[RY_NET_INVALID_USAGE] = -EPERM,
		[RY_NET_REMOTE_ERROR] = -EREMOTEIO,
		[RY_NET_IN_PROGRESS] = -EINPROGRESS,
	};

	if (result == RY_NET_SUCCESS) {
		return 0;
	}
	bench_error("%s: %s (v%d) returned %d (%s)", net->name ? net->name : net->path, what,
		    net->abi, (int)result, net_result_name(result));
	return result <= RY_NET_IN_PROGRESS ? errors[result] : -EIO;
}

void net_set_log(int level, bool with_times)
{
	log_level_max = level;
	has_log_times = with_times;
}

int net_init(struct bench_net *net, int traffic_class, uint64_t comm_id)
{
	enum ry_net_result result;
	int rc;

	net->config.trafficClass = traffic_class;
	NET_CALL(net, CALL_SETUP, "init", result, net->calls->init(net, comm_id));
	rc = outcome(net, "init", result);
	if (rc) {
		return rc;
	}
	net->is_init = true;
	NET_CALL(net, CALL_SETUP, "devices", result, net->devices(&net->device_count));
	rc = outcome(net, "devices", result);
	if (!rc && net->device_count < 1) {
		bench_error("%s: no device (NCCL would fall back to another transport)", net->name);
		rc = -ENODEV;
	}
	return rc;
}

void net_close(struct bench_net *net)
{
	enum ry_net_result result;

	if (net->is_init && net->calls->finalize) {
		NET_CALL(net, CALL_CLOSE, "finalize", result, net->calls->finalize(net));
		outcome(net, "finalize", result);
	}
	net->is_init = false;
	if (net->lib) {
		dlclose(net->lib);
		net->lib = NULL;
	}
}

int net_props(struct bench_net *net, int dev, struct bench_props *props)
{
	enum ry_net_result result;

	memset(props, 0, sizeof(*props));
	props->member_count = 1;
	props->rail_id = props->plane_id = RY_NET_UNDEF;
	NET_CALL(net, CALL_SETUP, "getProperties", result, net->calls->props(net, dev, props));
	return outcome(net, "getProperties", result);
}

/* makeVDevice has the same place in every table that has it. */
int net_merge_max(const struct bench_net *net)
{
	bool has_call = net->calls->merge && ((const struct ry_net_v9 *)net->table)->makeVDevice;

	return has_call ? net->calls->merge_max : 0;
}

int net_merge(struct bench_net *net, const int *devs, int count, int *dev)
{
	enum ry_net_result result;

	if (count > net_merge_max(net)) {
		return -ENOTSUP;
	}
	NET_CALL(net, CALL_SETUP, "makeVDevice", result, net->calls->merge(net, devs, count, dev));
	return outcome(net, "makeVDevice", result);
}

int net_listen(struct bench_net *net, int dev, void *handle, void **listen_comm)
{
	enum ry_net_result result;

	NET_CALL(net, CALL_SETUP, "listen", result,
		 net->calls->listen(net, dev, handle, listen_comm));
	return outcome(net, "listen", result);
}

int net_connect(struct bench_net *net, int dev, void *handle, void **send_comm)
{
	enum ry_net_result result;

	*send_comm = NULL;
	NET_CALL(net, CALL_SETUP, "connect", result,
		 net->calls->connect(net, dev, handle, send_comm));
	return outcome(net, "connect", result);
}

int net_accept(struct bench_net *net, void *listen_comm, void **recv_comm)
{
	struct ry_net_device_handle *device_handle = NULL;
	enum ry_net_result result;

	*recv_comm = NULL;
	NET_CALL(net, CALL_SETUP, "accept", result,
		 net->accept(listen_comm, recv_comm, &device_handle));
	return outcome(net, "accept", result);
}

int net_reg(struct bench_net *net, void *comm, void *data, size_t bytes, void **mhandle)
{
	enum ry_net_result result;

	NET_CALL(net, CALL_SETUP, "regMr", result,
		 net->regMr(comm, data, bytes, RY_NET_PTR_HOST, mhandle));
	return outcome(net, "regMr", result);
}

int net_dereg(struct bench_net *net, void *comm, void *mhandle)
{
	enum ry_net_result result;

	NET_CALL(net, CALL_CLOSE, "deregMr", result, net->deregMr(comm, mhandle));
	return outcome(net, "deregMr", result);
}

int net_close_send(struct bench_net *net, void *comm)
{
	enum ry_net_result result;

	NET_CALL(net, CALL_CLOSE, "closeSend", result, net->closeSend(comm));
	return outcome(net, "closeSend", result);
}

int net_close_recv(struct bench_net *net, void *comm)
{
	enum ry_net_result result;

	NET_CALL(net, CALL_CLOSE, "closeRecv", result, net->closeRecv(comm));
	return outcome(net, "closeRecv", result);
}

int net_close_listen(struct bench_net *net, void *comm)
{
	enum ry_net_result result;

	NET_CALL(net, CALL_CLOSE, "closeListen", result, net->closeListen(comm));
	return outcome(net, "closeListen", result);
}

/* NCCL does not clear *request for the plugin: what it finds there must not matter. */
static int request_outcome(struct bench_net *net, enum bench_call call, const char *what,
			   enum ry_net_result result, void **request)
{
	int rc = outcome(net, what, result);

	if (!rc && *request == &poison) {
		bench_error("%s: %s succeeded without writing *request: write NULL for \"not now\"",
			    net->name, what);
		rc = -EPROTO;
	}
	if (rc) {
		*request = NULL;
	}
	if (!*request) {
		net->stat[call].fruitless++;
	}
	return rc;
}

int net_isend(struct bench_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request)
{
	enum ry_net_result result;

	*request = &poison;
	NET_CALL(net, CALL_ISEND, "isend", result,
		 net->calls->isend(net, comm, data, bytes, tag, mhandle, request));
	return request_outcome(net, CALL_ISEND, "isend", result, request);
}

int net_irecv(struct bench_net *net, void *comm, int n, void **data, const size_t *bytes, int *tags,
	      void **mhandles, void **request)
{
	enum ry_net_result result;

	*request = &poison;
	NET_CALL(net, CALL_IRECV, "irecv", result,
		 net->calls->irecv(net, comm, n, data, bytes, tags, mhandles, request));
	return request_outcome(net, CALL_IRECV, "irecv", result, request);
}

int net_test(struct bench_net *net, void *request, int *done, int *sizes)
{
	enum ry_net_result result;

	*done = 0;
	NET_CALL(net, CALL_TEST, "test", result, net->test(request, done, sizes));
	if (!*done) {
		net->stat[CALL_TEST].fruitless++;
	}
	return outcome(net, "test", result);
}
