/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_internal.h - what the files of the control module share; nobody else includes it.
 *
 *   control.c          start and stop, listens and their secrets, the plugin thread's turns
 *   control_peer.c     the table of peers, peer_send() and what else other threads call
 *   control_session.c  what survives a connection: counted messages, acks, heartbeats, verdicts
 *   control_conn.c     one socket: frames in, frames out, its end
 *   control_greet.c    the accepting end: listening, HELLO, crossing connections
 *   control_dial.c     the dialing end: addresses in turn, WELCOME or REFUSE
 *   control_addr.c     interfaces and addresses
 *
 * Who owns what. A `struct conn` belongs to the plugin thread alone; it is freed at the end of the
 * callback in which it died. A `struct peer` is shared: its table link is under ctl.lock, its state
 * and queue under its own lock, the rest is the plugin thread's. Lock order: ctl.lock, peer.lock,
 * ctl.work_lock; no lock is held across a callback or a socket call.
 *
 * Life of a peer: DIALING (by peer_get) or UP (accepted; stays UP while it is dialed again), then
 * FAILED for good; a failed one leaves the table at once, so that the next peer_get() or HELLO
 * makes a new one. References: one of the table, one of each conn, one while on the work list, and
 * those of the callers.
 *
 * Session. Each end draws an id when it makes the peer, and tells it in HELLO or WELCOME; the pair
 * names the session. Messages are counted in each direction, by TCP's order, so a count needs no
 * field of its own. The sender keeps them until the other end has acknowledged them: with an ACK
 * for each ACK_FRAMES or ACK_BYTES, in answer to a heartbeat, or with the next greeting. HELLO says
 * how many have come; the acceptor first closes the connection it has, then answers in WELCOME how
 * many have come there, and the first it will send (`from`: what HELLO said, or later, since an ACK
 * may have overtaken it). What the dialer has received on the old connection since its HELLO, it
 * skips. So each message is delivered once, in order, whatever is cut.
 *
 * Who may re-connect. The first HELLO of a session brings the secret of a listen. Each end draws a
 * secret for its end of the session and tells it only to who has been greeted (WELCOME, ADDRS); a
 * HELLO that names a known session must bring that. Until the dialer has shown that it got WELCOME,
 * its first HELLO may come again with the secret it brought, even if that listen has closed.
 *
 * Crossing connections. Both ends may dial at once, the first time and after any loss. The dial of
 * the smaller instance id stays, if its HELLO was sent; so the end with the smaller id parks the
 * other's HELLO until its own dial has ended, and the end with the larger id drops its own dial
 * when it takes the smaller's HELLO. A HELLO that was under way when our own dial succeeded is
 * parked too. Of a session that is up none is parked longer than `park_ns`: then it takes the
 * connection's place, unless it could not know the session (a left-over of the first crossing),
 * and is closed. If both ends err at once they lose a connection, never a message.
 *
 * Detection. While messages are unacknowledged an ACK that asks for an answer goes out each
 * `beat_ns`, while the peer is only watched each `watch_ns`, else nothing. Silence is counted only
 * from a question on, and by our own clock's ticks: a tick that came late counts as one, so that
 * our own standstill is never taken for the peer's. After three intervals (at least `silent_ns`)
 * another connection is dialed beside the old one, over the other addresses first; whichever
 * answers stays. A connection that ends by itself is dialed again at once.
 *
 * Verdicts, the only ways to on_down once a peer is UP:
 *   - it said BYE, REFUSE (of the process), or bytes that are no message;
 *   - its process is gone: for `refused_ns` an address where it has been reached refuses TCP or
 *     answers that it knows no such session, and no address takes the connection and stays silent
 *     (a stopped process does that: its kernel accepts);
 *   - nothing was received for RAILYARD_OUTAGE_TIMEOUT, while it was asked or dialed;
 *   - a HELLO with a listen's secret shows that its process has begun a new session.
 * A peer that was never UP fails when RAILYARD_CONNECT_TIMEOUT ends, when it refuses in words, or
 * when it is refused at every address for `refused_ns`.
 */
#ifndef RAILYARD_CONTROL_INTERNAL_H
#define RAILYARD_CONTROL_INTERNAL_H

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "control.h"
#include "log.h"
#include "thread.h"

enum {
	ADDR_TEXT_BYTES = 64,
	CAUSE_BYTES = 96,
	PEER_NAME_BYTES = 192,
	PEER_WHY_BYTES = 384,
	PEER_ADDRS = WIRE_ADDRS_MAX + WIRE_HANDLE_ADDRS,
	ACK_FRAMES = 64,
	ACK_BYTES = 256 << 10
};

/* Bounds of the control plane; only tests change them, before control_start(). */
struct control_limits {
	uint64_t hello_ns;    /* accepted, HELLO not complete */
	uint64_t attempt_ns;  /* one TCP connect; shorter where a session is dialed again */
	uint64_t pause_ns;    /* between two rounds over the addresses, up to four times that */
	uint64_t refused_ns;  /* refused for so long: the peer is dead */
	uint64_t park_ns;     /* see "Crossing connections" */
	uint64_t linger_ns;   /* at the last stop: for what is queued and BYE */
	uint64_t beat_ns;     /* heartbeat while messages are unacknowledged */
	uint64_t watch_ns;    /* heartbeat of a watched peer */
	uint64_t silent_ns;   /* see "Detection" */
	uint64_t second_ns;   /* the larger instance id dials again so much later */
	uint32_t unknown_max; /* accepted connections without HELLO; then the oldest makes room */
	size_t queue_bytes;   /* of a peer, until acknowledged */
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

/* Of the dial in progress: what this round over the addresses has found. */
struct dial {
	unsigned addr_index, begun_at, left; /* left: addresses still to be tried */
	unsigned round;
	unsigned tried, refused; /* refused: by TCP, or in words */
	unsigned known_refused;  /* at addresses where the peer has been reached before */
	unsigned reached;        /* TCP was accepted, and no answer came */
	bool refused_in_words;
	uint64_t give_up_ns, refused_since_ns;
	uint64_t told_received; /* in HELLO */
	char cause[PEER_ADDRS][CAUSE_BYTES];
};

struct conn {
	struct watch watch;
	struct conn *next;
	enum conn_state state;
	bool dialed, wants_out, broken; /* broken: cannot send, but there may be more to read */
	struct peer *peer;              /* held; NULL before HELLO */
	unsigned life; /* counts its sockets, so that a loop notices when one went */
	uint64_t deadline_ns, up_ns;
	int ifindex; /* once UP: of the interface with its own address; 0 = unknown */
	char addr[ADDR_TEXT_BYTES];
	struct wire_addr from;   /* of the other end's socket (accepted) */
	struct wire_hello hello; /* of the other end (accepted) */

	uint8_t *in;
	size_t in_bytes, in_cap;
	struct frame_queue out; /* uncounted: greetings, ADDRS */
	struct frame *sending;  /* of `out` or, if sending_own is false, the session's */
	bool sending_own;
	size_t out_sent;      /* of `sending` */
	bool wants_ack, asks; /* an ACK is due; it asks for an answer */
	uint64_t skip;        /* messages to come that an earlier connection brought */
	uint32_t unacked_frames;
	size_t unacked_bytes; /* received since the last ACK */
	struct dial dial;
};

struct peer {
	struct peer *next;
	uint32_t refs;
	uint64_t instance;
	bool is_own_accepted; /* this process's accepting end of a connection to itself */
	struct wire_handle handle;
	uint64_t mine;                     /* our id of the session */
	uint8_t secret[WIRE_SECRET_BYTES]; /* opens re-connections to us */
	void *data;
	const char *name; /* atomic: points to one of the two below */
	char name_dialed[PEER_NAME_BYTES], name_known[PEER_NAME_BYTES];
	char why[PEER_WHY_BYTES]; /* written before the state becomes FAILED, then constant */
	uint64_t heard_ns;        /* atomic; 0 = never */
	uint32_t watchers;        /* atomic */
	bool is_connected;        /* atomic */

	pthread_mutex_t lock;
	enum peer_state state; /* written under the lock, read without */
	struct frame_queue queue;
	size_t queued_bytes; /* in `queue` or in `kept` */

	struct peer *work_next; /* ctl.work_lock */
	bool in_work;

	/* plugin thread */
	struct conn *conn, *dial, *parked;
	bool confirmed; /* confirmed: the other end has shown that it knows `mine` */
	uint64_t theirs;          /* its id of the session; 0 = not told yet */
	uint8_t their_secret[WIRE_SECRET_BYTES], first_secret[WIRE_SECRET_BYTES];
	bool has_their_secret;
	struct wire_addr addr[PEER_ADDRS];
	bool worked[PEER_ADDRS]; /* it has been reached there */
	unsigned addr_count, addr_last; /* last: that of the latest connection */

	struct frame_queue kept; /* sent, or to be sent next; not acknowledged */
	struct frame *unsent;    /* in `kept`: the first not sent on this connection */
	uint64_t kept_first;     /* number of the first in `kept` */
	uint64_t sent;           /* number of `unsent` */
	uint64_t sent_max;       /* the largest that `sent` ever was */
	uint64_t received;

	struct peer *up_next; /* list of those that are UP */
	uint64_t tick_ns, ticked_ns, silent_ns;
	uint64_t lost_ns; /* when the connection went; 0 = it is there */
	bool asked;       /* since anything was received */
	struct log_limit limit;
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
	struct peer *up; /* those that are UP */
	unsigned ups;    /* counts the changes of that list */
	struct listener listener[WIRE_ADDRS_MAX];
	unsigned unknown;
	bool paused, leaving; /* not accepting for now; the last stop has begun */
	uint64_t resume_ns;   /* when to try accept() again after it failed */
	char host[WIRE_NAME_BYTES];
};
extern struct control ctl;

/* control.c */
void control_wake_at(uint64_t at_ns); /* look at the deadlines then, or before */
void control_left(void);
bool control_is_this_process(void); /* not a forked child's */
int random_fill(void *to, size_t bytes);
bool secret_is_equal(const uint8_t *a, const uint8_t *b); /* in constant time */

/* control_peer.c */
void frames_free(struct frame_queue *q);
struct frame *frame_make(uint16_t type, uint64_t target, const void *body, size_t bytes);
void frame_push(struct frame_queue *q, struct frame *f);
/* The peer of this instance, held; NULL = none. */
struct peer *peer_table_find(uint64_t instance, bool is_own_accepted);
/* The same, made if there is none; handle NULL = accepted. As peer_get(). */
int peer_table_get(uint64_t instance, bool is_own_accepted, const struct wire_handle *handle,
		   struct peer **out);
void peer_set_up(struct peer *peer, const char *host, uint32_t pid, const char *addr);
void peer_fail(struct peer *peer, const char *why); /* closes, leaves the table, on_down */
struct peer *work_take(struct peer **list);
struct peer *work_take_all(void);
void peers_forget(void); /* after the last stop: all FAILED, without on_down */

/* control_session.c */
/* The next frame to send, NULL = none; session_sent() when it is written. It stays ours. */
struct frame *session_next(struct peer *peer);
void session_sent(struct peer *peer);
/* `received` messages have come at the other end: -EPROTO if it cannot be. */
int session_acked(struct peer *peer, uint64_t received);
/* The present connection ends for a greeted one, whose end has `received` so many messages. */
void session_resume(struct peer *peer, uint64_t received);
void session_connect(struct peer *peer, struct conn *c);
void session_lost(struct peer *peer, struct conn *c, const char *why);
void session_heard(struct conn *c);
bool session_is_new(struct conn *c, size_t bytes); /* a message to deliver, or one to skip */
int session_take_ack(struct conn *c, const uint8_t *body, size_t bytes);
int session_take_addrs(struct conn *c, const uint8_t *body, size_t bytes);
void session_look(struct peer *peer); /* something may be pending now */
void session_tick(struct peer *peer, uint64_t now);
void session_end(struct peer *peer); /* no more ticks, nothing kept */

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
void greet_again(struct conn *c); /* its peer has failed: whose is it now? */
bool greet_parked(struct peer *peer); /* takes the parked connection, if there is one */
void greet_parked_expired(struct conn *c);

/* control_dial.c */
enum dial_outcome { DIAL_FAILED, DIAL_REFUSED, DIAL_REFUSED_IN_WORDS, DIAL_SILENT };
void dial_start(struct peer *peer);
/* A session's next connection, from this address on. Does nothing where it cannot be dialed. */
void dial_again(struct peer *peer, unsigned addr_index, uint64_t delay_ns);
void dial_connected(struct conn *c);
void dial_failed(struct conn *c, const char *why, enum dial_outcome outcome);
void dial_round(struct conn *c);
void dial_answer(struct conn *c, uint16_t type, const uint8_t *body, size_t bytes);

/* control_addr.c */
int addr_find_interfaces(struct wire_addr addr[WIRE_ADDRS_MAX], unsigned *count);
socklen_t addr_to_sockaddr(const struct wire_addr *a, struct sockaddr_storage *to);
int addr_ifindex(int fd); /* of the interface that has the socket's own address; 0 = none */
void addr_from_sockaddr(const struct sockaddr *from, struct wire_addr *a);
bool addr_is_same_host(const struct wire_addr *a, const struct wire_addr *b);
void addr_text(const struct sockaddr_storage *s, char text[ADDR_TEXT_BYTES]);
void socket_tune(int fd);

#endif
