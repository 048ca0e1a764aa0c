"""What ends a job: a peer that is killed, and rails that stay down beyond RAILYARD_OUTAGE_TIMEOUT. Both ends
get a remote error from the plugin, neither hangs, and one line says why.
"""

import signal
import time

import failures

LINGER_S = 60
REMOTE_ERROR = r"railyard bench: rank \d: .* returned \d+ \(remote error\)"


def ends(job, host):
	"""The host's bench ends by the plugin's remote error, well before it would by the bench's own means."""
	process = job.run.processes[host]
	process.wait_for(REMOTE_ERROR, LINGER_S - 10)


def killed(rig):
	"""Returns the seconds until the other end had an error."""
	with failures.ending(rig, linger=LINGER_S) as job:
		begin = time.monotonic()
		job.run.processes["b"].kill(signal.SIGKILL)
		ends(job, "a")
		return round(time.monotonic() - begin, 1)


def timed_out(rig):
	with failures.ending(rig, linger=LINGER_S, env="RAILYARD_OUTAGE_TIMEOUT=3") as job:
		begin = time.monotonic()
		for rail in range(rig.rails):
			rig.link("b", rail, up=False)
		for host in "ab":
			ends(job, host)
		return round(time.monotonic() - begin, 1)


def run(rig):
	return {"killed_s": killed(rig), "timed_out_s": timed_out(rig)}
