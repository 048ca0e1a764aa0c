/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_net.h - one set of calls over the plugin ABIs v8 to v12.
 *
 * Loads a plugin file as NCCL does and hides which table it took. Each call returns 0, or -errno
 * after it has said what the plugin returned. Success with a NULL comm or request means "not now",
 * as in the ABI. Owner: one thread.
 *
 * Must not: retry, wait or interpret; that is the caller's part, as it is NCCL's.
 */
#ifndef RY_BENCH_NET_H
#define RY_BENCH_NET_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench_stat.h"
#include "nccl_net.h"

/* Calls that are counted and timed. */
enum bench_call {
	CALL_SETUP,			/* init, properties, listen, connect, accept, MRs */
	CALL_ISEND,
	CALL_IRECV,
	CALL_TEST,
	CALL_CLOSE,
	CALL_COUNT,
};

/* Properties of a device, whatever the ABI. Strings are copies. */
struct bench_props {
	char name[128];
	char pci_path[PATH_MAX];	/* empty when the plugin gives none */
	uint64_t guid;
	int port;
	int speed_mbps;
	int ptr_support;
	int comms_max;
	int recvs_max;
	int member_count;		/* 1 before v9 */
	int rail_id, plane_id;		/* -1 before v12 */
	uint64_t p2p_bytes_max;
};

struct bench_call_stat {
	uint64_t count;
	uint64_t fruitless;		/* refused isend or irecv, test that was not done */
	uint64_t sum_ns;
	struct bench_hist time;		/* ns in a call; empty without time_calls */
};

struct bench_abi;

struct bench_net {
	void *lib;
	char path[PATH_MAX];		/* of the file that was loaded */
	const char *name;		/* the plugin's own */
	int abi;
	const struct bench_abi *calls;
	const void *table;
	void *ctx;			/* v11 on */
	bool is_init;
	struct ry_net_config_v10 config;
	int device_count;
	bool time_calls;
	struct bench_call_stat stat[CALL_COUNT];
	_Atomic(const char *) in_call;	/* NULL outside the plugin; read by the watchdog */
	_Atomic uint64_t call_seq;

	/* Members that are alike in every ABI version; filled from the table. */
	enum ry_net_result (*devices)(int *);
	enum ry_net_result (*accept)(void *, void **, struct ry_net_device_handle **);
	enum ry_net_result (*regMr)(void *, void *, size_t, int, void **);
	enum ry_net_result (*deregMr)(void *, void *);
	enum ry_net_result (*test)(void *, int *, int *);
	enum ry_net_result (*closeSend)(void *);
	enum ry_net_result (*closeRecv)(void *);
	enum ry_net_result (*closeListen)(void *);
};

/* Loads @plugin (a file, or the x of libnccl-net-x.so) and takes ABI @abi, or the newest for 0.
 * @net: zeroed. Nothing of the plugin runs yet. -ENOENT: no such file or table. */
int net_load(struct bench_net *net, const char *plugin, int abi);

/* What the plugin may print to stderr (enum ry_net_log_level), and whether with the time of day. */
void net_set_log(int level, bool with_times);

/* init and devices. */
int net_init(struct bench_net *net, int traffic_class, uint64_t comm_id);

/* finalize where the ABI has it, and dlclose. Accepts a half-opened or zeroed net. */
void net_close(struct bench_net *net);

int net_props(struct bench_net *net, int dev, struct bench_props *props);

/* Fuses @count devices; *@dev is the new one. -ENOTSUP without a line: the ABI or plugin cannot. */
int net_merge(struct bench_net *net, const int *devs, int count, int *dev);

/* Most members that net_merge takes; 0 = it cannot. */
int net_merge_max(const struct bench_net *net);

int net_listen(struct bench_net *net, int dev, void *handle, void **listen_comm);
int net_connect(struct bench_net *net, int dev, void *handle, void **send_comm);
int net_accept(struct bench_net *net, void *listen_comm, void **recv_comm);
int net_reg(struct bench_net *net, void *comm, void *data, size_t bytes, void **mhandle);
int net_dereg(struct bench_net *net, void *comm, void *mhandle);
int net_close_send(struct bench_net *net, void *comm);
int net_close_recv(struct bench_net *net, void *comm);
int net_close_listen(struct bench_net *net, void *comm);

int net_isend(struct bench_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request);
int net_irecv(struct bench_net *net, void *comm, int n, void **data, const size_t *bytes, int *tags,
	      void **mhandles, void **request);

/* @sizes: one int for a send, BENCH_NET_TEST_SIZES for a receive. */
int net_test(struct bench_net *net, void *request, int *done, int *sizes);

enum { BENCH_NET_TEST_SIZES = 64 };	/* ints that NCCL gives to test for a receive */

const char *net_result_name(enum ry_net_result result);

#endif /* RY_BENCH_NET_H */
