/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fake_verbs.h - RDMA devices in memory: RC queue pairs of one process, joined by GID and QP
 * number.
 *
 * For tests of what stands on the verbs table, and for counting its work. It keeps the rules that
 * programs break unnoticed on forgiving devices: keys (lkey and rkey differ), bounds and access,
 * the state machine and its masks, PSNs, queue and CQ depths, where a slot is free again only once
 * its completion, or a later one, has been polled. What a correct program never causes is a
 * *fault*: a test ends with fake_fault() == NULL and fake_leaks() == 0.
 *
 * Devices and wires fail when a test says so (below), at any time and from any thread; nothing of
 * it is a fault. A packet is taken by the queue pair of its number and no other packet than the
 * next by its sequence number, as RC has it; what is lost is sent again, until the retry time.
 *
 * Any thread may call any of this; one lock covers it all, so it says nothing about speed.
 */
#ifndef RAILYARD_FAKE_VERBS_H
#define RAILYARD_FAKE_VERBS_H

#include <stdbool.h>

#include "verbs.h"

/* The fake is also a shared library of its own, libibverbs-fake.so.1, driven by these names. */
#pragma GCC visibility push(default)

enum {
	FAKE_DEVICES_MAX = 16,
	FAKE_PORTS_MAX = 4,
	FAKE_SGE_MAX = 4,
	FAKE_GIDS = 8
};

/* The GID table of every port: link-local and IPv4, each as RoCE v1 and v2, then empty. */
enum {
	FAKE_GID_INDEX_IPV4_V2 = 3
};

enum fake_delivery {
	FAKE_IMMEDIATE, /* a posted WR has landed and completed when post_send returns */
	FAKE_QUEUED,	/* nothing moves but by fake_step() */
};

enum fake_rnr {
	FAKE_RNR_FAIL, /* an immediate without a receive WR is a fault, and fails the sender's QP */
	FAKE_RNR_WAIT, /* it waits for a receive WR, as with rnr_retry 7 */
};

/* Zero means the default, in brackets. */
struct fake_config {
	int device_count; /* [1] */
	int port_count;	  /* per device [1] */
	enum fake_delivery delivery;
	enum fake_rnr rnr;
	uint64_t seed;		/* order of fake_step */
	enum ibv_mtu mtu;	/* [IBV_MTU_4096] */
	uint32_t mbps;		/* what query_port_speed says [-EOPNOTSUPP; query_port: 100 Gb/s] */
	int max_qp;		/* per device [65536] */
	int max_qp_wr;		/* [8192] */
	int max_cqe;		/* [262144] */
	uint32_t max_inline;	/* [256] */
	uint32_t copy_max;	/* bytes of a WR that are really copied, 4096 or more [all] */
	bool dmabuf;		/* reg_dmabuf_mr maps the fd (give a memfd) [-EOPNOTSUPP] */
	bool reuse_qpn;		/* the lowest free number at once [never again] */
	bool destroy_cleans_cq; /* destroy_qp takes the QP's completions out of its CQs, as mlx5
				   does */
	/* What drivers do and RC programs must live with; all off by default. */
	bool err_lands;	     /* a QP in ERR still takes the data of writes, until destroy_qp */
	bool no_recv_flush;  /* going to ERR gives no completion for posted receives */
	bool torn;	     /* of a write that a cut stops, a first part has landed */
	uint32_t vendor_id;  /* as query_device tells it [0] */
	unsigned resolve_ms; /* RTR asks for the far port's address; -ETIMEDOUT after [asks not] */
};

/* The table to put in place of `verbs`. */
extern const struct verbs_ops fake_verbs_ops;

/* fake_init - build new devices, as if no verb had ever been called. */
void fake_init(const struct fake_config *config);

/*
 * fake_step - let one WR land or one completion be reported, chosen by the seed among all QPs that
 * can move; a QP's own WRs stay in order. Returns false if nothing can move.
 */
bool fake_step(void);
/* fake_run - fake_step until nothing can move. Returns the number of steps. */
unsigned fake_run(void);

/* --- failures: from any thread, at any time ------------------------------------------------ */

/*
 * fake_retry_set - how long a WR may find no way (path cut, port down, far QP gone or not ready)
 * until it completes with IBV_WC_RETRY_EXC_ERR and the rest is flushed; 0 = for ever [0]. The time
 * is looked at when anything is posted or polled.
 */
void fake_retry_set(unsigned ms);
/* fake_retry_exceeded - the same at once: QPs on the port that have something posted go to ERR. */
void fake_retry_exceeded(int device, int port);

/* fake_port_set - link up or down, with the port's async event on every open context. */
void fake_port_set(int device, int port, bool up);

/* What a port loses silently; together in any way. Loopback goes over the port too. */
enum fake_loss {
	FAKE_LOSE_IN = 1,   /* what comes in: data, and acknowledgements of data that went out */
	FAKE_LOSE_OUT = 2,  /* what goes out */
	FAKE_LOSE_ACKS = 4, /* acknowledgements of either direction: data lands, nobody is told */
	FAKE_DELAY = 8, /* writes in either direction stay in a queue: see fake_ghosts_release */
	FAKE_CUT = FAKE_LOSE_IN | FAKE_LOSE_OUT
};

void fake_port_lose(int device, int port, unsigned losses);

/*
 * fake_ghosts - how many delayed writes are in queues. fake_ghosts_release - deliver them now,
 * oldest first: each lands if its QP number and its sequence number fit what is there by now, else
 * it is dropped. Returns how many landed. fake_ghosts_dropped - dropped since fake_init.
 */
unsigned fake_ghosts(void);
unsigned fake_ghosts_release(void);
unsigned fake_ghosts_dropped(void);

/* fake_gid_set - another GID at an index of a port's table (version 1 or 2; 0: now empty). */
void fake_gid_set(int device, int port, int index, const union ibv_gid *gid, int version);

/*
 * fake_hang - from now on modify_qp, create_qp, destroy_qp and query_port of a device take so long;
 * their effect comes at the end of it.
 */
void fake_hang(int device, unsigned ms);

/* fake_destroy_slow - destroy_qp alone takes so long, as rxe's does with packets under way. */
void fake_destroy_slow(int device, unsigned ms);

/*
 * fake_device_fatal - IBV_EVENT_DEVICE_FATAL, then a dead device as mlx5 shows it: nothing moves
 * and nothing completes any more, also no flush; posting and destroying answer OK, what would make
 * or ask something -EIO. It stays so until fake_init.
 */
void fake_device_fatal(int device);

/* fake_event - raise an async event on all contexts of a device; `port` for port events. */
void fake_event(int device, enum ibv_event_type type, int port);
void fake_event_qp(struct ibv_qp *qp, enum ibv_event_type type);

/*
 * fake_fail_nth - the nth call from now that can fail (table, post or poll) fails once; 0 = none.
 * fake_fail_nth_of - the nth with this name ("post_send").
 */
void fake_fail_nth(unsigned n, int error);
void fake_fail_nth_of(const char *call, unsigned n, int error);
/* fake_fail_always - every call of the table with this name fails; NULL = none. Until fake_init. */
void fake_fail_always(const char *call, int error);
/* fake_failed - the name of the call that fake_fail_nth made fail; NULL if it has not come yet. */
const char *fake_failed(void);

/* Since fake_init or fake_counts_reset. post_send_calls are doorbells; failed calls do not count.
 */
struct fake_counts {
	uint64_t post_send_calls, send_wrs, send_bytes;
	uint64_t post_recv_calls, recv_wrs;
	uint64_t poll_calls, poll_empty, cqes;
};
void fake_counts_get(struct fake_counts *out);
void fake_counts_reset(void);
/* fake_port_bytes - payload posted over a port since fake_init. */
uint64_t fake_port_bytes(int device, int port);

/* fake_fault - the first fault as text, NULL if there is none; fake_fault_clear forgets them. */
const char *fake_fault(void);
void fake_fault_clear(void);

/* fake_leaks - number of contexts, PDs, MRs, CQs and QPs still open; `text` (if any) lists them. */
int fake_leaks(char *text, size_t text_bytes);

#pragma GCC visibility pop

#endif
