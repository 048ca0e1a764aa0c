/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * connect.c - listen, connect and accept as stages that never wait.
 *
 *   sender                                    receiver
 *   PEER    control connection to the handle's process
 *   SETUP   queue pairs (worker)
 *           CONNECT ───────────────────────►  WAIT    (queue of the listen)
 *                                             ADDRESS our ports (worker), paired with the peer's
 *                                             SETUP   queue pairs (worker)
 *                                             ATTACH  RTR, RTS, receive WRs (worker)
 *   ANSWER  ◄─────────────────────── ACCEPT
 *   ATTACH  RTR, RTS (worker)
 *           READY ─────────────────────────►  READY   accept returns the comm
 *   connect returns the comm
 *
 * NCCL calls again with the same handle buffer until it gets a comm; an attempt is found by that
 * buffer's address and the secret in it. Nothing of a handle is trusted as a pointer.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "config.h"
#include "log.h"
#include "signals.h"
#include "util.h"

enum connect_stage { CONN_PEER, CONN_SETUP, CONN_ANSWER, CONN_ATTACH };
enum accept_stage { ACC_WAIT, ACC_ADDRESS, ACC_SETUP, ACC_ATTACH, ACC_READY };

struct attempt {
	const void *buffer; /* NCCL's handle: names the attempt, never followed */
	struct wire_handle handle;
	enum connect_stage stage;
	struct comm *comm;
	uint64_t deadline_ns;
	struct attempt *next;
};

struct incoming {
	struct peer *peer;
	struct wire_connect connect;
	struct incoming *next;
};

struct listen_comm {
	struct vdevice *dev;
	struct wire_handle handle;
	struct incoming *head, **tail; /* under lists.lock */
	enum accept_stage stage;       /* of the one being accepted */
	struct comm *comm;
	uint64_t deadline_ns;
	struct listen_comm *next;
};

static struct {
	pthread_mutex_t lock;
	struct attempt *attempts;
	struct listen_comm *listens;
} lists = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint64_t deadline_ns(void)
{
	return now_ns() + (uint64_t)config.connect_timeout_ms * NS_PER_MS;
}

static int choose(int64_t env, int config_value)
{
	if (env >= 0) {
		return (int)env;
	}
	return config_value >= 0 ? config_value : 0;
}

/* --- listen ------------------------------------------------------------------------------- */

int connect_listen(struct vdevice *dev, void *handle, struct listen_comm **out)
{
	struct listen_comm *l = calloc(1, sizeof(*l));

	if (l == NULL) {
		return -ENOMEM;
	}
	int rc = control_listen(&l->handle);

	if (rc != 0) {
		free(l);
		return rc;
	}
	l->dev = dev;
	l->tail = &l->head;
	l->handle.port_count = (uint8_t)dev->port_count;
	wire_handle_encode(&l->handle, handle);
	pthread_mutex_lock(&lists.lock);
	l->next = lists.listens;
	lists.listens = l;
	pthread_mutex_unlock(&lists.lock);
	*out = l;
	return 0;
}

static void refuse(struct peer *peer, uint64_t comm, int code, const char *reason)
{
	struct wire_refuse m = { .code = (uint32_t)code };
	uint8_t body[512];

	strncpy(m.reason, reason, sizeof(m.reason) - 1);
	(void)peer_send(peer, WIRE_REFUSE, comm, body, wire_refuse_encode(&m, body, sizeof(body)));
}

void connect_listen_close(struct listen_comm *l)
{
	control_unlisten(l->handle.listen_id);
	pthread_mutex_lock(&lists.lock);
	for (struct listen_comm **p = &lists.listens; *p != NULL; p = &(*p)->next) {
		if (*p == l) {
			*p = l->next;
			break;
		}
	}
	pthread_mutex_unlock(&lists.lock);
	while (l->head != NULL) {
		struct incoming *in = l->head;

		l->head = in->next;
		refuse(in->peer, in->connect.comm, ECONNREFUSED, "the listen was closed");
		peer_put(in->peer);
		free(in);
	}
	if (l->comm != NULL) {
		comm_destroy(l->comm);
	}
	free(l);
}

/* --- connect ------------------------------------------------------------------------------ */

static struct attempt *attempt_find(const void *buffer, const struct wire_handle *h)
{
	struct attempt *a;

	pthread_mutex_lock(&lists.lock);
	for (a = lists.attempts; a != NULL; a = a->next) {
		if (a->buffer == buffer &&
		    memcmp(a->handle.secret, h->secret, sizeof(h->secret)) == 0) {
			break;
		}
	}
	pthread_mutex_unlock(&lists.lock);
	return a;
}

static void attempt_remove(struct attempt *a)
{
	pthread_mutex_lock(&lists.lock);
	for (struct attempt **p = &lists.attempts; *p != NULL; p = &(*p)->next) {
		if (*p == a) {
			*p = a->next;
			break;
		}
	}
	pthread_mutex_unlock(&lists.lock);
	free(a);
}

static int attempt_make(struct vdevice *dev, const void *buffer, const struct wire_handle *h,
			int traffic_class, struct attempt **out)
{
	struct attempt *a = calloc(1, sizeof(*a));
	struct comm *c;

	if (a == NULL) {
		return -ENOMEM;
	}
	struct peer *peer;
	int rc = comm_create(COMM_SEND, dev, &c);

	if (rc == 0) {
		rc = peer_get(h, &peer);
		if (rc != 0) {
			comm_destroy(c);
		} else {
			comm_peer_set(c, peer);
		}
	}
	if (rc != 0) {
		free(a);
		return rc;
	}
	int ar = port_at(dev->port[0])->link_layer == IBV_LINK_LAYER_INFINIBAND;

	c->adaptive_routing =
		config.ib_adaptive_routing == -2 ? ar : config.ib_adaptive_routing != 0;
	c->traffic_class = (uint8_t)choose(config.ib_tc, traffic_class);
	c->service_level = (uint8_t)choose(config.ib_sl, traffic_class);
	comm_lanes_wish(c, h->port_count);
	a->buffer = buffer;
	a->handle = *h;
	a->comm = c;
	a->stage = CONN_PEER;
	a->deadline_ns = deadline_ns();
	pthread_mutex_lock(&lists.lock);
	a->next = lists.attempts;
	lists.attempts = a;
	pthread_mutex_unlock(&lists.lock);
	*out = a;
	return 0;
}

static int send_half(struct comm *c, uint16_t type, uint64_t target,
		     const uint8_t secret[WIRE_SECRET_BYTES])
{
	struct wire_connect *m = malloc(sizeof(*m));
	uint8_t *body = malloc(WIRE_BODY_MAX);
	int rc = -ENOMEM;

	if (m != NULL && body != NULL) {
		comm_wire(c, m);
		if (secret != NULL) {
			memcpy(m->secret, secret, sizeof(m->secret));
		}
		rc = peer_send(c->peer, type, target, body,
			       wire_connect_encode(m, body, WIRE_BODY_MAX));
	}
	free(m);
	free(body);
	return rc;
}

static int stage_peer(struct attempt *a)
{
	switch (peer_state(a->comm->peer)) {
	case PEER_DIALING:
		return 0;
	case PEER_FAILED:
		log_warn("connect: no control connection to %s: %s", peer_name(a->comm->peer),
			 peer_why(a->comm->peer));
		return -ECONNREFUSED;
	case PEER_UP:
		break;
	}
	a->comm->keys = keys_of(a->comm->peer);
	if (a->comm->keys == NULL) {
		return -ENOMEM;
	}
	comm_setup_start(a->comm);
	a->stage = CONN_SETUP;
	return 1;
}

static int stage_setup(struct attempt *a)
{
	int rc = comm_setup_done(a->comm);

	if (rc != 1) {
		return rc;
	}
	rc = send_half(a->comm, WIRE_CONNECT, a->handle.listen_id, a->handle.secret);
	if (rc != 0) {
		return rc;
	}
	a->stage = CONN_ANSWER;
	return 1;
}

static int stage_answer(struct attempt *a)
{
	struct comm *c = a->comm;
	const char *why = "bad answer";

	if (__atomic_load_n(&c->mail_refused, __ATOMIC_ACQUIRE)) {
		log_warn("connect: %s refused: %s", peer_name(c->peer), c->mail_reason);
		return -ECONNREFUSED;
	}
	if (!__atomic_load_n(&c->mail_answer, __ATOMIC_ACQUIRE)) {
		return 0;
	}
	int rc = comm_wire_take(c, &c->mail_connect, &why);

	if (rc != 0) {
		log_warn("connect: %s: %s", peer_name(c->peer), why);
		return rc;
	}
	comm_attach_start(c);
	a->stage = CONN_ATTACH;
	return 1;
}

static int stage_attach(struct attempt *a, struct comm **out)
{
	int rc = comm_attach_done(a->comm);

	if (rc != 1) {
		return rc;
	}
	rc = peer_send(a->comm->peer, WIRE_READY, a->comm->peer_id, NULL, 0);
	if (rc == 0) {
		comm_begin(a->comm);
		*out = a->comm;
		attempt_remove(a);
	}
	return rc;
}

/* One stage: 1 = go on with the next, 0 = wait (or done, *out set), -errno. */
static int attempt_step(struct attempt *a, struct comm **out)
{
	switch (a->stage) {
	case CONN_PEER:
		return stage_peer(a);
	case CONN_SETUP:
		return stage_setup(a);
	case CONN_ANSWER:
		return stage_answer(a);
	case CONN_ATTACH:
		return stage_attach(a, out);
	}
	return -EINVAL;
}

int connect_connect(struct vdevice *dev, void *handle, int traffic_class, struct comm **out)
{
	struct wire_handle h;
	struct attempt *a;
	char why[192];
	int rc = wire_handle_decode(handle, &h, why, sizeof(why));

	*out = NULL;
	if (rc != 0) {
		log_warn("connect: the peer's handle is not usable: %s. All ranks of a job must "
			 "load the same plugin (NCCL_NET=Railyard makes a rank fail that does not)",
			 why);
		return rc;
	}
	if (h.port_count < 1 || h.port_count > CORE_PORTS_MAX) {
		log_warn("connect: the peer's handle names %u ports", h.port_count);
		return -EPROTO;
	}
	a = attempt_find(handle, &h);
	if (a == NULL) {
		rc = attempt_make(dev, handle, &h, traffic_class, &a);
		if (rc != 0) {
			return rc;
		}
	}
	do {
		rc = comm_error(a->comm) != 0 ? comm_error(a->comm) : attempt_step(a, out);
	} while (rc == 1);
	if (rc == 0 && *out == NULL && now_ns() > a->deadline_ns) {
		log_warn("connect: %s did not answer within %lld ms (RAILYARD_CONNECT_TIMEOUT)",
			 peer_name(a->comm->peer), (long long)config.connect_timeout_ms);
		rc = -ETIMEDOUT;
	}
	if (rc != 0) {
		comm_destroy(a->comm);
		attempt_remove(a);
	}
	return rc;
}

/* --- accept ------------------------------------------------------------------------------- */

static struct incoming *incoming_pop(struct listen_comm *l)
{
	pthread_mutex_lock(&lists.lock);
	struct incoming *in = l->head;

	if (in != NULL) {
		l->head = in->next;
		if (l->head == NULL) {
			l->tail = &l->head;
		}
	}
	pthread_mutex_unlock(&lists.lock);
	return in;
}

/* Make the receiving half for a CONNECT. */
static int incoming_take(struct listen_comm *l, const struct incoming *in, const char **why)
{
	const struct wire_connect *m = &in->connect;
	struct comm *c;
	int rc = comm_create(COMM_RECV, l->dev, &c);

	*why = "out of memory";
	if (rc != 0) {
		return rc;
	}
	l->comm = c;
	c->mail_connect = *m; /* first: a refusal names its comm */
	peer_hold(in->peer);
	comm_peer_set(c, in->peer);
	c->keys = keys_of(c->peer);
	c->traffic_class = m->traffic_class;
	c->service_level = m->service_level;
	c->adaptive_routing = m->adaptive_routing != 0;
	if (c->keys == NULL) {
		return -ENOMEM;
	}
	l->deadline_ns = deadline_ns();
	comm_addresses_start(c);
	return 0;
}

static int accept_wait(struct listen_comm *l)
{
	struct incoming *in = incoming_pop(l);
	const char *why;

	if (in == NULL) {
		return 0;
	}
	int rc = incoming_take(l, in, &why);

	if (rc != 0) {
		log_warn("accept: from %s: %s", peer_name(in->peer), why);
		if (l->comm == NULL) { /* else connect_accept() refuses */
			refuse(in->peer, in->connect.comm, -rc, why);
		}
	} else {
		l->stage = ACC_ADDRESS;
	}
	peer_put(in->peer);
	free(in);
	return rc != 0 ? rc : 1;
}

static int accept_address(struct listen_comm *l)
{
	const char *why = "bad CONNECT";
	int rc = comm_addresses_done(l->comm);

	if (rc != 1) {
		return rc;
	}
	rc = comm_lanes_answer(l->comm, &l->comm->mail_connect, &why);
	if (rc != 0) {
		log_warn("accept: from %s: %s", peer_name(l->comm->peer), why);
		return rc;
	}
	comm_setup_start(l->comm);
	l->stage = ACC_SETUP;
	return 1;
}

static int accept_setup(struct listen_comm *l)
{
	struct comm *c = l->comm;
	const char *why = "bad CONNECT";
	int rc = comm_setup_done(c);

	if (rc != 1) {
		return rc;
	}
	rc = comm_wire_take(c, &c->mail_connect, &why);
	if (rc != 0) {
		log_warn("accept: from %s: %s", peer_name(c->peer), why);
		return rc;
	}
	comm_attach_start(c);
	l->stage = ACC_ATTACH;
	return 1;
}

static int accept_attach(struct listen_comm *l)
{
	int rc = comm_attach_done(l->comm);

	if (rc != 1) {
		return rc;
	}
	rc = send_half(l->comm, WIRE_ACCEPT, l->comm->peer_id, NULL);
	if (rc != 0) {
		return rc;
	}
	comm_begin(l->comm);
	l->stage = ACC_READY;
	return 1;
}

static int accept_ready(struct listen_comm *l, struct comm **out)
{
	if (!__atomic_load_n(&l->comm->mail_ready, __ATOMIC_ACQUIRE)) {
		return 0;
	}
	*out = l->comm;
	l->comm = NULL;
	l->stage = ACC_WAIT;
	return 0;
}

static int accept_step(struct listen_comm *l, struct comm **out)
{
	switch (l->stage) {
	case ACC_WAIT:
		return accept_wait(l);
	case ACC_ADDRESS:
		return accept_address(l);
	case ACC_SETUP:
		return accept_setup(l);
	case ACC_ATTACH:
		return accept_attach(l);
	case ACC_READY:
		return accept_ready(l, out);
	}
	return -EINVAL;
}

int connect_accept(struct listen_comm *l, struct comm **out)
{
	int rc;

	*out = NULL;
	do {
		rc = l->comm != NULL && comm_error(l->comm) != 0 ? comm_error(l->comm)
								 : accept_step(l, out);
	} while (rc == 1);
	if (rc == 0 && l->comm != NULL && now_ns() > l->deadline_ns) {
		log_warn("accept: %s did not finish within %lld ms (RAILYARD_CONNECT_TIMEOUT)",
			 peer_name(l->comm->peer), (long long)config.connect_timeout_ms);
		rc = -ETIMEDOUT;
	}
	if (rc != 0 && l->comm != NULL) {
		refuse(l->comm->peer, l->comm->mail_connect.comm, -rc, strerror(-rc));
		comm_destroy(l->comm);
		l->comm = NULL;
		l->stage = ACC_WAIT;
	}
	return rc;
}

/* --- messages, on the plugin thread ------------------------------------------------------- */

static void take_connect(struct peer *peer, const uint8_t *body, size_t bytes)
{
	struct incoming *in = calloc(1, sizeof(*in));
	struct listen_comm *l = NULL;
	uint64_t id;

	if (in == NULL || wire_connect_decode(body, bytes, &in->connect) != 0) {
		log_warn_limited("%s sent a CONNECT that cannot be read", peer_name(peer));
		free(in);
		return;
	}
	in->peer = peer;
	pthread_mutex_lock(&lists.lock);
	if (control_secret_listen(in->connect.secret, &id) == 0) {
		for (l = lists.listens; l != NULL && l->handle.listen_id != id; l = l->next) {
		}
	}
	if (l != NULL) {
		peer_hold(peer);
		*l->tail = in;
		l->tail = &in->next;
	}
	pthread_mutex_unlock(&lists.lock);
	if (l == NULL) {
		refuse(peer, in->connect.comm, ECONNREFUSED, "no listen with this secret");
		free(in);
	}
}

/* What a message about one comm says. */
struct letter {
	struct peer *peer;
	uint16_t type;
	const uint8_t *body;
	size_t bytes;
};

static void word_store(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* May come before the peer's half has been taken, and then counts from the start. */
static void ports_take(struct comm *c, const struct wire_ports *m)
{
	for (int i = 0; i < m->port_count && i < CORE_PORTS_MAX; i++) {
		word_store(&c->remote[i].down, (m->down[i] & WIRE_PORT_DOWN) != 0);
		word_store(&c->remote[i].drain, (m->down[i] & WIRE_PORT_DRAIN) != 0);
		word_store(&c->remote[i].pressure, m->pressure[i]);
	}
	signal_bump();
	recover_wake();
}

/* The peer has ended it: what fails from now on is not news. */
static void comm_ended(struct comm *c, const char *why)
{
	__atomic_store_n(&c->peer_closed, true, __ATOMIC_RELAXED);
	comm_fail(c, -ECONNRESET, why);
}

static void deliver(struct comm *c, void *arg)
{
	const struct letter *m = arg;
	struct wire_refuse no;
	struct wire_ports ports;

	if (c->peer != m->peer) {
		return; /* a peer may touch only its own comms */
	}
	switch (m->type) {
	case WIRE_ACCEPT:
		if (c->kind == COMM_SEND && !c->mail_answer &&
		    wire_connect_decode(m->body, m->bytes, &c->mail_connect) == 0) {
			__atomic_store_n(&c->mail_answer, true, __ATOMIC_RELEASE);
		}
		break;
	case WIRE_REFUSE:
		if (wire_refuse_decode(m->body, m->bytes, &no) == 0 && !c->mail_refused) {
			memcpy(c->mail_reason, no.reason, sizeof(c->mail_reason));
			__atomic_store_n(&c->mail_refused, true, __ATOMIC_RELEASE);
		}
		break;
	case WIRE_READY:
		__atomic_store_n(&c->mail_ready, true, __ATOMIC_RELEASE);
		break;
	case WIRE_PORTS:
		if (wire_ports_decode(m->body, m->bytes, &ports) == 0) {
			ports_take(c, &ports);
		}
		break;
	case WIRE_LANE:
		recover_take(c, m->body, m->bytes);
		break;
	case WIRE_CLOSE:
		comm_ended(c, "the peer closed it");
		break;
	default:
		break;
	}
}

static void close_of_peer(struct comm *c, void *arg)
{
	if (c->peer == arg) {
		comm_ended(c, "the peer ended");
	}
}

/* Records of receives carry pressure too; the peer is told only of what moved this far. */
enum { PRESSURE_STEP = 32 };

static bool pressure_moved(uint32_t told, uint32_t now)
{
	return told > now ? told - now >= PRESSURE_STEP || now == 0 : now - told >= PRESSURE_STEP;
}

/* Tell the peer of a comm when what it knows of our ports is not the present state. */
static void ports_tell(struct comm *c, void *arg)
{
	struct wire_ports m = { 0 };
	bool *any = arg, news = false;
	uint8_t body[64];

	*any = true;
	if (!__atomic_load_n(&c->attached, __ATOMIC_ACQUIRE)) {
		return;
	}
	m.port_count = (uint8_t)comm_port_total(c);
	for (int i = 0; i < m.port_count; i++) {
		const struct core_port *word = &c->port[i].port->word;

		m.down[i] = (uint8_t)((core_word(&word->down) ? WIRE_PORT_DOWN : 0) |
				      (core_word(&word->drain) ? WIRE_PORT_DRAIN : 0));
		m.pressure[i] = (uint8_t)core_word(&word->pressure);
		news |= m.down[i] != c->told.down[i] ||
			pressure_moved(c->told.pressure[i], m.pressure[i]);
	}
	if (news && peer_send(c->peer, WIRE_PORTS, c->peer_id, body,
			      wire_ports_encode(&m, body, sizeof(body))) == 0) {
		c->told = m;
	}
}

bool connect_ports_tell(void)
{
	static uint32_t epoch; /* at the last look of recovery; plugin thread */
	uint32_t now = __atomic_load_n(&signal_epoch, __ATOMIC_ACQUIRE);
	bool any = false;

	comm_each(ports_tell, &any);
	if (now != epoch) {
		epoch = now;
		recover_wake();
	}
	return any;
}

static void on_message(struct peer *peer, uint16_t type, uint64_t target, const uint8_t *body,
		       size_t bytes)
{
	struct letter letter = { .peer = peer, .type = type, .body = body, .bytes = bytes };
	struct peer_keys *keys;
	struct wire_keys m;

	switch (type) {
	case WIRE_CONNECT:
		take_connect(peer, body, bytes);
		break;
	case WIRE_KEYS:
	case WIRE_KEYS_GONE:
		keys = keys_of(peer);
		if (keys == NULL || wire_keys_decode(body, bytes, &m) != 0) {
			log_warn_limited("%s sent keys that cannot be read", peer_name(peer));
		} else if (type == WIRE_KEYS) {
			keys_take(keys, &m);
		} else {
			keys_gone(keys, m.mr_id);
		}
		break;
	case WIRE_BYE:
		comm_each(close_of_peer, peer);
		break;
	default:
		comm_find(target, deliver, &letter);
		break;
	}
}

struct lost {
	struct peer *peer;
	const char *why;
};

static void lose(struct comm *c, void *arg)
{
	const struct lost *lost = arg;

	if (c->peer == lost->peer) {
		comm_fail(c, -ECONNRESET, lost->why); /* the comm holds the peer, so it stays */
	}
}

static void on_down(struct peer *peer, const char *why)
{
	struct lost lost = { .peer = peer, .why = why };

	comm_each(lose, &lost);
}

const struct control_handler connect_handler = {
	.on_message = on_message,
	.on_down = on_down,
	.on_free = keys_free,
};

void connect_forget(void)
{
	while (lists.attempts != NULL) {
		comm_destroy(lists.attempts->comm);
		attempt_remove(lists.attempts);
	}
	while (lists.listens != NULL) {
		connect_listen_close(lists.listens);
	}
}
