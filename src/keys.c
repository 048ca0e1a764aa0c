/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * keys.c - exchange of remote keys.
 */
#include "keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct peer_keys *keys_of(struct peer *peer)
{
	void **place = peer_data(peer);
	struct peer_keys *have = __atomic_load_n((struct peer_keys **)place, __ATOMIC_ACQUIRE);

	if (have != NULL) {
		return have;
	}
	struct peer_keys *fresh = calloc(1, sizeof(*fresh));

	if (fresh == NULL) {
		return NULL;
	}
	if (__atomic_compare_exchange_n((struct peer_keys **)place, &have, fresh, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		return fresh;
	}
	free(fresh);
	return have;
}

void keys_free(void *keys)
{
	struct peer_keys *k = keys;

	for (size_t i = 0; i < sizeof(k->chunk) / sizeof(k->chunk[0]); i++) {
		free(k->chunk[i]);
	}
	free(k);
}

void keys_take(struct peer_keys *k, const struct wire_keys *m)
{
	struct peer_key **place = &k->chunk[mr_index(m->mr_id) / KEYS_CHUNK];

	if (*place == NULL) {
		struct peer_key *chunk = calloc(KEYS_CHUNK, sizeof(*chunk));

		if (chunk == NULL) {
			return; /* isend goes on saying "not yet" */
		}
		__atomic_store_n(place, chunk, __ATOMIC_RELEASE);
	}
	struct peer_key *e = &(*place)[mr_index(m->mr_id) % KEYS_CHUNK];

	__atomic_store_n(&e->id, 0, __ATOMIC_RELEASE);
	memcpy(e->rkey, m->rkey, sizeof(e->rkey));
	__atomic_store_n(&e->id, m->mr_id, __ATOMIC_RELEASE);
}

void keys_gone(struct peer_keys *k, uint32_t mr_id)
{
	struct peer_key *chunk = k->chunk[mr_index(mr_id) / KEYS_CHUNK];

	if (chunk != NULL && chunk[mr_index(mr_id) % KEYS_CHUNK].id == mr_id) {
		__atomic_store_n(&chunk[mr_index(mr_id) % KEYS_CHUNK].id, 0, __ATOMIC_RELEASE);
	}
}

int keys_tell(struct peer *peer, struct peer_keys *k, const struct mr *mr)
{
	struct wire_keys m = { .mr_id = mr->id, .port_count = (uint8_t)mr->port_count };
	uint8_t body[64];
	uint32_t i = mr_index(mr->id);
	uint64_t bit = 1ull << (i % 64);

	if (__atomic_fetch_or(&k->told[i / 64], bit, __ATOMIC_RELAXED) & bit) {
		return 0;
	}
	memcpy(m.rkey, mr->rkey, sizeof(m.rkey));
	int rc = peer_send(peer, WIRE_KEYS, 0, body, wire_keys_encode(&m, body, sizeof(body)));

	if (rc != 0) {
		__atomic_fetch_and(&k->told[i / 64], ~bit, __ATOMIC_RELAXED);
	}
	return rc;
}

static void forget_at(struct peer *peer, void *arg)
{
	const struct mr *mr = arg;
	struct peer_keys *k =
		__atomic_load_n((struct peer_keys **)peer_data(peer), __ATOMIC_ACQUIRE);
	struct wire_keys m = { .mr_id = mr->id, .port_count = (uint8_t)mr->port_count };
	uint32_t i = mr_index(mr->id);
	uint64_t bit = 1ull << (i % 64);
	uint8_t body[64];

	if (k == NULL ||
	    (__atomic_fetch_and(&k->told[i / 64], ~bit, __ATOMIC_RELAXED) & bit) == 0) {
		return;
	}
	(void)peer_send(peer, WIRE_KEYS_GONE, 0, body, wire_keys_encode(&m, body, sizeof(body)));
}

void keys_forget(const struct mr *mr)
{
	peer_each(forget_at, (void *)(uintptr_t)mr);
}
