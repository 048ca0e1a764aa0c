/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * dump_page.h - reads a state page: checks all of it, copies what is whole. What comes out can be
 * printed as it is: strings end and hold plain characters only, numbers are in range.
 */
#ifndef RAILYARD_DUMP_PAGE_H
#define RAILYARD_DUMP_PAGE_H

#include <railyard/state.h>

struct page {
	bool alive;	  /* its writer lives */
	uint32_t damaged; /* records left out: half written, or with numbers that cannot be */
	uint32_t port_count, comm_count, lane_count;
	/* Records in use, from 0 on: failed comms and long waits first, lanes not in use first. */
	struct railstate s;
};

/*
 * page_read - of a file. Returns 0 and *out (free() it); -errno and one line in `why`: not there,
 * not allowed, no state page, another version, cut short.
 */
int page_read(const char *path, struct page **out, char *why, size_t why_bytes);

/* page_each - fn for the path of each state page of this host; returns how many there are. */
int page_each(void (*fn)(const char *path, void *arg), void *arg);

/* page_comm - the comm of a lane; NULL if it went away just then. */
const struct railstate_comm *page_comm(const struct page *p, const struct railstate_lane *lane);

#endif
