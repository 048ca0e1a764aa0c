/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * nccl_net.h - our own declarations of NCCL's network plugin ABI, v8 to v12.
 *
 * NCCL (and RCCL) looks up data symbols ncclNetPlugin_v12 ... ncclNetPlugin_v8, newest first, in
 * the plugin file; each is one of the tables below. This file states the binary interface and
 * nothing else: no helper, no state. It is used by the plugin that fills the tables, by
 * `railyard bench` that calls any plugin through them, and by the tests.
 *
 * Names: types and constants carry our prefix ry_net_ / RY_NET_, with the ABI version they first
 * appear in as suffix; members keep the names that NCCL's documentation uses, so that a text about
 * NCCL's interface can be read beside this file. Which version uses which type:
 *
 *            table          properties        virtual device    connection config
 *   v8       ry_net_v8      ry_net_props_v8   -                 -
 *   v9       ry_net_v9      ry_net_props_v9   ry_net_vdev_v9    -
 *   v10      ry_net_v10     ry_net_props_v9   ry_net_vdev_v9    in connect
 *   v11      ry_net_v11     ry_net_props_v11  ry_net_vdev_v9    in init
 *   v12      ry_net_v12     ry_net_props_v12  ry_net_vdev_v12   in init
 *
 * Invariant: every size and offset is pinned by a static assert (x86-64 and every other LP64 ABI).
 * Must not: be edited to suit our code. A new ABI version gets new types at the end.
 */
#ifndef RY_NCCL_NET_H
#define RY_NCCL_NET_H

#include <stddef.h>
#include <stdint.h>

/* Limits and flag values. */
enum {
	RY_NET_HANDLE_BYTES_MAX = 128,	/* listen's handle, carried to the peer by NCCL */
	RY_NET_REQUESTS_MAX = 32,	/* outstanding per comm, times the maxRecvs property */
	RY_NET_VDEV_MAX_V9 = 4,		/* members of a virtual device, v9 ... v11 */
	RY_NET_VDEV_MAX_V12 = 8,	/* the same, v12 */
	RY_NET_UNDEF = -1,		/* traffic class, rail id, plane id, attribute: not known */
};

/* Values of ptrSupport (a mask) and of regMr's type (one bit). */
enum {
	RY_NET_PTR_HOST = 0x1,
	RY_NET_PTR_CUDA = 0x2,
	RY_NET_PTR_DMABUF = 0x4,
};

/* Largest legal maxP2pBytes and maxCollBytes (v9 on); what NCCL assumes for a v8 plugin. */
#define RY_NET_BYTES_MAX (UINT64_C(1) << 40)
#define RY_NET_P2P_BYTES_MAX_V8 (UINT64_C(1) << 30)
#define RY_NET_COLL_BYTES_MAX_V8 (UINT64_C(512) << 20)

/* Found in *request on entry of irecv (v9 on): the caller needs neither size nor completion. */
#define RY_NET_OPTIONAL_RECV_COMPLETION ((void *)0x1)

enum ry_net_result {
	RY_NET_SUCCESS = 0,
	RY_NET_UNHANDLED_CUDA_ERROR = 1,
	RY_NET_SYSTEM_ERROR = 2,	/* fault of this host */
	RY_NET_INTERNAL_ERROR = 3,	/* fault of the code */
	RY_NET_INVALID_ARGUMENT = 4,
	RY_NET_INVALID_USAGE = 5,
	RY_NET_REMOTE_ERROR = 6,	/* the peer cannot be reached */
	RY_NET_IN_PROGRESS = 7,
};

/* Who moves the data of a device; everything but HOST needs code in the GPU. */
enum ry_net_device_type {
	RY_NET_DEVICE_HOST = 0,
	RY_NET_DEVICE_UNPACK = 1,
	RY_NET_DEVICE_GIN_PROXY = 2,
	RY_NET_DEVICE_GIN_GDAKI = 3,
	RY_NET_DEVICE_GIN_GPI = 4,
};
enum { RY_NET_DEVICE_VERSION_INVALID = 0x0 };

enum ry_net_log_level {
	RY_NET_LOG_NONE = 0,
	RY_NET_LOG_VERSION = 1,
	RY_NET_LOG_WARN = 2,
	RY_NET_LOG_INFO = 3,
	RY_NET_LOG_ABORT = 4,
	RY_NET_LOG_TRACE = 5,
};

/* Subsystem bits of a log line; all bits = every subsystem. */
#define RY_NET_LOG_INIT 0x1ul
#define RY_NET_LOG_COLL 0x2ul
#define RY_NET_LOG_P2P 0x4ul
#define RY_NET_LOG_SHM 0x8ul
#define RY_NET_LOG_NET 0x10ul
#define RY_NET_LOG_GRAPH 0x20ul
#define RY_NET_LOG_TUNING 0x40ul
#define RY_NET_LOG_ENV 0x80ul
#define RY_NET_LOG_ALLOC 0x100ul
#define RY_NET_LOG_CALL 0x200ul
#define RY_NET_LOG_PROXY 0x400ul
#define RY_NET_LOG_NVLS 0x800ul
#define RY_NET_LOG_BOOTSTRAP 0x1000ul
#define RY_NET_LOG_REG 0x2000ul
#define RY_NET_LOG_PROFILE 0x4000ul
#define RY_NET_LOG_RAS 0x8000ul
#define RY_NET_LOG_DESTROY 0x10000ul
#define RY_NET_LOG_ALLOC_HOST 0x20000ul
#define RY_NET_LOG_ALL (~0ul)

/* NCCL's logger, given to init. @file: function or file name to print before the text. */
typedef void (*ry_net_logger_fn)(enum ry_net_log_level level, unsigned long flags, const char *file,
				 int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* NCCL's profiler, given to init (v10 on). @type: 0 start, 1 stop, 2 update, 3 update and stop;
 * @phandle: what isend or irecv was given; @plugin_id: net type and version of the descriptor. */
typedef enum ry_net_result (*ry_net_profiler_fn)(void **ehandle, int type, void *phandle,
						 int64_t plugin_id, void *ext_data);

/* What connect and accept may hand out for a device that a GPU drives; NULL for HOST devices. */
struct ry_net_device_handle {
	enum ry_net_device_type netDeviceType;
	int netDeviceVersion;
	void *handle;
	size_t size;
	int needsProxyProgress;
};

/* Settings of a communicator. v10 gets them in connect, v11 and v12 in init. */
struct ry_net_config_v10 {
	int trafficClass;		/* RY_NET_UNDEF = not set; meaning is the plugin's */
};

/* A hint about the traffic of an operation, v11 on. RY_NET_UNDEF = not known. */
struct ry_net_comm_attr_v11 {
	int32_t maxConcurrentPeers;
	int32_t minConcurrentPeers;
	int32_t maxFlowsPerPeer;
	int32_t minFlowsPerPeer;
};

struct ry_net_attr_v11 {
	struct ry_net_comm_attr_v11 sendCommAttr;
	struct ry_net_comm_attr_v11 recvCommAttr;
	uint32_t op;
	uint32_t algo;
	uint32_t proto;
};

/* Members of a virtual device: indices of physical devices. */
struct ry_net_vdev_v9 {
	int ndevs;
	int devs[RY_NET_VDEV_MAX_V9];
};

struct ry_net_vdev_v12 {
	int ndevs;
	int devs[RY_NET_VDEV_MAX_V12];
};

/* Properties of a device, v8. */
struct ry_net_props_v8 {
	char *name;			/* for logs; exact in NCCL_NET_FORCE_MERGE */
	char *pciPath;			/* realpath under /sys, or NULL */
	uint64_t guid;			/* of the adapter, not of the port */
	int ptrSupport;			/* mask of RY_NET_PTR_* */
	int regIsGlobal;		/* an MR of one comm serves all comms of the device */
	int speed;			/* Mbit/s */
	int port;			/* tells the ports of one adapter apart */
	float latency;			/* microseconds; 0 = not set */
	int maxComms;
	int maxRecvs;			/* largest group of irecv */
	enum ry_net_device_type netDeviceType;
	int netDeviceVersion;
};

/* Properties, v9 and v10. */
struct ry_net_props_v9 {
	char *name;			/* for logs; exact in NCCL_NET_FORCE_MERGE */
	char *pciPath;			/* realpath under /sys, or NULL */
	uint64_t guid;			/* of the adapter, not of the port */
	int ptrSupport;			/* mask of RY_NET_PTR_* */
	int regIsGlobal;		/* an MR of one comm serves all comms of the device */
	int forceFlush;			/* flush even where the GPU needs none */
	int speed;			/* Mbit/s */
	int port;			/* tells the ports of one adapter apart */
	float latency;			/* microseconds; 0 = not set */
	int maxComms;
	int maxRecvs;			/* largest group of irecv */
	enum ry_net_device_type netDeviceType;
	int netDeviceVersion;
	struct ry_net_vdev_v9 vProps;
	size_t maxP2pBytes;		/* 1 ... RY_NET_BYTES_MAX */
	size_t maxCollBytes;
};

/* Properties, v11. */
struct ry_net_props_v11 {
	char *name;			/* for logs; exact in NCCL_NET_FORCE_MERGE */
	char *pciPath;			/* realpath under /sys, or NULL */
	uint64_t guid;			/* of the adapter, not of the port */
	int ptrSupport;			/* mask of RY_NET_PTR_* */
	int regIsGlobal;		/* an MR of one comm serves all comms of the device */
	int forceFlush;			/* flush even where the GPU needs none */
	int speed;			/* Mbit/s */
	int port;			/* tells the ports of one adapter apart */
	float latency;			/* microseconds; 0 = not set */
	int maxComms;
	int maxRecvs;			/* largest group of irecv */
	enum ry_net_device_type netDeviceType;
	int netDeviceVersion;
	struct ry_net_vdev_v9 vProps;
	size_t maxP2pBytes;		/* 1 ... RY_NET_BYTES_MAX */
	size_t maxCollBytes;
	int maxMultiRequestSize;	/* 1 */
};

/* Properties, v12. */
struct ry_net_props_v12 {
	char *name;			/* for logs; exact in NCCL_NET_FORCE_MERGE */
	char *pciPath;			/* realpath under /sys, or NULL */
	uint64_t guid;			/* of the adapter, not of the port */
	int ptrSupport;			/* mask of RY_NET_PTR_* */
	int regIsGlobal;		/* an MR of one comm serves all comms of the device */
	int forceFlush;			/* flush even where the GPU needs none */
	int speed;			/* Mbit/s */
	int port;			/* tells the ports of one adapter apart */
	float latency;			/* microseconds; 0 = not set */
	int maxComms;
	int maxRecvs;			/* largest group of irecv */
	enum ry_net_device_type netDeviceType;
	int netDeviceVersion;
	struct ry_net_vdev_v12 vProps;
	size_t maxP2pBytes;		/* 1 ... RY_NET_BYTES_MAX */
	size_t maxCollBytes;
	int maxMultiRequestSize;	/* 1 */
	int16_t railId;			/* RY_NET_UNDEF = not known */
	int16_t planeId;
};

/*
 * The tables. All members are mandatory but: regMrDmaBuf where ptrSupport lacks DMABUF;
 * getDeviceMr and irecvConsumed where netDeviceType is HOST; makeVDevice (NULL = NCCL fuses
 * nothing); setNetAttr.
 * *request or the comm NULL after success = not now, call again with the same arguments.
 */
struct ry_net_v8 {
	const char *name;
	enum ry_net_result (*init)(ry_net_logger_fn logger);
	enum ry_net_result (*devices)(int *ndev);
	enum ry_net_result (*getProperties)(int dev, struct ry_net_props_v8 *props);
	enum ry_net_result (*listen)(int dev, void *handle, void **listenComm);
	enum ry_net_result (*connect)(int dev, void *handle, void **sendComm,
				      struct ry_net_device_handle **sendDevComm);
	enum ry_net_result (*accept)(void *listenComm, void **recvComm,
				     struct ry_net_device_handle **recvDevComm);
	enum ry_net_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
	enum ry_net_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
					  uint64_t offset, int fd, void **mhandle);
	enum ry_net_result (*deregMr)(void *comm, void *mhandle);
	enum ry_net_result (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle,
				    void **request);
	enum ry_net_result (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags,
				    void **mhandles, void **request);
	enum ry_net_result (*iflush)(void *recvComm, int n, void **data, int *sizes,
				     void **mhandles, void **request);
	enum ry_net_result (*test)(void *request, int *done, int *sizes);
	enum ry_net_result (*closeSend)(void *sendComm);
	enum ry_net_result (*closeRecv)(void *recvComm);
	enum ry_net_result (*closeListen)(void *listenComm);
	enum ry_net_result (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
	enum ry_net_result (*irecvConsumed)(void *recvComm, int n, void *request);
};

/* v9: sizes are size_t; makeVDevice. */
struct ry_net_v9 {
	const char *name;
	enum ry_net_result (*init)(ry_net_logger_fn logger);
	enum ry_net_result (*devices)(int *ndev);
	enum ry_net_result (*getProperties)(int dev, struct ry_net_props_v9 *props);
	enum ry_net_result (*listen)(int dev, void *handle, void **listenComm);
	enum ry_net_result (*connect)(int dev, void *handle, void **sendComm,
				      struct ry_net_device_handle **sendDevComm);
	enum ry_net_result (*accept)(void *listenComm, void **recvComm,
				     struct ry_net_device_handle **recvDevComm);
	enum ry_net_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
	enum ry_net_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
					  uint64_t offset, int fd, void **mhandle);
	enum ry_net_result (*deregMr)(void *comm, void *mhandle);
	enum ry_net_result (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle,
				    void **request);
	enum ry_net_result (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags,
				    void **mhandles, void **request);
	enum ry_net_result (*iflush)(void *recvComm, int n, void **data, int *sizes,
				     void **mhandles, void **request);
	enum ry_net_result (*test)(void *request, int *done, int *sizes);
	enum ry_net_result (*closeSend)(void *sendComm);
	enum ry_net_result (*closeRecv)(void *recvComm);
	enum ry_net_result (*closeListen)(void *listenComm);
	enum ry_net_result (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
	enum ry_net_result (*irecvConsumed)(void *recvComm, int n, void *request);
	enum ry_net_result (*makeVDevice)(int *dev, struct ry_net_vdev_v9 *members);
};

/* v10: connection config in connect; profiler handles. */
struct ry_net_v10 {
	const char *name;
	enum ry_net_result (*init)(ry_net_logger_fn logger, ry_net_profiler_fn profiler);
	enum ry_net_result (*devices)(int *ndev);
	enum ry_net_result (*getProperties)(int dev, struct ry_net_props_v9 *props);
	enum ry_net_result (*listen)(int dev, void *handle, void **listenComm);
	enum ry_net_result (*connect)(int dev, struct ry_net_config_v10 *config, void *handle,
				      void **sendComm, struct ry_net_device_handle **sendDevComm);
	enum ry_net_result (*accept)(void *listenComm, void **recvComm,
				     struct ry_net_device_handle **recvDevComm);
	enum ry_net_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
	enum ry_net_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
					  uint64_t offset, int fd, void **mhandle);
	enum ry_net_result (*deregMr)(void *comm, void *mhandle);
	enum ry_net_result (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle,
				    void *phandle, void **request);
	enum ry_net_result (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags,
				    void **mhandles, void **phandles, void **request);
	enum ry_net_result (*iflush)(void *recvComm, int n, void **data, int *sizes,
				     void **mhandles, void **request);
	enum ry_net_result (*test)(void *request, int *done, int *sizes);
	enum ry_net_result (*closeSend)(void *sendComm);
	enum ry_net_result (*closeRecv)(void *recvComm);
	enum ry_net_result (*closeListen)(void *listenComm);
	enum ry_net_result (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
	enum ry_net_result (*irecvConsumed)(void *recvComm, int n, void *request);
	enum ry_net_result (*makeVDevice)(int *dev, struct ry_net_vdev_v9 *members);
};

/* v11: one context per communicator, from init to finalize; setNetAttr. */
struct ry_net_v11 {
	const char *name;
	enum ry_net_result (*init)(void **ctx, uint64_t commId, struct ry_net_config_v10 *config,
				   ry_net_logger_fn logger, ry_net_profiler_fn profiler);
	enum ry_net_result (*devices)(int *ndev);
	enum ry_net_result (*getProperties)(int dev, struct ry_net_props_v11 *props);
	enum ry_net_result (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	enum ry_net_result (*connect)(void *ctx, int dev, void *handle, void **sendComm,
				      struct ry_net_device_handle **sendDevComm);
	enum ry_net_result (*accept)(void *listenComm, void **recvComm,
				     struct ry_net_device_handle **recvDevComm);
	enum ry_net_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
	enum ry_net_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
					  uint64_t offset, int fd, void **mhandle);
	enum ry_net_result (*deregMr)(void *comm, void *mhandle);
	enum ry_net_result (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle,
				    void *phandle, void **request);
	enum ry_net_result (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags,
				    void **mhandles, void **phandles, void **request);
	enum ry_net_result (*iflush)(void *recvComm, int n, void **data, int *sizes,
				     void **mhandles, void **request);
	enum ry_net_result (*test)(void *request, int *done, int *sizes);
	enum ry_net_result (*closeSend)(void *sendComm);
	enum ry_net_result (*closeRecv)(void *recvComm);
	enum ry_net_result (*closeListen)(void *listenComm);
	enum ry_net_result (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
	enum ry_net_result (*irecvConsumed)(void *recvComm, int n, void *request);
	enum ry_net_result (*makeVDevice)(int *dev, struct ry_net_vdev_v9 *members);
	enum ry_net_result (*finalize)(void *ctx);
	enum ry_net_result (*setNetAttr)(void *ctx, struct ry_net_attr_v11 *attr);
};

/* v12: v11 with wider virtual devices and the rail and plane ids. */
struct ry_net_v12 {
	const char *name;
	enum ry_net_result (*init)(void **ctx, uint64_t commId, struct ry_net_config_v10 *config,
				   ry_net_logger_fn logger, ry_net_profiler_fn profiler);
	enum ry_net_result (*devices)(int *ndev);
	enum ry_net_result (*getProperties)(int dev, struct ry_net_props_v12 *props);
	enum ry_net_result (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	enum ry_net_result (*connect)(void *ctx, int dev, void *handle, void **sendComm,
				      struct ry_net_device_handle **sendDevComm);
	enum ry_net_result (*accept)(void *listenComm, void **recvComm,
				     struct ry_net_device_handle **recvDevComm);
	enum ry_net_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
	enum ry_net_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
					  uint64_t offset, int fd, void **mhandle);
	enum ry_net_result (*deregMr)(void *comm, void *mhandle);
	enum ry_net_result (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle,
				    void *phandle, void **request);
	enum ry_net_result (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags,
				    void **mhandles, void **phandles, void **request);
	enum ry_net_result (*iflush)(void *recvComm, int n, void **data, int *sizes,
				     void **mhandles, void **request);
	enum ry_net_result (*test)(void *request, int *done, int *sizes);
	enum ry_net_result (*closeSend)(void *sendComm);
	enum ry_net_result (*closeRecv)(void *recvComm);
	enum ry_net_result (*closeListen)(void *listenComm);
	enum ry_net_result (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
	enum ry_net_result (*irecvConsumed)(void *recvComm, int n, void *request);
	enum ry_net_result (*makeVDevice)(int *dev, struct ry_net_vdev_v12 *members);
	enum ry_net_result (*finalize)(void *ctx);
	enum ry_net_result (*setNetAttr)(void *ctx, struct ry_net_attr_v11 *attr);
};

/* Layout: any change here is a change of the binary interface. */
#define RY_NET_SIZE(type, bytes) \
	_Static_assert(sizeof(struct type) == (bytes), "size of " #type)
#define RY_NET_AT(type, member, bytes) \
	_Static_assert(offsetof(struct type, member) == (bytes), #type "." #member)

RY_NET_SIZE(ry_net_props_v8, 64);
RY_NET_AT(ry_net_props_v8, name, 0);
RY_NET_AT(ry_net_props_v8, pciPath, 8);
RY_NET_AT(ry_net_props_v8, guid, 16);
RY_NET_AT(ry_net_props_v8, ptrSupport, 24);
RY_NET_AT(ry_net_props_v8, regIsGlobal, 28);
RY_NET_AT(ry_net_props_v8, speed, 32);
RY_NET_AT(ry_net_props_v8, port, 36);
RY_NET_AT(ry_net_props_v8, latency, 40);
RY_NET_AT(ry_net_props_v8, maxComms, 44);
RY_NET_AT(ry_net_props_v8, maxRecvs, 48);
RY_NET_AT(ry_net_props_v8, netDeviceType, 52);
RY_NET_AT(ry_net_props_v8, netDeviceVersion, 56);

RY_NET_SIZE(ry_net_props_v9, 104);
RY_NET_AT(ry_net_props_v9, name, 0);
RY_NET_AT(ry_net_props_v9, pciPath, 8);
RY_NET_AT(ry_net_props_v9, guid, 16);
RY_NET_AT(ry_net_props_v9, ptrSupport, 24);
RY_NET_AT(ry_net_props_v9, regIsGlobal, 28);
RY_NET_AT(ry_net_props_v9, forceFlush, 32);
RY_NET_AT(ry_net_props_v9, speed, 36);
RY_NET_AT(ry_net_props_v9, port, 40);
RY_NET_AT(ry_net_props_v9, latency, 44);
RY_NET_AT(ry_net_props_v9, maxComms, 48);
RY_NET_AT(ry_net_props_v9, maxRecvs, 52);
RY_NET_AT(ry_net_props_v9, netDeviceType, 56);
RY_NET_AT(ry_net_props_v9, netDeviceVersion, 60);
RY_NET_AT(ry_net_props_v9, vProps, 64);
RY_NET_AT(ry_net_props_v9, maxP2pBytes, 88);
RY_NET_AT(ry_net_props_v9, maxCollBytes, 96);

RY_NET_SIZE(ry_net_props_v11, 112);
RY_NET_AT(ry_net_props_v11, name, 0);
RY_NET_AT(ry_net_props_v11, pciPath, 8);
RY_NET_AT(ry_net_props_v11, guid, 16);
RY_NET_AT(ry_net_props_v11, ptrSupport, 24);
RY_NET_AT(ry_net_props_v11, regIsGlobal, 28);
RY_NET_AT(ry_net_props_v11, forceFlush, 32);
RY_NET_AT(ry_net_props_v11, speed, 36);
RY_NET_AT(ry_net_props_v11, port, 40);
RY_NET_AT(ry_net_props_v11, latency, 44);
RY_NET_AT(ry_net_props_v11, maxComms, 48);
RY_NET_AT(ry_net_props_v11, maxRecvs, 52);
RY_NET_AT(ry_net_props_v11, netDeviceType, 56);
RY_NET_AT(ry_net_props_v11, netDeviceVersion, 60);
RY_NET_AT(ry_net_props_v11, vProps, 64);
RY_NET_AT(ry_net_props_v11, maxP2pBytes, 88);
RY_NET_AT(ry_net_props_v11, maxCollBytes, 96);
RY_NET_AT(ry_net_props_v11, maxMultiRequestSize, 104);

RY_NET_SIZE(ry_net_props_v12, 128);
RY_NET_AT(ry_net_props_v12, name, 0);
RY_NET_AT(ry_net_props_v12, pciPath, 8);
RY_NET_AT(ry_net_props_v12, guid, 16);
RY_NET_AT(ry_net_props_v12, ptrSupport, 24);
RY_NET_AT(ry_net_props_v12, regIsGlobal, 28);
RY_NET_AT(ry_net_props_v12, forceFlush, 32);
RY_NET_AT(ry_net_props_v12, speed, 36);
RY_NET_AT(ry_net_props_v12, port, 40);
RY_NET_AT(ry_net_props_v12, latency, 44);
RY_NET_AT(ry_net_props_v12, maxComms, 48);
RY_NET_AT(ry_net_props_v12, maxRecvs, 52);
RY_NET_AT(ry_net_props_v12, netDeviceType, 56);
RY_NET_AT(ry_net_props_v12, netDeviceVersion, 60);
RY_NET_AT(ry_net_props_v12, vProps, 64);
RY_NET_AT(ry_net_props_v12, maxP2pBytes, 104);
RY_NET_AT(ry_net_props_v12, maxCollBytes, 112);
RY_NET_AT(ry_net_props_v12, maxMultiRequestSize, 120);
RY_NET_AT(ry_net_props_v12, railId, 124);
RY_NET_AT(ry_net_props_v12, planeId, 126);

RY_NET_SIZE(ry_net_v8, 152);
RY_NET_AT(ry_net_v8, name, 0);
RY_NET_AT(ry_net_v8, init, 8);
RY_NET_AT(ry_net_v8, devices, 16);
RY_NET_AT(ry_net_v8, getProperties, 24);
RY_NET_AT(ry_net_v8, listen, 32);
RY_NET_AT(ry_net_v8, connect, 40);
RY_NET_AT(ry_net_v8, accept, 48);
RY_NET_AT(ry_net_v8, regMr, 56);
RY_NET_AT(ry_net_v8, regMrDmaBuf, 64);
RY_NET_AT(ry_net_v8, deregMr, 72);
RY_NET_AT(ry_net_v8, isend, 80);
RY_NET_AT(ry_net_v8, irecv, 88);
RY_NET_AT(ry_net_v8, iflush, 96);
RY_NET_AT(ry_net_v8, test, 104);
RY_NET_AT(ry_net_v8, closeSend, 112);
RY_NET_AT(ry_net_v8, closeRecv, 120);
RY_NET_AT(ry_net_v8, closeListen, 128);
RY_NET_AT(ry_net_v8, getDeviceMr, 136);
RY_NET_AT(ry_net_v8, irecvConsumed, 144);

RY_NET_SIZE(ry_net_v9, 160);
RY_NET_AT(ry_net_v9, name, 0);
RY_NET_AT(ry_net_v9, init, 8);
RY_NET_AT(ry_net_v9, devices, 16);
RY_NET_AT(ry_net_v9, getProperties, 24);
RY_NET_AT(ry_net_v9, listen, 32);
RY_NET_AT(ry_net_v9, connect, 40);
RY_NET_AT(ry_net_v9, accept, 48);
RY_NET_AT(ry_net_v9, regMr, 56);
RY_NET_AT(ry_net_v9, regMrDmaBuf, 64);
RY_NET_AT(ry_net_v9, deregMr, 72);
RY_NET_AT(ry_net_v9, isend, 80);
RY_NET_AT(ry_net_v9, irecv, 88);
RY_NET_AT(ry_net_v9, iflush, 96);
RY_NET_AT(ry_net_v9, test, 104);
RY_NET_AT(ry_net_v9, closeSend, 112);
RY_NET_AT(ry_net_v9, closeRecv, 120);
RY_NET_AT(ry_net_v9, closeListen, 128);
RY_NET_AT(ry_net_v9, getDeviceMr, 136);
RY_NET_AT(ry_net_v9, irecvConsumed, 144);
RY_NET_AT(ry_net_v9, makeVDevice, 152);

RY_NET_SIZE(ry_net_v10, 160);
RY_NET_AT(ry_net_v10, name, 0);
RY_NET_AT(ry_net_v10, init, 8);
RY_NET_AT(ry_net_v10, devices, 16);
RY_NET_AT(ry_net_v10, getProperties, 24);
RY_NET_AT(ry_net_v10, listen, 32);
RY_NET_AT(ry_net_v10, connect, 40);
RY_NET_AT(ry_net_v10, accept, 48);
RY_NET_AT(ry_net_v10, regMr, 56);
RY_NET_AT(ry_net_v10, regMrDmaBuf, 64);
RY_NET_AT(ry_net_v10, deregMr, 72);
RY_NET_AT(ry_net_v10, isend, 80);
RY_NET_AT(ry_net_v10, irecv, 88);
RY_NET_AT(ry_net_v10, iflush, 96);
RY_NET_AT(ry_net_v10, test, 104);
RY_NET_AT(ry_net_v10, closeSend, 112);
RY_NET_AT(ry_net_v10, closeRecv, 120);
RY_NET_AT(ry_net_v10, closeListen, 128);
RY_NET_AT(ry_net_v10, getDeviceMr, 136);
RY_NET_AT(ry_net_v10, irecvConsumed, 144);
RY_NET_AT(ry_net_v10, makeVDevice, 152);

RY_NET_SIZE(ry_net_v11, 176);
RY_NET_AT(ry_net_v11, name, 0);
RY_NET_AT(ry_net_v11, init, 8);
RY_NET_AT(ry_net_v11, devices, 16);
RY_NET_AT(ry_net_v11, getProperties, 24);
RY_NET_AT(ry_net_v11, listen, 32);
RY_NET_AT(ry_net_v11, connect, 40);
RY_NET_AT(ry_net_v11, accept, 48);
RY_NET_AT(ry_net_v11, regMr, 56);
RY_NET_AT(ry_net_v11, regMrDmaBuf, 64);
RY_NET_AT(ry_net_v11, deregMr, 72);
RY_NET_AT(ry_net_v11, isend, 80);
RY_NET_AT(ry_net_v11, irecv, 88);
RY_NET_AT(ry_net_v11, iflush, 96);
RY_NET_AT(ry_net_v11, test, 104);
RY_NET_AT(ry_net_v11, closeSend, 112);
RY_NET_AT(ry_net_v11, closeRecv, 120);
RY_NET_AT(ry_net_v11, closeListen, 128);
RY_NET_AT(ry_net_v11, getDeviceMr, 136);
RY_NET_AT(ry_net_v11, irecvConsumed, 144);
RY_NET_AT(ry_net_v11, makeVDevice, 152);
RY_NET_AT(ry_net_v11, finalize, 160);
RY_NET_AT(ry_net_v11, setNetAttr, 168);

RY_NET_SIZE(ry_net_v12, 176);
RY_NET_AT(ry_net_v12, name, 0);
RY_NET_AT(ry_net_v12, init, 8);
RY_NET_AT(ry_net_v12, devices, 16);
RY_NET_AT(ry_net_v12, getProperties, 24);
RY_NET_AT(ry_net_v12, listen, 32);
RY_NET_AT(ry_net_v12, connect, 40);
RY_NET_AT(ry_net_v12, accept, 48);
RY_NET_AT(ry_net_v12, regMr, 56);
RY_NET_AT(ry_net_v12, regMrDmaBuf, 64);
RY_NET_AT(ry_net_v12, deregMr, 72);
RY_NET_AT(ry_net_v12, isend, 80);
RY_NET_AT(ry_net_v12, irecv, 88);
RY_NET_AT(ry_net_v12, iflush, 96);
RY_NET_AT(ry_net_v12, test, 104);
RY_NET_AT(ry_net_v12, closeSend, 112);
RY_NET_AT(ry_net_v12, closeRecv, 120);
RY_NET_AT(ry_net_v12, closeListen, 128);
RY_NET_AT(ry_net_v12, getDeviceMr, 136);
RY_NET_AT(ry_net_v12, irecvConsumed, 144);
RY_NET_AT(ry_net_v12, makeVDevice, 152);
RY_NET_AT(ry_net_v12, finalize, 160);
RY_NET_AT(ry_net_v12, setNetAttr, 168);

RY_NET_SIZE(ry_net_vdev_v9, 20);
RY_NET_SIZE(ry_net_vdev_v12, 36);
RY_NET_SIZE(ry_net_device_handle, 32);
RY_NET_SIZE(ry_net_config_v10, 4);
RY_NET_SIZE(ry_net_attr_v11, 44);
RY_NET_AT(ry_net_device_handle, netDeviceVersion, 4);
RY_NET_AT(ry_net_device_handle, handle, 8);
RY_NET_AT(ry_net_device_handle, size, 16);
RY_NET_AT(ry_net_device_handle, needsProxyProgress, 24);
RY_NET_AT(ry_net_attr_v11, recvCommAttr, 16);
RY_NET_AT(ry_net_attr_v11, op, 32);

#undef RY_NET_SIZE
#undef RY_NET_AT

#endif /* RY_NCCL_NET_H */
