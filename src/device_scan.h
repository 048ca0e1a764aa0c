/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device_scan.h - between device.c, which owns the arrays, and the files that fill and address
 * them. For those files only; everybody else uses device.h.
 */
#ifndef RAILYARD_DEVICE_SCAN_H
#define RAILYARD_DEVICE_SCAN_H

#include "device.h"

/* An opened RDMA device. Its context lives as long as the process. */
struct hca {
	char name[IBV_SYSFS_NAME_MAX];
	struct ibv_context *ctx;
	struct worker worker;
};

struct device_set {
	struct port port[PORTS_MAX];
	int port_count;
	struct hca hca[PORTS_MAX];
	int hca_count;
};

/*
 * device_scan - open what NCCL_IB_HCA allows, keep the usable ports in order, number them.
 * Returns 0 (also if there is none) or -errno with one line; then the set is empty.
 */
int device_scan(struct device_set *set);

/* device_scan_undo - close and free what device_scan() made. */
void device_scan_undo(struct device_set *set);

/* device_gid_rules - read NCCL_IB_ADDR_RANGE; a bad one gives one line and is no rule. */
void device_gid_rules(void);

#endif
