/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * state.c - the state page's file and records.
 */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"
#include "shmfile.h"
#include "util.h"

enum { PATH_BYTES = 512 };

struct railstate *state_page;

static int page_fd; /* keeps the lock */
static char path[PATH_BYTES];

/* --- the file ----------------------------------------------------------------------------- */

static void head_fill(struct railstate_head *h, uint64_t instance, const char *mode)
{
	h->version = RAILSTATE_VERSION;
	h->bytes = sizeof(struct railstate);
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
	void *at;

	snprintf(path, sizeof(path), "%s/" RAILSTATE_PREFIX "%ld", dir, (long)getpid());
	page_fd = shmfile_make(path, sizeof(struct railstate), &at);
	if (page_fd < 0) {
		log_info("%s: no state page, so `railyard dump` will not show this process: %s",
			 path, shmfile_why(page_fd));
		return;
	}
	state_page = at;
	head_fill(&state_page->head, instance, mode);
}

void state_stop(void)
{
	if (state_page != NULL) {
		(void)unlink(path);
		munmap(state_page, sizeof(*state_page));
		state_page = NULL;
		close(page_fd);
	}
}

/*
 * NCCL's older ABIs end without a finalize. The plugin thread may be writing still: the name goes,
 * the page stays. Not a forked child's to do.
 */
__attribute__((destructor)) static void exit_remove(void)
{
	if (state_page != NULL && state_page->head.pid == (uint32_t)getpid()) {
		(void)unlink(path);
	}
}

/* --- records ------------------------------------------------------------------------------ */

void state_write(void *record, const void *from, size_t bytes)
{
	uint32_t *seq = record, odd = (*seq + 1) | 1;

	__atomic_store_n(seq, odd, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(seq + 1, (const uint32_t *)from + 1, bytes - sizeof(*seq));
	__atomic_store_n(seq, odd + 1, __ATOMIC_RELEASE);
}

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

static void head_count(uint32_t *word, bool more)
{
	__atomic_store_n(word, *word + (more ? 1u : UINT32_MAX), __ATOMIC_RELAXED);
}

static void hidden_set(struct state_mark *m, bool hidden)
{
	if (hidden != m->hidden && state_page != NULL) {
		head_count(&state_page->head.comms_hidden, hidden);
	}
	m->hidden = hidden;
}

bool state_take(struct state_mark *m, uint32_t lane_count)
{
	uint32_t comm = run_find(comm_used, RAILSTATE_COMMS, 1);
	uint32_t lane = run_find(lane_used, RAILSTATE_LANES, lane_count);

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
	head_count(&state_page->head.comms_shown, true);
	return true;
}

static void records_clear(const struct state_mark *m)
{
	static const struct railstate_comm no_comm;
	static const struct railstate_lane no_lane;

	state_write(&state_page->comm[m->comm], &no_comm, sizeof(no_comm));
	for (uint32_t i = 0; i < m->lane_count; i++) {
		state_write(&state_page->lane[m->lane + i], &no_lane, sizeof(no_lane));
	}
	head_count(&state_page->head.comms_shown, false);
}

void state_give(struct state_mark *m)
{
	hidden_set(m, false);
	if (!m->shown) {
		return;
	}
	if (state_page != NULL) {
		records_clear(m);
	}
	m->shown = false;
	comm_used[m->comm] = 0;
	memset(&lane_used[m->lane], 0, m->lane_count);
}
