/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device_sys.c - sysfs as seen by device_sys.h.
 *
 * Must not: keep anything but the root, write, or believe a path's shape without checking it (a
 * soft device has no PCI parent; a virtual one may sit below a PCI function).
 */
#include "device_sys.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util.h"

enum {
	GIDS_TRIED = 16
};

static const char *sys_root = "/sys";

void device_sys_root(const char *root)
{
	sys_root = root ? root : "/sys";
}

/* -1 if it is no digit. */
static int hex_value(char c)
{
	static const char digits[] = "0123456789abcdefABCDEF";
	const char *at = c ? strchr(digits, c) : NULL;

	if (!at)
		return -1;
	return (int)(at - digits) < 16 ? (int)(at - digits) : (int)(at - digits) - 6;
}

/* Shifts a hexadecimal number of min .. max digits, and its end mark, into *address. */
static bool part_take(const char **s, int min, int max, const char *ends, int bits,
		      uint64_t *address)
{
	uint64_t value = 0;
	int digits = 0;

	for (; digits < max && hex_value(**s) >= 0; digits++, (*s)++)
		value = value << 4 | (uint64_t)hex_value(**s);
	if (digits < min || !strchr(ends, **s)) /* the end of the text is a mark too */
		return false;
	if (**s)
		(*s)++;
	*address = *address << bits | value;
	return true;
}

/* Is `s`, up to a '/' or the end, dddd:bb:dd.f? A domain may have up to eight digits. */
static bool address_parse(const char *s, uint64_t *address)
{
	uint64_t found = 0;

	if (!part_take(&s, 4, 8, ":", 32, &found) || !part_take(&s, 2, 2, ":", 8, &found) ||
	    !part_take(&s, 2, 2, ".", 5, &found) || !part_take(&s, 1, 1, "/", 3, &found))
		return false;
	*address = found;
	return true;
}

/* Cuts the path after its last PCI function. */
static bool path_cut(char *path, uint64_t *address)
{
	char *end = NULL;

	for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		if (address_parse(slash + 1, address))
			end = slash + 1 + strcspn(slash + 1, "/");
	}
	if (!end)
		return false;
	*end = '\0';
	return true;
}

char *device_sys_pci(const char *ibdev, bool merge_vfs, uint64_t *address)
{
	char link[PATH_MAX];
	char *path;
	size_t len;

	*address = UINT64_MAX;
	snprintf(link, sizeof(link), "%s/class/infiniband/%s/device", sys_root, ibdev);
	path = realpath(link, NULL);
	if (!path)
		return NULL;
	if (!path_cut(path, address)) {
		*address = UINT64_MAX;
		free(path);
		return NULL;
	}
	len = strlen(path);
	path[len - 1] = '0';
	if (merge_vfs)
		path[len - 3] = path[len - 4] = '0';
	return path;
}

/* One line of a small file, without its newline. */
static bool line_read(const char *path, char *line, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	line[0] = '\0';
	if (fd < 0)
		return false;
	n = read(fd, line, bytes - 1);
	close(fd);
	if (n <= 0)
		return false;
	line[n] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return line[0] != '\0';
}

static bool gid_netdev(const char *ibdev, uint8_t port, int index, char *name, size_t bytes)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%u/gid_attrs/ndevs/%d", sys_root,
		 ibdev, port, index);
	return line_read(path, name, bytes);
}

bool device_sys_netdev(const char *ibdev, uint8_t port, int gid_index, char *name, size_t bytes)
{
	char path[PATH_MAX];

	if (gid_index >= 0 && gid_netdev(ibdev, port, gid_index, name, bytes))
		return true;
	for (int i = 0; i < GIDS_TRIED; i++) {
		if (gid_netdev(ibdev, port, i, name, bytes))
			return true;
	}
	snprintf(path, sizeof(path), "%s/class/infiniband/%s/parent", sys_root, ibdev);
	return line_read(path, name, bytes);
}

bool device_sys_peermem(void)
{
	static const char *const files[] = {"kernel/mm/memory_peers/nv_mem/version",
					    "kernel/mm/memory_peers/nv_mem_nc/version",
					    "module/nvidia_peermem/version"};
	char path[PATH_MAX];

	for (unsigned i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", sys_root, files[i]);
		if (access(path, F_OK) == 0)
			return true;
	}
	return false;
}
