/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * signals.c - evidence about the local ports, turned into their words.
 *
 * Per port two stamps: when something last said "down" and when something last said "up" (rail
 * map, rtnetlink, async events). The newer one wins. While comms exist a timer reads the map every
 * RAILYARD_SIGNAL_POLL_MS; without comms nothing wakes the thread but events.
 */
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config.h"
#include "control.h"
#include "device.h"
#include "log.h"
#include "railmap.h"
#include "thread.h"
#include "util.h"
#include "verbs.h"

enum { MAP_RETRY_NS = 1000000000, ROWS_RETRY_NS = 1000000000, NETLINK_BYTES = 16384 };

uint32_t signal_epoch;

static const char said_by_map[] = "rail map";

struct port_evidence {
	uint64_t down_ns, up_ns;
	const char *said_by;  /* source of the newer stamp */
	int row;              /* in the rail map; -1 = not found */
	bool reported_down;   /* what the log last said */
	struct pressure pressure;
};

struct device_watch {
	struct watch watch;
	struct ibv_context *ctx;
};

static struct {
	struct railmap map;
	bool has_map;
	uint64_t map_retry_ns, rows_retry_ns;
	struct watch netlink;
	struct timer timer;
	bool (*on_read)(void);
	int device_count;
	struct device_watch device[PORTS_MAX];
	struct port_evidence port[PORTS_MAX];
} signals = { .netlink = { .fd = -1 } };

/* --- evidence ----------------------------------------------------------------------------- */

static void port_said(int i, bool up, uint64_t at_ns, const char *by)
{
	struct port_evidence *e = &signals.port[i];
	uint64_t *stamp = up ? &e->up_ns : &e->down_ns;

	if (at_ns > *stamp) {
		*stamp = at_ns;
		if (at_ns >= e->up_ns && at_ns >= e->down_ns) {
			e->said_by = by;
		}
	}
}

static void word_set(uint32_t *word, uint32_t value)
{
	if (*word != value) {
		__atomic_store_n(word, value, __ATOMIC_RELAXED);
		signal_bump();
	}
}

/*
 * The rail map may be stale or another's: a link that it calls down is given up (its lanes fenced)
 * only if the kernel says so here. Unknown is no.
 */
static bool carrier_is_off(struct port *port)
{
	char path[96], value = '1';

	pthread_mutex_lock(&port->lock);
	snprintf(path, sizeof(path), "/sys/class/net/%s/carrier", port->netdev);
	pthread_mutex_unlock(&port->lock);

	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		return false;
	}
	/* An interface that is administratively down has no carrier to read. */
	bool off = read(fd, &value, 1) != 1 ? errno == EINVAL : value == '0';

	close(fd);
	return off;
}

static bool is_confirmed(int i)
{
	return signals.port[i].said_by != said_by_map || carrier_is_off(port_at(i));
}

/* The newer stamp decides; on a tie the link is taken for up. */
static void port_judge(int i)
{
	struct port_evidence *e = &signals.port[i];
	struct port *port = port_at(i);
	bool down = e->down_ns > e->up_ns;

	word_set(&port->word.down, down);
	if (!down || core_word(&port->word.dead) == 0) {
		word_set(&port->word.dead, down && is_confirmed(i));
	}
	if (down != e->reported_down) {
		e->reported_down = down;
		log_info("%s: link %s (%s)", port->name,
			 down ? "down, no new pieces" : "up, in use again", e->said_by);
	}
}

/* --- rail map ----------------------------------------------------------------------------- */

static void rows_find(void)
{
	for (int i = 0; i < port_count(); i++) {
		struct railmap_who who = { .ibdev = port_at(i)->ibdev, .ib_port = port_at(i)->num };

		signals.port[i].row = railmap_find(&signals.map, &who);
	}
}

static bool map_open(char *why, size_t why_bytes)
{
	const char *dir = config.bpffs != NULL && config.bpffs[0] != '\0' ? config.bpffs : NULL;

	if (railmap_open(&signals.map, dir, now_ns(), why, why_bytes) != 0) {
		return false;
	}
	rows_find();
	return true;
}

static void map_check(uint64_t now)
{
	char why[RAILMAP_WHY_BYTES];

	if (signals.has_map) {
		if (railmap_alive(&signals.map, now)) {
			return;
		}
		railmap_close(&signals.map);
		signals.has_map = false;
		log_info("the rail map has stopped: going on with rtnetlink and async events");
		for (int i = 0; i < port_count(); i++) {
			word_set(&port_at(i)->word.pressure, 0);
			word_set(&port_at(i)->word.drain, 0);
		}
	}
	if (now >= signals.map_retry_ns) {
		signals.map_retry_ns = now + MAP_RETRY_NS;
		signals.has_map = map_open(why, sizeof(why));
		if (signals.has_map) {
			log_info("the rail map is here: reading it");
		}
	}
}

static void map_read(int i, uint64_t now)
{
	struct port_evidence *e = &signals.port[i];
	struct railmap_view view;

	if (e->row < 0 && now >= signals.rows_retry_ns) { /* the port came after the map */
		signals.rows_retry_ns = now + ROWS_RETRY_NS;
		rows_find();
	}
	if (e->row < 0) {
		return;
	}
	int rc = railmap_read(&signals.map, (uint32_t)e->row, &view);

	if (rc == -ENOENT) {
		rows_find();
	}
	if (rc != 0) {
		return;
	}
	if (view.link == RAILMAP_STATE_DOWN || view.link == RAILMAP_STATE_UP) {
		port_said(i, view.link == RAILMAP_STATE_UP, view.link_change_ns, said_by_map);
	}
	word_set(&port_at(i)->word.pressure, pressure_update(&e->pressure, &view, now));
	word_set(&port_at(i)->word.drain, view.drained);
}

/* --- rtnetlink ---------------------------------------------------------------------------- */

static void netlink_link(const struct ifinfomsg *info)
{
	bool up = (info->ifi_flags & IFF_UP) != 0 && (info->ifi_flags & IFF_RUNNING) != 0;

	for (int i = 0; i < port_count(); i++) {
		if (__atomic_load_n(&port_at(i)->ifindex, __ATOMIC_ACQUIRE) == info->ifi_index) {
			port_said(i, up, now_ns(), "rtnetlink");
		}
	}
	if (!up) {
		control_link_down(info->ifi_index);
	}
}

static uint64_t signals_tick(struct timer *t, uint64_t now);

static void netlink_read(struct watch *w, uint32_t events)
{
	char buffer[NETLINK_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
	ssize_t n;

	(void)events;
	while ((n = recv(w->fd, buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
		size_t left = (size_t)n;

		for (struct nlmsghdr *h = (struct nlmsghdr *)(void *)buffer; NLMSG_OK(h, left);
		     h = NLMSG_NEXT(h, left)) {
			if (h->nlmsg_type == RTM_NEWLINK &&
			    h->nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifinfomsg))) {
				netlink_link(NLMSG_DATA(h));
			}
		}
	}
	(void)signals_tick(&signals.timer, now_ns());
}

static int netlink_open(void)
{
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);

	if (fd < 0) {
		return -errno;
	}
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
		int rc = -errno;

		close(fd);
		return rc;
	}
	signals.netlink.fd = fd;
	signals.netlink.fn = netlink_read;
	return watch_add(&signals.netlink, EPOLLIN);
}

/* --- async events ------------------------------------------------------------------------- */

static void async_port(struct ibv_context *ctx, int num, bool up, const char *name)
{
	for (int i = 0; i < port_count(); i++) {
		struct port *port = port_at(i);

		if (port->ctx == ctx && (num == 0 || port->num == num)) {
			port_said(i, up, now_ns(), name);
		}
	}
}

static void async_read(struct watch *w, uint32_t events)
{
	struct device_watch *d = CONTAINER_OF(w, struct device_watch, watch);
	struct ibv_async_event event;

	(void)events;
	while (verbs.get_async_event(d->ctx, &event) == 0) {
		enum ibv_event_type type = event.event_type;
		int num = event.element.port_num;

		verbs.ack_async_event(&event); /* first: ibv_destroy_qp waits for it */
		switch (type) {
		case IBV_EVENT_PORT_ERR:
			async_port(d->ctx, num, false, "IBV_EVENT_PORT_ERR");
			break;
		case IBV_EVENT_PORT_ACTIVE:
			async_port(d->ctx, num, true, "IBV_EVENT_PORT_ACTIVE");
			break;
		case IBV_EVENT_DEVICE_FATAL:
			async_port(d->ctx, 0, false, "IBV_EVENT_DEVICE_FATAL");
			break;
		default:
			log_info("%s: async event %s", d->ctx->device->name,
				 verbs.event_name(type));
			break;
		}
	}
	(void)signals_tick(&signals.timer, now_ns());
}

static int devices_watch(void)
{
	for (int i = 0; i < port_count(); i++) {
		struct ibv_context *ctx = port_at(i)->ctx;
		struct device_watch *d = &signals.device[signals.device_count];
		bool known = false;

		for (int k = 0; k < signals.device_count; k++) {
			known |= signals.device[k].ctx == ctx;
		}
		if (known || ctx->async_fd < 0) {
			continue;
		}
		if (fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK) < 0) {
			return -errno;
		}
		d->ctx = ctx;
		d->watch.fd = ctx->async_fd;
		d->watch.fn = async_read;
		int rc = watch_add(&d->watch, EPOLLIN);

		if (rc != 0) {
			return rc;
		}
		signals.device_count++;
	}
	return 0;
}

static uint64_t signals_tick(struct timer *t, uint64_t now)
{
	(void)t;
	map_check(now);
	for (int i = 0; i < port_count(); i++) {
		if (signals.has_map) {
			map_read(i, now);
		}
		port_judge(i);
	}
	return signals.on_read() ? now + (uint64_t)config.signal_poll_ms * NS_PER_MS : UINT64_MAX;
}

void signals_wake(void)
{
	timer_set(&signals.timer, now_ns());
}

/* --- start and stop ----------------------------------------------------------------------- */

static void say_sources(const char *why)
{
	if (!signals.has_map) {
		log_info("signals: rtnetlink, async events, completions; no rail map: %s", why);
		return;
	}
	log_info("signals: rail map (link loss by %s%s), rtnetlink, async events, completions",
		 railmap_has_hook(&signals.map, RAILMAP_HOOK_CARRIER_OFF) ? "carrier hook" :
									    "qdisc reset",
		 railmap_has_hook(&signals.map, RAILMAP_HOOK_RX_PACKET) ? ", packet counts" : "");
}

int signals_start(bool (*on_read)(void))
{
	char why[RAILMAP_WHY_BYTES] = "";

	signals.device_count = 0;
	signals.on_read = on_read;
	for (int i = 0; i < port_count(); i++) {
		memset(&signals.port[i], 0, sizeof(signals.port[i]));
		signals.port[i].row = -1;
		signals.port[i].said_by = "start";
		signals.port[i].reported_down = port_at(i)->word.down != 0;
		/* A port that was found down stays so until something newer says otherwise. */
		signals.port[i].down_ns = port_at(i)->word.down != 0;
	}
	signals.has_map = map_open(why, sizeof(why));
	say_sources(why);
	signals.map_retry_ns = now_ns() + MAP_RETRY_NS;
	signals.timer.fn = signals_tick;
	int rc = netlink_open();

	if (rc == 0) {
		rc = devices_watch();
	}
	if (rc != 0) {
		log_warn("cannot watch the ports: %s", strerror(-rc));
		signals_stop();
		return rc;
	}
	return 0;
}

void signals_stop(void)
{
	timer_del(&signals.timer);
	for (int k = 0; k < signals.device_count; k++) {
		watch_del(&signals.device[k].watch);
	}
	signals.device_count = 0;
	if (signals.netlink.fd >= 0) {
		watch_del(&signals.netlink);
		close(signals.netlink.fd);
		signals.netlink.fd = -1;
	}
	if (signals.has_map) {
		railmap_close(&signals.map);
		signals.has_map = false;
	}
}
