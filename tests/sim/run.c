/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * run.c - guard and shrinker.
 *
 * Shrinking works on the list of answers: drop the tail, drop stretches, set answers to 0, keep
 * what still breaks the same rule. The core keeps no state outside the world's memory, so jumping
 * out of its assert is safe here.
 */
#include "run.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
	SHRINK_RUNS = 1500,
	SHRINK_EVENTS = 5000000,
	TRACE_LINES = 60
};

static sigjmp_buf guard;
static volatile sig_atomic_t guarded;

static void on_fault(int sig)
{
	if (guarded) {
		siglongjmp(guard, sig);
	}
	signal(sig, SIG_DFL);
	raise(sig);
}

void run_guarded(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace)
{
	struct sigaction act = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};

	sigaction(SIGABRT, &act, NULL);
	sigaction(SIGSEGV, &act, NULL);
	sigaction(SIGFPE, &act, NULL);
	int sig = sigsetjmp(guard, 1);

	if (sig == 0) {
		guarded = 1;
		world_run(w, choice, scope, trace);
	} else {
		check_fail(&w->check, "assert", "signal %d in the core", sig);
	}
	guarded = 0;
}

void run_seed(struct world *w, uint64_t seed, FILE *trace)
{
	struct choice choice;

	choice_seed(&choice, seed);
	run_guarded(w, &choice, SCOPE_RANDOM, trace);
}

struct shrink {
	struct world *w;
	const char *rule;
	uint32_t *list;
	size_t count;
	uint32_t *trial;
	uint32_t runs;
	uint64_t events;
};

/* Does the trial list break the same rule? Then it is the new list. */
static bool shrink_try(struct shrink *s, size_t count)
{
	struct choice choice;

	if (s->runs >= SHRINK_RUNS || s->events >= SHRINK_EVENTS) {
		return false;
	}
	s->runs++;
	choice_list(&choice, s->trial, count);
	run_guarded(s->w, &choice, SCOPE_RANDOM, NULL);
	s->events += s->w->steps;
	if (s->w->check.rule == NULL || strcmp(s->w->check.rule, s->rule) != 0) {
		return false;
	}
	count = count < choice.pos ? count : choice.pos;
	memcpy(s->list, s->trial, count * sizeof(*s->list));
	s->count = count;
	return true;
}

static void shrink_drop(struct shrink *s, size_t part)
{
	for (size_t at = 0; at < s->count;) {
		size_t n = part < s->count - at ? part : s->count - at;

		memcpy(s->trial, s->list, at * sizeof(*s->list));
		memcpy(s->trial + at, s->list + at + n, (s->count - at - n) * sizeof(*s->list));
		if (!shrink_try(s, s->count - n)) {
			at += n;
		}
	}
}

static void shrink_zero(struct shrink *s, size_t part)
{
	for (size_t at = 0; at < s->count; at += part) {
		size_t n = part < s->count - at ? part : s->count - at;

		memcpy(s->trial, s->list, s->count * sizeof(*s->list));
		memset(s->trial + at, 0, n * sizeof(*s->list));
		if (memcmp(s->trial, s->list, s->count * sizeof(*s->list)) != 0) {
			shrink_try(s, s->count);
		}
	}
}

static void shrink(struct shrink *s)
{
	size_t before;

	do {
		before = s->count;
		for (size_t part = s->count / 2; part > 0; part /= 2) {
			shrink_drop(s, part);
		}
		for (size_t part = s->count / 2; part > 0; part /= 2) {
			shrink_zero(s, part);
		}
	} while (s->count < before && s->runs < SHRINK_RUNS && s->events < SHRINK_EVENTS);
}

static void print_tail(const char *text, size_t bytes, FILE *out)
{
	size_t at = bytes;
	uint32_t lines = 0;

	while (at > 0 && lines <= TRACE_LINES) {
		lines += text[--at] == '\n';
	}
	fwrite(text + at, 1, bytes - at, out);
}

static void print_shape(const struct world *w, FILE *out)
{
	const struct world_shape *s = &w->shape;
	const struct core_config *c = &w->cfg_send;

	fprintf(out,
		"  %u messages, %u lanes on %u paths, %u ports here, %u there, small %u, window %u "
		"us, "
		"up to %u bytes, groups of %u, credit %u%s%s%s\n",
		s->messages, c->lane_count, c->path_count, c->port_count, w->cfg_recv.port_count,
		c->small_bytes, c->window_us, s->bytes_max, s->group_max, s->credit,
		c->adaptive_routing ? ", adaptive routing" : "",
		c->split_all ? ", split on all" : "", c->observe ? ", observe" : "");
}

static void print_faults(const struct world *w, FILE *out)
{
	const struct world_shape *s = &w->shape;

	if (!s->faulty) {
		return;
	}
	fprintf(out,
		"  %u standby lanes, %u faults left, jobs fail one in %u, posts one in "
		"%u%s%s%s%s%s%s%s\n",
		w->cfg_send.standby_count, s->faults, s->job_fails, s->post_fails,
		s->calm ? ", calm" : "", s->liar ? ", liar" : "", s->outage ? ", outage" : "",
		s->flushes ? ", flushes" : "", s->cleans ? ", cleans" : "",
		s->lates ? ", lates" : "", s->lazy_act ? ", lazy" : "");
}

static void report_short(struct shrink *s, FILE *out)
{
	struct choice choice;
	char *text = NULL;
	size_t bytes = 0;
	FILE *memory = open_memstream(&text, &bytes);

	if (memory == NULL) {
		return;
	}
	choice_list(&choice, s->list, s->count);
	run_guarded(s->w, &choice, SCOPE_RANDOM, memory);
	fclose(memory);
	fprintf(out, "shortened to %zu answers, %" PRIu64 " events (%u runs): %s: %s\n", s->count,
		s->w->steps, s->runs, s->w->check.rule == NULL ? "none" : s->w->check.rule,
		s->w->check.what);
	print_shape(s->w, out);
	print_faults(s->w, out);
	print_tail(text, bytes, out);
	free(text);
}

void run_report(struct world *w, uint64_t seed, FILE *out)
{
	struct shrink s = {.w = w};
	struct choice choice;

	s.list = malloc(RUN_RECORD_MAX * sizeof(*s.list));
	s.trial = malloc(RUN_RECORD_MAX * sizeof(*s.trial));
	if (s.list == NULL || s.trial == NULL) {
		goto out;
	}
	choice_seed(&choice, seed);
	choice.record = s.list;
	choice.record_max = RUN_RECORD_MAX;
	run_guarded(w, &choice, SCOPE_RANDOM, NULL);
	if (w->check.rule == NULL) {
		fprintf(out, "seed %" PRIu64 " does not fail again\n", seed);
		goto out;
	}
	fprintf(out, "seed %" PRIu64 " breaks rule %s: %s\n", seed, w->check.rule, w->check.what);
	print_shape(w, out);
	print_faults(w, out);
	s.rule = w->check.rule;
	s.count = choice.record_count;
	shrink(&s);
	report_short(&s, out);
out:
	free(s.list);
	free(s.trial);
}
