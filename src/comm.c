/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * comm.c - making and destroying the halves of a connection.
 *
 * Slow verbs commands run as one job per port on the device's worker: set-up (PD, CQ, rings, queue
 * pairs to INIT), then attach (RTR, RTS, receive WRs). Until comm_attach_done() says 1 only these
 * jobs touch the queue pairs; from then on only the owner does, until comm_destroy().
 */
#include "comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

#include "config.h"
#include "lane.h"
#include "log.h"
#include "pairs.h"
#include "signals.h"
#include "util.h"

static struct {
	pthread_mutex_t lock;
	struct comm *first;
	uint64_t next_id;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER, .next_id = 1 };

static struct core_load load[PORTS_MAX] __attribute__((aligned(64)));

static size_t comm_bytes(enum comm_kind kind)
{
	return kind == COMM_SEND ? sizeof(struct send_comm) : sizeof(struct recv_comm);
}

void comm_ring_range(struct comm *c, void **start, size_t *bytes)
{
	if (c->kind == COMM_SEND) {
		*start = send_comm(c)->ring;
		*bytes = sizeof(*send_comm(c)) - offsetof(struct send_comm, ring);
	} else {
		*start = recv_comm(c)->staging;
		*bytes = sizeof(*recv_comm(c)) - offsetof(struct recv_comm, staging);
	}
}

uint8_t *comm_scratch(struct comm *c)
{
	return c->kind == COMM_SEND ? send_comm(c)->scratch : recv_comm(c)->scratch;
}

static void requests_make(struct comm *c, struct request *r, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		r[i].comm = c;
		r[i].slot = (uint8_t)i;
	}
}

int comm_create(enum comm_kind kind, struct vdevice *dev, struct comm **out)
{
	struct comm *c = mmap(NULL, comm_bytes(kind), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (c == MAP_FAILED) {
		return -ENOMEM;
	}
	c->kind = (uint8_t)kind;
	c->dev = dev;
	c->port_count = (uint8_t)dev->port_count;
	c->poll_ports = c->port_count;
	c->standby = (uint8_t)dev->standby;
	for (int i = 0; i < dev->port_count + dev->standby; i++) {
		c->port[i].port = port_at(dev->port[i]);
		c->port[i].comm = c;
		c->port[i].index = i;
		c->port[i].job.done = 1;
	}
	if (kind == COMM_SEND) {
		requests_make(c, send_comm(c)->req, CORE_SLOTS);
	} else {
		requests_make(c, recv_comm(c)->req, CORE_SLOTS);
		requests_make(c, recv_comm(c)->flush, FLUSH_REQUESTS);
	}
	pthread_mutex_lock(&table.lock);
	c->id = table.next_id++;
	c->next = table.first;
	table.first = c;
	pthread_mutex_unlock(&table.lock);
	*out = c;
	return 0;
}

void comm_peer_set(struct comm *c, struct peer *peer)
{
	pthread_mutex_lock(&table.lock);
	c->peer = peer;
	pthread_mutex_unlock(&table.lock);
	peer_watch(peer, true);
}

bool comm_find(uint64_t id, void (*fn)(struct comm *c, void *arg), void *arg)
{
	struct comm *c;

	pthread_mutex_lock(&table.lock);
	for (c = table.first; c != NULL && c->id != id; c = c->next) {
	}
	if (c != NULL) {
		fn(c, arg);
	}
	pthread_mutex_unlock(&table.lock);
	return c != NULL;
}

void comm_each(void (*fn)(struct comm *c, void *arg), void *arg)
{
	pthread_mutex_lock(&table.lock);
	for (struct comm *c = table.first; c != NULL; c = c->next) {
		fn(c, arg);
	}
	pthread_mutex_unlock(&table.lock);
}

static void table_remove(struct comm *c)
{
	pthread_mutex_lock(&table.lock);
	for (struct comm **p = &table.first; *p != NULL; p = &(*p)->next) {
		if (*p == c) {
			*p = c->next;
			break;
		}
	}
	state_give(&c->state);
	pthread_mutex_unlock(&table.lock);
}

void comm_fail(struct comm *c, int error, const char *why)
{
	int none = 0;

	if (!__atomic_compare_exchange_n(&c->error, &none, error, false, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED)) {
		return;
	}
	if (!__atomic_load_n(&c->peer_closed, __ATOMIC_RELAXED)) {
		flight_failed(c, error);
		log_warn("%s comm %llu with %s has failed: %s",
			 c->kind == COMM_SEND ? "send" : "receive", (unsigned long long)c->id,
			 peer_name(c->peer), why);
	}
}

/* --- set-up, on the worker ---------------------------------------------------------------- */

/* Our address of a port for set-up; one without is told by port_address(). */
static void address_read(struct comm_port *p)
{
	if (port_address(p->port, &p->addr) != 0) {
		__atomic_fetch_or(&p->comm->absent, 1u << p->index, __ATOMIC_RELAXED);
		memset(&p->addr, 0, sizeof(p->addr));
		p->addr.link_layer = p->port->link_layer;
	}
}

static bool port_reaches_gpu(const struct port *port)
{
	return (port->has_dmabuf || port->has_peermem) && !config.gdr_flush_disable;
}

static int queue_pairs_make(struct comm *c, struct comm_port *p)
{
	int rc = 0;

	p->step = "ibv_create_qp";
	for (int i = 0; i < c->lane_count && rc == 0; i++) {
		if (c->lane[i].port == p->index) {
			rc = lane_qp_create(c, p, &c->lane[i].qp);
			rc = rc != 0 ? rc : lane_qp_init(c->lane[i].qp, p->port);
		}
	}
	return rc;
}

/* Without an address there is nothing to connect to, but the port may get one later. */
static int setup_port(struct comm *c, struct comm_port *p)
{
	int lanes = 0;

	for (int i = 0; i < c->lane_count; i++) {
		lanes += c->lane[i].port == p->index;
	}
	address_read(p);

	int rc = lane_port_make(c, p, lanes);

	return rc != 0 ? rc : queue_pairs_make(c, p);
}

static int setup_job(struct job *job)
{
	struct comm_port *p = CONTAINER_OF(job, struct comm_port, job);

	return setup_port(p->comm, p);
}

/* One line for all ports: what stops one, as too little locked memory, mostly stops each. */
static void setup_failed(const struct comm *c)
{
	const struct comm_port *first = NULL;
	char cause[MR_CAUSE_BYTES], others[32] = "";
	int failed = 0;

	for (int i = 0; i < c->port_count; i++) {
		const struct comm_port *p = &c->port[i];

		if (p->job.result != 0 && p->step != NULL) {
			first = failed++ == 0 ? p : first;
		}
	}
	if (first == NULL) {
		return;
	}
	if (failed > 1) {
		snprintf(others, sizeof(others), " (and %d more port%s)", failed - 1,
			 failed > 2 ? "s" : "");
	}
	log_warn("%s%s: %s for a %s comm failed: %s", first->port->name, others, first->step,
		 c->kind == COMM_SEND ? "send" : "receive",
		 mr_cause(first->job.result, cause, sizeof(cause)));
}

static void jobs_start(struct comm *c, int (*fn)(struct job *job))
{
	for (int i = 0; i < c->port_count; i++) {
		c->port[i].job.fn = fn;
		c->port[i].job.done = 0;
	}
	for (int i = 0; i < c->port_count; i++) {
		worker_submit(c->port[i].port->worker, &c->port[i].job);
	}
}

static int jobs_done(struct comm *c)
{
	int rc = 1;

	for (int i = 0; i < c->port_count; i++) {
		if (!job_done(&c->port[i].job)) {
			return 0;
		}
		if (c->port[i].job.result != 0) {
			rc = c->port[i].job.result;
		}
	}
	return rc;
}

/* --- lanes -------------------------------------------------------------------------------- */

static int address_job(struct job *job)
{
	struct comm_port *p = CONTAINER_OF(job, struct comm_port, job);

	address_read(p);
	return 0;
}

void comm_addresses_start(struct comm *c)
{
	jobs_start(c, address_job);
}

int comm_addresses_done(struct comm *c)
{
	return jobs_done(c);
}

void comm_lanes_wish(struct comm *c, int peer_ports)
{
	int lanes;

	c->path_count = (uint8_t)(c->port_count > peer_ports ? c->port_count : peer_ports);
	lanes = c->path_count * (int)config.ib_qps_per_connection;
	while (lanes + c->standby > CORE_LANES_MAX) {
		lanes -= c->path_count;
	}
	c->lane_count = (uint8_t)lanes;
	for (int i = 0; i < lanes; i++) {
		c->lane[i].port = (uint8_t)(i % c->path_count % c->port_count);
		c->lane[i].of = (uint8_t)i;
	}
}

/* A borrowed lane needs a port to borrow at both ends. */
static void standby_answer(struct comm *c, const struct wire_connect *in)
{
	if (c->standby == 0 || in->standby == 0 || c->lane_count == CORE_LANES_MAX ||
	    in->port[in->port_count].link_layer != c->port[c->port_count].port->link_layer) {
		c->standby = 0;
	}
}

int comm_lanes_answer(struct comm *c, const struct wire_connect *in, const char **why)
{
	struct wire_port ours[CORE_PORTS_MAX];
	struct pair pair[CORE_PORTS_MAX];
	int paths = c->port_count > in->port_count ? c->port_count : in->port_count;
	int turns = in->lane_count / paths;

	for (int i = 0; i < c->port_count; i++) {
		memcpy(ours[i].gid, c->port[i].addr.gid.raw, sizeof(ours[i].gid));
		ours[i].link_layer = c->port[i].addr.link_layer;
	}
	int n = pairs_choose(in->port, in->port_count, ours, c->port_count, pair);

	if (in->lane_count % paths != 0 || turns == 0) {
		*why = "lane count does not fit the port counts";
		return -EPROTO;
	}
	if (n == 0) {
		*why = "one end is InfiniBand, the other Ethernet";
		return -EPROTO;
	}
	c->path_count = (uint8_t)n;
	c->lane_count = (uint8_t)(n * turns);
	standby_answer(c, in);
	for (int i = 0; i < c->lane_count; i++) {
		c->lane[i].port = pair[i % n].ours;
		c->lane[i].of = (uint8_t)(i / n * paths + pair[i % n].path);
	}
	return 0;
}

void comm_setup_start(struct comm *c)
{
	for (int i = 0; i < c->lane_count; i++) {
		c->lane[i].psn = lane_psn();
		c->lane[i].generation = 1;
	}
	c->lanes_made = c->lane_count;
	c->inline_cts = config.ib_use_inline != 0;
	jobs_start(c, setup_job);
}

int comm_setup_done(struct comm *c)
{
	int rc = jobs_done(c);

	if (rc < 0) {
		setup_failed(c);
	}
	return rc;
}

/* Receiver: could it not be connected? Then it begins as a failed one at both ends. */
static bool lane_is_down(const struct comm *c, int i)
{
	return c->lanes_down >> i & 1;
}

/* --- what the other half must know -------------------------------------------------------- */

void comm_wire(const struct comm *c, struct wire_connect *out)
{
	memset(out, 0, sizeof(*out));
	out->comm = c->id;
	out->ring_addr = c->kind == COMM_SEND ?
				 (uintptr_t)((const struct send_comm *)(const void *)c)->ring :
				 (uintptr_t)((const struct recv_comm *)(const void *)c)->sizes;
	out->scratch_addr = (uintptr_t)comm_scratch((struct comm *)(uintptr_t)c);
	out->standby = c->standby;
	out->traffic_class = c->traffic_class;
	out->service_level = c->service_level;
	out->adaptive_routing = c->adaptive_routing;
	out->port_count = c->port_count;
	out->lane_count = c->lane_count;
	out->recv_wrs = CORE_RQ_WRS;
	for (uint32_t i = 0; i < comm_port_total(c); i++) {
		const struct comm_port *p = &c->port[i];
		struct wire_port *w = &out->port[i];

		snprintf(w->name, sizeof(w->name), "%.63s", p->port->name);
		memcpy(w->gid, p->addr.gid.raw, sizeof(w->gid));
		w->lid = p->addr.lid;
		w->link_layer = p->port->link_layer;
		w->mtu = (uint8_t)p->addr.mtu;
		w->mbps = p->port->mbps;
		w->ring_rkey = p->ring_mr != NULL ? p->ring_mr->rkey : 0;
	}
	for (int i = 0; i < c->lane_count; i++) {
		out->lane[i].qpn = lane_is_down(c, i) ? 0 : c->lane[i].qp->qp_num;
		out->lane[i].psn = c->lane[i].psn;
		out->lane[i].generation = c->lane[i].generation;
		out->lane[i].port = c->lane[i].port;
		out->lane[i].of = c->lane[i].of;
	}
}

/* The same at both ends, so that small messages and their announcements begin on one path. */
static uint32_t path_hash(const struct comm *c)
{
	uint64_t low = c->id < c->peer_id ? c->id : c->peer_id;
	uint64_t high = c->id < c->peer_id ? c->peer_id : c->id;

	return (uint32_t)(hash_u64(low ^ high << 32) >> 33);
}

static void core_config_make(const struct comm *c, struct core_config *cfg)
{
	memset(cfg, 0, sizeof(*cfg));
	cfg->lane_count = c->lane_count;
	cfg->standby_count = c->standby;
	cfg->port_count = c->port_count;
	cfg->path_count = c->path_count;
	cfg->small_bytes = (uint32_t)config.small_bytes * c->port_count;
	cfg->window_us = (uint32_t)config.window_us;
	cfg->pressure_max_pct = (uint32_t)config.pressure_max_pct;
	cfg->hash = path_hash(c);
	cfg->split_all = config.ib_split_data_on_qps != 0;
	cfg->observe = config.mode == MODE_OBSERVE;
	cfg->adaptive_routing = c->adaptive_routing;
	cfg->ar_threshold = (uint32_t)config.ib_ar_threshold;
	cfg->signal_epoch = &signal_epoch;
	for (uint32_t i = 0; i < comm_lane_total(c); i++) {
		cfg->lane[i].port = c->lane[i].port;
		cfg->lane[i].remote = c->lane[i].remote;
	}
	for (uint32_t i = 0; i < comm_port_total(c); i++) {
		cfg->local[i] = &c->port[i].port->word;
		cfg->load[i] = &load[c->dev->port[i]];
	}
	for (int i = 0; i < c->peer_port_count + c->standby; i++) {
		cfg->remote[i] = &c->remote[i];
	}
}

/*
 * Sender: keep the lanes that the peer answered, in its order, then the standby lane; those it did
 * not want go to the end of the array, unused until they are destroyed with the rest.
 */
static int lanes_take(struct comm *c, const struct wire_connect *in)
{
	int turns = c->lane_count / c->path_count;
	struct comm_lane kept[CORE_LANES_MAX];
	bool used[CORE_LANES_MAX] = { false };
	int n = 0;

	if (in->lane_count > c->lane_count || in->lane_count % turns != 0) {
		return -EPROTO;
	}
	for (int i = 0; i < in->lane_count; i++) {
		int of = in->lane[i].of;

		if (of >= c->lane_count || used[of]) {
			return -EPROTO;
		}
		used[of] = true;
		kept[n++] = c->lane[of];
	}
	if (in->standby > c->standby) {
		return -EPROTO;
	}
	c->standby = in->standby;
	if (c->standby != 0) {
		memset(&kept[n++], 0, sizeof(kept[0]));
	}
	for (int i = 0; i < c->lane_count; i++) {
		if (!used[i]) {
			kept[n++] = c->lane[i];
		}
	}
	memcpy(c->lane, kept, (size_t)n * sizeof(kept[0]));
	c->lanes_made = (uint8_t)n;
	c->lane_count = in->lane_count;
	c->path_count = (uint8_t)(in->lane_count / turns);
	return 0;
}

/* Receiver: the peer's lanes in the order of ours. */
static void lanes_match(struct comm *c, const struct wire_connect *in)
{
	for (int i = 0; i < c->lane_count; i++) {
		c->peer_lane[i] = in->lane[c->lane[i].of];
	}
}

int comm_wire_take(struct comm *c, const struct wire_connect *in, const char **why)
{
	struct core_config cfg;

	if (c->kind == COMM_SEND && in->recv_wrs != CORE_RQ_WRS) {
		*why = "the peer posts another number of receive WRs (another Railyard?)";
		return -EPROTO;
	}
	if (c->kind == COMM_SEND && lanes_take(c, in) != 0) {
		*why = "the peer answered lanes that were not offered";
		return -EPROTO;
	}
	c->peer_id = in->comm;
	c->peer_ring_addr = in->ring_addr;
	c->peer_scratch_addr = in->scratch_addr;
	c->peer_port_count = in->port_count;
	memcpy(c->peer_port, in->port, sizeof(c->peer_port));
	if (c->kind == COMM_SEND) {
		memcpy(c->peer_lane, in->lane, sizeof(c->peer_lane));
	} else {
		lanes_match(c, in);
	}
	for (int i = 0; i < in->port_count + c->standby; i++) {
		c->remote[i].mbps = in->port[i].mbps;
	}
	for (int i = 0; i < c->lane_count; i++) {
		c->lane[i].remote = c->peer_lane[i].port;
	}
	if (c->standby != 0) {
		c->lane[c->lane_count].port = c->port_count;
		c->lane[c->lane_count].remote = in->port_count;
	}
	core_config_make(c, &cfg);
	return c->kind == COMM_SEND ?
		       core_send_init(&send_comm(c)->core, &cfg, send_comm(c)->ring) :
		       core_recv_init(&recv_comm(c)->core, &cfg, recv_comm(c)->staging,
				      recv_comm(c)->sizes);
}

/* --- attach, on the worker ---------------------------------------------------------------- */

static bool port_is_absent(const struct comm_port *p)
{
	return p->comm->absent >> p->index & 1;
}

static bool is_absent(const struct wire_port *port)
{
	static const uint8_t none[16];

	return port->lid == 0 && memcmp(port->gid, none, sizeof(none)) == 0;
}

static int attach_lane(struct comm *c, struct comm_port *p, int i)
{
	const struct wire_port *port = &c->peer_port[c->lane[i].remote];
	struct wire_lane_address to = { .qpn = c->peer_lane[i].qpn, .psn = c->peer_lane[i].psn,
					.ring_rkey = port->ring_rkey, .lid = port->lid,
					.link_layer = port->link_layer, .mtu = port->mtu };

	if (port_is_absent(p) || is_absent(port) || to.qpn == 0) {
		return -EHOSTUNREACH;
	}
	memcpy(to.gid, port->gid, sizeof(to.gid));
	/* A port that is down is not waited for. */
	int rc = lane_qp_connect(c, p, c->lane[i].qp, &p->addr, c->lane[i].psn, &to,
				 core_word(&p->port->word.down) == 0);

	if (rc == 0 && c->kind == COMM_RECV) {
		rc = lane_recv_post(recv_comm(c), i, c->lane[i].qp, c->lane[i].generation);
	}
	if (rc != 0) {
		log_warn("%s: connecting a queue pair to %s of %s failed: %s (GID index %d, check "
			 "that the ports reach each other)",
			 p->port->name, port->name, peer_name(c->peer), strerror(-rc),
			 p->addr.gid_index);
	}
	return rc;
}

/* Connects what can be; fails if nothing can. */
static int attach_job(struct job *job)
{
	struct comm_port *p = CONTAINER_OF(job, struct comm_port, job);
	struct comm *c = p->comm;
	int rc = 0;

	for (int i = 0; i < c->lane_count; i++) {
		if (c->lane[i].port == p->index && attach_lane(c, p, i) != 0) {
			__atomic_fetch_or(&c->lanes_down, 1ull << i, __ATOMIC_RELAXED);
		}
	}
	if (c->kind == COMM_RECV && port_reaches_gpu(p->port) && !port_is_absent(p)) {
		rc = lane_flush_make(c, p, &p->addr, &p->flush_qp);
	}
	if (rc != 0) {
		log_warn("%s: the queue pair for flushes failed: %s", p->port->name, strerror(-rc));
	}
	return rc;
}

void comm_attach_start(struct comm *c)
{
	jobs_start(c, attach_job);
}

static bool lanes_any(const struct comm *c)
{
	for (int i = 0; i < c->lane_count; i++) {
		if (!lane_is_down(c, i)) {
			return true;
		}
	}
	return false;
}

int comm_attach_done(struct comm *c)
{
	int rc = jobs_done(c);

	if (rc == 1 && !lanes_any(c)) {
		log_warn("%s comm with %s: no lane could be connected",
			 c->kind == COMM_SEND ? "send" : "receive", peer_name(c->peer));
		return -EHOSTUNREACH;
	}
	if (rc != 1) {
		return rc;
	}
	for (uint32_t i = 0; i < c->lane_count; i++) {
		lane_template(c, i);
		if (lane_is_down(c, (int)i)) {
			continue;
		}
		if (c->kind == COMM_SEND) {
			core_send_lane_open(&send_comm(c)->core, i, c->lane[i].generation,
					    c->mail_connect.recv_wrs);
		} else {
			core_recv_lane_open(&recv_comm(c)->core, i, c->lane[i].generation,
					    CORE_RQ_WRS);
		}
	}
	if (c->kind == COMM_RECV) {
		for (int i = 0; i < c->port_count; i++) {
			recv_comm(c)->has_flush |= c->port[i].flush_qp != NULL;
		}
	}
	return 1;
}

void comm_begin(struct comm *c)
{
	recover_attach(c);
	flight_attach(c);
	__atomic_store_n(&c->attached, true, __ATOMIC_RELEASE);
	recover_wake();
	signals_wake();
}

/* --- the end ------------------------------------------------------------------------------ */

static void destroy_said(const struct comm_port *p, const char *call, int rc)
{
	if (rc != 0) {
		log_warn("%s: %s failed, what it was for stays open: %s", p->port->name, call,
			 strerror(-rc));
	}
}

static void port_destroy(struct comm_port *p)
{
	if (p->flush_qp != NULL) {
		destroy_said(p, "ibv_destroy_qp", verbs.destroy_qp(p->flush_qp));
	}
	if (p->cq != NULL) {
		destroy_said(p, "ibv_destroy_cq", verbs.destroy_cq(p->cq));
	}
	if (p->ring_mr != NULL) {
		destroy_said(p, "ibv_dereg_mr", verbs.dereg_mr(p->ring_mr));
	}
	if (p->pd != NULL) {
		port_pd_put(p->port);
	}
}

void comm_destroy(struct comm *c)
{
	table_remove(c);
	/* First, so that what fails at the other end from now on is not news there. */
	if (c->peer != NULL && c->peer_id != 0) {
		(void)peer_send(c->peer, WIRE_CLOSE, c->peer_id, NULL, 0);
	}
	while (jobs_done(c) == 0) {
		struct timespec pause = { .tv_nsec = 100000 };

		nanosleep(&pause, NULL);
	}
	recover_end(c);
	flight_detach(c);
	for (int i = 0; i < c->lanes_made; i++) {
		if (c->lane[i].qp != NULL) {
			destroy_said(&c->port[c->lane[i].port], "ibv_destroy_qp",
				     verbs.destroy_qp(c->lane[i].qp));
		}
	}
	if (c->kind == COMM_SEND) {
		core_send_fini(&send_comm(c)->core);
	}
	for (int i = 0; i < c->dev->port_count + c->dev->standby; i++) {
		port_destroy(&c->port[i]);
	}
	if (c->peer != NULL) {
		peer_watch(c->peer, false);
		peer_put(c->peer);
	}
	munmap(c, comm_bytes((enum comm_kind)c->kind));
}
