/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * net_proxy.h - a TCP proxy in a thread, which can cut and stall what it carries.
 *
 * Made before fork (proxy_make), so that all processes know its address; started by one of them
 * with the address behind it (proxy_start). Its faults are atomic words that a test changes.
 */
#ifndef RAILYARD_NET_PROXY_H
#define RAILYARD_NET_PROXY_H

#include <fcntl.h>

#include "net_world.h"

enum { PROXY_LINKS = 64, PROXY_TURN_MS = 2 };

struct proxy_half {
	int from, to;
	uint8_t buf[4096];
	size_t have, done;
	bool ended, closed; /* no more comes; the other end has been told */
};

struct proxy_link {
	bool used, is_stalled;
	struct proxy_half half[2];
	uint64_t budget; /* bytes until it is cut */
};

struct proxy {
	int fd;
	struct wire_addr addr, behind;
	pthread_t thread;
	struct proxy_link link[PROXY_LINKS];
	uint64_t seed;

	/* atomic */
	uint32_t stop;
	uint32_t stalled;    /* carries nothing, loses nothing: as a network that is down */
	uint32_t drops;      /* what connects now is closed at once */
	uint32_t stalls_new; /* the connections that are there stall for good; new ones work */
	uint32_t cut_bytes;  /* 0, or each connection is cut after up to so many */
	uint32_t cuts, links;
};

static inline uint32_t proxy_word(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void proxy_set(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline uint64_t proxy_draw(struct proxy *p)
{
	p->seed = hash_u64(p->seed);
	return p->seed;
}

static inline void proxy_close(struct proxy_link *l, bool resets)
{
	struct linger reset = {.l_onoff = 1};

	for (unsigned i = 0; i < 2; i++) {
		if (resets) {
			setsockopt(l->half[i].from, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		}
		close(l->half[i].from);
	}
	l->used = false;
}

/* As links end: by a reset at both ends, by an end of both streams, or by silence. */
static inline void proxy_cut(struct proxy *p, struct proxy_link *l)
{
	unsigned how = proxy_draw(p) % 32;

	if (how == 0) {
		l->is_stalled = true;
	} else {
		proxy_close(l, how % 2);
	}
	__atomic_add_fetch(&p->cuts, 1, __ATOMIC_RELAXED);
}

static inline void proxy_accept(struct proxy *p)
{
	int a = accept(p->fd, NULL, NULL), b = socket(AF_INET, SOCK_STREAM, 0);
	struct proxy_link *l = p->link;
	struct sockaddr_storage to;
	socklen_t bytes = addr_to_sockaddr(&p->behind, &to);

	while (l < p->link + PROXY_LINKS && l->used) {
		l++;
	}
	if (a < 0 || l == p->link + PROXY_LINKS || proxy_word(&p->drops) ||
	    connect(b, (struct sockaddr *)&to, bytes)) {
		close(a);
		close(b);
		return;
	}
	fcntl(a, F_SETFL, O_NONBLOCK);
	fcntl(b, F_SETFL, O_NONBLOCK);
	memset(l, 0, sizeof(*l));
	l->used = true;
	l->half[0].from = l->half[1].to = a;
	l->half[0].to = l->half[1].from = b;
	l->budget = proxy_word(&p->cut_bytes) ? 1 + proxy_draw(p) % proxy_word(&p->cut_bytes)
					      : UINT64_MAX;
	__atomic_add_fetch(&p->links, 1, __ATOMIC_RELAXED);
}

/* false = the link is broken */
static inline bool proxy_half_carry(struct proxy_half *h, uint64_t *budget)
{
	size_t room = sizeof(h->buf) < *budget ? sizeof(h->buf) : (size_t)*budget;
	ssize_t n;

	if (h->have == h->done && !h->ended) {
		n = recv(h->from, h->buf, room, MSG_DONTWAIT);
		if (n < 0 && errno != EAGAIN) {
			return false;
		}
		h->ended = n == 0;
		h->have = n > 0 ? (size_t)n : 0;
		h->done = 0;
		*budget -= h->have;
	}
	if (h->done < h->have) {
		n = send(h->to, h->buf + h->done, h->have - h->done, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno != EAGAIN) {
			return false;
		}
		h->done += n > 0 ? (size_t)n : 0;
	}
	if (h->ended && h->done == h->have && !h->closed) {
		shutdown(h->to, SHUT_WR);
		h->closed = true;
	}
	return true;
}

static inline void proxy_carry(struct proxy *p, struct proxy_link *l)
{
	if (proxy_word(&p->cut_bytes) == 0) {
		l->budget = UINT64_MAX;
	}
	for (unsigned i = 0; i < 2; i++) {
		if (!proxy_half_carry(&l->half[i], &l->budget)) {
			proxy_close(l, true);
			return;
		}
		if (l->budget == 0) {
			proxy_cut(p, l);
			return;
		}
	}
	if (l->half[0].closed && l->half[1].closed) {
		proxy_close(l, false);
	}
}

static inline void proxy_wait(struct proxy *p)
{
	struct pollfd poll_fd[1 + 2 * PROXY_LINKS];
	nfds_t count = 0;

	poll_fd[count++] = (struct pollfd){.fd = p->fd, .events = POLLIN};
	for (unsigned i = 0; i < 2 * PROXY_LINKS; i++) {
		struct proxy_link *l = &p->link[i / 2];
		struct proxy_half *h = &l->half[i % 2];

		if (l->used && !l->is_stalled && !h->ended) {
			poll_fd[count++] = (struct pollfd){.fd = h->from, .events = POLLIN};
		}
	}
	poll(poll_fd, proxy_word(&p->stalled) ? 0 : count, PROXY_TURN_MS);
	if (!proxy_word(&p->stalled) && poll_fd[0].revents) {
		proxy_accept(p);
	}
}

static inline void *proxy_main(void *arg)
{
	struct proxy *p = arg;

	while (!proxy_word(&p->stop)) {
		bool stalls = __atomic_exchange_n(&p->stalls_new, 0, __ATOMIC_RELAXED);

		proxy_wait(p);
		for (struct proxy_link *l = p->link; l < p->link + PROXY_LINKS; l++) {
			l->is_stalled |= l->used && stalls;
			if (l->used && !l->is_stalled && !proxy_word(&p->stalled)) {
				proxy_carry(p, l);
			}
		}
	}
	for (struct proxy_link *l = p->link; l < p->link + PROXY_LINKS; l++) {
		if (l->used) {
			proxy_close(l, true);
		}
	}
	return NULL;
}

static inline void proxy_make(struct proxy *p, uint64_t seed)
{
	memset(p, 0, sizeof(*p));
	p->seed = seed;
	p->fd = raw_listen(&p->addr);
}

static inline void proxy_start(struct proxy *p, const struct wire_addr *behind)
{
	p->behind = *behind;
	if (pthread_create(&p->thread, NULL, proxy_main, p)) {
		abort();
	}
}

static inline void proxy_stop(struct proxy *p)
{
	proxy_set(&p->stop, 1);
	pthread_join(p->thread, NULL);
	close(p->fd);
}

/* This process tells the proxy's address as its i-th, before it has a peer. */
static inline void proxy_announce(const struct proxy *p, unsigned i)
{
	pthread_mutex_lock(&ctl.lock);
	ctl.listener[i].addr = p->addr;
	pthread_mutex_unlock(&ctl.lock);
}

/*
 * role_echo behind proxies: this process tells their addresses as its own. Its stream says its
 * handle, then its real address.
 */
static inline int proxy_role_echo(int fd, const struct proxy *const *told, unsigned count)
{
	struct wire_handle h;
	struct wire_addr real;

	rec.echo = true;
	memset(&h, 0, sizeof(h));
	if (control_start(&recorder)) {
		return 2;
	}
	real = ctl.listener[0].addr;
	for (unsigned i = 0; i < count; i++) {
		proxy_announce(told[i], i);
	}
	if (control_listen(&h) || !pipe_put(fd, &h, sizeof(h)) ||
	    !pipe_put(fd, &real, sizeof(real))) {
		return 3;
	}
	return role_stay(fd);
}

/* What it says. */
static inline bool proxy_take_echo(const struct other *o, struct wire_handle *h,
				   struct wire_addr *real)
{
	return pipe_take(o->fd, h, sizeof(*h)) && pipe_take(o->fd, real, sizeof(*real));
}

#endif
