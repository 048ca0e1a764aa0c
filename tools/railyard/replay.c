/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * replay.c - `railyard replay`: makes the calls of a flight log again.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd.h"
#include "replay_run.h"

static const char replay_help[] =
	"usage: railyard replay FILE [--print]\n"
	"\n"
	"Makes the calls of a flight log (RAILYARD_FLIGHT=1: /dev/shm/" FLIGHT_PREFIX "PID.COMM)\n"
	"into the transfer core again, and compares what the core says with what it said.\n"
	"  --print  each call and input as text\n"
	"Status: 0 all the same, 1 not readable, 3 there is a difference.\n";

enum { BYTES_MAX = FLIGHT_HEAD_BYTES + 2 * (FLIGHT_KIB_MAX << 10) };

/* The whole file, as it is now; NULL, one line said. */
static void *file_read(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	uint8_t *data = NULL;
	struct stat st;
	ssize_t got = 0;

	*bytes = 0;
	if (fd < 0 || fstat(fd, &st) != 0) {
		fprintf(stderr, "railyard: replay: %s: %s\n", path, strerror(errno));
	} else if (!S_ISREG(st.st_mode) || st.st_size > BYTES_MAX) {
		fprintf(stderr, "railyard: replay: %s: not a flight log\n", path);
	} else {
		data = calloc(1, (size_t)st.st_size + 1);
	}
	while (data && *bytes < (size_t)st.st_size &&
	       (got = read(fd, data + *bytes, (size_t)st.st_size - *bytes)) > 0) {
		*bytes += (size_t)got;
	}
	if (fd >= 0) {
		close(fd);
	}
	return data;
}

static void report_print(const char *path, const struct replay_report *r)
{
	const struct flight_head *h = r->head;

	printf("%s: %s comm %" PRIu64 " of process %u on %.63s, with comm %" PRIu64 " of %.127s; "
	       "Railyard %.31s\n",
	       path, h->kind == FLIGHT_SEND ? "send" : "receive", h->comm, h->pid, h->host,
	       h->peer_comm, h->peer, h->plugin);
	if (h->error != 0) {
		printf("the comm has failed: %s\n", strerror(-h->error));
	}
	if (r->notes[0]) {
		printf("%s\n", r->notes);
	}
	if (r->open) {
		printf("the process ended inside the last call\n");
	}
	printf("%" PRIu64 " calls and %" PRIu64
	       " inputs of %.3f s in %u halves, %u of them whole: ",
	       r->calls, r->inputs,
	       (double)(r->to_ns > r->from_ns ? r->to_ns - r->from_ns : 0) / 1e9, r->halves,
	       r->whole);
	if (r->verdict == REPLAY_SAME) {
		printf("all as they were\n");
	} else {
		printf("DIFFERENT at %s\n", r->why);
	}
}

static int replay(const char *path, bool print)
{
	struct replay_report report;
	size_t bytes;
	void *data = file_read(path, &bytes);

	if (!data) {
		return 1;
	}
	replay_run(data, bytes, print ? stdout : NULL, stdout, &report);
	if (report.verdict == REPLAY_REFUSED) {
		fprintf(stderr, "railyard: replay: %s: %s\n", path, report.why);
	} else {
		report_print(path, &report);
	}
	free(data);
	return report.verdict == REPLAY_SAME ? 0 : report.verdict == REPLAY_REFUSED ? 1 : 3;
}

int cmd_replay(int argc, char **argv)
{
	static const struct option options[] = {
		{"print", no_argument, NULL, 'p'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	bool print = false;
	int c;

	while ((c = getopt_long(argc, argv, "ph", options, NULL)) != -1) {
		if (c != 'p') {
			fputs(replay_help, c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
		print = true;
	}
	if (argc - optind != 1) {
		fputs(replay_help, stderr);
		return 2;
	}
	return replay(argv[optind], print);
}
