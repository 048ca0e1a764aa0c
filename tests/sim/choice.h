/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * choice.h - the only source of chance in the simulator.
 *
 * World code asks choose(n) and never knows which engine answers: a seeded generator, a list to
 * replay (shrinking), an enumerator of all answers (small scope), or a fuzzer's bytes. Answer 0 is
 * always the mildest one, so that dropping choices makes a run simpler. An engine that has no more
 * answers says so (choice_spent()) and then answers 0.
 */
#ifndef SIM_CHOICE_H
#define SIM_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum choice_engine {
	CHOICE_SEED,
	CHOICE_LIST,
	CHOICE_ENUM,
	CHOICE_BYTES
};

enum {
	CHOICE_ENUM_MAX = 64
};

struct choice {
	enum choice_engine engine;
	uint64_t state;			 /* SEED */
	const uint32_t *list;		 /* LIST; borrowed */
	const uint8_t *bytes;		 /* BYTES; borrowed */
	size_t count;			 /* of list or bytes */
	size_t pos;			 /* answers given */
	uint32_t value[CHOICE_ENUM_MAX]; /* ENUM: answers of this run ... */
	uint32_t bound[CHOICE_ENUM_MAX]; /* ... and how many there were */
	uint32_t depth;			 /* ENUM: questions of a run that are enumerated */
	uint32_t *record;		 /* answers given, if not NULL; borrowed */
	size_t record_count;
	size_t record_max;
};

void choice_seed(struct choice *c, uint64_t seed);
void choice_list(struct choice *c, const uint32_t *list, size_t count);
void choice_bytes(struct choice *c, const uint8_t *bytes, size_t count);

/* choice_enum - first of the runs that enumerate the first `depth` questions. */
void choice_enum(struct choice *c, uint32_t depth);

/* choice_enum_next - set up the next run; false after the last one. */
bool choice_enum_next(struct choice *c);

/* choose - a number below n (n >= 1). */
uint32_t choose(struct choice *c, uint32_t n);

/* choose_weighted - an index below n whose weight is not 0, as likely as its weight. */
uint32_t choose_weighted(struct choice *c, const uint32_t *weight, uint32_t n);

bool choice_spent(const struct choice *c);

/* splitmix64 - the next value of the generator in *state. */
uint64_t splitmix64(uint64_t *state);

#endif
