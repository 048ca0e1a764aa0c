/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight.c - files of flight logs, their halves and records.
 *
 * While a comm is recorded its core reads a copy of what others write (flight_format.h). The copy
 * of the ring follows when the owner comes, those of ports before its first call; load words that
 * the core moves are handed on when the owner goes. All of that lags by one owner's time at most,
 * as if the words had come a little later.
 *
 * A process may be killed between any two stores: a record counts from when `used` says so, a half
 * from when its number does.
 */
#include "flight.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "flight_internal.h"
#include "log.h"
#include "shmfile.h"
#include "util.h"

_Static_assert((int)FLIGHT_SEND == COMM_SEND && (int)FLIGHT_RECV == COMM_RECV, "kinds as they are");

enum { END_ROOM = 3 * sizeof(struct flight_record) }; /* polls, a time, the end */

/* Under the lock, which nobody takes who drives a comm. */
static struct {
	pthread_mutex_t lock;
	char dir[FLIGHT_PATH_BYTES - 128];
	uint64_t half_bytes; /* 0: nothing is recorded */
	struct flight *open[FLIGHT_COMMS_MAX];
	unsigned kept;
	bool full_told;
	pid_t pid;
} logs = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* --- records ------------------------------------------------------------------------------ */

static struct flight_half *half_at(const struct flight *f, unsigned i)
{
	return (struct flight_half *)(void *)((uint8_t *)f->head + FLIGHT_HEAD_BYTES +
					      i * f->half_bytes);
}

static uint64_t room(const struct flight *f)
{
	return f->half_bytes - sizeof(struct flight_half) - f->image_bytes - f->half->used;
}

static struct flight_record *record_next(struct flight *f)
{
	return (struct flight_record *)(void *)((uint8_t *)(f->half + 1) + f->image_bytes +
						f->half->used);
}

/* The time of a call: as it is given, else about when its owner came. */
static uint64_t time_of(const struct flight *f, const struct flight_args *x)
{
	if (flight_is_timed((uint8_t)x->fn) && x->now_ns != 0) {
		return x->now_ns;
	}
	return f->clock_ns > f->now_ns ? f->clock_ns : f->now_ns;
}

/* Room must be there. */
static void record_write(struct flight *f, const struct flight_args *x, bool open)
{
	struct flight_record *to = record_next(f), r = { .word = x->word, .fn = (uint8_t)x->fn,
							 .lane = (uint8_t)x->lane,
							 .a = (uint16_t)x->a, .b = x->b };
	uint64_t used = f->half->used;

	if (x->bytes != 0) {
		memset(to + 1, 0, flight_record_bytes(x->bytes) - sizeof(*to));
		memcpy(to + 1, x->payload, x->bytes);
	}
	if (flight_has_time(r.fn)) {
		uint64_t now = time_of(f, x);

		r.word = (uint32_t)(now - f->now_ns);
		f->now_ns = now;
		if (flight_is_timed(r.fn) && x->now_ns == 0) {
			r.fn |= FLIGHT_NOW_0;
		}
	}
	r.seal = flight_seal(&r, to + 1, f->half->number, used, open);
	*to = r;
	f->last = to;
	__atomic_store_n(&f->half->used, used + flight_record_bytes(x->bytes), __ATOMIC_RELEASE);
}

static uint32_t *polls_of(struct flight *f)
{
	return f->core.kind == FLIGHT_SEND ? &f->core.send->idle_polls : &f->polls;
}

/* The caller counts them in the core's own memory. */
static void polls_write(struct flight *f)
{
	if (*polls_of(f) != f->polls) {
		f->polls = *polls_of(f);
		record_write(f, &(struct flight_args){ .fn = FLIGHT_POLLS, .b = f->polls }, false);
	}
}

static void end_write(struct flight *f, uint64_t hash)
{
	polls_write(f);
	record_write(f, &(struct flight_args){ .fn = FLIGHT_END, .word = (uint32_t)hash,
					       .b = (uint32_t)(hash >> 32) }, false);
}

static uint64_t image_write(struct flight *f, void *to)
{
	flight_image_pack(&f->core, to);
	return flight_hash(0, to, f->image_bytes);
}

static void half_begin(struct flight *f, struct flight_half *half, uint64_t number, uint64_t hash)
{
	half->start_ns = f->now_ns;
	half->image_hash = hash;
	half->hash = flight_half_hash(half, number);
	half->used = 0;
	f->half = half;
	f->polls = *polls_of(f);
	__atomic_store_n(&half->number, number, __ATOMIC_RELEASE);
}

/* The half is full: end it, and begin the other. */
static __attribute__((noinline)) void half_turn(struct flight *f)
{
	struct flight_half *next = half_at(f, f->half == half_at(f, 0));
	uint64_t number = f->half->number + 1, hash;

	__atomic_store_n(&next->number, 0, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	hash = image_write(f, next + 1);
	end_write(f, hash);
	half_begin(f, next, number, hash);
}

static void room_make(struct flight *f, uint32_t payload_bytes)
{
	if (room(f) < flight_record_bytes(payload_bytes) + END_ROOM) {
		half_turn(f);
	}
}

/* Something that the core reads; the shadow is to be changed afterwards. */
static void input_write(struct flight *f, const struct flight_args *x)
{
	room_make(f, x->bytes);
	record_write(f, x, false);
}

static void time_write(struct flight *f, uint64_t now)
{
	int64_t passed = (int64_t)(now - f->now_ns);

	if (passed == (int32_t)passed) {
		return;
	}
	input_write(f, &(struct flight_args){ .fn = FLIGHT_TIME, .word = (uint32_t)now,
					      .b = (uint32_t)(now >> 32) });
	f->now_ns = now;
}

void flight_begin(struct flight *f, const struct flight_args *x)
{
	flight_inputs(f);
	if (flight_has_time((uint8_t)x->fn)) {
		time_write(f, time_of(f, x));
	}
	room_make(f, x->bytes + (uint32_t)sizeof(struct flight_record));
	polls_write(f);
	record_write(f, x, true);
}

/* One store of 8 bytes: the record is open until then. */
void flight_end(struct flight *f, uint64_t hash, uint32_t lane)
{
	struct flight_record r = *f->last;
	uint64_t place = f->half->used - flight_record_bytes(flight_payload_bytes(&r)), word;

	r.check = flight_check_end(hash, &f->core, lane);
	word = r.b | (uint64_t)r.check << 32 |
	       (uint64_t)flight_seal(&r, f->last + 1, f->half->number, place, false) << 48;
	memcpy(&f->last->b, &word, sizeof(word));
	f->polls = *polls_of(f);
}

/* --- what the core reads ------------------------------------------------------------------ */

static void port_take(struct flight *f, uint32_t number, const struct core_port *real,
		      struct core_port *shadow)
{
	struct core_port now;

	if (real == NULL) {
		return;
	}
	now = (struct core_port){ core_word(&real->down), core_word(&real->dead),
				  core_word(&real->pressure), core_word(&real->mbps),
				  core_word(&real->drain) };
	if (memcmp(&now, shadow, sizeof(now)) != 0) {
		input_write(f, &(struct flight_args){ .fn = FLIGHT_PORT, .lane = number,
						      .payload = &now, .bytes = sizeof(now) });
		*shadow = now;
	}
}

static void ports_take(struct flight *f)
{
	uint32_t epoch = __atomic_load_n(f->real.signal_epoch, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		port_take(f, i, f->real.local[i], &f->shadow.local[i]);
		port_take(f, CORE_PORTS_MAX + i, f->real.remote[i], &f->shadow.remote[i]);
	}
	if (epoch != f->shadow.epoch) {
		input_write(f, &(struct flight_args){ .fn = FLIGHT_EPOCH, .b = epoch });
		f->shadow.epoch = epoch;
	}
}

static struct core_load load_now(const struct core_load *load)
{
	return (struct core_load){
		.inflight_bytes = __atomic_load_n(&load->inflight_bytes, __ATOMIC_RELAXED),
		.rx_bytes = __atomic_load_n(&load->rx_bytes, __ATOMIC_RELAXED),
		.cost_ns = __atomic_load_n(&load->cost_ns, __ATOMIC_RELAXED),
	};
}

/* What the core did to its copy is done to the real load. */
static void load_hand_on(struct core_load *real, const struct core_load *to,
			 struct core_load *base)
{
	if (to->inflight_bytes != base->inflight_bytes) {
		__atomic_fetch_add(&real->inflight_bytes,
				   to->inflight_bytes - base->inflight_bytes, __ATOMIC_RELAXED);
	}
	if (to->rx_bytes != base->rx_bytes) {
		uint64_t rx = __atomic_load_n(&real->rx_bytes, __ATOMIC_RELAXED);

		__atomic_store_n(&real->rx_bytes, rx + to->rx_bytes - base->rx_bytes,
				 __ATOMIC_RELAXED);
	}
	if (to->cost_ns != base->cost_ns) {
		__atomic_store_n(&real->cost_ns, to->cost_ns, __ATOMIC_RELAXED);
	}
	*base = *to;
}

void flight_leave(struct flight *f)
{
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		if (f->real.load[i] != NULL) {
			load_hand_on(f->real.load[i], &f->shadow.load[i], &f->base[i]);
		}
	}
}

static void loads_take(struct flight *f)
{
	if (f->clock_ns < f->load_ns + FLIGHT_LOAD_NS) {
		return;
	}
	f->load_ns = f->clock_ns;
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		if (f->real.load[i] == NULL) {
			continue;
		}
		struct core_load load = load_now(f->real.load[i]);

		if (memcmp(&load, &f->shadow.load[i], sizeof(load)) != 0) {
			input_write(f, &(struct flight_args){ .fn = FLIGHT_LOAD, .lane = i,
							      .payload = &load,
							      .bytes = sizeof(load) });
			f->shadow.load[i] = load;
			f->base[i] = load;
		}
	}
}

void flight_inputs(struct flight *f)
{
	if (f->stale) {
		f->stale = false;
		f->clock_ns = now_ns();
		ports_take(f);
		loads_take(f);
	}
}

static void record_take(struct flight *f, uint32_t place)
{
	struct core_cts now = f->ring[place];

	input_write(f, &(struct flight_args){ .fn = FLIGHT_RING, .a = place, .payload = &now,
					      .bytes = sizeof(now) });
	f->shadow.ring[place] = now;
}

static bool counts_differ(const uint16_t *a, const uint16_t *b)
{
	bool differ = false;

	for (uint32_t i = 0; i < CORE_CREDIT_BLOCK; i++) {
		differ |= __atomic_load_n(&a[i], __ATOMIC_RELAXED) != b[i];
	}
	return differ;
}

/* Counts that land meanwhile may be taken one by one: the core takes any of them. */
static void counts_take(struct flight *f, uint32_t place)
{
	struct core_cts now = f->shadow.ring[place];

	for (uint32_t i = 0; i < CORE_CREDIT_BLOCK; i++) {
		now.posted[i] = __atomic_load_n(&f->ring[place].posted[i], __ATOMIC_RELAXED);
	}
	input_write(f, &(struct flight_args){ .fn = FLIGHT_RING, .a = place, .payload = &now,
					      .bytes = sizeof(now) });
	f->shadow.ring[place] = now;
}

/*
 * The core looks at records in the order of their sequences and at none behind a gap, so in this
 * order they are taken; none of them changes before its message is over.
 */
static void ring_take(struct flight *f)
{
	while (core_record_here(&f->ring[core_slot(f->seen)], f->seen)) {
		record_take(f, core_slot(f->seen));
		f->seen++;
	}
	for (uint32_t i = 0; i * CORE_CREDIT_BLOCK < f->core.lanes; i++) {
		uint32_t place = CORE_SLOTS + i;

		if (counts_differ(f->ring[place].posted, f->shadow.ring[place].posted)) {
			counts_take(f, place);
		}
	}
}

void flight_enter(struct flight *f)
{
	f->stale = true;
	if (f->core.kind == FLIGHT_SEND) {
		ring_take(f);
	}
}

void flight_sizes(struct flight *f, uint32_t place)
{
	struct core_sizes now = f->sizes[place];

	if (memcmp(&now, &f->shadow.sizes[place], sizeof(now)) != 0) {
		input_write(f, &(struct flight_args){ .fn = FLIGHT_SIZES, .a = place,
						      .payload = &now, .bytes = sizeof(now) });
		f->shadow.sizes[place] = now;
	}
}

/* --- one comm ----------------------------------------------------------------------------- */

static struct core_config *config_of(struct flight *f)
{
	return f->core.kind == FLIGHT_SEND ? &f->core.send->cfg : &f->core.recv->cfg;
}

static void core_divert(struct flight *f)
{
	f->real = *config_of(f);
	for (uint32_t i = 0; i < CORE_PORTS_MAX; i++) {
		if (f->real.load[i] != NULL) {
			f->base[i] = f->shadow.load[i] = load_now(f->real.load[i]);
		}
	}
	f->shadow.epoch = __atomic_load_n(f->real.signal_epoch, __ATOMIC_ACQUIRE) - 1;
	if (f->core.kind == FLIGHT_SEND) {
		f->seen = f->core.send->head;
		f->ring = f->core.send->ring;
		f->core.send->ring = f->shadow.ring;
	} else {
		f->sizes = f->core.recv->sizes;
		f->core.recv->sizes = f->shadow.sizes;
	}
	flight_config_divert(config_of(f), &f->shadow);
}

static void core_restore(struct flight *f)
{
	flight_leave(f);
	*config_of(f) = f->real;
	if (f->core.kind == FLIGHT_SEND) {
		f->core.send->ring = f->ring;
	} else {
		f->core.recv->sizes = f->sizes;
	}
}

static void head_fill(struct flight *f, const struct comm *c)
{
	struct flight_head *h = f->head;

	h->version = FLIGHT_VERSION;
	h->layout = flight_layout();
	snprintf(h->plugin, sizeof(h->plugin), "%s", RAILYARD_VERSION);
	gethostname(h->host, sizeof(h->host) - 1);
	snprintf(h->peer, sizeof(h->peer), "%s", peer_name(c->peer));
	h->half_bytes = f->half_bytes;
	h->comm = c->id;
	h->peer_comm = c->peer_id;
	h->start_ns = f->now_ns;
	h->pid = (uint32_t)getpid();
	h->kind = c->kind;
	h->lanes = f->core.lanes;
	h->magic = FLIGHT_MAGIC;
	h->hash = flight_head_hash(h);
}

static size_t file_bytes(const struct flight *f)
{
	return FLIGHT_HEAD_BYTES + 2 * f->half_bytes;
}

/* Returns a log of which nothing is begun yet; NULL, one line said. */
static struct flight *flight_make(const struct comm *c)
{
	struct flight *f = calloc(1, sizeof(*f));
	void *at = NULL;

	if (f == NULL) {
		log_info("no memory for a flight log");
		return NULL;
	}
	f->half_bytes = logs.half_bytes;
	snprintf(f->path, sizeof(f->path), "%s/" FLIGHT_PREFIX "%ld.%llu", logs.dir,
		 (long)logs.pid, (unsigned long long)c->id);
	f->fd = shmfile_make(f->path, file_bytes(f), &at);
	if (f->fd < 0) {
		log_info("%s: no flight log of this comm: %s", f->path, shmfile_why(f->fd));
		free(f);
		return NULL;
	}
	f->head = at;
	return f;
}

static void flight_begin_first(struct flight *f, struct comm *c)
{
	f->core = (struct flight_core){ .kind = c->kind, .lanes = (uint8_t)comm_lane_total(c),
					.recover = &c->recovery.core, .shadow = &f->shadow };
	if (c->kind == COMM_SEND) {
		f->core.send = &send_comm(c)->core;
	} else {
		f->core.recv = &recv_comm(c)->core;
	}
	f->now_ns = now_ns();
	f->image_bytes = flight_image_bytes(f->core.kind, f->core.lanes);
	core_divert(f);
	head_fill(f, c);
	half_begin(f, half_at(f, 0), 1, image_write(f, half_at(f, 0) + 1));
	f->stale = true;
	flight_inputs(f);
}

void flight_attach(struct comm *c)
{
	unsigned i = 0;

	pthread_mutex_lock(&logs.lock);
	while (i < FLIGHT_COMMS_MAX && logs.open[i] != NULL) {
		i++;
	}
	if (logs.half_bytes != 0 && i < FLIGHT_COMMS_MAX) {
		struct flight *f = flight_make(c);

		if (f != NULL) {
			logs.open[i] = f;
			flight_begin_first(f, c);
			c->flight = f;
			c->owner = FLIGHT_OWNER_FREE;
		}
	} else if (logs.half_bytes != 0 && !logs.full_told) {
		logs.full_told = true;
		log_info("%d comms have a flight log: no more get one", FLIGHT_COMMS_MAX);
	}
	pthread_mutex_unlock(&logs.lock);
}

/* For the replay: the end of what was recorded, as at the end of a whole half. */
static void end_say(struct flight *f)
{
	void *image = malloc(f->image_bytes);

	if (image != NULL) {
		end_write(f, image_write(f, image));
		free(image);
	}
}

void flight_detach(struct comm *c)
{
	struct flight *f = c->flight;

	if (f == NULL) {
		return;
	}
	c->flight = NULL;
	c->owner = 0;
	core_restore(f);
	pthread_mutex_lock(&logs.lock);
	for (unsigned i = 0; i < FLIGHT_COMMS_MAX; i++) {
		if (logs.open[i] == f) {
			logs.open[i] = NULL;
		}
	}
	if (f->head->error == 0 || logs.kept == FLIGHT_KEPT_MAX) {
		(void)unlink(f->path);
	} else {
		logs.kept++;
		end_say(f);
		log_info("%s has the last calls of comm %llu, which failed: `railyard replay` "
			 "reads it", f->path, (unsigned long long)c->id);
	}
	pthread_mutex_unlock(&logs.lock);
	munmap(f->head, file_bytes(f));
	close(f->fd);
	free(f);
}

void flight_failed(struct comm *c, int error)
{
	if (c->flight != NULL) {
		__atomic_store_n(&c->flight->head->error, error, __ATOMIC_RELAXED);
	}
}

/* --- the process -------------------------------------------------------------------------- */

struct left {
	char path[FLIGHT_PATH_BYTES];
	struct timespec time;
};

static int newer_first(const void *a, const void *b)
{
	const struct timespec *x = &((const struct left *)a)->time,
			      *y = &((const struct left *)b)->time;

	if (x->tv_sec != y->tv_sec) {
		return x->tv_sec < y->tv_sec ? 1 : -1;
	}
	return (x->tv_nsec < y->tv_nsec) - (x->tv_nsec > y->tv_nsec);
}

/* What dead processes left, each entry's path and time. Returns how many. */
static unsigned left_list(DIR *dir, struct left **out)
{
	const struct dirent *entry;
	struct left *all = NULL;
	unsigned n = 0;

	while ((entry = readdir(dir)) != NULL) {
		struct left *more, one;
		struct stat st;

		if (strncmp(entry->d_name, FLIGHT_PREFIX, strlen(FLIGHT_PREFIX)) != 0) {
			continue;
		}
		snprintf(one.path, sizeof(one.path), "%s/%.100s", logs.dir, entry->d_name);
		if (!shmfile_is_left(one.path) || stat(one.path, &st) != 0) {
			continue;
		}
		one.time = st.st_mtim;
		more = realloc(all, (n + 1) * sizeof(*all));
		if (more == NULL) {
			break;
		}
		all = more;
		all[n++] = one;
	}
	*out = all;
	return n;
}

static void left_prune(void)
{
	struct left *all = NULL;
	DIR *dir = opendir(logs.dir);
	unsigned n;

	if (dir == NULL) {
		return;
	}
	n = left_list(dir, &all);
	closedir(dir);
	if (n > FLIGHT_LEFT_MAX) {
		qsort(all, n, sizeof(*all), newer_first);
	}
	for (unsigned i = FLIGHT_LEFT_MAX; i < n; i++) {
		(void)unlink(all[i].path);
	}
	free(all);
}

void flight_start(const char *dir, uint32_t half_kib)
{
	pthread_mutex_lock(&logs.lock);
	snprintf(logs.dir, sizeof(logs.dir), "%s", dir);
	logs.pid = getpid();
	logs.full_told = false;
	left_prune();
	logs.half_bytes = (uint64_t)half_kib * 1024;
	pthread_mutex_unlock(&logs.lock);
}

void flight_stop(void)
{
	pthread_mutex_lock(&logs.lock);
	logs.half_bytes = 0;
	pthread_mutex_unlock(&logs.lock);
}

/* A process that exits with open comms ends cleanly; not a forked child's to do. */
__attribute__((destructor)) static void exit_remove(void)
{
	for (unsigned i = 0; i < FLIGHT_COMMS_MAX && logs.pid == getpid(); i++) {
		const struct flight *f = logs.open[i];

		if (f != NULL && f->head->error == 0) {
			(void)unlink(f->path);
		}
	}
}
