/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * run.h - runs with a guard around the core's asserts, and the shrinking of a failing run.
 */
#ifndef SIM_RUN_H
#define SIM_RUN_H

#include "world.h"

enum {
	RUN_RECORD_MAX = 1 << 22
};

/* run_guarded - world_run(); an assert or a fault in the core is a breach of rule "assert". */
void run_guarded(struct world *w, struct choice *choice, enum world_scope scope, FILE *trace);

void run_seed(struct world *w, uint64_t seed, FILE *trace);

/*
 * run_report - print what a failing seed broke, and a shortened run that breaks the same rule: its
 * last events. Returns without a shortened run if the failure does not come back.
 */
void run_report(struct world *w, uint64_t seed, FILE *out);

#endif
