/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rig.h - the whole plugin over devices in memory, both ends of each connection in one process.
 *
 * A program here is a table of cases, one of which runs per process; it starts with rig_begin() and
 * ends with rig_end(), which fails the case if anything is leaked or verbs were used wrongly. Plain
 * main, so that the same programs run under ThreadSanitizer. RIG_VERBOSE=1 shows the plugin's log.
 */
#ifndef RAILYARD_PLUGIN_RIG_H
#define RAILYARD_PLUGIN_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake_verbs.h"
#include "nccl_net.h"

#ifndef TEST_SCALE
#define TEST_SCALE 100 /* per cent */
#endif

enum {
	RIG_PATIENCE_MS = 20000, /* nothing that ends at all takes this long */
	RIG_GROUP_MAX = 8,
	RIG_SLOTS = 256
};

void rig_die(const char *file, int line, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

#define CHECK(c)                                                                                   \
	do {                                                                                       \
		if (!(c))                                                                          \
			rig_die(__FILE__, __LINE__, "%s does not hold", #c);                       \
	} while (0)
#define CHECK_INT(got, want)                                                                       \
	do {                                                                                       \
		long long got_ = (got), want_ = (want);                                            \
		if (got_ != want_)                                                                 \
			rig_die(__FILE__, __LINE__, "%s is %lld, not %lld", #got, got_, want_);    \
	} while (0)

struct rig_case {
	const char *name;
	void (*fn)(void);
};

/* rig_main - run the case that argv names (all in turn, each in a child, without one). */
int rig_main(int argc, char **argv, const struct rig_case *cases, unsigned count);

unsigned rig_scaled(unsigned rounds);
void rig_pause_us(unsigned us);
uint64_t rig_random(uint64_t *state); /* state is any number */

/* --- one ABI version behind common calls -------------------------------------------------- */

struct rig_abi {
	int version;
	enum ry_net_result (*init)(void **ctx);
	enum ry_net_result (*finalize)(void *ctx); /* NULL before v11 */
	enum ry_net_result (*fuse)(int *dev, int count);
	enum ry_net_result (*listen)(void *ctx, int dev, void *handle, void **comm);
	enum ry_net_result (*connect)(void *ctx, int dev, void *handle, void **comm);
	enum ry_net_result (*accept)(void *listen, void **comm);
	enum ry_net_result (*isend)(void *comm, void *data, size_t bytes, int tag, void *mr,
				    void **request);
	enum ry_net_result (*irecv)(void *comm, int n, void **data, size_t *bytes, int *tags,
				    void **mrs, void **request);
};

extern const struct rig_abi rig_abis[]; /* v8 ... v12 */
extern const struct ry_net_v8 ncclNetPlugin_v8;
extern const struct ry_net_v12 ncclNetPlugin_v12;
extern const struct rig_abi *rig_abi; /* in use; v11 unless a case chooses another */
extern const struct ry_net_v11 *const rig_net;

/* --- the process -------------------------------------------------------------------------- */

/* rig_env - set a variable and read the environment again; before rig_begin. */
void rig_env(const char *name, const char *value);
/*
 * rig_begin - new devices, init. rig_start - the same, but returns what init said. rig_restart -
 * without new devices.
 */
void rig_begin(const struct fake_config *config);
enum ry_net_result rig_start(const struct fake_config *config);
enum ry_net_result rig_restart(void);
/* rig_stop - finalize and forget devices. rig_end - the same; no leaks, no faults, no warnings. */
void rig_stop(void);
void rig_end(void);
void rig_clean(void); /* no leaks, no faults */

extern void *rig_ctx;

/* Warnings since the last rig_log_clear, and whether any line of the log has the text. */
unsigned rig_warnings(void);
bool rig_logged(const char *text);
void rig_log_clear(void);
void rig_log_print(void);

/* rig_device - the device of so many ports, from port 0 on. */
int rig_device(int ports);

/* --- one connection ----------------------------------------------------------------------- */

struct pair {
	void *listen, *send, *recv;
	char *handle;
};

/* pair_start - listen; pair_step - call what is missing, true once both ends are there. */
void pair_start(struct pair *p, int recv_dev);
bool pair_step(struct pair *p, int send_dev);
void pair_open(struct pair *p, int send_dev, int recv_dev);
void pair_close(struct pair *p);

/* --- traffic over it, every byte checked -------------------------------------------------- */

struct traffic {
	unsigned groups;
	/* up to; each group has 1 .. members if `random_members`, else just so many */
	int members;
	bool random_members;
	bool equal_tags;
	bool clips;	  /* some sends are longer than their buffer */
	unsigned window;  /* groups under way */
	size_t bytes_max; /* sizes are random up to this, many of them small or odd */
	size_t bytes;	  /* all sizes are this, if `fixed` */
	bool fixed;
	unsigned rare; /* one size in so many is random, the others are at edges [4] */
	bool queued;   /* drive the fake's deliveries */
	bool may_fail; /* an error of a call ends that end's part, and is kept */
	uint64_t seed;
};

void traffic_run(struct pair *p, const struct traffic *t);

/*
 * The same in steps, beside other things. Buffers are watched after use too: nothing may come into
 * one that is done, until it is posted again, and what is done sending is overwritten at once.
 * traffic_step - one random call; true if something moved. traffic_drain - end what has begun.
 * traffic_stop - forget it; after traffic_drain or an error.
 */
struct run;
struct run *traffic_start(struct pair *p, const struct traffic *t);
bool traffic_step(struct run *r);
unsigned traffic_groups(const struct run *r); /* done so far */
enum ry_net_result traffic_send_rc(const struct run *r);
enum ry_net_result traffic_recv_rc(const struct run *r);
void traffic_drain(struct run *r);
void traffic_stop(struct run *r);

/*
 * Time inside isend, irecv and test, all traffic since the reset; if asked for, also of those calls
 * alone that went to sleep, which on a busy machine is what tells.
 */
uint64_t traffic_longest_wait_ns(void);
void traffic_times_reset(bool watch_waits);
void traffic_times_print(const char *what);

/* Single steps, for cases with an order of their own; they retry until taken or done. */
void *rig_isend(struct pair *p, void *data, size_t bytes, int tag, void *mr);
void *rig_irecv(struct pair *p, void *data, size_t bytes, int tag, void *mr);
void rig_wait(void *request, size_t bytes);
void *rig_buffer(size_t bytes);
void rig_buffer_free(void *buffer, size_t bytes);

#endif
