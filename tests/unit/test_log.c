/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_log.c - log.h: where a line goes, what it looks like, and that repeats are held back.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "log_capture.h"

#define PREFIX "NET/Railyard : "

Test(log, a_line_goes_to_the_sink_with_prefix_and_level)
{
	capture_start();
	log_warn("%s is %d", "x", 7);
	log_info("y");
	log_trace("z");
	cr_assert_eq(capture.count, 3);
	cr_assert_str_eq(capture.text[0], PREFIX "x is 7");
	cr_assert_str_eq(capture.text[1], PREFIX "y");
	cr_assert_eq(capture.level[0], LOG_WARN);
	cr_assert_eq(capture.level[1], LOG_INFO);
	cr_assert_eq(capture.level[2], LOG_TRACE);
}

Test(log, percent_signs_in_an_argument_are_text)
{
	capture_start();
	log_warn("%s", "50%s%n");
	cr_assert_str_eq(capture.text[0], PREFIX "50%s%n");
}

Test(log, an_overlong_line_is_cut)
{
	char big[5000];

	memset(big, 'a', sizeof(big));
	big[sizeof(big) - 1] = '\0';
	capture_start();
	log_warn("%s", big);
	cr_assert_eq(capture.count, 1);
	cr_assert_eq(strlen(capture.text[0]), 2047);
}

/* What a function writes to stderr. */
static ssize_t stderr_of(void (*fn)(void), char *out, size_t bytes)
{
	int saved = dup(STDERR_FILENO);
	int pipes[2];
	ssize_t n;

	cr_assert_eq(pipe(pipes), 0);
	fcntl(pipes[0], F_SETFL, O_NONBLOCK);
	dup2(pipes[1], STDERR_FILENO);
	fn();
	dup2(saved, STDERR_FILENO);
	n = read(pipes[0], out, bytes - 1);
	out[n > 0 ? n : 0] = '\0';
	close(pipes[0]);
	close(pipes[1]);
	close(saved);
	return n;
}

static void all_levels(void)
{
	log_info("quiet");
	log_trace("quiet");
	log_warn("loud");
}

Test(log, without_a_sink_only_warnings_reach_stderr)
{
	char text[4096], expected[64];

	log_set_sink(NULL);
	stderr_of(all_levels, text, sizeof(text));
	snprintf(expected, sizeof(expected), "[%d] " PREFIX "loud\n", (int)getpid());
	cr_assert_str_eq(text, expected);
}

Test(log, errno_stays)
{
	struct log_limit limit = {0};

	capture_start();
	errno = EXDEV;
	log_warn("a");
	log_limited(&limit, LOG_WARN, __func__, __LINE__, "b");
	log_limited(&limit, LOG_WARN, __func__, __LINE__, "b");
	cr_assert_eq(errno, EXDEV);
}

Test(log, repeats_within_the_interval_are_counted_not_printed)
{
	struct log_limit limit = {0};

	capture_start();
	for (int i = 0; i < 10; i++)
		log_limited(&limit, LOG_WARN, __func__, __LINE__, "flap %d", i);
	cr_assert_eq(capture.count, 1);
	cr_assert_str_eq(capture.text[0], PREFIX "flap 0");

	limit.next_ns = 0; /* the interval is over */
	log_limited(&limit, LOG_WARN, __func__, __LINE__, "flap again");
	cr_assert_eq(capture.count, 2);
	cr_assert_str_eq(capture.text[1], PREFIX "flap again (9 such lines left out before)");

	limit.next_ns = 0;
	log_limited(&limit, LOG_WARN, __func__, __LINE__, "flap");
	cr_assert_str_eq(capture.text[2], PREFIX "flap");
}

static void limited_line(void)
{
	log_warn_limited("same place");
}

Test(log, each_call_site_has_its_own_limit)
{
	capture_start();
	for (int i = 0; i < 5; i++)
		limited_line();
	log_warn_limited("other place");
	cr_assert_eq(capture_has("same place"), 1);
	cr_assert_eq(capture_has("other place"), 1);
}

static void *flapper(void *limit)
{
	for (int i = 0; i < 1000; i++)
		log_limited(limit, LOG_WARN, __func__, __LINE__, "flap");
	return NULL;
}

Test(log, threads_lose_no_count)
{
	struct log_limit limit = {0};
	pthread_t thread[4];

	capture_start();
	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, flapper, &limit), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	/* A slow machine may let a second interval begin; each line printed is one not dropped. */
	if (capture.count == 1)
		cr_assert_eq(limit.dropped, 3999);
	cr_assert_geq(capture.count, 1);
	cr_assert_leq(capture.count, 40);
}
