/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * sim.c - command line of the simulator: many seeds, one seed, or all runs of a small scope.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "marks.h"
#include "run.h"
#include "search.h"

enum {
	JOBS_MAX = 64
};

struct options {
	uint64_t seeds, base, seed;
	uint64_t states_max;
	uint32_t jobs, depth, faults; /* one more than asked for; 0 = no search */
	bool one, trace, quiet, marks, coarse;
	const char *except; /* marks not asked for, comma-separated */
};

/* One worker's account, in memory shared with the parent. */
struct account {
	uint64_t runs, steps, messages, bytes;
	uint64_t hash;	 /* sum over runs: the same whatever the number of workers */
	uint64_t failed; /* seed */
	bool has_failed;
	uint64_t marks[MARK_COUNT];
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct world *world_create(void)
{
	struct world *w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (w == MAP_FAILED) {
		fprintf(stderr, "sim: no memory for the world (%zu bytes): %s\n", sizeof(*w),
			strerror(errno));
		exit(2);
	}
	return w;
}

static void account_add(struct account *a, const struct world *w)
{
	a->runs++;
	a->steps += w->steps;
	a->messages += w->check.recv_done;
	a->bytes += w->check.bytes;
	a->hash += w->hash;
}

static void work(const struct options *o, uint32_t job, struct account *a)
{
	struct world *w = world_create();

	for (uint64_t i = job; i < o->seeds; i += o->jobs) {
		run_seed(w, o->base + i, NULL);
		account_add(a, w);
		if (w->check.rule != NULL) {
			a->failed = o->base + i;
			a->has_failed = true;
			break;
		}
	}
	memcpy(a->marks, marks, sizeof(a->marks));
}

static void total(struct account *sum, const struct account *a)
{
	sum->runs += a->runs;
	sum->steps += a->steps;
	sum->messages += a->messages;
	sum->bytes += a->bytes;
	sum->hash += a->hash;
	if (a->has_failed && (!sum->has_failed || a->failed < sum->failed)) {
		sum->failed = a->failed;
		sum->has_failed = true;
	}
	for (uint32_t i = 0; i < MARK_COUNT; i++) {
		sum->marks[i] += a->marks[i];
	}
}

static bool listed(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = list; at != NULL && (at = strstr(at, name)) != NULL; at += n) {
		if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0')) {
			return true;
		}
	}
	return false;
}

/* Every mark was met? Prints the table, and the missing ones. */
static int marks_judge(const struct account *sum, const struct options *o)
{
	int missing = 0;

	for (uint32_t i = 0; i < MARK_COUNT; i++) {
		if (!o->quiet) {
			printf("  %-18s %12" PRIu64 "  %s\n", mark_name((enum mark)i),
			       sum->marks[i], mark_text((enum mark)i));
		}
		if (sum->marks[i] == 0 && !listed(o->except, mark_name((enum mark)i))) {
			printf("never reached: %s (%s)\n", mark_name((enum mark)i),
			       mark_text((enum mark)i));
			missing++;
		}
	}
	return missing;
}

static void fork_workers(const struct options *o, struct account *a)
{
	pid_t pid[JOBS_MAX];

	for (uint32_t j = 0; j < o->jobs; j++) {
		pid[j] = fork();
		if (pid[j] == 0) {
			work(o, j, &a[j]);
			_exit(0);
		}
		if (pid[j] < 0) {
			fprintf(stderr, "sim: cannot start a worker: %s\n", strerror(errno));
			exit(2);
		}
	}
	for (uint32_t j = 0; j < o->jobs; j++) {
		int status;

		if (waitpid(pid[j], &status, 0) < 0 || !WIFEXITED(status) ||
		    WEXITSTATUS(status) != 0) {
			fprintf(stderr, "sim: worker %u died (status %#x)\n", j, (unsigned)status);
			exit(2);
		}
	}
}

static int many(const struct options *o)
{
	struct account sum = {0};
	struct account *a = mmap(NULL, sizeof(*a) * o->jobs, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double start = now_s();

	if (a == MAP_FAILED) {
		fprintf(stderr, "sim: no memory: %s\n", strerror(errno));
		return 2;
	}
	if (o->jobs == 1) {
		work(o, 0, a);
	} else {
		fork_workers(o, a);
	}
	for (uint32_t j = 0; j < o->jobs; j++) {
		total(&sum, &a[j]);
	}
	double s = now_s() - start;

	printf("%" PRIu64 " seeds from %" PRIu64 ": %" PRIu64 " events, %" PRIu64
	       " messages, %" PRIu64 " MB checked in %.1f s (%.0f seeds/s), hash %016" PRIx64 "\n",
	       sum.runs, o->base, sum.steps, sum.messages, sum.bytes / 1000000, s,
	       (double)sum.runs / s, sum.hash);
	if (sum.has_failed) {
		if (o->quiet) {
			printf("seed %" PRIu64 " fails\n", sum.failed);
		} else {
			run_report(world_create(), sum.failed, stdout);
			printf("again: sim --seed %" PRIu64 " --trace\n", sum.failed);
		}
		return 1;
	}
	return o->marks && marks_judge(&sum, o) != 0 ? 1 : 0;
}

static int one(const struct options *o)
{
	struct world *w = world_create();

	if (o->trace) {
		run_seed(w, o->seed, stdout);
	} else {
		run_seed(w, o->seed, NULL);
	}
	printf("seed %" PRIu64 ": %" PRIu64 " events, %" PRIu64 " messages, hash %016" PRIx64 "\n",
	       o->seed, w->steps, w->check.recv_done, w->hash);
	if (w->check.rule == NULL) {
		return 0;
	}
	printf("breaks rule %s: %s\n", w->check.rule, w->check.what);
	if (!o->trace && !o->quiet) {
		run_report(w, o->seed, stdout);
	}
	return 1;
}

static int exhaustive(const struct options *o)
{
	struct world *w = world_create();
	struct account sum = {0};
	struct choice choice;
	double start = now_s();

	choice_enum(&choice, o->depth);
	do {
		run_guarded(w, &choice, SCOPE_SMALL, NULL);
		account_add(&sum, w);
	} while (w->check.rule == NULL && choice_enum_next(&choice));
	printf("all %" PRIu64 " runs with %u choices: %" PRIu64
	       " messages, %.1f s, hash %016" PRIx64 "\n",
	       sum.runs, o->depth, sum.messages, now_s() - start, sum.hash);
	if (w->check.rule == NULL) {
		return 0;
	}
	printf("breaks rule %s: %s\nchoices:", w->check.rule, w->check.what);
	for (uint32_t i = 0; i < o->depth; i++) {
		printf(" %u", choice.value[i]);
	}
	printf("\n");
	choice.pos = 0;
	run_guarded(w, &choice, SCOPE_SMALL, stdout);
	return 1;
}

static int states(const struct options *o)
{
	struct search_result r;
	double start = now_s();
	int rc = search_run(world_create(), o->faults - 1, o->coarse, o->states_max, &r, stdout);

	printf("%s %" PRIu64 " states of 2 lanes, 2 messages of 2 pieces, %u faults: %" PRIu64
	       " steps, %" PRIu64 " ends, at most %u deep, %.1f s\n",
	       rc == 0 ? "all" : "stopped after", r.states, o->faults - 1, r.steps, r.ends, r.depth,
	       now_s() - start);
	return rc;
}

static int usage(const char *why)
{
	fprintf(stderr,
		"sim: %s\n"
		"usage: sim --seeds N [--base S] [--jobs J] [--marks [--except NAME,...]] "
		"[--quiet]\n"
		"       sim --seed S [--trace]\n"
		"       sim --exhaustive CHOICES\n"
		"       sim --states FAULTS [--coarse] [--most STATES]\n"
		"N runs with seeds S, S+1 ...; --marks: every rare situation must have been met.\n"
		"Exit status: 0 no rule broken, 1 a rule broken or a mark missing, 2 other "
		"trouble.\n",
		why);
	return 2;
}

static bool number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 0);
	return errno == 0 && end != text && *end == '\0' && text[0] != '-' && *out >= min &&
	       *out <= max;
}

/* Take one option; false: its number is out of range, or it is unknown. */
static bool option_take(struct options *o, int opt, const char *arg)
{
	uint64_t value = 0;
	bool good = true;

	switch (opt) {
	case 'n':
		return number(arg, 1, UINT64_MAX, &o->seeds);
	case 'b':
		return number(arg, 0, UINT64_MAX, &o->base);
	case 's':
		o->one = true;
		return number(arg, 0, UINT64_MAX, &o->seed);
	case 'j':
		good = number(arg, 1, JOBS_MAX, &value);
		o->jobs = (uint32_t)value;
		return good;
	case 'e':
		good = number(arg, 1, CHOICE_ENUM_MAX, &value);
		o->depth = (uint32_t)value;
		return good;
	case 'f':
		good = number(arg, 0, 4, &value);
		o->faults = (uint32_t)value + 1;
		return good;
	case 'M':
		return number(arg, 1, 1ull << 32, &o->states_max);
	case 't':
		o->trace = true;
		return true;
	case 'q':
		o->quiet = true;
		return true;
	case 'c':
		o->coarse = true;
		return true;
	case 'm':
		o->marks = true;
		return true;
	default:
		o->except = arg;
		return true;
	}
}

int main(int argc, char **argv)
{
	static const struct option table[] = {
		{"seeds", required_argument, NULL, 'n'},
		{"base", required_argument, NULL, 'b'},
		{"seed", required_argument, NULL, 's'},
		{"jobs", required_argument, NULL, 'j'},
		{"exhaustive", required_argument, NULL, 'e'},
		{"states", required_argument, NULL, 'f'},
		{"most", required_argument, NULL, 'M'},
		{"coarse", no_argument, NULL, 'c'},
		{"trace", no_argument, NULL, 't'},
		{"quiet", no_argument, NULL, 'q'},
		{"marks", no_argument, NULL, 'm'},
		{"except", required_argument, NULL, 'x'},
		{NULL, 0, NULL, 0},
	};
	struct options o = {.jobs = 1, .states_max = 1 << 24};
	int opt;

	while ((opt = getopt_long(argc, argv, "", table, NULL)) != -1) {
		if (opt == '?' || opt == ':') {
			return usage("unknown option");
		}
		if (!option_take(&o, opt, optarg)) {
			return usage("a number is out of range");
		}
	}
	if (optind != argc || (o.seeds != 0) + o.one + (o.depth != 0) + (o.faults != 0) != 1) {
		return usage("one of --seeds, --seed, --exhaustive and --states");
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (o.faults != 0) {
		return states(&o);
	}
	return o.one ? one(&o) : o.depth != 0 ? exhaustive(&o) : many(&o);
}
