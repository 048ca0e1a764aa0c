/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin.h - what ncclNet means, independent of the ABI version: nccl_shim.c converts types and
 * calls these. One process-wide engine, counted by init and finalize; one context per communicator
 * (v11 and later) that carries its traffic class.
 *
 * All return 0 or -errno; plugin_result() is the one place that turns these into ncclResult_t.
 */
#ifndef RAILYARD_PLUGIN_H
#define RAILYARD_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "log.h"
#include "nccl_net.h"

/* Of one communicator. */
struct plugin_ctx {
	int traffic_class; /* RY_NET_UNDEF = not set */
};

/* plugin_ctx_create - NULL = no memory. plugin_ctx_destroy accepts NULL. */
struct plugin_ctx *plugin_ctx_create(int traffic_class);
void plugin_ctx_destroy(struct plugin_ctx *ctx);

/*
 * plugin_init - start the engine if it does not run. Returns 0; -ENODEV if the plugin declines
 * (RAILYARD_MODE=off, NCCL_IB_DISABLE=1, no libibverbs): NCCL then takes its own transport.
 * Runs under NCCL's plugin mutex; takes its own lock too.
 */
int plugin_init(log_sink_fn sink);

/* plugin_fini - one user less; the last one stops threads and sockets. Never waits for a peer. */
void plugin_fini(void);

/* plugin_devices - number of devices NCCL may see (ports; fused ones come later by plugin_fuse). */
int plugin_devices(int *count);
int plugin_properties(int dev, struct ry_net_props_v12 *props);
int plugin_fuse(int count, const int *devs, int *index);

int plugin_listen(int dev, void *handle, void **listen_comm);
int plugin_connect(int dev, void *handle, int traffic_class, void **send_comm);
int plugin_accept(void *listen_comm, void **recv_comm);
int plugin_register(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
		    void **mhandle);
int plugin_deregister(void *comm, void *mhandle);
int plugin_close(void *comm);
int plugin_close_listen(void *listen_comm);

enum ry_net_result plugin_result(int rc);

#endif
