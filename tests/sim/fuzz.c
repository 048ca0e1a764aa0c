/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz.c - the simulator with a fuzzer's bytes as choices (libFuzzer).
 */
#include <stdlib.h>

#include "run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct world w;
	struct choice choice;

	choice_bytes(&choice, data, size);
	world_run(&w, &choice, SCOPE_RANDOM, NULL);
	if (w.check.rule != NULL) {
		fprintf(stderr, "breaks rule %s: %s\n", w.check.rule, w.check.what);
		abort();
	}
	return 0;
}
