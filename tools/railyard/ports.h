/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * ports.h - which ports of this host get a row of the rail map.
 *
 * Reads sysfs and netdev ioctls of the caller's network namespace; changes nothing.
 */
#ifndef RAILYARD_PORTS_H
#define RAILYARD_PORTS_H

#include <stdbool.h>

#include <railyard/railmap.h>

struct port_list {
	struct railmap_publish rows[RAILMAP_ROWS]; /* op and index not set */
	unsigned int count;
	unsigned int dropped; /* ports beyond RAILMAP_ROWS */
};

/*
 * ports_scan - every RDMA port, with its netdev.
 * Returns 0, also if there is none; -errno.
 */
int ports_scan(struct port_list *list);

/* ports_add_netdev - a netdev named by the user. A netdev that an RDMA port of the list has already
 * is not added again. Returns 0; -ENODEV if there is no such netdev; -ENOSPC. */
int ports_add_netdev(struct port_list *list, const char *ifname);

/* ports_look_again - refresh what is known of the links. */
void ports_look_again(struct port_list *list);

bool ports_any_soft(const struct port_list *list);

#endif
