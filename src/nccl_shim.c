/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * nccl_shim.c - the exported tables ncclNetPlugin_v8 ... v12. Type conversion only.
 *
 * A function's suffix is the oldest ABI version whose signature it fits; later tables list it
 * again. *request and the comm pointers are always written: NCCL does not clear them.
 */
#include <stddef.h>

#include "comm.h"
#include "plugin.h"

#define NAME "Railyard"
#define EXPORT __attribute__((visibility("default")))

/* One engine serves all; before v11 there is no finalize, so it runs on. */
static enum ry_net_result init_v8(ry_net_logger_fn logger)
{
	return plugin_result(plugin_init((log_sink_fn)logger));
}

static enum ry_net_result init_v10(ry_net_logger_fn logger, ry_net_profiler_fn profiler)
{
	(void)profiler;
	return init_v8(logger);
}

static enum ry_net_result init_v11(void **ctx, uint64_t comm_id, struct ry_net_config_v10 *config,
				   ry_net_logger_fn logger, ry_net_profiler_fn profiler)
{
	struct plugin_ctx *c = plugin_ctx_create(config != NULL ? config->trafficClass :
								   RY_NET_UNDEF);

	(void)comm_id;
	(void)profiler;
	if (c == NULL) {
		return RY_NET_SYSTEM_ERROR;
	}
	enum ry_net_result rc = init_v8(logger);

	if (rc != RY_NET_SUCCESS) {
		plugin_ctx_destroy(c);
		return rc;
	}
	*ctx = c;
	return rc;
}

static enum ry_net_result finalize_v11(void *ctx)
{
	plugin_fini();
	plugin_ctx_destroy(ctx);
	return RY_NET_SUCCESS;
}

static enum ry_net_result devices_v8(int *ndev)
{
	return plugin_result(plugin_devices(ndev));
}

/* The members that all versions have, under the same names. */
#define PROPS_COMMON(out, in)                                                                      \
	do {                                                                                       \
		(out)->name = (in)->name;                                                          \
		(out)->pciPath = (in)->pciPath;                                                    \
		(out)->guid = (in)->guid;                                                          \
		(out)->ptrSupport = (in)->ptrSupport;                                              \
		(out)->regIsGlobal = (in)->regIsGlobal;                                            \
		(out)->speed = (in)->speed;                                                        \
		(out)->port = (in)->port;                                                          \
		(out)->latency = (in)->latency;                                                    \
		(out)->maxComms = (in)->maxComms;                                                  \
		(out)->maxRecvs = (in)->maxRecvs;                                                  \
		(out)->netDeviceType = (in)->netDeviceType;                                        \
		(out)->netDeviceVersion = (in)->netDeviceVersion;                                  \
	} while (0)

/* v9 adds fused devices (4 members until v11) and size limits. */
#define PROPS_V9(out, in)                                                                          \
	do {                                                                                       \
		PROPS_COMMON(out, in);                                                             \
		(out)->forceFlush = (in)->forceFlush;                                              \
		(out)->vProps.ndevs = (in)->vProps.ndevs;                                          \
		for (int i_ = 0; i_ < (in)->vProps.ndevs && i_ < RY_NET_VDEV_MAX_V9; i_++) {       \
			(out)->vProps.devs[i_] = (in)->vProps.devs[i_];                            \
		}                                                                                  \
		(out)->maxP2pBytes = (in)->maxP2pBytes;                                            \
		(out)->maxCollBytes = (in)->maxCollBytes;                                          \
	} while (0)

static enum ry_net_result properties_v8(int dev, struct ry_net_props_v8 *props)
{
	struct ry_net_props_v12 p;
	int rc = plugin_properties(dev, &p);

	if (rc == 0) {
		PROPS_COMMON(props, &p);
	}
	return plugin_result(rc);
}

static enum ry_net_result properties_v9(int dev, struct ry_net_props_v9 *props)
{
	struct ry_net_props_v12 p;
	int rc = plugin_properties(dev, &p);

	if (rc == 0) {
		PROPS_V9(props, &p);
	}
	return plugin_result(rc);
}

static enum ry_net_result properties_v11(int dev, struct ry_net_props_v11 *props)
{
	struct ry_net_props_v12 p;
	int rc = plugin_properties(dev, &p);

	if (rc == 0) {
		PROPS_V9(props, &p);
		props->maxMultiRequestSize = p.maxMultiRequestSize;
	}
	return plugin_result(rc);
}

static enum ry_net_result properties_v12(int dev, struct ry_net_props_v12 *props)
{
	return plugin_result(plugin_properties(dev, props));
}

static enum ry_net_result make_vdevice_v9(int *dev, struct ry_net_vdev_v9 *members)
{
	return plugin_result(plugin_fuse(members->ndevs, members->devs, dev));
}

static enum ry_net_result make_vdevice_v12(int *dev, struct ry_net_vdev_v12 *members)
{
	return plugin_result(plugin_fuse(members->ndevs, members->devs, dev));
}

static enum ry_net_result listen_v8(int dev, void *handle, void **listen_comm)
{
	return plugin_result(plugin_listen(dev, handle, listen_comm));
}

static enum ry_net_result listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	return listen_v8(dev, handle, listen_comm);
}

static enum ry_net_result connect_with(int dev, void *handle, int traffic_class, void **send_comm,
				       struct ry_net_device_handle **dev_handle)
{
	if (dev_handle != NULL) {
		*dev_handle = NULL;
	}
	return plugin_result(plugin_connect(dev, handle, traffic_class, send_comm));
}

static enum ry_net_result connect_v8(int dev, void *handle, void **send_comm,
				     struct ry_net_device_handle **dev_handle)
{
	return connect_with(dev, handle, RY_NET_UNDEF, send_comm, dev_handle);
}

static enum ry_net_result connect_v10(int dev, struct ry_net_config_v10 *config, void *handle,
				      void **send_comm, struct ry_net_device_handle **dev_handle)
{
	return connect_with(dev, handle, config != NULL ? config->trafficClass : RY_NET_UNDEF,
			    send_comm, dev_handle);
}

static enum ry_net_result connect_v11(void *ctx, int dev, void *handle, void **send_comm,
				      struct ry_net_device_handle **dev_handle)
{
	const struct plugin_ctx *c = ctx;

	return connect_with(dev, handle, c != NULL ? c->traffic_class : RY_NET_UNDEF, send_comm,
			    dev_handle);
}

static enum ry_net_result accept_v8(void *listen_comm, void **recv_comm,
				    struct ry_net_device_handle **dev_handle)
{
	if (dev_handle != NULL) {
		*dev_handle = NULL;
	}
	return plugin_result(plugin_accept(listen_comm, recv_comm));
}

static enum ry_net_result reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
	return plugin_result(plugin_register(comm, data, size, type, 0, -1, mhandle));
}

static enum ry_net_result reg_mr_dmabuf_v8(void *comm, void *data, size_t size, int type,
					   uint64_t offset, int fd, void **mhandle)
{
	return plugin_result(plugin_register(comm, data, size, type, offset, fd, mhandle));
}

static enum ry_net_result dereg_mr_v8(void *comm, void *mhandle)
{
	return plugin_result(plugin_deregister(comm, mhandle));
}

static enum ry_net_result isend_v10(void *send_comm, void *data, size_t size, int tag,
				    void *mhandle, void *phandle, void **request)
{
	(void)phandle;
	int rc = request_send(send_comm, data, size, tag, mhandle, (struct request **)request);

	return __builtin_expect(rc == 0, 1) ? RY_NET_SUCCESS : plugin_result(rc);
}

static enum ry_net_result isend_v9(void *send_comm, void *data, size_t size, int tag, void *mhandle,
				   void **request)
{
	return isend_v10(send_comm, data, size, tag, mhandle, NULL, request);
}

static enum ry_net_result isend_v8(void *send_comm, void *data, int size, int tag, void *mhandle,
				   void **request)
{
	*request = NULL;
	return size < 0 ? RY_NET_INVALID_ARGUMENT :
			  isend_v10(send_comm, data, (size_t)size, tag, mhandle, NULL, request);
}

static enum ry_net_result irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
				    void **mhandles, void **phandles, void **request)
{
	(void)phandles;
	int rc = request_recv(recv_comm, n, data, sizes, tags, (const struct mr **)mhandles,
			      (struct request **)request);

	return __builtin_expect(rc == 0, 1) ? RY_NET_SUCCESS : plugin_result(rc);
}

static enum ry_net_result irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
				   void **mhandles, void **request)
{
	return irecv_v10(recv_comm, n, data, sizes, tags, mhandles, NULL, request);
}

static enum ry_net_result irecv_v8(void *recv_comm, int n, void **data, int *sizes, int *tags,
				   void **mhandles, void **request)
{
	size_t wide[CORE_GROUP_MAX];

	*request = NULL;
	if (n < 1 || n > CORE_GROUP_MAX) {
		return RY_NET_INVALID_ARGUMENT;
	}
	for (int i = 0; i < n; i++) {
		if (sizes[i] < 0) {
			return RY_NET_INVALID_ARGUMENT;
		}
		wide[i] = (size_t)sizes[i];
	}
	return irecv_v10(recv_comm, n, data, wide, tags, mhandles, NULL, request);
}

static enum ry_net_result iflush_v8(void *recv_comm, int n, void **data, int *sizes,
				    void **mhandles, void **request)
{
	return plugin_result(request_flush(recv_comm, n, data, sizes, (const struct mr **)mhandles,
					   (struct request **)request));
}

static enum ry_net_result test_v8(void *request, int *done, int *sizes)
{
	int rc = request_test(request, done, sizes);

	return __builtin_expect(rc == 0, 1) ? RY_NET_SUCCESS : plugin_result(rc);
}

static enum ry_net_result close_v8(void *comm)
{
	return plugin_result(plugin_close(comm));
}

static enum ry_net_result close_listen_v8(void *listen_comm)
{
	return plugin_result(plugin_close_listen(listen_comm));
}

static enum ry_net_result set_attr_v11(void *ctx, struct ry_net_attr_v11 *attr)
{
	(void)ctx;
	(void)attr; /* a hint that nothing here needs */
	return RY_NET_SUCCESS;
}

/* getDeviceMr and irecvConsumed stay NULL: no GPU drives this network. */
#define COMMON_V8                                                                                  \
	.name = NAME, .devices = devices_v8, .accept = accept_v8, .regMr = reg_mr_v8,              \
	.regMrDmaBuf = reg_mr_dmabuf_v8, .deregMr = dereg_mr_v8, .iflush = iflush_v8,              \
	.test = test_v8, .closeSend = close_v8, .closeRecv = close_v8,                             \
	.closeListen = close_listen_v8

extern const struct ry_net_v8 ncclNetPlugin_v8;
extern const struct ry_net_v9 ncclNetPlugin_v9;
extern const struct ry_net_v10 ncclNetPlugin_v10;
extern const struct ry_net_v11 ncclNetPlugin_v11;
extern const struct ry_net_v12 ncclNetPlugin_v12;

EXPORT const struct ry_net_v8 ncclNetPlugin_v8 = {
	COMMON_V8, .init = init_v8, .getProperties = properties_v8, .listen = listen_v8,
	.connect = connect_v8, .isend = isend_v8, .irecv = irecv_v8,
};

EXPORT const struct ry_net_v9 ncclNetPlugin_v9 = {
	COMMON_V8, .init = init_v8, .getProperties = properties_v9, .listen = listen_v8,
	.connect = connect_v8, .isend = isend_v9, .irecv = irecv_v9,
	.makeVDevice = make_vdevice_v9,
};

EXPORT const struct ry_net_v10 ncclNetPlugin_v10 = {
	COMMON_V8, .init = init_v10, .getProperties = properties_v9, .listen = listen_v8,
	.connect = connect_v10, .isend = isend_v10, .irecv = irecv_v10,
	.makeVDevice = make_vdevice_v9,
};

EXPORT const struct ry_net_v11 ncclNetPlugin_v11 = {
	COMMON_V8, .init = init_v11, .getProperties = properties_v11, .listen = listen_v11,
	.connect = connect_v11, .isend = isend_v10, .irecv = irecv_v10,
	.makeVDevice = make_vdevice_v9, .finalize = finalize_v11, .setNetAttr = set_attr_v11,
};

EXPORT const struct ry_net_v12 ncclNetPlugin_v12 = {
	COMMON_V8, .init = init_v11, .getProperties = properties_v12, .listen = listen_v11,
	.connect = connect_v11, .isend = isend_v10, .irecv = irecv_v10,
	.makeVDevice = make_vdevice_v12, .finalize = finalize_v11, .setNetAttr = set_attr_v11,
};
