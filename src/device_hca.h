/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device_hca.h - NCCL_IB_HCA: which ports to use, and of which rail and plane they are.
 *
 *	[^][=]name[:port[:rail[:plane]]][,...]
 *
 * '^': all but these. '=': names are whole names, else prefixes. A port left out or -1 is any; a
 * rail or plane left out or -1 is unknown. Pure: text in, answers out.
 */
#ifndef RAILYARD_DEVICE_HCA_H
#define RAILYARD_DEVICE_HCA_H

#include <stdbool.h>
#include <stddef.h>

enum {
	HCA_ENTRIES_MAX = 32,
	HCA_NAME_BYTES = 64,
	HCA_RAIL_MAX = 0x7fff,
	HCA_PLANE_MAX = 0x3fff
};

struct hca_entry {
	char name[HCA_NAME_BYTES];
	int port, rail, plane; /* -1: any, unknown, unknown */
};

struct hca_filter {
	bool exclude, exact;
	int count; /* 0: every port is used */
	struct hca_entry entry[HCA_ENTRIES_MAX];
};

struct hca_match {
	bool used;
	bool named; /* with '=', by name and (on a device of several ports) port */
	int rail, plane;
};

/*
 * hca_parse - read a list; "" or NULL is the filter that lets all through. Returns 0; -EINVAL with
 * what is wrong and where in `why`, and then *filter lets all through.
 */
int hca_parse(const char *text, struct hca_filter *filter, char *why, size_t why_bytes);

struct hca_match hca_match(const struct hca_filter *filter, const char *ibdev, int port,
			   int ports_of_device);

#endif
