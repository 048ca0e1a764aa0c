/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_flight.c - flight logs of real comms over devices in memory, replayed: without a
 * difference; with one that was put there; after kill -9; and damaged in every way.
 */
#include "rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"
#include "flight.h"
#include "flight_format.h"
#include "replay_run.h"

#include <railyard/state.h>

enum {
	PORTS = 4,
	RETRY_MS = 40, /* of the fake's queue pairs */
	BIG = TEST_SCALE < 100 ? 1 << 18 : 1 << 19
};

/* A file as it was. */
struct copy {
	uint64_t *data;
	size_t bytes;
};

static void path_of(char path[128], long pid, uint64_t comm)
{
	snprintf(path, 128, RAILSTATE_DIR "/" FLIGHT_PREFIX "%ld.%llu", pid,
		 (unsigned long long)comm);
}

static struct copy copy_file(long pid, uint64_t comm)
{
	struct copy c = {0};
	struct stat st;
	char path[128];
	int fd;

	path_of(path, pid, comm);
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	CHECK(fstat(fd, &st) == 0);
	c.bytes = (size_t)st.st_size;
	c.data = malloc(c.bytes);
	CHECK(read(fd, c.data, c.bytes) == (ssize_t)c.bytes);
	close(fd);
	return c;
}

static bool is_there(long pid, uint64_t comm)
{
	char path[128];

	path_of(path, pid, comm);
	return access(path, F_OK) == 0;
}

static void remove_file(long pid, uint64_t comm)
{
	char path[128];

	path_of(path, pid, comm);
	CHECK(unlink(path) == 0);
}

static struct replay_report replay(const struct copy *c, char **text)
{
	struct replay_report report;
	size_t bytes;
	FILE *out = text ? open_memstream(text, &bytes) : NULL;

	replay_run(c->data, c->bytes, out, out, &report);
	if (out)
		fclose(out);
	return report;
}

static struct replay_report must_be_same(const struct copy *c)
{
	struct replay_report r = replay(c, NULL);

	if (r.verdict != REPLAY_SAME || r.notes[0])
		rig_die(__FILE__, __LINE__, "not the same: %s %s", r.why, r.notes);
	CHECK(r.calls > 0);
	return r;
}

static const struct traffic mixed = {.groups = 200,
				     .members = RIG_GROUP_MAX,
				     .random_members = true,
				     .window = 4,
				     .bytes_max = BIG,
				     .rare = 12,
				     .seed = 1};

static void owner_keep(struct comm *c)
{
	while (__atomic_exchange_n(&c->owner, 1, __ATOMIC_ACQUIRE) != FLIGHT_OWNER_FREE)
		rig_pause_us(10);
}

static void owner_give(struct comm *c)
{
	__atomic_store_n(&c->owner, FLIGHT_OWNER_FREE, __ATOMIC_RELEASE);
}

static int lane_state(void *comm, uint32_t lane)
{
	struct comm *c = comm;
	int state;

	owner_keep(c);
	state = c->recovery.core.lane[lane].state;
	owner_give(c);
	return state;
}

/* The plugin thread drives it meanwhile. */
static void await_state(const struct pair *p, uint32_t lane, int state)
{
	for (int tries = 0;
	     lane_state(p->send, lane) != state || lane_state(p->recv, lane) != state; tries++) {
		if (tries >= RIG_PATIENCE_MS)
			rig_die(__FILE__, __LINE__, "lane %u does not come to state %d", lane,
				state);
		rig_pause_us(1000);
	}
}

/* Traffic, a port that is cut under it and comes back, traffic again. */
static void fail_and_come_back(struct pair *p)
{
	struct traffic endless = mixed;
	struct run *run;

	endless.groups = 0;
	traffic_run(p, &mixed);
	run = traffic_start(p, &endless);
	for (int i = 0; i < 500; i++)
		traffic_step(run);
	fake_port_lose(1, 1, FAKE_CUT);
	while (lane_state(p->send, 1) == RL_ACTIVE)
		traffic_step(run);
	fake_port_lose(1, 1, 0);
	traffic_drain(run);
	traffic_stop(run);
	await_state(p, 1, RL_ACTIVE);
	traffic_run(p, &mixed);
}

/* Copies of both logs; the comm's owner is kept away meanwhile. */
static struct copy copy_of(void *comm)
{
	struct comm *c = comm;
	struct copy copy;

	owner_keep(c);
	copy = copy_file(getpid(), c->id);
	owner_give(c);
	return copy;
}

static void record(const char *kib, struct copy *send, struct copy *recv)
{
	struct pair p;
	uint64_t send_id, recv_id;

	rig_env("RAILYARD_FLIGHT", "1");
	rig_env("RAILYARD_FLIGHT_KIB", kib);
	rig_env("RAILYARD_RETEST_MS", "100");
	rig_begin(&(struct fake_config){.device_count = PORTS});
	fake_retry_set(RETRY_MS);
	pair_open(&p, rig_device(PORTS), rig_device(PORTS));
	send_id = ((struct comm *)p.send)->id;
	recv_id = ((struct comm *)p.recv)->id;
	fail_and_come_back(&p);
	*send = copy_of(p.send);
	*recv = copy_of(p.recv);
	pair_close(&p);
	rig_end();
	CHECK(!is_there(getpid(), send_id) && !is_there(getpid(), recv_id));
}

static void says(const struct copy *c, const char *const *words)
{
	char *text = NULL;

	CHECK_INT(replay(c, &text).verdict, REPLAY_SAME);
	for (; *words; words++) {
		if (!strstr(text, *words))
			rig_die(__FILE__, __LINE__, "'%s' is not in the text", *words);
	}
	free(text);
}

static void replayed(const struct copy *send, const struct copy *recv)
{
	static const char *const sent[] = {"send_quick", "send_member", "send_next",
					   "send_complete", "SAY_FAILED lane 1",
					   "LETTER lane 1 generation 1 ASK(1)", " ANSWER(1)",
					   "SAY_OPEN lane 1", "lane 1: in use", NULL};
	static const char *const received[] = {"recv_post of", "recv_imm", "sizes at slot",
					       "recv_refilled", " ASK(1) of lane 1",
					       "recover_verified lane 1", "lane 1: in use", NULL};

	CHECK_INT(must_be_same(send).halves, 1);
	CHECK_INT(must_be_same(recv).halves, 1);
	says(send, sent);
	says(recv, received);
}

static void halves_turn(void)
{
	struct copy send, recv;
	struct replay_report r;

	record("256", &send, &recv);
	r = must_be_same(&send);
	CHECK(r.halves == 2 && r.whole == 1);
	must_be_same(&recv);
	free(send.data);
	free(recv.data);
}

/* ---- changed and damaged ---- */

static struct flight_half *half_of(const struct copy *c)
{
	return (struct flight_half *)(void *)((uint8_t *)c->data + FLIGHT_HEAD_BYTES);
}

static uint8_t *records_of(const struct copy *c)
{
	const struct flight_head *head = (const void *)c->data;

	return (uint8_t *)(half_of(c) + 1) + flight_image_bytes(head->kind, head->lanes);
}

/* Changes an argument of the first call of a kind with b >= min_b, as if it had been so. */
static void change(const struct copy *c, enum flight_fn fn, uint32_t min_b, uint32_t change_b,
		   uint16_t change_a)
{
	struct flight_half *half = half_of(c);
	uint64_t place = 0;

	while (place < half->used) {
		struct flight_record *r = (void *)(records_of(c) + place);

		if ((r->fn & ~FLIGHT_NOW_0) == fn && r->b >= min_b) {
			r->b ^= change_b;
			r->a ^= change_a;
			r->seal = flight_seal(r, r + 1, half->number, place, false);
			return;
		}
		place += flight_record_bytes(flight_payload_bytes(r));
	}
	rig_die(__FILE__, __LINE__, "no call %d in the log", fn);
}

static void must_differ(const struct copy *c, enum flight_fn fn, uint32_t min_b, uint32_t b,
			uint16_t a)
{
	struct copy other = {malloc(c->bytes), c->bytes};
	struct replay_report r;

	memcpy(other.data, c->data, c->bytes);
	change(&other, fn, min_b, b, a);
	r = replay(&other, NULL);
	if (r.verdict != REPLAY_DIFFERS)
		rig_die(__FILE__, __LINE__, "call %d was changed, but the verdict is %d: %s", fn,
			r.verdict, r.why);
	CHECK(strstr(r.why, "record ") && !strchr(r.why, '\n'));
	free(other.data);
}

/* Flips a byte at this place, replays, flips it back. */
static struct replay_report flipped(const struct copy *c, size_t at, uint8_t with)
{
	uint8_t *byte = (uint8_t *)c->data + at;
	struct replay_report r;

	*byte ^= with;
	r = replay(c, NULL);
	*byte ^= with;
	CHECK(r.verdict == REPLAY_SAME || (r.why[0] && !strchr(r.why, '\n')));
	return r;
}

/* Whatever byte of what is used is another, it is noticed; of anything else, nothing breaks. */
static void flips(const struct copy *c, unsigned rounds)
{
	size_t from = (size_t)(records_of(c) - (uint8_t *)c->data), used = half_of(c)->used;
	uint64_t random = 7;

	for (unsigned i = 0; i < rounds; i++) {
		uint8_t with = (uint8_t)(rig_random(&random) % 255 + 1);

		CHECK_INT(flipped(c, from + rig_random(&random) % used, with).verdict,
			  REPLAY_REFUSED);
		CHECK_INT(flipped(c, FLIGHT_HEAD_BYTES + rig_random(&random) %
						(from - FLIGHT_HEAD_BYTES), with).verdict ==
				  REPLAY_DIFFERS, 0);
		flipped(c, rig_random(&random) % c->bytes, with);
		flipped(c, rig_random(&random) % sizeof(struct flight_head), with);
	}
}

static void refused(const struct copy *c, size_t bytes, const char *why)
{
	struct replay_report r;

	replay_run(c->data, bytes, NULL, NULL, &r);
	CHECK_INT(r.verdict, REPLAY_REFUSED);
	if (!strstr(r.why, why))
		rig_die(__FILE__, __LINE__, "'%s' lacks '%s'", r.why, why);
}

static void cut_short(const struct copy *c)
{
	struct flight_head *head = (void *)c->data;
	struct flight_half *half = half_of(c);
	uint64_t used = half->used;

	refused(c, 0, "not a flight log");
	refused(c, sizeof(*head), "truncated");
	refused(c, c->bytes - 1, "truncated");
	head->layout++;
	refused(c, c->bytes, "another build");
	head->layout--;
	head->magic++;
	refused(c, c->bytes, "not a flight log");
	head->magic--;
	half->number = 0;
	refused(c, c->bytes, "no half");
	half->number = 1;
	half->used = 48; /* fewer records are as good */
	CHECK(replay(c, NULL).verdict != REPLAY_DIFFERS);
	half->used = used + 16;
	CHECK_INT(replay(c, NULL).verdict, REPLAY_REFUSED);
	half->used = used;
	must_be_same(c);
}

static void changed(const struct copy *send, const struct copy *recv)
{
	must_differ(send, FLIGHT_START, BIG / 2, BIG / 2, 0); /* the size of an isend */
	must_differ(send, FLIGHT_COMPLETE, 0, 0, 1);
	must_differ(recv, FLIGHT_IMM, 1 << 16, 1 << 16, 0); /* which piece came */
	must_differ(recv, FLIGHT_REFILLED, 0, 0, 1);
}

/* One recording, long enough for all of it, is replayed as it is, changed and damaged. */
static void one_half(void)
{
	struct copy send, recv;

	record("8192", &send, &recv);
	replayed(&send, &recv);
	changed(&send, &recv);
	cut_short(&send);
	cut_short(&recv);
	flips(&send, rig_scaled(60));
	flips(&recv, rig_scaled(60));
	free(send.data);
	free(recv.data);
}

/* ---- ends ---- */

/* A rank that is killed in the middle of its traffic. */
static pid_t rank_kill(uint64_t *send, uint64_t *recv)
{
	uint64_t ids[2];
	int fds[2];
	pid_t child;

	CHECK(pipe(fds) == 0);
	child = fork();
	if (child == 0) {
		struct pair p;
		struct run *run;

		rig_env("RAILYARD_FLIGHT", "1");
		rig_begin(&(struct fake_config){.device_count = PORTS});
		pair_open(&p, rig_device(PORTS), rig_device(PORTS));
		traffic_run(&p, &mixed);
		ids[0] = ((struct comm *)p.send)->id;
		ids[1] = ((struct comm *)p.recv)->id;
		CHECK(write(fds[1], ids, sizeof(ids)) == sizeof(ids));
		run = traffic_start(&p, &(struct traffic){.members = 1, .window = 4, .seed = 3,
							  .bytes_max = BIG});
		while (true)
			traffic_step(run);
	}
	close(fds[1]);
	CHECK(read(fds[0], ids, sizeof(ids)) == sizeof(ids));
	close(fds[0]);
	rig_pause_us(30000);
	CHECK(kill(child, SIGKILL) == 0);
	CHECK(waitpid(child, NULL, 0) == child);
	*send = ids[0];
	*recv = ids[1];
	return child;
}

static void killed(void)
{
	for (unsigned i = 0; i < rig_scaled(5); i++) {
		uint64_t send_id, recv_id;
		long pid = rank_kill(&send_id, &recv_id);
		struct copy send = copy_file(pid, send_id), recv = copy_file(pid, recv_id);
		char path[64];

		must_be_same(&send);
		must_be_same(&recv);
		remove_file(pid, send_id);
		remove_file(pid, recv_id);
		snprintf(path, sizeof(path), RAILSTATE_DIR "/" RAILSTATE_PREFIX "%ld", pid);
		CHECK(unlink(path) == 0);
		free(send.data);
		free(recv.data);
	}
}

/* A comm that fails leaves its log, whole to the end, with what it failed of. */
static void comm_fails(void)
{
	uint64_t send_id, recv_id;
	struct copy send;
	struct pair p;
	char *text = NULL;

	rig_env("RAILYARD_FLIGHT", "1");
	rig_env("RAILYARD_OUTAGE_TIMEOUT", "1");
	rig_begin(&(struct fake_config){.device_count = 1});
	pair_open(&p, 0, 0);
	send_id = ((struct comm *)p.send)->id;
	recv_id = ((struct comm *)p.recv)->id;
	traffic_run(&p, &(struct traffic){.groups = 20, .members = 1, .window = 2, .fixed = true,
					  .bytes = 4096});
	fake_event(0, IBV_EVENT_PORT_ERR, 1);
	for (int tries = 0; !comm_error(p.send) || !comm_error(p.recv); tries++) {
		CHECK(tries < RIG_PATIENCE_MS);
		rig_pause_us(1000);
	}
	pair_close(&p);
	CHECK(rig_logged("`railyard replay` reads it"));
	rig_stop();
	send = copy_file(getpid(), send_id);
	CHECK(((struct flight_head *)(void *)send.data)->error != 0);
	CHECK_INT(replay(&send, &text).verdict, REPLAY_SAME);
	CHECK(strstr(text, "FAIL"));
	CHECK_INT(must_be_same(&send).whole, 1);
	remove_file(getpid(), send_id);
	remove_file(getpid(), recv_id);
	free(text);
	free(send.data);
}

static unsigned files_in(const char *dir)
{
	DIR *d = opendir(dir);
	unsigned n = 0;

	CHECK(d);
	for (const struct dirent *e; (e = readdir(d)) != NULL;)
		n += strncmp(e->d_name, FLIGHT_PREFIX, strlen(FLIGHT_PREFIX)) == 0;
	closedir(d);
	return n;
}

/* Of what dead processes left only the newest stay. */
static void left_behind(void)
{
	char dir[] = "/tmp/railyard-flight-XXXXXX", path[128];

	CHECK(mkdtemp(dir));
	for (int i = 0; i < 20; i++) {
		snprintf(path, sizeof(path), "%s/" FLIGHT_PREFIX "1.%d", dir, i);
		int fd = open(path, O_WRONLY | O_CREAT, 0600);

		CHECK(fd >= 0);
		CHECK(futimens(fd, (struct timespec[]){{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}})
		      == 0);
		close(fd);
	}
	flight_start(dir, 256);
	flight_stop();
	CHECK_INT(files_in(dir), 16);
	for (int i = 0; i < 20; i++) {
		snprintf(path, sizeof(path), "%s/" FLIGHT_PREFIX "1.%d", dir, i);
		CHECK_INT(unlink(path) == 0, i >= 4);
	}
	CHECK(rmdir(dir) == 0);
}

static void off(void)
{
	struct pair p;

	rig_begin(&(struct fake_config){.device_count = 1});
	pair_open(&p, 0, 0);
	CHECK(!((struct comm *)p.send)->flight);
	CHECK(!is_there(getpid(), ((struct comm *)p.send)->id));
	pair_close(&p);
	rig_end();
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"one_half", one_half},	  {"halves_turn", halves_turn}, {"killed", killed},
		{"comm_fails", comm_fails}, {"left_behind", left_behind}, {"off", off},
	};

	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
