/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight_internal.h - between flight.c and flight_calls.c. Thread: the comm's owner.
 */
#ifndef RAILYARD_FLIGHT_INTERNAL_H
#define RAILYARD_FLIGHT_INTERNAL_H

#include "flight_format.h"

enum {
	FLIGHT_COMMS_MAX = 64, /* recorded at once */
	FLIGHT_KEPT_MAX = 8,   /* files of failed comms that a process leaves */
	FLIGHT_LEFT_MAX = 16,  /* files of dead processes that the next one leaves */
	FLIGHT_PATH_BYTES = 512,
	FLIGHT_LOAD_NS = 100000 /* how old the core's copy of ports' loads may be: they are hints */
};

struct flight {
	struct flight_core core;
	struct flight_head *head; /* of the file */
	struct flight_half *half; /* being filled */
	struct flight_record *last;
	uint64_t half_bytes;
	uint32_t image_bytes;
	uint32_t polls;           /* idle_polls as the log has it */
	uint64_t now_ns;          /* as the log has it */
	uint64_t clock_ns;        /* when the owner came, about */
	uint64_t load_ns;         /* when the loads were read last */
	uint64_t seen;            /* sender: records before this one are in the shadow */
	bool stale;               /* the shadow has not been looked at since the owner came */
	int fd;                   /* keeps the lock */
	char path[FLIGHT_PATH_BYTES];
	/* what the core would read without a log; pointers as in its configuration */
	struct core_config real;
	const struct core_cts *ring;
	const struct core_sizes *sizes;
	struct core_load base[CORE_PORTS_MAX]; /* the real load that the shadow's is at, so far */
	struct flight_shadow shadow;
};

/* The arguments of a record; see enum flight_fn. */
struct flight_args {
	enum flight_fn fn;
	uint32_t lane, a, b, word;
	uint64_t now_ns;
	const void *payload;
	uint32_t bytes; /* of the payload */
};

/* flight_enter - the owner has come. flight_leave - it goes: others see what it did. */
void flight_enter(struct flight *f);
void flight_leave(struct flight *f);

/* flight_inputs - take the words and loads of ports anew, unless that was done for this owner. */
void flight_inputs(struct flight *f);

/* flight_sizes - receiver: take the sizes record at this place. */
void flight_sizes(struct flight *f, uint32_t place);

/*
 * flight_begin - a call is about to be made. flight_end - it was, and returned what this hash is
 * of.
 */
void flight_begin(struct flight *f, const struct flight_args *args);
void flight_end(struct flight *f, uint64_t hash, uint32_t lane);

#endif
