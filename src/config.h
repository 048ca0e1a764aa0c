/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * config.h - every environment variable of the plugin, in one table that parses, documents and
 * prints itself.
 *
 * The only reader of the environment. config_load() runs once per process (first init); after
 * that the values are read-only. A bad value gives one line with name, value, allowed range, and
 * the default is used. An unset or empty variable has its default; strings are never NULL.
 */
#ifndef RAILYARD_CONFIG_H
#define RAILYARD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum config_borrow {
	BORROW_FAILURE,
	BORROW_OFF
};

enum config_mode {
	MODE_ON,
	MODE_OBSERVE,
	MODE_OFF
};

/* Names are the variables' without their prefix. Units last. */
struct config {
	/* NCCL_IB_*: as NCCL means them */
	int64_t ib_disable;
	const char *ib_hca;
	int64_t ib_merge_vfs;
	int64_t ib_merge_nics;
	int64_t ib_device_pci_order;
	int64_t ib_query_port_speed;
	int64_t ib_pci_relaxed_ordering;
	int64_t ib_gid_index;
	int64_t ib_roce_version_num;
	int64_t ib_addr_family; /* AF_INET or AF_INET6 */
	const char *ib_addr_range;
	int64_t ib_routable_flid_gid_index;
	int64_t ib_timeout;
	int64_t ib_retry_cnt;
	int64_t ib_pkey;
	int64_t ib_sl;
	int64_t ib_tc;
	int64_t ib_fifo_tc;
	int64_t ib_use_inline;
	int64_t ib_qps_per_connection;
	int64_t ib_split_data_on_qps;
	int64_t ib_adaptive_routing; /* -2: 1 on IB, 0 on RoCE */
	int64_t ib_ar_threshold;
	int64_t ib_mqp_retry_all;
	int64_t ib_mqp_retry_cnt;
	int64_t ib_mqp_retry_sleep_msec;
	const char *ibverbs_lib;
	int64_t gdr_flush_disable;
	/* NCCL_*: the control plane */
	const char *socket_ifname;
	const char *socket_family;
	/* RAILYARD_* */
	enum config_mode mode;
	int64_t small_bytes; /* per port */
	int64_t window_us;
	int64_t pressure_max_pct;
	int64_t connect_timeout_ms;
	int64_t outage_timeout_ms;
	enum config_borrow borrow;
	int64_t retest_ms;
	int64_t stall_ms;
	int64_t signal_poll_ms;
	int64_t state; /* a page in /dev/shm */
	int64_t flight; /* and logs of what each comm does */
	int64_t flight_kib;
	const char *bpffs; /* where the rail map is pinned; empty = the usual places */
};

extern struct config config;

/* config_load - read the environment once. Threads: any; first caller does it. */
void config_load(void);

/* config_reload - for tests: forget and read again. */
void config_reload(void);

/*
 * config_print - the table: name, type, default, range, unit, text, and the value in force where
 * it differs. Reads the environment first if nobody has.
 */
void config_print(FILE *out);

/* For tests and docs: the i-th variable's name, unit and text; what is out of range is NULL. */
unsigned config_count(void);
const char *config_name(unsigned i);
const char *config_unit(unsigned i);
const char *config_text(unsigned i);

#endif
