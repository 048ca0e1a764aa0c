/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log_capture.h - keeps what a test's code logs, so that a test can count and read the lines.
 * For a program with one source file that includes it.
 */
#ifndef RAILYARD_LOG_CAPTURE_H
#define RAILYARD_LOG_CAPTURE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

enum {
	CAPTURE_LINES_MAX = 128
};

static struct {
	pthread_mutex_t lock;
	int count;
	int level[CAPTURE_LINES_MAX];
	char text[CAPTURE_LINES_MAX][2200];
} capture = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((format(printf, 5, 6))) static void
capture_sink(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	va_list args;

	(void)flags;
	(void)file;
	(void)line;
	pthread_mutex_lock(&capture.lock);
	if (capture.count < CAPTURE_LINES_MAX) {
		va_start(args, fmt);
		vsnprintf(capture.text[capture.count], sizeof(capture.text[0]), fmt, args);
		va_end(args);
		capture.level[capture.count++] = level;
	}
	pthread_mutex_unlock(&capture.lock);
}

/* From here on lines are kept, and none is there. */
static inline void capture_start(void)
{
	capture.count = 0;
	log_set_sink(capture_sink);
}

static inline int capture_warnings(void)
{
	int warnings = 0;

	for (int i = 0; i < capture.count; i++)
		warnings += capture.level[i] == LOG_WARN;
	return warnings;
}

/* Number of lines, of any level, that contain `text`. */
static inline int capture_has(const char *text)
{
	int hits = 0;

	for (int i = 0; i < capture.count; i++)
		hits += strstr(capture.text[i], text) != NULL;
	return hits;
}

#endif
