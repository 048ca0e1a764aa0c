/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight_format.h - the file of a flight log, as flight.c writes it and `railyard replay` reads it.
 *
 *   head      FLIGHT_HEAD_BYTES: whose it is
 *   half 0    struct flight_half, image of the core's memory, records
 *   half 1    the same
 *
 * The halves are filled in turn; the one with the lower number is older, and whole. A record is one
 * call into the core with its arguments, or one input that the core reads from memory, as it is
 * from then on. While a comm is recorded its core reads a copy of such memory (struct
 * flight_shadow), which moves only with a record: so what it read is known. After a call the record
 * gets a check word: of what the call returned and of a part of the core's state. A whole half ends
 * with FLIGHT_END and a hash of the image that the core would have then.
 *
 * What is on file is in host order and as this build lays its structs out: `layout` tells.
 */
#ifndef RAILYARD_FLIGHT_FORMAT_H
#define RAILYARD_FLIGHT_FORMAT_H

#include "core/recover.h"

#define FLIGHT_MAGIC  0x544847494c465952ull /* "RYFLIGHT" */
#define FLIGHT_PREFIX "railyard-flight."    /* then pid.comm */

enum {
	FLIGHT_VERSION = 1,
	FLIGHT_HEAD_BYTES = 4096,
	FLIGHT_KIB_MIN = 256, /* of a half: the largest image and something beside it */
	FLIGHT_KIB_MAX = 65536,
	FLIGHT_SEND = 1, /* kinds, as enum comm_kind */
	FLIGHT_RECV
};

struct flight_head {
	uint64_t magic;
	uint32_t version;
	uint32_t layout; /* flight_layout() */
	char plugin[32], host[64], peer[128];
	uint64_t half_bytes;
	uint64_t comm, peer_comm;
	uint64_t start_ns; /* CLOCK_MONOTONIC, as all times */
	uint32_t pid;
	uint8_t kind, lanes; /* standby lanes included */
	uint8_t reserved[2];
	uint64_t hash;       /* of all before */
	int32_t error;       /* 0, or -errno: the comm has failed */
	uint32_t reserved1;
};
_Static_assert(sizeof(struct flight_head) <= FLIGHT_HEAD_BYTES, "it has its own page");

struct flight_half {
	uint64_t number; /* 1, 2, 3 ...; 0: not begun, or its image is being written */
	uint64_t start_ns;
	uint64_t image_hash;
	uint64_t hash;   /* of the above */
	uint64_t used;   /* bytes of records, each whole but that the last may be open */
	uint64_t reserved[3];
};
_Static_assert(sizeof(struct flight_half) == 64, "records stay aligned");

/* With the arguments that a record has. `now`: its time is one of them, see flight_is_timed(). */
enum flight_fn {
	FLIGHT_NONE,
	FLIGHT_END,  /* word, b: hash of the image, low and high */
	FLIGHT_TIME, /* word, b: the time, low and high: the next one is far */
	/* inputs */
	FLIGHT_PORT,  /* lane: local port, or CORE_PORTS_MAX + remote port; a core_port */
	FLIGHT_EPOCH, /* b */
	FLIGHT_LOAD,  /* lane: local port; a core_load */
	FLIGHT_RING,  /* a: place; a core_cts */
	FLIGHT_SIZES, /* a: place; a core_sizes */
	FLIGHT_POLLS, /* b: idle_polls */
	/* sender; a: slot */
	FLIGHT_MEMBER,   /* b: size */
	FLIGHT_QUICK,    /* b: size */
	FLIGHT_EQUAL,    /* b: size; now */
	FLIGHT_START,    /* b: size; now */
	FLIGHT_NEXT,     /* now */
	FLIGHT_COMPLETE, /* lane; a: unit; b: generation; now */
	FLIGHT_SENT,     /* release */
	/* receiver */
	FLIGHT_POST,      /* a: members; as many core_recv_buffer */
	FLIGHT_IMM,       /* lane; word: bytes; b: immediate */
	FLIGHT_REFILLED,  /* lane; a: receive WRs */
	FLIGHT_CREDIT,
	FLIGHT_ANNOUNCED, /* lane; a: of a credit record */
	FLIGHT_RECEIVED,  /* release; a: slot */
	/* recovery */
	FLIGHT_FAULT,    /* lane; a: cause; b: generation; now */
	FLIGHT_FENCED,   /* lane; now */
	FLIGHT_READY,    /* lane; b: rc; now */
	FLIGHT_VERIFIED, /* lane; b: generation; now */
	FLIGHT_LETTER,   /* a: bytes of a flight_letter with its items or answers; now */
	FLIGHT_TICK,     /* now */
	FLIGHT_ACTION,   /* core_recover_next(); now */
	FLIGHT_AGAIN,    /* core_recover_again_done(); lane; now */
	FLIGHT_FNS
};

enum { FLIGHT_NOW_0 = 0x80 }; /* in fn: the time that was given is 0 */

struct flight_record {
	uint32_t word; /* flight_has_time(): ns since the last one, signed; else see fn */
	uint8_t fn;    /* enum flight_fn */
	uint8_t lane;
	uint16_t a;
	uint32_t b;
	uint16_t check; /* of what it returned */
	uint16_t seal;  /* of all of the record and its place: flight_seal() */
	/* then its payload, to the next multiple of 16 bytes */
};
_Static_assert(sizeof(struct flight_record) == 16, "a fast-path call is 16 bytes");

/* A letter, without what its type does not use. */
struct flight_letter {
	uint8_t type, lane, cause, reserved0;
	uint32_t generation;
	uint16_t posted, n;
	uint32_t reserved1;
	uint64_t acked;
};
struct flight_item { /* core_item without holes */
	uint64_t seq;
	uint16_t index, count;
	uint32_t reserved;
};

enum {
	FLIGHT_LETTER_MAX =
		sizeof(struct flight_letter) + CORE_WR_RING * sizeof(struct flight_item)
};

/* What the core reads from memory that others write. */
struct flight_shadow {
	struct core_port local[CORE_PORTS_MAX], remote[CORE_PORTS_MAX];
	struct core_load load[CORE_PORTS_MAX];
	uint32_t epoch, reserved[15];
	union {
		struct core_cts ring[CORE_RING_RECORDS]; /* sender */
		struct core_sizes sizes[CORE_SLOTS];     /* receiver */
	};
};

/* The core of one comm; all borrowed. */
struct flight_core {
	uint8_t kind, lanes;
	struct core_send *send; /* one of the two */
	struct core_recv *recv;
	struct core_recover *recover;
	struct flight_shadow *shadow;
};

/* flight_layout - a hash that differs when this build's structs are laid out otherwise. */
uint32_t flight_layout(void);

/* flight_hash - of bytes, from h on. flight_mix - of one number. */
uint64_t flight_hash(uint64_t h, const void *at, size_t bytes);
static inline uint64_t flight_mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 32;
}

uint64_t flight_head_hash(const struct flight_head *head);
uint64_t flight_half_hash(const struct flight_half *half, uint64_t number);

/* --- images ------------------------------------------------------------------------------- */

uint32_t flight_image_bytes(uint8_t kind, uint32_t lanes);

/* flight_image_pack - the core's memory, without pointers (1: there is one). 8-byte aligned. */
void flight_image_pack(const struct flight_core *c, void *to);

/*
 * flight_image_unpack - the other way round, into memory that c points to; the core's pointers are
 * to c's shadow and `staging` then. Returns 0; -EPROTO: counts out of bounds.
 */
int flight_image_unpack(const struct flight_core *c, const void *from, struct core_cts *staging);

/* flight_config_divert - let a core read the shadow where its pointers are not NULL. */
void flight_config_divert(struct core_config *cfg, struct flight_shadow *shadow);

/* --- records ------------------------------------------------------------------------------ */

static inline bool flight_is_timed(uint8_t fn)
{
	return fn == FLIGHT_EQUAL || fn == FLIGHT_START || fn == FLIGHT_NEXT ||
	       fn == FLIGHT_COMPLETE || fn >= FLIGHT_FAULT;
}

/* Its time is told: as given to the call, or, where that takes none (or 0), as it was about. */
static inline bool flight_has_time(uint8_t fn)
{
	return fn >= FLIGHT_MEMBER && fn != FLIGHT_IMM;
}

/* flight_payload_bytes - by its head; not rounded up. */
uint32_t flight_payload_bytes(const struct flight_record *r);

static inline uint32_t flight_record_bytes(uint32_t payload_bytes)
{
	return (uint32_t)sizeof(struct flight_record) + (payload_bytes + 15) / 16 * 16;
}

/*
 * flight_seal - what its seal must be in the half of this number at this place. `open`: the call is
 * being made.
 */
uint16_t flight_seal(const struct flight_record *r, const void *payload, uint64_t number,
		     uint64_t place, bool open);

/* flight_letter_pack - returns its bytes. flight_letter_unpack - 0; -EPROTO: no such letter. */
uint32_t flight_letter_pack(const struct core_letter *in, uint8_t to[FLIGHT_LETTER_MAX]);
int flight_letter_unpack(const uint8_t *from, uint32_t bytes, struct core_letter *out);

/* --- check words: of what a call returned, as a hash ---------------------------------------- */

uint64_t flight_check_post(uint64_t h, const struct core_post *p);
/* With the records that are written, unless they were written before. */
uint64_t flight_check_announce(uint64_t h, const struct core_announce *a,
			       const struct core_cts *staging);
uint64_t flight_check_letter(uint64_t h, const struct core_letter *letter);
uint64_t flight_check_action(uint64_t h, const struct core_action *a,
			     const struct core_letter *letter);

/* flight_check_end - with a part of the core's state, as 16 bits. */
uint16_t flight_check_end(uint64_t h, const struct flight_core *c, uint32_t lane);

#endif
