/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * util.h - the few helpers that every module shares. Nothing here allocates, logs or knows a
 * protocol.
 *
 * now_ns() is the only clock of the plugin; the core never calls it (a `now` is handed in).
 */
#ifndef RAILYARD_UTIL_H
#define RAILYARD_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define LIKELY(c) __builtin_expect(!!(c), 1)
#define UNLIKELY(c) __builtin_expect(!!(c), 0)
#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

/* CLOCK_MONOTONIC in ns: the clock of the rail map's stamps too (bpf_ktime_get_ns). */
static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline uint64_t earlier(uint64_t one_ns, uint64_t other_ns)
{
	return one_ns < other_ns ? one_ns : other_ns;
}

/*
 * The owner word of a comm: who may drive it now. NCCL's thread and the plugin thread both only
 * try; neither waits, and neither holds it across a system call.
 */
static inline bool owner_try(uint32_t *word)
{
	uint32_t free_word = 0;

	return __atomic_compare_exchange_n(word, &free_word, 1, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

static inline void owner_release(uint32_t *word)
{
	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
}

/* 64-bit finalizer (splitmix64's): spreads ids over lanes, phases and shards. */
static inline uint64_t hash_u64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

#endif
