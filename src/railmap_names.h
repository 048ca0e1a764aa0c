/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * railmap_names.h - which driver's counter is which field of the rail map's hw part.
 *
 * The names are those of the drivers' rdma_stat_desc, as RDMA netlink and sysfs hw_counters/ show
 * them. No name means different things in two drivers, so the driver need not be known.
 */
#ifndef RAILYARD_RAILMAP_NAMES_H
#define RAILYARD_RAILMAP_NAMES_H

#include <stdbool.h>

/*
 * railmap_field - the field for a counter's name. Pure; any thread.
 * @wrap32: set if the driver's counter has 32 bits: see railmap_extend32
 * Returns an enum railmap_hw; -ENOENT if the map has no field for it.
 */
int railmap_field(const char *name, bool *wrap32);

#endif
