/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fake_verbs.c - the fake's objects: devices, ports, contexts, PDs, MRs, CQs, QPs, async events.
 * How they fail at a test's word is in fake_path.c.
 *
 * Calls return 0 or -errno as verbs.h says. What a device would refuse is refused with the same
 * errno; what it would take and suffer from later is a fault (fake_fault).
 */
#include "fake_internal.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

int fake_enter(const char *call)
{
	fake_lock();
	if (fake.fail_always && strcmp(fake.fail_always, call) == 0) {
		fake.failed = call;
		return fake.fail_always_error;
	}
	if (fake.fail_in == 0 || (fake.fail_only && strcmp(fake.fail_only, call) != 0) ||
	    --fake.fail_in > 0)
		return 0;
	fake.failed = call;
	return fake.fail_error;
}

void fake_leave(void)
{
	pthread_mutex_unlock(&fake.lock);
}

void fake_fault_add(const char *fmt, ...)
{
	va_list args;

	if (fake.faults++ > 0)
		return;
	va_start(args, fmt);
	vsnprintf(fake.fault, sizeof(fake.fault), fmt, args);
	va_end(args);
}

/* A command to a device: a dead one executes none. */
static int command_enter_now(const char *call, const struct fake_device *device)
{
	int rc = fake_enter(call);

	return rc == 0 && device->fatal ? EIO : rc;
}

static void take_ms(unsigned ms)
{
	if (ms)
		nanosleep(&(struct timespec){.tv_sec = ms / 1000,
					     .tv_nsec = (long)(ms % 1000) * 1000000},
			  NULL);
}

/* One that may hang; not under the lock. */
static int command_enter(const char *call, const struct fake_device *device)
{
	take_ms(__atomic_load_n(&device->hang_ms, __ATOMIC_RELAXED));
	return command_enter_now(call, device);
}

/* Async events */

void fake_raise(struct ibv_context *ibv, struct ibv_async_event event, uint32_t *unacked)
{
	struct fake_context *ctx = (struct fake_context *)(void *)ibv;
	uint64_t one = 1;

	if (ctx->event_count == FAKE_EVENTS_MAX) {
		fake_fault_add("%u async events and nobody reads them", ctx->event_count);
		return;
	}
	ctx->event[(ctx->event_head + ctx->event_count++) % FAKE_EVENTS_MAX] =
		(struct fake_event){.ibv = event, .unacked = unacked};
	if (write(ibv->async_fd, &one, sizeof(one)) != sizeof(one))
		fake_fault_add("write to the event descriptor: %s", strerror(errno));
}

/* Takes the events of a dying object out of the queue; those taken and not acked would block it. */
static void events_drop(struct ibv_context *ibv, const uint32_t *unacked, const char *what)
{
	struct fake_context *ctx = (struct fake_context *)(void *)ibv;
	unsigned kept = 0;

	if (*unacked)
		fake_fault_add("destroying a %s with %u async events not acked blocks", what,
			       *unacked);
	for (unsigned i = 0; i < ctx->event_count; i++) {
		struct fake_event *from = &ctx->event[(ctx->event_head + i) % FAKE_EVENTS_MAX];
		uint64_t one;

		if (from->unacked == unacked) {
			if (read(ibv->async_fd, &one, sizeof(one)) != sizeof(one))
				fake_fault_add("read of the event descriptor: %s", strerror(errno));
			continue;
		}
		ctx->event[(ctx->event_head + kept++) % FAKE_EVENTS_MAX] = *from;
	}
	ctx->event_count = kept;
}

static int get_async_event(struct ibv_context *ibv, struct ibv_async_event *event)
{
	struct fake_context *ctx = (struct fake_context *)(void *)ibv;
	int rc = fake_enter("get_async_event");
	uint64_t one;

	fake_leave();
	if (rc)
		return -rc;
	/* Outside the lock: it blocks unless the caller has set O_NONBLOCK, as with a device. */
	if (read(ibv->async_fd, &one, sizeof(one)) != sizeof(one))
		return -errno;
	fake_lock();
	rc = -EAGAIN;
	if (ctx->event_count > 0) {
		struct fake_event *head = &ctx->event[ctx->event_head];

		*event = head->ibv;
		if (head->unacked)
			++*head->unacked;
		ctx->event_head = (ctx->event_head + 1) % FAKE_EVENTS_MAX;
		ctx->event_count--;
		rc = 0;
	}
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

static void ack_async_event(struct ibv_async_event *event)
{
	uint32_t *unacked = NULL;

	fake_lock();
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		unacked = &fake_cq_of(event->element.cq)->unacked;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		unacked = &fake_qp_of(event->element.qp)->unacked;
		break;
	default:
		break;
	}
	if (unacked && *unacked == 0)
		fake_fault_add("async event %d acked twice", (int)event->event_type);
	else if (unacked)
		--*unacked;
	pthread_mutex_unlock(&fake.lock);
}

void fake_raise_all(struct fake_device *device, enum ibv_event_type type, int port)
{
	struct ibv_async_event event = {.element.port_num = port, .event_type = type};

	for (struct fake_context *ctx = fake.contexts; ctx; ctx = ctx->next) {
		if (ctx->device == device)
			fake_raise(&ctx->ibv, event, NULL);
	}
}

void fake_event(int device, enum ibv_event_type type, int port)
{
	fake_lock();
	fake_raise_all(&fake.device[device], type, port);
	pthread_mutex_unlock(&fake.lock);
}

void fake_event_qp(struct ibv_qp *qp, enum ibv_event_type type)
{
	struct ibv_async_event event = {.element.qp = qp, .event_type = type};

	fake_lock();
	fake_raise(qp->context, event, &fake_qp_of(qp)->unacked);
	pthread_mutex_unlock(&fake.lock);
}

/* Devices and ports */

static void port_init(struct fake_port *port, int device, int num)
{
	port->up = true;
	for (int i = 0; i < 4; i++) {
		uint8_t *raw = port->gid[i].raw;

		port->gid_version[i] = i % 2 ? 2 : 1;
		if (i < 2) { /* fe80::2:<device>:<port> */
			raw[0] = 0xfe;
			raw[1] = 0x80;
			raw[11] = 2;
			raw[13] = (uint8_t)device;
		} else { /* ::ffff:10.64.<device>.<port> */
			raw[10] = raw[11] = 0xff;
			raw[12] = 10;
			raw[13] = 64;
			raw[14] = (uint8_t)device;
		}
		raw[15] = (uint8_t)num;
	}
}

static void device_init(struct fake_device *device, int index)
{
	*device = (struct fake_device){.index = index};
	device->ibv.node_type = IBV_NODE_CA;
	device->ibv.transport_type = IBV_TRANSPORT_IB;
	snprintf(device->ibv.name, sizeof(device->ibv.name), "fake%d", index);
	snprintf(device->ibv.dev_name, sizeof(device->ibv.dev_name), "uverbs-fake%d", index);
	snprintf(device->ibv.ibdev_path, sizeof(device->ibv.ibdev_path),
		 "/sys/class/infiniband/fake%d", index);
	for (int p = 1; p <= fake.config.port_count; p++)
		port_init(&device->port[p], index, p);
}

static void defaults_set(struct fake_config *c)
{
	c->device_count = c->device_count ? c->device_count : 1;
	c->port_count = c->port_count ? c->port_count : 1;
	c->mtu = c->mtu ? c->mtu : IBV_MTU_4096;
	c->max_qp = c->max_qp ? c->max_qp : 65536;
	c->max_qp_wr = c->max_qp_wr ? c->max_qp_wr : 8192;
	c->max_cqe = c->max_cqe ? c->max_cqe : 262144;
	c->max_inline = c->max_inline ? c->max_inline : 256;
	if (c->device_count > FAKE_DEVICES_MAX || c->port_count > FAKE_PORTS_MAX) {
		fprintf(stderr, "fake verbs: %d devices of %d ports, at most %d of %d\n",
			c->device_count, c->port_count, FAKE_DEVICES_MAX, FAKE_PORTS_MAX);
		abort();
	}
}

static void init_locked(const struct fake_config *config)
{
	fake.config = *config;
	defaults_set(&fake.config);
	fake.random = config->seed;
	fake.epoch = 1;
	fake.waiting = 0;
	fake.counts = (struct fake_counts){0};
	fake.open_pds = fake.open_mrs = fake.open_cqs = fake.open_qps = 0;
	fake.fail_in = fake.faults = 0;
	fake.failed = fake.fail_always = fake.fail_only = NULL;
	fake.watching = config->err_lands || config->torn;
	fake.watch_epoch = fake.retry_ns = fake.retry_at = 0;
	fake.ghosts_dropped = 0;
	for (int d = 0; d < fake.config.device_count; d++)
		device_init(&fake.device[d], d);
}

static int get_device_list(struct ibv_device ***list, int *count)
{
	int rc = fake_enter("get_device_list");
	struct ibv_device **made = NULL;

	if (fake.config.device_count == 0)
		init_locked(&(struct fake_config){0});
	if (rc == 0) {
		made = calloc((size_t)fake.config.device_count + 1, sizeof(*made));
		rc = made ? 0 : ENOMEM;
	}
	for (int d = 0; rc == 0 && d < fake.config.device_count; d++)
		made[d] = &fake.device[d].ibv;
	if (rc == 0) {
		*list = made;
		*count = fake.config.device_count;
	}
	fake_leave();
	return -rc;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
	return device->name;
}

static int open_device(struct ibv_device *ibv, struct ibv_context **out)
{
	int rc = fake_enter("open_device");
	struct fake_context *ctx = NULL;

	if (rc == 0) {
		ctx = calloc(1, sizeof(*ctx));
		rc = ctx ? 0 : ENOMEM;
	}
	if (rc == 0) {
		ctx->ibv.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
		rc = ctx->ibv.async_fd < 0 ? errno : 0;
	}
	if (rc == 0) {
		ctx->device = (struct fake_device *)(void *)ibv;
		ctx->ibv.device = ibv;
		ctx->ibv.cmd_fd = -1;
		ctx->ibv.num_comp_vectors = 1;
		ctx->ibv.ops.post_send = fake_post_send;
		ctx->ibv.ops.post_recv = fake_post_recv;
		ctx->ibv.ops.poll_cq = fake_poll_cq;
		ctx->next = fake.contexts;
		fake.contexts = ctx;
		*out = &ctx->ibv;
	} else {
		free(ctx);
	}
	fake_leave();
	return -rc;
}

static void context_free(struct fake_context *ctx)
{
	struct fake_context **link = &fake.contexts;

	while (*link != ctx)
		link = &(*link)->next;
	*link = ctx->next;
	close(ctx->ibv.async_fd);
	free(ctx);
}

static int close_device(struct ibv_context *ibv)
{
	struct fake_context *ctx = (struct fake_context *)(void *)ibv;
	int rc = fake_enter("close_device");

	if (rc == 0 && ctx->objects)
		rc = EBUSY;
	if (rc == 0)
		context_free(ctx);
	fake_leave();
	return -rc;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	__be64 guid = htobe64(0x0200fa4e00000000u + (uint64_t)fake_device_of(ctx)->index);
	int rc = fake_enter("query_device");

	if (rc == 0) {
		*attr = (struct ibv_device_attr){
			.fw_ver = "fake",
			.node_guid = guid,
			.sys_image_guid = guid,
			.vendor_id = fake.config.vendor_id,
			.max_mr_size = UINT64_MAX,
			.page_size_cap = 4096,
			.max_qp = fake.config.max_qp,
			.max_qp_wr = fake.config.max_qp_wr,
			.max_sge = FAKE_SGE_MAX,
			.max_sge_rd = FAKE_SGE_MAX,
			.max_cq = 65536,
			.max_cqe = fake.config.max_cqe,
			.max_mr = 4096,
			.max_pd = 65536,
			.max_qp_rd_atom = 16,
			.max_res_rd_atom = 65536,
			.max_qp_init_rd_atom = 16,
			.max_pkeys = 1,
			.phys_port_cnt = (uint8_t)fake.config.port_count,
		};
	}
	fake_leave();
	return -rc;
}

static bool port_is_valid(int port)
{
	return port >= 1 && port <= fake.config.port_count;
}

static int query_port(struct ibv_context *ctx, uint8_t num, struct ibv_port_attr *attr)
{
	int rc = command_enter("query_port", fake_device_of(ctx));

	if (rc == 0 && !port_is_valid(num))
		rc = EINVAL;
	if (rc == 0) {
		bool up = fake_device_of(ctx)->port[num].up;

		*attr = (struct ibv_port_attr){
			.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
			.max_mtu = IBV_MTU_4096,
			.active_mtu = fake.config.mtu,
			.gid_tbl_len = FAKE_GIDS,
			.max_msg_sz = 1u << 30,
			.pkey_tbl_len = 1,
			.active_width = 2,  /* 4 lanes */
			.active_speed = 32, /* of 25 Gb/s */
			.phys_state = up ? 5 : 3,
			.link_layer = IBV_LINK_LAYER_ETHERNET,
		};
	}
	fake_leave();
	return -rc;
}

static int query_port_speed(struct ibv_context *ctx, uint8_t num, uint64_t *mbps)
{
	int rc = fake_enter("query_port_speed");

	(void)ctx;
	if (rc == 0 && !port_is_valid(num))
		rc = EINVAL;
	if (rc == 0 && !fake.config.mbps)
		rc = EOPNOTSUPP;
	if (rc == 0)
		*mbps = fake.config.mbps;
	fake_leave();
	return -rc;
}

static int query_gid(struct ibv_context *ctx, uint8_t num, int index, union ibv_gid *gid)
{
	int rc = fake_enter("query_gid");

	if (rc == 0 && (!port_is_valid(num) || index < 0 || index >= FAKE_GIDS))
		rc = EINVAL;
	if (rc == 0)
		*gid = fake_device_of(ctx)->port[num].gid[index];
	fake_leave();
	return -rc;
}

static int query_gid_version(struct ibv_context *ctx, uint8_t num, int index)
{
	int rc = -fake_enter("query_gid_version");

	if (rc == 0 && (!port_is_valid(num) || index < 0 || index >= FAKE_GIDS))
		rc = -EINVAL;
	if (rc == 0)
		rc = fake_device_of(ctx)->port[num].gid_version[index];
	fake_leave();
	return rc == 0 ? -ENOENT : rc;
}

/* PDs and MRs */

static void object_add(struct ibv_context *ctx, int *open)
{
	((struct fake_context *)(void *)ctx)->objects++;
	++*open;
}

static void object_del(struct ibv_context *ctx, int *open)
{
	((struct fake_context *)(void *)ctx)->objects--;
	--*open;
}

static int alloc_pd(struct ibv_context *ctx, struct ibv_pd **out)
{
	int rc = command_enter_now("alloc_pd", fake_device_of(ctx));
	struct fake_pd *pd = NULL;

	if (rc == 0) {
		pd = calloc(1, sizeof(*pd));
		rc = pd ? 0 : ENOMEM;
	}
	if (rc == 0) {
		pd->ibv.context = ctx;
		object_add(ctx, &fake.open_pds);
		*out = &pd->ibv;
	}
	fake_leave();
	return -rc;
}

static int dealloc_pd(struct ibv_pd *ibv)
{
	struct fake_pd *pd = (struct fake_pd *)(void *)ibv;
	int rc = fake_enter("dealloc_pd");

	if (rc == 0 && pd->users)
		rc = EBUSY;
	if (rc == 0) {
		object_del(ibv->context, &fake.open_pds);
		free(pd);
	}
	fake_leave();
	return -rc;
}

/* A free entry of the device's table, grown as needed; -1 if it is full. */
static int mr_place(struct fake_device *device)
{
	struct fake_mr **grown;
	int i;

	for (i = 0; i < device->mr_room; i++) {
		if (!device->mr[i])
			return i;
	}
	if (i >= 4096)
		return -1;
	grown = realloc(device->mr, (size_t)(i + 64) * sizeof(*grown));
	if (!grown)
		return -1;
	memset(grown + i, 0, 64 * sizeof(*grown));
	device->mr = grown;
	device->mr_room = i + 64;
	return i;
}

static int mr_make(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access,
		   struct ibv_mr **out)
{
	struct fake_device *device = fake_device_of(pd->context);
	struct fake_mr *mr;
	uint32_t key;
	int place;

	if (bytes == 0 || ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
			   !(access & IBV_ACCESS_LOCAL_WRITE)))
		return EINVAL;
	place = mr_place(device);
	mr = place < 0 ? NULL : calloc(1, sizeof(*mr));
	if (!mr)
		return ENOMEM;
	/* Index and a tag that changes at each use, so that an old key is known; as mlx5 has it. */
	key = ((uint32_t)place + (uint32_t)device->index * 4096) << 8 | device->mr_tag++;
	mr->ibv = (struct ibv_mr){.context = pd->context,
				  .pd = pd,
				  .addr = addr,
				  .length = bytes,
				  .lkey = key,
				  .rkey = key ^ 0x80};
	mr->iova = iova;
	mr->access = access;
	device->mr[place] = mr;
	((struct fake_pd *)(void *)pd)->users++;
	object_add(pd->context, &fake.open_mrs);
	*out = &mr->ibv;
	return 0;
}

static int reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access,
		  struct ibv_mr **out)
{
	int rc = command_enter_now("reg_mr", fake_device_of(pd->context));

	if (rc == 0)
		rc = mr_make(pd, addr, bytes, iova, access, out);
	fake_leave();
	return -rc;
}

static int reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
			 int access, struct ibv_mr **out)
{
	int rc = command_enter_now("reg_dmabuf_mr", fake_device_of(pd->context));
	void *at = MAP_FAILED;

	if (rc == 0 && !fake.config.dmabuf)
		rc = EOPNOTSUPP;
	if (rc == 0) {
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
		rc = at == MAP_FAILED ? errno : 0;
	}
	if (rc == 0)
		rc = mr_make(pd, at, bytes, iova, access, out);
	if (rc == 0)
		((struct fake_mr *)(void *)*out)->mapped = at;
	else if (at != MAP_FAILED)
		munmap(at, bytes);
	fake_leave();
	return -rc;
}

static void mr_free(struct fake_device *device, int place)
{
	struct fake_mr *mr = device->mr[place];

	((struct fake_pd *)(void *)mr->ibv.pd)->users--;
	object_del(mr->ibv.context, &fake.open_mrs);
	if (mr->mapped)
		munmap(mr->mapped, mr->ibv.length);
	device->mr[place] = NULL;
	free(mr);
}

static int dereg_mr(struct ibv_mr *ibv)
{
	struct fake_device *device = fake_device_of(ibv->context);
	int rc = fake_enter("dereg_mr");

	if (rc == 0)
		mr_free(device, (int)(ibv->lkey >> 8) - device->index * 4096);
	fake_leave();
	return -rc;
}

/* CQs */

static int create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_cq **out)
{
	int rc = command_enter_now("create_cq", fake_device_of(ctx));
	struct fake_cq *cq = NULL;

	if (rc == 0 && (cqe < 1 || cqe > fake.config.max_cqe))
		rc = EINVAL;
	if (rc == 0) {
		cq = calloc(1, sizeof(*cq));
		if (cq)
			cq->ring = calloc((size_t)cqe, sizeof(*cq->ring));
		rc = cq && cq->ring ? 0 : ENOMEM;
	}
	if (rc == 0) {
		/* Exactly what was asked for: devices round up, and hide that too little was. */
		cq->ibv.cqe = cqe;
		cq->ibv.context = ctx;
		cq->ibv.cq_context = cq_context;
		object_add(ctx, &fake.open_cqs);
		*out = &cq->ibv;
	} else {
		free(cq);
	}
	fake_leave();
	return -rc;
}

static int destroy_cq(struct ibv_cq *ibv)
{
	struct fake_cq *cq = fake_cq_of(ibv);
	int rc = fake_enter("destroy_cq");

	if (rc == 0 && cq->users)
		rc = EBUSY;
	if (rc == 0) {
		events_drop(ibv->context, &cq->unacked, "CQ");
		object_del(ibv->context, &fake.open_cqs);
		free(cq->ring);
		free(cq);
	}
	fake_leave();
	return -rc;
}

/* A dead QP's completions stay, without a way back to it; or go, where the device cleans. */
static void cq_forget(struct fake_cq *cq, const struct fake_qp *qp)
{
	uint64_t kept = cq->tail;

	for (uint64_t i = cq->tail; i < cq->head; i++) {
		struct fake_cqe *cqe = &cq->ring[i % (uint64_t)cq->ibv.cqe];

		if (cqe->qp == qp) {
			cqe->qp = NULL;
			if (fake.config.destroy_cleans_cq)
				continue;
		}
		cq->ring[kept++ % (uint64_t)cq->ibv.cqe] = *cqe;
	}
	cq->head = kept;
}

/* QPs */

static int qpn_place(struct fake_device *device)
{
	struct fake_qp **grown;
	int i = fake.config.reuse_qpn ? 0 : device->qp_count;

	while (i < device->qp_room && device->qp[i])
		i++;
	if (i < device->qp_room)
		return i;
	grown = realloc(device->qp, (size_t)(i + 64) * sizeof(*grown));
	if (!grown)
		return -1;
	memset(grown + i, 0, 64 * sizeof(*grown));
	device->qp = grown;
	device->qp_room = i + 64;
	return i;
}

static void qp_free(struct fake_qp *qp)
{
	if (qp) {
		free(qp->sq);
		free(qp->rq);
		free(qp->inline_data);
		free(qp);
	}
}

static struct fake_qp *qp_alloc(const struct ibv_qp_cap *cap)
{
	struct fake_qp *qp = calloc(1, sizeof(*qp));

	if (!qp)
		return NULL;
	qp->cap = *cap;
	qp->sq = calloc(cap->max_send_wr + 1u, sizeof(*qp->sq));
	qp->rq = calloc(cap->max_recv_wr + 1u, sizeof(*qp->rq));
	qp->inline_data = calloc(cap->max_send_wr + 1u, cap->max_inline_data + 1u);
	if (!qp->sq || !qp->rq || !qp->inline_data) {
		qp_free(qp);
		return NULL;
	}
	return qp;
}

static bool cap_is_valid(const struct ibv_qp_cap *cap)
{
	return cap->max_send_wr <= (uint32_t)fake.config.max_qp_wr &&
	       cap->max_recv_wr <= (uint32_t)fake.config.max_qp_wr &&
	       cap->max_send_sge <= FAKE_SGE_MAX && cap->max_recv_sge <= FAKE_SGE_MAX &&
	       cap->max_inline_data <= fake.config.max_inline;
}

static void qp_insert(struct fake_qp *qp, struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
		      int place)
{
	struct fake_device *device = fake_device_of(pd->context);

	qp->ibv.context = pd->context;
	qp->ibv.qp_context = attr->qp_context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = attr->send_cq;
	qp->ibv.recv_cq = attr->recv_cq;
	qp->ibv.qp_num = (uint32_t)(FAKE_QPN_FIRST + place);
	qp->ibv.qp_type = IBV_QPT_RC;
	qp->device = device;
	qp->sig_all = attr->sq_sig_all;
	device->qp[place] = qp;
	if (place >= device->qp_count)
		device->qp_count = place + 1;
	qp->next = fake.qps;
	fake.qps = qp;
	((struct fake_pd *)(void *)pd)->users++;
	fake_cq_of(attr->send_cq)->users++;
	fake_cq_of(attr->recv_cq)->users++;
	object_add(pd->context, &fake.open_qps);
}

static int create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct ibv_qp **out)
{
	int rc = command_enter("create_qp", fake_device_of(pd->context));
	struct fake_qp *qp = NULL;
	int place = -1;

	if (rc == 0 && (attr->qp_type != IBV_QPT_RC || attr->srq || !attr->send_cq ||
			!attr->recv_cq || !cap_is_valid(&attr->cap)))
		rc = EINVAL;
	if (rc == 0) {
		place = qpn_place(fake_device_of(pd->context));
		if (place >= 0 && place < fake.config.max_qp)
			qp = qp_alloc(&attr->cap);
		rc = qp ? 0 : ENOMEM;
	}
	if (rc == 0) {
		qp_insert(qp, pd, attr, place);
		*out = &qp->ibv;
	}
	fake_leave();
	return -rc;
}

static void qp_remove(struct fake_qp *qp)
{
	struct fake_qp **link = &fake.qps;

	while (*link != qp)
		link = &(*link)->next;
	*link = qp->next;
	fake.epoch++;
	fake.waiting -= qp->sq_posted - qp->sq_acked;
	qp->device->qp[qp->ibv.qp_num - FAKE_QPN_FIRST] = NULL;
	events_drop(qp->ibv.context, &qp->unacked, "QP");
	cq_forget(fake_cq_of(qp->ibv.send_cq), qp);
	cq_forget(fake_cq_of(qp->ibv.recv_cq), qp);
	((struct fake_pd *)(void *)qp->ibv.pd)->users--;
	fake_cq_of(qp->ibv.send_cq)->users--;
	fake_cq_of(qp->ibv.recv_cq)->users--;
	object_del(qp->ibv.context, &fake.open_qps);
	qp_free(qp);
}

static int destroy_qp(struct ibv_qp *ibv)
{
	struct fake_device *device = fake_qp_of(ibv)->device;

	take_ms(__atomic_load_n(&device->destroy_ms, __ATOMIC_RELAXED));

	int rc = command_enter("destroy_qp", device);

	if (rc == EIO && device->fatal)
		rc = 0; /* it says so */
	if (rc == 0)
		qp_remove(fake_qp_of(ibv));
	fake_leave();
	return -rc;
}

enum {
	MASK_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	MASK_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	MASK_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
};

static int to_init(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	/* From INIT again: only what is named changes. */
	bool again = qp->ibv.state == IBV_QPS_INIT && (mask & ~MASK_INIT) == 0;
	bool first = qp->ibv.state == IBV_QPS_RESET && (mask & MASK_INIT) == MASK_INIT;

	if ((!first && !again) || ((mask & IBV_QP_PORT) && !port_is_valid(attr->port_num)) ||
	    ((mask & IBV_QP_PKEY_INDEX) && attr->pkey_index != 0))
		return EINVAL;
	if (mask & IBV_QP_PORT)
		qp->port = attr->port_num;
	if (mask & IBV_QP_ACCESS_FLAGS)
		qp->access = (int)attr->qp_access_flags;
	return 0;
}

static int to_rtr(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	const struct ibv_ah_attr *ah = &attr->ah_attr;
	const struct fake_port *port = &qp->device->port[qp->port];

	if (qp->ibv.state != IBV_QPS_INIT || (mask & MASK_RTR) != MASK_RTR)
		return EINVAL;
	/* RoCE: always a GRH, from a GID that exists, over the QP's own port. */
	if (!ah->is_global || ah->port_num != qp->port || ah->grh.sgid_index >= FAKE_GIDS ||
	    !port->gid_version[ah->grh.sgid_index])
		return EINVAL;
	if (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > fake.config.mtu ||
	    attr->rq_psn > 0xffffff || attr->dest_qp_num > 0xffffff)
		return EINVAL;
	qp->sgid_index = ah->grh.sgid_index;
	qp->dgid = ah->grh.dgid;
	qp->mtu = attr->path_mtu;
	qp->dest_qpn = attr->dest_qp_num;
	qp->rq_psn = qp->rq_next = attr->rq_psn;
	qp->dest_rd_atomic = attr->max_dest_rd_atomic;
	return 0;
}

static int to_rts(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	if (qp->ibv.state != IBV_QPS_RTR || (mask & MASK_RTS) != MASK_RTS ||
	    attr->sq_psn > 0xffffff || attr->timeout > 31 || attr->retry_cnt > 7 ||
	    attr->rnr_retry > 7)
		return EINVAL;
	qp->sq_psn = qp->sq_next = attr->sq_psn;
	qp->rd_atomic = attr->max_rd_atomic;
	return 0;
}

static void to_reset(struct fake_qp *qp)
{
	fake.waiting -= qp->sq_posted - qp->sq_acked;
	cq_forget(fake_cq_of(qp->ibv.send_cq), qp);
	cq_forget(fake_cq_of(qp->ibv.recv_cq), qp);
	qp->sq_posted = qp->sq_landed = qp->sq_acked = qp->sq_freed = 0;
	qp->rq_posted = qp->rq_taken = qp->rq_freed = 0;
	qp->spilled = qp->ghosts = qp->blocked_ns = 0;
}

static int modify(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	int rc;

	if (!(mask & IBV_QP_STATE))
		return EINVAL;
	switch (attr->qp_state) {
	case IBV_QPS_RESET:
		to_reset(qp);
		rc = 0;
		break;
	case IBV_QPS_INIT:
		rc = to_init(qp, attr, mask);
		break;
	case IBV_QPS_RTR:
		rc = to_rtr(qp, attr, mask);
		break;
	case IBV_QPS_RTS:
		rc = to_rts(qp, attr, mask);
		break;
	case IBV_QPS_ERR:
		fake_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
		rc = 0;
		break;
	default:
		rc = EINVAL;
	}
	if (rc == 0)
		qp->ibv.state = attr->qp_state;
	return rc;
}

static bool is_resolved(const struct fake_qp *qp, const struct ibv_ah_attr *ah)
{
	bool is;

	fake_lock();
	is = fake.config.resolve_ms == 0 || fake_gid_answers(qp, &ah->grh.dgid, ah->grh.sgid_index);
	pthread_mutex_unlock(&fake.lock);
	return is;
}

/* The kernel asks for the far port's link address, and waits. */
static bool resolve(const struct fake_qp *qp, const struct ibv_ah_attr *ah)
{
	unsigned ms = 0;

	while (!is_resolved(qp, ah)) {
		if (ms++ >= fake.config.resolve_ms)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return true;
}

static int modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	bool resolved = !(mask & IBV_QP_AV) || resolve(qp, &attr->ah_attr);
	int rc = command_enter("modify_qp", qp->device);

	if (rc == 0 && !resolved)
		rc = ETIMEDOUT;

	if (rc == EIO && qp->device->fatal && (mask & IBV_QP_STATE) &&
	    (attr->qp_state == IBV_QPS_ERR || attr->qp_state == IBV_QPS_RESET))
		rc = 0; /* it says so */
	else if (rc == 0)
		rc = modify(qp, attr, mask);
	fake.epoch++;
	fake_settle();
	fake_leave();
	return -rc;
}

/* ECE is a matter between real NICs: not supported, as with rxe. */
static int no_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	(void)ece;
	return -EOPNOTSUPP;
}

static const char *event_name(enum ibv_event_type type)
{
	return type == IBV_EVENT_PORT_ERR	? "port error"
	       : type == IBV_EVENT_PORT_ACTIVE	? "port active"
	       : type == IBV_EVENT_DEVICE_FATAL ? "device fatal"
						: "other event";
}

static const char *status_name(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS		    ? "success"
	       : status == IBV_WC_WR_FLUSH_ERR	    ? "Work Request Flushed Error"
	       : status == IBV_WC_RETRY_EXC_ERR	    ? "transport retry counter exceeded"
	       : status == IBV_WC_RNR_RETRY_EXC_ERR ? "RNR retry counter exceeded"
						    : "other error";
}

static int supports_iova2(void)
{
	return 1;
}

const struct verbs_ops fake_verbs_ops = {
	.ack_async_event = ack_async_event,
	.alloc_pd = alloc_pd,
	.close_device = close_device,
	.create_cq = create_cq,
	.create_qp = create_qp,
	.dealloc_pd = dealloc_pd,
	.dereg_mr = dereg_mr,
	.destroy_cq = destroy_cq,
	.destroy_qp = destroy_qp,
	.event_name = event_name,
	.free_device_list = free_device_list,
	.get_async_event = get_async_event,
	.get_device_list = get_device_list,
	.get_device_name = get_device_name,
	.modify_qp = modify_qp,
	.open_device = open_device,
	.query_device = query_device,
	.query_ece = no_ece,
	.query_gid = query_gid,
	.query_gid_version = query_gid_version,
	.query_port = query_port,
	.query_port_speed = query_port_speed,
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.reg_mr = reg_mr,
	.set_ece = no_ece,
	.status_name = status_name,
	.supports_iova2 = supports_iova2,
};

/* Control */

/* Only QPs and MRs are found from here; the rest of what a test leaked is left to LeakSanitizer. */
static void forget_all(void)
{
	while (fake.qps)
		qp_remove(fake.qps);
	fake_ghosts_free();
	for (int d = 0; d < FAKE_DEVICES_MAX; d++) {
		struct fake_device *device = &fake.device[d];

		for (int i = 0; i < device->mr_room; i++) {
			if (device->mr[i])
				mr_free(device, i);
		}
		free(device->mr);
		free(device->qp);
		*device = (struct fake_device){.index = d};
	}
	while (fake.contexts)
		context_free(fake.contexts);
}

void fake_init(const struct fake_config *config)
{
	fake_lock();
	forget_all();
	init_locked(config);
	pthread_mutex_unlock(&fake.lock);
}

void fake_fail_nth(unsigned n, int error)
{
	fake_fail_nth_of(NULL, n, error);
}

void fake_fail_nth_of(const char *call, unsigned n, int error)
{
	fake_lock();
	fake.fail_only = call;
	fake.fail_in = n;
	fake.fail_error = error;
	fake.failed = NULL;
	pthread_mutex_unlock(&fake.lock);
}

void fake_fail_always(const char *call, int error)
{
	fake_lock();
	fake.fail_always = call;
	fake.fail_always_error = error;
	pthread_mutex_unlock(&fake.lock);
}

const char *fake_failed(void)
{
	const char *failed;

	fake_lock();
	failed = fake.failed;
	pthread_mutex_unlock(&fake.lock);
	return failed;
}

void fake_counts_get(struct fake_counts *out)
{
	fake_lock();
	*out = fake.counts;
	pthread_mutex_unlock(&fake.lock);
}

void fake_counts_reset(void)
{
	fake_lock();
	fake.counts = (struct fake_counts){0};
	pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_port_bytes(int device, int port)
{
	uint64_t bytes;

	fake_lock();
	bytes = fake.device[device].port[port].bytes;
	pthread_mutex_unlock(&fake.lock);
	return bytes;
}

const char *fake_fault(void)
{
	const char *fault;

	fake_lock();
	fault = fake.faults ? fake.fault : NULL;
	pthread_mutex_unlock(&fake.lock);
	return fault;
}

void fake_fault_clear(void)
{
	fake_lock();
	fake.faults = 0;
	pthread_mutex_unlock(&fake.lock);
}

int fake_leaks(char *text, size_t text_bytes)
{
	int contexts = 0, total;

	fake_lock();
	for (struct fake_context *ctx = fake.contexts; ctx; ctx = ctx->next)
		contexts++;
	total = contexts + fake.open_pds + fake.open_mrs + fake.open_cqs + fake.open_qps;
	if (text)
		snprintf(text, text_bytes, "%d contexts, %d PDs, %d MRs, %d CQs, %d QPs", contexts,
			 fake.open_pds, fake.open_mrs, fake.open_cqs, fake.open_qps);
	pthread_mutex_unlock(&fake.lock);
	return total;
}
