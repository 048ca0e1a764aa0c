/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * verbs.c - the table of verbs.h over a libibverbs opened at run time.
 *
 * Kept here: libibverbs' ways of telling an error (errno returned, -1 and errno, NULL and errno)
 * all become 0 or -errno, and nothing of libibverbs is linked. The inline functions of
 * <infiniband/verbs.h> that call into the library must not be used here, since each would leave an
 * undefined symbol and the plugin would not load on a host without the library.
 *
 * The library stays open for the life of the process: devices, and threads that providers start,
 * outlive any one communicator.
 */
#include "verbs.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "util.h"

/* Symbols that not every <infiniband/verbs.h> declares, or that it hides behind a macro. */
typedef int query_port_fn(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
typedef int query_port_speed_fn(struct ibv_context *, uint32_t, uint64_t *);
typedef struct ibv_mr *reg_dmabuf_mr_fn(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);

static struct {
	__typeof__(ibv_ack_async_event) *ack_async_event;
	__typeof__(ibv_alloc_pd) *alloc_pd;
	__typeof__(ibv_close_device) *close_device;
	__typeof__(ibv_create_cq) *create_cq;
	__typeof__(ibv_create_qp) *create_qp;
	__typeof__(ibv_dealloc_pd) *dealloc_pd;
	__typeof__(ibv_dereg_mr) *dereg_mr;
	__typeof__(ibv_destroy_cq) *destroy_cq;
	__typeof__(ibv_destroy_qp) *destroy_qp;
	__typeof__(ibv_event_type_str) *event_type_str;
	__typeof__(ibv_fork_init) *fork_init;
	__typeof__(ibv_free_device_list) *free_device_list;
	__typeof__(ibv_get_async_event) *get_async_event;
	__typeof__(ibv_get_device_list) *get_device_list;
	__typeof__(ibv_get_device_name) *get_device_name;
	__typeof__(ibv_modify_qp) *modify_qp;
	__typeof__(ibv_open_device) *open_device;
	__typeof__(ibv_query_device) *query_device;
	__typeof__(ibv_query_ece) *query_ece;
	__typeof__(ibv_query_gid) *query_gid;
	__typeof__(_ibv_query_gid_ex) *query_gid_ex;
	query_port_fn *query_port;
	query_port_speed_fn *query_port_speed;
	reg_dmabuf_mr_fn *reg_dmabuf_mr;
	__typeof__(ibv_reg_mr) *reg_mr;
	__typeof__(ibv_reg_mr_iova2) *reg_mr_iova2;
	__typeof__(ibv_set_ece) *set_ece;
	__typeof__(ibv_wc_status_str) *wc_status_str;
} lib;

static const struct symbol {
	const char *name;
	size_t offset;
	bool optional;
} symbols[] = {
	{"_ibv_query_gid_ex", offsetof(__typeof__(lib), query_gid_ex), true},
	{"ibv_ack_async_event", offsetof(__typeof__(lib), ack_async_event), false},
	{"ibv_alloc_pd", offsetof(__typeof__(lib), alloc_pd), false},
	{"ibv_close_device", offsetof(__typeof__(lib), close_device), false},
	{"ibv_create_cq", offsetof(__typeof__(lib), create_cq), false},
	{"ibv_create_qp", offsetof(__typeof__(lib), create_qp), false},
	{"ibv_dealloc_pd", offsetof(__typeof__(lib), dealloc_pd), false},
	{"ibv_dereg_mr", offsetof(__typeof__(lib), dereg_mr), false},
	{"ibv_destroy_cq", offsetof(__typeof__(lib), destroy_cq), false},
	{"ibv_destroy_qp", offsetof(__typeof__(lib), destroy_qp), false},
	{"ibv_event_type_str", offsetof(__typeof__(lib), event_type_str), false},
	{"ibv_fork_init", offsetof(__typeof__(lib), fork_init), false},
	{"ibv_free_device_list", offsetof(__typeof__(lib), free_device_list), false},
	{"ibv_get_async_event", offsetof(__typeof__(lib), get_async_event), false},
	{"ibv_get_device_list", offsetof(__typeof__(lib), get_device_list), false},
	{"ibv_get_device_name", offsetof(__typeof__(lib), get_device_name), false},
	{"ibv_modify_qp", offsetof(__typeof__(lib), modify_qp), false},
	{"ibv_open_device", offsetof(__typeof__(lib), open_device), false},
	{"ibv_query_device", offsetof(__typeof__(lib), query_device), false},
	{"ibv_query_ece", offsetof(__typeof__(lib), query_ece), true},
	{"ibv_query_gid", offsetof(__typeof__(lib), query_gid), false},
	{"ibv_query_port", offsetof(__typeof__(lib), query_port), false},
	{"ibv_query_port_speed", offsetof(__typeof__(lib), query_port_speed), true},
	{"ibv_reg_dmabuf_mr", offsetof(__typeof__(lib), reg_dmabuf_mr), true},
	{"ibv_reg_mr", offsetof(__typeof__(lib), reg_mr), false},
	{"ibv_reg_mr_iova2", offsetof(__typeof__(lib), reg_mr_iova2), true},
	{"ibv_set_ece", offsetof(__typeof__(lib), set_ece), true},
	{"ibv_wc_status_str", offsetof(__typeof__(lib), wc_status_str), false},
};

static int normal(int rc)
{
	if (rc == 0)
		return 0;
	if (rc > 0)
		return -rc;
	if (rc < -1)
		return rc;
	return errno ? -errno : -EIO;
}

static int normal_null(void)
{
	return errno ? -errno : -EIO;
}

/* Some providers leave errno as it was: clear it first, or an old one would be reported. */
#define CALL(fn, ...) (lib.fn ? (errno = 0, normal(lib.fn(__VA_ARGS__))) : -EOPNOTSUPP)
#define MAKE(out, fn, ...)                                                                         \
	({                                                                                         \
		__typeof__(*(out)) made_ = NULL;                                                   \
		int rc_ = -EOPNOTSUPP;                                                             \
		if (lib.fn) {                                                                      \
			errno = 0;                                                                 \
			made_ = lib.fn(__VA_ARGS__);                                               \
			rc_ = made_ ? 0 : normal_null();                                           \
		}                                                                                  \
		if (rc_ == 0)                                                                      \
			*(out) = made_;                                                            \
		rc_;                                                                               \
	})

static void real_ack_async_event(struct ibv_async_event *event)
{
	if (lib.ack_async_event)
		lib.ack_async_event(event);
}

static int real_alloc_pd(struct ibv_context *ctx, struct ibv_pd **pd)
{
	return MAKE(pd, alloc_pd, ctx);
}

static int real_close_device(struct ibv_context *ctx)
{
	return CALL(close_device, ctx);
}

static int real_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_cq **cq)
{
	return MAKE(cq, create_cq, ctx, cqe, cq_context, NULL, 0);
}

static int real_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct ibv_qp **qp)
{
	return MAKE(qp, create_qp, pd, attr);
}

static int real_dealloc_pd(struct ibv_pd *pd)
{
	return CALL(dealloc_pd, pd);
}

static int real_dereg_mr(struct ibv_mr *mr)
{
	return CALL(dereg_mr, mr);
}

static int real_destroy_cq(struct ibv_cq *cq)
{
	return CALL(destroy_cq, cq);
}

static int real_destroy_qp(struct ibv_qp *qp)
{
	return CALL(destroy_qp, qp);
}

static const char *real_event_name(enum ibv_event_type type)
{
	return lib.event_type_str ? lib.event_type_str(type) : "unknown";
}

static void real_free_device_list(struct ibv_device **list)
{
	if (lib.free_device_list)
		lib.free_device_list(list);
}

static int real_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	return CALL(get_async_event, ctx, event);
}

static int real_get_device_list(struct ibv_device ***list, int *count)
{
	int found = 0;
	int rc = MAKE(list, get_device_list, &found);

	if (rc == 0)
		*count = found;
	return rc;
}

static const char *real_get_device_name(struct ibv_device *device)
{
	return lib.get_device_name ? lib.get_device_name(device) : "";
}

static int real_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return CALL(modify_qp, qp, attr, mask);
}

static int real_open_device(struct ibv_device *device, struct ibv_context **ctx)
{
	return MAKE(ctx, open_device, device);
}

static int real_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	return CALL(query_device, ctx, attr);
}

static int real_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	return CALL(query_ece, qp, ece);
}

static int real_query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	return CALL(query_gid, ctx, port, index, gid);
}

/* What sysfs says of a GID's type; -ENOTDIR if this host (or container) does not show it. */
static int sysfs_gid_version(const char *ibdev, uint8_t port, int index)
{
	char path[sizeof("/sys/class/infiniband//ports/255/gid_attrs/types/-2147483648") +
		  IBV_SYSFS_NAME_MAX];
	char type[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%d", ibdev,
		 port, index);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -ENOTDIR;
	n = read(fd, type, sizeof(type) - 1);
	close(fd);
	if (n <= 0)
		return -ENOENT; /* EINVAL: empty, or of a netdev outside this network namespace */
	type[n] = '\0';
	if (strncmp(type, "RoCE v2", 7) == 0)
		return 2;
	/* One name for both IB and RoCE v1; the caller knows the link layer. */
	return strncmp(type, "IB/RoCE v1", 10) == 0 ? 1 : -ENOENT;
}

static int real_query_gid_version(struct ibv_context *ctx, uint8_t port, int index)
{
	struct ibv_gid_entry entry;
	int rc;

	if (index < 0)
		return -ENOENT;
	rc = sysfs_gid_version(real_get_device_name(ctx->device), port, index);
	if (rc != -ENOTDIR)
		return rc;
	rc = CALL(query_gid_ex, ctx, port, (uint32_t)index, &entry, 0, sizeof(entry));
	if (rc == -EOPNOTSUPP)
		return rc;
	if (rc)
		return -ENOENT;
	switch (entry.gid_type) {
	case IBV_GID_TYPE_IB:
		return 0;
	case IBV_GID_TYPE_ROCE_V1:
		return 1;
	case IBV_GID_TYPE_ROCE_V2:
		return 2;
	default:
		return -ENOENT;
	}
}

static int real_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	struct verbs_context *extended = verbs_get_ctx_op(ctx, query_port);
	struct ibv_port_attr found;
	int rc;

	/* The library's own symbol fills only the first fields of the struct, so zero the rest. */
	memset(&found, 0, sizeof(found));
	errno = 0;
	if (extended)
		rc = normal(extended->query_port(ctx, port, &found, sizeof(found)));
	else
		rc = CALL(query_port, ctx, port, (struct _compat_ibv_port_attr *)(void *)&found);
	if (rc == 0)
		*attr = found;
	return rc;
}

static int real_query_port_speed(struct ibv_context *ctx, uint8_t port, uint64_t *mbps)
{
	uint64_t hundred_mbps = 0;
	int rc = CALL(query_port_speed, ctx, port, &hundred_mbps);

	if (rc == 0)
		*mbps = hundred_mbps * 100;
	return rc;
}

static int real_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
			      int fd, int access, struct ibv_mr **mr)
{
	return MAKE(mr, reg_dmabuf_mr, pd, offset, bytes, iova, fd, access);
}

static int real_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access,
		       struct ibv_mr **mr)
{
	if (lib.reg_mr_iova2)
		return MAKE(mr, reg_mr_iova2, pd, addr, bytes, iova, (unsigned int)access);
	if (iova != (uintptr_t)addr)
		return -EOPNOTSUPP;
	/* Optional bits are hints that the old call refuses. */
	return MAKE(mr, reg_mr, pd, addr, bytes, access & ~IBV_ACCESS_OPTIONAL_RANGE);
}

static int real_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	return CALL(set_ece, qp, ece);
}

static const char *real_status_name(enum ibv_wc_status status)
{
	return lib.wc_status_str ? lib.wc_status_str(status) : "unknown";
}

static int real_supports_iova2(void)
{
	return lib.reg_mr_iova2 != NULL;
}

struct verbs_ops verbs = {
	.ack_async_event = real_ack_async_event,
	.alloc_pd = real_alloc_pd,
	.close_device = real_close_device,
	.create_cq = real_create_cq,
	.create_qp = real_create_qp,
	.dealloc_pd = real_dealloc_pd,
	.dereg_mr = real_dereg_mr,
	.destroy_cq = real_destroy_cq,
	.destroy_qp = real_destroy_qp,
	.event_name = real_event_name,
	.free_device_list = real_free_device_list,
	.get_async_event = real_get_async_event,
	.get_device_list = real_get_device_list,
	.get_device_name = real_get_device_name,
	.modify_qp = real_modify_qp,
	.open_device = real_open_device,
	.query_device = real_query_device,
	.query_ece = real_query_ece,
	.query_gid = real_query_gid,
	.query_gid_version = real_query_gid_version,
	.query_port = real_query_port,
	.query_port_speed = real_query_port_speed,
	.reg_dmabuf_mr = real_reg_dmabuf_mr,
	.reg_mr = real_reg_mr,
	.set_ece = real_set_ece,
	.status_name = real_status_name,
	.supports_iova2 = real_supports_iova2,
};

static int symbols_resolve(void *handle, const char *path, char *why, size_t why_bytes)
{
	__typeof__(lib) found;

	_Static_assert(ARRAY_SIZE(symbols) * sizeof(void *) == sizeof(lib), "a symbol is missing");
	for (unsigned i = 0; i < ARRAY_SIZE(symbols); i++) {
		void *address = dlsym(handle, symbols[i].name);

		if (!address && !symbols[i].optional) {
			snprintf(why, why_bytes,
				 "%s has no %s: it is not a usable libibverbs, "
				 "install rdma-core 28 or later or set NCCL_IBVERBS_LIB",
				 path, symbols[i].name);
			return -ENOENT;
		}
		memcpy((char *)&found + symbols[i].offset, &address, sizeof(address));
	}
	lib = found;
	return 0;
}

static int library_open(char *why, size_t why_bytes)
{
	const char *path = config.ibverbs_lib;
	void *handle;
	int rc;

	if (!path || !*path)
		path = "libibverbs.so.1";
	handle = dlopen(path, RTLD_NOW);
	if (!handle) {
		snprintf(why, why_bytes,
			 "no RDMA library: %s (install rdma-core or set "
			 "NCCL_IBVERBS_LIB)",
			 dlerror());
		return -ENOENT;
	}
	rc = symbols_resolve(handle, path, why, why_bytes);
	if (rc) {
		dlclose(handle);
		return rc;
	}
	/* As net_ib does. It fails where a device is open already, which does no harm. */
	lib.fork_init();
	return 0;
}

int verbs_load(char *why, size_t why_bytes)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int rc = 0;

	if (verbs.get_device_list != real_get_device_list)
		return 0;
	pthread_mutex_lock(&lock);
	if (!lib.get_device_list)
		rc = library_open(why, why_bytes);
	pthread_mutex_unlock(&lock);
	return rc;
}
