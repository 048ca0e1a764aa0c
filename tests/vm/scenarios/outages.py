"""All rails down for 10 s and back: the job goes on. One process stopped for 5 s: nothing fails, it goes on.

With --full: 30 s and 20 s.
"""

import signal
import time

import failures

# Longer than a guest of a busy machine may be late, and shorter than a process is stopped here: only what
# the plugin makes of the stop is judged.
PATIENT = "RAILYARD_STALL_MS=2000"


def all_down(job, rig, seconds):
	with job.step("all rails down"):
		for rail in range(rig.rails):
			rig.link("a", rail, up=False)
		time.sleep(seconds)
		job.alive()
		for rail in range(rig.rails):
			rig.link("a", rail, up=True)
		job.works()
		for rail in range(rig.rails):
			job.used(rail)


def stopped(job, seconds):
	before = job.count("failed: ")
	with job.step("process stopped"):
		job.run.processes["b"].kill(signal.SIGSTOP)
		time.sleep(seconds)
		job.run.processes["b"].kill(signal.SIGCONT)
		job.works()
		said = job.count("failed: ") - before
		assert said == 0, "%d lanes failed while a process was stopped" % said


def run(rig):
	with failures.Job(rig, env=PATIENT) as job:
		all_down(job, rig, 30 if rig.full else 10)
		stopped(job, 20 if rig.full else 5)
	return job.figures
