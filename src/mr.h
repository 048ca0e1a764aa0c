/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * mr.h - memory regions: one `struct mr` per regMr, registered on all home ports of a device.
 *
 * Ranges are cached per port by page and counted, as NCCL registers the same buffers again and
 * again. A `struct mr` is immutable once made: the data path reads it without a lock.
 *
 * mr_id names the region to peers: index | generation << 16, never 0. Peers learn its keys by
 * control.
 */
#ifndef RAILYARD_MR_H
#define RAILYARD_MR_H

#include <stdint.h>

#include "device.h"

enum {
	MR_INDEX_MAX = 65536
};

struct mr {
	uint32_t id;
	uint32_t port_count;
	uint32_t lkey[CORE_PORTS_MAX];
	uint32_t rkey[CORE_PORTS_MAX];
	struct ibv_mr *handle[CORE_PORTS_MAX];
	int port[CORE_PORTS_MAX]; /* indices of ports */
	uintptr_t addr;
	size_t bytes;
	int type; /* NCCL_PTR_* */
};

static inline uint32_t mr_index(uint32_t id)
{
	return id & 0xffff;
}

/*
 * mr_register - register on all ports of a device. `fd` < 0: host or peermem memory; else dmabuf
 * at `offset`. Returns 0 and *out; -errno with one line (see mr_cause()). Threads: any, also beside
 * the data path; a port's registrations wait for each other.
 */
int mr_register(const struct vdevice *dev, void *addr, size_t bytes, int type, uint64_t offset,
		int fd, struct mr **out);

/* mr_deregister - the reverse; NULL is nothing. The data path must be done with it. */
void mr_deregister(struct mr *mr);

enum { MR_CAUSE_BYTES = 256 };

/*
 * mr_cause - the error of a verbs call that makes an object, in words: where that may be the limit
 * on locked memory, with its value and how to raise it. All callers that report one use it.
 * Returns buf.
 */
const char *mr_cause(int rc, char *buf, size_t bytes);

#endif
