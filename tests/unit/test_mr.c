/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_mr.c - mr.h on fake devices: the cache and its references, ids, dmabuf, unwinding, what is
 * said when memory cannot be locked, and every verbs call failing once.
 */
#define _GNU_SOURCE /* memfd_create */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config.h"
#include "device_sys.h"
#include "fake/fake_verbs.h"
#include "log_capture.h"
#include "mr.h"
#include "nccl_net.h"
#include "util.h"
#include "worker_fake.h"

enum {
	PAGE = 4096,
	ARENA_PAGES = 64
};

static uint8_t arena[ARENA_PAGES * PAGE] __attribute__((aligned(PAGE)));
static int fused;

static int last_access;
static int reg_calls;

static int counted_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access,
			  struct ibv_mr **mr)
{
	last_access = access;
	reg_calls++;
	return fake_verbs_ops.reg_mr(pd, addr, bytes, iova, access, mr);
}

static void setup(int ports)
{
	int devs[CORE_PORTS_MAX];

	for (unsigned i = 0; i < config_count(); i++)
		unsetenv(config_name(i));
	device_sys_root("/nonexistent");
	verbs = fake_verbs_ops;
	verbs.reg_mr = counted_reg_mr;
	fake_init(&(struct fake_config){.device_count = ports, .dmabuf = true});
	capture_start();
	config_reload();
	cr_assert_eq(device_init(), ports);
	for (int i = 0; i < ports; i++)
		devs[i] = i;
	cr_assert_eq(vdevice_make(ports, devs, &fused), 0);
	capture_start();
}

/* With every region gone, nothing is left but the contexts, and these go with device_forget(). */
static void teardown(void)
{
	char leaks[256];

	for (int i = 0; i < port_count(); i++) {
		cr_assert_eq(port_at(i)->pd_refs, 0);
		cr_assert_eq(port_at(i)->cache_count, 0);
	}
	cr_assert_eq(fake_leaks(leaks, sizeof(leaks)), port_count(), "%s", leaks);
	device_fini();
	device_forget();
	cr_assert_eq(fake_leaks(leaks, sizeof(leaks)), 0, "%s", leaks);
	cr_assert_null(fake_fault(), "%s", fake_fault());
}

static struct vdevice *dev(void)
{
	return vdevice_at(fused);
}

static int reg(size_t offset, size_t bytes, struct mr **mr)
{
	return mr_register(dev(), arena + offset, bytes, RY_NET_PTR_HOST, 0, -1, mr);
}

Test(mr, a_region_is_registered_on_every_port)
{
	struct mr *mr;

	setup(4);
	cr_assert_eq(reg(100, 5000, &mr), 0);
	cr_assert_eq(mr->port_count, 4);
	cr_assert_eq(mr->addr, (uintptr_t)arena + 100);
	cr_assert_eq(mr->bytes, 5000);
	cr_assert_eq(mr->type, RY_NET_PTR_HOST);
	cr_assert_neq(mr->id, 0);
	for (int i = 0; i < 4; i++) {
		cr_assert_eq(mr->port[i], i);
		cr_assert_eq(mr->handle[i]->addr, arena);
		cr_assert_eq(mr->handle[i]->length, 2 * PAGE); /* whole pages */
		cr_assert_eq(mr->lkey[i], mr->handle[i]->lkey);
		cr_assert_eq(mr->rkey[i], mr->handle[i]->rkey);
		for (int j = 0; j < i; j++)
			cr_assert_neq(mr->handle[i], mr->handle[j]);
	}
	mr_deregister(mr);
	cr_assert_eq(capture.count, 0);
	teardown();
}

Test(mr, access_is_that_of_the_data_path)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		  IBV_ACCESS_REMOTE_ATOMIC;
	struct mr *mr;

	setup(1);
	cr_assert_eq(reg(0, 1, &mr), 0);
	cr_assert_eq(last_access, all | IBV_ACCESS_RELAXED_ORDERING);
	mr_deregister(mr);
	config.ib_pci_relaxed_ordering = 0;
	cr_assert_eq(reg(0, 1, &mr), 0);
	cr_assert_eq(last_access, all);
	mr_deregister(mr);
	teardown();
}

static int no_iova2(void)
{
	return 0;
}

Test(mr, relaxed_ordering_needs_iova2)
{
	struct mr *mr;

	setup(1);
	config.ib_pci_relaxed_ordering = 1;
	verbs.supports_iova2 = no_iova2;
	cr_assert_eq(reg(0, 1, &mr), 0);
	cr_assert_eq(last_access & IBV_ACCESS_RELAXED_ORDERING, 0);
	mr_deregister(mr);
	teardown();
}

Test(mr, a_contained_range_hits_and_lives_as_long_as_its_last_user)
{
	struct mr *big, *same, *part, *over;

	setup(2);
	cr_assert_eq(reg(PAGE, 4 * PAGE, &big), 0);
	cr_assert_eq(reg_calls, 2);
	cr_assert_eq(reg(PAGE, 4 * PAGE, &same), 0);
	cr_assert_eq(reg(2 * PAGE + 7, PAGE, &part), 0);
	cr_assert_eq(reg_calls, 2);
	cr_assert_eq(part->handle[1], big->handle[1]);
	cr_assert_eq(part->lkey[0], big->lkey[0]);
	cr_assert_neq(part->id, big->id);
	cr_assert_eq(reg(4 * PAGE, 2 * PAGE, &over), 0); /* one page sticks out */
	cr_assert_eq(reg_calls, 4);
	cr_assert_neq(over->handle[0], big->handle[0]);
	mr_deregister(big);
	mr_deregister(same);
	cr_assert_eq(fake_leaks(NULL, 0), 2 + 2 + 4); /* contexts, PDs, MRs */
	cr_assert_eq(part->handle[1]->lkey, part->lkey[1]);
	mr_deregister(part);
	cr_assert_eq(fake_leaks(NULL, 0), 2 + 2 + 2);
	mr_deregister(over);
	teardown();
}

Test(mr, a_range_before_or_around_a_cached_one_misses)
{
	struct mr *mr[4];

	setup(1);
	cr_assert_eq(reg(8 * PAGE, 2 * PAGE, &mr[0]), 0);
	cr_assert_eq(reg(7 * PAGE, PAGE, &mr[1]), 0);
	cr_assert_eq(reg(7 * PAGE, 4 * PAGE, &mr[2]), 0);
	cr_assert_eq(reg(8 * PAGE - 1, 2, &mr[3]), 0); /* inside the third only */
	cr_assert_eq(reg_calls, 3);
	cr_assert_eq(mr[3]->handle[0], mr[2]->handle[0]);
	for (int i = 0; i < 4; i++)
		mr_deregister(mr[i]);
	teardown();
}

Test(mr, single_devices_and_fused_ones_share_entries)
{
	struct mr *all, *one;

	setup(2);
	cr_assert_eq(reg(0, PAGE, &all), 0);
	cr_assert_eq(mr_register(vdevice_at(1), arena, PAGE, RY_NET_PTR_HOST, 0, -1, &one), 0);
	cr_assert_eq(reg_calls, 2);
	cr_assert_eq(one->port_count, 2, "its own port, and the one to borrow");
	cr_assert_eq(one->port[0], 1);
	cr_assert_eq(one->port[1], 0);
	cr_assert_eq(one->handle[1], all->handle[0]);
	cr_assert_eq(one->handle[0], all->handle[1]);
	mr_deregister(all);
	mr_deregister(one);
	teardown();
}

Test(mr, null_is_nothing_to_deregister)
{
	setup(1);
	mr_deregister(NULL);
	teardown();
}

Test(mr, what_is_no_range_is_refused)
{
	struct mr *mr = (struct mr *)1;

	setup(1);
	cr_assert_eq(reg(0, 0, &mr), -EINVAL);
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(
		mr_register(dev(), (void *)(UINTPTR_MAX - 10), 100, RY_NET_PTR_HOST, 0, -1, &mr),
		-EINVAL);
	cr_assert_eq(mr_register(dev(), arena, SIZE_MAX - PAGE, RY_NET_PTR_HOST, 0, -1, &mr),
		     -EINVAL);
	cr_assert_eq(capture_warnings(), 3);
	cr_assert_eq(mr, (struct mr *)1);
	teardown();
}

/* ---- ids ---- */

Test(mr, an_id_is_not_soon_used_again)
{
	uint32_t seen[200];
	struct mr *mr;

	setup(1);
	for (int i = 0; i < 200; i++) {
		cr_assert_eq(reg(0, PAGE, &mr), 0);
		cr_assert_eq(mr_index(mr->id), 0); /* the lowest place is used again ... */
		seen[i] = mr->id;
		for (int j = 0; j < i; j++)
			cr_assert_neq(seen[j], mr->id); /* ... under another name */
		mr_deregister(mr);
	}
	teardown();
}

Test(mr, generations_wrap_without_becoming_0)
{
	struct mr *mr;

	setup(1);
	for (int i = 0; i < 65535 + 3; i++) {
		cr_assert_eq(reg(0, PAGE, &mr), 0);
		cr_assert_neq(mr->id, 0);
		mr_deregister(mr);
	}
	teardown();
}

Test(mr, ids_run_out_with_one_line_and_without_a_leak)
{
	static struct mr *all[MR_INDEX_MAX];
	struct mr *mr;

	setup(1);
	for (int i = 0; i < MR_INDEX_MAX; i++)
		cr_assert_eq(reg(0, PAGE, &all[i]), 0);
	cr_assert_eq(capture.count, 0);
	cr_assert_eq(reg(0, PAGE, &mr), -ENOSPC);
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(capture_has("65536"), 1);
	mr_deregister(all[77]);
	cr_assert_eq(reg(0, PAGE, &all[77]), 0);
	cr_assert_eq(mr_index(all[77]->id), 77);
	for (int i = 0; i < MR_INDEX_MAX; i++)
		mr_deregister(all[i]);
	teardown();
}

/* ---- dmabuf ---- */

static uint64_t seen_offset, seen_iova;
static size_t seen_bytes;
static int seen_fd;

static int seeing_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
				int fd, int access, struct ibv_mr **mr)
{
	seen_offset = offset;
	seen_bytes = bytes;
	seen_iova = iova;
	seen_fd = fd;
	return fake_verbs_ops.reg_dmabuf_mr(pd, offset, bytes, iova, fd, access, mr);
}

static int memory_fd(void)
{
	int fd = memfd_create("gpu", MFD_CLOEXEC);

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, 16 * PAGE), 0);
	return fd;
}

Test(mr, a_dmabuf_is_registered_by_whole_pages)
{
	uint8_t *gpu = (uint8_t *)(uintptr_t)0x7f0000000000;
	int fd = memory_fd();
	struct mr *mr, *part;

	setup(2);
	verbs.reg_dmabuf_mr = seeing_reg_dmabuf_mr;
	cr_assert_eq(mr_register(dev(), gpu + PAGE + 100, 2 * PAGE, RY_NET_PTR_DMABUF,
				 2 * PAGE + 100, fd, &mr),
		     0);
	cr_assert_eq(seen_offset, 2 * PAGE);
	cr_assert_eq(seen_bytes, 3 * PAGE);
	cr_assert_eq(seen_iova, (uintptr_t)gpu + PAGE);
	cr_assert_eq(seen_fd, fd);
	cr_assert_eq(reg_calls, 0);
	close(fd); /* NCCL does that as soon as it has the handle */
	fd = memory_fd();
	cr_assert_eq(
		mr_register(dev(), gpu + 2 * PAGE, PAGE, RY_NET_PTR_DMABUF, 3 * PAGE, fd, &part),
		0);
	cr_assert_eq(part->handle[1], mr->handle[1]);
	close(fd);
	mr_deregister(mr);
	mr_deregister(part);
	teardown();
}

Test(mr, host_memory_never_hits_a_dmabuf)
{
	int fd = memory_fd();
	struct mr *gpu, *host;

	setup(1);
	cr_assert_eq(mr_register(dev(), arena, 4 * PAGE, RY_NET_PTR_DMABUF, 0, fd, &gpu), 0);
	cr_assert_eq(reg(PAGE, PAGE, &host), 0);
	cr_assert_eq(reg_calls, 1);
	cr_assert_neq(host->handle[0], gpu->handle[0]);
	mr_deregister(gpu);
	mr_deregister(host);
	close(fd);
	teardown();
}

Test(mr, a_dmabuf_at_another_place_in_its_page_is_refused)
{
	int fd = memory_fd();
	struct mr *mr;

	setup(1);
	cr_assert_eq(mr_register(dev(), arena + 100, PAGE, RY_NET_PTR_DMABUF, 50, fd, &mr),
		     -EINVAL);
	cr_assert_eq(capture_warnings(), 1);
	close(fd);
	teardown();
}

/* ---- failures ---- */

static int out_of_memory(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access,
			 struct ibv_mr **mr)
{
	(void)pd;
	(void)addr;
	(void)bytes;
	(void)iova;
	(void)access;
	(void)mr;
	return -ENOMEM;
}

Test(mr, enomem_names_the_limit_on_locked_memory)
{
	struct rlimit limit;
	struct mr *mr;

	setup(2);
	verbs.reg_mr = out_of_memory;
	cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = 64 * 1024;
	cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	cr_assert_eq(reg(0, 3 * PAGE, &mr), -ENOMEM);
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(capture_has("RLIMIT_MEMLOCK is 65536 bytes"), 1, "%s", capture.text[0]);
	cr_assert_eq(capture_has("ulimit -l unlimited"), 1);
	cr_assert_eq(capture_has("LimitMEMLOCK"), 1);
	cr_assert_eq(capture_has("12288 bytes"), 1);
	cr_assert_eq(capture_has("fake0:1"), 1);
	teardown();
}

Test(mr, enomem_without_a_limit_says_so)
{
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
	char text[256];

	if (setrlimit(RLIMIT_MEMLOCK, &limit) == 0)
		cr_assert(strstr(mr_cause(-ENOMEM, text, sizeof(text)), "is unlimited"), "%s",
			  text);
	else
		cr_assert(strstr(mr_cause(-ENOMEM, text, sizeof(text)), " bytes: "), "%s", text);
}

Test(mr, a_port_that_refuses_undoes_the_others)
{
	struct mr *mr = (struct mr *)1;

	setup(4);
	/* alloc_pd and reg_mr per port: the sixth is the third port's registration */
	fake_fail_nth(6, EINVAL);
	cr_assert_eq(reg(0, PAGE, &mr), -EINVAL);
	cr_assert_str_eq(fake_failed(), "reg_mr");
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(capture_has("fake2:1"), 1);
	cr_assert_eq(mr, (struct mr *)1);
	teardown();
}

/* Failing releases are the driver's leak; the fake then frees on the second try. */
static int grumbling_dereg_mr(struct ibv_mr *mr)
{
	int rc = fake_verbs_ops.dereg_mr(mr);

	if (rc)
		cr_assert_eq(fake_verbs_ops.dereg_mr(mr), 0);
	return rc;
}

static int grumbling_dealloc_pd(struct ibv_pd *pd)
{
	int rc = fake_verbs_ops.dealloc_pd(pd);

	if (rc)
		cr_assert_eq(fake_verbs_ops.dealloc_pd(pd), 0);
	return rc;
}

Test(mr, any_verbs_call_may_fail_once)
{
	unsigned n = 1;
	int failed = 0;

	setup(3);
	verbs.dereg_mr = grumbling_dereg_mr;
	verbs.dealloc_pd = grumbling_dealloc_pd;
	for (;; n++) {
		struct mr *mr[2] = {NULL, NULL};

		capture_start();
		fake_fail_nth(n, EIO);
		for (int i = 0; i < 2; i++) {
			int rc = reg((size_t)i * 4 * PAGE, PAGE, &mr[i]);

			cr_assert_eq(rc, mr[i] ? 0 : -EIO, "%s", fake_failed());
		}
		mr_deregister(mr[0]);
		mr_deregister(mr[1]);
		cr_assert_eq(fake_leaks(NULL, 0), 3, "%s", fake_failed());
		if (!fake_failed())
			break;
		cr_assert_eq(capture_warnings(), 1, "%s", fake_failed());
		failed++;
	}
	fake_fail_nth(0, 0);
	/* per port: one PD and two MRs, made and unmade */
	cr_assert_eq(failed, 3 * (1 + 2) * 2);
	teardown();
}

/* ---- many ---- */

static bool covers(const struct mr *mr)
{
	for (uint32_t i = 0; i < mr->port_count; i++) {
		uintptr_t start = (uintptr_t)mr->handle[i]->addr;

		if (start > mr->addr || start + mr->handle[i]->length < mr->addr + mr->bytes)
			return false;
		if (mr->handle[i]->lkey != mr->lkey[i])
			return false;
	}
	return true;
}

struct churn {
	pthread_t thread;
	uint64_t random;
	unsigned wrong;
};

static uint64_t churn_next(struct churn *c, uint64_t below)
{
	c->random = hash_u64(c->random);
	return c->random % below;
}

/* Registers and deregisters at random; every region must cover its range while it is held. */
static void *churn_run(void *arg)
{
	enum {
		HELD = 24
	};
	struct churn *c = arg;
	struct mr *held[HELD] = {NULL};

	for (int i = 0; i < 4000; i++) {
		struct mr **mr = &held[churn_next(c, HELD)];

		if (*mr) {
			c->wrong += !covers(*mr);
			mr_deregister(*mr);
			*mr = NULL;
		} else {
			size_t offset = churn_next(c, sizeof(arena) - 1);
			size_t bytes = 1 + churn_next(c, sizeof(arena) - offset);

			c->wrong += reg(offset, bytes, mr) != 0;
		}
	}
	for (int i = 0; i < HELD; i++)
		mr_deregister(held[i]);
	return NULL;
}

Test(mr, threads_register_and_deregister_side_by_side)
{
	struct churn churn[4];

	setup(2);
	for (int i = 0; i < 4; i++) {
		churn[i] = (struct churn){.random = (uint64_t)i};
		cr_assert_eq(pthread_create(&churn[i].thread, NULL, churn_run, &churn[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(churn[i].thread, NULL);
		cr_assert_eq(churn[i].wrong, 0);
	}
	cr_assert_eq(capture.count, 0);
	teardown();
}

/* Against the plain rule: a hit exactly if some live registration holds all the pages. */
Test(mr, random_ranges_hit_exactly_when_contained)
{
	enum {
		HELD = 32
	};
	struct churn c = {.random = 42};
	struct mr *held[HELD] = {NULL};
	int hits = 0, misses = 0;

	setup(1);
	for (int i = 0; i < 20000; i++) {
		size_t slot = churn_next(&c, HELD);
		uint64_t first = churn_next(&c, ARENA_PAGES);
		uint64_t pages = 1 + churn_next(&c, ARENA_PAGES - first) / 4;
		uintptr_t start = (uintptr_t)arena + first * PAGE;
		bool contained = false;
		int before = reg_calls;

		if (held[slot]) {
			mr_deregister(held[slot]);
			held[slot] = NULL;
			continue;
		}
		for (int j = 0; j < HELD; j++) {
			if (held[j] && (uintptr_t)held[j]->handle[0]->addr <= start &&
			    (uintptr_t)held[j]->handle[0]->addr + held[j]->handle[0]->length >=
				    start + pages * PAGE)
				contained = true;
		}
		cr_assert_eq(reg(first * PAGE, pages * PAGE, &held[slot]), 0);
		cr_assert_eq(reg_calls - before, contained ? 0 : 1);
		cr_assert(covers(held[slot]));
		hits += contained;
		misses += !contained;
	}
	cr_assert_geq(hits, 1000);
	cr_assert_geq(misses, 1000);
	for (int j = 0; j < HELD; j++)
		mr_deregister(held[j]);
	teardown();
}
