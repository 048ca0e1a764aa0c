/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * device_hca.c - the parser of NCCL_IB_HCA and the match of one port against it.
 *
 * Invariant: a filter that does not parse filters nothing; half a list is never applied.
 * Must not look at any device: it is told names and numbers.
 */
#include "device_hca.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

/* Takes ":number" off *s if it is there. */
static int number_take(const char **s, int max, int *out)
{
	char *end;
	long value;

	*out = -1;
	if (**s != ':')
		return 0;
	errno = 0;
	value = strtol(*s + 1, &end, 10);
	if (end == *s + 1 || errno || value < -1 || value > max)
		return -EINVAL;
	*out = (int)value;
	*s = end;
	return 0;
}

/* One entry, up to a ',' or the end. On success *s stands there. */
static int entry_take(const char **s, struct hca_entry *entry)
{
	size_t len = strcspn(*s, ":,");

	if (len == 0 || len >= sizeof(entry->name))
		return -EINVAL;
	memcpy(entry->name, *s, len);
	entry->name[len] = '\0';
	*s += len;
	if (number_take(s, UINT8_MAX, &entry->port) || number_take(s, HCA_RAIL_MAX, &entry->rail) ||
	    number_take(s, HCA_PLANE_MAX, &entry->plane))
		return -EINVAL;
	return **s == '\0' || **s == ',' ? 0 : -EINVAL;
}

static int planes_count(const struct hca_filter *filter)
{
	int planes = 0;

	for (int i = 0; i < filter->count; i++) {
		bool is_new = filter->entry[i].plane >= 0;

		for (int j = 0; j < i && is_new; j++)
			is_new = filter->entry[j].plane != filter->entry[i].plane;
		planes += is_new;
	}
	return planes;
}

static int list_take(const char *s, struct hca_filter *filter, char *why, size_t why_bytes)
{
	while (*s) {
		const char *start = s;

		if (*s == ',') { /* an empty entry is none */
			s++;
			continue;
		}
		if (filter->count == HCA_ENTRIES_MAX) {
			snprintf(why, why_bytes, "more than %d entries", HCA_ENTRIES_MAX);
			return -EINVAL;
		}
		if (entry_take(&s, &filter->entry[filter->count])) {
			snprintf(why, why_bytes, "bad entry '%.*s'", (int)strcspn(start, ","),
				 start);
			return -EINVAL;
		}
		filter->count++;
	}
	if (planes_count(filter) > PLANES_MAX) {
		snprintf(why, why_bytes, "more than %d different planes", PLANES_MAX);
		return -EINVAL;
	}
	return 0;
}

int hca_parse(const char *text, struct hca_filter *filter, char *why, size_t why_bytes)
{
	const char *s = text ? text : "";
	int rc;

	memset(filter, 0, sizeof(*filter));
	if (*s == '^') {
		filter->exclude = true;
		s++;
	}
	if (*s == '=') {
		filter->exact = true;
		s++;
	}
	rc = list_take(s, filter, why, why_bytes);
	if (rc)
		memset(filter, 0, sizeof(*filter));
	return rc;
}

static bool entry_matches(const struct hca_filter *filter, const struct hca_entry *entry,
			  const char *ibdev, int port)
{
	bool name = filter->exact ? strcmp(ibdev, entry->name) == 0
				  : strncmp(ibdev, entry->name, strlen(entry->name)) == 0;

	return name && (entry->port == -1 || entry->port == port);
}

struct hca_match hca_match(const struct hca_filter *filter, const char *ibdev, int port,
			   int ports_of_device)
{
	struct hca_match match = {.used = true, .rail = -1, .plane = -1};
	const struct hca_entry *hit = NULL;

	if (filter->count == 0)
		return match;
	for (int i = 0; i < filter->count && !hit; i++) {
		if (entry_matches(filter, &filter->entry[i], ibdev, port))
			hit = &filter->entry[i];
	}
	match.used = (hit != NULL) != filter->exclude;
	if (hit && !filter->exclude) {
		match.rail = hit->rail;
		match.plane = hit->plane;
		match.named = filter->exact && (hit->port == port || ports_of_device == 1);
	}
	return match;
}
