/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * mr.c - the cache of registered ranges of each port, and the ids of regions.
 *
 * A registration covers whole pages; a later one whose pages lie inside an existing entry of the
 * same kind of memory counts that entry up instead. Entries stay sorted by address, so the order
 * survives removal. An entry holds a reference to its port's protection domain.
 *
 * Invariant: a region is either registered on all ports of its device or on none.
 * Must not: be called from the data path, which only reads `struct mr`.
 */
#include "mr.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config.h"
#include "util.h"

struct mr_cache_entry {
	uintptr_t addr; /* of the first page */
	size_t bytes;	/* whole pages */
	int refs;
	bool is_dmabuf;
	struct ibv_mr *mr;
};

/* What is to be registered, in whole pages. */
struct range {
	uintptr_t addr;
	size_t bytes;
	uint64_t offset; /* in the dmabuf */
	int fd;		 /* < 0: no dmabuf */
};

/* ---- ids ---- */

static struct {
	pthread_mutex_t lock;
	uint16_t generation[MR_INDEX_MAX]; /* of the last use */
	uint16_t free[MR_INDEX_MAX];	   /* indices given back; the last goes out first */
	int free_count;
	int used; /* indices ever given out */
} ids = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int id_get(uint32_t *id)
{
	int rc = 0;

	pthread_mutex_lock(&ids.lock);
	if (ids.free_count == 0 && ids.used == MR_INDEX_MAX) {
		rc = -ENOSPC;
	} else {
		uint32_t index = ids.free_count ? ids.free[--ids.free_count] : (uint32_t)ids.used++;

		if (++ids.generation[index] == 0) /* so that no id is 0 */
			ids.generation[index] = 1;
		*id = index | (uint32_t)ids.generation[index] << 16;
	}
	pthread_mutex_unlock(&ids.lock);
	return rc;
}

static void id_put(uint32_t id)
{
	pthread_mutex_lock(&ids.lock);
	ids.free[ids.free_count++] = (uint16_t)mr_index(id);
	pthread_mutex_unlock(&ids.lock);
}

/* ---- one port's cache; the caller holds cache_lock ---- */

/* Index of the first entry that begins after addr. */
static int cache_after(const struct port *port, uintptr_t addr)
{
	int low = 0, high = port->cache_count;

	while (low < high) {
		int mid = low + (high - low) / 2;

		if (port->cache[mid].addr <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Entries may overlap, so every one that begins early enough may be it; the nearest is tried first.
 */
static struct mr_cache_entry *cache_find(struct port *port, const struct range *r)
{
	for (int i = cache_after(port, r->addr); i-- > 0;) {
		struct mr_cache_entry *e = &port->cache[i];

		if (r->addr + r->bytes <= e->addr + e->bytes && e->is_dmabuf == (r->fd >= 0))
			return e;
	}
	return NULL;
}

static int cache_grow(struct port *port)
{
	int room = port->cache_room ? port->cache_room * 2 : 32;
	struct mr_cache_entry *bigger;

	if (port->cache_count < port->cache_room)
		return 0;
	bigger = realloc(port->cache, (size_t)room * sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	port->cache = bigger;
	port->cache_room = room;
	return 0;
}

static struct mr_cache_entry *cache_insert(struct port *port, const struct range *r,
					   struct ibv_mr *mr)
{
	int at = cache_after(port, r->addr);
	struct mr_cache_entry *e = &port->cache[at];

	memmove(e + 1, e, (size_t)(port->cache_count - at) * sizeof(*e));
	port->cache_count++;
	*e = (struct mr_cache_entry){
		.addr = r->addr, .bytes = r->bytes, .is_dmabuf = r->fd >= 0, .mr = mr};
	return e;
}

static void cache_remove(struct port *port, int at)
{
	struct mr_cache_entry *e = &port->cache[at];

	port->cache_count--;
	memmove(e, e + 1, (size_t)(port->cache_count - at) * sizeof(*e));
}

/* ---- registration on one port ---- */

static int access_flags(void)
{
	int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		    IBV_ACCESS_REMOTE_ATOMIC;

	if (config.ib_pci_relaxed_ordering != 0 && verbs.supports_iova2())
		flags |= IBV_ACCESS_RELAXED_ORDERING;
	return flags;
}

/* Locked memory ran out, as the kernel says it; at a limit of 0 it does not even try. */
static bool is_memlock(int rc, rlim_t limit)
{
	return rc == -ENOMEM || rc == -EAGAIN || (rc == -EPERM && limit == 0);
}

const char *mr_cause(int rc, char *buf, size_t bytes)
{
	const char *error = strerror(-rc);
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) || !is_memlock(rc, limit.rlim_cur))
		snprintf(buf, bytes, "%s", error);
	else if (limit.rlim_cur == RLIM_INFINITY)
		snprintf(buf, bytes,
			 "%s; RLIMIT_MEMLOCK is unlimited: the host or the adapter is out of it",
			 error);
	else
		snprintf(buf, bytes,
			 "%s; RLIMIT_MEMLOCK is %llu bytes: raise it with `ulimit -l unlimited`, "
			 "or LimitMEMLOCK=infinity in the service that starts the job",
			 error, (unsigned long long)limit.rlim_cur);
	return buf;
}

static void failure_say(const struct port *port, const struct range *r, int rc)
{
	char cause[MR_CAUSE_BYTES];

	log_warn("%s: %s of %zu bytes at %p failed: %s", port->name,
		 r->fd >= 0 ? "ibv_reg_dmabuf_mr" : "ibv_reg_mr", r->bytes, (void *)r->addr,
		 mr_cause(rc, cause, sizeof(cause)));
}

static int verbs_register(struct ibv_pd *pd, const struct range *r, struct ibv_mr **mr)
{
	if (r->fd >= 0)
		return verbs.reg_dmabuf_mr(pd, r->offset, r->bytes, r->addr, r->fd, access_flags(),
					   mr);
	return verbs.reg_mr(pd, (void *)r->addr, r->bytes, r->addr, access_flags(), mr);
}

/* A new entry, with no references yet. */
static int entry_make(struct port *port, const struct range *r, struct mr_cache_entry **out)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int rc = port_pd_get(port, &pd);

	if (rc) {
		log_warn("%s: ibv_alloc_pd failed: %s", port->name, strerror(-rc));
		return rc;
	}
	rc = cache_grow(port);
	if (rc) {
		log_warn("%s: no memory for the list of registered ranges", port->name);
		goto err_put_pd;
	}
	rc = verbs_register(pd, r, &mr);
	if (rc) {
		failure_say(port, r, rc);
		goto err_put_pd;
	}
	*out = cache_insert(port, r, mr);
	return 0;

err_put_pd:
	port_pd_put(port);
	return rc;
}

static int port_register(struct port *port, const struct range *r, struct ibv_mr **mr)
{
	struct mr_cache_entry *e;
	int rc = 0;

	pthread_mutex_lock(&port->cache_lock);
	e = cache_find(port, r);
	if (!e)
		rc = entry_make(port, r, &e);
	if (rc == 0) {
		e->refs++;
		*mr = e->mr;
	}
	pthread_mutex_unlock(&port->cache_lock);
	return rc;
}

static void port_deregister(struct port *port, struct ibv_mr *mr)
{
	int rc = 0;

	pthread_mutex_lock(&port->cache_lock);
	for (int i = 0; i < port->cache_count; i++) {
		if (port->cache[i].mr != mr)
			continue;
		if (--port->cache[i].refs == 0) {
			cache_remove(port, i);
			rc = verbs.dereg_mr(mr);
			port_pd_put(port);
		}
		break;
	}
	pthread_mutex_unlock(&port->cache_lock);
	if (rc)
		log_warn("%s: a memory region was not deregistered (%s)", port->name,
			 strerror(-rc));
}

/* ---- regions ---- */

static int range_make(void *addr, size_t bytes, uint64_t offset, int fd, struct range *r)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t start = (uintptr_t)addr & ~(page - 1);
	uintptr_t lead = (uintptr_t)addr - start;

	if (bytes == 0 || (uintptr_t)addr > UINTPTR_MAX - bytes - page) {
		log_warn("cannot register %zu bytes at %p: not a range of memory", bytes, addr);
		return -EINVAL;
	}
	if (fd >= 0 && offset < lead) {
		log_warn("cannot register the dmabuf at offset %llu for %p: both must have the "
			 "same place in a page of %zu bytes",
			 (unsigned long long)offset, addr, (size_t)page);
		return -EINVAL;
	}
	r->addr = start;
	r->bytes = (lead + bytes + page - 1) & ~(page - 1);
	r->offset = fd >= 0 ? offset - lead : 0;
	r->fd = fd;
	return 0;
}

static void ports_deregister(struct mr *mr)
{
	while (mr->port_count > 0) {
		mr->port_count--;
		port_deregister(port_at(mr->port[mr->port_count]), mr->handle[mr->port_count]);
	}
}

static int ports_register(const struct vdevice *dev, const struct range *r, struct mr *mr)
{
	for (int i = 0; i < dev->port_count + dev->standby; i++) {
		struct ibv_mr *handle;
		int rc = port_register(port_at(dev->port[i]), r, &handle);

		if (rc && i >= dev->port_count)
			break; /* said; its keys are 0: what is written through it is refused */
		if (rc) {
			ports_deregister(mr);
			return rc;
		}
		mr->port[i] = dev->port[i];
		mr->handle[i] = handle;
		mr->lkey[i] = handle->lkey;
		mr->rkey[i] = handle->rkey;
		mr->port_count++;
	}
	return 0;
}

int mr_register(const struct vdevice *dev, void *addr, size_t bytes, int type, uint64_t offset,
		int fd, struct mr **out)
{
	struct range r;
	struct mr *mr;
	int rc = range_make(addr, bytes, offset, fd, &r);

	if (rc)
		return rc;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return -ENOMEM;
	rc = ports_register(dev, &r, mr);
	if (rc)
		goto err_free;
	rc = id_get(&mr->id);
	if (rc) {
		log_warn("no room for another memory region: %d are registered", MR_INDEX_MAX);
		goto err_deregister;
	}
	mr->addr = (uintptr_t)addr;
	mr->bytes = bytes;
	mr->type = type;
	*out = mr;
	return 0;

err_deregister:
	ports_deregister(mr);
err_free:
	free(mr);
	return rc;
}

void mr_deregister(struct mr *mr)
{
	if (!mr)
		return;
	ports_deregister(mr);
	id_put(mr->id);
	free(mr);
}
