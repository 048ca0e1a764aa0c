"""A job under load whose rails are cut, silenced and repaired: what scenarios of failures share.

	with failures.Job(rig) as job:
		with job.step("a's port"):
			rig.link("a", 1, up=False)
			job.failed(1)
			job.works()
			rig.link("a", 1, up=True)
			job.used(1)
	return job.figures

Every wait is for a state, with a bound that holds on a machine many times slower: nothing here judges
time. When something does not come about, the error tells the story: the steps with their times, the
last lines of both benches, and what each rail did.
"""

import contextlib
import os
import re
import signal
import time

import bench
import railyard_vm

PATIENCE_S = 90
# Messages both ways, until SIGINT. The time-out is longer than any wait.
TRAFFIC = ("sendrecv --bidir -b %s -e %s -w 0 --window 4 --duration 86400 --interval 500 --poll sleep"
	   " --timeout 200 --linger %d --log-times")
# Per rail and direction: what an emulated CPU can do beside all else.
MBYTE_S = 2.0
# Packets of a rail that carries pieces; a probe is one or two.
MANY = 150
# The plugin says so at most once a second for each kind of line.
QUIET_S = 1.2


def rail_pattern(rail, event):
	"""A line of an event of a lane whose own end is on the rail."""
	return r"lane \d+ rxe%d:\d+ -> .*: %s" % (rail, event)


def control_rail(text, fallback=0):
	"""The rail of the control connection, by the last that a log says of it."""
	found = re.findall(r"control connection to .*10\.77\.(\d)\.\d+[^\d.].*$", "\n".join(
		re.findall(r".* is up$|.* is there again.*$", text, re.M)), re.M)
	return int(found[-1]) if found else fallback


def lane_is_down(text, rail):
	"""The last that a log says of lanes on the rail is that one failed."""
	said = re.findall(rail_pattern(rail, "(failed|in use again)"), text)
	return bool(said) and said[-1] == "failed"


class Story(AssertionError):
	"""What was wanted, and all that is known."""


class Job:
	"""A bench with traffic both ways."""

	def __init__(self, rig, size="1M", env="", args="", linger=0, rate=MBYTE_S, **kw):
		self.rig = rig
		self.begin = time.monotonic()
		self.steps = []
		self.marks = {}
		self.figures = {}
		self.eyes = bench.Look(rig)
		if rate:
			rig.shape(mbyte_s=rate)
		self.run = bench.Run(rig, TRAFFIC % (size, size, linger) + " " + args, env=env, **kw)

	def __enter__(self):
		try:
			self.works()
		except BaseException:
			self.run.kill()
			raise
		self.figures["start_s"] = round(time.monotonic() - self.begin, 1)
		self.mark()
		return self

	def __exit__(self, kind, error, _):
		try:
			self.end(kind, error)
		finally:
			self.eyes.close()
			self.keep_logs()

	def keep_logs(self):
		"""Of passed jobs too: build/vm/rigs/NAME/out/bench-N.HOST.log, until the pair ends."""
		for host in railyard_vm.HOSTS:
			name = self.run.json.replace(".json", ".%s.log" % host)
			with open(os.path.join(self.rig.out_dir, name), "w") as f:
				f.write("\n".join(self.steps) + "\n" + self.text(host))

	def end(self, kind, error):
		if kind is None:
			self.finish()
			return
		story = self.story() if isinstance(error, Exception) else ""
		self.run.kill()
		if story and not isinstance(error, Story):
			raise Story("%s%s" % (error, story)) from error

	@contextlib.contextmanager
	def step(self, name):
		"""Names what happens, for the story; its seconds are a figure. The plugin may speak again."""
		time.sleep(QUIET_S)
		begin = time.monotonic()
		self.steps.append("%6.1f s, %.1f: %s" % (begin - self.begin, time.time(), name))
		self.mark()
		yield
		self.figures[name.replace(" ", "_") + "_s"] = round(time.monotonic() - begin, 1)

	# --- what holds ---------------------------------------------------------------------------

	def until(self, holds, complaint, seconds=PATIENCE_S):
		end = time.monotonic() + seconds
		while not holds():
			self.alive()
			if time.monotonic() > end:
				text = complaint() if callable(complaint) else complaint
				raise Story("%s, within %g s%s" % (text, seconds, self.story()))
			time.sleep(0.3)

	def alive(self):
		for host, process in self.run.processes.items():
			if process.poll() is not None:
				raise Story("the bench on %s ended with status %d%s" % (
					host, process.poll(), self.story()))

	def received(self, host):
		"""Half seconds in which the host received something, so far."""
		return len(re.findall(r"^interval +rank \d+ .* (?!0\.000 )[\d.]+ MB/s", self.text(host), re.M))

	def works(self, halves=3):
		"""Both ends receive, in so many further intervals."""
		before = {h: self.received(h) for h in railyard_vm.HOSTS}
		self.until(lambda: all(self.received(h) >= before[h] + halves for h in before),
			   lambda: "traffic does not go on (half seconds: %s, before: %s)" % (
				   {h: self.received(h) for h in before}, before))

	def text(self, host):
		process = self.run.processes[host]
		return process.out + process.err

	def count(self, pattern):
		"""Lines of both ends."""
		return sum(len(re.findall(pattern, self.text(h))) for h in railyard_vm.HOSTS)

	def failed(self, rail):
		"""A lane on the rail has failed, at either end: in this step, or it had before and still is down,
		as on a machine so busy that the plugin takes a late guest for a dead one.
		"""
		pattern = rail_pattern(rail, "failed")
		self.until(lambda: self.count(pattern) > self.marks.get(pattern, 0) or any(
			lane_is_down(self.text(h), rail) for h in railyard_vm.HOSTS),
			   "no lane of rail %d failed" % rail)

	def fenced(self, rail):
		"""The same of the fence."""
		pattern = rail_pattern(rail, "fenced")
		self.until(lambda: self.count(pattern) > self.marks.get(pattern, 0),
			   "no lane of rail %d was fenced" % rail)

	def mark(self):
		"""What has been said up to now is of an earlier step."""
		self.marks = {p: self.count(p) for r in range(self.rig.rails)
			      for p in (rail_pattern(r, "failed"), rail_pattern(r, "fenced"))}

	def packets(self):
		return self.eyes.sent()

	def used(self, rail):
		"""The rail carries pieces, from now on."""
		before = self.packets()[rail]
		self.until(lambda: self.packets()[rail] > before + MANY,
			   lambda: "rail %d is not used again: %d packets" % (
				   rail, self.packets()[rail] - before))

	def share(self, seconds=3):
		"""Per cent of all packets that each rail sends now."""
		before = self.packets()
		time.sleep(seconds)
		grown = bench.grown(before, self.packets())
		return [100 * n / max(1, sum(grown)) for n in grown]

	# --- how it ends --------------------------------------------------------------------------

	def finish(self):
		"""End it in order; all must be right."""
		begin = time.monotonic()
		self.run.processes["a"].kill(signal.SIGINT)
		result = self.run.finish(PATIENCE_S)
		self.figures["end_s"] = round(time.monotonic() - begin, 1)
		try:
			bench.right(result)
		except AssertionError as error:
			raise Story("%s%s" % (error, self.story())) from error

	def story(self, lines=25):
		said = "".join("\n--- %s: status %s ---\n%s" % (
			h, p.poll(), "\n".join(self.notable(h)[-lines:])) for h, p in self.run.processes.items())
		return "\n--- steps ---\n%s%s\n--- rails ---\n%s" % ("\n".join(self.steps), said, self.rails())

	def notable(self, host):
		"""Lines of the plugin and of trouble, and the last intervals."""
		lines = self.text(host).splitlines()
		return [line for line in lines if not line.startswith("interval")] + [
			line for line in lines if line.startswith("interval")][-4:]

	def rails(self):
		rows = []
		for host in railyard_vm.HOSTS:
			try:
				guest = self.rig.guest(host)
				rows.append("%s: %s, bytes sent %s" % (host, guest.rdma_states(),
								       bench.counters(self.rig, host)))
			except railyard_vm.RigError as error:
				rows.append("%s: %s" % (host, str(error).splitlines()[0]))
		return "\n".join(rows)


@contextlib.contextmanager
def ending(rig, **kw):
	"""A job that will end by an error."""
	job = Job(rig, **kw)
	try:
		job.works()
		yield job
	except Exception as error:
		raise error if isinstance(error, Story) else Story("%s%s" % (error, job.story())) from error
	finally:
		job.eyes.close()
		job.run.kill()
