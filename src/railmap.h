/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * railmap.h - the plugin's read-only view of the kernel's rail map.
 *
 * Opens the pinned maps with bpf(2) and maps them read-only; after that a read
 * is a few plain loads, no system call. libc only. What the map says is a hint: it costs
 * speed when wrong, never data, so a map that cannot be trusted whole (wrong owner,
 * writable, another layout, no heartbeat) is refused with one line.
 *
 * Thread: a struct railmap may be read by many threads; open, alive and close belong to one.
 */
#ifndef RAILYARD_RAILMAP_READER_H
#define RAILYARD_RAILMAP_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <railyard/railmap.h>

#define RAILMAP_WHY_BYTES 192

/* A map whose heartbeat is older than this is not alive. */
#define RAILMAP_STALE_NS (10 * RAILMAP_HEARTBEAT_NS)

struct railmap {
	const struct railmap_hdr *hdr;	/* mapped read-only; NULL when closed */
	const struct railmap_row *rows; /* [RAILMAP_ROWS] */
	uint64_t beat_ns;		/* the heartbeat word when it last changed */
	uint64_t beat_seen_ns;		/* our clock then */
	uint64_t clock_ahead_ns;	/* our clock less the map's, mod 2^64: a time namespace */
};

/* What was found out about the two pins, before anything in them is believed. */
struct railmap_facts {
	bool on_bpffs;
	bool owned_by_root;
	bool frozen;
	uint32_t map_type;
	uint32_t hdr_value_bytes;
	uint32_t rows_value_bytes;
	uint32_t rows_max;
	uint32_t abi;
	uint32_t row_bytes;
	uint64_t heartbeat_age_ns;
};

/*
 * railmap_vet - decide whether a map may be believed. Pure.
 * @why: gets one line, without a newline, if it may not
 * Returns 0; -EPERM if others than BPF could have written it; -EPROTO if its layout is another;
 * -ESTALE if its programs are gone.
 */
int railmap_vet(const struct railmap_facts *facts, char *why, size_t why_bytes);

/*
 * railmap_open - find and map the rail map.
 * @dir: as for `railyard load --bpffs DIR`; NULL = the usual places
 * @now_ns: CLOCK_MONOTONIC
 * @why: gets one line, without a newline, if there is none to use
 * Returns 0; -ENOENT if there is no map; as railmap_vet; else -errno. May take 0.2 s, once, when
 * the heartbeat looks old: a clock of another time namespace is told from a dead map by waiting.
 */
int railmap_open(struct railmap *m, const char *dir, uint64_t now_ns, char *why, size_t why_bytes);
void railmap_close(struct railmap *m);

/* railmap_alive - has the heartbeat moved lately? One load; call it at most every few ms. If it
 * says no, the rows are history: do without, and try railmap_open again now and then. */
bool railmap_alive(struct railmap *m, uint64_t now_ns);

static inline bool railmap_has_hook(const struct railmap *m, enum railmap_hook hook)
{
	return m->hdr->hooks >> hook & 1;
}

/* Whom to look for; members left zero or NULL are not compared. At least one must be set. */
struct railmap_who {
	const char *ibdev;
	uint32_t ib_port;
	const char *pci; /* "0000:3b:00.0"; with dev_port */
	uint32_t dev_port;
	const char *ifname;
	uint32_t ifindex;
	uint32_t netns; /* inode number of /proc/self/ns/net */
};

/* railmap_find - the first row for which everything given is true. Returns its index; -ENOENT. */
int railmap_find(const struct railmap *m, const struct railmap_who *who);

/* railmap_parse_pci - "0000:3b:00.1" into numbers (devfn: device << 3 | function). Pure. */
bool railmap_parse_pci(const char *name, uint32_t *domain, uint8_t *bus, uint8_t *devfn);

enum railmap_state {
	RAILMAP_STATE_UNKNOWN = 0,
	RAILMAP_STATE_UP,
	RAILMAP_STATE_DOWN,
};

/* Bits of railmap_view.valid. */
#define RAILMAP_V_PKTS 0x01u
#define RAILMAP_V_CE   0x02u
#define RAILMAP_V_CNP  0x04u
#define RAILMAP_V_NAK  0x08u
#define RAILMAP_V_RNR  0x10u

/* One row as the plugin wants it: the NIC's counters where it has them, else those of the packet
 * hooks. Counters are monotonic; times are of our clock. */
struct railmap_view {
	enum railmap_state link;
	enum railmap_why down_why;
	uint64_t link_change_ns; /* 0 = unknown */
	bool drained;
	uint32_t valid; /* RAILMAP_V_* */
	uint64_t rx_pkts;
	uint64_t tx_pkts;
	uint64_t rx_ce;
	uint64_t rx_cnp;
	uint64_t rx_nak;
	uint64_t rx_rnr;
	uint64_t tx_timeouts;
};

/* railmap_read - read one row. Returns 0; -ENOENT if the row is not in use; -EAGAIN if its writer
 * kept writing (try at the next turn). */
int railmap_read(const struct railmap *m, uint32_t row, struct railmap_view *view);

/* railmap_row_copy - a whole row, as `railyard rails` prints it. Errors as railmap_read. */
int railmap_row_copy(const struct railmap *m, uint32_t row, struct railmap_row *out);

/*
 * Pressure: how congested a port is, 0 (not at all) to 255, from its counters.
 *
 * Per window of at least PRESSURE_WINDOW_NS: marks = CE + CNP + 4 NAK (a NAK means go-back-N), as a
 * share of the packets of both directions; half of full scale at a share of 1 in 100, since a NIC
 * sends one CNP for many marked packets. The value moves half of the way to that in each
 * window, so a port that gets marked shows within 100 ms and a clean one is back at 0 in half a
 * second. A window with no packet is clean. Without packet counts, PRESSURE_PKTS_GUESS stands in.
 */
#define PRESSURE_WINDOW_NS  50000000ull
#define PRESSURE_PKTS_GUESS 4096u

struct pressure {
	uint64_t since_ns; /* start of the window; 0 = none yet */
	uint64_t marks;	   /* counters then */
	uint64_t pkts;
	uint32_t valid;	   /* which counters these were */
	uint32_t value_q8; /* 0 .. 255 << 8 */
};

/* pressure_update - take in a fresh view; call it as often as you like. Returns 0 .. 255. */
uint8_t pressure_update(struct pressure *p, const struct railmap_view *view, uint64_t now_ns);

static inline uint8_t pressure_value(const struct pressure *p)
{
	return (uint8_t)(p->value_q8 >> 8);
}

#endif
