/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_state.c - the state page's file, its writer, and the reader of `railyard dump` over sound,
 * torn, foreign and damaged pages.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../tools/railyard/dump_page.h"
#include "log_capture.h"
#include "state.h"

static char dir[64], path[128];

static void dir_make(void)
{
	snprintf(dir, sizeof(dir), "/tmp/railyard-state-XXXXXX");
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/railyard.%d", dir, (int)getpid());
	capture_start();
}

static void dir_remove(void)
{
	state_stop();
	(void)unlink(path);
	(void)rmdir(path);
	cr_assert_eq(rmdir(dir), 0, "something else was left in %s", dir);
}

TestSuite(state, .init = dir_make, .fini = dir_remove);

static struct page *must_read(void)
{
	struct page *p = NULL;
	char why[512] = "";

	cr_assert_eq(page_read(path, &p, why, sizeof(why)), 0, "%s", why);
	return p;
}

static void refused(const char *says)
{
	struct page *p = NULL;
	char why[512] = "";

	cr_assert_neq(page_read(path, &p, why, sizeof(why)), 0, "taken, but: %s", says);
	cr_assert(strstr(why, says), "'%s' lacks '%s'", why, says);
	cr_assert_not(strchr(why, '\n'));
}

static void comm_show(struct state_mark *m, uint64_t id, uint32_t lanes)
{
	struct railstate_comm c = {.id = id, .kind = RAILSTATE_SEND, .peer = "there"};

	cr_assert(state_take(m, lanes));
	state_write(&state_page->comm[m->comm], &c, sizeof(c));
	for (uint32_t i = 0; i < lanes; i++) {
		struct railstate_lane lane = {.comm = id, .number = (uint8_t)i};

		state_write(&state_page->lane[m->lane + i], &lane, sizeof(lane));
	}
}

/* ---- the file ---- */

Test(state, a_page_is_there_until_it_is_stopped)
{
	struct page *p;
	struct stat st;

	state_start(dir, 77, "on");
	cr_assert(state_page);
	cr_assert_eq(capture.count, 0);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0600);
	cr_assert_eq((size_t)st.st_size, sizeof(struct railstate));
	cr_assert_geq((size_t)st.st_blocks * 512, sizeof(struct railstate), "memory is promised");
	p = must_read();
	cr_assert_eq(p->s.head.pid, (uint32_t)getpid());
	cr_assert_eq(p->s.head.instance, 77);
	cr_assert_str_eq(p->s.head.mode, "on");
	cr_assert_str_eq(p->s.head.plugin, RAILYARD_VERSION);
	cr_assert_gt(p->s.head.start_ns, 0);
	cr_assert_eq(p->comm_count + p->lane_count + p->port_count + p->damaged, 0);
	free(p);
	state_stop();
	cr_assert_null(state_page);
	cr_assert_neq(access(path, F_OK), 0);
	state_stop();
}

Test(state, what_a_dead_process_left_is_replaced)
{
	int fd = open(path, O_WRONLY | O_CREAT, 0644);
	struct stat st;

	cr_assert_eq(write(fd, "old", 3), 3);
	close(fd);
	state_start(dir, 1, "on");
	cr_assert(state_page);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0600);
	free(must_read());
}

/* Starts a child; returns once it said that it is ready, which is when it goes to sleep. */
static pid_t child_start(void (*fn)(void))
{
	int ready[2];
	pid_t child;
	char byte;

	cr_assert_eq(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		fn();
		if (write(ready[1], "x", 1) == 1) {
			pause();
		}
		_exit(1);
	}
	close(ready[1]);
	cr_assert_eq(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return child;
}

static void child_end(pid_t child)
{
	cr_assert_eq(kill(child, SIGKILL), 0);
	cr_assert_eq(waitpid(child, NULL, 0), child);
}

static void lock_path(void)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || fcntl(fd, F_SETLK, &whole) != 0) {
		_exit(1);
	}
}

static void page_of_parent(void)
{
	struct state_mark m = {0};

	snprintf(path, sizeof(path), "%s/railyard.%d", dir, (int)getpid());
	state_start(dir, 5, "on");
	if (!state_page) {
		_exit(1);
	}
	comm_show(&m, 9, 2);
}

Test(state, a_page_in_use_is_left_alone)
{
	pid_t other = child_start(lock_path);

	state_start(dir, 1, "on");
	cr_assert_null(state_page);
	cr_assert_eq(capture.count, 1);
	cr_assert(capture_has("no state page"));
	cr_assert(capture_has("another process"));
	cr_assert_eq(access(path, F_OK), 0);
	child_end(other);
}

Test(state, a_page_outlives_its_process_and_says_so)
{
	pid_t child = child_start(page_of_parent);
	struct page *p;

	snprintf(path, sizeof(path), "%s/railyard.%d", dir, (int)child);
	p = must_read();
	cr_assert(p->alive);
	free(p);
	child_end(child);
	p = must_read();
	cr_assert_not(p->alive);
	cr_assert_eq(p->comm_count, 1);
	cr_assert_eq(p->s.comm[0].id, 9);
	cr_assert_eq(p->lane_count, 2);
	free(p);
}

Test(state, nothing_is_followed_and_nothing_is_needed)
{
	char target[192];
	struct stat st;

	snprintf(target, sizeof(target), "%s/target", dir);
	close(open(target, O_WRONLY | O_CREAT, 0600));
	cr_assert_eq(symlink(target, path), 0);
	state_start(dir, 1, "on");
	cr_assert_null(state_page);
	cr_assert_eq(stat(target, &st), 0);
	cr_assert_eq(st.st_size, 0);
	cr_assert_eq(unlink(target), 0);
	state_start("/nonexistent", 1, "on");
	cr_assert_null(state_page);
	cr_assert_eq(capture.count, 2);
	cr_assert_eq(capture_has("no state page"), 2);
	cr_assert_eq(capture_warnings(), 0);
}

/* ---- room ---- */

Test(state, what_has_no_room_is_counted)
{
	static struct state_mark m[RAILSTATE_COMMS + 2];

	state_start(dir, 1, "on");
	for (uint32_t i = 0; i < RAILSTATE_COMMS; i++) {
		comm_show(&m[i], i + 1, 2);
	}
	for (int i = 0; i < 3; i++) { /* asked again, counted once */
		cr_assert_not(state_take(&m[RAILSTATE_COMMS], 2));
		cr_assert_not(state_take(&m[RAILSTATE_COMMS + 1], 2));
	}
	cr_assert_eq(state_page->head.comms_shown, RAILSTATE_COMMS);
	cr_assert_eq(state_page->head.comms_hidden, 2);
	state_give(&m[RAILSTATE_COMMS + 1]);
	cr_assert_eq(state_page->head.comms_hidden, 1);
	state_give(&m[100]);
	cr_assert_eq(state_page->comm[100].id, 0);
	cr_assert_eq(state_page->lane[200].comm, 0);
	comm_show(&m[RAILSTATE_COMMS], 1000, 2);
	cr_assert_eq(m[RAILSTATE_COMMS].comm, 100);
	cr_assert_eq(m[RAILSTATE_COMMS].lane, 200);
	cr_assert_eq(state_page->head.comms_shown, RAILSTATE_COMMS);
	cr_assert_eq(state_page->head.comms_hidden, 0);
}

Test(state, lanes_are_given_in_runs)
{
	static struct state_mark m[RAILSTATE_LANES / 64 + 1];
	const uint32_t full = RAILSTATE_LANES / 64;

	state_start(dir, 1, "on");
	for (uint32_t i = 0; i < full; i++) {
		comm_show(&m[i], i + 1, 64);
	}
	cr_assert_not(state_take(&m[full], 1));
	state_give(&m[3]);
	cr_assert_not(state_take(&m[full], 65));
	comm_show(&m[full], 99, 64);
	cr_assert_eq(m[full].lane, 3 * 64);
}

/* ---- records ---- */

Test(state, a_half_written_record_is_left_out)
{
	struct state_mark m[2] = {0};
	struct page *p;

	state_start(dir, 1, "on");
	comm_show(&m[0], 1, 2);
	comm_show(&m[1], 2, 2);
	state_page->comm[m[0].comm].seq |= 1; /* it died here */
	state_page->lane[m[1].lane].seq |= 1;
	p = must_read();
	cr_assert_eq(p->damaged, 2);
	cr_assert_eq(p->comm_count, 1);
	cr_assert_eq(p->s.comm[0].id, 2);
	cr_assert_eq(p->lane_count, 3);
	cr_assert_null(page_comm(p, &(struct railstate_lane){.comm = 1}));
	free(p);
	/* The next write heals it. */
	state_write(&state_page->comm[m[0].comm], &(struct railstate_comm){.id = 1, .kind = 1},
		    sizeof(struct railstate_comm));
	p = must_read();
	cr_assert_eq(p->damaged, 1);
	cr_assert_eq(p->comm_count, 2);
	free(p);
}

enum { WRITES = 200000 };

static void *write_on(void *record)
{
	struct railstate_lane lane;

	for (int i = 1; i <= WRITES; i++) {
		memset(&lane, i & 0xff, sizeof(lane));
		state_write(record, &lane, sizeof(lane));
	}
	return NULL;
}

/* Each record as written has one byte all over but in its sequence count. */
Test(state, a_reader_never_takes_a_torn_record)
{
	static struct railstate_lane record, got;
	const uint8_t *byte = (const uint8_t *)&got;
	unsigned taken = 0;
	pthread_t writer;

	cr_assert_eq(pthread_create(&writer, NULL, write_on, &record), 0);
	while (__atomic_load_n(&record.seq, __ATOMIC_RELAXED) < 2 * WRITES) {
		if (!railstate_copy(&got, &record, sizeof(got))) {
			continue;
		}
		taken++;
		for (size_t i = sizeof(got.seq); i < sizeof(got); i++) {
			cr_assert_eq(byte[i], byte[4], "torn at %zu", i);
		}
	}
	cr_assert_eq(pthread_join(writer, NULL), 0);
	cr_assert(railstate_copy(&got, &record, sizeof(got)));
	cr_assert_eq(byte[4], WRITES & 0xff);
	printf("took %u records of %d\n", taken, WRITES);
}

Test(state, what_waits_longest_and_what_is_not_in_use_comes_first)
{
	static const struct railstate_comm comm[] = {
		{.id = 1, .kind = 1, .oldest = 4, .next = 4},
		{.id = 2, .kind = 2, .oldest = 4, .next = 5, .open_ns = 900},
		{.id = 3, .kind = 1, .oldest = 4, .next = 5, .open_ns = 1000, .wanted_ns = 50},
		{.id = 4, .kind = 1, .error = -ECONNRESET},
	};
	struct railstate_lane down = {.comm = 3, .number = 1, .state = RAILSTATE_DOWN};
	struct state_mark m[4] = {0};
	struct page *p;

	state_start(dir, 1, "on");
	for (int i = 0; i < 4; i++) {
		comm_show(&m[i], comm[i].id, 2);
		state_write(&state_page->comm[m[i].comm], &comm[i], sizeof(comm[i]));
	}
	state_write(&state_page->lane[m[2].lane + 1], &down, sizeof(down));
	p = must_read();
	cr_assert_eq(p->comm_count, 4);
	cr_assert_eq(p->s.comm[0].id, 4);
	cr_assert_eq(p->s.comm[1].id, 3);
	cr_assert_eq(p->s.comm[2].id, 2);
	cr_assert_eq(p->s.comm[3].id, 1);
	cr_assert_eq(p->lane_count, 8);
	cr_assert_eq(p->s.lane[0].comm, 3);
	cr_assert_eq(p->s.lane[0].number, 1);
	cr_assert_eq(page_comm(p, &p->s.lane[0]), &p->s.comm[1]);
	free(p);
}

/* ---- files that are no page of ours ---- */

static void file_write(const void *data, size_t bytes)
{
	FILE *f = fopen(path, "w");

	cr_assert(f);
	cr_assert_eq(fwrite(data, 1, bytes, f), bytes);
	fclose(f);
}

/* A sound page, as a file without a writer. */
static struct railstate *sound_page(void)
{
	struct railstate *s = malloc(sizeof(*s));
	struct state_mark m = {0};

	state_start(dir, 1, "on");
	comm_show(&m, 1, 2);
	memcpy(s, state_page, sizeof(*s));
	state_stop();
	return s;
}

Test(state, what_is_no_page_is_refused_in_words)
{
	struct railstate *s = sound_page();
	struct railstate bad_head = {0};

	refused("No such file");
	file_write("", 0);
	refused("no state page of Railyard");
	file_write("#!/bin/sh\nexit 0\n", 17);
	refused("no state page of Railyard");
	file_write(&bad_head, sizeof(bad_head)); /* as while it is being made */
	refused("no state page of Railyard");
	for (size_t bytes = sizeof(s->head); bytes < sizeof(*s); bytes += 10007) {
		file_write(s, bytes);
		refused("cut short");
	}
	s->head.version++;
	file_write(s, sizeof(*s));
	refused("another version");
	file_write(s, 4096);
	refused("another version");
	s->head.version--;
	s->head.lane_bytes += 8;
	file_write(s, sizeof(*s));
	refused("sizes are not right");
	s->head.lane_bytes -= 8;
	file_write(s, sizeof(*s));
	free(must_read());
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(mkdir(path, 0700), 0);
	refused("not a file");
	cr_assert_eq(rmdir(path), 0);
	cr_assert_eq(mkfifo(path, 0600), 0);
	refused("not a file"); /* and is not waited for */
	free(s);
}

static void text_check(const char *text, size_t bytes)
{
	const char *end = memchr(text, '\0', bytes);

	cr_assert(end, "no end");
	for (; text < end; text++) {
		cr_assert(*text >= ' ' && *text <= '~');
	}
}

/* A head that is right, then noise: what is taken can be printed. */
Test(state, noise_is_left_out_or_harmless)
{
	struct railstate *s = sound_page();
	uint8_t *byte = (uint8_t *)s;
	uint64_t x = 1;

	for (int round = 0; round < 8; round++) {
		struct page *p;

		for (size_t i = sizeof(s->head); i < sizeof(*s); i++) {
			x = x * 6364136223846793005ull + 1442695040888963407ull;
			byte[i] = (uint8_t)(x >> 56);
		}
		memset(s->head.host, 0x1b, sizeof(s->head.host));
		for (uint32_t i = 0; i < RAILSTATE_LANES; i++) {
			s->lane[i].seq &= ~1u;
			s->lane[i].state &= 15;
			s->lane[i].port &= 63;
			s->lane[i].peer_port &= 15;
		}
		file_write(s, sizeof(*s));
		p = must_read();
		text_check(p->s.head.host, sizeof(p->s.head.host));
		cr_assert_gt(p->damaged, 100);
		cr_assert_gt(p->lane_count, 100);
		for (uint32_t i = 0; i < p->lane_count; i++) {
			const struct railstate_lane *lane = &p->s.lane[i];

			cr_assert(lane->state < RAILSTATE_LANE_STATES);
			cr_assert(lane->port < RAILSTATE_PORTS && lane->peer_port < 8);
			text_check(lane->cause, sizeof(lane->cause));
			text_check(p->s.port[lane->port].name, 72);
		}
		free(p);
	}
	free(s);
}
