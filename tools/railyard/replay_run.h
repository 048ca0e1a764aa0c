/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * replay_run.h - makes the calls of a flight log again and compares what the core says.
 *
 * replay_run.c reads the file and goes through its records, replay_call.c makes one call. Nothing
 * in the file is trusted: a record is looked at only if its seal is right, and its arguments only
 * if they are in bounds.
 */
#ifndef RAILYARD_REPLAY_RUN_H
#define RAILYARD_REPLAY_RUN_H

#include <stdio.h>

#include "flight_format.h"

enum replay_verdict {
	REPLAY_SAME,    /* every call returned what it had returned */
	REPLAY_DIFFERS, /* `why` has the first that did not */
	REPLAY_REFUSED  /* `why`: it is no log that can be replayed */
};

struct replay_report {
	enum replay_verdict verdict;
	char why[512];
	const struct flight_head *head; /* of the data; NULL if refused */
	unsigned halves;         /* replayed */
	unsigned whole;          /* of those, with the hash of memory at their end */
	uint64_t calls, inputs;
	uint64_t from_ns, to_ns; /* of the times in it */
	bool open;               /* the process ended inside the last call */
	char notes[256];         /* what was left out; empty: nothing */
};

/*
 * replay_run - replay a log in memory (8-byte aligned, only read); each record is printed as text
 * if `print` is not NULL, and the state of the core at the end to `state`.
 */
void replay_run(const void *data, size_t bytes, FILE *print, FILE *state,
		struct replay_report *report);

/* --- replay_call.c ------------------------------------------------------------------------ */

/*
 * replay_call - take an input, or make a call at `now_ns`; *check is its check word. Returns 0;
 * -EPROTO: it makes no sense in this core.
 */
int replay_call(const struct flight_core *c, const struct flight_record *r, uint64_t now_ns,
		FILE *print, uint16_t *check);

#endif
