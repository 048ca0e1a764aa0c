/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_options.c - the command line of `railyard bench`.
 *
 * Invariant: what leaves here is within range; the rest of bench does not look again.
 */
#define _GNU_SOURCE
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench.h"
#include "bench_ops.h"
#include "nccl_net.h"

enum {
	KEY_RANKS = 256,
	KEY_LOCAL,
	KEY_MEET,
	KEY_ABI,
	KEY_DEV,
	KEY_MERGE,
	KEY_TRAFFIC_CLASS,
	KEY_CHUNK,
	KEY_COMMS,
	KEY_GROUP,
	KEY_WINDOW,
	KEY_BIDIR,
	KEY_REVERSE,
	KEY_CHECK,
	KEY_CANARY,
	KEY_TEST,
	KEY_POLL,
	KEY_DURATION,
	KEY_INTERVAL,
	KEY_TIMEOUT,
	KEY_LINGER,
	KEY_LOG_TIMES,
	KEY_JSON,
	KEY_PER_RANK,
	KEY_CALLS,
	KEY_LOG,
	CHUNK_ALIGN = 128,
};

#define SIZE_LIMIT (UINT64_C(1) << 40)

static const struct argp_option options[] = {
	{0, 0, 0, 0, "Where", 1},
	{"rank", 'R', "R", 0, "number of this process, 0 ... N-1 (default 0)", 0},
	{"ranks", KEY_RANKS, "N", 0, "how many processes there are on all hosts", 0},
	{"meet", KEY_MEET, "HOST:PORT", 0, "where rank 0 listens and all others call", 0},
	{"local", KEY_LOCAL, "K", 0, "start K ranks on this host, numbered from --rank on", 0},
	{0, 0, 0, 0, "Plugin and devices (of this host)", 2},
	{"plugin", 'p', "FILE|NAME", 0,
	 "plugin file, or NAME of libnccl-net-NAME.so (default railyard)", 0},
	{"abi", KEY_ABI, "V", 0, "take ncclNetPlugin_vV, 8 ... 12 (default: the newest)", 0},
	{"dev", 'd', "LIST", 0, "devices by number or name, or all (default)", 0},
	{"merge", KEY_MERGE, "all|none|auto", 0,
	 "fuse the devices into one with makeVDevice; auto (default) = if the plugin can", 0},
	{0, 0, 0, 0, "What to run (rank 0 decides for all ranks)", 3},
	{"minbytes", 'b', "SIZE", 0, "smallest size; K, M, G are powers of 1024 (default 8)", 0},
	{"maxbytes", 'e', "SIZE", 0, "largest size (default: -b if given, else 16M)", 0},
	{"stepfactor", 'f', "N", 0, "next size is N times the last (default 4); 1 B after 0 B", 0},
	{"stepbytes", 'i', "SIZE", 0, "next size is the last plus SIZE", 0},
	{"iters", 'n', "N", 0, "timed iterations of each size (default 20)", 0},
	{"warmup_iters", 'w', "N", 0, "iterations before those (default 2)", 0},
	{"duration", KEY_DURATION, "S", 0,
	 "run each size for S seconds instead of -n; SIGINT to rank 0 ends it early, in order", 0},
	{"window", KEY_WINDOW, "N", 0, "outstanding requests per connection (default 8)", 0},
	{"chunk", KEY_CHUNK, "SIZE", 0,
	 "cut messages into chunks (default 1M; NCCL's point-to-point chunk is 128K)", 0},
	{"comms", KEY_COMMS, "N", 0,
	 "connections per pair of ranks, over which messages are divided (default: one per device)",
	 0},
	{"group", KEY_GROUP, "N", 0,
	 "receives in groups of N with different tags; N messages per iteration (default 1)", 0},
	{"bidir", KEY_BIDIR, 0, 0, "sendrecv: both ways at once", 0},
	{"reverse", KEY_REVERSE, 0, 0, "sendrecv, pingpong: the odd ranks send (first)", 0},
	{"traffic-class", KEY_TRAFFIC_CLASS, "N", 0, "given to the plugin as NCCL would", 0},
	{"check", KEY_CHECK, "on|off", 0, "compare every received byte (default on)", 0},
	{"canary", KEY_CANARY, "on|off", 0,
	 "keep a pattern in idle receive buffers and look for late writes (default on)", 0},
	{"test", KEY_TEST, "oldest|all", 0,
	 "poll the oldest outstanding request, as NCCL does (default), or all", 0},
	{"interval", KEY_INTERVAL, "MS", 0,
	 "receive throughput per interval: printed as it comes with --duration, and in --json", 0},
	{"timeout", KEY_TIMEOUT, "S", 0, "give up after S s without progress (default 60)", 0},
	{"linger", KEY_LINGER, "S", 0,
	 "when a rank fails, go on for S s: does the plugin tell the others? (default 0)", 0},
	{0, 0, 0, 0, "How (this process)", 4},
	{"poll", KEY_POLL, "yield|spin|sleep", 0,
	 "when nothing moves: sched_yield (default), nothing, or 20 us of sleep", 0},
	{"per-rank", KEY_PER_RANK, 0, 0, "also a line for each rank", 0},
	{"calls", KEY_CALLS, 0, 0, "time the plugin's calls and show the longest", 0},
	{"json", KEY_JSON, "FILE", 0, "rank 0 writes all results there (- = stdout)", 0},
	{"log", KEY_LOG, "LEVEL", 0,
	 "plugin's log lines: none, warn, info or trace (default: NCCL_DEBUG, else warn)", 0},
	{"log-times", KEY_LOG_TIMES, 0, 0, "put the time of day into those lines", 0},
	{0},
};

static const char doc[] =
	"Drives an ncclNet plugin as NCCL's proxy does, without NCCL and without a GPU, and checks "
	"every byte."
	"\vOperations: sendrecv, pingpong, allreduce, allgather, alltoall.\n\n"
	"Examples:\n"
	"  railyard bench sendrecv --local 2\n"
	"  hostA$ railyard bench allreduce --rank 0 --ranks 2 --meet hostA:7700 -b 0 -e 16M\n"
	"  hostB$ railyard bench --rank 1 --ranks 2 --meet hostA:7700\n\n"
	"Exit status: 0 all right, 1 not run to the end, 2 bad use, 3 wrong data or late writes.";

struct parse {
	struct bench_plan *plan;
	struct bench_local *local;
	bool has_min, has_max;
};

static uint64_t number(struct argp_state *state, const char *name, const char *text, uint64_t min,
		       uint64_t max)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (!*text || *end || errno || *text == '-' || value < min || value > max) {
		argp_error(state, "%s %s: give a whole number from %llu to %llu", name, text,
			   (unsigned long long)min, (unsigned long long)max);
	}
	return value;
}

static uint64_t size_of(struct argp_state *state, const char *name, const char *text)
{
	static const char units[] = "KMG";
	char *end;
	unsigned long long value;
	unsigned shift = 0;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (*end && strchr(units, *end & ~0x20)) {
		shift = 10u * (unsigned)(strchr(units, *end & ~0x20) - units + 1);
		end += strcasecmp(end + 1, "iB") == 0 ? 3 : strcasecmp(end + 1, "B") == 0 ? 2 : 1;
	}
	if (!*text || *text == '-' || *end || errno || value > SIZE_LIMIT >> shift) {
		argp_error(state, "%s %s: give a size like 0, 512, 128K, 16M or 1G", name, text);
	}
	return (uint64_t)value << shift;
}

/* Index of @text in @words (separated by '|'); ends the process when it is not there. */
static unsigned choice(struct argp_state *state, const char *name, const char *text,
		       const char *words)
{
	size_t length = strlen(text);
	unsigned index = 0;

	for (const char *at = words; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
		if (strncmp(at, text, length) == 0 && (at[length] == '|' || !at[length])) {
			return index;
		}
		index++;
	}
	argp_error(state, "%s %s: give one of %s", name, text, words);
	return 0;
}

static int log_level(struct argp_state *state, const char *text)
{
	static const int levels[] = {RY_NET_LOG_NONE, RY_NET_LOG_WARN, RY_NET_LOG_INFO,
				     RY_NET_LOG_TRACE};

	return levels[choice(state, "--log", text, "none|warn|info|trace")];
}

static int log_level_of_environment(void)
{
	const char *text = getenv("NCCL_DEBUG");

	if (text && strcasecmp(text, "info") == 0) {
		return RY_NET_LOG_INFO;
	}
	return text && strcasecmp(text, "trace") == 0 ? RY_NET_LOG_TRACE : RY_NET_LOG_WARN;
}

static void take_operation(struct argp_state *state, struct bench_plan *plan, const char *arg)
{
	if (plan->op != BENCH_OP_COUNT) {
		argp_error(state, "one operation at a time: \"%s\" is one too many", arg);
	}
	plan->op = bench_op_find(arg);
	if (plan->op == BENCH_OP_COUNT) {
		argp_error(state, "no operation \"%s\": give sendrecv, pingpong, allreduce, "
			   "allgather or alltoall", arg);
	}
}

/* Options of the local process. */
static error_t parse_local(int key, char *arg, struct argp_state *state)
{
	static const enum bench_merge merges[] = {BENCH_MERGE_ALL, BENCH_MERGE_NONE,
						  BENCH_MERGE_AUTO};
	struct bench_local *local = ((struct parse *)state->input)->local;

	switch (key) {
	case 'R':
		local->rank = (int)number(state, "--rank", arg, 0, BENCH_RANKS_MAX - 1);
		return 0;
	case KEY_RANKS:
		local->ranks = (int)number(state, "--ranks", arg, 1, BENCH_RANKS_MAX);
		return 0;
	case KEY_LOCAL:
		local->local = (int)number(state, "--local", arg, 1, BENCH_RANKS_MAX);
		return 0;
	case KEY_MEET:
		local->meet = arg;
		return 0;
	case 'p':
		local->plugin = arg;
		return 0;
	case KEY_ABI:
		local->abi = (int)number(state, "--abi", *arg == 'v' ? arg + 1 : arg, 8, 12);
		return 0;
	case 'd':
		local->devs = arg;
		return 0;
	case KEY_MERGE:
		local->merge = merges[choice(state, "--merge", arg, "all|none|auto")];
		return 0;
	case KEY_POLL:
		local->poll = (enum bench_poll)choice(state, "--poll", arg, "yield|spin|sleep");
		return 0;
	case KEY_PER_RANK:
		local->per_rank = true;
		return 0;
	case KEY_CALLS:
		local->time_calls = true;
		return 0;
	case KEY_JSON:
		local->json = arg;
		return 0;
	case KEY_LOG_TIMES:
		local->log_times = true;
		return 0;
	case KEY_LOG:
		local->log_level = log_level(state, arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Options that set sizes and counts of the plan. */
static error_t parse_amount(int key, char *arg, struct argp_state *state)
{
	struct parse *parse = state->input;
	struct bench_plan *plan = parse->plan;

	switch (key) {
	case 'b':
		plan->size_min = size_of(state, "-b", arg);
		parse->has_min = true;
		return 0;
	case 'e':
		plan->size_max = size_of(state, "-e", arg);
		parse->has_max = true;
		return 0;
	case 'f':
		plan->factor = (uint32_t)number(state, "-f", arg, 2, 1024);
		return 0;
	case 'i':
		plan->size_step = size_of(state, "-i", arg);
		return 0;
	case 'n':
		plan->iters = (uint32_t)number(state, "-n", arg, 1, UINT32_MAX);
		return 0;
	case 'w':
		plan->warmup = (uint32_t)number(state, "-w", arg, 0, UINT32_MAX);
		return 0;
	case KEY_DURATION:
		plan->duration_s = (uint32_t)number(state, "--duration", arg, 1, 1000000);
		return 0;
	case KEY_WINDOW:
		plan->window = (uint32_t)number(state, "--window", arg, 1, BENCH_WINDOW_MAX);
		return 0;
	case KEY_CHUNK:
		plan->chunk_bytes = size_of(state, "--chunk", arg);
		return 0;
	case KEY_COMMS:
		plan->comms = (uint32_t)number(state, "--comms", arg, 1, BENCH_COMMS_MAX);
		return 0;
	case KEY_GROUP:
		plan->group = (uint32_t)number(state, "--group", arg, 1, BENCH_GROUP_MAX);
		return 0;
	case KEY_INTERVAL:
		plan->interval_ms = (uint32_t)number(state, "--interval", arg, 1, 3600000);
		return 0;
	case KEY_TIMEOUT:
		plan->timeout_s = (uint32_t)number(state, "--timeout", arg, 1, 86400);
		return 0;
	case KEY_LINGER:
		plan->linger_s = (uint32_t)number(state, "--linger", arg, 0, 86400);
		return 0;
	default:
		return parse_local(key, arg, state);
	}
}

static void finish_plan(struct argp_state *state, struct parse *parse)
{
	struct bench_plan *plan = parse->plan;
	struct bench_local *local = parse->local;
	int here = local->local ? local->local : 1;

	if (parse->has_min != parse->has_max) {
		plan->size_min = plan->size_max = parse->has_min ? plan->size_min : plan->size_max;
	}
	if (plan->size_min > plan->size_max) {
		argp_error(state, "-b is larger than -e");
	}
	if (!plan->chunk_bytes || plan->chunk_bytes % CHUNK_ALIGN) {
		argp_error(state, "--chunk: give a multiple of %d bytes", CHUNK_ALIGN);
	}
	if (!local->ranks) {
		local->ranks = here;
	}
	if (local->rank + here > local->ranks) {
		argp_error(state, "rank %d is not below --ranks %d", local->rank + here - 1,
			   local->ranks);
	}
	if (here < local->ranks && !local->meet) {
		argp_error(state, "give --meet HOST:PORT: not all ranks are started here");
	}
	if (local->rank == 0 && plan->op == BENCH_OP_COUNT) {
		argp_error(state, "name an operation: sendrecv, pingpong, allreduce, allgather or "
			   "alltoall");
	}
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct parse *parse = state->input;
	struct bench_plan *plan = parse->plan;

	switch (key) {
	case ARGP_KEY_ARG:
		take_operation(state, plan, arg);
		return 0;
	case KEY_BIDIR:
		plan->bidir = 1;
		return 0;
	case KEY_REVERSE:
		plan->reverse = 1;
		return 0;
	case KEY_CHECK:
		plan->check = choice(state, "--check", arg, "off|on");
		return 0;
	case KEY_CANARY:
		plan->canary = choice(state, "--canary", arg, "off|on");
		return 0;
	case KEY_TEST:
		plan->test_all = choice(state, "--test", arg, "oldest|all");
		return 0;
	case KEY_TRAFFIC_CLASS:
		plan->traffic_class =
			(int32_t)number(state, "--traffic-class", arg, 0, INT32_MAX);
		return 0;
	case ARGP_KEY_END:
		finish_plan(state, parse);
		return 0;
	default:
		return parse_amount(key, arg, state);
	}
}

void bench_options_parse(int argc, char **argv, struct bench_plan *plan, struct bench_local *local)
{
	static const struct argp argp = {
		.options = options, .parser = parse_option, .args_doc = "[OPERATION]", .doc = doc,
	};
	static char name[] = "railyard bench";
	struct parse parse = {.plan = plan, .local = local};

	*plan = (struct bench_plan){
		.size_of_plan = sizeof(*plan),
		.op = BENCH_OP_COUNT,
		.size_min = 8,
		.size_max = 16u << 20,
		.factor = 4,
		.iters = 20,
		.warmup = 2,
		.window = 8,
		.chunk_bytes = 1u << 20,
		.group = 1,
		.check = 1,
		.canary = 1,
		.traffic_class = RY_NET_UNDEF,
		.timeout_s = 60,
	};
	*local = (struct bench_local){
		.plugin = "railyard",
		.devs = "all",
		.log_level = log_level_of_environment(),
	};
	argv[0] = name;
	argp_err_exit_status = BENCH_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &parse);
}

uint64_t bench_plan_next_size(const struct bench_plan *plan, uint64_t size)
{
	uint64_t next = plan->size_step ? size + plan->size_step : size * plan->factor;

	if (size == 0 && !plan->size_step) {
		next = 1;
	}
	return next <= plan->size_max ? next : 0;
}
