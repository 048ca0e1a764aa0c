"""One device per connection, as NCCL does on hosts with a NIC per GPU: its rail is cut, traffic goes on over
a borrowed port, and comes back home when the rail does.
"""

import failures

HOME = 0
# Probes and announcements of the borrowed port, in a second.
FEW = 50


def others(job):
	packets = job.packets()
	return sum(packets) - packets[HOME]


def quiet(job):
	"""Borrowed ports carry no pieces any more."""
	before = others(job)
	job.share(1)
	return others(job) - before < FEW


def cut(job, rig, host):
	with job.step("cut at " + host):
		before = others(job)
		rig.link(host, HOME, up=False)
		job.failed(HOME)
		job.works()
		job.until(lambda: others(job) > before + failures.MANY,
			  lambda: "no other port carries the traffic: %s" % job.packets())
		rig.link(host, HOME, up=True)
		job.used(HOME)
		job.until(lambda: quiet(job), "the borrowed port is not given back")


def run(rig):
	with failures.Job(rig, args="--dev rxe%d" % HOME) as job:
		cut(job, rig, "a")
		cut(job, rig, "b")
	return job.figures
