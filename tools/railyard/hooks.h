/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * hooks.h - the hooks of the rail map: their names, what each is good for, and
 * whether this kernel takes them.
 */
#ifndef RAILYARD_HOOKS_H
#define RAILYARD_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include <railyard/railmap.h>

#define HOOK_WHY_BYTES 128

struct hook_info {
	const char *program; /* in the BPF object; NULL: no program of its own */
	const char *name;    /* what it is attached to */
	const char *gives;
	const char *without; /* what is lost if it is missing */
	int tier;
};

/* Indexed by enum railmap_hook. */
extern const struct hook_info hook_infos[RAILMAP_HOOK_COUNT];

enum hook_state {
	HOOK_LIVE = 0,
	HOOK_OFF,     /* not needed on this host */
	HOOK_MISSING, /* this kernel does not take it: see why */
};

struct hook_status {
	enum hook_state state;
	char why[HOOK_WHY_BYTES];
};

/*
 * hooks_probe - load each program alone, so that one refusal does not spoil the rest.
 * @soft: some rail's packets pass the kernel, so tier 1 is wanted
 * Returns 0; -errno if nothing at all can be loaded (one line was printed).
 */
int hooks_probe(bool soft, struct hook_status status[RAILMAP_HOOK_COUNT]);

/* hook_is_off - note that a hook is not wanted, if that is so. */
bool hook_is_off(struct hook_status *status, enum railmap_hook hook, bool soft);

/* hooks_quiet - from now on libbpf prints nothing of its own. */
void hooks_quiet(void);

/* hooks_locked_down - is the kernel in lockdown "confidentiality", which refuses such programs? */
bool hooks_locked_down(void);

/* hook_missing - note that a hook failed with `err` (negative errno), in plain words. */
void hook_missing(struct hook_status *status, enum railmap_hook hook, int err);

/* hook_refused - the same for any program; `kind` names such programs. */
void hook_refused(struct hook_status *status, const char *kind, int err);

/* hook_print - one line: live and what it gives, or why it is not. */
void hook_print(const struct hook_status *status, const char *name, const char *gives);

void hooks_print(const struct hook_status status[RAILMAP_HOOK_COUNT]);

#endif
