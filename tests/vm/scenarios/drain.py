"""An operator drains a port under load: it comes to rest, the job goes on without an error, and with
`undrain` the port has its share again.

The figure idle_ms is from the command's start until the last piece left on that port: a busy guest needs
some 100 ms to start it.
"""

import bench
import failures
import figures

RAIL = 1
SHARE_PCT = 17
# Of 10 ms: less are acknowledgements and announcements.
PIECES_BYTES = 8000
# Generous: a busy guest is slow to hear. The aim is 200 ms.
IDLE_MS = 5000


def rest_ms(samples, at_ms):
	"""From a moment to the end of the last interval in which a rail sent pieces."""
	busy = [t1 for (_, a), (t1, b) in zip(samples, samples[1:])
		if t1 > at_ms and b[RAIL] - a[RAIL] > PIECES_BYTES]
	return max(busy, default=at_ms) - at_ms


def drain(job, rig):
	sampler = rig.a.popen("exec /usr/bin/python3 -I -S tests/vm/guest-sample 10 " +
			      " ".join("rail%d" % r for r in range(rig.rails)))
	sampler.wait_for("sampling")
	with job.step("drain"):
		asked = rig.a.run("date +%%s%%3N; exec %s drain rail%d" % (bench.railyard(), RAIL)).out
		rig.b.run("%s drain rail%d" % (bench.railyard(), RAIL))
		job.works(6)
		share = job.share()
	sampler.stop()
	assert share[RAIL] < 2, "a drained rail has %s of the packets" % share
	idle = rest_ms(figures.read(sampler.out), float(asked.split()[0]))
	assert idle < IDLE_MS, "the drained rail sent for %d ms more" % idle
	return round(idle)


def run(rig):
	with bench.rail_map(rig), failures.Job(rig) as job:
		job.figures["idle_ms"] = drain(job, rig)
		with job.step("undrain"):
			rig.both("%s undrain rail%d" % (bench.railyard(), RAIL))
			job.until(lambda: job.share()[RAIL] >= SHARE_PCT,
				  lambda: "shares stay at %s" % job.share())
		# A busy machine may take a late guest for a dead lane; this would be the drain's.
		assert not job.count("failed: (a work request|the local port)"), "a drain is no failure"
	return job.figures
