/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * env.c - `railyard env`: the plugin's table of environment variables, with what is in force here.
 *
 * The table is the plugin's own (src/config.c): a value that the plugin would refuse gets the same
 * line here, so a job's environment can be checked before the job runs.
 */
#include <stdio.h>

#include "cmd.h"
#include "config.h"

int cmd_env(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) {
		fprintf(stderr, "usage: railyard env\n"
				"Prints every variable of the plugin: name, type, default, range, "
				"unit, meaning,\nand the value in force where it differs.\n");
		return 2;
	}
	config_load();
	config_print(stdout);
	return 0;
}
