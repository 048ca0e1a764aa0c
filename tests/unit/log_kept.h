/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log_kept.h - stands in for log.c: counts the warnings and keeps the last, prints nothing. And
 * EVENTUALLY(), for what other threads bring about. Included once per program.
 */
#ifndef RAILYARD_LOG_KEPT_H
#define RAILYARD_LOG_KEPT_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

static pthread_mutex_t world_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned world_warnings;
static char world_warning[1024]; /* the last one */
static bool world_limits;        /* log_limited() limits, as the real one does */

static void world_log(enum log_level level, const char *fmt, va_list args)
{
	if (level != LOG_WARN) {
		return;
	}
	pthread_mutex_lock(&world_lock);
	vsnprintf(world_warning, sizeof(world_warning), fmt, args);
	world_warnings++;
	pthread_mutex_unlock(&world_lock);
}

void log_line(enum log_level level, const char *func, int line, const char *fmt, ...)
{
	va_list args;

	(void)func;
	(void)line;
	va_start(args, fmt);
	world_log(level, fmt, args);
	va_end(args);
}

void log_limited(struct log_limit *limit, enum log_level level, const char *func, int line,
		 const char *fmt, ...)
{
	va_list args;

	uint64_t now = now_ns();

	(void)func;
	(void)line;
	pthread_mutex_lock(&world_lock);
	if (world_limits && now < limit->next_ns) {
		limit->dropped++;
		pthread_mutex_unlock(&world_lock);
		return;
	}
	limit->next_ns = now + LOG_LIMIT_INTERVAL_NS;
	pthread_mutex_unlock(&world_lock);
	va_start(args, fmt);
	world_log(level, fmt, args);
	va_end(args);
}

static inline unsigned warnings(void)
{
	unsigned n;

	pthread_mutex_lock(&world_lock);
	n = world_warnings;
	pthread_mutex_unlock(&world_lock);
	return n;
}

/* Waits until the expression holds; false after 15 s. */
#define EVENTUALLY(expr)                                                                           \
	__extension__({                                                                            \
		uint64_t until_ = now_ns() + 15 * NS_PER_S;                                        \
		bool ok_;                                                                          \
		while (!(ok_ = (expr)) && now_ns() < until_) {                                     \
			usleep(500);                                                               \
		}                                                                                  \
		ok_;                                                                               \
	})

#endif
