/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * thread_abuse.c - strangers at the control port while a session carries echoes and is cut.
 *
 * A plain program (Criterion aborts under TSan). Three processes: this one, whose port is attacked;
 * one that echoes; the attacker, which also runs the proxies that cut between the two, so that the
 * descriptors counted here are only our own.
 *
 *	thread_abuse [N]	N connections opened and closed at once, and N held open together
 *				(needs leave for so many descriptors: root); without N some, and
 *				none held
 */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <sys/resource.h>

#include "unit/net_proxy.h"

enum { STRANGERS = 300, LORIS = 100, FLOOD = 10000, NEWCOMERS = 20, LINES_PER_S = 8, CUTS = 20 };

static struct proxy to_other, to_us;
static unsigned flood, held; /* connections: opened and closed at once, held open together */

/* ---- the process that echoes ---- */

static int role_behind(int fd)
{
	const struct proxy *told = &to_other;

	return proxy_role_echo(fd, &told, 1);
}

/* ---- the attacker ---- */

static struct wire_handle victim;
static uint32_t attack_over, welcomed; /* atomic */

/* Reads until the other end closes; it must, and soon. */
static void until_closed(int fd)
{
	uint8_t body[4096];

	do {
		CHECK(raw_is_readable(fd, 15000));
	} while (recv(fd, body, sizeof(body), 0) > 0);
	close(fd);
}

static void *garbage(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < scaled(STRANGERS); i++) {
		uint8_t junk[600];
		int fd = raw_connect(&victim.addr[0]);

		for (size_t b = 0; b < sizeof(junk); b++) {
			junk[b] = (uint8_t)hash_u64(i * sizeof(junk) + b);
		}
		junk[3] = 0xff; /* a length that no frame has: else it might wait for the rest */
		(void)!send(fd, junk, sizeof(junk), MSG_NOSIGNAL);
		until_closed(fd);
	}
	return NULL;
}

static void *oversize(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < scaled(STRANGERS); i++) {
		uint8_t body[WIRE_BODY_MAX] = {0};
		int fd = raw_connect(&victim.addr[0]);

		raw_send(fd, i % 2 ? WIRE_HELLO : WIRE_CONNECT, body, sizeof(body) - i);
		until_closed(fd);
	}
	return NULL;
}

static void *truncated(void *arg)
{
	struct wire_hello hello = raw_hello_make(77, victim.secret);
	uint8_t body[WIRE_HELLO_MAX];
	size_t bytes = wire_hello_encode(&hello, body, sizeof(body));

	(void)arg;
	for (unsigned i = 0; i < scaled(STRANGERS); i++) {
		int fd = raw_connect(&victim.addr[0]);

		if (i % 2) { /* says so */
			raw_send(fd, WIRE_HELLO, body, i % bytes);
			until_closed(fd);
		} else { /* stops in the middle */
			struct wire_frame f = {.bytes = (uint32_t)bytes, .type = WIRE_HELLO};
			uint8_t head[WIRE_FRAME_BYTES];

			wire_frame_encode(&f, head);
			(void)!send(fd, head, sizeof(head), MSG_NOSIGNAL);
			(void)!send(fd, body, i % bytes, MSG_NOSIGNAL);
			close(fd);
		}
	}
	return NULL;
}

static void *wrong_secret(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < scaled(STRANGERS); i++) {
		struct wire_hello hello = raw_hello_make(1000 + i, victim.secret);
		int fd = raw_connect(&victim.addr[0]);

		hello.secret[i % WIRE_SECRET_BYTES] ^= 1;
		hello.yours = i % 3; /* a new session, or one that is not */
		raw_hello_of(fd, &hello);
		until_closed(fd);
	}
	return NULL;
}

/* Each says a byte now and then, and comes back when it is closed. */
static void *slow_loris(void *arg)
{
	int fd[LORIS];
	char hello[LORIS] = {0};

	(void)arg;
	for (unsigned i = 0; i < LORIS; i++) {
		fd[i] = raw_connect(&victim.addr[0]);
	}
	while (!proxy_word(&attack_over)) {
		for (unsigned i = 0; i < LORIS; i++) {
			if (raw_is_readable(fd[i], 0)) {
				close(fd[i]);
				fd[i] = raw_connect(&victim.addr[0]);
			}
			(void)!send(fd[i], &hello[i], 1, MSG_NOSIGNAL);
		}
		usleep(50000);
	}
	for (unsigned i = 0; i < LORIS; i++) {
		close(fd[i]);
	}
	return NULL;
}

static uint32_t cuts(void)
{
	return proxy_word(&to_other.cuts) + proxy_word(&to_us.cuts);
}

static void *open_and_close(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < flood; i++) {
		close(raw_connect(&victim.addr[0]));
	}
	while (cuts() < CUTS) { /* no rest before the session has seen it all */
		for (unsigned i = 0; i < 100; i++) {
			close(raw_connect(&victim.addr[0]));
		}
		usleep(10000);
	}
	return NULL;
}

/* All open at this end until the last is; the other end closes each of them by itself. */
static void *hold_many(void *arg)
{
	int *fd = calloc(held + 1, sizeof(*fd));

	(void)arg;
	CHECK(fd != NULL);
	for (unsigned i = 0; i < held; i++) {
		fd[i] = raw_connect(&victim.addr[0]);
	}
	for (unsigned i = 0; i < held; i++) {
		until_closed(fd[i]);
	}
	free(fd);
	return NULL;
}

/* Good ones get in, if not at once, then soon: they try again as a dial does. */
static void *newcomer(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < NEWCOMERS; i++) {
		uint64_t until = now_ns() + 15 * NS_PER_S;
		uint8_t body[WIRE_BODY_MAX];
		size_t bytes;
		int type, fd;

		for (;;) {
			fd = raw_connect(&victim.addr[0]);
			raw_hello(fd, 5000 + i, victim.secret, 1);
			type = raw_receive(fd, body, &bytes);
			if (type == WIRE_WELCOME || now_ns() > until) {
				break;
			}
			close(fd);
			usleep(20000);
		}
		CHECK(type == WIRE_WELCOME);
		__atomic_add_fetch(&welcomed, 1, __ATOMIC_RELAXED);
		raw_send(fd, WIRE_BYE, NULL, 0);
		until_closed(fd);
	}
	return NULL;
}

static int role_attack(int fd)
{
	static void *(*const attack[])(void *) = {garbage,	  oversize,	  truncated,
						  wrong_secret,	  open_and_close, hold_many,
						  newcomer};
	pthread_t thread[ARRAY_SIZE(attack)], loris;
	struct wire_addr behind;
	uint32_t count;
	char go;

	if (!pipe_take(fd, &behind, sizeof(behind)) || !pipe_take(fd, &victim, sizeof(victim))) {
		return 2;
	}
	proxy_start(&to_other, &behind);
	proxy_start(&to_us, &victim.addr[0]);
	if (!pipe_take(fd, &go, 1)) {
		return 3;
	}
	proxy_set(&to_other.cut_bytes, 20000);
	proxy_set(&to_us.cut_bytes, 20000);
	proxy_set(&to_other.stalls_new, 1);
	CHECK(pthread_create(&loris, NULL, slow_loris, NULL) == 0);
	for (unsigned i = 0; i < ARRAY_SIZE(attack); i++) {
		CHECK(pthread_create(&thread[i], NULL, attack[i], NULL) == 0);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(attack); i++) {
		pthread_join(thread[i], NULL);
	}
	count = cuts();
	proxy_set(&attack_over, 1);
	pthread_join(loris, NULL);
	proxy_set(&to_other.cut_bytes, 0);
	proxy_set(&to_us.cut_bytes, 0);
	CHECK(welcomed == NEWCOMERS);
	CHECK(pipe_put(fd, &count, sizeof(count)));
	pipe_take(fd, &go, 1);
	proxy_stop(&to_other);
	proxy_stop(&to_us);
	return 0;
}

/* ---- the attacked ---- */

static unsigned descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	CHECK(dir != NULL);
	while (readdir(dir)) {
		count++;
	}
	closedir(dir);
	return count;
}

/* AddressSanitizer keeps freed memory, up to this: so that what it keeps is no leak of ours. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
	return "quarantine_size_mb=8";
}

static unsigned resident_mib(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long size, resident;

	CHECK(file != NULL && fscanf(file, "%lu %lu", &size, &resident) == 2);
	fclose(file);
	return (unsigned)(resident * (unsigned long)sysconf(_SC_PAGESIZE) >> 20);
}

static uint64_t sent;

static void exchange(struct peer *peer, unsigned count)
{
	for (uint64_t until = sent + count; sent < until; sent++) {
		CHECK(send_seq(peer, sent, 8 + hash_u64(sent) % 500) == 0);
	}
	CHECK(EVENTUALLY(rec_now().messages >= sent));
	CHECK(rec_now().messages == sent);
	CHECK(rec_now().out_of_order == 0);
}

static void check_abuse(struct other *echo, struct other *attacker)
{
	unsigned open, open_max = 0, memory, memory_max = 0, rounds = 0;
	struct wire_handle h, mine;
	struct wire_addr real;
	struct peer *peer;
	uint64_t since;
	uint32_t count;

	CHECK(proxy_take_echo(echo, &h, &real));
	CHECK(world_listen(&mine) == 0);
	CHECK(pipe_put(attacker->fd, &real, sizeof(real)) &&
	      pipe_put(attacker->fd, &mine, sizeof(mine)));
	proxy_announce(&to_us, 0);
	CHECK(peer_get(&h, &peer) == 0);
	exchange(peer, 200);
	open = descriptors();
	memory = resident_mib();
	since = now_ns();
	CHECK(pipe_put(attacker->fd, "", 1));
	for (; !raw_is_readable(attacker->fd, 0); rounds++) {
		unsigned now_open = descriptors(), now_memory = resident_mib();

		exchange(peer, 5);
		open_max = now_open > open_max ? now_open : open_max;
		memory_max = now_memory > memory_max ? now_memory : memory_max;
	}
	CHECK(pipe_take(attacker->fd, &count, sizeof(count)));
	since = (now_ns() - since) / NS_PER_S + 2;
	printf("thread_abuse: %u echoes, %u cuts, descriptors %u, at most %u, memory %u MiB, at "
	       "most %u, %u lines in %u s\n",
	       5 * rounds, count, open, open_max, memory, memory_max, warnings(),
	       (unsigned)since);
	fflush(stdout);
	exchange(peer, 200);
	CHECK(peer_state(peer) == PEER_UP);
	CHECK(count >= CUTS);
	CHECK(open_max <= open + control_limits.unknown_max + 8);
	CHECK(memory_max <= memory + 64);
	CHECK(warnings() > 0 && warnings() <= since * LINES_PER_S);
	CHECK(EVENTUALLY(descriptors() <= open + 1)); /* a re-connection may be under way */
	peer_put(peer);
	control_stop();
}

static void options(int argc, char **argv)
{
	struct rlimit files;

	flood = scaled(FLOOD);
	if (argc < 2) {
		alarm(110);
		return;
	}
	alarm(1100);
	flood = held = (unsigned)strtoul(argv[1], NULL, 10);
	CHECK(argc == 2 && held > 0 && held <= 20000); /* there are 28,000 ports to come from */
	CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
	if (files.rlim_cur < held + 1024) {
		files.rlim_cur = held + 1024;
		files.rlim_max = files.rlim_max < files.rlim_cur ? files.rlim_cur : files.rlim_max;
		CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
	}
}

int main(int argc, char **argv)
{
	struct other echo, attacker;

	options(argc, argv);
	world_limits = true;
	proxy_make(&to_other, 11);
	proxy_make(&to_us, 12);
	echo = other_start(role_behind); /* before there are threads */
	attacker = other_start(role_attack);
	check_abuse(&echo, &attacker);
	CHECK(other_join(&attacker) == 0); /* it holds a copy of the stream to the other */
	CHECK(other_join(&echo) == 0);
	printf("thread_abuse: ok\n");
	return 0;
}
