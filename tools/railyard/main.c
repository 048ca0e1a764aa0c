/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * main.c - the `railyard` command: a table of sub-commands and nothing else.
 */
#include <stdio.h>
#include <string.h>

#include "cmd.h"

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *text;
};

static const struct command commands[] = {
	{"load", cmd_load, "load the kernel programs and make the rail map (root)"},
	{"unload", cmd_unload, "remove both (root)"},
	{"status", cmd_status, "what is loaded, what is missing, and why"},
	{"drain", cmd_drain, "take a port out of use, gracefully (root)"},
	{"undrain", cmd_drain, "and into use again (root)"},
	{"rails", cmd_rails, "show the rail map"},
	{"dump", cmd_dump, "show what a process with the plugin waits for, and its lanes"},
	{"replay", cmd_replay, "make the calls of a flight log again"},
	{"bench", cmd_bench, "drive an ncclNet plugin, without NCCL or a GPU"},
	{"env", cmd_env, "the plugin's environment variables, and what is in force"},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static int usage(FILE *to, int status)
{
	fprintf(to, "usage: railyard COMMAND [ARGUMENTS]\n");
	for (size_t i = 0; i < COMMAND_COUNT; i++) {
		fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].text);
	}
	fprintf(to, "railyard COMMAND --help tells more.\n");
	return status;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		return usage(stderr, 2);
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		return usage(stdout, 0);
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("railyard %s\n", RAILYARD_VERSION);
		return 0;
	}
	for (size_t i = 0; i < COMMAND_COUNT; i++) {
		if (strcmp(argv[1], commands[i].name) == 0) {
			return commands[i].run(argc - 1, argv + 1);
		}
	}
	fprintf(stderr, "railyard: no command '%s'\n", argv[1]);
	return usage(stderr, 2);
}
