/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * keys.h - what this process knows of a peer's memory regions, and what it has told.
 *
 * Remote keys travel once per peer by control, named by MR id; an announcement (CTS) carries only
 * the id. The table is written by the plugin thread and read by the data path without a lock: an
 * entry's id is stored last and cleared first.
 */
#ifndef RAILYARD_KEYS_H
#define RAILYARD_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "control.h"
#include "mr.h"

enum { KEYS_CHUNK = 256 };

struct peer_key {
	uint32_t id; /* 0 = empty: MR ids start at generation 1 */
	uint32_t rkey[CORE_PORTS_MAX];
};

struct peer_keys {
	struct peer_key *chunk[MR_INDEX_MAX / KEYS_CHUNK]; /* what the peer told us */
	uint64_t told[MR_INDEX_MAX / 64];                  /* bit per region of ours it knows */
};

/* keys_of - the table of a peer, made at first use; NULL = no memory. Lives as long as the peer. */
struct peer_keys *keys_of(struct peer *peer);
void keys_free(void *keys); /* control_handler.on_free */

/* keys_take - WIRE_KEYS and WIRE_KEYS_GONE came from the peer (plugin thread). */
void keys_take(struct peer_keys *k, const struct wire_keys *m);
void keys_gone(struct peer_keys *k, uint32_t mr_id);

/* keys_tell - make sure the peer gets the keys of a region. Returns 0 or peer_send()'s error. */
int keys_tell(struct peer *peer, struct peer_keys *k, const struct mr *mr);

/* keys_forget - the region goes away: tell all peers that know it. */
void keys_forget(const struct mr *mr);

static inline bool keys_told(const struct peer_keys *k, uint32_t mr_id)
{
	uint32_t i = mr_index(mr_id);

	return __atomic_load_n(&k->told[i / 64], __ATOMIC_RELAXED) >> (i % 64) & 1;
}

/*
 * keys_find - the peer's keys of a region, valid while a buffer of it is announced; NULL: not (yet)
 * known.
 */
static inline const struct peer_key *keys_find(const struct peer_keys *k, uint32_t mr_id)
{
	const struct peer_key *chunk =
		__atomic_load_n(&k->chunk[mr_index(mr_id) / KEYS_CHUNK], __ATOMIC_ACQUIRE);

	if (chunk == NULL) {
		return NULL;
	}
	const struct peer_key *e = &chunk[mr_index(mr_id) % KEYS_CHUNK];

	return __atomic_load_n(&e->id, __ATOMIC_ACQUIRE) == mr_id ? e : NULL;
}

#endif
