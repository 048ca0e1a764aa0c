/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control_addr.c - which interfaces carry control connections, and addresses in their three forms.
 *
 * NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY mean what they mean to NCCL: a comma list of prefixes,
 * '^' in front excludes, '=' in front takes whole names; without it "ib..." first, then any but
 * docker and lo, then docker, then lo. One address per interface. Unlike NCCL, ::1 is taken where
 * lo is all that was asked for, and link-local addresses are never taken: a handle has no scope.
 */
#define _GNU_SOURCE
#include "control_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "log.h"

struct choice {
	struct wire_addr *addr;
	unsigned count;
	char name[WIRE_ADDRS_MAX][IFNAMSIZ];
};

socklen_t addr_to_sockaddr(const struct wire_addr *a, struct sockaddr_storage *to)
{
	struct sockaddr_in *in4 = (struct sockaddr_in *)to;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)to;

	memset(to, 0, sizeof(*to));
	if (a->family == 4) {
		in4->sin_family = AF_INET;
		in4->sin_port = htons(a->port);
		memcpy(&in4->sin_addr, a->bytes, 4);
		return sizeof(*in4);
	}
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(a->port);
	memcpy(&in6->sin6_addr, a->bytes, 16);
	return sizeof(*in6);
}

void addr_from_sockaddr(const struct sockaddr *from, struct wire_addr *a)
{
	struct sockaddr_in in4;
	struct sockaddr_in6 in6;

	memset(a, 0, sizeof(*a));
	if (from->sa_family == AF_INET) {
		memcpy(&in4, from, sizeof(in4));
		a->family = 4;
		a->port = ntohs(in4.sin_port);
		memcpy(a->bytes, &in4.sin_addr, 4);
	} else if (from->sa_family == AF_INET6) {
		memcpy(&in6, from, sizeof(in6));
		a->family = 6;
		a->port = ntohs(in6.sin6_port);
		memcpy(a->bytes, &in6.sin6_addr, 16);
	}
}

bool addr_is_same_host(const struct wire_addr *a, const struct wire_addr *b)
{
	return a->family == b->family && memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

void addr_text(const struct sockaddr_storage *s, char text[ADDR_TEXT_BYTES])
{
	struct wire_addr a;
	char host[INET6_ADDRSTRLEN] = "?";

	addr_from_sockaddr((const struct sockaddr *)s, &a);
	inet_ntop(a.family == 4 ? AF_INET : AF_INET6, a.bytes, host, sizeof(host));
	snprintf(text, ADDR_TEXT_BYTES, a.family == 4 ? "%s:%u" : "[%s]:%u", host, a.port);
}

/*
 * What every control connection has. The user timeout also covers a peer that is there but takes
 * nothing; it is the outage's, since a control connection may have to wait for its only path.
 */
void socket_tune(int fd)
{
	int on = 1, idle_s = 15, interval_s = 5;
	unsigned timeout_ms = (unsigned)config.outage_timeout_ms;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	if (timeout_ms > 0) {
		setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
	}
}

/* Is `name` matched by an entry of the list, as "[^][=]entry,entry:port,..." means it? */
static bool name_is_chosen(const char *list, const char *name)
{
	bool exclude = *list == '^', exact, found = false;

	list += exclude;
	exact = *list == '=';
	list += exact;
	while (*list && !found) {
		size_t entry = strcspn(list, ",");
		size_t bytes = strcspn(list, ",:");

		found = bytes > 0 && strncmp(list, name, bytes) == 0 &&
			(!exact || name[bytes] == '\0');
		list += entry;
		list += *list == ',';
	}
	return found != exclude;
}

static int family_wanted(void)
{
	const char *family = config.socket_family ? config.socket_family : "";

	if (strcmp(family, "AF_INET") == 0) {
		return AF_INET;
	}
	return strcmp(family, "AF_INET6") == 0 ? AF_INET6 : AF_UNSPEC;
}

static bool addr_is_usable(const struct ifaddrs *i, int family)
{
	struct sockaddr_in6 in6;

	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING)) {
		return false;
	}
	if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) {
		return false;
	}
	if (family != AF_UNSPEC && i->ifa_addr->sa_family != family) {
		return false;
	}
	if (i->ifa_addr->sa_family == AF_INET) {
		return true;
	}
	memcpy(&in6, i->ifa_addr, sizeof(in6));
	return !IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr) &&
	       (!IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) || family == AF_INET6);
}

static void choose(const struct ifaddrs *all, const char *list, int family, struct choice *to)
{
	for (const struct ifaddrs *i = all; i && to->count < WIRE_ADDRS_MAX; i = i->ifa_next) {
		bool known = false;

		if (!addr_is_usable(i, family) || !name_is_chosen(list, i->ifa_name)) {
			continue;
		}
		for (unsigned k = 0; k < to->count; k++) {
			known |= strcmp(to->name[k], i->ifa_name) == 0;
		}
		if (known) {
			continue;
		}
		snprintf(to->name[to->count], IFNAMSIZ, "%s", i->ifa_name);
		addr_from_sockaddr(i->ifa_addr, &to->addr[to->count++]);
	}
}

int addr_find_interfaces(struct wire_addr addr[WIRE_ADDRS_MAX], unsigned *count)
{
	const char *list = config.socket_ifname ? config.socket_ifname : "";
	const char *family = config.socket_family ? config.socket_family : "";
	struct choice to = {.addr = addr};
	struct ifaddrs *all;

	memset(addr, 0, WIRE_ADDRS_MAX * sizeof(*addr));
	if (getifaddrs(&all) != 0) {
		int rc = -errno;

		log_warn("cannot list the network interfaces: %m");
		return rc;
	}
	if (*list) {
		choose(all, list, family_wanted(), &to);
	} else {
		static const char *const turn[] = {"ib", "^docker,lo", "docker", "lo"};

		for (unsigned i = 0; i < 4 && (i < 2 || to.count == 0); i++) {
			choose(all, turn[i], family_wanted(), &to);
		}
	}
	freeifaddrs(all);
	*count = to.count;
	if (to.count == 0) {
		log_warn("no interface that is up for control connections: NCCL_SOCKET_IFNAME=%s "
			 "NCCL_SOCKET_FAMILY=%s (compare with `ip address`)",
			 *list ? list : "(not set)", *family ? family : "(not set)");
		return -ENODEV;
	}
	return 0;
}

int addr_ifindex(int fd)
{
	struct sockaddr_storage own;
	socklen_t bytes = sizeof(own);
	struct wire_addr mine, its;
	struct ifaddrs *all;
	int found = 0;

	memset(&own, 0, sizeof(own));
	if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0 || getifaddrs(&all) != 0) {
		return 0;
	}
	addr_from_sockaddr((struct sockaddr *)&own, &mine);
	for (const struct ifaddrs *i = all; i && found == 0; i = i->ifa_next) {
		if (i->ifa_addr && i->ifa_addr->sa_family == own.ss_family) {
			addr_from_sockaddr(i->ifa_addr, &its);
			bool same = addr_is_same_host(&mine, &its);

			found = same ? (int)if_nametoindex(i->ifa_name) : 0;
		}
	}
	freeifaddrs(all);
	return found;
}
