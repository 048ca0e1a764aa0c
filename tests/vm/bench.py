"""`railyard bench` between the two guests: start it, wait for it, read what it says.

	result = bench.run(rig, "sendrecv -b 1M -e 1M -n 20")
	bench.right(result)
	print(result.rows, result.shares("a"))

Rank 0 is on host a, rank 1 on b. They meet, and the plugin's control connections go, over the control
NIC. The programs are those of one build folder: see build().
"""

import contextlib
import itertools
import json
import os
import re
import time

import railyard_vm

RAILYARD = "tools/railyard/railyard"
PLUGIN = "src/libnccl-net-railyard.so"
# The bench's own test plugin: TCP, another handle.
OTHER_PLUGIN = "tests/bench/libnccl-net-tcp.so"
MEET = "10.78.0.1:7700"
# Packets of a rail in a second that are no data.
RECORDS_AGAIN = 20
# An acknowledgement time-out of 1 s: a short one makes rxe itself deliver wrong bytes (README, Traps).
ENV = "NCCL_SOCKET_IFNAME=ctl NCCL_IB_TIMEOUT=18"

serial = itertools.count()


def build():
	"""The build folder: RAILYARD_BUILD (`run-all --build`), or the newest that has all programs."""
	given = os.environ.get("RAILYARD_BUILD")
	root = os.path.join(railyard_vm.REPO, "build")
	found = [given] if given else [os.path.join(root, p) for p in ("dev", "ci", "release")]
	found = [d for d in found if all(os.path.exists(os.path.join(d, f)) for f in (RAILYARD, PLUGIN))]
	if not found:
		raise railyard_vm.RigError("no railyard command and plugin in %s: cmake --workflow "
					   "--preset dev" % (given or "build/dev, ci or release"))
	return os.path.realpath(max(found, key=lambda d: os.path.getmtime(os.path.join(d, PLUGIN))))


def railyard():
	"""The railyard command, as the guests see it."""
	return os.path.join(build(), RAILYARD)


def counters(rig, host, name="tx_bytes"):
	"""A netdev counter of each rail."""
	shown = rig.guest(host).run("cat /sys/class/net/rail[0-9]/statistics/" + name).out
	return [int(n) for n in shown.split()]


def sent(rig):
	"""RoCE packets that each rail has sent, of both ends."""
	both = [rig.guest(h).run("cat /sys/class/infiniband/rxe[0-9]/ports/1/hw_counters/sent_pkts").out
		for h in railyard_vm.HOSTS]
	return [int(a) + int(b) for a, b in zip(*(text.split() for text in both))]


class Look:
	"""The guests' clocks and counters by a program that runs there already."""

	def __init__(self, rig):
		self.processes = {h: rig.guest(h).popen("exec /usr/bin/python3 -I -S tests/vm/guest-look")
				  for h in railyard_vm.HOSTS}
		for process in self.processes.values():
			process.wait_for("ready")

	def ask(self, host, timeout=60):
		"""(seconds of the guest's clock, [RoCE packets that each rail has sent])."""
		process = self.processes[host]
		asked = process.out.count("\n")
		process.write(b"\n")
		with process.changed:
			if not process.changed.wait_for(lambda: process.out.count("\n") > asked, timeout):
				raise railyard_vm.RigError("%s: no answer in %g s" % (process, timeout))
		words = process.out.splitlines()[-1].split()
		return float(words[0]), [int(w) for w in words[1:]]

	def sent(self):
		"""As sent(), of both ends."""
		return [a + b for a, b in zip(*(self.ask(h)[1] for h in railyard_vm.HOSTS))]

	def close(self):
		for process in self.processes.values():
			process.write(b"")


@contextlib.contextmanager
def rail_map(rig):
	"""With the rail map loaded at both ends."""
	rig.both(railyard() + " load")
	try:
		yield
	finally:
		rig.both(railyard() + " unload")


def map_read(rig, host):
	"""All that `railyard rails` shows."""
	return json.loads(rig.guest(host).run(railyard() + " rails --json").out)


def map_row(rig, host, rail):
	"""The rail map's row of a rail."""
	return next(r for r in map_read(rig, host)["rails"] if r["netdev"] == "rail%d" % rail)


def until(holds, complaint, seconds=20):
	"""Wait until holds() is true; complaint is a text, or makes one."""
	end = time.monotonic() + seconds
	while not holds():
		assert time.monotonic() < end, complaint() if callable(complaint) else complaint
		time.sleep(0.2)


def grown(before, after):
	return [b - a for a, b in zip(before, after)]


class Run:
	"""A bench that runs. env is of both hosts, env_a and env_b of one; so are the plugins' files.

	prefix is put before the command, e.g. "setpriv --reuid=65534".
	"""

	def __init__(self, rig, args, env="", env_a="", env_b="", plugin_a=None, plugin_b=None,
		     prefix="", log="info"):
		self.rig = rig
		self.json = "bench-%d.json" % next(serial)
		common = " --ranks 2 --meet %s --log %s %s" % (MEET, log, args)
		command = "exec env %s %s %%s %s %s bench --plugin %%s" % (ENV, env, prefix, railyard())
		self.commands = {
			"a": command % (env_a, self.plugin(plugin_a)) + common +
			" --rank 0 --json /out/" + self.json,
			"b": command % (env_b, self.plugin(plugin_b)) + common + " --rank 1"}
		# Also for a bench of another user.
		with open(os.path.join(rig.out_dir, self.json), "w") as f:
			os.chmod(f.name, 0o666)
		self.before = {h: counters(rig, h) for h in railyard_vm.HOSTS}
		self.processes = {h: rig.guest(h).popen(self.commands[h]) for h in ("b", "a")}
		for process in self.processes.values():
			process.write(b"")

	@staticmethod
	def plugin(path):
		return os.path.join(build(), path or PLUGIN)

	def wait_for(self, pattern, host="a", timeout=60):
		return self.processes[host].wait_for(pattern, timeout)

	def table(self):
		"""[(size, wrong bytes, late writes)] of the sizes that are through."""
		rows = re.findall(r"^ +(\d+) +\d+ +\w+(?: +[\d.]+){3} +(\d+)(?: +[\d.]+){3} +(\d+)$",
				  self.processes["a"].out, re.M)
		return [tuple(map(int, row)) for row in rows]

	@contextlib.contextmanager
	def held(self):
		"""With the threads that drive the plugin stopped at both ends, and nothing on the rails.

		The plugin's own threads go on, and so does rxe with all that was posted: a receiver of which
		nothing arrives writes its oldest record again now and then, on each lane.
		"""
		holders = []
		end = time.monotonic() + 30
		try:
			for host in railyard_vm.HOSTS:
				pid = self.wait_for(r"^\[(\d+)\] INFO", host)[1]
				holders.append(self.rig.guest(host).popen("exec tests/vm/guest-hold " + pid))
				holders[-1].wait_for("held")
			more, last = [1 + RECORDS_AGAIN], sent(self.rig)
			while max(more) > RECORDS_AGAIN:
				assert time.monotonic() < end, "held, but packets go on: %s a second" % more
				time.sleep(1)
				now = sent(self.rig)
				more, last = grown(last, now), now
			yield
		finally:
			for holder in holders:
				holder.write(b"")
			for holder in holders:
				holder.wait()

	def finish(self, timeout=120):
		"""Wait for both ends; returns the Result."""
		for process in self.processes.values():
			process.wait(timeout)
		return Result(self)

	def kill(self, timeout=10):
		for process in self.processes.values():
			process.kill()
		for process in self.processes.values():
			process.wait(timeout)


class Result:
	"""What a bench did.

	status, log: by host. rows: an entry for each size as in the JSON, empty if it did not get there;
	calls: the plugin's calls by rank, likewise.
	sent: bytes that each rail sent meanwhile, by host.
	"""

	def __init__(self, run):
		self.status = {h: p.returncode for h, p in run.processes.items()}
		self.log = {h: p.out + p.err for h, p in run.processes.items()}
		self.sent = {h: grown(run.before[h], counters(run.rig, h)) for h in railyard_vm.HOSTS}
		self.rows, self.calls = [], []
		path = os.path.join(run.rig.out_dir, run.json)
		with open(path) as f:
			text = f.read()
		os.unlink(path)
		if text:
			report = json.loads(text)
			self.rows = report["results"]
			self.calls = [r["calls"] for r in report["ranks"] if "calls" in r]

	def shares(self, host):
		"""Percent of the host's bytes that each rail sent."""
		return [100 * n / max(1, sum(self.sent[host])) for n in self.sent[host]]

	def shares_text(self, host):
		return "/".join("%.1f" % s for s in self.shares(host))

	def shown(self, limit=2500):
		return "".join("\n--- %s: status %s ---\n%s" % (h, self.status[h], self.log[h][-limit:])
			       for h in sorted(self.log))

	def lines(self, host, pattern):
		"""The lines of a host's log in which a regular expression is found."""
		return [line for line in self.log[host].splitlines() if re.search(pattern, line)]


def run(rig, args, timeout=120, **kw):
	return Run(rig, args, **kw).finish(timeout)


def right(result):
	"""Both ends ended well, nothing wrong, nothing late; returns the number of sizes."""
	assert set(result.status.values()) == {0} and result.rows, "the bench failed" + result.shown()
	for row in result.rows:
		bad = {k: row[k] for k in ("wrong", "bad_sizes", "overruns", "canaries") if row[k]}
		assert not bad, "%d B: %s%s" % (row["size"], bad, result.shown())
	return len(result.rows)


def receiver_intervals(row, receiver, seconds):
	"""Bytes/s of the receiver for each whole interval but the first second, and when they began.

	The last whole interval is left out too: the end of the sending is in it.
	"""
	rank = row["ranks"][receiver]
	skip = round(1 / seconds)
	whole = int(rank["elapsed_ns"] / 1e9 / seconds)
	return rank["start_wall_ms"] / 1e3 + skip * seconds, rank["interval_bytes_per_s"][skip:whole - 1]
