/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fake_library.c - the fake under libibverbs' own names and error conventions.
 *
 * Built as libibverbs-fake.so.1 for NCCL_IBVERBS_LIB, so that the plugin's shared object runs on it
 * unchanged. It has what the plugin asks for, not all of libibverbs. A fresh library has one
 * device; fake_init (by dlsym) gives others. Never installed.
 */
#include <string.h>

#include "fake_verbs.h"

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

int ibv_query_port_speed(struct ibv_context *ctx, uint32_t port, uint64_t *speed);

#pragma GCC visibility push(default)

static int minus_one(int rc)
{
	if (rc == 0)
		return 0;
	errno = -rc;
	return -1;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = NULL;
	int found = 0;

	minus_one(fake_verbs_ops.get_device_list(&list, &found));
	if (count)
		*count = found;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	fake_verbs_ops.free_device_list(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return fake_verbs_ops.get_device_name(device);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *ctx = NULL;

	minus_one(fake_verbs_ops.open_device(device, &ctx));
	return ctx;
}

int ibv_close_device(struct ibv_context *ctx)
{
	return minus_one(fake_verbs_ops.close_device(ctx));
}

int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	return minus_one(fake_verbs_ops.get_async_event(ctx, event));
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	fake_verbs_ops.ack_async_event(event);
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	return -fake_verbs_ops.query_device(ctx, attr);
}

int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	/* The real function writes only the first fields, those before port_cap_flags2. */
	struct ibv_port_attr found;
	int rc = fake_verbs_ops.query_port(ctx, port, &found);

	if (rc == 0)
		memcpy(attr, &found, offsetof(struct ibv_port_attr, port_cap_flags2));
	return -rc;
}

int ibv_query_port_speed(struct ibv_context *ctx, uint32_t port, uint64_t *speed)
{
	uint64_t mbps = 0;
	int rc = fake_verbs_ops.query_port_speed(ctx, (uint8_t)port, &mbps);

	if (rc == 0)
		*speed = mbps / 100;
	return -rc;
}

int ibv_query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	return minus_one(fake_verbs_ops.query_gid(ctx, port, index, gid));
}

int _ibv_query_gid_ex(struct ibv_context *ctx, uint32_t port, uint32_t index,
		      struct ibv_gid_entry *entry, uint32_t flags, size_t entry_bytes)
{
	int version = fake_verbs_ops.query_gid_version(ctx, (uint8_t)port, (int)index);
	struct ibv_gid_entry found = {.gid_index = index, .port_num = port};
	int rc;

	if (flags || entry_bytes < sizeof(found))
		return EOPNOTSUPP;
	if (version < 0)
		return version == -ENOENT ? ENODATA : -version;
	found.gid_type = version == 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
	rc = fake_verbs_ops.query_gid(ctx, (uint8_t)port, (int)index, &found.gid);
	if (rc == 0)
		*entry = found;
	return -rc;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = NULL;

	minus_one(fake_verbs_ops.alloc_pd(ctx, &pd));
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	return -fake_verbs_ops.dealloc_pd(pd);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova,
				unsigned int access)
{
	struct ibv_mr *mr = NULL;

	minus_one(fake_verbs_ops.reg_mr(pd, addr, bytes, iova, (int)access, &mr));
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	return ibv_reg_mr_iova2(pd, addr, bytes, (uintptr_t)addr, (unsigned int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
				 int fd, int access)
{
	struct ibv_mr *mr = NULL;

	minus_one(fake_verbs_ops.reg_dmabuf_mr(pd, offset, bytes, iova, fd, access, &mr));
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	return -fake_verbs_ops.dereg_mr(mr);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = NULL;

	if (channel || vector)
		minus_one(-EOPNOTSUPP);
	else
		minus_one(fake_verbs_ops.create_cq(ctx, cqe, cq_context, &cq));
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	return -fake_verbs_ops.destroy_cq(cq);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = NULL;

	minus_one(fake_verbs_ops.create_qp(pd, attr, &qp));
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return -fake_verbs_ops.modify_qp(qp, attr, mask);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	return -fake_verbs_ops.destroy_qp(qp);
}

const char *ibv_event_type_str(enum ibv_event_type type)
{
	return fake_verbs_ops.event_name(type);
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	return fake_verbs_ops.status_name(status);
}

int ibv_fork_init(void)
{
	return 0;
}

#pragma GCC visibility pop
