/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control.h - one stream of messages per pair of processes, shared by all their comms.
 *
 * It is reliable, ordered and exactly once, and outlives its TCP connection: one that ends or falls
 * silent is made again over any address either end has. Knows framing, HELLO, secrets, versions and
 * addresses; knows no comm. All sockets are non-blocking and belong to the plugin thread;
 * peer_send() only queues and wakes it. Whoever connects must present the secret of a live listen,
 * or that of its session, within 5 s and 1 KiB; of more than 64 such connections the oldest makes
 * room. Garbage gets one rate-limited line and is closed.
 *
 * A process may be its own peer (the dialing and the accepting end are then two peers).
 */
#ifndef RAILYARD_CONTROL_H
#define RAILYARD_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

struct peer; /* refcounted; the session lives until the last control_stop() */

/* UP from the first greeting on, also while its connection is being made again. */
enum peer_state { PEER_DIALING, PEER_UP, PEER_FAILED };

/*
 * What the upper layer does with messages. Both run on the plugin thread, without any lock held.
 * `body` is only valid during the call; so is `peer` unless it is held. on_down: the peer has
 * ended, is dead, could not be reached for RAILYARD_OUTAGE_TIMEOUT, or refused; once per peer; why
 * = peer_why(). It comes before anything of a new peer of the same process. control_stop() itself
 * makes no on_down. WIRE_BYE is a message like any other, and on_down follows it. Neither may call
 * control_start() or control_stop().
 */
struct control_handler {
	void (*on_message)(struct peer *peer, uint16_t type, uint64_t target, const uint8_t *body,
			   size_t bytes);
	void (*on_down)(struct peer *peer, const char *why);
	/* Optional: the last reference is gone; `data` = *peer_data(), not NULL. Any thread. */
	void (*on_free)(void *data);
};

/*
 * control_start - open the process's listener on the control interface (NCCL_SOCKET_IFNAME and
 * NCCL_SOCKET_FAMILY as NCCL means them, else the first usable one), start serving. Refcounted.
 * Returns 0 or -errno (one line logged).
 */
int control_start(const struct control_handler *handler);
void control_stop(void); /* last one: BYE to all, close, forget all peers */

/* control_instance - the random id that names this process to its peers; once started. */
uint64_t control_instance(void);

/*
 * control_listen - make a secret and fill the handle for it, all but its port_count;
 * control_unlisten forgets the secret. Returns 0, -ESHUTDOWN, -ENOMEM.
 */
int control_listen(struct wire_handle *handle);
void control_unlisten(uint64_t listen_id);
/* control_secret_listen - whose secret is it? 0 and *listen_id, or -ENOENT. In constant time. */
int control_secret_listen(const uint8_t secret[WIRE_SECRET_BYTES], uint64_t *listen_id);

/*
 * peer_get - the peer that a handle names, held: the existing connection, or a new one being dialed
 * (over each address of the handle in turn, for RAILYARD_CONNECT_TIMEOUT; refused at all of them
 * ends it after 3 s). A failed peer is never returned: after a failure this dials anew. Any thread.
 * Returns 0, -ESHUTDOWN (not started, or a forked child), -ENOMEM.
 */
int peer_get(const struct wire_handle *handle, struct peer **out);
void peer_hold(struct peer *peer);
void peer_put(struct peer *peer);
enum peer_state peer_state(const struct peer *peer);
/* peer_is_connected - false while it is dialed, first or again. */
bool peer_is_connected(const struct peer *peer);
/* peer_heard - when anything was last received from it, CLOCK_MONOTONIC ns; false = never. */
bool peer_heard(const struct peer *peer, uint64_t *ns);
/*
 * peer_watch - true: look for its death also while nothing is sent, with a heartbeat each 500 ms;
 * for who has a comm with it. Calls nest. Any thread.
 */
void peer_watch(struct peer *peer, bool watch);
/*
 * control_link_down - an interface of this host has lost its link: connections over it are dialed
 * again over other addresses at once, beside the old ones. Plugin thread.
 */
void control_link_down(int ifindex);
/* peer_name - "host (pid N, address)" for log lines; never NULL. */
const char *peer_name(const struct peer *peer);

/*
 * peer_send - queue one message, also while it dials; never blocks. Any thread. Returns 0,
 * -ENOTCONN (failed), -ENOBUFS (over 16 MiB queued or unacknowledged), -EMSGSIZE (over
 * WIRE_BODY_MAX), -ENOMEM.
 */
int peer_send(struct peer *peer, uint16_t type, uint64_t target, const void *body, size_t bytes);

/* peer_why - why it is FAILED, in words without its name; constant from then on; never NULL. */
const char *peer_why(const struct peer *peer);

/* A pointer for the upper layer's per-peer state, set once on first use. */
void **peer_data(struct peer *peer);

/*
 * peer_each - run fn for every live peer, on the caller's thread under the table's lock: fn must
 * only read or peer_send().
 */
void peer_each(void (*fn)(struct peer *peer, void *arg), void *arg);

#endif
