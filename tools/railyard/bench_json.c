/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_json.c - the machine-readable report. Times in ns or us as the names say, rates in bytes/s
 * or GB/s (10^9) as in nccl-tests.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench_ops.h"
#include "bench_report.h"

static void set_u64(json_t *object, const char *key, uint64_t value)
{
	json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void set_real(json_t *object, const char *key, double value)
{
	json_object_set_new(object, key, json_real(value));
}

static json_t *plan_object(const struct bench_run *run)
{
	const struct bench_plan *plan = run->plan;
	json_t *object = json_object();

	set_u64(object, "ranks", (uint64_t)run->ranks);
	set_u64(object, "comms", plan->comms);
	set_u64(object, "chunk_bytes", plan->chunk_bytes);
	set_u64(object, "window", plan->window);
	set_u64(object, "group", plan->group);
	set_u64(object, "warmup", plan->warmup);
	set_u64(object, "duration_s", plan->duration_s);
	set_u64(object, "interval_ms", plan->interval_ms);
	json_object_set_new(object, "bidir", json_boolean(plan->bidir));
	json_object_set_new(object, "reverse", json_boolean(plan->reverse));
	json_object_set_new(object, "check", json_boolean(plan->check));
	json_object_set_new(object, "canary", json_boolean(plan->canary));
	json_object_set_new(object, "traffic_class", json_integer(plan->traffic_class));
	return object;
}

void json_start(struct bench_report *report, const struct bench_run *run)
{
	json_t *plugin = json_object();

	if (!run->local->json) {
		json_decref(plugin);
		return;
	}
	json_object_set_new(plugin, "path", json_string(run->net->path));
	json_object_set_new(plugin, "name", json_string(run->net->name));
	json_object_set_new(plugin, "abi", json_integer(run->net->abi));
	report->root = json_object();
	json_object_set_new(report->root, "operation", json_string(run->op->name));
	json_object_set_new(report->root, "type", json_string(run->op->type));
	json_object_set_new(report->root, "plugin", plugin);
	json_object_set_new(report->root, "options", plan_object(run));
	json_object_set_new(report->root, "ranks", json_array());
	json_object_set_new(report->root, "results", json_array());
}

void json_add_rank(struct bench_report *report, int rank, const char *host, int pid,
		   const char *devices, int speed_mbps)
{
	json_t *object;

	if (!report->root) {
		return;
	}
	object = json_object();
	json_object_set_new(object, "rank", json_integer(rank));
	json_object_set_new(object, "host", json_string(host));
	json_object_set_new(object, "pid", json_integer(pid));
	json_object_set_new(object, "devices", json_string(devices));
	json_object_set_new(object, "speed_mbps", json_integer(speed_mbps));
	json_array_append_new(json_object_get(report->root, "ranks"), object);
}

static void set_latency(json_t *object, const struct bench_hist *hist)
{
	set_real(object, "p50_us", (double)hist_permille(hist, 500) * 1e-3);
	set_real(object, "p99_us", (double)hist_permille(hist, 990) * 1e-3);
	set_real(object, "max_us", (double)hist->max * 1e-3);
}

void json_add_row(struct bench_report *report, const struct bench_row *row)
{
	json_t *object;

	if (!report->root) {
		return;
	}
	object = json_object();
	set_u64(object, "size", row->size);
	set_u64(object, "count", row->count);
	set_u64(object, "iters", row->iters);
	set_real(object, "time_us", row->time_us);
	set_real(object, "algbw", row->algbw);
	set_real(object, "busbw", row->busbw);
	set_u64(object, "wrong", row->wrong);
	set_u64(object, "bad_sizes", row->bad_sizes);
	set_u64(object, "overruns", row->overruns);
	set_u64(object, "canaries", row->canaries);
	set_real(object, "gap_ms", (double)row->gap_ns * 1e-6);
	set_latency(object, &row->latency);
	json_object_set_new(object, "ranks", json_array());
	json_array_append_new(json_object_get(report->root, "results"), object);
}

void json_add_row_rank(struct bench_report *report, int rank, const struct bench_stat *stat,
		       uint64_t start_wall_ms, const struct bench_interval *of_intervals,
		       uint32_t interval_ms)
{
	json_t *results = report->root ? json_object_get(report->root, "results") : NULL;
	json_t *row = results ? json_array_get(results, json_array_size(results) - 1) : NULL;
	json_t *object, *rates, *gaps;

	if (!row) {
		return;
	}
	object = json_object();
	json_object_set_new(object, "rank", json_integer(rank));
	set_u64(object, "start_wall_ms", start_wall_ms);
	set_u64(object, "elapsed_ns", stat->elapsed_ns);
	set_u64(object, "sent_bytes", stat->sent_bytes);
	set_u64(object, "sent_messages", stat->sent_msgs);
	set_u64(object, "received_bytes", stat->recv_bytes);
	set_u64(object, "received_messages", stat->recv_msgs);
	set_real(object, "receive_bytes_per_s", stat_recv_rate(stat));
	set_u64(object, "wrong", stat->wrong);
	set_u64(object, "canaries", stat->canaries);
	set_real(object, "gap_ms", (double)stat->gap_ns * 1e-6);
	set_latency(object, &stat->latency);
	rates = json_array();
	gaps = json_array();
	for (uint64_t i = 0; i < stat->interval_count; i++) {
		const struct bench_interval *interval = &of_intervals[i];

		json_array_append_new(rates,
				      json_real((double)interval->bytes * 1e3 / interval_ms));
		json_array_append_new(gaps, json_real((double)interval->gap_ns * 1e-6));
	}
	json_object_set_new(object, "interval_bytes_per_s", rates);
	json_object_set_new(object, "interval_gap_ms", gaps);
	json_array_append_new(json_object_get(row, "ranks"), object);
}

void json_add_calls(struct bench_report *report, int rank, const struct bench_call_stat *calls)
{
	json_t *ranks = report->root ? json_object_get(report->root, "ranks") : NULL;
	json_t *all;

	if (!ranks) {
		return;
	}
	all = json_object();
	for (int call = 0; call < CALL_COUNT; call++) {
		json_t *object = json_object();

		set_u64(object, "count", calls[call].count);
		set_u64(object, "fruitless", calls[call].fruitless);
		set_u64(object, "sum_ns", calls[call].sum_ns);
		set_u64(object, "p999_ns", hist_permille(&calls[call].time, 999));
		set_u64(object, "max_ns", calls[call].time.max);
		json_object_set_new(all, bench_call_names[call], object);
	}
	json_object_set_new(json_array_get(ranks, (size_t)rank), "calls", all);
}

int json_write(struct bench_report *report, const char *path)
{
	FILE *file = stdout;
	int rc = 0;

	if (!report->root) {
		return 0;
	}
	if (strcmp(path, "-") != 0) {
		file = fopen(path, "we");
	}
	if (!file || json_dumpf(report->root, file, JSON_INDENT(1)) || fputc('\n', file) == EOF) {
		rc = -EIO;
	}
	if (file && file != stdout && fclose(file)) {
		rc = -EIO;
	}
	if (rc) {
		bench_error("cannot write %s: %s", path, strerror(errno));
	}
	json_decref(report->root);
	report->root = NULL;
	return rc;
}
