/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device.h - the RDMA ports of this host and the devices NCCL sees (one per port, plus fused ones).
 *
 * Order, names, paths, speeds and filters are as NCCL's own IB transport has them, so that NCCL
 * chooses the same channels. Ports are found once per process; the arrays never shrink.
 *
 * device.c holds the arrays, device_scan.c fills them, device_hca.c reads NCCL_IB_HCA,
 * device_gid.c answers port_address(), device_sys.c reads sysfs.
 */
#ifndef RAILYARD_DEVICE_H
#define RAILYARD_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "log.h"
#include "thread.h"
#include "verbs.h"

enum {
	PORTS_MAX = 32,
	VDEVICES_MAX = 256,
	PLANES_MAX = 12,     /* distinct plane ids that NCCL_IB_HCA may give */
	PLANE_FUSED = 0x4000 /* set in the plane id of a fused device, below it a bit per plane */
};

/* What the peer needs to reach a port; re-read on every use that can follow a flap. */
struct port_address {
	union ibv_gid gid;
	int gid_index;
	uint16_t lid;
	uint8_t link_layer; /* IBV_LINK_LAYER_* */
	enum ibv_mtu mtu;
};

struct mr_cache_entry;

struct port {
	/* What the core reads; after device_init the plugin thread writes it. */
	struct core_port word __attribute__((aligned(64)));
	char name[IBV_SYSFS_NAME_MAX + 4]; /* "mlx5_0:1" */
	char ibdev[IBV_SYSFS_NAME_MAX];
	char netdev[32]; /* RoCE: the netdev of the GID in use; "" if none or unknown */
	int ifindex;
	uint8_t num; /* port number on the device */
	uint8_t link_layer;
	struct ibv_context *ctx; /* shared by ports of one device */
	struct ibv_device_attr attr;
	char *pci_path;	      /* realpath with merged digits; NULL if there is none */
	uint64_t pci_address; /* not merged, orders the ports; UINT64_MAX if there is none */
	uint64_t guid;
	int nccl_port; /* props.port */
	uint32_t mbps;
	int rail_id, plane_id; /* from NCCL_IB_HCA; -1 unknown */
	bool has_dmabuf, has_peermem;
	struct worker *worker; /* of the device; shared by its ports */
	struct log_limit gid_limit;

	pthread_mutex_t lock; /* pd, netdev, ifindex; never held across a registration */
	struct ibv_pd *pd;    /* while pd_refs > 0 */
	int pd_refs;
	pthread_mutex_t cache_lock;   /* the cache below; held across a registration */
	struct mr_cache_entry *cache; /* sorted, see mr.c */
	int cache_count, cache_room;
};

/* A device as NCCL sees it: one port, or several fused. Immutable once made. */
struct vdevice {
	char name[256]; /* "mlx5_0", "mlx5_0+mlx5_1" */
	int port_count;
	int standby;              /* ports to borrow when all of those fail: 0 or 1 */
	int port[CORE_PORTS_MAX]; /* indices of ports, the standby port after the others */
	int mbps;
	int rail_id, plane_id; /* as NCCL's properties want them; -1 unknown */
};

/*
 * device_init - find the ports (once per process) and start their workers. Refcounted: a return
 * of 0 or more takes a reference. Logs the "Using [0]mlx5_0:1/RoCE ..." line.
 * Returns the number of ports, 0 if there are none, or -errno (one line logged).
 */
int device_init(void);

/* device_fini - drop a reference; the last one stops the workers. Contexts stay open. */
void device_fini(void);

/* device_forget - for tests, with no reference left: close and free all, so that init finds anew.
 */
void device_forget(void);

int port_count(void);
struct port *port_at(int i); /* NULL if out of range */
int vdevice_count(void);
struct vdevice *vdevice_at(int i); /* NULL if out of range */

/*
 * vdevice_make - fuse ports (indices of single devices). The same set again gives the same index.
 * Returns 0 and *index; -EINVAL (or -ENOSPC, -EPERM) with one line.
 */
int vdevice_make(int count, const int *devs, int *index);

/*
 * port_address - GID, LID, MTU as they are now, by the NCCL_IB_* rules; brings netdev and ifindex
 * up to date. Makes verbs calls: for workers and set-up, not for a data path.
 * Returns 0 or -errno (one line).
 */
int port_address(struct port *port, struct port_address *out);

/* port_pd_get/put - the port's protection domain, shared by all users. -errno is not logged. */
int port_pd_get(struct port *port, struct ibv_pd **pd);
void port_pd_put(struct port *port);

#endif
