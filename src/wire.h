/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * wire.h - the control messages between two processes: structs, encoding, decoding.
 *
 * The only parser of a peer's bytes. Pure: no I/O, no allocation. Every length and count is
 * checked here, every index against its limit; what an index means is checked by who uses it.
 *
 * Frame: u32 length of the body, u16 type, u16 reserved, u64 target (the receiver's id of the comm
 * or listen it is about, 0 = the process), body. All little-endian, fixed width. A newer minor
 * version may append to a body: a longer body than known is accepted, a shorter one is not.
 */
#ifndef RAILYARD_WIRE_H
#define RAILYARD_WIRE_H

#include <stdint.h>
#include <stddef.h>

#include "core/recover.h"

enum {
	WIRE_VERSION_MIN = 1,
	WIRE_VERSION_MAX = 1,
	WIRE_FRAME_BYTES = 16,
	WIRE_BODY_MAX = 16384,
	WIRE_HELLO_MAX = 1024, /* an unauthenticated peer may send no more */
	WIRE_SECRET_BYTES = 16,
	WIRE_HANDLE_ADDRS = 2, /* all that fit in a handle */
	WIRE_ADDRS_MAX = 8,    /* of a process, told once connected */
	WIRE_NAME_BYTES = 64
};

enum wire_type {
	WIRE_HELLO = 1,  /* dialer: who I am, a secret of one of your listens */
	WIRE_WELCOME,    /* listener: accepted, who I am, version taken */
	WIRE_REFUSE,     /* reason in words; ends the connection (target 0) or one connect */
	WIRE_CONNECT,    /* sender's half of a new comm */
	WIRE_ACCEPT,     /* receiver's half */
	WIRE_READY,      /* sender's queue pairs can receive: announcements may begin */
	WIRE_KEYS,       /* remote keys of one memory region */
	WIRE_KEYS_GONE,  /* the region is no more */
	WIRE_PORTS,      /* link words and pressure of the sender's ports */
	WIRE_LANE,       /* a letter about one lane of a comm: failure and recovery */
	WIRE_CLOSE,      /* this comm is closed at my end */
	WIRE_BYE,        /* the process ends its use of the plugin */
	WIRE_ACK,        /* what has come; also the heartbeat. Not counted itself */
	WIRE_ADDRS,      /* all addresses of the sender's listener, first after the greeting */
	WIRE_TYPE_LAST = WIRE_ADDRS
};

/* A socket address: family 4 or 6 (0 = none), port in host order, bytes in network order. */
struct wire_addr {
	uint8_t family;
	uint16_t port;
	uint8_t bytes[16];
};

/*
 * What NCCL carries from listen to connect (at most 128 bytes). `magic` and `layout` never change
 * their place, so that a foreign or newer handle can be named.
 */
struct wire_handle {
	uint64_t instance;
	uint64_t listen_id;
	uint8_t secret[WIRE_SECRET_BYTES];
	struct wire_addr addr[WIRE_HANDLE_ADDRS];
	uint16_t version_min, version_max;
	uint8_t port_count; /* home ports of the listening device: how many paths to make */
};

/*
 * Greetings. A session is named by two random ids, one drawn by each end. Its messages (every frame
 * but greetings, ACK and ADDRS) are counted from 0 in each direction, through all its connections.
 */
struct wire_hello {
	uint64_t instance;
	uint8_t secret[WIRE_SECRET_BYTES]; /* of a listen; of the session once that is known */
	uint16_t version_min, version_max;
	char host[WIRE_NAME_BYTES]; /* for log lines, NUL-terminated */
	uint32_t pid;
	uint64_t mine, yours; /* the session's ids; yours = 0 before the first WELCOME */
	uint64_t received;    /* messages that have come so far */
};

struct wire_welcome {
	uint64_t instance;
	uint16_t version;
	char host[WIRE_NAME_BYTES];
	uint32_t pid;
	uint64_t mine, yours;
	uint64_t received; /* the dialer goes on with this message */
	uint64_t from;     /* and its end with this one */
	uint8_t secret[WIRE_SECRET_BYTES]; /* opens later connections of this session to it */
};

/* ACK: `received` messages have come in all. With `ask` the other end answers at once. */
struct wire_ack {
	uint64_t received;
	uint8_t ask;
};

struct wire_addrs {
	uint8_t secret[WIRE_SECRET_BYTES]; /* as in WELCOME, of the end that writes this */
	uint8_t count;
	struct wire_addr addr[WIRE_ADDRS_MAX];
};

struct wire_refuse {
	uint32_t code;     /* errno of the reason */
	char reason[256];  /* NUL-terminated */
};

/* One home port of an end, as the other end needs it to connect queue pairs. */
struct wire_port {
	char name[WIRE_NAME_BYTES]; /* "mlx5_0:1", for log lines */
	uint8_t gid[16];
	uint16_t lid;
	uint8_t link_layer; /* IBV_LINK_LAYER_* */
	uint8_t mtu;        /* enum ibv_mtu */
	uint32_t mbps;
	uint32_t ring_rkey; /* key of this end's ring (CTS ring or sizes ring) on this port */
};

struct wire_lane {
	uint32_t qpn;
	uint32_t psn;
	uint32_t generation;
	uint8_t port; /* of the end that writes this message, below its port_count */
	uint8_t of;   /* ACCEPT: lane of the CONNECT that this one is connected to */
};

/* CONNECT (from the sender) and ACCEPT (from the receiver). */
struct wire_connect {
	uint64_t comm;   /* id at the end that writes this message */
	uint8_t secret[WIRE_SECRET_BYTES]; /* of the listen (CONNECT only) */
	uint64_t ring_addr; /* CTS ring of the sender, or sizes ring of the receiver */
	uint64_t scratch_addr; /* where verified writes of the other end land, same key */
	uint8_t traffic_class, service_level; /* of the sender; the receiver uses them too */
	uint8_t adaptive_routing;
	uint8_t port_count; /* home ports, 1 .. CORE_PORTS_MAX */
	uint8_t lane_count; /* 1 .. CORE_LANES_MAX; CONNECT: the wish; ACCEPT: what is used */
	/*
	 * Borrowed ports, 0 or 1, after the home ports in `port` (no address yet): CONNECT: there
	 * is one; ACCEPT: one lane is kept for it, after the others, and not made until it is
	 * needed.
	 */
	uint8_t standby;
	uint16_t recv_wrs;  /* posted on each lane (ACCEPT) */
	struct wire_port port[CORE_PORTS_MAX];
	struct wire_lane lane[CORE_LANES_MAX];
};

/* Where one end of a lane is to be found, in the generation that its letter names. */
struct wire_lane_address {
	uint32_t qpn;
	uint32_t psn;
	uint32_t ring_rkey;
	uint8_t gid[16];
	uint16_t lid;
	uint8_t link_layer;
	uint8_t mtu;
};

/* WIRE_LANE. `address` goes with OFFER and ACCEPT only. */
struct wire_letter {
	struct core_letter letter;
	struct wire_lane_address address;
};

struct wire_keys {
	uint32_t mr_id;
	uint8_t port_count;
	uint32_t rkey[CORE_PORTS_MAX]; /* by home port of the comm's device */
};

enum { WIRE_PORT_DOWN = 1, WIRE_PORT_DRAIN = 2 };

struct wire_ports {
	uint8_t port_count;
	uint8_t down[CORE_PORTS_MAX]; /* WIRE_PORT_* */
	uint8_t pressure[CORE_PORTS_MAX];
};

struct wire_frame {
	uint32_t bytes; /* of the body */
	uint16_t type;
	uint64_t target;
};

/*
 * Handle: encode into 128 bytes, those that are unused zero; decode returns 0, -EPROTO not ours
 * (why names whose it seems) or damaged, -EPROTONOSUPPORT of another version (why says which).
 */
void wire_handle_encode(const struct wire_handle *h, uint8_t out[128]);
int wire_handle_decode(const uint8_t in[128], struct wire_handle *h, char *why, size_t why_bytes);

/*
 * Frames. wire_*_encode return the body's bytes (never more than WIRE_BODY_MAX), or 0 if `bytes`
 * of room are too few or a count is out of range; decode 0 or -EPROTO. A decoded text is terminated
 * and printable ASCII. KEYS with port_count 0 names a region only (KEYS_GONE).
 */
void wire_frame_encode(const struct wire_frame *f, uint8_t out[WIRE_FRAME_BYTES]);
int wire_frame_decode(const uint8_t in[WIRE_FRAME_BYTES], struct wire_frame *f);

size_t wire_hello_encode(const struct wire_hello *m, uint8_t *out, size_t bytes);
int wire_hello_decode(const uint8_t *in, size_t bytes, struct wire_hello *m);
size_t wire_welcome_encode(const struct wire_welcome *m, uint8_t *out, size_t bytes);
int wire_welcome_decode(const uint8_t *in, size_t bytes, struct wire_welcome *m);
size_t wire_ack_encode(const struct wire_ack *m, uint8_t *out, size_t bytes);
int wire_ack_decode(const uint8_t *in, size_t bytes, struct wire_ack *m);
size_t wire_addrs_encode(const struct wire_addrs *m, uint8_t *out, size_t bytes);
int wire_addrs_decode(const uint8_t *in, size_t bytes, struct wire_addrs *m);
size_t wire_refuse_encode(const struct wire_refuse *m, uint8_t *out, size_t bytes);
int wire_refuse_decode(const uint8_t *in, size_t bytes, struct wire_refuse *m);
size_t wire_connect_encode(const struct wire_connect *m, uint8_t *out, size_t bytes);
int wire_connect_decode(const uint8_t *in, size_t bytes, struct wire_connect *m);
size_t wire_letter_encode(const struct wire_letter *m, uint8_t *out, size_t bytes);
int wire_letter_decode(const uint8_t *in, size_t bytes, struct wire_letter *m);
size_t wire_keys_encode(const struct wire_keys *m, uint8_t *out, size_t bytes);
int wire_keys_decode(const uint8_t *in, size_t bytes, struct wire_keys *m);
size_t wire_ports_encode(const struct wire_ports *m, uint8_t *out, size_t bytes);
int wire_ports_decode(const uint8_t *in, size_t bytes, struct wire_ports *m);

#endif
