/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_main.c - `railyard bench` as a program of its own, so that its tests need no other part of
 * the command (and no BPF).
 */
#include "bench.h"

int main(int argc, char **argv)
{
	return cmd_bench(argc, argv);
}
