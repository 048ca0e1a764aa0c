/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * marks.h - names of rare situations that a long run must have met, or it proves less than it says.
 */
#ifndef SIM_MARKS_H
#define SIM_MARKS_H

#include <stdint.h>

#define MARKS(X)                                                                                   \
	X(ack_before_landing, "ack of what is not visible yet")                                    \
	X(all_lanes_down, "no lane left in use")                                                   \
	X(all_ports_down, "all ports down with a message waiting")                                 \
	X(announce_overtaken, "a record landed before an older one")                               \
	X(announce_wraps, "announcement in two writes, over the end of the ring")                  \
	X(announced_again, "record written again on another lane")                                 \
	X(answer_done, "fence answered: message was over")                                         \
	X(answer_landed, "fence answered: landed")                                                 \
	X(answer_missing, "fence answered: missing")                                               \
	X(ask_early, "question of what landed met an end that was not fenced yet")                 \
	X(arrival_deleted, "arrival lost with the queue pair, not polled")                         \
	X(arrival_in_fence, "arrival polled while its lane is fenced")                             \
	X(clipped, "send longer than its receive")                                                 \
	X(completion_in_fence, "completion polled while its lane is fenced")                       \
	X(credit_block_high, "credit record about lanes past the first eight")                     \
	X(credit_record, "credit record sent")                                                     \
	X(credit_short, "piece waited for a receive WR")                                           \
	X(credit_waits, "credit record due, no lane to carry it")                                  \
	X(drain_avoided, "drained port avoided")                                                   \
	X(empty_buffer, "receive of zero bytes")                                                   \
	X(fault_both, "both ends found the fault at once")                                         \
	X(fault_connecting, "fault while the next generation connects")                            \
	X(fault_in_recovery, "something broke while a slow command ran")                           \
	X(fault_preparing, "fault while the next generation is prepared")                          \
	X(fault_verifying, "fault during the verified write")                                      \
	X(generation_5, "lane in use in its fifth generation or a later one")                      \
	X(ghost, "immediate of another slot generation")                                           \
	X(group_again, "group sent again")                                                         \
	X(group_cut, "group that went as single pieces because a member was cut")                  \
	X(group_one_imm, "group completed by one immediate")                                       \
	X(group_over_end, "group over the end of the slots")                                       \
	X(guard_refuses, "irecv refused, an old record may land in its place")                     \
	X(hole, "comm failed since acknowledged data is missing")                                  \
	X(job_failed, "slow command failed")                                                       \
	X(landed_after_err, "packet landed on a queue pair in ERR")                                \
	X(landed_by_fence, "data became visible by the fence only")                                \
	X(late_plan, "more pieces than paths")                                                     \
	X(message_256_pieces, "message of more than 128 pieces")                                   \
	X(offer_refused, "offer of a new generation refused")                                      \
	X(out_of_order, "message done before an older one")                                        \
	X(outage, "comm failed since no lane came back")                                           \
	X(paused, "process paused")                                                                \
	X(port_down_avoided, "down port avoided")                                                  \
	X(post_failed, "posting failed")                                                           \
	X(posted_wraps, "receive WRs of a lane counted past 65536")                                \
	X(pressed, "piece posted while its port was pressed")                                      \
	X(probe, "empty piece sent to see whether a lane moves")                                   \
	X(quick, "piece handed out the quick way")                                                 \
	X(quick_equal, "equal piece handed out the quick way")                                     \
	X(record_twice, "record landed twice")                                                     \
	X(quick_member, "member of a group taken the quick way")                                   \
	X(recv_refused, "irecv refused, slots in use")                                             \
	X(recv_unlucky, "irecv refused, no lane for the announcement")                             \
	X(same_tag, "group with one tag twice")                                                    \
	X(send_queue_full, "send queue of a lane full")                                            \
	X(send_slot_busy, "isend refused, slot still in use at the sender")                        \
	X(seq_256, "slots used again")                                                             \
	X(seq_65536, "slot generations used again")                                                \
	X(split_imm, "piece as WRITE and WRITE_WITH_IMM")                                          \
	X(stall_proven, "lane given up since others moved")                                        \
	X(standby_left, "standby lane left for a home lane")                                       \
	X(standby_used, "piece on a standby lane")                                                 \
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
