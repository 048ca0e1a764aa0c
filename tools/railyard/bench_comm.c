/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE
#include "bench_comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench_data.h"
#include "bench_ops.h"

enum {
	SLOT_ALIGN = 128,		/* LL128 needs lines that are not torn */
	POLL_PAUSE_NS = 200000,
	NAME_BYTES_MAX = 128,
};

/* ---- devices --------------------------------------------------------------------------------- */

static int find_device(struct bench_run *run, const char *word)
{
	struct bench_props props;
	char *end;
	long number = strtol(word, &end, 10);

	if (*word && !*end) {
		return number >= 0 && number < run->net->device_count ? (int)number : -ENODEV;
	}
	for (int dev = 0; dev < run->net->device_count; dev++) {
		if (net_props(run->net, dev, &props) == 0 && strcmp(props.name, word) == 0) {
			return dev;
		}
	}
	return -ENODEV;
}

static int list_devices(struct bench_run *run)
{
	const char *at = run->local->devs;
	char word[NAME_BYTES_MAX];

	if (strcmp(at, "all") == 0) {
		while (run->dev_count < run->net->device_count && run->dev_count < BENCH_DEVS_MAX) {
			run->devs[run->dev_count] = run->dev_count;
			run->dev_count++;
		}
		return 0;
	}
	while (*at) {
		size_t length = strcspn(at, ",");
		int dev;

		snprintf(word, sizeof(word), "%.*s", (int)length, at);
		dev = find_device(run, word);
		if (dev < 0 || run->dev_count == BENCH_DEVS_MAX) {
			bench_error("--dev %s: no device \"%s\" among the %d of %s",
				    run->local->devs, word, run->net->device_count, run->net->name);
			return -ENODEV;
		}
		run->devs[run->dev_count++] = dev;
		at += length + (at[length] == ',');
	}
	return run->dev_count ? 0 : -ENODEV;
}

int comm_choose_devices(struct bench_run *run)
{
	int max = net_merge_max(run->net), dev, rc = list_devices(run);

	if (rc || run->dev_count < 2 || run->local->merge == BENCH_MERGE_NONE) {
		return rc;
	}
	if (run->dev_count > max) {
		if (run->local->merge == BENCH_MERGE_AUTO) {
			return 0;
		}
		bench_error("--merge all: %d devices, %s can fuse %d with ABI v%d: choose with "
			    "--dev, or --merge none",
			    run->dev_count, run->net->name, max, run->net->abi);
		return -ENOTSUP;
	}
	rc = net_merge(run->net, run->devs, run->dev_count, &dev);
	if (rc) {
		return run->local->merge == BENCH_MERGE_AUTO ? 0 : rc;
	}
	run->devs[0] = dev;
	run->dev_count = 1;
	return 0;
}

/* ---- streams --------------------------------------------------------------------------------- */

static int allocate_arena(struct bench_stream *stream)
{
	const struct bench_run *run = stream->run;
	const struct bench_plan *plan = run->plan;
	size_t most;

	run->op->shape(stream);
	most = stream->part_bytes < plan->chunk_bytes ? stream->part_bytes : plan->chunk_bytes;
	stream->slot_count = plan->window * plan->group *
			     (!stream->is_send && plan->canary ? 2 : 1);
	stream->stride = (most + BENCH_GUARD_BYTES + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
	stream->arena_bytes = stream->stride * stream->slot_count;
	stream->arena = mmap(NULL, stream->arena_bytes, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stream->arena == MAP_FAILED) {
		stream->arena = NULL;
		bench_error("no memory for %zu bytes of buffers: use a smaller --chunk or --window",
			    stream->arena_bytes);
		return -ENOMEM;
	}
	canary_fill(stream->arena, stream->arena_bytes);
	return 0;
}

static void add_streams(struct bench_run *run, int peer, bool is_send)
{
	for (int i = 0; i < (int)run->plan->comms; i++) {
		struct bench_stream *stream = &run->streams[run->stream_count++];

		stream->run = run;
		stream->is_send = is_send;
		stream->peer = peer;
		stream->comm_idx = i;
		stream->dev = run->devs[i % run->dev_count];
	}
}

/* The receive that feeds a send is the one of the same number; which peer it has, the operation
 * decides, and operations that look at it have only one. */
static void pair_streams(struct bench_run *run)
{
	for (int i = 0; i < run->stream_count; i++) {
		for (int j = 0; j < run->stream_count && run->streams[i].is_send; j++) {
			struct bench_stream *other = &run->streams[j];

			if (!other->is_send && other->comm_idx == run->streams[i].comm_idx) {
				run->streams[i].twin = other;
			}
		}
	}
}

/* Each rank begins with the next one, so that they do not all call on the same. */
static int build_streams(struct bench_run *run)
{
	size_t most = (size_t)run->ranks * run->plan->comms * 2;
	int rc = 0;

	run->streams = calloc(most, sizeof(run->streams[0]));
	if (!run->streams) {
		return -ENOMEM;
	}
	for (int step = 0; step < run->ranks; step++) {
		int next = (run->rank + step) % run->ranks;
		int last = (run->rank + run->ranks - step) % run->ranks;

		if (bench_op_receives(run, last)) {
			add_streams(run, last, false);
		}
		if (bench_op_sends(run, next)) {
			add_streams(run, next, true);
		}
	}
	pair_streams(run);
	run->size = run->plan->size_max;
	for (int i = 0; i < run->stream_count && !rc; i++) {
		rc = allocate_arena(&run->streams[i]);
	}
	return rc;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* In all handles of a rank: those for sender @from, connection @comm_idx. */
static size_t handle_at(const struct bench_run *run, int owner, int from, int comm_idx)
{
	size_t comms = run->plan->comms, per_rank = (size_t)run->ranks * comms;

	return ((size_t)owner * per_rank + (size_t)from * comms + (size_t)comm_idx) *
	       RY_NET_HANDLE_BYTES_MAX;
}

static int listen_all(struct bench_run *run, uint8_t *mine)
{
	int rc = 0;

	for (int i = 0; i < run->stream_count && !rc; i++) {
		struct bench_stream *stream = &run->streams[i];

		if (!stream->is_send) {
			rc = net_listen(run->net, stream->dev, stream->handle,
					&stream->listen_comm);
			memcpy(mine + handle_at(run, 0, stream->peer, stream->comm_idx),
			       stream->handle, sizeof(stream->handle));
		}
	}
	return rc;
}

static int exchange_handles(struct bench_run *run)
{
	size_t per_rank = handle_at(run, 1, 0, 0);
	uint8_t *mine = calloc(1, per_rank), *all = calloc((size_t)run->ranks, per_rank);
	int rc = mine && all ? listen_all(run, mine) : -ENOMEM;

	if (!rc) {
		rc = meet_allgather(run->meet, mine, per_rank, all);
	}
	for (int i = 0; i < run->stream_count && !rc; i++) {
		struct bench_stream *stream = &run->streams[i];

		if (stream->is_send) {
			memcpy(stream->handle,
			       all + handle_at(run, stream->peer, run->rank, stream->comm_idx),
			       sizeof(stream->handle));
		}
	}
	free(mine);
	free(all);
	return rc;
}

/* One try. The listen comm goes as soon as its only caller is there. */
static int try_connect(struct bench_stream *stream)
{
	struct bench_net *net = stream->run->net;
	int rc;

	if (stream->is_send) {
		return net_connect(net, stream->dev, stream->handle, &stream->comm);
	}
	rc = net_accept(net, stream->listen_comm, &stream->comm);
	if (!rc && stream->comm) {
		rc = net_close_listen(net, stream->listen_comm);
		stream->listen_comm = NULL;
	}
	return rc;
}

static int say_unconnected(const struct bench_run *run)
{
	for (int i = 0; i < run->stream_count; i++) {
		const struct bench_stream *stream = &run->streams[i];

		if (!stream->comm) {
			bench_error("%s rank %d, comm %d, device %d: not connected after %u s",
				    stream->is_send ? "connect to" : "accept from", stream->peer,
				    stream->comm_idx, stream->dev, run->plan->timeout_s);
			break;
		}
	}
	return -ETIMEDOUT;
}

static int connect_all(struct bench_run *run)
{
	uint64_t deadline_ns = bench_now_ns() + run->plan->timeout_s * UINT64_C(1000000000);
	struct timespec pause = {.tv_nsec = POLL_PAUSE_NS};
	int missing;

	do {
		enum meet_control kind;
		uint64_t value;
		int from, rc = meet_poll(run->meet, &kind, &value, &from);

		missing = 0;
		for (int i = 0; i < run->stream_count && !rc; i++) {
			if (!run->streams[i].comm) {
				rc = try_connect(&run->streams[i]);
				missing += !run->streams[i].comm;
			}
		}
		if (rc) {
			return rc;
		}
		if (missing && bench_now_ns() > deadline_ns) {
			return say_unconnected(run);
		}
		if (missing) {
			nanosleep(&pause, NULL);
		}
	} while (missing);
	return 0;
}

static int register_all(struct bench_run *run)
{
	int rc = 0;

	for (int i = 0; i < run->stream_count && !rc; i++) {
		struct bench_stream *stream = &run->streams[i];

		rc = net_reg(run->net, stream->comm, stream->arena, stream->arena_bytes,
			     &stream->mhandle);
	}
	return rc;
}

static int allocate_data(struct bench_run *run)
{
	run->data_bytes = run->op->data_bytes
				  ? run->op->data_bytes(run, run->plan->size_max) : 0;
	run->data = run->data_bytes ? malloc(run->data_bytes) : NULL;
	if (run->data_bytes && !run->data) {
		bench_error("no memory for %zu bytes of data: lower -e", run->data_bytes);
		return -ENOMEM;
	}
	return 0;
}

int comm_open(struct bench_run *run)
{
	int rc = build_streams(run);

	if (!rc) {
		rc = allocate_data(run);
	}
	if (!rc) {
		rc = exchange_handles(run);
	}
	if (!rc) {
		rc = connect_all(run);
	}
	if (!rc) {
		rc = register_all(run);
	}
	return rc ? rc : meet_barrier(run->meet);
}

static void close_stream(struct bench_stream *stream)
{
	struct bench_net *net = stream->run->net;

	if (stream->mhandle) {
		net_dereg(net, stream->comm, stream->mhandle);
	}
	if (stream->comm) {
		(void)(stream->is_send ? net_close_send(net, stream->comm)
				       : net_close_recv(net, stream->comm));
	}
	if (stream->listen_comm) {
		net_close_listen(net, stream->listen_comm);
	}
	if (stream->arena) {
		munmap(stream->arena, stream->arena_bytes);
	}
}

void comm_close(struct bench_run *run)
{
	for (int i = 0; i < run->stream_count; i++) {
		close_stream(&run->streams[i]);
	}
	free(run->streams);
	free(run->data);
	run->streams = NULL;
	run->data = NULL;
	run->stream_count = 0;
}
