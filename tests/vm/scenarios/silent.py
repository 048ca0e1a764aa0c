"""Silent loss by a relay between the NICs: of all, of data one way, of acknowledgements one way. Then ghosts:
packets that are held while their lane dies, and released after the fence and once more after the lane
is back. No byte is wrong, nothing is late.
"""

import failures
import relay


def lose(job, hole, rail, name, *losses):
	"""losses: (host that loses, what)."""
	with job.step(name):
		for to, what in losses:
			hole.rule(rail, to, what, "drop")
		job.failed(rail)
		job.works()
		hole.clear(rail)
		job.used(rail)


def ghosts(job, hole, rail):
	with job.step("ghosts"):
		for to in "ab":
			hole.rule(rail, to, "roce", "hold")
		job.failed(rail)
		job.fenced(rail)
		job.works()
		hole.release(rail)
		job.works()
		hole.clear(rail)
		job.used(rail)
		hole.release(rail)
		job.works()
		job.used(rail)
	kept = [counts["kept"] for (r, _), counts in hole.stats().items() if r == rail]
	assert min(kept) > 0, "nothing was held: %s" % kept
	job.figures["held"] = sum(kept)


def run(rig):
	with relay.Relay(rig) as hole, failures.Job(rig) as job:
		lose(job, hole, 1, "both ways", ("a", "all"), ("b", "all"))
		lose(job, hole, 2, "data", ("b", "data"))
		lose(job, hole, 3, "acks", ("a", "acks"))
		ghosts(job, hole, 1)
	return job.figures
