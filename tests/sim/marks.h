/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * marks.h - names of rare situations that a long run must have met, or it proves less than it says.
 */
#ifndef SIM_MARKS_H
#define SIM_MARKS_H

#include <stdint.h>

#define MARKS(X)                                                                                   \
	X(all_ports_down, "all ports down with a message waiting")                                 \
	X(announce_wraps, "announcement in two writes, over the end of the ring")                  \
	X(announce_overtaken, "a record landed before an older one")                               \
	X(clipped, "send longer than its receive")                                                 \
	X(credit_block_high, "credit record about lanes past the first eight")                     \
	X(credit_record, "credit record sent")                                                     \
	X(credit_short, "piece waited for a receive WR")                                           \
	X(credit_waits, "credit record due, no lane to carry it")                                  \
	X(drain_avoided, "drained port avoided")                                                   \
	X(empty_buffer, "receive of zero bytes")                                                   \
	X(ghost, "immediate of another slot generation")                                           \
	X(group_cut, "group that went as single pieces because a member was cut")                  \
	X(group_one_imm, "group completed by one immediate")                                       \
	X(group_over_end, "group over the end of the slots")                                       \
	X(late_plan, "more pieces than paths")                                                     \
	X(message_256_pieces, "message of more than 128 pieces")                                   \
	X(out_of_order, "message done before an older one")                                        \
	X(port_down_avoided, "down port avoided")                                                  \
	X(posted_wraps, "receive WRs of a lane counted past 65536")                                \
	X(pressed, "piece posted while its port was pressed")                                      \
	X(quick, "piece handed out the quick way")                                                 \
	X(quick_equal, "equal piece handed out the quick way")                                     \
	X(recv_refused, "irecv refused, slots in use")                                             \
	X(recv_unlucky, "irecv refused, no lane for the announcement")                             \
	X(same_tag, "group with one tag twice")                                                    \
	X(send_queue_full, "send queue of a lane full")                                            \
	X(send_slot_busy, "isend refused, slot still in use at the sender")                        \
	X(seq_256, "slots used again")                                                             \
	X(seq_65536, "slot generations used again")                                                \
	X(split_imm, "piece as WRITE and WRITE_WITH_IMM")                                          \
	X(tag_refused, "isend refused, its tag not in the group")                                  \
	X(torn_record, "isend met a torn record")                                                  \
	X(units_255, "255 units in flight on a lane")                                              \
	X(window_full, "piece waited for room in a window")                                        \
	X(zero_bytes, "message of zero bytes")

#define MARK_ENUM(name, text) MARK_##name,
enum mark {
	MARKS(MARK_ENUM) MARK_COUNT
};

extern uint64_t marks[MARK_COUNT];

#define MARK(name) (marks[MARK_##name]++)

const char *mark_name(enum mark m);
const char *mark_text(enum mark m);

#endif
