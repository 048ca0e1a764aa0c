/* SPDX-License-Identifier: BSD-3-Clause */
#include "bench_ops.h"

#include <errno.h>
#include <string.h>

#include "bench_data.h"

enum { PART_ALIGN = 128 };		/* parts of connections begin at multiples of this */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
	return (a + b - 1) / b;
}

/* Every size of a run has payload of its own, so that a message of the last size is noticed. */
static uint64_t payload_iter(const struct bench_run *run, uint64_t iter)
{
	return run->epoch * BENCH_ITERS_MAX + iter;
}

/* This connection's part of @total bytes. */
static void take_part(struct bench_stream *stream, uint64_t total)
{
	uint64_t comms = stream->run->plan->comms;
	uint64_t each = divide_up(divide_up(total, comms), PART_ALIGN) * PART_ALIGN;

	stream->part_offset = min_u64((uint64_t)stream->comm_idx * each, total);
	stream->part_bytes = min_u64(each, total - stream->part_offset);
}

/* Connections other than the first have nothing to do when their part is empty. */
static uint64_t count_slices(const struct bench_stream *stream, uint64_t bytes)
{
	if (bytes == 0) {
		return stream->comm_idx == 0 ? 1 : 0;
	}
	return divide_up(bytes, stream->run->plan->chunk_bytes);
}

/* ---- point to point: sendrecv, pingpong, alltoall -------------------------------------------- */

static uint64_t p2p_round(const struct bench_run *run, uint64_t size)
{
	(void)run;
	return size;
}

static uint64_t p2p_count(const struct bench_run *run, uint64_t size)
{
	(void)run;
	return size;
}

static double sendrecv_factor(const struct bench_run *run)
{
	return run->plan->group * (run->plan->bidir ? 2.0 : 1.0);
}

static double pingpong_factor(const struct bench_run *run)
{
	(void)run;
	return 1.0;
}

static void p2p_shape_total(struct bench_stream *stream, uint64_t total)
{
	take_part(stream, total);
	stream->slices = count_slices(stream, stream->part_bytes);
	stream->steps = stream->slices * stream->run->plan->group;
}

static void p2p_shape(struct bench_stream *stream)
{
	p2p_shape_total(stream, stream->run->size);
}

static void p2p_locate(const struct bench_stream *stream, struct bench_msg *msg)
{
	uint64_t group = stream->run->plan->group, chunk = stream->run->plan->chunk_bytes;
	uint64_t in_iter = msg->number % stream->steps;
	uint64_t at = in_iter / group * chunk;

	msg->iter = msg->number / stream->steps;
	msg->member = (uint32_t)(in_iter % group);
	msg->offset = stream->part_offset + at;
	msg->bytes = min_u64(chunk, stream->part_bytes - at);
}

static void p2p_produce(struct bench_stream *stream, const struct bench_msg *msg, void *slot)
{
	const struct bench_run *run = stream->run;

	if (run->plan->check) {
		data_fill(slot, msg->bytes,
			  data_seed((uint32_t)run->rank, (uint32_t)stream->peer,
				    payload_iter(run, msg->iter), msg->member),
			  msg->offset);
	}
}

static size_t p2p_consume(struct bench_stream *stream, const struct bench_msg *msg,
			  const void *slot, size_t *first_bad)
{
	const struct bench_run *run = stream->run;

	if (!run->plan->check) {
		return 0;
	}
	return data_check(slot, msg->bytes,
			  data_seed((uint32_t)stream->peer, (uint32_t)run->rank,
				    payload_iter(run, msg->iter), msg->member),
			  msg->offset, first_bad);
}

/* Even ranks begin, or the odd ones with --reverse. A rank alone begins. */
static bool is_first(const struct bench_run *run)
{
	return run->ranks == 1 || (run->rank % 2 == 0) != (run->plan->reverse != 0);
}

/* The second rank answers message n once it has message n. */
static bool pingpong_may_send(const struct bench_stream *stream, const struct bench_msg *msg)
{
	return is_first(stream->run) || stream->twin->arrived > msg->number;
}

static uint64_t blocks_round(const struct bench_run *run, uint64_t size)
{
	return size - size % (uint64_t)run->ranks;
}

static uint64_t blocks_count(const struct bench_run *run, uint64_t size)
{
	return size / (uint64_t)run->ranks;
}

static double alltoall_factor(const struct bench_run *run)
{
	return run->plan->group * (run->ranks - 1.0) / run->ranks;
}

static double allgather_factor(const struct bench_run *run)
{
	return (run->ranks - 1.0) / run->ranks;
}

static void alltoall_shape(struct bench_stream *stream)
{
	p2p_shape_total(stream, blocks_count(stream->run, stream->run->size));
}

/* ---- rings: allreduce, allgather ------------------------------------------------------------- */

/* In step s a rank sends block rank - s and receives block rank - s - 1, modulo ranks. */
static void ring_locate_step(const struct bench_stream *stream, struct bench_msg *msg)
{
	uint32_t ranks = (uint32_t)stream->run->ranks;
	uint64_t in_iter = msg->number % stream->steps;
	uint32_t back;

	msg->iter = msg->number / stream->steps;
	msg->step = (uint32_t)(in_iter / stream->slices);
	back = (msg->step + (stream->is_send ? 0 : 1)) % ranks;
	msg->block = ((uint32_t)stream->run->rank + ranks - back) % ranks;
}

/* Slice @index of [lo, hi), in units of which @per_slice make a slice; empty beyond the end. */
static void ring_slice(uint64_t lo, uint64_t hi, uint64_t per_slice, uint64_t index,
		       uint64_t *first, uint64_t *count)
{
	*first = min_u64(lo + index * per_slice, hi);
	*count = min_u64(per_slice, hi - *first);
}

/* What is sent on in step s came in at step s - 1, `slices` messages earlier. */
static bool ring_may_prepare(const struct bench_stream *stream, const struct bench_msg *msg)
{
	return msg->step == 0 || stream->twin->done + stream->slices > msg->number;
}

static uint64_t allreduce_round(const struct bench_run *run, uint64_t size)
{
	(void)run;
	return size - size % sizeof(uint32_t);
}

static size_t allreduce_data_bytes(const struct bench_run *run, uint64_t size)
{
	(void)run;
	return size;
}

static uint64_t allreduce_count(const struct bench_run *run, uint64_t size)
{
	(void)run;
	return size / sizeof(uint32_t);
}

static double allreduce_factor(const struct bench_run *run)
{
	return 2.0 * (run->ranks - 1.0) / run->ranks;
}

static void allreduce_shape(struct bench_stream *stream)
{
	uint64_t ranks = (uint64_t)stream->run->ranks;
	uint64_t block;

	take_part(stream, stream->run->size);
	block = divide_up(stream->part_bytes / sizeof(uint32_t), ranks) * sizeof(uint32_t);
	stream->slices = count_slices(stream, block);
	stream->steps = 2 * (ranks - 1) * stream->slices;
}

static void allreduce_locate(const struct bench_stream *stream, struct bench_msg *msg)
{
	uint64_t ranks = (uint64_t)stream->run->ranks;
	uint64_t base = stream->part_offset / sizeof(uint32_t);
	uint64_t length = stream->part_bytes / sizeof(uint32_t);
	uint64_t first, count;

	ring_locate_step(stream, msg);
	ring_slice(base + length * msg->block / ranks, base + length * (msg->block + 1) / ranks,
		   stream->run->plan->chunk_bytes / sizeof(uint32_t),
		   msg->number % stream->slices, &first, &count);
	msg->offset = first * sizeof(uint32_t);
	msg->bytes = count * sizeof(uint32_t);
}

static uint32_t allreduce_seed(const struct bench_run *run, uint32_t rank, uint64_t iter)
{
	return (uint32_t)data_seed(rank, rank, payload_iter(run, iter), 0);
}

static void allreduce_produce(struct bench_stream *stream, const struct bench_msg *msg, void *slot)
{
	struct bench_run *run = stream->run;
	uint32_t seed = allreduce_seed(run, (uint32_t)run->rank, msg->iter);

	if (msg->step == 0) {
		data32_fill(slot, msg->bytes / 4, seed, msg->offset / 4);
	} else {
		memcpy(slot, run->data + msg->offset, msg->bytes);
	}
}

static size_t allreduce_check(const struct bench_run *run, const struct bench_msg *msg,
			      size_t *first_bad)
{
	uint32_t sum = 0;
	size_t wrong;

	for (uint32_t rank = 0; rank < (uint32_t)run->ranks; rank++) {
		sum += allreduce_seed(run, rank, msg->iter);
	}
	wrong = data32_check((const uint32_t *)(run->data + msg->offset), msg->bytes / 4, sum,
			     (uint32_t)run->ranks, msg->offset / 4, first_bad);
	if (wrong) {
		*first_bad *= sizeof(uint32_t);
	}
	return wrong;
}

/* Steps 0 ... ranks - 2 reduce, the last of them completes the block; later steps pass sums on. */
static size_t allreduce_consume(struct bench_stream *stream, const struct bench_msg *msg,
				const void *slot, size_t *first_bad)
{
	struct bench_run *run = stream->run;
	uint32_t last_reduction = (uint32_t)run->ranks - 2;

	if (msg->step <= last_reduction) {
		data32_add((uint32_t *)(run->data + msg->offset), slot, msg->bytes / 4,
			   allreduce_seed(run, (uint32_t)run->rank, msg->iter), msg->offset / 4);
	} else {
		memcpy(run->data + msg->offset, slot, msg->bytes);
	}
	if (!run->plan->check || msg->step < last_reduction) {
		return 0;
	}
	return allreduce_check(run, msg, first_bad);
}

static size_t allgather_data_bytes(const struct bench_run *run, uint64_t size)
{
	(void)run;
	return size;
}

static void allgather_shape(struct bench_stream *stream)
{
	take_part(stream, blocks_count(stream->run, stream->run->size));
	stream->slices = count_slices(stream, stream->part_bytes);
	stream->steps = ((uint64_t)stream->run->ranks - 1) * stream->slices;
}

static void allgather_locate(const struct bench_stream *stream, struct bench_msg *msg)
{
	uint64_t count;

	ring_locate_step(stream, msg);
	ring_slice(stream->part_offset, stream->part_offset + stream->part_bytes,
		   stream->run->plan->chunk_bytes, msg->number % stream->slices, &msg->offset,
		   &count);
	msg->bytes = count;
}

static uint8_t *allgather_place(const struct bench_run *run, const struct bench_msg *msg)
{
	return run->data + msg->block * blocks_count(run, run->size) + msg->offset;
}

static uint64_t allgather_seed(const struct bench_run *run, const struct bench_msg *msg)
{
	return data_seed(msg->block, msg->block, payload_iter(run, msg->iter), 0);
}

static void allgather_produce(struct bench_stream *stream, const struct bench_msg *msg, void *slot)
{
	struct bench_run *run = stream->run;

	if (msg->step == 0) {
		data_fill(slot, msg->bytes, allgather_seed(run, msg), msg->offset);
	} else {
		memcpy(slot, allgather_place(run, msg), msg->bytes);
	}
}

static size_t allgather_consume(struct bench_stream *stream, const struct bench_msg *msg,
				const void *slot, size_t *first_bad)
{
	struct bench_run *run = stream->run;

	memcpy(allgather_place(run, msg), slot, msg->bytes);
	if (!run->plan->check) {
		return 0;
	}
	return data_check(slot, msg->bytes, allgather_seed(run, msg), msg->offset, first_bad);
}

/* ---- the table ------------------------------------------------------------------------------- */

const struct bench_op bench_ops[BENCH_OP_COUNT] = {
	[BENCH_SENDRECV] = {
		.name = "sendrecv",
		.type = "uint8",
		.is_paired = true,
		.takes_groups = true,
		.round = p2p_round,
		.count = p2p_count,
		.bus_factor = sendrecv_factor,
		.shape = p2p_shape,
		.locate = p2p_locate,
		.produce = p2p_produce,
		.consume = p2p_consume,
	},
	[BENCH_PINGPONG] = {
		.name = "pingpong",
		.type = "uint8",
		.is_serial = true,
		.is_paired = true,
		.is_pingpong = true,
		.round = p2p_round,
		.count = p2p_count,
		.bus_factor = pingpong_factor,
		.shape = p2p_shape,
		.locate = p2p_locate,
		.may_send = pingpong_may_send,
		.produce = p2p_produce,
		.consume = p2p_consume,
	},
	[BENCH_ALLREDUCE] = {
		.name = "allreduce",
		.type = "uint32",
		.is_serial = true,
		.round = allreduce_round,
		.data_bytes = allreduce_data_bytes,
		.count = allreduce_count,
		.bus_factor = allreduce_factor,
		.shape = allreduce_shape,
		.locate = allreduce_locate,
		.may_prepare = ring_may_prepare,
		.produce = allreduce_produce,
		.consume = allreduce_consume,
	},
	[BENCH_ALLGATHER] = {
		.name = "allgather",
		.type = "uint8",
		.is_serial = true,
		.round = blocks_round,
		.data_bytes = allgather_data_bytes,
		.count = blocks_count,
		.bus_factor = allgather_factor,
		.shape = allgather_shape,
		.locate = allgather_locate,
		.may_prepare = ring_may_prepare,
		.produce = allgather_produce,
		.consume = allgather_consume,
	},
	[BENCH_ALLTOALL] = {
		.name = "alltoall",
		.type = "uint8",
		.is_serial = true,
		.takes_groups = true,
		.round = blocks_round,
		.count = blocks_count,
		.bus_factor = alltoall_factor,
		.shape = alltoall_shape,
		.locate = p2p_locate,
		.produce = p2p_produce,
		.consume = p2p_consume,
	},
};

enum bench_op_id bench_op_find(const char *name)
{
	unsigned id = 0;

	while (id < BENCH_OP_COUNT && strcmp(bench_ops[id].name, name) != 0) {
		id++;
	}
	return (enum bench_op_id)id;
}

static bool talks(const struct bench_run *run, int peer, bool as_sender)
{
	int next = (run->rank + 1) % run->ranks, last = (run->rank + run->ranks - 1) % run->ranks;

	if (run->op->is_paired) {
		if (peer != (run->ranks == 1 ? 0 : (run->rank ^ 1))) {
			return false;
		}
		return run->ranks == 1 || run->op->is_pingpong || run->plan->bidir ||
		       is_first(run) == as_sender;
	}
	if (run->plan->op == BENCH_ALLTOALL) {
		return peer != run->rank;
	}
	return peer == (as_sender ? next : last);
}

bool bench_op_sends(const struct bench_run *run, int peer)
{
	return talks(run, peer, true);
}

bool bench_op_receives(const struct bench_run *run, int peer)
{
	return talks(run, peer, false);
}

int bench_op_validate(const struct bench_plan *plan, int ranks)
{
	const struct bench_op *op = &bench_ops[plan->op];

	if (op->is_paired && ranks != 1 && ranks % 2) {
		bench_error("%s works in pairs: %d ranks is odd, give an even number or 1 (itself)",
			    op->name, ranks);
		return -EINVAL;
	}
	if (!op->is_paired && ranks < 2) {
		bench_error("%s needs 2 ranks or more: give --ranks or --local", op->name);
		return -EINVAL;
	}
	if (plan->group > 1 && !op->takes_groups) {
		bench_error("--group is for sendrecv and alltoall, not for %s", op->name);
		return -EINVAL;
	}
	if (plan->bidir && plan->op != BENCH_SENDRECV) {
		bench_error("--bidir is for sendrecv, not for %s", op->name);
		return -EINVAL;
	}
	if (plan->reverse && !op->is_paired) {
		bench_error("--reverse is for sendrecv and pingpong, not for %s", op->name);
		return -EINVAL;
	}
	return 0;
}
