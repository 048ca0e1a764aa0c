/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pairs.c - pairing the ports of two ends by subnet, else by index.
 */
#include "pairs.h"

#include <stdbool.h>
#include <string.h>

enum { IPV4_OFFSET = 12, IPV4_PREFIX_BYTES = 3, IPV6_PREFIX_BYTES = 8 };

static bool is_ipv4(const uint8_t gid[16])
{
	static const uint8_t mapped[IPV4_OFFSET] = { [10] = 0xff, [11] = 0xff };

	return memcmp(gid, mapped, sizeof(mapped)) == 0;
}

/*
 * IPv4: the first 24 bits, as NCCL_IB_SUBNET_PREFIX_LEN has it; IPv6 and InfiniBand: the first 64.
 */
static bool same_subnet(const struct wire_port *a, const struct wire_port *b)
{
	if (a->link_layer != b->link_layer || is_ipv4(a->gid) != is_ipv4(b->gid)) {
		return false;
	}
	if (is_ipv4(a->gid)) {
		return memcmp(a->gid + IPV4_OFFSET, b->gid + IPV4_OFFSET, IPV4_PREFIX_BYTES) == 0;
	}
	return memcmp(a->gid, b->gid, IPV6_PREFIX_BYTES) == 0;
}

static bool is_taken(const struct pair *pairs, int count, int theirs, int ours)
{
	for (int i = 0; i < count; i++) {
		if (pairs[i].theirs == theirs && pairs[i].ours == ours) {
			return true;
		}
	}
	return false;
}

/*
 * A port of ours in the subnet of theirs, the one of the same index first; -1 if there is none
 * left.
 */
static int neighbour(const struct wire_port *their, int theirs, const struct wire_port *ours,
		     int our_count, int wish, const struct pair *taken, int taken_count)
{
	for (int i = 0; i < our_count; i++) {
		int k = (wish + i) % our_count;

		if (same_subnet(their, &ours[k]) && !is_taken(taken, taken_count, theirs, k)) {
			return k;
		}
	}
	return -1;
}

int pairs_choose(const struct wire_port *theirs, int their_count, const struct wire_port *ours,
		 int our_count, struct pair out[CORE_PORTS_MAX])
{
	int paths = their_count > our_count ? their_count : our_count;
	int narrow = their_count < our_count ? their_count : our_count;
	int n = 0;

	for (int p = 0; p < paths; p++) {
		int t = p % their_count;
		int o = neighbour(&theirs[t], t, ours, our_count, p % our_count, out, n);

		if (o >= 0) {
			out[n++] = (struct pair){ (uint8_t)p, (uint8_t)t, (uint8_t)o };
		}
	}
	if (n >= narrow) {
		return n;
	}
	n = 0;
	for (int p = 0; p < paths; p++) {
		int t = p % their_count, o = p % our_count;

		if (theirs[t].link_layer == ours[o].link_layer) {
			out[n++] = (struct pair){ (uint8_t)p, (uint8_t)t, (uint8_t)o };
		}
	}
	return n;
}
