/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log.c - formats a line once and hands it to NCCL's logger, or to stderr before there is one.
 *
 * Invariant: one call makes at most one line, in one write. Must not allocate, lock or fail: it is
 * called from error paths of every thread.
 */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util.h"

#define PREFIX "NET/Railyard : "

enum {
	LINE_BYTES = 2048
};

/* NCCL's subsystem bits: INIT is shown by default at level INFO; a warning belongs to all. */
#define FLAGS_INFO (0x1ul | 0x10ul)
#define FLAGS_WARN (~0ul)

static log_sink_fn log_sink;

void log_set_sink(log_sink_fn sink)
{
	__atomic_store_n(&log_sink, sink, __ATOMIC_RELEASE);
}

static void to_stderr(const char *text)
{
	char line[LINE_BYTES + 32];
	int len = snprintf(line, sizeof(line), "[%d] %s\n", (int)getpid(), text);
	ssize_t ignored = write(STDERR_FILENO, line, (size_t)len);

	(void)ignored; /* nowhere is left to complain to */
}

static void emit(enum log_level level, const char *func, int line, const char *text)
{
	log_sink_fn sink = __atomic_load_n(&log_sink, __ATOMIC_ACQUIRE);

	if (sink)
		sink((int)level, level == LOG_WARN ? FLAGS_WARN : FLAGS_INFO, func, line, "%s",
		     text);
	else if (level == LOG_WARN)
		to_stderr(text);
}

static void format(char text[LINE_BYTES], uint32_t dropped, const char *fmt, va_list args)
{
	size_t used = sizeof(PREFIX) - 1;
	int n;

	memcpy(text, PREFIX, sizeof(PREFIX));
	n = vsnprintf(text + used, LINE_BYTES - used, fmt, args);
	if (n > 0)
		used += (size_t)n;
	if (used > LINE_BYTES - 1)
		used = LINE_BYTES - 1;
	if (dropped > 0)
		snprintf(text + used, LINE_BYTES - used, " (%u such lines left out before)",
			 dropped);
}

void log_line(enum log_level level, const char *func, int line, const char *fmt, ...)
{
	int saved = errno;
	char text[LINE_BYTES];
	va_list args;

	va_start(args, fmt);
	format(text, 0, fmt, args);
	va_end(args);
	emit(level, func, line, text);
	errno = saved;
}

/* One caller per interval moves next_ns on and speaks; the others only count. */
static bool limit_passes(struct log_limit *limit, uint32_t *dropped)
{
	uint64_t now = now_ns();
	uint64_t next = __atomic_load_n(&limit->next_ns, __ATOMIC_RELAXED);

	if (now < next ||
	    !__atomic_compare_exchange_n(&limit->next_ns, &next, now + LOG_LIMIT_INTERVAL_NS, false,
					 __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		__atomic_fetch_add(&limit->dropped, 1, __ATOMIC_RELAXED);
		return false;
	}
	*dropped = __atomic_exchange_n(&limit->dropped, 0, __ATOMIC_RELAXED);
	return true;
}

void log_limited(struct log_limit *limit, enum log_level level, const char *func, int line,
		 const char *fmt, ...)
{
	int saved = errno;
	char text[LINE_BYTES];
	uint32_t dropped;
	va_list args;

	if (!limit_passes(limit, &dropped))
		return;
	va_start(args, fmt);
	format(text, dropped, fmt, args);
	va_end(args);
	emit(level, func, line, text);
	errno = saved;
}
