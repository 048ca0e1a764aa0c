/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * flight_names.h - other names for the core's functions of the data path.
 *
 * The core is compiled once more under these, for flight_calls.c. If that called the plain ones,
 * each of them would have a second caller, and the compiler would not put it into its first one any
 * more: a tenth more instructions for comms that have no log. One that is missing here is defined
 * twice, says the linker.
 */
#ifndef RAILYARD_FLIGHT_NAMES_H
#define RAILYARD_FLIGHT_NAMES_H

#define core_send_init logged_core_send_init
#define core_send_fini logged_core_send_fini
#define core_send_lane_open logged_core_send_lane_open
#define core_send_lane_renew logged_core_send_lane_renew
#define core_send_lane_state logged_core_send_lane_state
#define core_send_ask logged_core_send_ask
#define core_send_answer logged_core_send_answer
#define core_send_begun logged_core_send_begun
#define core_send_acked logged_core_send_acked
#define core_send_probe logged_core_send_probe
#define core_send_match logged_core_send_match
#define core_send_start logged_core_send_start
#define core_send_equal logged_core_send_equal
#define core_send_next logged_core_send_next
#define core_send_complete logged_core_send_complete
#define core_send_signal logged_core_send_signal
#define core_send_deadline_ns logged_core_send_deadline_ns
#define core_recv_init logged_core_recv_init
#define core_recv_lane_open logged_core_recv_lane_open
#define core_recv_lane_state logged_core_recv_lane_state
#define core_recv_lane_base logged_core_recv_lane_base
#define core_recv_lane_fault logged_core_recv_lane_fault
#define core_recv_lane_fenced logged_core_recv_lane_fenced
#define core_recv_again logged_core_recv_again
#define core_recv_probe logged_core_recv_probe
#define core_recv_again_done logged_core_recv_again_done
#define core_recv_answer logged_core_recv_answer
#define core_recv_oldest logged_core_recv_oldest
#define core_recv_arrivals logged_core_recv_arrivals
#define core_recv_lane_arrivals logged_core_recv_lane_arrivals
#define core_recv_post logged_core_recv_post
#define core_recv_imm logged_core_recv_imm
#define core_recv_announced logged_core_recv_announced
#define core_recv_release logged_core_recv_release
#define core_recv_refilled logged_core_recv_refilled
#define core_recv_credit logged_core_recv_credit
#define plan_quick logged_plan_quick
#define plan_cut logged_plan_cut
#define plan_lane logged_plan_lane
#define plan_lane_again logged_plan_lane_again
#define plan_completed logged_plan_completed
#define plan_forget logged_plan_forget
#define plan_lane_reset logged_plan_lane_reset

#endif
