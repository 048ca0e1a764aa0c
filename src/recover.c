/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recover.c - letters, jobs and timers of recovery.
 *
 * One timer of the plugin thread looks at every comm: under the table's lock, so that none can go
 * away, and as its owner, so that NCCL's thread is not in it; an owner that is busy is tried again
 * a millisecond later. A look takes microseconds: what can take long is a job.
 *
 * The fence of a queue pair is one job: to ERR; the worker, as owner, polls until a flush
 * completion or DRAIN_NS; it is reset or destroyed. Then the owner polls what is left, and only
 * then the core is told. Where RESET does all that matters of a destroy, the destroy itself comes
 * later: rxe waits in it, for seconds, for packets that a dead link holds. A destroy that fails is
 * tried again, except where the device is gone for good. The next queue pair is created before the
 * old one is destroyed, so that no number is used twice running.
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

#include "flight_calls.h" /* last */

enum {
	DRAIN_NS = 20000000,
	OWNER_TRIES = 4096,
	BUSY_NS = 1000000,        /* until an owner that was busy is tried again */
	VERIFY_NS = 500000000,
	DRAIN_PAUSE_NS = 200000,
	JOB_PAUSE_NS = 100000,
	DESTROY_RETRY_NS = 100000000
};

/* Of ibv_query_device. */
enum { VENDOR_MELLANOX = 0x02c9, VENDOR_RXE = 0xffffff };

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

/*
 * A thread of NCCL's that polls leaves the word free for moments only: try for some microseconds,
 * or ours would hardly ever get it.
 */
static bool owner_take(struct comm *c)
{
	for (int i = 0; i < OWNER_TRIES; i++) {
		if (__atomic_load_n(&c->owner, __ATOMIC_RELAXED) != 1 && owner_try(&c->owner)) {
			return true;
		}
	}
	return false;
}

static void pause_ns(long ns)
{
	struct timespec pause = { .tv_nsec = ns };

	nanosleep(&pause, NULL);
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

static unsigned long long us_since(uint64_t then, uint64_t now)
{
	return (now - then) / 1000;
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

static bool is_gone(int rc)
{
	return rc == -EIO || rc == -ENODEV;
}

/* Until the queue pair is destroyed, or the device is gone. The close of the comm ends the wait. */
static void destroy_surely(const struct comm *c, const struct port *p, struct ibv_qp *qp)
{
	int rc = verbs.destroy_qp(qp);

	for (unsigned i = 0; rc != 0 && !is_gone(rc); i++) {
		log_warn_limited("%s: ibv_destroy_qp failed, so its fence has to wait: %s",
				 p->name, strerror(-rc));
		if (__atomic_load_n(&c->recovery.ending, __ATOMIC_RELAXED)) {
			return;
		}
		pause_ns(DESTROY_RETRY_NS);
		rc = verbs.destroy_qp(qp);
	}
}

static bool has_outstanding(const struct comm *c, uint32_t l)
{
	return c->kind == COMM_RECV ||
	       core_send_lane_units(&((const struct send_comm *)(const void *)c)->core, l) != 0;
}

/*
 * Feed what had completed before the fence, which destroying the queue pair may drop: until a flush
 * completion says that there is no more, or DRAIN_NS. What is dropped all the same is asked for.
 */
static void drain(struct lane_work *w)
{
	struct comm *c = w->comm;
	uint64_t until = now_ns() + DRAIN_NS;
	bool over = false;

	while (!over && now_ns() < until && comm_error(c) == 0) {
		if (owner_take(c)) {
			request_drain(c);
			over = w->flush_seen || !has_outstanding(c, w->lane);
			owner_release(&c->owner);
		}
		if (!over) {
			pause_ns(DRAIN_PAUSE_NS);
		}
	}
}

static void qp_end(struct ibv_qp **qp)
{
	if (*qp != NULL) {
		(void)verbs.destroy_qp(*qp);
		*qp = NULL;
	}
}

static struct ibv_qp *qp_make(const struct lane_work *w)
{
	struct ibv_qp *qp = NULL;

	/* If it fails, what keeps ghosts out is the sequence number alone. */
	return lane_qp_create(w->comm, work_port(w), &qp) == 0 ? qp : NULL;
}

static int retire_job(struct job *job)
{
	struct retired *old = CONTAINER_OF(job, struct retired, job);
	struct lane_work *w = old->work;

	if (__atomic_exchange_n(&w->spare_due, false, __ATOMIC_ACQ_REL)) {
		struct ibv_qp *none = __atomic_exchange_n(&w->spare, qp_make(w), __ATOMIC_ACQ_REL);

		qp_end(&none);
	}
	destroy_surely(w->comm, work_port(w)->port, old->qp);
	return 0;
}

/*
 * Does modify_qp to RESET return only when nothing of the queue pair can land or be read any more?
 * mlx5's destroy begins with that command, and rxe's RESET stops the queue pair's tasks and waits
 * for them. irdma makes ERR of it. By vendor: names of devices can be changed.
 */
static bool reset_fences(const struct port *p)
{
	return p->attr.vendor_id == VENDOR_MELLANOX || p->attr.vendor_id == VENDOR_RXE;
}

/* The end of a fence: nothing of `old` lands or is read any more. */
static void old_end(struct lane_work *w)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	const struct port *p = work_port(w)->port;

	w->retired = reset_fences(p) ? calloc(1, sizeof(*w->retired)) : NULL;
	if (w->retired != NULL && verbs.modify_qp(w->old, &attr, IBV_QP_STATE) == 0) {
		w->retired->job.fn = retire_job;
		w->retired->work = w;
		w->retired->qp = w->old;
		__atomic_store_n(&w->spare_due,
				 __atomic_load_n(&w->spare, __ATOMIC_ACQUIRE) == NULL,
				 __ATOMIC_RELEASE);
		return;
	}
	free(w->retired);
	w->retired = NULL;
	w->next = qp_make(w);
	w->next_is_init = false;
	destroy_surely(w->comm, p, w->old);
}

static int fence_job(struct job *job)
{
	struct lane_work *w = CONTAINER_OF(job, struct lane_work, job);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	uint64_t begun = now_ns(), failed, drained;

	(void)verbs.modify_qp(w->old, &attr, IBV_QP_STATE); /* its end is what counts */
	failed = now_ns();
	drain(w);
	drained = now_ns();
	old_end(w);
	log_trace("lane %u of %s: to ERR in %llu us, drained in %llu us, %s in %llu us", w->lane,
		  work_port(w)->port->name, us_since(begun, failed), us_since(failed, drained),
		  w->retired != NULL ? "reset" : "destroyed", us_since(drained, now_ns()));
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
		__atomic_store_n(&w->spare_due, false, __ATOMIC_RELEASE);
		w->next = __atomic_exchange_n(&w->spare, NULL, __ATOMIC_ACQ_REL);
		w->next_is_init = false;
		rc = w->next == NULL ? lane_qp_create(w->comm, p, &w->next) : 0;
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
		destroy_surely(w->comm, work_port(w)->port, w->flush_old);
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
	if (w->old != NULL) {
		work_start(w, WORK_FENCE, fence_job);
	} else {
		core_recover_fenced(&c->recovery.core, l, now);
	}
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

static void retired_free(struct recovery *r)
{
	struct retired **at = &r->retired;

	while (*at != NULL) {
		struct retired *old = *at;

		if (job_done(&old->job)) {
			*at = old->next;
			free(old);
		} else {
			at = &old->next;
		}
	}
}

static void retire(struct comm *c, struct lane_work *w)
{
	struct recovery *r = &c->recovery;

	retired_free(r);
	if (w->retired != NULL) {
		w->retired->next = r->retired;
		r->retired = w->retired;
		w->retired = NULL;
		worker_submit_late(work_port(w)->port->worker, &r->retired->job);
	}
}

/* Has a job of this lane ended? */
static void work_look(struct comm *c, uint32_t l, uint64_t now)
{
	struct lane_work *w = &c->recovery.work[l];
	struct core_recover *core = &c->recovery.core;

	if (w->phase == WORK_IDLE || !job_done(&w->job)) {
		return;
	}
	switch (w->phase) {
	case WORK_FENCE:
		retire(c, w);
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

/* Returns whether it is to be kept for later. */
static bool letter_take(struct comm *c, const struct wire_letter *in, uint64_t now)
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
	int rc = core_recover_letter(core, &in->letter, &answer, now);

	if (rc < 0 ||
	    (rc == CORE_LETTER_LATER && c->recovery.work[in->letter.lane].later != NULL)) {
		comm_fail(c, -EPROTO, "the peer sent a letter about a lane that cannot be");
		return false;
	}
	carry_out_all(c, now);
	if (answer.type != 0) {
		letter_send(c, &answer);
	}
	return rc == CORE_LETTER_LATER;
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
		if (comm_error(c) == 0 && letter_take(c, &in->letter, now)) {
			c->recovery.work[in->letter.letter.lane].later = in;
		} else {
			free(in);
		}
	}
}

/* --- looks -------------------------------------------------------------------------------- */

/* A question that came before our fence was over. */
static void later_take(struct comm *c, uint32_t l, uint64_t now)
{
	struct inbox_letter *in = c->recovery.work[l].later;

	if (in != NULL && c->recovery.work[l].phase == WORK_IDLE && comm_error(c) == 0) {
		c->recovery.work[l].later = NULL;
		(void)letter_take(c, &in->letter, now);
		free(in);
	}
}

static void works_look(struct comm *c, uint64_t now)
{
	for (uint32_t l = 0; l < comm_lane_total(c) && c->recovery.jobs != 0; l++) {
		work_look(c, l, now);
		carry_out_all(c, now);
		later_take(c, l, now);
	}
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
	uint64_t at = UINT64_MAX;

	if (r->jobs != 0 || r->inbox != NULL || due || is_verifying(c)) {
		request_drain(c);
	}
	works_look(c, now);
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
		at = now + BUSY_NS;
	}
	return earlier(at, core_recover_deadline_ns(&r->core));
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
	} else if (w->phase == WORK_FENCE) {
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

static void job_wait(const struct job *job)
{
	while (!job_done(job)) {
		pause_ns(JOB_PAUSE_NS);
	}
}

void recover_end(struct comm *c)
{
	struct recovery *r = &c->recovery;

	__atomic_store_n(&r->ending, true, __ATOMIC_RELAXED);
	while (r->retired != NULL) {
		job_wait(&r->retired->job);
		retired_free(r);
	}
	for (uint32_t l = 0; l < CORE_LANES_MAX; l++) {
		struct lane_work *w = &r->work[l];

		if (w->comm != NULL) {
			job_wait(&w->job);
		}
		if (w->phase != WORK_FENCE || w->retired != NULL) { /* else it is destroyed */
			qp_end(&w->old);
		}
		free(w->retired);
		w->retired = NULL;
		qp_end(&w->next);
		qp_end(&w->spare);
		qp_end(&w->flush_old);
		qp_end(&w->flush_next);
		free(w->later);
		w->later = NULL;
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
