/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * net_world.h - what a test of the control plane needs around it: configuration, a handler
 * that records, another process, and raw TCP ends that can say anything.
 *
 * Included once per program: it defines what config.c defines in the plugin. Everything stays on
 * the loopback interface.
 */
#ifndef RAILYARD_NET_WORLD_H
#define RAILYARD_NET_WORLD_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "control_internal.h"
#include "log_kept.h"

struct config config = {
	.socket_ifname = "lo",
	.socket_family = "AF_INET",
	.connect_timeout_ms = 10000,
	.outage_timeout_ms = 10000,
};

/* ---- the handler ---- */

struct recorded {
	unsigned messages, downs, byes, freed;
	uint64_t last_target, bytes, out_of_order, next_seq;
	struct peer *peer; /* of the last message; borrowed */
	char why[512];
	bool echo;         /* send each message back */
};
static struct recorded rec;

static inline void rec_message(struct peer *peer, uint16_t type, uint64_t target,
			       const uint8_t *body, size_t bytes)
{
	uint64_t seq;
	bool echo;

	pthread_mutex_lock(&world_lock);
	if (type == WIRE_BYE) {
		rec.byes++;
		pthread_mutex_unlock(&world_lock);
		return;
	}
	rec.messages++;
	rec.bytes += bytes;
	rec.last_target = target;
	rec.peer = peer;
	if (bytes >= sizeof(seq)) {
		memcpy(&seq, body, sizeof(seq));
		rec.out_of_order += seq != rec.next_seq++;
	}
	echo = rec.echo;
	pthread_mutex_unlock(&world_lock);
	if (echo) {
		peer_send(peer, type, target + 1, body, bytes);
	}
}

static inline void rec_down(struct peer *peer, const char *why)
{
	(void)peer;
	pthread_mutex_lock(&world_lock);
	rec.downs++;
	snprintf(rec.why, sizeof(rec.why), "%s", why);
	pthread_mutex_unlock(&world_lock);
}

static inline void rec_free(void *data)
{
	(void)data;
	pthread_mutex_lock(&world_lock);
	rec.freed++;
	pthread_mutex_unlock(&world_lock);
}

static const struct control_handler recorder = {
	.on_message = rec_message,
	.on_down = rec_down,
	.on_free = rec_free,
};

static inline struct recorded rec_now(void)
{
	struct recorded copy;

	pthread_mutex_lock(&world_lock);
	copy = rec;
	pthread_mutex_unlock(&world_lock);
	return copy;
}

static inline int send_seq(struct peer *peer, uint64_t seq, size_t bytes)
{
	static const uint8_t zero[WIRE_BODY_MAX];
	uint8_t body[WIRE_BODY_MAX];

	memcpy(body, zero, bytes);
	memcpy(body, &seq, sizeof(seq));
	return peer_send(peer, WIRE_KEYS, 5, body, bytes);
}

/* Starts the control plane and a listen: 0, or what either said. */
static inline int world_listen(struct wire_handle *h)
{
	int rc = control_start(&recorder);

	memset(h, 0, sizeof(*h));
	return rc ? rc : control_listen(h);
}

/* ---- another process ---- */

struct other {
	pid_t pid;
	int fd; /* a stream to it */
};

static inline struct other other_start(int (*role)(int fd))
{
	struct other o;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		abort();
	}
	o.pid = fork();
	if (o.pid == 0) {
		close(pair[0]);
		_exit(role(pair[1]));
	}
	close(pair[1]);
	o.fd = pair[0];
	return o;
}

/* Its exit status, or -1. */
static inline int other_join(struct other *o)
{
	int status;

	close(o->fd);
	if (waitpid(o->pid, &status, 0) != o->pid || !WIFEXITED(status)) {
		return -1;
	}
	return WEXITSTATUS(status);
}

static inline bool pipe_put(int fd, const void *from, size_t bytes)
{
	return write(fd, from, bytes) == (ssize_t)bytes;
}

/* false = the other end is gone */
static inline bool pipe_take(int fd, void *to, size_t bytes)
{
	return recv(fd, to, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* ---- what it does: roles for other_start ---- */

/* Listens and says where. */
static inline bool role_listen(int fd)
{
	struct wire_handle h;

	return world_listen(&h) == 0 && pipe_put(fd, &h, sizeof(h));
}

/* Goes on until the stream to it closes, or it is killed. */
static inline int role_stay(int fd)
{
	char end;

	pipe_take(fd, &end, 1);
	control_stop();
	return 0;
}

/* Listens, says where, and echoes. */
static inline int role_echo(int fd)
{
	rec.echo = true;
	return role_listen(fd) ? role_stay(fd) : 2;
}

/* ---- raw TCP ---- */

static inline int raw_listen(struct wire_addr *addr)
{
	struct sockaddr_in in4 = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(in4);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&in4, bytes) || listen(fd, 16) ||
	    getsockname(fd, (struct sockaddr *)&in4, &bytes)) {
		abort();
	}
	addr_from_sockaddr((struct sockaddr *)&in4, addr);
	return fd;
}

static inline int raw_connect(const struct wire_addr *addr)
{
	struct sockaddr_storage at;
	socklen_t bytes = addr_to_sockaddr(addr, &at);
	int fd = socket(at.ss_family, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&at, bytes)) {
		abort();
	}
	return fd;
}

static inline void raw_send(int fd, uint16_t type, const void *body, size_t bytes)
{
	struct wire_frame f = {.bytes = (uint32_t)bytes, .type = type};
	uint8_t head[WIRE_FRAME_BYTES];

	wire_frame_encode(&f, head);
	(void)!send(fd, head, sizeof(head), MSG_NOSIGNAL);
	if (bytes > 0) {
		(void)!send(fd, body, bytes, MSG_NOSIGNAL);
	}
}

/* Is there something to read (the end counts) within so many milliseconds? */
static inline bool raw_is_readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, ms) == 1;
}

/* Type of the next frame; 0 = the connection has ended, -1 = nothing within 15 s. */
static inline int raw_receive_any(int fd, uint8_t *body, size_t *bytes)
{
	uint8_t head[WIRE_FRAME_BYTES];
	struct wire_frame f;

	if (!raw_is_readable(fd, 15000)) {
		return -1;
	}
	if (recv(fd, head, sizeof(head), MSG_WAITALL) != sizeof(head) ||
	    wire_frame_decode(head, &f) ||
	    recv(fd, body, f.bytes, MSG_WAITALL) != (ssize_t)f.bytes) {
		return 0;
	}
	*bytes = f.bytes;
	return f.type;
}

/* The same, but for what keeps a session going. */
static inline int raw_receive(int fd, uint8_t *body, size_t *bytes)
{
	int type;

	do {
		type = raw_receive_any(fd, body, bytes);
	} while (type == WIRE_ACK || type == WIRE_ADDRS);
	return type;
}

static inline void raw_ack(int fd, uint64_t received, bool ask)
{
	struct wire_ack ack = {.received = received, .ask = ask};
	uint8_t body[64];

	raw_send(fd, WIRE_ACK, body, wire_ack_encode(&ack, body, sizeof(body)));
}

static inline void raw_hello_of(int fd, const struct wire_hello *hello)
{
	uint8_t body[1024];

	raw_send(fd, WIRE_HELLO, body, wire_hello_encode(hello, body, sizeof(body)));
}

static inline struct wire_hello raw_hello_make(uint64_t instance, const uint8_t *secret)
{
	struct wire_hello hello = {.instance = instance,
				   .version_min = 1,
				   .version_max = 1,
				   .host = "raw",
				   .pid = 1,
				   .mine = 4711};

	memcpy(hello.secret, secret, sizeof(hello.secret));
	return hello;
}

static inline void raw_hello(int fd, uint64_t instance, const uint8_t *secret, uint16_t version)
{
	struct wire_hello hello = raw_hello_make(instance, secret);

	hello.version_min = hello.version_max = version;
	raw_hello_of(fd, &hello);
}

/* Takes HELLO: the session's id of who dialed; 0 = something else came. */
static inline uint64_t raw_take_hello(int fd)
{
	uint8_t body[WIRE_BODY_MAX];
	struct wire_hello hello;
	size_t bytes;

	if (raw_receive_any(fd, body, &bytes) != WIRE_HELLO ||
	    wire_hello_decode(body, bytes, &hello)) {
		return 0;
	}
	return hello.mine;
}

static inline void raw_welcome_of(int fd, const struct wire_welcome *welcome)
{
	uint8_t body[1024];

	raw_send(fd, WIRE_WELCOME, body, wire_welcome_encode(welcome, body, sizeof(body)));
}

/* `yours` is what HELLO said. */
static inline void raw_welcome(int fd, uint64_t instance, uint64_t yours)
{
	struct wire_welcome welcome = {.instance = instance,
				       .version = 1,
				       .host = "raw",
				       .pid = 1,
				       .mine = 4711,
				       .yours = yours};

	raw_welcome_of(fd, &welcome);
}

#endif
