/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fake_internal.h - what the parts of the fake share: its objects (fake_verbs.c), what moves
 * between them (fake_wire.c) and on which way (fake_path.c). All of it is under one lock, taken at
 * the entry of every public call.
 */
#ifndef RAILYARD_FAKE_INTERNAL_H
#define RAILYARD_FAKE_INTERNAL_H

#include <pthread.h>
#include <sched.h>

#include "fake_verbs.h"

enum {
	FAKE_EVENTS_MAX = 256
};

struct fake_qp;

struct fake_port {
	bool up;
	unsigned losses; /* enum fake_loss */
	union ibv_gid gid[FAKE_GIDS];
	int gid_version[FAKE_GIDS]; /* 0 = empty */
	uint64_t bytes;
};

struct fake_device {
	struct ibv_device ibv; /* must be first */
	int index;
	struct fake_port port[FAKE_PORTS_MAX + 1]; /* from 1 */
	struct fake_qp **qp;			   /* by qp_num - FAKE_QPN_FIRST */
	int qp_room, qp_count;
	struct fake_mr **mr; /* by key >> 8, less the device's first */
	int mr_room;
	uint8_t mr_tag;
	bool fatal;
	unsigned hang_ms, destroy_ms; /* read without the lock */
};

struct fake_event {
	struct ibv_async_event ibv;
	uint32_t *unacked; /* of the QP or CQ; NULL for ports */
};

struct fake_context {
	struct ibv_context ibv; /* must be first */
	struct fake_device *device;
	struct fake_context *next;
	struct fake_event event[FAKE_EVENTS_MAX];
	unsigned event_head, event_count;
	int objects;
};

struct fake_pd {
	struct ibv_pd ibv; /* must be first */
	int users;
};

struct fake_mr {
	struct ibv_mr ibv; /* must be first */
	uint64_t iova;
	int access;
	void *mapped; /* dmabuf only */
};

struct fake_cqe {
	struct ibv_wc wc;
	struct fake_qp *qp; /* NULL once destroyed */
	uint64_t seq;	    /* WRs of the queue up to here are free again when this is polled */
	bool is_send;
};

struct fake_cq {
	struct ibv_cq ibv; /* must be first */
	struct fake_cqe *ring;
	uint64_t head, tail;
	int users;
	uint32_t unacked;
	bool overrun;
};

struct fake_send {
	uint64_t wr_id, remote_addr;
	enum ibv_wr_opcode opcode;
	uint32_t flags, rkey, imm, bytes;
	int sge_count;
	struct ibv_sge sge[FAKE_SGE_MAX];
};

struct fake_recv {
	uint64_t wr_id;
	int sge_count;
	struct ibv_sge sge[FAKE_SGE_MAX];
};

/* Counters only grow; a WR is in ring[counter % size]. freed <= acked <= landed <= posted. */
struct fake_qp {
	struct ibv_qp ibv; /* must be first */
	struct fake_qp *next;
	struct fake_device *device;
	struct ibv_qp_cap cap;
	bool sig_all;
	uint8_t port, sgid_index, rd_atomic, dest_rd_atomic;
	int access;
	uint32_t dest_qpn, rq_psn, sq_psn;
	union ibv_gid dgid;
	enum ibv_mtu mtu;
	struct fake_send *sq;
	uint8_t *inline_data; /* [max_send_wr][max_inline_data] */
	uint64_t sq_posted, sq_landed, sq_acked, sq_freed;
	struct fake_recv *rq;
	uint64_t rq_posted, rq_taken, rq_freed;
	uint32_t unacked;
	uint32_t sq_next; /* sequence number of the first packet of the WR that lands next */
	uint32_t rq_next; /* of the packet that is taken next */
	/* What fake_path_find() found at path_epoch. */
	uint64_t path_epoch;
	struct fake_qp *peer; /* ready to take; the way there may yet be closed */
	bool forward, back;   /* data and acknowledgements get through */
	bool delayed;	      /* data gets into a queue */
	uint64_t blocked_ns;  /* since when the first WR finds no way; 0 = it does */
	uint64_t spilled;     /* WRs up to here have landed in part, if at all */
	uint64_t ghosts;      /* copies of WRs up to here are in a queue */
};

/* A write in a queue of the network. */
struct fake_ghost {
	struct fake_ghost *next;
	union ibv_gid dgid;
	int gid_version;
	uint32_t qpn, src_qpn, psn, packets;
	struct fake_send wr; /* without its buffers */
	char data[];
};

enum {
	FAKE_QPN_FIRST = 0x40
};

struct fake {
	pthread_mutex_t lock;
	struct fake_config config;
	struct fake_device device[FAKE_DEVICES_MAX];
	struct fake_context *contexts;
	struct fake_qp *qps;
	struct fake_counts counts;
	int open_pds, open_mrs, open_cqs, open_qps;
	uint64_t epoch;	  /* changes when any QP's peer may have changed */
	uint64_t waiting; /* WRs posted and not acked, all QPs */
	uint64_t random;
	const char *fail_always;
	int fail_always_error;
	const char *fail_only;
	unsigned fail_in;
	int fail_error;
	const char *failed;
	unsigned faults;
	char fault[256];
	/* Of failures; `watching` costs a look at the clock in each call. */
	bool watching;
	uint64_t watch_epoch, retry_ns, retry_at; /* retry_at: the earliest, 0 = none */
	struct fake_ghost *ghosts, **ghosts_end;
	unsigned ghost_count, ghosts_dropped;
};

extern struct fake fake;

static inline struct fake_device *fake_device_of(struct ibv_context *ctx)
{
	return ((struct fake_context *)(void *)ctx)->device;
}

static inline struct fake_qp *fake_qp_of(struct ibv_qp *qp)
{
	return (struct fake_qp *)(void *)qp;
}

static inline struct fake_cq *fake_cq_of(struct ibv_cq *cq)
{
	return (struct fake_cq *)(void *)cq;
}

/*
 * fake_lock - never sleeps, so that a test can tell a call that waits, which goes to sleep for it,
 * from one that the scheduler put off.
 */
static inline void fake_lock(void)
{
	while (pthread_mutex_trylock(&fake.lock) != 0)
		sched_yield();
}

/* fake_enter - take the lock; nonzero is the error that this call is to fail with. */
int fake_enter(const char *call);
void fake_leave(void);
void fake_fault_add(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Queue an async event; `unacked` is the counter of its object. */
void fake_raise(struct ibv_context *ctx, struct ibv_async_event event, uint32_t *unacked);

/* fake_verbs.c, with the lock held. */
void fake_raise_all(struct fake_device *device, enum ibv_event_type type, int port);

/* fake_path.c, with the lock held. */
void fake_path_find(struct fake_qp *qp);
/* Notice who finds no way, and fail whose time is up. Called by whatever posts, polls or moves. */
void fake_watch(struct fake_qp *posted);
void fake_ghosts_free(void);
/* Whether the ports of a QP and of a GID get at each other, both ways. */
bool fake_gid_answers(const struct fake_qp *qp, const union ibv_gid *gid, int sgid_index);

static inline void fake_path_look(struct fake_qp *qp)
{
	if (qp->path_epoch != fake.epoch)
		fake_path_find(qp);
}

static inline struct fake_send *fake_send_at(struct fake_qp *qp, uint64_t seq)
{
	return &qp->sq[seq % qp->cap.max_send_wr];
}

/* Packets of a WR: each has a sequence number. */
static inline uint32_t fake_packets(const struct fake_qp *qp, uint32_t bytes)
{
	uint32_t mtu = 128u << qp->mtu;

	return bytes ? (bytes + mtu - 1) / mtu : 1;
}

/* fake_wire.c, with the lock held. */
uint64_t fake_random(void);
bool fake_qp_is_stuck(struct fake_qp *qp);
/* Gather the first bytes of a WR into a block. */
bool fake_gather(struct fake_qp *qp, uint64_t seq, void *block, uint32_t bytes);
/* Write them into the peer's memory as if by the wire, with no sign to anybody. */
void fake_spill(struct fake_qp *qp, struct fake_qp *peer, uint64_t seq, uint32_t bytes);
bool fake_ghost_land(struct fake_qp *peer, const struct fake_ghost *ghost);
void fake_qp_fail(struct fake_qp *qp, enum ibv_wc_status status);
void fake_settle(void); /* immediate delivery: move whatever can move now */
int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc);

#endif
