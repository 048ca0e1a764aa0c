/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * state.c - the state page's file and records.
 *
 * All of the file's memory is taken when it is made: a file system that fills up later then cannot
 * kill the process. The lock, not the pid in the name, says whether a page is in use: two containers
 * that share /dev/shm may have a process each with this pid.
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

enum { NAME_BYTES = 32, PATH_BYTES = 512, TRIES = 3 };

static struct {
	uint8_t *at; /* the page; NULL = none */
	int fd;	     /* keeps the lock */
	char path[PATH_BYTES];
} page;

bool state_is_on(void)
{
	return page.at != NULL;
}

static struct railstate_head *head(void)
{
	return (struct railstate_head *)(void *)page.at;
}

/* --- the file ----------------------------------------------------------------------------- */

/* A lock of the process, not of the descriptor: a forked child must not keep it. */
static int lock(int fd)
{
	struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	return fcntl(fd, F_SETLK, &whole) == 0 ? 0 : -EBUSY;
}

/* Removes the page that a dead process of this pid left. Returns 0 or -errno. */
static int stale_remove(void)
{
	int fd = open(page.path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	int rc = 0;

	if (fd < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
		rc = -EPERM;
	}
	rc = rc != 0 ? rc : lock(fd);
	if (rc == 0 && unlink(page.path) != 0) {
		rc = -errno;
	}
	close(fd);
	return rc;
}

static int file_make(void)
{
	for (int i = 0; i < TRIES; i++) {
		int fd = open(page.path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		int rc = -errno;

		if (fd >= 0 || rc != -EEXIST) {
			return fd >= 0 ? fd : rc;
		}
		rc = stale_remove();
		if (rc != 0) {
			return rc;
		}
	}
	return -EEXIST;
}

static int map(int fd)
{
	int rc = lock(fd);
	void *at;

	if (rc == 0) {
		rc = -posix_fallocate(fd, 0, RAILSTATE_BYTES);
	}
	if (rc != 0) {
		return rc;
	}
	at = mmap(NULL, RAILSTATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		return -errno;
	}
	page.at = at;
	return 0;
}

static void head_fill(uint64_t instance, const char *mode)
{
	struct railstate_head *h = head();

	h->version = RAILSTATE_VERSION;
	h->bytes = RAILSTATE_BYTES;
	h->head_bytes = sizeof(struct railstate_head);
	h->port_bytes = sizeof(struct railstate_port);
	h->comm_bytes = sizeof(struct railstate_comm);
	h->lane_bytes = sizeof(struct railstate_lane);
	h->ports_max = RAILSTATE_PORTS;
	h->comms_max = RAILSTATE_COMMS;
	h->lanes_max = RAILSTATE_LANES;
	h->pid = (uint32_t)getpid();
	h->start_ns = h->look_ns = now_ns();
	h->instance = instance;
	snprintf(h->plugin, sizeof(h->plugin), "%s", RAILYARD_VERSION);
	snprintf(h->mode, sizeof(h->mode), "%s", mode);
	gethostname(h->host, sizeof(h->host) - 1);
	__atomic_store_n(&h->magic, RAILSTATE_MAGIC, __ATOMIC_RELEASE);
}

void state_start(const char *dir, uint64_t instance, const char *mode)
{
	int rc;

	page.at = NULL;
	snprintf(page.path, sizeof(page.path), "%s/" RAILSTATE_PREFIX "%ld", dir, (long)getpid());
	page.fd = file_make();
	rc = page.fd < 0 ? page.fd : map(page.fd);
	if (rc == 0) {
		head_fill(instance, mode);
		return;
	}
	if (page.fd >= 0) {
		(void)unlink(page.path);
		close(page.fd);
	}
	log_info("%s: no state page, so `railyard dump` will not show this process: %s", page.path,
		 rc == -EBUSY ? "another process (of another container?) uses it" : strerror(-rc));
}

void state_stop(void)
{
	if (page.at == NULL) {
		return;
	}
	(void)unlink(page.path);
	munmap(page.at, RAILSTATE_BYTES);
	page.at = NULL;
	close(page.fd);
}

/* --- records ------------------------------------------------------------------------------ */

static void *record(uint32_t at, size_t bytes, uint32_t i, uint32_t max)
{
	return page.at != NULL && i < max ? page.at + at + bytes * i : NULL;
}

const struct railstate_comm *state_comm(uint32_t i)
{
	return record(RAILSTATE_COMMS_AT, sizeof(struct railstate_comm), i, RAILSTATE_COMMS);
}

const struct railstate_lane *state_lane(uint32_t i)
{
	return record(RAILSTATE_LANES_AT, sizeof(struct railstate_lane), i, RAILSTATE_LANES);
}

const struct railstate_port *state_port(uint32_t i)
{
	return record(RAILSTATE_PORTS_AT, sizeof(struct railstate_port), i, RAILSTATE_PORTS);
}

/* Both records begin with their sequence count, which is odd in between. */
static void record_write(const void *to, const void *from, size_t bytes)
{
	uint32_t *seq = (uint32_t *)(uintptr_t)to;

	if (to == NULL) {
		return;
	}
	uint32_t odd = (*seq + 1) | 1;

	__atomic_store_n(seq, odd, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(seq + 1, (const uint32_t *)from + 1, bytes - sizeof(*seq));
	__atomic_store_n(seq, odd + 1, __ATOMIC_RELEASE);
}

void state_comm_write(uint32_t i, const struct railstate_comm *from)
{
	record_write(state_comm(i), from, sizeof(*from));
}

void state_lane_write(uint32_t i, const struct railstate_lane *from)
{
	record_write(state_lane(i), from, sizeof(*from));
}

void state_port_write(uint32_t i, const struct railstate_port *from)
{
	record_write(state_port(i), from, sizeof(*from));
}

/* --- which are in use --------------------------------------------------------------------- */

/* By comms, whether or not there is a page. */
static uint8_t comm_used[RAILSTATE_COMMS], lane_used[RAILSTATE_LANES];

/* First place of `n` free bytes in a row; `max` if there is none. */
static uint32_t run_find(const uint8_t *used, uint32_t max, uint32_t n)
{
	uint32_t free_from = 0;

	for (uint32_t i = 0; i < max; i++) {
		if (used[i] != 0) {
			free_from = i + 1;
		} else if (i + 1 - free_from == n) {
			return free_from;
		}
	}
	return max;
}

static void shown_add(int n)
{
	if (page.at != NULL) {
		__atomic_store_n(&head()->comms_shown, head()->comms_shown + (uint32_t)n,
				 __ATOMIC_RELAXED);
	}
}

static void hidden_set(struct state_mark *m, bool hidden)
{
	if (page.at != NULL && hidden != m->hidden) {
		__atomic_store_n(&head()->comms_hidden,
				 head()->comms_hidden + (hidden ? 1u : UINT32_MAX),
				 __ATOMIC_RELAXED);
	}
	m->hidden = hidden;
}

bool state_take(struct state_mark *m, uint32_t lane_count)
{
	uint32_t comm, lane;

	if (page.at == NULL) {
		return false;
	}
	comm = run_find(comm_used, RAILSTATE_COMMS, 1);
	lane = run_find(lane_used, RAILSTATE_LANES, lane_count);
	hidden_set(m, comm == RAILSTATE_COMMS || lane == RAILSTATE_LANES);
	if (m->hidden) {
		return false;
	}
	m->shown = true;
	m->comm = (uint16_t)comm;
	m->lane = (uint16_t)lane;
	m->lane_count = (uint16_t)lane_count;
	comm_used[comm] = 1;
	memset(&lane_used[lane], 1, lane_count);
	shown_add(1);
	return true;
}

void state_give(struct state_mark *m)
{
	static const struct railstate_comm no_comm;
	static const struct railstate_lane no_lane;

	hidden_set(m, false);
	if (!m->shown) {
		return;
	}
	m->shown = false;
	state_comm_write(m->comm, &no_comm);
	for (uint32_t i = 0; i < m->lane_count; i++) {
		state_lane_write(m->lane + i, &no_lane);
	}
	comm_used[m->comm] = 0;
	memset(&lane_used[m->lane], 0, m->lane_count);
	shown_add(-1);
}

void state_looked(uint64_t now)
{
	if (page.at != NULL) {
		__atomic_store_n(&head()->look_ns, now, __ATOMIC_RELAXED);
		__atomic_store_n(&head()->looks, head()->looks + 1, __ATOMIC_RELAXED);
	}
}
