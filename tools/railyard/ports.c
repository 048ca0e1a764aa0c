/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * ports.c - find RDMA ports, their netdevs and PCI functions. See ports.h.
 *
 * The netdev of a port comes from its GID table, never from DEV/device: that folder lists all
 * netdevs of the PCI function, and a bond's port belongs to the bond.
 */
#define _GNU_SOURCE /* versionsort */
#include "ports.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "railmap.h"

#define SYS_IB	      "/sys/class/infiniband"
#define SYS_NET	      "/sys/class/net"
#define GID_INDEX_MAX 256

/* First line of a file under sysfs, without its newline. False if unreadable or empty. */
static bool read_line(char *out, size_t bytes, const char *path)
{
	FILE *f = fopen(path, "re");
	bool ok;

	if (!f) {
		return false;
	}
	ok = fgets(out, (int)bytes, f) != NULL;
	fclose(f);
	if (ok) {
		out[strcspn(out, "\n")] = '\0';
	}
	return ok && out[0];
}

static long read_number(const char *path)
{
	char line[32];

	return read_line(line, sizeof(line), path) ? strtol(line, NULL, 0) : -1;
}

/* Names longer than a field are cut; readers compare as many bytes. */
static void set_name(char to[RAILMAP_NAME_BYTES], const char *name)
{
	memset(to, 0, RAILMAP_NAME_BYTES);
	memcpy(to, name, strnlen(name, RAILMAP_NAME_BYTES - 1));
}

/* A function of a PCI function, as a subfunction is: the PCI function is its owner's identity. */
static bool is_auxiliary(const char *path)
{
	char link[PATH_MAX];
	char target[PATH_MAX];

	snprintf(link, sizeof(link), "%.3000s/subsystem", path);
	return realpath(link, target) && strcmp(target, "/sys/bus/auxiliary") == 0;
}

/* The nearest PCI ancestor of the device that `link` (in sysfs) points to. */
static void set_pci(struct railmap_publish *row, const char *link)
{
	char path[PATH_MAX];
	char *name;

	if (!realpath(link, path)) {
		return;
	}
	while (!is_auxiliary(path) && (name = strrchr(path, '/')) != NULL) {
		*name++ = '\0';
		if (railmap_parse_pci(name, &row->pci_domain, &row->pci_bus, &row->pci_devfn)) {
			set_name(row->pci, name);
			row->flags |= RAILMAP_ROW_PCI;
			return;
		}
	}
}

static void set_link(struct railmap_publish *row)
{
	struct timespec now;
	struct ifreq req;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	row->link = RAILMAP_LINK_UNKNOWN;
	if (fd < 0) {
		return;
	}
	memset(&req, 0, sizeof(req));
	memcpy(req.ifr_name, row->ifname, sizeof(row->ifname));
	clock_gettime(CLOCK_MONOTONIC, &now); /* before the look: what happens after it is newer */
	if (ioctl(fd, SIOCGIFFLAGS, &req) == 0) {
		row->link = (req.ifr_flags & IFF_UP) && (req.ifr_flags & IFF_RUNNING)
				    ? RAILMAP_LINK_UP
				    : RAILMAP_LINK_DOWN;
	}
	row->value = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	close(fd);
}

/* sysfs shows the namespace it was mounted in, which need not be ours. */
static bool sysfs_is_ours(const char *ifname, unsigned int ifindex)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), SYS_NET "/%s/ifindex", ifname);
	return read_number(path) == (long)ifindex;
}

static int set_netdev(struct railmap_publish *row, const char *ifname)
{
	unsigned int ifindex = if_nametoindex(ifname);
	char path[PATH_MAX];
	struct stat ns;
	long dev_port;

	if (!ifindex) {
		return -ENODEV;
	}
	set_name(row->ifname, ifname);
	row->ifindex = ifindex;
	row->netns = stat("/proc/self/ns/net", &ns) ? 0 : (uint32_t)ns.st_ino;
	set_link(row);
	if (sysfs_is_ours(ifname, ifindex)) {
		snprintf(path, sizeof(path), SYS_NET "/%s", ifname);
		set_pci(row, path);
		snprintf(path, sizeof(path), SYS_NET "/%s/dev_port", ifname);
		dev_port = read_number(path);
		row->dev_port = dev_port > 0 ? (uint16_t)dev_port : 0;
	}
	return 0;
}

static bool gid_netdev(const char *port_dir, char *ifname, size_t bytes)
{
	char path[PATH_MAX];

	for (int i = 0; i < GID_INDEX_MAX; i++) {
		snprintf(path, sizeof(path), "%.256s/gid_attrs/ndevs/%d", port_dir, i);
		if (read_line(ifname, bytes, path)) {
			return true;
		}
		if (access(path, F_OK)) {
			return false; /* end of the table */
		}
	}
	return false;
}

/* rdma_rxe: a device of no bus that is a channel adapter (siw, the other such driver, is an RNIC).
 */
static bool is_soft_roce(const char *dev_dir)
{
	char path[PATH_MAX];
	char target[PATH_MAX];

	if (!realpath(dev_dir, target) || !strstr(target, "/virtual/")) {
		return false;
	}
	snprintf(path, sizeof(path), "%.128s/node_type", dev_dir);
	return read_number(path) == 1;
}

static struct railmap_publish *list_next(struct port_list *list)
{
	if (list->count == RAILMAP_ROWS) {
		list->dropped++;
		return NULL;
	}
	memset(&list->rows[list->count], 0, sizeof(list->rows[0]));
	return &list->rows[list->count];
}

static void add_port(struct port_list *list, const char *ibdev, unsigned int port)
{
	char dev_dir[PATH_MAX];
	char path[PATH_MAX];
	char ifname[IFNAMSIZ + 1];
	struct railmap_publish *row = list_next(list);

	if (!row) {
		return;
	}
	snprintf(dev_dir, sizeof(dev_dir), SYS_IB "/%.64s", ibdev);
	set_name(row->name, ibdev);
	row->ib_port = (uint8_t)port;
	row->dev_port = (uint16_t)(port - 1);
	row->flags = RAILMAP_ROW_RDMA;
	if (is_soft_roce(dev_dir)) {
		row->flags |= RAILMAP_ROW_SOFT;
	}
	snprintf(path, sizeof(path), "%.128s/ports/%u", dev_dir, port);
	if (gid_netdev(path, ifname, sizeof(ifname))) {
		set_netdev(row, ifname);
	}
	if (!(row->flags & RAILMAP_ROW_PCI)) {
		snprintf(path, sizeof(path), "%.128s/device", dev_dir);
		set_pci(row, path);
		row->flags |= row->flags & RAILMAP_ROW_PCI ? RAILMAP_ROW_PORT : 0;
	}
	/* A row needs an identity: without a netdev of ours or a PCI function it has none. */
	list->count += row->ifindex || (row->flags & RAILMAP_ROW_PCI);
}

static void add_device(struct port_list *list, const char *ibdev)
{
	char path[PATH_MAX];

	for (unsigned int port = 1; port < 255; port++) {
		snprintf(path, sizeof(path), SYS_IB "/%.64s/ports/%u", ibdev, port);
		if (access(path, F_OK)) {
			return;
		}
		add_port(list, ibdev, port);
	}
}

static int not_hidden(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

int ports_scan(struct port_list *list)
{
	struct dirent **entries;
	int count = scandir(SYS_IB, &entries, not_hidden, versionsort);

	list->count = 0;
	list->dropped = 0;
	if (count < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	for (int i = 0; i < count; i++) {
		add_device(list, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	return 0;
}

int ports_add_netdev(struct port_list *list, const char *ifname)
{
	unsigned int ifindex = if_nametoindex(ifname);
	struct railmap_publish *row;

	if (!ifindex) {
		return -ENODEV;
	}
	for (unsigned int i = 0; i < list->count; i++) {
		if (list->rows[i].ifindex == ifindex) {
			return 0;
		}
	}
	row = list_next(list);
	if (!row) {
		return -ENOSPC;
	}
	/* No RDMA port has it: whatever RoCE it carries is done in software. */
	row->flags = RAILMAP_ROW_SOFT;
	list->count++;
	return set_netdev(row, ifname);
}

void ports_look_again(struct port_list *list)
{
	for (unsigned int i = 0; i < list->count; i++) {
		if (list->rows[i].ifindex) {
			set_link(&list->rows[i]);
		}
	}
}

bool ports_any_soft(const struct port_list *list)
{
	for (unsigned int i = 0; i < list->count; i++) {
		if (list->rows[i].flags & RAILMAP_ROW_SOFT) {
			return true;
		}
	}
	return false;
}
