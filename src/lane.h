/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lane.h - the verbs commands that make, connect and end one queue pair of a comm.
 *
 * Slow commands: for the device's worker (set-up in comm.c, later generations in recover.c). They
 * touch only what is handed in, the comm's constants and its port's objects, so the owner may go on
 * with the comm's other lanes meanwhile. All return 0 or -errno and log nothing, unless said.
 */
#ifndef RAILYARD_LANE_H
#define RAILYARD_LANE_H

#include "comm.h"

/* lane_psn - a random sequence number: a ghost packet of an earlier queue pair must not fit. */
uint32_t lane_psn(void);

/* lane_port_make - a port's PD, CQ for `lanes` lanes, ring region; p->step: the call it is at. */
int lane_port_make(struct comm *c, struct comm_port *p, int lanes);

/* lane_qp_create - a queue pair in RESET; lane_qp_init - to INIT. */
int lane_qp_create(struct comm *c, const struct comm_port *p, struct ibv_qp **out);
int lane_qp_init(struct ibv_qp *qp, const struct port *port);

/*
 * lane_qp_connect - to the peer's queue pair, RTR and RTS; `from` is our port's address as read for
 * this generation, `psn` our sequence number. `patient`: retries as NCCL_IB_MQP_RETRY_* say.
 */
int lane_qp_connect(const struct comm *c, const struct comm_port *p, struct ibv_qp *qp,
		    const struct port_address *from, uint32_t psn,
		    const struct wire_lane_address *to, bool patient);

/* lane_recv_post - receiver: make the chain of receive WRs of a lane and post CORE_RQ_WRS. */
int lane_recv_post(struct recv_comm *c, int lane, struct ibv_qp *qp, uint32_t generation);

/* lane_flush_make - the loopback queue pair of a receiver's port, connected to itself. */
int lane_flush_make(struct comm *c, const struct comm_port *p, const struct port_address *from,
		    struct ibv_qp **out);

/*
 * lane_template - what every WR of the lane's present queue pair has in common. Owner, or before
 * the comm is attached.
 */
void lane_template(struct comm *c, uint32_t lane);

#endif
