/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recover.c - letters, jobs and timers of recovery.
 *
 * One timer of the plugin thread looks at every comm: under the table's lock, so that none can go
 * away, and as its owner, so that NCCL's thread is not in it; an owner that is busy is tried again
 * a millisecond later. A look takes microseconds: what can take long is a job.
 *
 * The fence of a queue pair: to ERR (job); the owner polls until a flush completion or DRAIN_NS;
 * the next one is created and this one destroyed (job; so no number is used twice running); the
 * owner polls what is left. Only then the core is told. A destroy that fails is tried again, except
 * where the device is gone for good.
 */
#include "recover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"
#include "config.h"
#include "lane.h"
#include "log.h"
#include "signals.h"
#include "util.h"

enum {
	DRAIN_NS = 20000000,
	OWNER_TRIES = 4096,
	BUSY_NS = 1000000,        /* until an owner that was busy is tried again */
	VERIFY_NS = 500000000,
	DESTROY_RETRY_MS = 100
};

static uint64_t look_all(struct timer *t, uint64_t now);

static struct timer timer = { .fn = look_all, .at_ns = UINT64_MAX };

void recover_wake(void)
{
	timer_set(&timer, now_ns());
}

void recover_stop(void)
{
	timer_del(&timer);
}

/* --- log lines ---------------------------------------------------------------------------- */

enum { LANE_TEXT_BYTES = 512 };

static const char *lane_text(const struct comm *c, uint32_t l, char *text)
{
	snprintf(text, LANE_TEXT_BYTES, "lane %u %s -> %s of %s", l,
		 c->port[c->lane[l].port].port->name, c->peer_port[c->lane[l].remote].name,
		 peer_name(c->peer));
	return text;
}

static unsigned long long ms_since(uint64_t then, uint64_t now)
{
	return (now - then) / NS_PER_MS;
}

static void say_failed(struct comm *c, uint32_t l)
{
	const struct core_recover_lane *lane = &c->recovery.core.lane[l];
	const struct lane_work *w = &c->recovery.work[l];
	char text[LANE_TEXT_BYTES], more[96] = "";

	if (lane->cause == CAUSE_COMPLETION && w->status != 0) {
		snprintf(more, sizeof(more), ": %s (status %d, vendor error 0x%x)",
			 verbs.status_name(w->status), (int)w->status, w->vendor_err);
	}
	log_limited(&c->recovery.work[l].limit[0], LOG_INFO, __func__, __LINE__,
		    "%s: failed: %s%s", lane_text(c, l, text),
			 core_cause_text((enum core_cause)lane->cause), more);
}

static void say_fenced(struct comm *c, uint32_t l, uint64_t now)
{
	const struct core_recover_lane *lane = &c->recovery.core.lane[l];
	unsigned long long ms = ms_since(lane->fault_ns, now);
	char text[LANE_TEXT_BYTES];

	lane_text(c, l, text);
	if (c->kind == COMM_SEND) {
		log_limited(&c->recovery.work[l].limit[1], LOG_INFO, __func__, __LINE__,
		    "%s: fenced after %llu ms, %u pieces sent again, %u had landed",
				 text, ms, lane->again, lane->landed);
	} else {
		log_limited(&c->recovery.work[l].limit[1], LOG_INFO, __func__, __LINE__,
		    "%s: fenced after %llu ms", text, ms);
	}
}

static void say_open(struct comm *c, uint32_t l, uint64_t now)
{
	const struct core_recover_lane *lane = &c->recovery.core.lane[l];
	char text[LANE_TEXT_BYTES];

	log_limited(&c->recovery.work[l].limit[2], LOG_INFO, __func__, __LINE__,
		    "%s: in use again, generation %u, after %llu ms", lane_text(c, l, text),
			 lane->generation, ms_since(lane->fault_ns, now));
}

static void fail(struct comm *c)
{
	const struct core_recover *r = &c->recovery.core;
	char text[LANE_TEXT_BYTES], why[LANE_TEXT_BYTES + 128];

	if (r->hole) {
		comm_fail(c, -EREMOTEIO, "data was lost that a device had acknowledged");
		return;
	}
	snprintf(why, sizeof(why),
		 "no path for %lld s (RAILYARD_OUTAGE_TIMEOUT); the last to fail was %s: %s",
		 (long long)config.outage_timeout_ms / 1000, lane_text(c, r->first_lane, text),
		 core_cause_text((enum core_cause)r->first_cause));
	comm_fail(c, -EREMOTEIO, why);
}

/* --- jobs, on the worker ------------------------------------------------------------------ */

static struct comm_port *work_port(const struct lane_work *w)
{
	return &w->comm->port[w->comm->lane[w->lane].port];
}

static int err_job(struct job *job)
{
	struct lane_work *w = CONTAINER_OF(job, struct lane_work, job);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	(void)verbs.modify_qp(w->old, &attr, IBV_QP_STATE); /* destroying it is what counts */
	return 0;
}

static bool is_gone(int rc)
{
	return rc == -EIO || rc == -ENODEV;
}

/* Until the queue pair is destroyed, or the device is gone. The close of the comm ends the wait. */
static void destroy_surely(const struct lane_work *w, struct ibv_qp *qp)
{
	const struct comm_port *p = work_port(w);
	int rc = verbs.destroy_qp(qp);

	for (unsigned i = 0; rc != 0 && !is_gone(rc); i++) {
		struct timespec pause = { .tv_nsec = DESTROY_RETRY_MS * 1000000l };

		log_warn_limited("%s: ibv_destroy_qp failed, so its fence has to wait: %s",
				 p->port->name, strerror(-rc));
		if (__atomic_load_n(&w->comm->recovery.ending, __ATOMIC_RELAXED)) {
			return;
		}
		nanosleep(&pause, NULL);
		rc = verbs.destroy_qp(qp);
	}
}

static int destroy_job(struct job *job)
{
	struct lane_work *w = CONTAINER_OF(job, struct lane_work, job);

	w->next_is_init = false;
	if (lane_qp_create(w->comm, work_port(w), &w->next) != 0) {
		w->next = NULL; /* later: what keeps ghosts out then is the sequence number */
	}
	destroy_surely(w, w->old);
	return 0;
}

/* Our end's next queue pair, in INIT, with the address as it is now. */
static int next_make(struct lane_work *w)
{
	struct comm_port *p = work_port(w);
	int rc = port_address(p->port, &w->from);

	if (rc == 0 && p->cq == NULL) {
		rc = lane_port_make(w->comm, p, 1);
	}
	if (rc == 0 && w->next == NULL) {
		w->next_is_init = false;
		rc = lane_qp_create(w->comm, p, &w->next);
	}
	if (rc == 0 && !w->next_is_init) {
		rc = lane_qp_init(w->next, p->port);
		w->next_is_init = rc == 0;
	}
	w->psn = lane_psn();
	return rc;
}

static int prepare_job(struct job *job)
{
	return next_make(CONTAINER_OF(job, struct lane_work, job));
}

/* A receiver's flush queue pair fails with its port, and is made anew with it. */
static void flush_renew(struct lane_work *w)
{
	if (w->flush_old == NULL) {
		return;
	}
	if (lane_flush_make(w->comm, work_port(w), &w->from, &w->flush_next) == 0) {
		destroy_surely(w, w->flush_old);
		w->flush_old = NULL;
	}
}

static int connect_job(struct job *job)
{
	struct lane_work *w = CONTAINER_OF(job, struct lane_work, job);
	struct comm *c = w->comm;
	int rc = c->kind == COMM_RECV ? next_make(w) : 0;

	if (rc == 0) {
		rc = lane_qp_connect(c, work_port(w), w->next, &w->from, w->psn, &w->to, false);
		w->next_is_init = false;
	}
	if (rc == 0 && c->kind == COMM_RECV) {
		rc = lane_recv_post(recv_comm(c), w->lane, w->next, w->generation);
		flush_renew(w);
	}
	return rc;
}

static void work_start(struct lane_work *w, enum lane_work_phase phase,
		       int (*fn)(struct job *job))
{
	struct recovery *r = &w->comm->recovery;

	r->jobs += w->phase == WORK_IDLE;
	w->phase = (uint8_t)phase;
	w->job.fn = fn;
	w->job.after = recover_wake;
	worker_submit(work_port(w)->port->worker, &w->job);
}

static void work_idle(struct lane_work *w)
{
	w->phase = WORK_IDLE;
	w->comm->recovery.jobs--;
}

/* --- what the core says, as owner ---------------------------------------------------------- */

static void fence_begin(struct comm *c, uint32_t l, uint64_t now)
{
	struct lane_work *w = &c->recovery.work[l];

	w->old = c->lane[l].qp;
	c->lane[l].qp = NULL;
	if (w->old == NULL) { /* it was not in use yet */
		w->old = w->next;
		w->next = NULL;
	}
	w->flush_seen = false;
	w->phase_ns = now;
	if (w->old != NULL) {
		work_start(w, WORK_ERR, err_job);
	} else {
		core_recover_fenced(&c->recovery.core, l, now);
	}
}

static bool has_outstanding(const struct comm *c, uint32_t l)
{
	return c->kind == COMM_RECV ||
	       core_send_lane_units(&((const struct send_comm *)(const void *)c)->core, l) != 0;
}

static void in_use(struct comm *c, uint32_t l)
{
	struct lane_work *w = &c->recovery.work[l];
	struct comm_port *p = work_port(w);

	c->lane[l].qp = w->next;
	c->lane[l].generation = w->generation;
	c->lane[l].psn = w->psn;
	w->next = NULL;
	w->status = 0;
	c->peer_port[c->lane[l].remote].ring_rkey = w->to.ring_rkey;
	if (c->lanes_made <= l) {
		c->lanes_made = (uint8_t)(l + 1);
	}
	lane_template(c, l);
	if (w->flush_next != NULL) {
		p->flush_qp = w->flush_next;
		w->flush_next = NULL;
	}
	if (p->index == c->port_count) {
		c->poll_ports = (uint8_t)(c->port_count + 1);
	}
}

/* A job of this lane is over, or its time of draining. Returns when to look again. */
static uint64_t work_look(struct comm *c, uint32_t l, uint64_t now)
{
	struct lane_work *w = &c->recovery.work[l];
	struct core_recover *core = &c->recovery.core;

	if (w->phase == WORK_DRAIN) {
		if (!w->flush_seen && has_outstanding(c, l) && now < w->phase_ns + DRAIN_NS) {
			return now + BUSY_NS;
		}
		request_drain(c);
		work_start(w, WORK_DESTROY, destroy_job);
		return UINT64_MAX;
	}
	if (w->phase == WORK_IDLE || !job_done(&w->job)) {
		return UINT64_MAX;
	}
	switch (w->phase) {
	case WORK_ERR:
		w->phase = WORK_DRAIN;
		w->phase_ns = now;
		return now;
	case WORK_DESTROY:
		w->old = NULL;
		work_idle(w);
		request_drain(c);
		core_recover_fenced(core, l, now);
		break;
	case WORK_PREPARE:
		work_idle(w);
		core_recover_ready(core, l, w->job.result, now);
		break;
	default:
		work_idle(w);
		if (w->job.result == 0 && core->lane[l].state == RL_CONNECTING) {
			in_use(c, l);
		}
		core_recover_ready(core, l, w->job.result, now);
		break;
	}
	return now;
}

/* The peer's address must be of the generation that is connected. */
static void connect_begin(struct comm *c, uint32_t l, uint32_t generation, uint64_t now)
{
	struct lane_work *w = &c->recovery.work[l];
	const struct comm_port *p = work_port(w);

	if (w->to_generation != generation) {
		core_recover_ready(&c->recovery.core, l, -EPROTO, now);
		return;
	}
	if (p->flush_qp == NULL && c->recovery.flush_failed[p->index] != NULL) {
		w->flush_old = c->recovery.flush_failed[p->index];
		c->recovery.flush_failed[p->index] = NULL;
	}
	w->generation = generation;
	work_start(w, WORK_CONNECT, connect_job);
}

static void letter_send(struct comm *c, const struct core_letter *letter)
{
	const struct lane_work *w = &c->recovery.work[letter->lane];
	struct wire_letter *m = calloc(1, sizeof(*m));
	uint8_t *body = malloc(WIRE_BODY_MAX);
	const struct comm_port *p = work_port(w);
	int rc = -ENOMEM;

	if (m != NULL && body != NULL) {
		const struct ibv_qp *qp = c->kind == COMM_SEND ? w->next : c->lane[w->lane].qp;

		m->letter = *letter;
		m->address.qpn = qp != NULL ? qp->qp_num : 0;
		m->address.psn = w->psn;
		m->address.ring_rkey = p->ring_mr != NULL ? p->ring_mr->rkey : 0;
		memcpy(m->address.gid, w->from.gid.raw, sizeof(m->address.gid));
		m->address.lid = w->from.lid;
		m->address.link_layer = w->from.link_layer;
		m->address.mtu = (uint8_t)w->from.mtu;
		rc = peer_send(c->peer, WIRE_LANE, c->peer_id, body,
			       wire_letter_encode(m, body, WIRE_BODY_MAX));
	}
	free(m);
	free(body);
	if (rc != 0) {
		comm_fail(c, -ECONNRESET, "the peer cannot be told of a failed lane");
	}
}

static void carry_out(struct comm *c, const struct core_action *a,
		      const struct core_letter *letter, uint64_t now)
{
	switch (a->type) {
	case ACT_FENCE:
		fence_begin(c, a->lane, now);
		break;
	case ACT_PREPARE:
		c->recovery.work[a->lane].generation = a->generation;
		work_start(&c->recovery.work[a->lane], WORK_PREPARE, prepare_job);
		break;
	case ACT_CONNECT:
		connect_begin(c, a->lane, a->generation, now);
		break;
	case ACT_VERIFY:
		request_verify(c, a->lane);
		break;
	case ACT_LETTER:
		letter_send(c, letter);
		break;
	case ACT_PROBE:
		request_probe(send_comm(c), &a->post);
		break;
	case ACT_ANNOUNCE:
		request_announce(recv_comm(c), &a->announce);
		break;
	case ACT_SAY_FAILED:
		say_failed(c, a->lane);
		break;
	case ACT_SAY_FENCED:
		say_fenced(c, a->lane, now);
		break;
	case ACT_SAY_OPEN:
		say_open(c, a->lane, now);
		break;
	case ACT_FAIL:
		fail(c);
		break;
	}
}

static void carry_out_all(struct comm *c, uint64_t now)
{
	struct core_letter letter;
	struct core_action action;

	while (comm_error(c) == 0 &&
	       core_recover_next(&c->recovery.core, &action, &letter, now)) {
		carry_out(c, &action, &letter, now);
	}
}

/* --- letters ------------------------------------------------------------------------------ */

static void letter_take(struct comm *c, const struct wire_letter *in, uint64_t now)
{
	struct core_letter answer;
	struct core_recover *core = &c->recovery.core;

	if (in->letter.lane < core->lane_count &&
	    (in->letter.type == LETTER_OFFER || in->letter.type == LETTER_ACCEPT)) {
		struct lane_work *w = &c->recovery.work[in->letter.lane];

		if (w->phase == WORK_IDLE) { /* else nothing is expected */
			w->to = in->address;
			w->to_generation = in->letter.generation;
		}
	}
	if (in->letter.type == LETTER_ASK) {
		request_drain(c);
	}
	if (core_recover_letter(core, &in->letter, &answer, now) != 0) {
		comm_fail(c, -EPROTO, "the peer sent a letter about a lane that cannot be");
		return;
	}
	carry_out_all(c, now);
	if (answer.type != 0) {
		letter_send(c, &answer);
	}
}

void recover_take(struct comm *c, const uint8_t *body, size_t bytes)
{
	struct inbox_letter *in = malloc(sizeof(*in));

	if (in == NULL || wire_letter_decode(body, bytes, &in->letter) != 0) {
		free(in);
		comm_fail(c, -EPROTO, "the peer sent a letter about a lane that cannot be read");
		return;
	}
	in->next = NULL;
	if (c->recovery.inbox == NULL) {
		c->recovery.inbox_tail = &c->recovery.inbox;
	}
	*c->recovery.inbox_tail = in;
	c->recovery.inbox_tail = &in->next;
	recover_wake();
}

static void inbox_take(struct comm *c, uint64_t now)
{
	while (c->recovery.inbox != NULL) {
		struct inbox_letter *in = c->recovery.inbox;

		c->recovery.inbox = in->next;
		if (comm_error(c) == 0) {
			letter_take(c, &in->letter, now);
		}
		free(in);
	}
}

/* --- looks -------------------------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t works_look(struct comm *c, uint64_t now)
{
	uint64_t at = UINT64_MAX;

	for (uint32_t l = 0; l < comm_lane_total(c) && c->recovery.jobs != 0; l++) {
		at = earlier(at, work_look(c, l, now));
		carry_out_all(c, now);
	}
	return at;
}

/* A completion is awaited that NCCL's thread may not poll for. */
static bool is_verifying(const struct comm *c)
{
	for (uint32_t l = 0; l < comm_lane_total(c); l++) {
		if (c->recovery.core.lane[l].state == RL_VERIFYING) {
			return true;
		}
	}
	return false;
}

static uint64_t look(struct comm *c, uint64_t now)
{
	struct recovery *r = &c->recovery;
	uint32_t epoch = __atomic_load_n(&signal_epoch, __ATOMIC_ACQUIRE);
	bool due = r->woken || epoch != r->epoch || now >= core_recover_deadline_ns(&r->core);
	uint64_t at;

	if (r->jobs != 0 || r->inbox != NULL || due || is_verifying(c)) {
		request_drain(c);
	}
	at = works_look(c, now);
	inbox_take(c, now);
	if (due || r->core.todo != 0) {
		r->woken = false;
		r->epoch = epoch;
		core_recover_tick(&r->core, now);
	}
	carry_out_all(c, now);
	if (comm_error(c) == 0) {
		request_progress(c);
	}
	if (r->woken) { /* a fault met on the way */
		return now;
	}
	if (is_verifying(c)) {
		at = earlier(at, now + BUSY_NS);
	}
	return earlier(at, core_recover_deadline_ns(&r->core));
}

/*
 * A thread of NCCL's that polls leaves the word free for moments only: try for some microseconds,
 * or its comm would hardly ever be looked at.
 */
static bool owner_take(struct comm *c)
{
	for (int i = 0; i < OWNER_TRIES; i++) {
		if (__atomic_load_n(&c->owner, __ATOMIC_RELAXED) == 0 && owner_try(&c->owner)) {
			return true;
		}
	}
	return false;
}

static void look_one(struct comm *c, void *arg)
{
	uint64_t *at = arg, now = now_ns();

	if (!__atomic_load_n(&c->attached, __ATOMIC_ACQUIRE)) {
		return;
	}
	if (comm_error(c) != 0) {
		state_comm_failed(c, now);
		return;
	}
	if (!owner_take(c)) {
		*at = earlier(*at, now + BUSY_NS);
		return;
	}
	*at = earlier(*at, look(c, now));
	state_comm_look(c, now);
	owner_release(&c->owner);
}

static uint64_t look_all(struct timer *t, uint64_t now)
{
	uint64_t at = UINT64_MAX;

	(void)t;
	comm_each(look_one, &at);
	return earlier(at, state_look(now));
}

/* --- what the data path reports ------------------------------------------------------------ */

void recover_fault(struct comm *c, uint32_t l, enum core_cause cause)
{
	struct recovery *r = &c->recovery;

	if (core_recover_fault(&r->core, l, r->core.lane[l].generation, cause, now_ns())) {
		r->woken = true;
		recover_wake();
	}
}

void recover_completion(struct comm *c, uint32_t l, uint32_t generation, const struct ibv_wc *wc)
{
	struct recovery *r = &c->recovery;
	struct lane_work *w = &r->work[l];

	if (core_recover_fault(&r->core, l, generation, CAUSE_COMPLETION, now_ns())) {
		w->status = wc->status;
		w->vendor_err = wc->vendor_err;
		r->woken = true;
		recover_wake();
	} else if (w->phase == WORK_ERR || w->phase == WORK_DRAIN) {
		w->flush_seen = true;
	}
}

void recover_verified(struct comm *c, uint32_t l, uint32_t generation)
{
	core_recover_verified(&c->recovery.core, l, generation, now_ns());
	c->recovery.woken = true;
	recover_wake();
}

void recover_again_done(struct comm *c, uint32_t l)
{
	core_recover_again_done(&c->recovery.core, l, now_ns());
}

/* --- begin and end ------------------------------------------------------------------------ */

/*
 * Lanes that both ends know to be unconnected begin as failed ones; a sender's that failed only
 * here is in use for the peer, which must be told.
 */
void recover_attach(struct comm *c)
{
	struct recovery *r = &c->recovery;
	const struct core_recover_times times = {
		.stall_ns = (uint64_t)config.stall_ms * NS_PER_MS,
		.retest_ns = (uint64_t)config.retest_ms * NS_PER_MS,
		.verify_ns = VERIFY_NS,
		.outage_ns = (uint64_t)config.outage_timeout_ms * NS_PER_MS,
	};
	bool sender = c->kind == COMM_SEND;
	uint64_t mutual = 0, now = now_ns();

	for (uint32_t l = 0; l < comm_lane_total(c); l++) {
		struct lane_work *w = &r->work[l];

		w->comm = c;
		w->lane = (uint8_t)l;
		w->job.done = 1;
		bool known = !sender || c->peer_lane[l].qpn == 0 ||
			     (c->absent >> c->lane[l].port & 1) != 0;

		if (l < c->lane_count && (c->lanes_down >> l & 1) != 0 && known) {
			mutual |= 1ull << l;
			w->next = c->lane[l].qp; /* in INIT */
			w->next_is_init = w->next != NULL;
			c->lane[l].qp = NULL;
		}
	}
	core_recover_init(&r->core, &times, sender ? &send_comm(c)->core : NULL,
			  sender ? NULL : &recv_comm(c)->core, mutual, now);
	for (uint64_t only = c->lanes_down & ~mutual; only != 0; only &= only - 1) {
		uint32_t l = (uint32_t)__builtin_ctzll(only);

		core_recover_fault(&r->core, l, 1, CAUSE_SETUP, now);
	}
}

static void qp_end(struct ibv_qp **qp)
{
	if (*qp != NULL) {
		(void)verbs.destroy_qp(*qp);
		*qp = NULL;
	}
}

void recover_end(struct comm *c)
{
	struct recovery *r = &c->recovery;

	__atomic_store_n(&r->ending, true, __ATOMIC_RELAXED);
	for (uint32_t l = 0; l < CORE_LANES_MAX; l++) {
		struct lane_work *w = &r->work[l];

		while (w->comm != NULL && !job_done(&w->job)) {
			struct timespec pause = { .tv_nsec = 100000 };

			nanosleep(&pause, NULL);
		}
		if (w->phase != WORK_DESTROY) { /* that job has destroyed it */
			qp_end(&w->old);
		}
		qp_end(&w->next);
		qp_end(&w->flush_old);
		qp_end(&w->flush_next);
	}
	for (uint32_t p = 0; p < CORE_PORTS_MAX; p++) {
		qp_end(&r->flush_failed[p]);
	}
	while (r->inbox != NULL) {
		struct inbox_letter *in = r->inbox;

		r->inbox = in->next;
		free(in);
	}
}
