/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * request_flight.c - the data path once more, for comms that have a flight log: request.c as it is,
 * but each call into the core is written down. So a comm without a log pays nothing.
 */
#define request_send	 request_send_flight
#define request_recv	 request_recv_flight
#define request_test	 request_test_flight
#define request_drain	 request_drain_flight
#define request_progress request_progress_flight
#define request_flush	 request_flush_flight
#define request_abandon	 request_abandon_flight
/* These make no calls that are recorded: the plain ones are used, for all comms. */
#define request_announce request_announce_flight
#define request_probe	 request_probe_flight
#define request_verify	 request_verify_flight

#define FLIGHT_DIVERT(comm, call) ((void)0)

#include "flight_calls.h"
#include "request.c"
