/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tcpnet.c - a minimal ncclNet plugin over loopback TCP, to test `railyard bench` without RDMA.
 *
 * Exports v8 to v12. Two devices (TCPNET_DEVS=N for more), fused by makeVDevice in name only. Every
 * first isend of a message is refused, so that the caller has to repeat it. Not a product: one
 * process pair on one host, and errors end the comm. TCPNET_NAME=X makes it say that it is X.
 *
 * TCPNET_FAULT=KIND:N makes message N (from 0) of every receive comm misbehave:
 *   corrupt   one byte of it is wrong
 *   late      one byte of it changes after it was reported done
 *   overrun   one byte behind the posted buffer is written
 *   size      test() tells a size that is one too small
 *   hang      test() never reports it done
 *   block     test() does not return
 *   error     test() returns a remote error
 *   silent    irecv succeeds without writing *request
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nccl_net.h"

enum {
	GROUP_MAX = 8,
	REQUESTS_MAX = RY_NET_REQUESTS_MAX * GROUP_MAX,
	VDEVS_MAX = 8,
	DEVS_MAX = 32,
	MAGIC = 0x74637030,
};

struct header {
	int32_t tag;
	uint32_t bytes;
};

struct handle {
	uint32_t magic;
	uint16_t port;
	uint16_t is_started;
	int32_t fd;			/* the connector's progress, in its own copy */
};

struct request {
	struct comm *comm;
	bool is_used, is_done;
	int n, matched, landed;
	struct {
		char *data;
		size_t room, bytes;
		int tag;
		bool is_matched;
		uint64_t number;
	} part[GROUP_MAX];
	struct header header;		/* of a send */
	size_t sent;
};

struct comm {
	int fd;
	bool is_send;
	bool is_refused;		/* the next isend was refused once */
	uint64_t head, tail;		/* requests [head, tail) are not complete */
	struct request *queue[REQUESTS_MAX];
	struct request pool[REQUESTS_MAX];

	/* The message that is coming in. */
	struct header header;
	size_t header_got, body_got;
	struct request *target;
	int target_part;
	uint64_t received;
	char *late;
};

static struct {
	int users, dev_count, vdev_count;
	struct {
		int member_count;
		char name[32];
	} vdev[VDEVS_MAX];
	char name[DEVS_MAX][8];
	char fault[16];
	uint64_t fault_message;
} net;
static char net_name[32] = "TcpNet";

static bool is_faulty(const char *kind, uint64_t message)
{
	return strcmp(net.fault, kind) == 0 && message == net.fault_message;
}

/* ---- devices --------------------------------------------------------------------------------- */

static enum ry_net_result start(ry_net_logger_fn logger)
{
	const char *fault = getenv("TCPNET_FAULT"), *devs = getenv("TCPNET_DEVS");
	const char *name = getenv("TCPNET_NAME");

	if (net.users++ == 0) {
		if (name) {
			snprintf(net_name, sizeof(net_name), "%s", name);
		}
		net.dev_count = devs ? atoi(devs) : 2;
		net.vdev_count = 0;
		if (fault) {
			sscanf(fault, "%15[a-z]:%lu", net.fault, &net.fault_message);
		}
		for (int i = 0; i < net.dev_count; i++) {
			snprintf(net.name[i], sizeof(net.name[i]), "tcp%d", i % 100);
		}
	}
	logger(RY_NET_LOG_INFO, RY_NET_LOG_INIT | RY_NET_LOG_NET, __func__, __LINE__,
	       "TcpNet: %d devices", net.dev_count);
	return RY_NET_SUCCESS;
}

static enum ry_net_result init_v8(ry_net_logger_fn logger)
{
	return start(logger);
}

static enum ry_net_result init_v10(ry_net_logger_fn logger, ry_net_profiler_fn profiler)
{
	(void)profiler;
	return start(logger);
}

static enum ry_net_result init_v11(void **ctx, uint64_t comm_id, struct ry_net_config_v10 *config,
				   ry_net_logger_fn logger, ry_net_profiler_fn profiler)
{
	(void)comm_id;
	(void)profiler;
	*ctx = &net;
	logger(RY_NET_LOG_INFO, RY_NET_LOG_NET, __func__, __LINE__, "traffic class %d",
	       config->trafficClass);
	return start(logger);
}

static enum ry_net_result finalize(void *ctx)
{
	if (ctx != &net || net.users <= 0) {
		return RY_NET_INTERNAL_ERROR;
	}
	net.users--;
	return RY_NET_SUCCESS;
}

static enum ry_net_result set_net_attr(void *ctx, struct ry_net_attr_v11 *attr)
{
	(void)ctx;
	(void)attr;
	return RY_NET_SUCCESS;
}

static enum ry_net_result devices(int *ndev)
{
	*ndev = net.dev_count;
	return RY_NET_SUCCESS;
}

static bool is_device(int dev)
{
	return dev >= 0 && dev < net.dev_count + net.vdev_count;
}

static char *name_of(int dev)
{
	return dev < net.dev_count ? net.name[dev] : net.vdev[dev - net.dev_count].name;
}

static int member_count_of(int dev)
{
	return dev < net.dev_count ? 1 : net.vdev[dev - net.dev_count].member_count;
}

#define FILL_PROPS(props, dev)                                     \
	do {                                                       \
		memset(props, 0, sizeof(*(props)));                \
		(props)->name = name_of(dev);                      \
		(props)->guid = 0x7c0 + (unsigned)(dev);           \
		(props)->ptrSupport = RY_NET_PTR_HOST;             \
		(props)->speed = 10000 * member_count_of(dev);     \
		(props)->port = 1;                                 \
		(props)->maxComms = 1024;                          \
		(props)->maxRecvs = GROUP_MAX;                     \
		(props)->netDeviceType = RY_NET_DEVICE_HOST;       \
	} while (0)

#define DEFINE_PROPS(v, more)                                                                  \
	static enum ry_net_result props_v##v(int dev, struct ry_net_props_v##v *props)         \
	{                                                                                      \
		if (!is_device(dev)) {                                                         \
			return RY_NET_INVALID_ARGUMENT;                                        \
		}                                                                              \
		FILL_PROPS(props, dev);                                                        \
		more;                                                                          \
		return RY_NET_SUCCESS;                                                         \
	}
#define MORE_V9 (props->vProps.ndevs = member_count_of(dev), props->maxP2pBytes = 1u << 30)
DEFINE_PROPS(8, (void)0)
DEFINE_PROPS(9, MORE_V9)
DEFINE_PROPS(11, MORE_V9)
DEFINE_PROPS(12, MORE_V9)

static enum ry_net_result make_vdev(int *dev, const int *members, int count)
{
	if (net.vdev_count == VDEVS_MAX || count < 2 || members[0] >= net.dev_count) {
		return RY_NET_INVALID_ARGUMENT;
	}
	net.vdev[net.vdev_count].member_count = count;
	snprintf(net.vdev[net.vdev_count].name, sizeof(net.vdev[0].name), "tcp%dx%d", members[0],
		 count);
	*dev = net.dev_count + net.vdev_count++;
	return RY_NET_SUCCESS;
}

static enum ry_net_result make_vdev_v9(int *dev, struct ry_net_vdev_v9 *props)
{
	return make_vdev(dev, props->devs, props->ndevs);
}

static enum ry_net_result make_vdev_v12(int *dev, struct ry_net_vdev_v12 *props)
{
	return make_vdev(dev, props->devs, props->ndevs);
}

/* ---- connections ----------------------------------------------------------------------------- */

static enum ry_net_result listen_v8(int dev, void *opaque, void **listen_comm)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	socklen_t length = sizeof(name);
	struct handle handle = {.magic = MAGIC, .fd = -1};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (!is_device(dev) || fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) ||
	    listen(fd, 8) || getsockname(fd, (struct sockaddr *)&name, &length)) {
		return RY_NET_SYSTEM_ERROR;
	}
	handle.port = name.sin_port;
	memset(opaque, 0, RY_NET_HANDLE_BYTES_MAX);
	memcpy(opaque, &handle, sizeof(handle));
	*listen_comm = malloc(sizeof(int));
	*(int *)*listen_comm = fd;
	return RY_NET_SUCCESS;
}

static struct comm *new_comm(int fd, bool is_send)
{
	struct comm *comm = calloc(1, sizeof(*comm));
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	comm->fd = fd;
	comm->is_send = is_send;
	return comm;
}

static enum ry_net_result connect_v8(int dev, void *opaque, void **send_comm,
				     struct ry_net_device_handle **device_handle)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	struct handle *handle = opaque;

	(void)device_handle;
	*send_comm = NULL;
	if (!is_device(dev) || handle->magic != MAGIC) {
		return RY_NET_INVALID_ARGUMENT;
	}
	if (!handle->is_started) {
		handle->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		handle->is_started = 1;
		return handle->fd < 0 ? RY_NET_SYSTEM_ERROR : RY_NET_SUCCESS;
	}
	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	name.sin_port = handle->port;
	if (connect(handle->fd, (struct sockaddr *)&name, sizeof(name)) && errno != EISCONN) {
		return errno == EINPROGRESS || errno == EALREADY ? RY_NET_SUCCESS
								 : RY_NET_REMOTE_ERROR;
	}
	*send_comm = new_comm(handle->fd, true);
	return RY_NET_SUCCESS;
}

static enum ry_net_result connect_v10(int dev, struct ry_net_config_v10 *config, void *opaque,
				      void **send_comm, struct ry_net_device_handle **device_handle)
{
	return config ? connect_v8(dev, opaque, send_comm, device_handle) : RY_NET_INTERNAL_ERROR;
}

static enum ry_net_result listen_v11(void *ctx, int dev, void *opaque, void **listen_comm)
{
	return ctx == &net ? listen_v8(dev, opaque, listen_comm) : RY_NET_INTERNAL_ERROR;
}

static enum ry_net_result connect_v11(void *ctx, int dev, void *opaque, void **send_comm,
				      struct ry_net_device_handle **device_handle)
{
	return ctx == &net ? connect_v8(dev, opaque, send_comm, device_handle)
			   : RY_NET_INTERNAL_ERROR;
}

static enum ry_net_result accept_comm(void *listen_comm, void **recv_comm,
				      struct ry_net_device_handle **device_handle)
{
	int fd = accept4(*(int *)listen_comm, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)device_handle;
	*recv_comm = fd < 0 ? NULL : new_comm(fd, false);
	return fd < 0 && errno != EAGAIN ? RY_NET_SYSTEM_ERROR : RY_NET_SUCCESS;
}

static enum ry_net_result close_comm(void *opaque)
{
	struct comm *comm = opaque;

	close(comm->fd);
	free(comm);
	return RY_NET_SUCCESS;
}

static enum ry_net_result close_listen(void *listen_comm)
{
	close(*(int *)listen_comm);
	free(listen_comm);
	return RY_NET_SUCCESS;
}

static enum ry_net_result reg_mr(void *comm, void *data, size_t bytes, int type, void **mhandle)
{
	(void)comm;
	(void)bytes;
	*mhandle = data;
	return type == RY_NET_PTR_HOST ? RY_NET_SUCCESS : RY_NET_INVALID_ARGUMENT;
}

static enum ry_net_result reg_mr_dmabuf(void *comm, void *data, size_t bytes, int type,
					uint64_t offset, int fd, void **mhandle)
{
	(void)comm;
	(void)data;
	(void)bytes;
	(void)type;
	(void)offset;
	(void)fd;
	(void)mhandle;
	return RY_NET_INVALID_USAGE;
}

static enum ry_net_result dereg_mr(void *comm, void *mhandle)
{
	(void)comm;
	(void)mhandle;
	return RY_NET_SUCCESS;
}

/* ---- messages -------------------------------------------------------------------------------- */

static struct request *take_request(struct comm *comm)
{
	if (comm->tail - comm->head == REQUESTS_MAX) {
		return NULL;
	}
	for (int i = 0; i < REQUESTS_MAX; i++) {
		struct request *request = &comm->pool[i];

		if (!request->is_used) {
			memset(request, 0, sizeof(*request));
			request->comm = comm;
			request->is_used = true;
			comm->queue[comm->tail++ % REQUESTS_MAX] = request;
			return request;
		}
	}
	return NULL;
}

static enum ry_net_result isend_v9(void *opaque, void *data, size_t bytes, int tag, void *mhandle,
				   void **out)
{
	struct comm *comm = opaque;
	struct request *request = NULL;

	if (mhandle && comm->is_refused) {
		request = take_request(comm);
	}
	comm->is_refused = !request;
	*out = request;
	if (request) {
		request->n = 1;
		request->part[0].data = data;
		request->part[0].bytes = bytes;
		request->header = (struct header){.tag = tag, .bytes = (uint32_t)bytes};
	}
	return RY_NET_SUCCESS;
}

static enum ry_net_result isend_v8(void *comm, void *data, int bytes, int tag, void *mhandle,
				   void **out)
{
	return isend_v9(comm, data, (size_t)bytes, tag, mhandle, out);
}

static enum ry_net_result isend_v10(void *comm, void *data, size_t bytes, int tag, void *mhandle,
				    void *phandle, void **out)
{
	(void)phandle;
	return isend_v9(comm, data, bytes, tag, mhandle, out);
}

static enum ry_net_result irecv_v9(void *opaque, int n, void **data, size_t *bytes, int *tags,
				   void **mhandles, void **out)
{
	struct comm *comm = opaque;
	struct request *request;

	if (n < 1 || n > GROUP_MAX || !mhandles[0]) {
		return RY_NET_INVALID_ARGUMENT;
	}
	if (is_faulty("silent", comm->tail)) {
		return RY_NET_SUCCESS;
	}
	request = take_request(comm);
	*out = request;
	for (int i = 0; request && i < n; i++) {
		request->n = n;
		request->part[i].data = data[i];
		request->part[i].room = bytes[i];
		request->part[i].tag = tags[i];
	}
	return RY_NET_SUCCESS;
}

static enum ry_net_result irecv_v8(void *comm, int n, void **data, int *bytes, int *tags,
				   void **mhandles, void **out)
{
	size_t sizes[GROUP_MAX];

	for (int i = 0; i < n && i < GROUP_MAX; i++) {
		sizes[i] = (size_t)bytes[i];
	}
	return irecv_v9(comm, n, data, sizes, tags, mhandles, out);
}

static enum ry_net_result irecv_v10(void *comm, int n, void **data, size_t *bytes, int *tags,
				    void **mhandles, void **phandles, void **out)
{
	(void)phandles;
	return irecv_v9(comm, n, data, bytes, tags, mhandles, out);
}

static enum ry_net_result iflush(void *comm, int n, void **data, int *sizes, void **mhandles,
				 void **request)
{
	(void)comm;
	(void)n;
	(void)data;
	(void)sizes;
	(void)mhandles;
	*request = NULL;
	return RY_NET_SUCCESS;
}

/* Bytes moved; 0 = would block; -1 = broken. */
static ssize_t outcome(ssize_t n)
{
	return n > 0 ? n : n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int progress_send(struct comm *comm)
{
	while (comm->head < comm->tail) {
		struct request *request = comm->queue[comm->head % REQUESTS_MAX];
		size_t total = sizeof(request->header) + request->part[0].bytes;

		while (request->sent < total) {
			bool in_header = request->sent < sizeof(request->header);
			const char *from = in_header
				? (char *)&request->header + request->sent
				: request->part[0].data + request->sent - sizeof(request->header);
			size_t bytes = in_header ? sizeof(request->header) - request->sent
						 : total - request->sent;
			ssize_t n = outcome(send(comm->fd, from, bytes, MSG_NOSIGNAL));

			if (n <= 0) {
				return (int)n;
			}
			request->sent += (size_t)n;
		}
		request->is_done = true;
		comm->head++;
	}
	return 0;
}

/* The first group that is not fully matched decides, in it the first free buffer with the tag. */
static int match(struct comm *comm)
{
	for (uint64_t i = comm->head; i < comm->tail; i++) {
		struct request *request = comm->queue[i % REQUESTS_MAX];

		for (int part = 0; request->matched < request->n && part < request->n; part++) {
			if (request->part[part].is_matched ||
			    request->part[part].tag != comm->header.tag) {
				continue;
			}
			request->part[part].is_matched = true;
			request->part[part].number = comm->received++;
			request->matched++;
			comm->target = request;
			comm->target_part = part;
			return 1;
		}
		if (request->matched < request->n) {
			return -1;
		}
	}
	return 0;
}

static void spoil(uint64_t number, char *data, size_t bytes, size_t room)
{
	if (is_faulty("corrupt", number) && bytes) {
		data[bytes / 2] ^= 0x20;
	}
	if (is_faulty("overrun", number)) {
		data[room] ^= 0x20;
	}
}

static int read_body(struct comm *comm)
{
	struct request *request = comm->target;
	int part = comm->target_part;
	size_t room = request->part[part].room;
	char trash[4096];

	while (comm->body_got < comm->header.bytes) {
		size_t left = comm->header.bytes - comm->body_got;
		bool fits = comm->body_got < room;
		size_t bytes = fits ? (left < room - comm->body_got ? left : room - comm->body_got)
				    : (left < sizeof(trash) ? left : sizeof(trash));
		ssize_t n = outcome(recv(comm->fd, fits ? request->part[part].data + comm->body_got
							: trash, bytes, 0));

		if (n <= 0) {
			return (int)n;
		}
		comm->body_got += (size_t)n;
	}
	request->part[part].bytes = comm->header.bytes < room ? comm->header.bytes : room;
	spoil(request->part[part].number, request->part[part].data,
	      request->part[part].bytes, room);
	if (++request->landed == request->n) {
		request->is_done = true;
		comm->head++;
	}
	comm->target = NULL;
	comm->header_got = comm->body_got = 0;
	return 1;
}

static int progress_recv(struct comm *comm)
{
	int rc;

	do {
		while (comm->header_got < sizeof(comm->header)) {
			ssize_t n = outcome(recv(comm->fd, (char *)&comm->header + comm->header_got,
						 sizeof(comm->header) - comm->header_got, 0));

			if (n <= 0) {
				return (int)n;
			}
			comm->header_got += (size_t)n;
		}
		rc = comm->target ? 1 : match(comm);
		if (rc <= 0) {
			return rc;
		}
		rc = read_body(comm);
	} while (rc > 0);
	return rc;
}

/* Faults of a receive that is about to be reported done. A late write comes with the next one. */
static enum ry_net_result misbehave(struct request *request, int *done)
{
	struct comm *comm = request->comm;

	if (comm->late) {
		*comm->late ^= 0x20;
		comm->late = NULL;
	}
	for (int i = 0; i < request->n; i++) {
		uint64_t number = request->part[i].number;

		if (is_faulty("late", number) && request->part[i].bytes) {
			comm->late = request->part[i].data + request->part[i].bytes / 2;
		}
		if (is_faulty("hang", number)) {
			*done = 0;
		}
		if (is_faulty("error", number)) {
			return RY_NET_REMOTE_ERROR;
		}
		while (is_faulty("block", number)) {
			sleep(1);
		}
	}
	return RY_NET_SUCCESS;
}

static enum ry_net_result test_request(void *opaque, int *done, int *sizes)
{
	struct request *request = opaque;
	struct comm *comm = request->comm;
	enum ry_net_result result = RY_NET_SUCCESS;

	*done = 0;
	if (!request->is_done && (comm->is_send ? progress_send(comm) : progress_recv(comm)) < 0) {
		return RY_NET_REMOTE_ERROR;
	}
	if (!request->is_done) {
		return RY_NET_SUCCESS;
	}
	*done = 1;
	if (!comm->is_send) {
		result = misbehave(request, done);
	}
	for (int i = 0; *done && sizes && i < request->n; i++) {
		bool lies = !comm->is_send && is_faulty("size", request->part[i].number);

		sizes[i] = (int)request->part[i].bytes - lies;
	}
	request->is_used = !*done;
	return result;
}

static enum ry_net_result get_device_mr(void *comm, void *mhandle, void **dptr)
{
	(void)comm;
	(void)mhandle;
	(void)dptr;
	return RY_NET_INVALID_USAGE;
}

static enum ry_net_result irecv_consumed(void *comm, int n, void *request)
{
	(void)comm;
	(void)n;
	(void)request;
	return RY_NET_SUCCESS;
}

/* ---- tables ---------------------------------------------------------------------------------- */

#define EXPORT __attribute__((visibility("default"))) extern const
#define COMMON                                                                                     \
	.name = net_name, .devices = devices, .accept = accept_comm, .regMr = reg_mr,              \
	.regMrDmaBuf = reg_mr_dmabuf, .deregMr = dereg_mr, .iflush = iflush, .test = test_request, \
	.closeSend = close_comm, .closeRecv = close_comm, .closeListen = close_listen,             \
	.getDeviceMr = get_device_mr, .irecvConsumed = irecv_consumed

EXPORT struct ry_net_v8 ncclNetPlugin_v8;
EXPORT struct ry_net_v9 ncclNetPlugin_v9;
EXPORT struct ry_net_v10 ncclNetPlugin_v10;
EXPORT struct ry_net_v11 ncclNetPlugin_v11;
EXPORT struct ry_net_v12 ncclNetPlugin_v12;

const struct ry_net_v8 ncclNetPlugin_v8 = {
	COMMON, .init = init_v8, .getProperties = props_v8, .listen = listen_v8,
	.connect = connect_v8, .isend = isend_v8, .irecv = irecv_v8,
};

const struct ry_net_v9 ncclNetPlugin_v9 = {
	COMMON, .init = init_v8, .getProperties = props_v9, .listen = listen_v8,
	.connect = connect_v8, .isend = isend_v9, .irecv = irecv_v9, .makeVDevice = make_vdev_v9,
};

const struct ry_net_v10 ncclNetPlugin_v10 = {
	COMMON, .init = init_v10, .getProperties = props_v9, .listen = listen_v8,
	.connect = connect_v10, .isend = isend_v10, .irecv = irecv_v10,
	.makeVDevice = make_vdev_v9,
};

const struct ry_net_v11 ncclNetPlugin_v11 = {
	COMMON, .init = init_v11, .getProperties = props_v11, .listen = listen_v11,
	.connect = connect_v11, .isend = isend_v10, .irecv = irecv_v10,
	.makeVDevice = make_vdev_v9, .finalize = finalize, .setNetAttr = set_net_attr,
};

const struct ry_net_v12 ncclNetPlugin_v12 = {
	COMMON, .init = init_v11, .getProperties = props_v12, .listen = listen_v11,
	.connect = connect_v11, .isend = isend_v10, .irecv = irecv_v10,
	.makeVDevice = make_vdev_v12, .finalize = finalize, .setNetAttr = set_net_attr,
};
