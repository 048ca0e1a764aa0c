/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * worker_fake.h - workers that start no thread, so that a test can count them and let one fail.
 * For a program with one source file that includes it and does not link thread.c.
 */
#ifndef RAILYARD_WORKER_FAKE_H
#define RAILYARD_WORKER_FAKE_H

#include <errno.h>
#include <string.h>

#include "thread.h"

static struct {
	int running;
	int starts;
	int fail_at; /* this start fails, counted from 1; 0 = none */
} workers;

int worker_start(struct worker *w, const char *name)
{
	if (++workers.starts == workers.fail_at)
		return -EAGAIN;
	strcpy(w->name, name); /* a longer name than the field is a fault that sanitizers see */
	w->started = true;
	workers.running++;
	return 0;
}

void worker_stop(struct worker *w)
{
	if (w->started)
		workers.running--;
	w->started = false;
}

#endif
