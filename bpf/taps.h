/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * taps.h - what the driver taps and the process that holds them tell each other.
 *
 * Private to the two (the maps are not pinned), so no layout to keep.
 */
#ifndef RAILYARD_BPF_TAPS_H
#define RAILYARD_BPF_TAPS_H

#include <railyard/railmap.h>
#include <stdint.h>

#define TAP_NAMES_MAX  128
#define TAP_NAME_BYTES 40

struct tap_port {
	char ibdev[RAILMAP_NAME_BYTES];
	uint32_t port;
};

struct tap_table {
	uint32_t count;	 /* of the driver's counters; the table is for just that many */
	uint32_t valid;	 /* bits: enum railmap_hw */
	uint32_t wrap32; /* bits: enum railmap_hw; only valid ones */
	uint32_t at[RAILMAP_HW_COUNT]; /* index of the driver's value */
};

struct tap_names {
	uint32_t count; /* 0 = none noted */
	char name[TAP_NAMES_MAX][TAP_NAME_BYTES];
};

#endif
