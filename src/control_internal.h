/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_internal.h - what the files of the control module share; nobody else includes it.
 *
 *   control.c       start and stop, listens and their secrets, the table of peers, peer_send()
 *   control_conn.c  one socket: frames in, frames out, its end
 *   control_greet.c dialing and greeting: HELLO, WELCOME, REFUSE, crossing connections
 *   control_addr.c  interfaces and addresses
 *
 * Who owns what. A `struct conn` belongs to the plugin thread alone; it is freed at the end of the
 * callback in which it died. A `struct peer` is shared: its table link is under ctl.lock, its state
 * and queue under its own lock, its conns are the plugin thread's. Lock order: ctl.lock, peer.lock,
 * ctl.work_lock; no lock is held across a callback or a socket call.
 *
 * Life of a peer: DIALING (by peer_get) or UP (accepted), then FAILED for good; a failed one leaves
 * the table at once, so that the next peer_get() or HELLO makes a new one. References: one of the
 * table, one of each conn, one while on the work list, and those of the callers.
 *
 * Crossing connections. Both ends may dial at once. The dial of the smaller instance id stays, if
 * its HELLO was sent; so the end with the smaller id parks the other's HELLO until its own dial has
 * ended, and the end with the larger id drops its own dial when it takes the smaller's HELLO. Only
 * a connection with WELCOME sent or received carries messages, and messages wait in the peer's
 * queue until then, so none is lost with the connection that goes. A parked connection is the
 * loser's, which closes it within a round trip; one that stays open beyond `park_ns` means that the
 * other end has given up the old connection, and takes its place.
 */
#ifndef RAILYARD_CONTROL_INTERNAL_H
#define RAILYARD_CONTROL_INTERNAL_H

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "control.h"
#include "thread.h"

enum { ADDR_TEXT_BYTES = 64, CAUSE_BYTES = 96, PEER_NAME_BYTES = 192, PEER_WHY_BYTES = 384 };

/* Bounds of the control plane; only tests change them, before control_start(). */
struct control_limits {
	uint64_t hello_ns;    /* accepted, HELLO not complete */
	uint64_t attempt_ns;  /* one TCP connect */
	uint64_t pause_ns;    /* between two rounds over the addresses */
	uint64_t refused_ns;  /* refused at every address for so long: the peer is dead */
	uint64_t park_ns;     /* see "Crossing connections" */
	uint64_t linger_ns;   /* at the last stop: for what is queued and BYE */
	uint32_t unknown_max; /* accepted connections without HELLO */
	size_t queue_bytes;   /* of a peer */
};
extern struct control_limits control_limits;

struct frame {
	struct frame *next;
	size_t bytes;
	bool counted; /* in peer->queued_bytes */
	uint8_t data[];
};

struct frame_queue {
	struct frame *head, *tail;
};

enum conn_state {
	CONN_WAIT,       /* dialer: pause before the next round of addresses; no socket */
	CONN_CONNECTING, /* dialer: TCP handshake */
	CONN_GREETING,   /* dialer: HELLO sent */
	CONN_UNKNOWN,    /* listener: HELLO not complete */
	CONN_PARKED,     /* listener: HELLO was good, but our own dial goes first */
	CONN_UP,
	CONN_LEAVING,    /* last stop: BYE queued */
	CONN_DEAD        /* freed at the end of this callback */
};

struct conn {
	struct watch watch;
	struct conn *next;
	enum conn_state state;
	bool dialed, wants_out, broken; /* broken: cannot send, but there may be more to read */
	struct peer *peer;              /* held; NULL before HELLO */
	unsigned life; /* counts its sockets, so that a loop notices when one went */
	uint64_t deadline_ns;
	char addr[ADDR_TEXT_BYTES];
	struct wire_hello hello; /* of the other end (PARKED) */

	uint8_t *in;
	size_t in_bytes, in_cap;
	struct frame_queue out;
	size_t out_sent; /* of out.head */

	/* dialer */
	unsigned addr_index, tried, refused; /* of this round */
	bool refused_in_words;
	uint64_t give_up_ns, refused_since_ns;
	char cause[WIRE_ADDRS][CAUSE_BYTES];
};

struct peer {
	struct peer *next;
	uint32_t refs;
	uint64_t instance;
	bool is_own_accepted; /* this process's accepting end of a connection to itself */
	struct wire_handle handle;
	void *data;
	const char *name; /* atomic: points to one of the two below */
	char name_dialed[PEER_NAME_BYTES], name_known[PEER_NAME_BYTES];
	char why[PEER_WHY_BYTES]; /* written before the state becomes FAILED, then constant */

	pthread_mutex_t lock;
	enum peer_state state; /* written under the lock, read without */
	struct frame_queue queue;
	size_t queued_bytes; /* in the queue or with the conn */

	struct peer *work_next; /* ctl.work_lock */
	bool in_work;

	struct conn *conn, *dial, *parked; /* plugin thread */
	bool said_bye;
};

struct listen {
	struct listen *next;
	uint64_t id;
	uint8_t secret[WIRE_SECRET_BYTES];
};

struct listener {
	struct watch watch; /* fd -1 = none */
	struct wire_addr addr;
};

struct control {
	pthread_mutex_t life; /* start and stop, one at a time */
	unsigned users;
	pid_t pid;
	const struct control_handler *handler;

	pthread_mutex_t lock;   /* down to `stopped_cond` */
	bool started, stopping, stopped;
	uint64_t instance, listen_next;
	struct listen *listens;
	struct peer *peers;
	pthread_cond_t stopped_cond;

	pthread_mutex_t work_lock;
	struct peer *work;

	/* plugin thread */
	struct timer work_timer, deadline_timer;
	uint64_t deadline_ns; /* what deadline_timer is set to */
	struct conn *conns, *dead;
	struct listener listener[WIRE_ADDRS];
	unsigned unknown;
	bool paused, leaving; /* not accepting for now; the last stop has begun */
	uint64_t resume_ns;   /* when to try accept() again after it failed */
	char host[WIRE_NAME_BYTES];
};
extern struct control ctl;

/* control.c */
/* The peer of this instance, held, made if there is none; handle NULL = accepted. As peer_get(). */
int peer_table_get(uint64_t instance, bool is_own_accepted, const struct wire_handle *handle,
		   struct peer **out);
void peer_set_up(struct peer *peer, const char *host, uint32_t pid, const char *addr);
void peer_fail(struct peer *peer, const char *why); /* closes, leaves the table, on_down */
void control_wake_at(uint64_t at_ns);                /* look at the deadlines then, or before */
void control_left(void);
void frames_free(struct frame_queue *q);
struct frame *frame_make(uint16_t type, uint64_t target, const void *body, size_t bytes);
void frame_push(struct frame_queue *q, struct frame *f);

/* control_conn.c */
struct conn *conn_create(enum conn_state state);
int conn_watch(struct conn *c, int fd, uint32_t epoll_events); /* takes the fd, even on error */
void conn_unwatch(struct conn *c);
void conn_close(struct conn *c);
void conn_reap(void);
void conn_set_deadline(struct conn *c, uint64_t at_ns);
void conn_send(struct conn *c, uint16_t type, const void *body, size_t bytes);
void conn_flush(struct conn *c);
void conn_lost(struct conn *c, const char *why);
void conn_expired(struct conn *c);

/* control_greet.c */
int listener_open(struct listener *l, const struct wire_addr *addr);
void listener_close(struct listener *l);
void listeners_resume(void);
void greet_hello(struct conn *c, const uint8_t *body, size_t bytes);
void greet_answer(struct conn *c, uint16_t type, const uint8_t *body, size_t bytes);
void greet_admit(struct conn *c); /* its HELLO was good: up, or parked */
void greet_parked_expired(struct conn *c);
void dial_start(struct peer *peer);
void dial_connected(struct conn *c);
void dial_failed(struct conn *c, const char *why, bool refused, bool in_words);
void dial_round(struct conn *c);

/* control_addr.c */
int addr_find_interfaces(struct wire_addr addr[WIRE_ADDRS], unsigned *count);
socklen_t addr_to_sockaddr(const struct wire_addr *a, struct sockaddr_storage *to);
void addr_from_sockaddr(const struct sockaddr *from, struct wire_addr *a);
void addr_text(const struct sockaddr_storage *s, char text[ADDR_TEXT_BYTES]);
void socket_tune(int fd);

#endif
