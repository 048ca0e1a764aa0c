/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE
#include "bench_engine.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench_data.h"
#include "bench_ops.h"

enum {
	PASSES_PER_LOOK = 64,		/* passes between two looks at the clock and the sockets */
	LOOK_NS = 2000000,		/* at most so often at the sockets */
	PASSES_BEFORE_IDLE = 8,		/* fruitless passes before giving the CPU away */
	SLEEP_NS = 20000,
	COMPLAINTS_MAX = 5,		/* lines about wrong data per rank; the count goes on */
	STUCK_LINES_MAX = 8,
};

/* Place of message @number of a receive stream, of the @number'th post of a send stream. */
static void *stream_slot(const struct bench_stream *stream, uint64_t number)
{
	return stream->arena + number % stream->slot_count * stream->stride;
}

/* Messages in one request: the group for receives, 1 for sends. */
static uint32_t stream_members(const struct bench_stream *stream)
{
	return stream->is_send ? 1 : stream->run->plan->group;
}

static struct bench_request *request_at(struct bench_stream *stream, uint64_t index)
{
	return &stream->requests[index % BENCH_REQUESTS_MAX];
}

static uint32_t window_of(const struct bench_stream *stream)
{
	const struct bench_plan *plan = stream->run->plan;

	return stream->is_send ? plan->window * plan->group : plan->window;
}

/* Requests of iterations 0 ... iters - 1. */
static uint64_t requests_until(const struct bench_stream *stream, uint64_t iters)
{
	return iters * stream->steps / stream_members(stream);
}

/* Iterations whose messages may be sent and used: in serial operations up to the present one. */
static uint64_t iters_open(const struct bench_run *run)
{
	return run->op->is_serial && run->current < run->last ? run->current + 1 : run->last;
}

static struct bench_msg locate(const struct bench_stream *stream, uint64_t number)
{
	struct bench_msg msg = {.number = number};

	if (stream->steps) {
		stream->run->op->locate(stream, &msg);
	}
	return msg;
}

static int tag_of(const struct bench_run *run, int sender, uint32_t member)
{
	return sender + (int)member * run->ranks;
}

static void complain(struct bench_run *run, const struct bench_stream *stream,
		     const struct bench_msg *msg, const char *what, uint64_t at, uint64_t count)
{
	if (run->complaints++ < COMPLAINTS_MAX) {
		fprintf(stderr,
			"railyard bench: rank %d: %s: message %llu (iteration %llu, offset %llu, "
			"%zu bytes), peer rank %d, comm %d: at %llu, %llu in all\n",
			run->rank, what, (unsigned long long)msg->number,
			(unsigned long long)msg->iter, (unsigned long long)msg->offset, msg->bytes,
			stream->peer, stream->comm_idx, (unsigned long long)at,
			(unsigned long long)count);
	}
}

/* ---- sending --------------------------------------------------------------------------------- */

/* In a group, messages go out in another order than their buffers were announced, so that the
 * plugin has to match by tag. The order differs from group to group. Slots of a send stream go by
 * the order of posting: it is in that order that they become free. */
static uint64_t send_order(const struct bench_stream *stream, uint64_t index)
{
	uint64_t group = stream->run->plan->group;
	uint64_t base = index - index % group;

	return base + (base / group + group - 1 - index % group) % group;
}

static bool prepare_send(struct bench_stream *stream, const struct bench_msg *msg)
{
	const struct bench_op *op = stream->run->op;

	if (stream->prepared > stream->posted) {
		return true;
	}
	if (op->may_prepare && !op->may_prepare(stream, msg)) {
		return false;
	}
	op->produce(stream, msg, stream_slot(stream, stream->posted));
	stream->prepared = stream->posted + 1;
	return true;
}

static int post_send(struct bench_stream *stream)
{
	struct bench_run *run = stream->run;
	uint64_t limit = requests_until(stream, iters_open(run));
	int moved = 0;

	while (stream->posted < limit && stream->posted - stream->done < window_of(stream)) {
		struct bench_msg msg = locate(stream, send_order(stream, stream->posted));
		struct bench_request *request = request_at(stream, stream->posted);
		int rc;

		if (!prepare_send(stream, &msg) ||
		    (run->op->may_send && !run->op->may_send(stream, &msg))) {
			break;
		}
		rc = net_isend(run->net, stream->comm, stream_slot(stream, stream->posted),
			       msg.bytes, tag_of(run, run->rank, msg.member), stream->mhandle,
			       &request->request);
		if (rc) {
			return rc;
		}
		if (!request->request) {
			break;
		}
		request->is_finished = false;
		request->posted_ns = bench_now_ns();
		stream->posted++;
		moved = 1;
	}
	return moved;
}

/* Writes the next message ahead of its turn, so that its turn costs only the isend. */
static void prepare_early(struct bench_stream *stream)
{
	if (stream->steps && stream->posted - stream->done < window_of(stream)) {
		struct bench_msg msg = locate(stream, send_order(stream, stream->posted));

		prepare_send(stream, &msg);
	}
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The last moment before the buffers are given away: nothing may have written to them since. */
static void check_slot(struct bench_stream *stream, uint64_t number)
{
	struct bench_run *run = stream->run;
	size_t bytes = stream->capacity + BENCH_GUARD_BYTES;
	size_t at = canary_check(stream_slot(stream, number), 0, bytes);

	if (at < bytes) {
		uint64_t before = number < stream->slot_count ? number
							      : number - stream->slot_count;
		struct bench_msg msg = locate(stream, before);

		run->meter.stat.canaries++;
		complain(run, stream, &msg, "buffer changed after done (canary)", at, 1);
		canary_fill(stream_slot(stream, number), bytes);
	}
}

static void prepare_recv(struct bench_stream *stream)
{
	uint32_t members = stream_members(stream);

	if (stream->prepared > stream->posted) {
		return;
	}
	for (uint32_t i = 0; stream->run->plan->canary && i < members; i++) {
		check_slot(stream, stream->posted * members + i);
	}
	stream->prepared = stream->posted + 1;
}

static int post_one_recv(struct bench_stream *stream, struct bench_request *request)
{
	struct bench_run *run = stream->run;
	uint32_t members = stream_members(stream);
	void *data[BENCH_GROUP_MAX], *mhandles[BENCH_GROUP_MAX];
	size_t sizes[BENCH_GROUP_MAX];
	int tags[BENCH_GROUP_MAX];

	for (uint32_t i = 0; i < members; i++) {
		data[i] = stream_slot(stream, stream->posted * members + i);
		mhandles[i] = stream->mhandle;
		sizes[i] = stream->capacity;
		tags[i] = tag_of(run, stream->peer, i);
	}
	return net_irecv(run->net, stream->comm, (int)members, data, sizes, tags, mhandles,
			 &request->request);
}

static int post_recv(struct bench_stream *stream)
{
	uint64_t limit = requests_until(stream, stream->run->last);
	int moved = 0;

	while (stream->posted < limit && stream->posted - stream->done < window_of(stream)) {
		struct bench_request *request = request_at(stream, stream->posted);
		int rc;

		prepare_recv(stream);
		rc = post_one_recv(stream, request);
		if (rc) {
			return rc;
		}
		if (!request->request) {
			break;
		}
		request->is_finished = false;
		request->posted_ns = bench_now_ns();
		stream->posted++;
		moved = 1;
	}
	return moved;
}

static void use_message(struct bench_stream *stream, uint64_t number, int told)
{
	struct bench_run *run = stream->run;
	struct bench_stat *stat = &run->meter.stat;
	struct bench_msg msg = locate(stream, number);
	void *slot = stream_slot(stream, number);
	size_t end = stream->capacity + BENCH_GUARD_BYTES, first = 0, wrong;

	if (told < 0 || (size_t)told != msg.bytes) {
		stat->bad_sizes++;
		complain(run, stream, &msg, "test() told a wrong size", (uint64_t)(int64_t)told, 1);
	}
	wrong = run->op->consume(stream, &msg, slot, &first);
	if (wrong) {
		stat->wrong += wrong;
		complain(run, stream, &msg, "wrong data", first, wrong);
	}
	if (!run->plan->canary) {
		return;
	}
	first = canary_check(slot, msg.bytes, end);
	if (first < end) {
		stat->overruns++;
		complain(run, stream, &msg, "bytes behind the message changed", first, 1);
		canary_fill(slot, end);
	}
	canary_fill(slot, msg.bytes);
}

/* Uses what has arrived, in order. */
static int use_arrived(struct bench_stream *stream)
{
	uint64_t limit = requests_until(stream, iters_open(stream->run));
	uint32_t members = stream_members(stream);
	int moved = 0;

	while (stream->done < stream->arrived && stream->done < limit) {
		struct bench_request *request = request_at(stream, stream->done);

		for (uint32_t i = 0; i < members; i++) {
			use_message(stream, stream->done * members + i, request->sizes[i]);
		}
		stream->done++;
		moved = 1;
	}
	return moved;
}

void engine_check_idle(struct bench_run *run)
{
	for (int i = 0; i < run->stream_count && run->plan->canary; i++) {
		struct bench_stream *stream = &run->streams[i];
		uint64_t next = stream->posted * stream_members(stream);

		for (uint32_t slot = 0; !stream->is_send && slot < stream->slot_count; slot++) {
			check_slot(stream, next + slot);
		}
	}
}

/* ---- completion ------------------------------------------------------------------------------ */

static void finish(struct bench_stream *stream, uint64_t index, const int *sizes)
{
	struct bench_run *run = stream->run;
	struct bench_request *request = request_at(stream, index);
	struct bench_stat *stat = &run->meter.stat;
	uint32_t members = stream_members(stream);
	uint64_t now_ns = bench_now_ns();

	request->is_finished = true;
	request->request = NULL;
	memcpy(request->sizes, sizes, members * sizeof(sizes[0]));
	run->moved_ns = now_ns;
	if (stream->is_send) {
		stat->sent_msgs++;
		stat->sent_bytes += (uint64_t)(sizes[0] > 0 ? sizes[0] : 0);
		if (!run->op->is_pingpong) {
			hist_add(&stat->latency, now_ns - request->posted_ns);
		}
		return;
	}
	for (uint32_t i = 0; i < members; i++) {
		meter_add_recv(&run->meter, now_ns, (size_t)(sizes[i] > 0 ? sizes[i] : 0));
	}
}

/* A send may be cut only by a receive that is too small, which ours never are. */
static void check_sent_size(struct bench_stream *stream, uint64_t index, int told)
{
	struct bench_msg msg = locate(stream, send_order(stream, index));

	if (told < 0 || (size_t)told != msg.bytes) {
		stream->run->meter.stat.bad_sizes++;
		complain(stream->run, stream, &msg, "test() of the send told a wrong size",
			 (uint64_t)(int64_t)told, 1);
	}
}

static int test_stream(struct bench_stream *stream)
{
	struct bench_run *run = stream->run;
	int sizes[BENCH_NET_TEST_SIZES];
	int moved = 0;

	for (uint64_t index = stream->arrived; index < stream->posted; index++) {
		struct bench_request *request = request_at(stream, index);
		int done, rc;

		if (request->is_finished) {
			continue;
		}
		memset(sizes, 0, stream->is_send ? sizeof(sizes[0]) : sizeof(sizes));
		rc = net_test(run->net, request->request, &done, sizes);
		if (rc) {
			return rc;
		}
		if (done) {
			if (stream->is_send) {
				check_sent_size(stream, index, sizes[0]);
			}
			finish(stream, index, sizes);
			moved = 1;
		} else if (!run->plan->test_all) {
			break;
		}
	}
	while (stream->arrived < stream->posted &&
	       request_at(stream, stream->arrived)->is_finished) {
		stream->arrived++;
	}
	if (stream->is_send) {
		stream->done = stream->arrived;
	}
	return moved;
}

/* Half the round trip, as the first sender sees it: from the iteration's start to the reply. */
static void note_round_trip(struct bench_run *run)
{
	const struct bench_stream *recv = NULL;

	for (int i = 0; i < run->stream_count; i++) {
		if (!run->streams[i].is_send && run->streams[i].steps) {
			recv = &run->streams[i];
		}
	}
	if (recv && (run->ranks == 1 || (run->rank % 2 == 0) != (run->plan->reverse != 0))) {
		hist_add(&run->meter.stat.latency,
			 (run->meter.stat.last_ns - run->iter_start_ns) / 2);
	}
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* What takes time for the payload's sake - writing the next message, checking the last - comes
 * after everything that the other side waits for. */
static int pass(struct bench_run *run)
{
	int moved = 0;

	for (int i = 0; i < run->stream_count; i++) {
		int rc = test_stream(&run->streams[i]);

		if (rc < 0) {
			return rc;
		}
		moved |= rc;
	}
	for (int i = 0; i < run->stream_count; i++) {
		struct bench_stream *stream = &run->streams[i];
		int rc = stream->is_send ? post_send(stream) : post_recv(stream);

		if (rc < 0) {
			return rc;
		}
		moved |= rc;
	}
	for (int i = 0; i < run->stream_count; i++) {
		struct bench_stream *stream = &run->streams[i];

		if (!stream->is_send) {
			moved |= use_arrived(stream);
		} else if (run->op->is_pingpong) {
			prepare_early(stream);
		}
	}
	return moved;
}

static bool all_done(const struct bench_run *run, uint64_t iters)
{
	for (int i = 0; i < run->stream_count; i++) {
		if (run->streams[i].done < requests_until(&run->streams[i], iters)) {
			return false;
		}
	}
	return true;
}

/* Iterations of which anything has been posted. */
static uint64_t begun(const struct bench_run *run)
{
	uint64_t most = 0;

	for (int i = 0; i < run->stream_count; i++) {
		const struct bench_stream *stream = &run->streams[i];
		uint64_t posted = stream->posted * stream_members(stream);

		if (stream->steps && (posted + stream->steps - 1) / stream->steps > most) {
			most = (posted + stream->steps - 1) / stream->steps;
		}
	}
	return most;
}

/* Ends a run by time in three steps: rank 0 says stop; each rank begins nothing more and tells what
 * it has begun; rank 0 names the largest, and all run on to that. */
static int agree_on_last(struct bench_run *run)
{
	run->last = run->begun_max;
	run->is_open_ended = false;
	return meet_send_control(run->meet, MEET_LAST, run->last);
}

static int stop_by_time(struct bench_run *run)
{
	int rc = meet_send_control(run->meet, MEET_STOP, 0);

	run->stop_ns = 0;
	run->last = run->begun_max = begun(run);
	run->begun_answers = 1;
	return rc || run->ranks > 1 ? rc : agree_on_last(run);
}

static int control(struct bench_run *run)
{
	enum meet_control kind;
	uint64_t value = 0;
	int from, rc = meet_poll(run->meet, &kind, &value, &from);

	if (rc) {
		return rc;
	}
	switch (kind) {
	case MEET_NONE:
		return 0;
	case MEET_STOP:
		run->last = begun(run);
		return meet_send_control(run->meet, MEET_BEGUN, run->last);
	case MEET_BEGUN:
		run->begun_max = value > run->begun_max ? value : run->begun_max;
		return ++run->begun_answers == run->ranks ? agree_on_last(run) : 0;
	case MEET_LAST:
		run->last = value;
		run->is_open_ended = false;
		return 0;
	}
	return 0;
}

static void say_stuck(const struct bench_stream *stream, uint64_t now_ns)
{
	uint64_t next = stream->arrived * stream_members(stream);
	const char *way = stream->is_send ? "send to" : "receive from";
	char text[256];

	if (stream->arrived < stream->posted) {
		struct bench_stream *own = (struct bench_stream *)stream;
		uint64_t age_ns = now_ns - request_at(own, stream->arrived)->posted_ns;

		snprintf(text, sizeof(text), "message %llu posted %.1f s ago and not done",
			 (unsigned long long)next, (double)age_ns * 1e-9);
	} else {
		snprintf(text, sizeof(text), "message %llu %s", (unsigned long long)next,
			 stream->prepared > stream->posted ? "refused by the plugin (NULL request)"
							   : "waits for another message");
	}
	bench_error("stuck: %s rank %d, comm %d: %s; %llu outstanding, %llu done", way,
		    stream->peer, stream->comm_idx, text,
		    (unsigned long long)(stream->posted - stream->arrived),
		    (unsigned long long)stream->arrived);
}

static int give_up(struct bench_run *run, uint64_t now_ns)
{
	int lines = 0;

	for (int i = 0; i < run->stream_count && lines < STUCK_LINES_MAX; i++) {
		const struct bench_stream *stream = &run->streams[i];

		if (stream->arrived < requests_until(stream, run->last)) {
			say_stuck(stream, now_ns);
			lines++;
		}
	}
	bench_error("no progress for %u s (--timeout), size %llu", run->plan->timeout_s,
		    (unsigned long long)run->size);
	return -ETIMEDOUT;
}

/* The slow part of the loop: clock, intervals, news from other ranks, watchdog. */
static int look(struct bench_run *run)
{
	uint64_t now_ns = bench_now_ns();
	int rc;

	if (now_ns - run->looked_ns < LOOK_NS) {
		return 0;
	}
	run->looked_ns = now_ns;
	meter_tick(&run->meter, now_ns);
	if (run->stop_ns && (now_ns >= run->stop_ns || bench_is_interrupted())) {
		rc = stop_by_time(run);
		if (rc) {
			return rc;
		}
	}
	if (now_ns > run->moved_ns + run->plan->timeout_s * UINT64_C(1000000000)) {
		return give_up(run, now_ns);
	}
	if (run->lost_ns) {
		return now_ns - run->lost_ns > run->plan->linger_s * UINT64_C(1000000000)
			       ? -ECONNRESET : 0;
	}
	rc = control(run);
	if (rc && run->plan->linger_s) {
		run->lost_ns = now_ns;
		return 0;
	}
	return rc;
}

static void idle(const struct bench_run *run, unsigned fruitless)
{
	struct timespec pause = {.tv_nsec = SLEEP_NS};

	if (fruitless < PASSES_BEFORE_IDLE || run->local->poll == BENCH_POLL_SPIN) {
		return;
	}
	if (run->local->poll == BENCH_POLL_SLEEP) {
		nanosleep(&pause, NULL);
	} else {
		sched_yield();
	}
}

static void next_iteration(struct bench_run *run)
{
	if (!run->op->is_serial || run->current >= run->last || !all_done(run, run->current + 1)) {
		return;
	}
	if (run->op->is_pingpong) {
		note_round_trip(run);
	}
	run->current++;
	run->iter_start_ns = bench_now_ns();
}

int engine_start_size(struct bench_run *run, uint64_t size)
{
	run->size = size;
	run->epoch++;
	run->current = run->last = 0;
	for (int i = 0; i < run->stream_count; i++) {
		struct bench_stream *stream = &run->streams[i];

		run->op->shape(stream);
		stream->capacity = stream->part_bytes < run->plan->chunk_bytes
					   ? stream->part_bytes : run->plan->chunk_bytes;
		stream->prepared = stream->posted = stream->arrived = stream->done = 0;
	}
	return 0;
}

int engine_run(struct bench_run *run, uint64_t iters)
{
	uint64_t start_ns = bench_now_ns(), first = run->last;
	unsigned passes = 0, fruitless = 0;

	run->is_open_ended = iters == 0;
	run->last = iters ? first + iters : BENCH_ITERS_MAX;
	run->stop_ns = run->rank == 0 && !iters
			       ? start_ns + run->plan->duration_s * UINT64_C(1000000000) : 0;
	run->iter_start_ns = run->moved_ns = start_ns;
	while (run->is_open_ended || !all_done(run, run->last)) {
		int rc = pass(run);

		if (rc < 0) {
			return rc;
		}
		fruitless = rc ? 0 : fruitless + 1;
		next_iteration(run);
		if (++passes % PASSES_PER_LOOK == 0 || fruitless >= PASSES_BEFORE_IDLE) {
			rc = look(run);
			if (rc) {
				return rc;
			}
		}
		idle(run, fruitless);
	}
	next_iteration(run);
	run->meter.stat.elapsed_ns = bench_now_ns() - start_ns;
	run->meter.stat.iters = run->last - first;
	return 0;
}
