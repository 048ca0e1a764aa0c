/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE
#include "bench_meet.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define FRAME_MAGIC UINT32_C(0x52594254)	/* "RYBT" */

enum frame_type {
	FRAME_HELLO = 1,
	FRAME_DATA = 2,
	FRAME_STOP = MEET_STOP,
	FRAME_BEGUN = MEET_BEGUN,
	FRAME_LAST = MEET_LAST,
	FRAME_ABORT = 6,
};

enum {
	FRAME_BYTES_MAX = 1 << 28,
	HELLO_WAIT_MS = 2000,		/* a stranger on the port holds rank 0 up no longer */
	RETRY_MS = 100,
};

/* All ranks run on like machines (checked by size_of_plan and this magic): host byte order. */
struct frame {
	uint32_t magic;
	uint16_t type;
	uint16_t rank;
	uint64_t bytes;
};

struct hello {
	uint32_t ranks;
};

/* ---- bytes ----------------------------------------------------------------------------------- */

static int send_all(int fd, const void *data, size_t bytes)
{
	const char *at = data;

	while (bytes) {
		ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n <= 0) {
			return n ? -errno : -ECONNRESET;
		}
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int recv_all(int fd, void *data, size_t bytes)
{
	char *at = data;

	while (bytes) {
		ssize_t n = recv(fd, at, bytes, 0);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n <= 0) {
			return n ? -errno : -ECONNRESET;
		}
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int send_frame(struct bench_meet *meet, int fd, enum frame_type type, const void *data,
		      size_t bytes)
{
	struct frame frame = {
		.magic = FRAME_MAGIC,
		.type = (uint16_t)type,
		.rank = (uint16_t)meet->rank,
		.bytes = bytes,
	};
	int rc = send_all(fd, &frame, sizeof(frame));

	return rc ? rc : send_all(fd, data, bytes);
}

/* A rank has failed or gone: said once. */
static int broken(struct bench_meet *meet, int from, const char *text)
{
	if (!meet->is_broken) {
		meet->is_broken = true;
		if (text) {
			bench_error("stopped because of %s", text);
		} else {
			bench_error("rank %d is gone", from);
		}
	}
	return -ECONNRESET;
}

/* Reads one frame of any type; *@data is malloc'ed (NULL for none). */
static int recv_frame(struct bench_meet *meet, int from, struct frame *frame, void **data)
{
	int rc = recv_all(meet->fd[from], frame, sizeof(*frame));

	*data = NULL;
	if (rc) {
		return broken(meet, from, NULL);
	}
	if (frame->magic != FRAME_MAGIC || frame->bytes > FRAME_BYTES_MAX) {
		bench_error("rank %d sent no frame of ours: use the same build everywhere", from);
		return -EPROTO;
	}
	if (frame->bytes) {
		*data = calloc(1, frame->bytes + 1);
		if (!*data) {
			return -ENOMEM;
		}
		rc = recv_all(meet->fd[from], *data, frame->bytes);
	}
	if (!rc && frame->type == FRAME_ABORT) {
		rc = broken(meet, from, *data ? *data : "?");
	} else if (rc) {
		rc = broken(meet, from, NULL);
	}
	if (rc) {
		free(*data);
		*data = NULL;
	}
	return rc;
}

/* Waits for the next DATA frame of @from. Control frames that arrive late are void by then. */
static int recv_data(struct bench_meet *meet, int from, void **data, size_t *bytes)
{
	struct frame frame;

	for (;;) {
		int rc = recv_frame(meet, from, &frame, data);

		if (rc) {
			return rc;
		}
		if (frame.type == FRAME_DATA) {
			break;
		}
		free(*data);
	}
	meet->is_quiet[from] = false;
	*bytes = frame.bytes;
	return 0;
}

static int recv_exactly(struct bench_meet *meet, int from, void *out, size_t bytes)
{
	void *data;
	size_t got;
	int rc = recv_data(meet, from, &data, &got);

	if (rc) {
		return rc;
	}
	if (got != bytes) {
		bench_error("rank %d sent %zu bytes, not %zu: use the same build everywhere", from,
			    got, bytes);
		rc = -EPROTO;
	} else if (bytes) {
		memcpy(out, data, bytes);
	}
	free(data);
	return rc;
}

/* ---- joining --------------------------------------------------------------------------------- */

static int resolve(const char *address, struct addrinfo **list)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	char host[256];
	const char *colon = strrchr(address, ':');
	int rc;

	if (!colon || colon == address || (size_t)(colon - address) >= sizeof(host)) {
		bench_error("--meet %s: give HOST:PORT", address);
		return -EINVAL;
	}
	snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		memmove(host, host + 1, strlen(host));
		host[strlen(host) - 1] = '\0';
	}
	rc = getaddrinfo(host, colon + 1, &hints, list);
	if (rc) {
		bench_error("--meet %s: %s", address, gai_strerror(rc));
		return -EINVAL;
	}
	return 0;
}

int meet_listen(const char *address)
{
	struct addrinfo *list;
	int one = 1, fd, rc = resolve(address, &list);

	if (rc) {
		return rc;
	}
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	}
	if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) || listen(fd, BENCH_RANKS_MAX)) {
		rc = -errno;
		bench_error("cannot listen at %s: %s", address, strerror(-rc));
		if (fd >= 0) {
			close(fd);
		}
	}
	freeaddrinfo(list);
	return rc ? rc : fd;
}

/* A dead host is noticed within half a minute. */
static void tune(int fd)
{
	int one = 1, idle_s = 5, interval_s = 5, count = 4;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static void limit_recv(int fd, int ms)
{
	struct timeval limit = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

/* Takes a newcomer if it greets as a rank of this run; else closes it. Returns whether it did. */
static bool admit(struct bench_meet *meet, int fd)
{
	struct frame frame;
	struct hello hello;
	bool is_ours = false;

	limit_recv(fd, HELLO_WAIT_MS);
	if (recv_all(fd, &frame, sizeof(frame)) || frame.magic != FRAME_MAGIC ||
	    frame.type != FRAME_HELLO || frame.bytes != sizeof(hello) ||
	    recv_all(fd, &hello, sizeof(hello))) {
		bench_error("a stranger called at the meeting address: ignored");
	} else if (hello.ranks != (uint32_t)meet->ranks) {
		bench_error("rank %u wants %u ranks, this run has %d: ignored", frame.rank,
			    hello.ranks, meet->ranks);
	} else if (frame.rank == 0 || frame.rank >= meet->ranks || meet->fd[frame.rank] >= 0) {
		bench_error("a second rank %u called: ignored, give each rank its own --rank",
			    frame.rank);
	} else {
		is_ours = true;
	}
	if (!is_ours) {
		close(fd);
		return false;
	}
	limit_recv(fd, 0);
	tune(fd);
	meet->fd[frame.rank] = fd;
	return true;
}

static void say_missing(const struct bench_meet *meet, unsigned timeout_s)
{
	for (int rank = 1; rank < meet->ranks; rank++) {
		if (meet->fd[rank] < 0) {
			bench_error("rank %d did not come within %u s: start it with --rank %d "
				    "--ranks %d and the same --meet",
				    rank, timeout_s, rank, meet->ranks);
			return;
		}
	}
}

static int wait_for_all(struct bench_meet *meet, unsigned timeout_s)
{
	uint64_t deadline_ns = bench_now_ns() + timeout_s * UINT64_C(1000000000);
	int missing = meet->ranks - 1;

	while (missing) {
		struct pollfd ready = {.fd = meet->listen_fd, .events = POLLIN};
		uint64_t now_ns = bench_now_ns();
		int fd;

		if (now_ns >= deadline_ns) {
			say_missing(meet, timeout_s);
			return -ETIMEDOUT;
		}
		if (poll(&ready, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) <= 0) {
			continue;
		}
		fd = accept4(meet->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0 && admit(meet, fd)) {
			missing--;
		}
	}
	return 0;
}

static int connect_once(const struct addrinfo *list)
{
	int rc = -EHOSTUNREACH;

	for (const struct addrinfo *at = list; at; at = at->ai_next) {
		int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0) {
			rc = -errno;
			continue;
		}
		if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
			return fd;
		}
		rc = -errno;
		close(fd);
	}
	return rc;
}

static int call_root(struct bench_meet *meet, const char *address, unsigned timeout_s)
{
	uint64_t deadline_ns = bench_now_ns() + timeout_s * UINT64_C(1000000000);
	struct hello hello = {.ranks = (uint32_t)meet->ranks};
	struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
	struct addrinfo *list;
	int fd, rc = resolve(address, &list);

	if (rc) {
		return rc;
	}
	while ((fd = connect_once(list)) < 0 && bench_now_ns() < deadline_ns) {
		nanosleep(&pause, NULL);
	}
	freeaddrinfo(list);
	if (fd < 0) {
		bench_error("no rank 0 at %s within %u s: %s", address, timeout_s, strerror(-fd));
		return fd;
	}
	tune(fd);
	meet->fd[0] = fd;
	return send_frame(meet, fd, FRAME_HELLO, &hello, sizeof(hello));
}

int meet_open(struct bench_meet *meet, int rank, int ranks, const char *address, int listen_fd,
	      unsigned timeout_s)
{
	int rc = 0;

	*meet = (struct bench_meet){.rank = rank, .ranks = ranks, .listen_fd = listen_fd};
	meet->fd = calloc((size_t)ranks, sizeof(meet->fd[0]));
	meet->is_quiet = calloc((size_t)ranks, sizeof(meet->is_quiet[0]));
	if (!meet->fd || !meet->is_quiet) {
		meet_close(meet);
		return -ENOMEM;
	}
	for (int i = 0; i < ranks; i++) {
		meet->fd[i] = -1;
	}
	if (rank == 0) {
		if (listen_fd < 0 && ranks > 1) {
			meet->listen_fd = meet_listen(address);
			rc = meet->listen_fd < 0 ? meet->listen_fd : 0;
		}
		rc = rc ? rc : wait_for_all(meet, timeout_s);
	} else {
		rc = call_root(meet, address, timeout_s);
	}
	if (rc) {
		meet_close(meet);
	}
	return rc;
}

void meet_close(struct bench_meet *meet)
{
	for (int i = 0; meet->fd && i < meet->ranks; i++) {
		if (meet->fd[i] >= 0) {
			close(meet->fd[i]);
		}
	}
	if (meet->listen_fd >= 0) {
		close(meet->listen_fd);
	}
	meet->listen_fd = -1;
	free(meet->fd);
	free(meet->is_quiet);
	meet->fd = NULL;
	meet->is_quiet = NULL;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static int send_data(struct bench_meet *meet, int to, const void *data, size_t bytes)
{
	int rc = send_frame(meet, meet->fd[to], FRAME_DATA, data, bytes);

	return rc ? broken(meet, to, NULL) : 0;
}

int meet_broadcast(struct bench_meet *meet, void *data, size_t bytes)
{
	int rc = 0;

	if (meet->rank) {
		return recv_exactly(meet, 0, data, bytes);
	}
	for (int to = 1; to < meet->ranks && !rc; to++) {
		rc = send_data(meet, to, data, bytes);
	}
	return rc;
}

int meet_allgather(struct bench_meet *meet, const void *mine, size_t bytes, void *all)
{
	char *at = all;
	int rc = 0;

	if (meet->rank) {
		rc = send_data(meet, 0, mine, bytes);
	} else {
		if (bytes) {
			memcpy(at, mine, bytes);
		}
		for (int from = 1; from < meet->ranks && !rc; from++) {
			rc = recv_exactly(meet, from, at + (size_t)from * bytes, bytes);
		}
	}
	return rc ? rc : meet_broadcast(meet, all, (size_t)meet->ranks * bytes);
}

int meet_barrier(struct bench_meet *meet)
{
	char none = 0;

	return meet_allgather(meet, &none, 0, &none);
}

int meet_gather(struct bench_meet *meet, const void *mine, size_t bytes, void **blocks,
		size_t *lengths)
{
	int rc = 0;

	if (meet->rank) {
		return send_data(meet, 0, mine, bytes);
	}
	memset(blocks, 0, (size_t)meet->ranks * sizeof(blocks[0]));
	blocks[0] = malloc(bytes);
	if (!blocks[0]) {
		return -ENOMEM;
	}
	memcpy(blocks[0], mine, bytes);
	lengths[0] = bytes;
	for (int from = 1; from < meet->ranks && !rc; from++) {
		rc = recv_data(meet, from, &blocks[from], &lengths[from]);
	}
	return rc;
}

/* ---- during a run ---------------------------------------------------------------------------- */

/* Looks at the next frame of @from and takes it if it is control; a DATA frame stays. */
static int look(struct bench_meet *meet, int from, enum meet_control *kind, uint64_t *value)
{
	struct frame frame;
	void *data;
	ssize_t n = recv(meet->fd[from], &frame, sizeof(frame), MSG_PEEK | MSG_DONTWAIT);
	int rc;

	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		return 0;
	}
	if (n <= 0) {
		return broken(meet, from, NULL);
	}
	if ((size_t)n < sizeof(frame)) {
		return 0;
	}
	if (frame.type == FRAME_DATA) {
		meet->is_quiet[from] = true;
		return 0;
	}
	rc = recv_frame(meet, from, &frame, &data);
	if (!rc && data && frame.bytes == sizeof(*value)) {
		memcpy(value, data, sizeof(*value));
		*kind = (enum meet_control)frame.type;
	}
	free(data);
	return rc;
}

int meet_poll(struct bench_meet *meet, enum meet_control *kind, uint64_t *value, int *from)
{
	int last = meet->rank ? 0 : meet->ranks - 1;
	int rc = 0;

	*kind = MEET_NONE;
	for (int peer = meet->rank ? 0 : 1; peer <= last && !rc && *kind == MEET_NONE; peer++) {
		if (!meet->is_quiet[peer]) {
			rc = look(meet, peer, kind, value);
			*from = peer;
		}
	}
	return rc;
}

int meet_send_control(struct bench_meet *meet, enum meet_control kind, uint64_t value)
{
	int last = meet->rank ? 0 : meet->ranks - 1;
	int rc = 0;

	for (int to = meet->rank ? 0 : 1; to <= last && !rc; to++) {
		rc = send_frame(meet, meet->fd[to], (enum frame_type)kind, &value, sizeof(value));
		if (rc) {
			rc = broken(meet, to, NULL);
		}
	}
	return rc;
}

void meet_abort(struct bench_meet *meet, const char *text)
{
	char line[512];
	int last = meet->rank ? 0 : meet->ranks - 1;

	if (!meet->fd || (meet->rank && meet->is_broken)) {
		return;
	}
	snprintf(line, sizeof(line), "rank %d: %s", meet->rank, text);
	for (int to = meet->rank ? 0 : 1; to <= last; to++) {
		if (meet->fd[to] >= 0) {
			send_frame(meet, meet->fd[to], FRAME_ABORT, line, strlen(line));
		}
	}
}
