/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log.h - one sink: NCCL's logger callback once init has given it, stderr before that (warnings).
 *
 * Who decides that something is an error logs it, once; callers that only propagate do not. Lines
 * are lower case, start with "NET/Railyard : ", and say what, where and what to do.
 * Safe from any thread; errno is left as it was. Never called on the data path's success branch.
 */
#ifndef RAILYARD_LOG_H
#define RAILYARD_LOG_H

#include <stdint.h>

enum log_level {
	LOG_WARN = 2,
	LOG_INFO = 3,
	LOG_TRACE = 5
}; /* NCCL's numbers */

#define LOG_LIMIT_INTERVAL_NS 1000000000ull

/* The logger callback of ncclNet init: level, subsystem bits, file, line, format. */
typedef void (*log_sink_fn)(int level, unsigned long flags, const char *file, int line,
			    const char *fmt, ...);

/* log_set_sink - route lines to NCCL's logger; NULL returns to stderr. */
void log_set_sink(log_sink_fn sink);

void log_line(enum log_level level, const char *func, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#define log_warn(...)  log_line(LOG_WARN, __func__, __LINE__, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __func__, __LINE__, __VA_ARGS__)
#define log_trace(...) log_line(LOG_TRACE, __func__, __LINE__, __VA_ARGS__)

/*
 * At most one line per LOG_LIMIT_INTERVAL_NS and struct log_limit; the next line that passes says
 * how many were dropped. For lines that a flapping link or a hostile peer could repeat.
 */
struct log_limit {
	uint64_t next_ns;
	uint32_t dropped;
};
void log_limited(struct log_limit *limit, enum log_level level, const char *func, int line,
		 const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define log_warn_limited(...)                                                                      \
	do {                                                                                       \
		static struct log_limit limit_;                                                    \
		log_limited(&limit_, LOG_WARN, __func__, __LINE__, __VA_ARGS__);                   \
	} while (0)

#endif
