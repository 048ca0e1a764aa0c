/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * relay.c - the packet relay between the guests' NICs: loses, holds, doubles and reorders frames.
 *
 * Usage: relay SEED DIRECTORY RAILS. For rail R and host H it binds DIRECTORY/relayR.H, where
 * frames to H come in, and passes them on to H's NIC at DIRECTORY/railR.H. Commands are lines on
 * standard input, and each is answered by one line, "ok..." or "error: why". End of file ends it.
 * RAIL is a number, TO the host that frames go to, a or b, WHAT one of all, roce, data (RoCE but
 * acknowledgements) or acks (and NAKs):
 *
 *   rule RAIL TO WHAT ACTION PCT [MS]   for PCT percent of such frames: drop; hold (keep, do not
 *                                       pass); copy (pass, keep a copy); twice (again after MS);
 *                                       late (by MS: others overtake it)
 *   clear RAIL TO                       no rules; what is kept stays
 *   release RAIL TO                     send what is kept, in order; it stays for another time
 *   forget RAIL TO                      drop what is kept
 *   stats                               RAIL TO passed dropped kept twice late released, of each
 *
 * The newest KEPT_MAX frames are kept. Of the rules that fit, the first given is carried out.
 * Every choice comes from SEED; how frames arrive does not. Frames that no rule concerns are passed
 * on at once. When a guest takes no more, its rail's input waits too, as it would without a relay.
 * One thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "relay_frame.h"

enum {
	RAILS_MAX = 4,
	WAYS_MAX = 2 * RAILS_MAX,
	BATCH = 32,
	FRAME_MAX = 9216,
	KEPT_MAX = 512,
	RULES_MAX = 4,
	LINE_MAX_BYTES = 256,
};

enum action { DROP, HOLD, COPY, TWICE, LATE, ACTION_COUNT };

static const char *const action_names[ACTION_COUNT] = {"drop", "hold", "copy", "twice", "late"};
static const char *const kind_names[] = {"all", "roce", "data", "acks"};

struct rule {
	enum frame_match match;
	enum action action;
	uint32_t ppm;
	uint64_t delay_ns;
};

struct frame {
	struct frame *next;
	uint64_t due_ns;
	size_t bytes;
	uint8_t data[];
};

struct counts {
	uint64_t passed, dropped, kept, twice, late, released;
};

/* One direction of one rail. */
struct way {
	int in, out;
	int rail;
	char to;
	struct rule rules[RULES_MAX];
	int rule_count;
	struct frame *kept, **kept_end;	/* oldest first */
	int kept_count;
	struct frame *waiting;		/* by due_ns, then by order */
	struct counts counts;
};

static struct way ways[WAYS_MAX];
static int way_count;
static uint64_t random_state;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* splitmix64 */
static uint64_t next_random(void)
{
	uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static bool happens(uint32_t ppm)
{
	return ppm >= 1000000 || next_random() % 1000000 < ppm;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static struct frame *copy_of(const uint8_t *data, size_t bytes, uint64_t due_ns)
{
	struct frame *frame = malloc(sizeof(*frame) + bytes);

	if (!frame) {
		fprintf(stderr, "relay: no memory\n");
		exit(1);
	}
	frame->next = NULL;
	frame->due_ns = due_ns;
	frame->bytes = bytes;
	memcpy(frame->data, data, bytes);
	return frame;
}

static void keep(struct way *way, const uint8_t *data, size_t bytes)
{
	struct frame *frame = copy_of(data, bytes, 0);

	*way->kept_end = frame;
	way->kept_end = &frame->next;
	way->counts.kept++;
	if (++way->kept_count > KEPT_MAX) {
		frame = way->kept;
		way->kept = frame->next;
		way->kept_count--;
		free(frame);
	}
}

static void forget(struct way *way)
{
	while (way->kept) {
		struct frame *next = way->kept->next;

		free(way->kept);
		way->kept = next;
	}
	way->kept_end = &way->kept;
	way->kept_count = 0;
}

static void wait_until(struct way *way, const uint8_t *data, size_t bytes, uint64_t due_ns)
{
	struct frame *frame = copy_of(data, bytes, due_ns), **at = &way->waiting;

	while (*at && (*at)->due_ns <= due_ns) {
		at = &(*at)->next;
	}
	frame->next = *at;
	*at = frame;
}

/* False: the guest takes no more now. A NIC that is not there (yet) loses what it is sent. */
static bool transmit(const struct way *way, const uint8_t *data, size_t bytes)
{
	return send(way->out, data, bytes, MSG_DONTWAIT) >= 0 ||
	       (errno != EAGAIN && errno != ENOBUFS);
}

/* Whether a frame that should have gone out by now still waits. */
static bool is_blocked(const struct way *way, uint64_t now)
{
	return way->waiting && way->waiting->due_ns <= now;
}

static void pass(struct way *way, const uint8_t *data, size_t bytes, uint64_t now)
{
	if (is_blocked(way, now) || !transmit(way, data, bytes)) {
		wait_until(way, data, bytes, now);
	}
}

static void send_due(struct way *way, uint64_t now)
{
	while (is_blocked(way, now)) {
		struct frame *frame = way->waiting;

		if (!transmit(way, frame->data, frame->bytes)) {
			return;
		}
		way->waiting = frame->next;
		free(frame);
	}
}

/* ---- rules ----------------------------------------------------------------------------------- */

static const struct rule *rule_for(const struct way *way, const uint8_t *data, size_t bytes)
{
	enum frame_kind kind = frame_kind(data, bytes);

	for (int i = 0; i < way->rule_count; i++) {
		const struct rule *rule = &way->rules[i];

		if (frame_matches(kind, rule->match) && happens(rule->ppm)) {
			return rule;
		}
	}
	return NULL;
}

static void take(struct way *way, const uint8_t *data, size_t bytes, uint64_t now)
{
	const struct rule *rule = way->rule_count ? rule_for(way, data, bytes) : NULL;

	if (rule) {
		switch (rule->action) {
		case DROP:
			way->counts.dropped++;
			return;
		case HOLD:
			keep(way, data, bytes);
			return;
		case LATE:
			way->counts.late++;
			wait_until(way, data, bytes, now + rule->delay_ns);
			return;
		case COPY:
			keep(way, data, bytes);
			break;
		case TWICE:
			way->counts.twice++;
			wait_until(way, data, bytes, now + rule->delay_ns);
			break;
		case ACTION_COUNT:
			break;
		}
	}
	way->counts.passed++;
	pass(way, data, bytes, now);
}

static void receive(struct way *way)
{
	static uint8_t data[BATCH][FRAME_MAX];
	struct iovec parts[BATCH];
	struct mmsghdr messages[BATCH];
	uint64_t now;
	int count;

	memset(messages, 0, sizeof(messages));
	for (int i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){.iov_base = data[i], .iov_len = FRAME_MAX};
		messages[i].msg_hdr.msg_iov = &parts[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	count = recvmmsg(way->in, messages, BATCH, MSG_DONTWAIT, NULL);
	now = now_ns();
	for (int i = 0; i < count; i++) {
		take(way, data[i], messages[i].msg_len, now);
	}
}

/* ---- commands -------------------------------------------------------------------------------- */

static int index_of(const char *word, const char *const *names, int count)
{
	for (int i = 0; i < count; i++) {
		if (strcmp(word, names[i]) == 0) {
			return i;
		}
	}
	return -1;
}

static const char *add_rule(struct way *way, const char *what, const char *how, double pct,
			    unsigned ms)
{
	int match = index_of(what, kind_names, (int)(sizeof(kind_names) / sizeof(kind_names[0])));
	int action = index_of(how, action_names, ACTION_COUNT);

	if (match < 0 || action < 0 || !(pct >= 0 && pct <= 100)) {
		return "rule RAIL TO all|roce|data|acks drop|hold|copy|twice|late PCT [MS]";
	}
	if (way->rule_count == RULES_MAX) {
		return "too many rules";
	}
	way->rules[way->rule_count++] = (struct rule){
		.match = (enum frame_match)match,
		.action = (enum action)action,
		.ppm = (uint32_t)(pct * 10000),
		.delay_ns = ms * UINT64_C(1000000),
	};
	return NULL;
}

static void release(struct way *way)
{
	uint64_t now = now_ns();

	for (const struct frame *frame = way->kept; frame; frame = frame->next) {
		way->counts.released++;
		pass(way, frame->data, frame->bytes, now);
	}
}

static struct way *find_way(int rail, char to)
{
	for (int i = 0; i < way_count; i++) {
		if (ways[i].rail == rail && ways[i].to == to) {
			return &ways[i];
		}
	}
	return NULL;
}

/* Returns what is wrong with @line, or NULL. */
static const char *obey(const char *line)
{
	char verb[16], to, what[16] = "", how[16] = "";
	double pct = 0;
	unsigned ms = 0;
	int rail, words = sscanf(line, "%15s %d %c %15s %15s %lf %u", verb, &rail, &to, what, how,
				 &pct, &ms);
	struct way *way = words >= 3 ? find_way(rail, to) : NULL;

	if (!way) {
		return "no such rail or host";
	}
	if (strcmp(verb, "rule") == 0) {
		return words < 6 ? "a rule needs a percentage"
				 : add_rule(way, what, how, pct, ms);
	}
	if (strcmp(verb, "clear") == 0) {
		way->rule_count = 0;
	} else if (strcmp(verb, "release") == 0) {
		release(way);
	} else if (strcmp(verb, "forget") == 0) {
		forget(way);
	} else {
		return "no such command";
	}
	return NULL;
}

static void print_stats(void)
{
	printf("ok");
	for (int i = 0; i < way_count; i++) {
		const struct counts *counts = &ways[i].counts;

		printf(" %d %c %llu %llu %llu %llu %llu %llu", ways[i].rail, ways[i].to,
		       (unsigned long long)counts->passed, (unsigned long long)counts->dropped,
		       (unsigned long long)counts->kept, (unsigned long long)counts->twice,
		       (unsigned long long)counts->late, (unsigned long long)counts->released);
	}
	printf("\n");
}

static void answer(const char *line)
{
	const char *wrong;

	if (strcmp(line, "stats") == 0) {
		print_stats();
	} else {
		wrong = obey(line);
		printf(wrong ? "error: %s\n" : "ok\n", wrong);
	}
	fflush(stdout);
}

/* False at end of file. */
static bool read_commands(void)
{
	static char text[LINE_MAX_BYTES];
	static size_t used;
	ssize_t got = read(STDIN_FILENO, text + used, sizeof(text) - 1 - used);
	char *end;

	if (got <= 0) {
		return got < 0 && (errno == EAGAIN || errno == EINTR);
	}
	used += (size_t)got;
	text[used] = '\0';
	while ((end = strchr(text, '\n'))) {
		*end = '\0';
		answer(text);
		used -= (size_t)(end + 1 - text);
		memmove(text, end + 1, used + 1);
	}
	if (used == sizeof(text) - 1) {
		used = 0;
		answer("");
	}
	return true;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void name_socket(struct sockaddr_un *name, const char *dir, const char *what, int rail,
			char host)
{
	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	snprintf(name->sun_path, sizeof(name->sun_path), "%s/%s%d.%c", dir, what, rail, host);
}

static int open_way(const char *dir, int rail, char to)
{
	struct way *way = &ways[way_count++];
	struct sockaddr_un in, out;

	way->rail = rail;
	way->to = to;
	way->kept_end = &way->kept;
	way->in = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	way->out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	name_socket(&in, dir, "relay", rail, to);
	name_socket(&out, dir, "rail", rail, to);
	unlink(in.sun_path);
	/* Connected, so that poll() tells when the guest takes frames again. */
	if (bind(way->in, (struct sockaddr *)&in, sizeof(in)) ||
	    connect(way->out, (struct sockaddr *)&out, sizeof(out))) {
		fprintf(stderr, "relay: rail %d to %c: %s\n", rail, to, strerror(errno));
		return -1;
	}
	return 0;
}

static int timeout_ms(uint64_t now)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < way_count; i++) {
		if (ways[i].waiting && ways[i].waiting->due_ns > now &&
		    ways[i].waiting->due_ns < next) {
			next = ways[i].waiting->due_ns;
		}
	}
	return next == UINT64_MAX ? -1 : (int)((next - now) / 1000000) + 1;
}

/* One wait; false when the commands have ended. */
static bool step(void)
{
	struct pollfd fds[2 * WAYS_MAX + 1];
	uint64_t now = now_ns();

	for (int i = 0; i < way_count; i++) {
		bool blocked = is_blocked(&ways[i], now);

		fds[2 * i] = (struct pollfd){.fd = blocked ? -1 : ways[i].in, .events = POLLIN};
		fds[2 * i + 1] = (struct pollfd){.fd = blocked ? ways[i].out : -1,
						 .events = POLLOUT};
	}
	fds[2 * way_count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
	if (poll(fds, (nfds_t)(2 * way_count + 1), timeout_ms(now)) < 0 && errno != EINTR) {
		return false;
	}
	now = now_ns();
	for (int i = 0; i < way_count; i++) {
		send_due(&ways[i], now);
		if (fds[2 * i].revents) {
			receive(&ways[i]);
		}
	}
	return !fds[2 * way_count].revents || read_commands();
}

int main(int argc, char **argv)
{
	int rails = argc == 4 ? atoi(argv[3]) : 0;

	if (rails < 1 || rails > RAILS_MAX) {
		fprintf(stderr, "usage: relay SEED DIRECTORY RAILS (1 ... %d)\n", RAILS_MAX);
		return 2;
	}
	random_state = strtoull(argv[1], NULL, 10);
	fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
	for (int rail = 0; rail < rails; rail++) {
		if (open_way(argv[2], rail, 'a') || open_way(argv[2], rail, 'b')) {
			return 1;
		}
	}
	printf("ok ready\n");
	fflush(stdout);
	while (step()) {
	}
	return 0;
}
