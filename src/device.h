/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device.h - the RDMA ports of this host and the devices NCCL sees (one per port, plus fused ones).
 *
 * Order, names, paths, speeds and filters are as NCCL's own IB transport has them, so that NCCL
 * chooses the same channels. Ports are found once per process; the arrays never shrink.
 */
#ifndef RAILYARD_DEVICE_H
#define RAILYARD_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/core.h"
#include "thread.h"
#include "verbs.h"

enum { PORTS_MAX = 32, VDEVICES_MAX = 256 };

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
	struct core_port word __attribute__((aligned(64))); /* what the core reads; plugin thread writes */
	char name[IBV_SYSFS_NAME_MAX + 4]; /* "mlx5_0:1" */
	char ibdev[IBV_SYSFS_NAME_MAX];
	char netdev[32];           /* RoCE: the netdev of the GID in use; "" if none or unknown */
	int ifindex;
	uint8_t num;               /* port number on the device */
	uint8_t link_layer;
	struct ibv_context *ctx;   /* shared by ports of one device */
	struct ibv_device_attr attr;
	char *pci_path;            /* realpath with merged digits; NULL if there is none */
	uint64_t guid;
	int nccl_port;             /* props.port */
	uint32_t mbps;
	int rail_id, plane_id;     /* from NCCL_IB_HCA; -1 unknown */
	bool has_dmabuf, has_peermem;
	struct worker *worker;     /* of the device; shared by its ports */

	pthread_mutex_t lock;      /* pd and cache below */
	struct ibv_pd *pd;         /* while pd_refs > 0 */
	int pd_refs;
	struct mr_cache_entry *cache; /* sorted, see mr.c */
	int cache_count, cache_room;
};

/* A device as NCCL sees it: one port, or several fused. */
struct vdevice {
	char name[256]; /* "mlx5_0", "mlx5_0+mlx5_1" */
	int port_count;
	int port[CORE_PORTS_MAX]; /* indices of ports */
	int mbps;
};

/*
 * device_init - find the ports (once per process; refcounted with device_fini, which only the last
 * user runs, and which keeps contexts open). Logs the "Using [0]mlx5_0:1/RoCE ..." line.
 * Returns the number of ports, 0 if there are none, or -errno (one line logged).
 */
int device_init(void);
void device_fini(void);

int port_count(void);
struct port *port_at(int i);
int vdevice_count(void);
struct vdevice *vdevice_at(int i); /* NULL if out of range */

/* vdevice_make - fuse ports (indices of single devices). Returns 0 and *index; -EINVAL with one line. */
int vdevice_make(int count, const int *devs, int *index);

/* port_address - GID, LID, MTU as they are now, by the NCCL_IB_* rules. Returns 0 or -errno (one line). */
int port_address(struct port *port, struct port_address *out);

/* port_pd_get/put - the port's protection domain, shared by all users. */
int port_pd_get(struct port *port, struct ibv_pd **pd);
void port_pd_put(struct port *port);

#endif
