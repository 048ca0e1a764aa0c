/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * check.c - the rules.
 */
#include "check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void check_init(struct check *k)
{
	/* Lines are not cleared: one counts only while it names the open receive's message. */
	k->rule = NULL;
	k->what[0] = '\0';
	k->next = 0;
	k->head = 0;
	k->recv_done = 0;
	k->send_done = 0;
	k->bytes = 0;
	memset(k->owner, 0, sizeof(k->owner));
	memset(k->msg, 0, sizeof(k->msg));
}

void check_fail(struct check *k, const char *rule, const char *fmt, ...)
{
	va_list args;

	if (k->rule != NULL) {
		return;
	}
	k->rule = rule;
	va_start(args, fmt);
	vsnprintf(k->what, sizeof(k->what), fmt, args);
	va_end(args);
}

struct check_msg *check_msg(struct check *k, uint64_t seq)
{
	return &k->msg[seq % CHECK_MSGS];
}

static const struct check_msg *msg_const(const struct check *k, uint64_t seq)
{
	return &k->msg[seq % CHECK_MSGS];
}

uint64_t check_buffer_addr(uint32_t buffer)
{
	return CHECK_BASE + (uint64_t)buffer * CHECK_BUFFER_BYTES;
}

void check_recv_posted(struct check *k, uint32_t n, const uint32_t *tag, const uint32_t *bytes,
		       const uint32_t *buffer)
{
	uint64_t first = k->next;

	for (uint32_t i = 0; i < n; i++) {
		struct check_msg *m = check_msg(k, first + i);

		memset(m, 0, sizeof(*m));
		m->seq = first + i;
		m->first = first;
		m->addr = check_buffer_addr(buffer[i]);
		m->n = n;
		m->tag = tag[i];
		m->recv_bytes = bytes[i];
		k->owner[buffer[i]] = m->seq + 1;
		/* What an earlier run left in the shadow could look like this message's. */
		for (uint32_t l = 0; l * CHECK_LINE < bytes[i]; l++) {
			k->line[buffer[i]][l].seq1 = 0;
		}
	}
	k->next += n;
}

uint64_t check_expect(const struct check *k, uint32_t tag)
{
	if (k->head == k->next) {
		return UINT64_MAX;
	}
	uint32_t n = msg_const(k, k->head)->n;

	for (uint64_t seq = k->head; seq < k->head + n; seq++) {
		const struct check_msg *m = msg_const(k, seq);

		if (!m->matched && m->tag == tag) {
			return seq;
		}
	}
	return UINT64_MAX;
}

static void head_advance(struct check *k)
{
	uint32_t n = msg_const(k, k->head)->n;

	for (uint32_t i = 0; i < n; i++) {
		if (!msg_const(k, k->head + i)->matched) {
			return;
		}
	}
	k->head += n;
}

void check_send_matched(struct check *k, uint32_t tag, uint32_t bytes, uint64_t seq)
{
	uint64_t want = check_expect(k, tag);
	struct check_msg *m = check_msg(k, want);

	if (seq != want) {
		check_fail(k, "match", "isend with tag %u became message %" PRIu64 ", not %" PRIu64,
			   tag, seq, want);
		return;
	}
	m->matched = true;
	m->bytes = bytes < m->recv_bytes ? bytes : m->recv_bytes;
	head_advance(k);
}

void check_wr_posted(struct check *k, uint64_t seq, uint64_t addr, uint64_t offset, uint64_t bytes)
{
	struct check_msg *m = check_msg(k, seq);

	if (m->seq != seq || !m->matched) {
		check_fail(k, "post", "a piece of message %" PRIu64 ", which is not open", seq);
		return;
	}
	if (offset + bytes > m->bytes) {
		check_fail(k, "bounds",
			   "message %" PRIu64 ": piece [%" PRIu64 ", %" PRIu64 ") of %u bytes", seq,
			   offset, offset + bytes, m->bytes);
	}
	if (addr != m->addr + offset) {
		check_fail(k, "address",
			   "message %" PRIu64 ": piece at %" PRIu64 " goes to %#" PRIx64
			   ", not %#" PRIx64,
			   seq, offset, addr, m->addr + offset);
	}
	if (offset % CHECK_LINE != 0 ||
	    ((offset + bytes) % CHECK_LINE != 0 && offset + bytes != m->bytes)) {
		check_fail(k, "cut",
			   "message %" PRIu64 ": piece [%" PRIu64 ", %" PRIu64 ") cuts a line", seq,
			   offset, offset + bytes);
	}
	m->wrs_posted++;
	m->wrs_open++;
	m->posted_bytes += (uint32_t)bytes;
	if (m->posted_bytes > m->bytes) {
		check_fail(k, "twice", "message %" PRIu64 ": %u of %u bytes posted", seq,
			   m->posted_bytes, m->bytes);
	}
}

/* Bytes [offset, offset + bytes) of a message, all in one line. */
static void land_line(struct check *k, struct check_msg *m, struct check_line *line,
		      uint64_t offset, uint32_t bytes)
{
	uint32_t no = (uint32_t)(offset / CHECK_LINE), start = (uint32_t)(offset % CHECK_LINE);
	uint32_t seq1 = (uint32_t)(m->seq + 1), end = start + bytes;

	if (line->seq1 != seq1) {
		line->seq1 = seq1;
		line->no = no & 0xffffff;
		line->fill = 0;
	}
	/* What is sent again may write what is there already. */
	if (line->fill < start || (line->fill > start && !m->lost) || line->no != no) {
		check_fail(k, "twice",
			   "message %" PRIu64 ": line %u written from byte %u on, had %u", m->seq,
			   no, start, line->fill);
	}
	if (end > line->fill) {
		m->landed_bytes += end - line->fill;
		line->fill = end & 0xff;
	}
}

void check_landed(struct check *k, uint64_t seq, uint64_t addr, uint64_t offset, uint32_t bytes)
{
	uint64_t at = addr - CHECK_BASE;
	uint64_t buffer = at / CHECK_BUFFER_BYTES, in = at % CHECK_BUFFER_BYTES;
	struct check_msg *m = check_msg(k, seq);

	if (buffer >= CHECK_BUFFERS || in + bytes > CHECK_BUFFER_BYTES) {
		check_fail(k, "window", "write to %#" PRIx64 ", where no buffer is", addr);
		return;
	}
	if (m->seq == seq && m->recv_done) {
		check_fail(k, "late", "message %" PRIu64 " writes after it was received", seq);
		return;
	}
	if (k->owner[buffer] != seq + 1 || m->seq != seq) {
		check_fail(k, "window", "message %" PRIu64 " writes to a buffer that %s", seq,
			   k->owner[buffer] == 0 ? "is closed" : "belongs to another message");
		return;
	}
	if (in != offset || in + bytes > m->recv_bytes) {
		check_fail(k, "window",
			   "message %" PRIu64 " writes [%" PRIu64 ", +%u) of a buffer of %u"
			   " bytes, from its offset %" PRIu64,
			   seq, in, bytes, m->recv_bytes, offset);
		return;
	}
	for (uint32_t done = 0; done < bytes;) {
		uint32_t room = CHECK_LINE - (uint32_t)((offset + done) % CHECK_LINE);
		uint32_t part = bytes - done < room ? bytes - done : room;

		land_line(k, m, &k->line[buffer][(in + done) / CHECK_LINE], offset + done, part);
		done += part;
	}
}

void check_wr_lost(struct check *k, uint64_t seq, uint32_t bytes)
{
	struct check_msg *m = check_msg(k, seq);

	m->posted_bytes -= bytes;
	m->lost = true;
}

void check_wr_completed(struct check *k, uint64_t seq, uint32_t found)
{
	struct check_msg *m = check_msg(k, seq);

	m->wrs_open--;
	m->posted_bytes += found;
	if (m->posted_bytes > m->bytes) {
		check_fail(k, "twice",
			   "message %" PRIu64 ": a piece was sent again, though it completed", seq);
	}
}

void check_wr_closed(struct check *k, uint64_t seq)
{
	check_msg(k, seq)->wrs_open--;
}

static void recv_member_done(struct check *k, struct check_msg *m, uint32_t size)
{
	uint64_t buffer = (m->addr - CHECK_BASE) / CHECK_BUFFER_BYTES;

	if (m->recv_done) {
		check_fail(k, "once", "receive of message %" PRIu64 " is done twice", m->seq);
	}
	if (!m->matched) {
		check_fail(k, "early", "receive of message %" PRIu64 " is done, nobody sent",
			   m->seq);
		return;
	}
	if (size != m->bytes) {
		check_fail(k, "size", "receive of message %" PRIu64 " says %u bytes, sent were %u",
			   m->seq, size, m->bytes);
	}
	if (m->landed_bytes != m->bytes || m->wrs_posted == 0) {
		check_fail(k, "early",
			   "receive of message %" PRIu64 " is done with %u of %u bytes here",
			   m->seq, m->landed_bytes, m->bytes);
	}
	for (uint32_t l = 0; l * CHECK_LINE < m->bytes; l++) {
		const struct check_line *line = &k->line[buffer][l];
		uint32_t left = m->bytes - l * CHECK_LINE;

		if (line->seq1 != (uint32_t)(m->seq + 1) || line->no != l ||
		    line->fill != (left < CHECK_LINE ? left : CHECK_LINE)) {
			check_fail(k, "bytes", "message %" PRIu64 ": line %u is not right at done",
				   m->seq, l);
		}
	}
	m->recv_done = true;
	k->owner[buffer] = 0;
	k->recv_done++;
	k->bytes += m->bytes;
}

void check_recv_done(struct check *k, uint64_t first, uint32_t n, const uint32_t *sizes)
{
	for (uint32_t i = 0; i < n; i++) {
		struct check_msg *m = check_msg(k, first + i);

		if (m->seq != first + i || m->first != first || m->n != n) {
			check_fail(k, "once", "no receive starts at message %" PRIu64, first);
			return;
		}
		recv_member_done(k, m, sizes[i]);
	}
}

void check_send_done(struct check *k, uint64_t seq, uint64_t bytes)
{
	struct check_msg *m = check_msg(k, seq);

	if (m->seq != seq || !m->matched || m->send_done) {
		check_fail(k, "once", "send of message %" PRIu64 " is done, but not open", seq);
		return;
	}
	if (bytes != m->bytes) {
		check_fail(k, "size", "send of message %" PRIu64 " says %" PRIu64 " bytes, not %u",
			   seq, bytes, m->bytes);
	}
	if (m->wrs_posted == 0 || m->wrs_open != 0 ||
	    (m->posted_bytes != m->bytes &&
	     !(m->lost && (m->recv_done || m->posted_bytes + m->landed_bytes >= m->bytes)))) {
		check_fail(k, "early",
			   "send of message %" PRIu64 " is done with %u of %u bytes posted and "
			   "%u work requests open",
			   seq, m->posted_bytes, m->bytes, m->wrs_open);
	}
	m->send_done = true;
	k->send_done++;
}

void check_end(struct check *k)
{
	if (k->recv_done != k->next || k->send_done != k->next || k->head != k->next) {
		check_fail(k, "stuck",
			   "of %" PRIu64 " messages %" PRIu64 " were received, %" PRIu64
			   " sent, %" PRIu64 " matched",
			   k->next, k->recv_done, k->send_done, k->head);
	}
}
