/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * marks.c - the counters behind marks.h.
 */
#include "marks.h"

uint64_t marks[MARK_COUNT];

#define MARK_NAME(name, text) #name,
#define MARK_TEXT(name, text) text,

static const char *const names[] = {MARKS(MARK_NAME)};
static const char *const texts[] = {MARKS(MARK_TEXT)};

const char *mark_name(enum mark m)
{
	return names[m];
}

const char *mark_text(enum mark m)
{
	return texts[m];
}
