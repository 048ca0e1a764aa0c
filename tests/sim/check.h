/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * check.h - the independent oracle: what NCCL and the memory may see, whatever the core thinks.
 *
 * It hears what the application did and what the wire carried, keeps its own model of both (which
 * receive a send belongs to, who owns each 128-byte line of memory), and knows nothing of the
 * core: it includes none of its headers. The first breach of a rule is kept, later ones are
 * consequences.
 */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include <stdbool.h>
#include <stdint.h>

enum {
	CHECK_LINE = 128,
	CHECK_BUFFERS = 320, /* receive buffers; each may be open once at a time */
	CHECK_BUFFER_BYTES = 6 << 20,
	CHECK_LINES = CHECK_BUFFER_BYTES / CHECK_LINE,
	CHECK_MSGS = 1024, /* messages remembered; more than can be open */
	CHECK_GROUP_MAX = 8
};

#define CHECK_BASE 0x7f0000000000ull

/* A 128-byte line of receive memory: which message wrote it, which of its lines, how many bytes. */
struct check_line {
	uint32_t seq1; /* low half of message sequence + 1 */
	uint32_t no : 24;
	uint32_t fill : 8;
};

struct check_msg {
	uint64_t seq;
	uint64_t first; /* of its irecv */
	uint64_t addr;
	uint32_t n;
	uint32_t tag;
	uint32_t recv_bytes; /* of the buffer */
	uint32_t bytes;	     /* to be transferred, known once matched */
	uint32_t posted_bytes; /* but for what went with a fenced queue pair, not complete */
	uint32_t landed_bytes; /* each counted once */
	uint32_t wrs_posted;
	uint32_t wrs_open; /* data WRs of queue pairs that can still read the buffer */
	bool lost;	   /* a data WR of it went with a fenced queue pair: bytes may come again */
	bool matched, recv_done, send_done;
};

struct check {
	const char *rule; /* NULL: no breach */
	char what[240];
	uint64_t next; /* sequence of the next message to be received */
	uint64_t head; /* first sequence of the oldest group that is not matched in full */
	uint64_t recv_done, send_done; /* messages */
	uint64_t bytes;
	uint64_t owner[CHECK_BUFFERS]; /* message sequence + 1 of the open receive, 0 = none */
	struct check_msg msg[CHECK_MSGS];
	struct check_line line[CHECK_BUFFERS][CHECK_LINES];
};

void check_init(struct check *k);

/* check_fail - a rule is broken. */
void check_fail(struct check *k, const char *rule, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

struct check_msg *check_msg(struct check *k, uint64_t seq);

/* check_recv_posted - the application handed over buffer `buffer[i]` for member i. */
void check_recv_posted(struct check *k, uint32_t n, const uint32_t *tag, const uint32_t *bytes,
		       const uint32_t *buffer);
uint64_t check_buffer_addr(uint32_t buffer);

/* check_expect - the message that an isend with this tag must become; UINT64_MAX: none now. */
uint64_t check_expect(const struct check *k, uint32_t tag);

/* check_send_matched - the core took an isend of `bytes` as message `seq`. */
void check_send_matched(struct check *k, uint32_t tag, uint32_t bytes, uint64_t seq);

/* check_wr_posted - a data WR of message `seq`: `bytes` from `offset` to `addr` (0 bytes is legal).
 */
void check_wr_posted(struct check *k, uint64_t seq, uint64_t addr, uint64_t offset, uint64_t bytes);

/* check_landed - a packet of message `seq` was written to memory. */
void check_landed(struct check *k, uint64_t seq, uint64_t addr, uint64_t offset, uint32_t bytes);

/*
 * check_wr_lost - the receiver's queue pair is destroyed, and the sender has not seen a data WR of
 * message `seq` complete: it can land no more, and may be sent again.
 */
void check_wr_lost(struct check *k, uint64_t seq, uint32_t bytes);

/*
 * check_wr_completed - the sender has seen that a data WR of message `seq` is complete; `found`:
 * its bytes, if it was told to be lost.
 */
void check_wr_completed(struct check *k, uint64_t seq, uint32_t found);

/* check_wr_closed - a data WR went with the sender's queue pair: it reads the buffer no more. */
void check_wr_closed(struct check *k, uint64_t seq);

/* check_recv_done - test said done for the receive that starts at `first`, with these sizes. */
void check_recv_done(struct check *k, uint64_t first, uint32_t n, const uint32_t *sizes);

/* check_send_done - test said done for a send, with this size. */
void check_send_done(struct check *k, uint64_t seq, uint64_t bytes);

/* check_end - everything that was begun is over. */
void check_end(struct check *k);

#endif
