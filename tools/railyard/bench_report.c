/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE
#include "bench_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_ops.h"

const char *const bench_call_names[CALL_COUNT] = {"setup", "isend", "irecv", "test", "close"};

/* What a rank tells of itself. */
struct rank_info {
	char host[64];
	char plugin[64];
	char devices[384];
	int32_t pid;
	int32_t abi;
	int32_t speed_mbps;		/* sum over the devices used */
	int32_t dev_count;
};

/* What a rank sends for a size; its intervals follow. */
struct rank_block {
	struct bench_stat stat;
	uint64_t start_wall_ms;
};

static int describe_rank(struct bench_run *run, struct rank_info *info)
{
	size_t at = 0;

	memset(info, 0, sizeof(*info));
	gethostname(info->host, sizeof(info->host) - 1);
	snprintf(info->plugin, sizeof(info->plugin), "%s", run->net->name);
	info->pid = (int32_t)getpid();
	info->abi = run->net->abi;
	info->dev_count = run->dev_count;
	for (int i = 0; i < run->dev_count; i++) {
		struct bench_props props;
		int n, rc = net_props(run->net, run->devs[i], &props);

		if (rc) {
			return rc;
		}
		n = snprintf(info->devices + at, sizeof(info->devices) - at, "%s%s", i ? "," : "",
			     props.name);
		at += (size_t)n < sizeof(info->devices) - at ? (size_t)n : 0;
		info->speed_mbps += props.speed_mbps;
	}
	return 0;
}

static int print_devices(struct bench_run *run)
{
	printf("# plugin %s\n# ABI    ncclNetPlugin_v%d, name \"%s\", %d device%s\n",
	       run->net->path, run->net->abi, run->net->name, run->net->device_count,
	       run->net->device_count == 1 ? "" : "s");
	for (int dev = 0; dev < run->net->device_count; dev++) {
		struct bench_props props;
		int rc = net_props(run->net, dev, &props);

		if (rc) {
			return rc;
		}
		printf("# device %2d  %-16s  %d Mbit/s  port %d  guid 0x%llx  pci %s\n", dev,
		       props.name, props.speed_mbps, props.port, (unsigned long long)props.guid,
		       props.pci_path[0] ? props.pci_path : "-");
	}
	return 0;
}

static void print_head(const struct bench_run *run)
{
	const struct bench_plan *plan = run->plan;

	printf("# %s%s%s, %d ranks, %u comm%s per pair, chunk %llu B, window %u, group %u, "
	       "check %s, canary %s\n",
	       run->op->name, plan->bidir ? " both ways" : "", plan->reverse ? " reversed" : "",
	       run->ranks, plan->comms, plan->comms == 1 ? "" : "s",
	       (unsigned long long)plan->chunk_bytes, plan->window, plan->group,
	       plan->check ? "every byte" : "off", plan->canary ? "on" : "off");
	printf("#\n#%11s %12s %7s %11s %9s %9s %7s %9s %9s %9s %6s\n", "size", "count", "type",
	       "time", "algbw", "busbw", "#wrong", "p50", "p99", "gap", "#late");
	printf("#%11s %12s %7s %11s %9s %9s %7s %9s %9s %9s %6s\n", "(B)", "(elements)", "",
	       "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(ms)", "");
	fflush(stdout);
}

static int check_ranks(const struct bench_run *run, const struct rank_info *all)
{
	for (int rank = 1; rank < run->ranks; rank++) {
		if (strcmp(all[rank].plugin, all[0].plugin) != 0) {
			bench_error("rank %d opened \"%s\", rank 0 \"%s\": use one plugin", rank,
				    all[rank].plugin, all[0].plugin);
			return -EINVAL;
		}
	}
	return 0;
}

int report_start(struct bench_report *report, struct bench_run *run)
{
	struct rank_info mine, *all = calloc((size_t)run->ranks, sizeof(*all));
	int rc = all ? describe_rank(run, &mine) : -ENOMEM;

	if (!rc) {
		rc = meet_allgather(run->meet, &mine, sizeof(mine), all);
	}
	if (!rc) {
		rc = check_ranks(run, all);
	}
	if (!rc && run->rank == 0) {
		rc = print_devices(run);
		json_start(report, run);
		for (int rank = 0; rank < run->ranks; rank++) {
			printf("# rank   %2d  host %s  pid %d  v%d  uses %s  %d Mbit/s\n", rank,
			       all[rank].host, all[rank].pid, all[rank].abi, all[rank].devices,
			       all[rank].speed_mbps);
			json_add_rank(report, rank, all[rank].host, all[rank].pid,
				      all[rank].devices, all[rank].speed_mbps);
		}
		print_head(run);
	}
	free(all);
	return rc;
}

/* ---- one size -------------------------------------------------------------------------------- */

static void join_block(struct bench_row *row, const struct bench_stat *stat, double *slowest_ns)
{
	row->iters = stat->iters;
	row->wrong += stat->wrong;
	row->bad_sizes += stat->bad_sizes;
	row->overruns += stat->overruns;
	row->canaries += stat->canaries;
	if (stat->gap_ns > row->gap_ns) {
		row->gap_ns = stat->gap_ns;
	}
	if ((double)stat->elapsed_ns > *slowest_ns) {
		*slowest_ns = (double)stat->elapsed_ns;
	}
	hist_join(&row->latency, &stat->latency);
}

static void finish_row(const struct bench_run *run, struct bench_row *row, double slowest_ns)
{
	row->size = run->size;
	row->count = run->op->count(run, run->size);
	row->time_us = row->iters ? slowest_ns * 1e-3 / (double)row->iters : 0;
	if (run->op->is_pingpong) {
		row->time_us /= 2;
	}
	row->algbw = row->time_us > 0 ? (double)row->size * 1e-3 / row->time_us : 0;
	row->busbw = row->algbw * run->op->bus_factor(run);
}

static void print_row(const struct bench_run *run, const struct bench_row *row)
{
	char wrong[24] = "N/A";

	if (run->plan->check) {
		snprintf(wrong, sizeof(wrong), "%llu", (unsigned long long)row->wrong);
	}
	printf("%12llu %12llu %7s %11.2f %9.5f %9.5f %7s %9.1f %9.1f %9.2f %6llu\n",
	       (unsigned long long)row->size, (unsigned long long)row->count, run->op->type,
	       row->time_us, row->algbw, row->busbw, wrong,
	       (double)hist_permille(&row->latency, 500) * 1e-3,
	       (double)hist_permille(&row->latency, 990) * 1e-3, (double)row->gap_ns * 1e-6,
	       (unsigned long long)row->canaries);
	if (row->bad_sizes || row->overruns) {
		printf("#   %llu sizes told wrong by test(), %llu messages with bytes behind their "
		       "end changed\n",
		       (unsigned long long)row->bad_sizes, (unsigned long long)row->overruns);
	}
}

static void print_rank(int rank, const struct bench_stat *stat)
{
	double seconds = (double)stat->elapsed_ns * 1e-9;

	printf("#   rank %d  sent %.3f MB/s  received %.3f MB/s  messages %llu out %llu in  "
	       "p50 %.1f p99 %.1f us  gap %.2f ms\n",
	       rank, seconds > 0 ? (double)stat->sent_bytes * 1e-6 / seconds : 0,
	       stat_recv_rate(stat) * 1e-6, (unsigned long long)stat->sent_msgs,
	       (unsigned long long)stat->recv_msgs,
	       (double)hist_permille(&stat->latency, 500) * 1e-3,
	       (double)hist_permille(&stat->latency, 990) * 1e-3, (double)stat->gap_ns * 1e-6);
}

static size_t intervals_bytes(const struct bench_stat *stat)
{
	return stat->interval_count * sizeof(struct bench_interval);
}

static int show_blocks(struct bench_report *report, struct bench_run *run, void **blocks,
		       const size_t *lengths)
{
	struct bench_row row = {0};
	double slowest_ns = 0;

	for (int rank = 0; rank < run->ranks; rank++) {
		const struct rank_block *block = blocks[rank];

		if (lengths[rank] < sizeof(*block) ||
		    lengths[rank] != sizeof(*block) + intervals_bytes(&block->stat)) {
			bench_error("rank %d sent %zu bytes of results: use the same build "
				    "everywhere",
				    rank, lengths[rank]);
			return -EPROTO;
		}
		join_block(&row, &block->stat, &slowest_ns);
	}
	finish_row(run, &row, slowest_ns);
	print_row(run, &row);
	json_add_row(report, &row);
	for (int rank = 0; rank < run->ranks; rank++) {
		const struct rank_block *block = blocks[rank];

		if (run->local->per_rank) {
			print_rank(rank, &block->stat);
		}
		json_add_row_rank(report, rank, &block->stat, block->start_wall_ms,
				  (const struct bench_interval *)(block + 1),
				  run->plan->interval_ms);
	}
	fflush(stdout);
	report->faults += row.wrong + row.bad_sizes + row.overruns + row.canaries;
	report->busbw_sum += row.busbw;
	return 0;
}

static void free_blocks(const struct bench_run *run, void **blocks, size_t *lengths)
{
	for (int rank = 0; blocks && rank < run->ranks; rank++) {
		free(blocks[rank]);
	}
	free(blocks);
	free(lengths);
}

int report_size(struct bench_report *report, struct bench_run *run)
{
	const struct bench_meter *meter = &run->meter;
	size_t interval_bytes = intervals_bytes(&meter->stat);
	size_t bytes = sizeof(struct rank_block) + interval_bytes;
	struct rank_block *mine = calloc(1, bytes);
	void **blocks = run->rank ? NULL : calloc((size_t)run->ranks, sizeof(*blocks));
	size_t *lengths = run->rank ? NULL : calloc((size_t)run->ranks, sizeof(*lengths));
	int rc = -ENOMEM;

	if (mine && (run->rank || (blocks && lengths))) {
		mine->stat = meter->stat;
		mine->start_wall_ms = meter->start_wall_ms;
		if (interval_bytes) {
			memcpy(mine + 1, meter->intervals, interval_bytes);
		}
		rc = meet_gather(run->meet, mine, bytes, blocks, lengths);
	}
	if (!rc && run->rank == 0) {
		rc = show_blocks(report, run, blocks, lengths);
	} else if (!rc) {
		report->faults += meter->stat.wrong + meter->stat.bad_sizes +
				  meter->stat.overruns + meter->stat.canaries;
	}
	report->rows++;
	report->last_size = run->size;
	free_blocks(run, blocks, lengths);
	free(mine);
	return rc;
}

bool report_has(const struct bench_report *report, uint64_t size)
{
	return report->rows && report->last_size == size;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void print_calls(int rank, const struct bench_call_stat *calls)
{
	printf("# calls of rank %d:", rank);
	for (int call = 0; call < CALL_COUNT; call++) {
		const struct bench_call_stat *stat = &calls[call];

		printf("  %s %llu (mean %.2f, 99.9 %% below %.1f, longest %.1f us)",
		       bench_call_names[call], (unsigned long long)stat->count,
		       stat->count ? (double)stat->sum_ns * 1e-3 / (double)stat->count : 0,
		       (double)hist_permille(&stat->time, 999) * 1e-3,
		       (double)stat->time.max * 1e-3);
	}
	printf("\n");
}

int report_finish(struct bench_report *report, struct bench_run *run)
{
	size_t bytes = sizeof(run->net->stat);
	struct bench_call_stat *all = calloc((size_t)run->ranks, bytes);
	int rc = all ? meet_allgather(run->meet, run->net->stat, bytes, all) : -ENOMEM;

	if (!rc && run->rank == 0) {
		for (int rank = 0; rank < run->ranks; rank++) {
			if (run->local->time_calls) {
				print_calls(rank, all + rank * CALL_COUNT);
			}
			json_add_calls(report, rank, all + rank * CALL_COUNT);
		}
		printf("# %s, mean busbw %.5f GB/s\n",
		       report->faults ? "WRONG DATA" : "no byte wrong, none written late",
		       report->rows ? report->busbw_sum / report->rows : 0);
		rc = json_write(report, run->local->json);
	}
	free(all);
	return rc;
}

void report_failure(struct bench_report *report, const struct bench_run *run, const char *why)
{
	if (report->root) {
		json_object_set_new(report->root, "error", json_string(why));
		json_write(report, run->local->json);
	}
}
