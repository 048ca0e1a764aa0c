// SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only
/*
 * railyard.bpf.c - the programs that keep the rail map live.
 *
 * Invariant: only these programs write the map; user space asks the publish
 * program. Hooks update existing rows and never make one, so an event of an
 * unknown netdev costs a hash lookup and nothing else. Every program is
 * optional: the loader tries each alone, and none depends on another.
 *
 * Not here: rates, thresholds, decisions. The map holds raw facts.
 */
#include "beat.h"
#include "link.h"
#include "packets.h"
#include "publish.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
