/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * verbs.h - the only door to libibverbs, which is opened at run time so that the plugin loads on
 * hosts without it.
 *
 * Every call returns 0 or -errno whatever libibverbs' own convention is; outputs are set only on
 * success. `verbs` is one table: tests put a fake one in its place and let any call fail. Posting
 * and polling are not in the table: they go through the context's own operations, as the inline
 * functions of verbs.h do, at the cost of one indirect call; a fake device brings its own context.
 */
#ifndef RAILYARD_VERBS_H
#define RAILYARD_VERBS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* Sorted; a slot that the library lacks returns -EOPNOTSUPP. */
struct verbs_ops {
	void (*ack_async_event)(struct ibv_async_event *event);
	int (*alloc_pd)(struct ibv_context *ctx, struct ibv_pd **pd);
	int (*close_device)(struct ibv_context *ctx);
	int (*create_cq)(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_cq **cq);
	int (*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct ibv_qp **qp);
	int (*dealloc_pd)(struct ibv_pd *pd);
	int (*dereg_mr)(struct ibv_mr *mr);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*destroy_qp)(struct ibv_qp *qp);
	const char *(*event_name)(enum ibv_event_type type);
	void (*free_device_list)(struct ibv_device **list);
	int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *event);
	int (*get_device_list)(struct ibv_device ***list, int *count);
	const char *(*get_device_name)(struct ibv_device *device);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*open_device)(struct ibv_device *device, struct ibv_context **ctx);
	int (*query_device)(struct ibv_context *ctx, struct ibv_device_attr *attr);
	int (*query_ece)(struct ibv_qp *qp, struct ibv_ece *ece);
	int (*query_gid)(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid);
	/*
	 * RoCE version of a GID: 1, 2; 0 = IB; -ENOENT when this index is empty or not visible
	 * here.
	 */
	int (*query_gid_version)(struct ibv_context *ctx, uint8_t port, int index);
	int (*query_port)(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
	/* Speed in Mbit/s if the library can tell (ibv_query_port_speed), else -EOPNOTSUPP. */
	int (*query_port_speed)(struct ibv_context *ctx, uint8_t port, uint64_t *mbps);
	int (*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
			     int fd, int access, struct ibv_mr **mr);
	/*
	 * ibv_reg_mr_iova2 where it exists (needed for IBV_ACCESS_RELAXED_ORDERING), else
	 * ibv_reg_mr.
	 */
	int (*reg_mr)(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access,
		      struct ibv_mr **mr);
	int (*set_ece)(struct ibv_qp *qp, struct ibv_ece *ece);
	const char *(*status_name)(enum ibv_wc_status status);
	/* 1 if reg_mr knows iova2 (relaxed ordering may be asked for). */
	int (*supports_iova2)(void);
};

extern struct verbs_ops verbs;

/*
 * verbs_load - open libibverbs.so.1 (or NCCL_IBVERBS_LIB) and fill `verbs`; idempotent.
 * Returns 0; -ENOENT with one line in why. A table filled by a test is left alone.
 */
int verbs_load(char *why, size_t why_bytes);

/* Data path. post returns 0 or -errno; poll the number of completions, or -errno. */
static inline int verbs_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return -qp->context->ops.post_send(qp, wr, &bad);
}

static inline int verbs_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return -qp->context->ops.post_recv(qp, wr, &bad);
}

static inline int verbs_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	return cq->context->ops.poll_cq(cq, n, wc);
}

#endif
