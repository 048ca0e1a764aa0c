/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fake_path.c - the ways between queue pairs, and how a test closes them: links, losses, queues,
 * GIDs, retry time, hung and dead devices.
 *
 * A WR's data goes forward from its QP's port to the port of the far GID, the acknowledgement back.
 * Either may be closed alone. Whoever finds no way is noted with the time (fake_watch) and fails
 * when the retry time is over; the clock is looked at only once a test has asked for failures.
 */
#include "fake_internal.h"

#include <stdlib.h>
#include <string.h>

#include "util.h"

enum {
	GHOSTS_MAX = 256,
	GHOST_WINDOW = 16 /* WRs of one QP that a NIC sends ahead */
};

/* Ways */

/* RoCE v1 and v2 are different packets: the GID must be there in this version. */
static struct fake_device *port_of_gid(const union ibv_gid *gid, int version, int *port)
{
	for (int d = 0; d < fake.config.device_count; d++) {
		for (int p = 1; p <= fake.config.port_count; p++) {
			for (int i = 0; i < FAKE_GIDS; i++) {
				if (!version || fake.device[d].port[p].gid_version[i] != version ||
				    memcmp(&fake.device[d].port[p].gid[i], gid, sizeof(*gid)))
					continue;
				*port = p;
				return &fake.device[d];
			}
		}
	}
	return NULL;
}

static int version_of(const struct fake_qp *qp)
{
	return qp->device->port[qp->port].gid_version[qp->sgid_index];
}

static struct fake_qp *qp_by_number(const union ibv_gid *gid, int version, uint32_t qpn)
{
	uint32_t index = qpn - FAKE_QPN_FIRST;
	struct fake_device *device;
	struct fake_qp *qp;
	int port;

	device = port_of_gid(gid, version, &port);
	if (!device || index >= (uint32_t)device->qp_room || !device->qp[index])
		return NULL;
	qp = device->qp[index];
	return qp->port == port ? qp : NULL;
}

static bool takes_packets(const struct fake_qp *qp)
{
	return qp->ibv.state == IBV_QPS_RTR || qp->ibv.state == IBV_QPS_RTS;
}

/* The QP that qp is connected with, if that one is connected with qp too. */
static struct fake_qp *mate_find(struct fake_qp *qp)
{
	const union ibv_gid *own = &qp->device->port[qp->port].gid[qp->sgid_index];
	struct fake_qp *mate = qp_by_number(&qp->dgid, version_of(qp), qp->dest_qpn);

	if (!mate || mate->dest_qpn != qp->ibv.qp_num ||
	    memcmp(&mate->dgid, own, sizeof(*own)) != 0)
		return NULL;
	return mate;
}

static struct fake_qp *peer_find(struct fake_qp *qp)
{
	struct fake_qp *peer = mate_find(qp);

	if (!peer || !takes_packets(peer))
		return NULL;
	if (peer->rq_psn != qp->sq_psn || peer->mtu < qp->mtu) {
		fake_fault_add("QP 0x%x sends with PSN %u, MTU %d to QP 0x%x of PSN %u, MTU %d",
			       qp->ibv.qp_num, qp->sq_psn, (int)qp->mtu, peer->ibv.qp_num,
			       peer->rq_psn, (int)peer->mtu);
		return NULL;
	}
	return peer;
}

void fake_path_find(struct fake_qp *qp)
{
	const struct fake_port *from = &qp->device->port[qp->port], *to;
	const struct fake_device *device;
	unsigned losses;
	int port;

	qp->path_epoch = fake.epoch;
	qp->peer = NULL;
	qp->forward = qp->back = qp->delayed = false;
	device = port_of_gid(&qp->dgid, version_of(qp), &port);
	if (!device)
		return;
	to = &device->port[port];
	qp->peer = peer_find(qp);
	if (!from->up || !to->up || qp->device->fatal || device->fatal)
		return;
	losses = from->losses | to->losses;
	qp->delayed = losses & FAKE_DELAY;
	qp->forward =
		!qp->delayed && !(from->losses & FAKE_LOSE_OUT) && !(to->losses & FAKE_LOSE_IN);
	qp->back = !qp->delayed && !(losses & FAKE_LOSE_ACKS) && !(to->losses & FAKE_LOSE_OUT) &&
		   !(from->losses & FAKE_LOSE_IN);
}

bool fake_gid_answers(const struct fake_qp *qp, const union ibv_gid *gid, int sgid_index)
{
	const struct fake_port *from = &qp->device->port[qp->port], *to;
	const struct fake_device *device;
	int port;

	if (sgid_index < 0 || sgid_index >= FAKE_GIDS)
		return false;
	device = port_of_gid(gid, from->gid_version[sgid_index], &port);
	if (!device)
		return false;
	to = &device->port[port];
	return from->up && to->up && !device->fatal &&
	       !((from->losses | to->losses) & (FAKE_CUT | FAKE_DELAY));
}

/* Ghosts */

static void ghost_keep(struct fake_qp *qp, uint64_t seq, uint32_t psn)
{
	const struct fake_send *wr = fake_send_at(qp, seq);
	struct fake_ghost *ghost = malloc(sizeof(*ghost) + wr->bytes);

	if (!ghost)
		return;
	*ghost = (struct fake_ghost){.dgid = qp->dgid,
				     .gid_version = version_of(qp),
				     .qpn = qp->dest_qpn,
				     .src_qpn = qp->ibv.qp_num,
				     .psn = psn,
				     .packets = fake_packets(qp, wr->bytes),
				     .wr = *wr};
	if (!fake_gather(qp, seq, ghost->data, wr->bytes)) {
		free(ghost);
		return;
	}
	if (!fake.ghosts)
		fake.ghosts_end = &fake.ghosts;
	*fake.ghosts_end = ghost;
	fake.ghosts_end = &ghost->next;
	fake.ghost_count++;
}

/* The NIC sends a window of WRs into the queue, and they stay there. */
static void ghosts_keep(struct fake_qp *qp)
{
	uint64_t end = qp->sq_landed + GHOST_WINDOW;
	uint32_t psn = qp->sq_next;

	for (uint64_t seq = qp->sq_landed; seq < qp->sq_posted && seq < end; seq++) {
		const struct fake_send *wr = fake_send_at(qp, seq);

		if (seq >= qp->ghosts && fake.ghost_count < GHOSTS_MAX &&
		    (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)) {
			ghost_keep(qp, seq, psn);
			qp->ghosts = seq + 1;
		}
		psn = (psn + fake_packets(qp, wr->bytes)) & 0xffffff;
	}
}

void fake_ghosts_free(void)
{
	while (fake.ghosts) {
		struct fake_ghost *ghost = fake.ghosts;

		fake.ghosts = ghost->next;
		free(ghost);
	}
	fake.ghost_count = 0;
}

unsigned fake_ghosts(void)
{
	unsigned count;

	fake_lock();
	count = fake.ghost_count;
	pthread_mutex_unlock(&fake.lock);
	return count;
}

unsigned fake_ghosts_dropped(void)
{
	unsigned count;

	fake_lock();
	count = fake.ghosts_dropped;
	pthread_mutex_unlock(&fake.lock);
	return count;
}

unsigned fake_ghosts_release(void)
{
	unsigned landed = 0;

	fake_lock();
	for (struct fake_ghost *ghost = fake.ghosts; ghost; ghost = ghost->next) {
		struct fake_qp *peer = qp_by_number(&ghost->dgid, ghost->gid_version, ghost->qpn);

		if (peer && takes_packets(peer) && fake_ghost_land(peer, ghost))
			landed++;
		else
			fake.ghosts_dropped++;
	}
	fake_ghosts_free();
	fake.epoch++;
	fake_settle();
	pthread_mutex_unlock(&fake.lock);
	return landed;
}

/* Who finds no way */

/* Whole packets of the first WR landed before the cut; or a QP in ERR has not stopped yet. */
static void spill(struct fake_qp *qp)
{
	const struct fake_send *wr = fake_send_at(qp, qp->sq_landed);
	uint32_t bytes = wr->bytes, packets = fake_packets(qp, bytes);
	struct fake_qp *peer = qp->peer;

	if (qp->sq_landed == qp->sq_posted || qp->spilled > qp->sq_landed || qp->delayed)
		return;
	if (peer && fake.config.torn && !qp->forward && packets > 1) {
		bytes = (1 + (uint32_t)(fake_random() % (packets - 1))) * (128u << qp->mtu);
	} else if (!peer && fake.config.err_lands && qp->forward) {
		peer = mate_find(qp);
		if (!peer || peer->ibv.state != IBV_QPS_ERR || peer->rq_psn != qp->sq_psn)
			return;
	} else {
		return;
	}
	qp->spilled = qp->sq_landed + 1;
	if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		fake_spill(qp, peer, qp->sq_landed, bytes);
}

static void watch_one(struct fake_qp *qp, uint64_t now)
{
	if (!fake_qp_is_stuck(qp)) {
		qp->blocked_ns = 0;
		return;
	}
	if (qp->delayed)
		ghosts_keep(qp);
	spill(qp);
	if (!qp->blocked_ns)
		qp->blocked_ns = now;
	if (fake.retry_ns && (!fake.retry_at || qp->blocked_ns + fake.retry_ns < fake.retry_at))
		fake.retry_at = qp->blocked_ns + fake.retry_ns;
}

static void watch_all(uint64_t now)
{
	fake.watch_epoch = fake.epoch;
	fake.retry_at = 0;
	for (struct fake_qp *qp = fake.qps; qp; qp = qp->next)
		watch_one(qp, now);
}

void fake_watch(struct fake_qp *posted)
{
	uint64_t now;

	if (!fake.watching)
		return;
	now = now_ns();
	if (fake.watch_epoch != fake.epoch)
		watch_all(now);
	else if (posted)
		watch_one(posted, now);
	if (!fake.retry_at || now < fake.retry_at)
		return;
	for (struct fake_qp *qp = fake.qps; qp; qp = qp->next) {
		if (qp->blocked_ns && now - qp->blocked_ns >= fake.retry_ns)
			fake_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
	}
	watch_all(now);
}

/* Controls */

static void ways_changed(void)
{
	fake.watching = true;
	fake.epoch++;
	fake_settle();
}

void fake_retry_set(unsigned ms)
{
	fake_lock();
	fake.retry_ns = ms * NS_PER_MS;
	ways_changed();
	pthread_mutex_unlock(&fake.lock);
}

void fake_retry_exceeded(int device, int port)
{
	fake_lock();
	for (struct fake_qp *qp = fake.qps; qp; qp = qp->next) {
		if (qp->device->index == device && qp->port == port &&
		    qp->ibv.state == IBV_QPS_RTS && qp->sq_acked < qp->sq_posted)
			fake_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
	}
	fake_settle();
	pthread_mutex_unlock(&fake.lock);
}

void fake_port_set(int device, int port, bool up)
{
	struct fake_device *d = &fake.device[device];

	fake_lock();
	if (d->port[port].up != up) {
		d->port[port].up = up;
		fake_raise_all(d, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port);
		ways_changed();
	}
	pthread_mutex_unlock(&fake.lock);
}

void fake_port_lose(int device, int port, unsigned losses)
{
	fake_lock();
	fake.device[device].port[port].losses = losses;
	ways_changed();
	pthread_mutex_unlock(&fake.lock);
}

void fake_gid_set(int device, int port, int index, const union ibv_gid *gid, int version)
{
	struct fake_port *p = &fake.device[device].port[port];

	fake_lock();
	p->gid[index] = version ? *gid : (union ibv_gid){{0}};
	p->gid_version[index] = version;
	ways_changed();
	pthread_mutex_unlock(&fake.lock);
}

void fake_hang(int device, unsigned ms)
{
	__atomic_store_n(&fake.device[device].hang_ms, ms, __ATOMIC_RELAXED);
}

void fake_destroy_slow(int device, unsigned ms)
{
	__atomic_store_n(&fake.device[device].destroy_ms, ms, __ATOMIC_RELAXED);
}

void fake_device_fatal(int device)
{
	fake_lock();
	fake.device[device].fatal = true;
	fake_raise_all(&fake.device[device], IBV_EVENT_DEVICE_FATAL, 0);
	ways_changed();
	pthread_mutex_unlock(&fake.lock);
}
