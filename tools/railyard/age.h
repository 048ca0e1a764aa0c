/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * age.h - how long ago something was, for what the commands print.
 */
#ifndef RAILYARD_AGE_H
#define RAILYARD_AGE_H

#include <stdint.h>

/* In seconds, of times in ns of one clock; 0 for what never was or is yet to come. */
static inline double age_s(uint64_t now_ns, uint64_t then_ns)
{
	return then_ns && now_ns > then_ns ? (double)(now_ns - then_ns) / 1e9 : 0;
}

#endif
