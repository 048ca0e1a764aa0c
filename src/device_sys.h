/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device_sys.h - what sysfs says of RDMA devices. Reads only; what is absent is an answer, not an
 * error, since soft devices and containers show less.
 */
#ifndef RAILYARD_DEVICE_SYS_H
#define RAILYARD_DEVICE_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* device_sys_root - for tests: look below `root` instead of /sys; NULL returns to /sys. Borrowed.
 */
void device_sys_root(const char *root);

/*
 * device_sys_pci - the PCI function that an RDMA device is, or is a child of: its real path with
 * the function digit (and, if merge_vfs, the device digits) set to 0, so that the functions of one
 * card are one; and its own address as a number that sorts.
 * Returns the path (the caller frees it) and *address, or NULL and UINT64_MAX.
 */
char *device_sys_pci(const char *ibdev, bool merge_vfs, uint64_t *address);

/*
 * device_sys_netdev - the netdev of a RoCE port's GID; if that GID has none, of any other, or the
 * parent of a soft device. Returns false and "" if there is none or it is not visible here.
 */
bool device_sys_netdev(const char *ibdev, uint8_t port, int gid_index, char *name, size_t bytes);

/* device_sys_peermem - a module that lets verbs register GPU memory by address is loaded. */
bool device_sys_peermem(void);

#endif
