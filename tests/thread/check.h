/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * check.h - the few words of a plain test program: CHECK, the length of loops, threads together.
 */
#ifndef RAILYARD_THREAD_CHECK_H
#define RAILYARD_THREAD_CHECK_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef TEST_SCALE
#define TEST_SCALE 100 /* per cent */
#endif

#define CHECK(c)                                                                                   \
	do {                                                                                       \
		if (!(c)) {                                                                        \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #c);      \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

static inline unsigned scaled(unsigned rounds)
{
	unsigned n = rounds * TEST_SCALE / 100;

	return n ? n : 1;
}

/* Runs fn(arg) on so many threads and waits for all. */
static inline void run_together(unsigned count, void *(*fn)(void *), void *arg)
{
	pthread_t thread[16];

	for (unsigned i = 0; i < count; i++) {
		CHECK(pthread_create(&thread[i], NULL, fn, arg) == 0);
	}
	for (unsigned i = 0; i < count; i++) {
		pthread_join(thread[i], NULL);
	}
}

#endif
