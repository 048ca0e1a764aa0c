/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * comm.h - the two halves of a connection as verbs objects: queue pairs, rings, keys, requests.
 *
 * comm.c makes and destroys them and keeps the table by which control messages find them;
 * connect.c runs listen, connect and accept as explicit stages; request.c moves data.
 *
 * A comm belongs to whoever holds its owner word. NCCL's thread and the plugin thread both only
 * try it. Comms are found by id under the table's lock; a closed id finds nothing.
 */
#ifndef RAILYARD_COMM_H
#define RAILYARD_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "control.h"
#include "core/recv.h"
#include "core/send.h"
#include "device.h"
#include "flight.h"
#include "keys.h"
#include "mr.h"
#include "recover.h"
#include "state.h"
#include "thread.h"
#include "verbs.h"
#include "wire.h"

enum comm_kind { COMM_SEND = 1, COMM_RECV };

/* What a work request was for: bits 16.. of its wr_id. */
enum wr_kind { WR_DATA, WR_RECV, WR_CTS, WR_CREDIT, WR_AGAIN, WR_FLUSH, WR_VERIFY };

/* wr_id: unit 0-7, lane 8-15, kind 16-23, generation 32-63. */
static inline uint64_t wr_id_make(enum wr_kind kind, uint32_t lane, uint32_t unit,
				  uint32_t generation)
{
	return unit | lane << 8 | (uint64_t)kind << 16 | (uint64_t)generation << 32;
}

static inline uint32_t wr_id_unit(uint64_t id)
{
	return id & 0xff;
}

static inline uint32_t wr_id_lane(uint64_t id)
{
	return id >> 8 & 0xff;
}

static inline enum wr_kind wr_id_kind(uint64_t id)
{
	return (enum wr_kind)(id >> 16 & 0xff);
}

static inline uint32_t wr_id_generation(uint64_t id)
{
	return (uint32_t)(id >> 32);
}

enum request_type { REQ_FREE, REQ_SEND, REQ_RECV, REQ_FLUSH };

struct request {
	struct comm *comm; /* whose it is, and `slot`: set once */
	uint8_t type;      /* enum request_type */
	uint8_t slot;
	uint8_t n;
	uint8_t pending; /* flush: reads in flight */
	bool redo;       /* flush: a read failed */
	const struct mr *mr;
	const struct peer_key *key; /* send: of the buffer it goes to */
	uintptr_t data;
} __attribute__((aligned(64))); /* found by a shift, as ports and lanes are */

struct comm_port {
	struct port *port;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *ring_mr;  /* the whole comm: rings and staging */
	struct ibv_qp *flush_qp; /* loopback, receivers of GPU memory only; NULL: none now */
	struct port_address addr;
	struct job job;          /* set-up on the device's worker */
	const char *step;        /* of set-up: the call it is at, NULL: one that logs itself */
	struct comm *comm;       /* back, for the job */
	int index;               /* in comm->port */
} __attribute__((aligned(128)));
_Static_assert(sizeof(struct comm_port) == 128, "ports are found by a shift");

struct comm_lane {
	struct ibv_qp *qp;
	uint32_t generation;
	uint32_t psn;
	uint8_t port;   /* index in comm->port */
	uint8_t remote; /* index of the peer's port */
	uint8_t of;     /* receiver: lane of the CONNECT that it answers */
	uint64_t data_id; /* sender: wr_id of unit 0 */
	/*
	 * What every WR of the lane has in common, made once at attach; the owner fills in the
	 * rest.
	 */
	struct ibv_send_wr wr;
	struct ibv_sge sge;
} __attribute__((aligned(256)));

struct comm {
	uint32_t owner; /* owner word */
	uint8_t kind;   /* enum comm_kind */
	uint8_t port_count; /* home ports */
	uint8_t lane_count; /* on those */
	uint8_t standby;    /* 1: a borrowed port and its lane come after them */
	uint8_t poll_ports; /* with a completion queue: port_count, then the standby port too */
	uint8_t lanes_made; /* places of lane[] that may have a queue pair */
	uint64_t lanes_down; /* bit per lane that could not be connected at set-up */
	uint32_t absent;     /* bit per port that had no address at set-up */
	uint8_t path_count; /* lane i is on path i % path_count */
	struct flight *flight; /* its log, set before anyone drives it; NULL = none */
	int error;         /* 0 or -errno: the comm has failed; sticky; see comm_error() */
	bool peer_closed;  /* CLOSE or BYE came: what fails now is not news */
	uint64_t id;
	uint64_t peer_id;  /* of the other half, at the peer */
	struct peer *peer;
	struct peer_keys *keys;
	struct vdevice *dev;
	bool attached;     /* the peer may be told of ports (release order) */
	struct wire_ports told; /* of our ports, as the peer knows them; plugin thread only */
	uint64_t peer_ring_addr, peer_scratch_addr;
	uint8_t peer_port_count;
	uint8_t traffic_class, service_level;
	bool adaptive_routing;
	bool inline_cts;
	struct core_port remote[CORE_PORTS_MAX]; /* the peer's ports; plugin thread writes */
	struct wire_port peer_port[CORE_PORTS_MAX];
	struct wire_lane peer_lane[CORE_LANES_MAX];
	struct comm_port port[CORE_PORTS_MAX];
	struct comm_lane lane[CORE_LANES_MAX];
	struct recovery recovery;
	struct state_mark state; /* under the table's lock */
	struct comm *next; /* in the table */

	/* mailbox, written by the plugin thread under the table's lock */
	bool mail_answer, mail_ready, mail_refused;
	struct wire_connect mail_connect; /* ACCEPT as it came */
	char mail_reason[256];
};

enum { SCRATCH_BYTES = 4096 }; /* where verified writes come from and go to: a full MTU */

struct send_comm {
	struct comm base; /* first */
	struct core_send core;
	struct request req[CORE_SLOTS];
	struct core_cts ring[CORE_RING_RECORDS] __attribute__((aligned(64)));
	struct core_sizes sizes[CORE_SLOTS] __attribute__((aligned(64)));
	uint8_t scratch[SCRATCH_BYTES];
};

enum { FLUSH_REQUESTS = 256 };

struct recv_comm {
	struct comm base; /* first */
	struct core_recv core;
	uint8_t hot_port; /* where the last completion came from: polled first */
	bool has_flush;
	struct request req[CORE_SLOTS];
	struct request flush[FLUSH_REQUESTS];
	uint8_t flush_next;
	struct ibv_recv_wr refill[CORE_LANES_MAX][CORE_RQ_BATCH]; /* chains, made once */
	struct core_cts staging[CORE_RING_RECORDS] __attribute__((aligned(64)));
	struct core_sizes sizes[CORE_SLOTS] __attribute__((aligned(64)));
	uint64_t flush_word; /* where flush reads land */
	uint8_t scratch[SCRATCH_BYTES];
};

/* comm_error - has it failed? 0 or -errno. The plugin thread may fail it at any time. */
static inline int comm_error(const struct comm *c)
{
	return __atomic_load_n(&c->error, __ATOMIC_RELAXED);
}

static inline struct send_comm *send_comm(struct comm *c)
{
	return (struct send_comm *)(void *)c;
}

static inline struct recv_comm *recv_comm(struct comm *c)
{
	return (struct recv_comm *)(void *)c;
}

/* --- comm.c ------------------------------------------------------------------------------- */

/* comm_create - memory, id and table entry of a half on a device. Returns 0, -ENOMEM. */
int comm_create(enum comm_kind kind, struct vdevice *dev, struct comm **out);

/*
 * comm_destroy - destroy queue pairs and all else; tells the peer CLOSE if there is one. Bounded
 * local verbs calls only, never waits for the peer. Also of half-made comms (waits for its jobs).
 */
void comm_destroy(struct comm *c);

/*
 * comm_addresses_start/done - receiver: read the addresses of our ports, on the workers; then
 * comm_lanes_answer() pairs them with the peer's. done: as comm_setup_done().
 */
void comm_addresses_start(struct comm *c);
int comm_addresses_done(struct comm *c);

/* comm_lanes_wish - sender: lanes over as many paths as the wider end has ports. */
void comm_lanes_wish(struct comm *c, int peer_ports);

/*
 * comm_lanes_answer - receiver: which of the lanes in a CONNECT to use. Returns 0; -EPROTO, *why.
 */
int comm_lanes_answer(struct comm *c, const struct wire_connect *in, const char **why);

/* comm_peer_set - whose comm it is; the comm takes the reference. */
void comm_peer_set(struct comm *c, struct peer *peer);

/* comm_setup_start/done - make CQs, rings and queue pairs (INIT) on the devices' workers.
 * done: 1 finished, 0 not yet, -errno failed (one line logged). */
void comm_setup_start(struct comm *c);
int comm_setup_done(struct comm *c);

/* comm_wire - this half as the peer must know it. */
void comm_wire(const struct comm *c, struct wire_connect *out);

/* comm_wire_take - check and keep the peer's half. Returns 0; -EPROTO with *why. */
int comm_wire_take(struct comm *c, const struct wire_connect *in, const char **why);

/*
 * comm_attach_start/done - connect the queue pairs to the peer's (RTR, RTS; receivers post WRs).
 * A lane that cannot be connected is not the comm's end as long as another can: recovery has it.
 */
void comm_attach_start(struct comm *c);
int comm_attach_done(struct comm *c);

/*
 * comm_begin - from now on the plugin thread looks after it. A receiver's after ACCEPT was sent:
 * what it tells of lanes must come later.
 */
void comm_begin(struct comm *c);

/* comm_fail - the comm has failed: first cause wins. Logs one line unless the peer closed. */
void comm_fail(struct comm *c, int error, const char *why);

/* comm_ring_range - the part of a comm that NICs read and write. */
void comm_ring_range(struct comm *c, void **start, size_t *bytes);
uint8_t *comm_scratch(struct comm *c);

static inline uint32_t comm_lane_total(const struct comm *c)
{
	return (uint32_t)c->lane_count + c->standby;
}

static inline uint32_t comm_port_total(const struct comm *c)
{
	return (uint32_t)c->port_count + c->standby;
}

/* comm_find - run fn on the comm with this id under the table's lock; false if there is none. */
bool comm_find(uint64_t id, void (*fn)(struct comm *c, void *arg), void *arg);

/* comm_each - run fn on every comm under the table's lock. */
void comm_each(void (*fn)(struct comm *c, void *arg), void *arg);

/* --- connect.c ---------------------------------------------------------------------------- */

struct listen_comm;

/* The plugin thread's side of set-up: messages and lost connections. */
extern const struct control_handler connect_handler;

/* All return 0 or -errno; *out NULL with 0 = not yet, call again. handle: 128 bytes. */
int connect_listen(struct vdevice *dev, void *handle, struct listen_comm **out);
int connect_connect(struct vdevice *dev, void *handle, int traffic_class, struct comm **out);
int connect_accept(struct listen_comm *listen, struct comm **out);
void connect_listen_close(struct listen_comm *listen);
/*
 * connect_ports_tell - tell peers of changed port words; false: there is no comm. For
 * signals_start().
 */
bool connect_ports_tell(void);

/* connect_forget - abandon what was never finished; at the last finalize. */
void connect_forget(void);

/* --- request.c ---------------------------------------------------------------------------- */

/* All return 0 or -errno; *out NULL with 0 = not now. Never wait. */
int request_send(struct send_comm *c, void *data, size_t bytes, int tag, const struct mr *mr,
		 struct request **out);
int request_recv(struct recv_comm *c, int n, void **data, const size_t *bytes, const int *tags,
		 const struct mr **mrs, struct request **out);
int request_flush(struct recv_comm *c, int n, void **data, const int *bytes, const struct mr **mrs,
		  struct request **out);
int request_test(struct request *req, int *done, int *sizes);

/*
 * The same with a flight log: request_flight.c. Called by request.c; not to be put into it, where
 * they would take registers.
 */
int request_send_flight(struct send_comm *c, void *data, size_t bytes, int tag,
			const struct mr *mr, struct request **out) __attribute__((noinline));
int request_recv_flight(struct recv_comm *c, int n, void **data, const size_t *bytes,
			const int *tags, const struct mr **mrs, struct request **out)
	__attribute__((noinline));
int request_test_flight(struct request *req, int *done, int *sizes) __attribute__((noinline));
int request_flush_flight(struct recv_comm *c, int n, void **data, const int *bytes,
			 const struct mr **mrs, struct request **out);
void request_abandon_flight(struct comm *c, const struct mr *mr);
void request_drain_flight(struct comm *c);
void request_progress_flight(struct comm *c);

/*
 * request_abandon - a region goes. A sender (others and NULL: nothing) that has a request on it is
 * being aborted: it fails, so that recovery sends nothing of it again.
 */
void request_abandon(struct comm *c, const struct mr *mr);

/* For recovery, as owner: take all completions there are; then post what can be posted. */
void request_drain(struct comm *c);
void request_progress(struct comm *c);
/* Write an announcement; post a probe. A failure is a fault of the lane. */
void request_announce(struct recv_comm *c, const struct core_announce *a);
void request_probe(struct send_comm *c, const struct core_post *p);
/* Post the verified write of a lane. */
void request_verify(struct comm *c, uint32_t lane);

#endif
