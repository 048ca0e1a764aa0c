/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd.h - the sub-commands of `railyard`. Each gets its own argv (argv[0] is its
 * name) and returns an exit status: 0 done, 1 failed, 2 wrong usage.
 */
#ifndef RAILYARD_CMD_H
#define RAILYARD_CMD_H

int cmd_load(int argc, char **argv);
int cmd_unload(int argc, char **argv);
int cmd_rails(int argc, char **argv);
int cmd_drain(int argc, char **argv); /* and "undrain" */
int cmd_status(int argc, char **argv);
int cmd_dump(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_env(int argc, char **argv);

#endif
