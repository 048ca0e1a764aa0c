"""A packet relay between the guests' NICs, for as long as it is wanted.

	with Relay(rig, seed=7) as relay:
		relay.rule(1, "b", "data", "drop")	# lose all data to b on rail 1, silently
		relay.clear(1, "b")

RAIL is a number, TO the host that frames go to; WHAT is one of all, roce, data (RoCE but acknowledgements)
and acks. What is held is sent by release(), as often as one likes: see relay.c. Outside of the with, and
before it, frames go from guest to guest without a third process.
"""

import contextlib
import os
import queue
import subprocess
import threading

import bench
import railyard_vm

PROGRAM = "tests/vm/relay"
ANSWER_S = 30
COUNTS = ("passed", "dropped", "kept", "twice", "late", "released")


def stats_of(words):
	"""{(rail, to): {count: number}} from what `stats` answers."""
	width = 2 + len(COUNTS)
	parts = [words[i:i + width] for i in range(0, len(words), width)]
	return {(int(p[0]), p[1]): dict(zip(COUNTS, map(int, p[2:]))) for p in parts}


class Relay:
	def __init__(self, rig, seed=1):
		self.rig = rig
		self.argv = [os.path.join(bench.build(), PROGRAM), str(seed), rig.sockets, str(rig.rails)]
		self.answers = queue.Queue()
		self.process = None

	def __enter__(self):
		# Ahead of the guests, which go before all else: a late relay is a slow rail. Where processes
		# are grouped by session, in a group of its own.
		self.process = subprocess.Popen(["nice", "-n", "-10"] + self.argv, text=True,
						start_new_session=True,
						stdin=subprocess.PIPE, stdout=subprocess.PIPE)
		with contextlib.suppress(OSError), open("/proc/%d/autogroup" % self.process.pid, "w") as f:
			f.write("-15")
		threading.Thread(target=self.listen, daemon=True).start()
		self.answer()
		self.rig.through(relay=True)
		return self

	def __exit__(self, *exc):
		self.rig.through(relay=False)
		self.process.stdin.close()
		self.process.wait()

	def listen(self):
		for line in self.process.stdout:
			self.answers.put(line.strip())
		self.answers.put("error: the relay ended")

	def answer(self):
		line = self.answers.get(timeout=ANSWER_S)
		if not line.startswith("ok"):
			raise railyard_vm.RigError("relay: " + line)
		return line.split()[1:]

	def tell(self, *words):
		self.process.stdin.write(" ".join(map(str, words)) + "\n")
		self.process.stdin.flush()
		return self.answer()

	def rule(self, rail, to, what, action, pct=100, ms=0):
		"""action: drop, hold, copy, twice or late. Further rules may follow for what it leaves."""
		self.tell("rule", rail, to, what, action, pct, ms)

	def clear(self, rail, to=None):
		"""No rules; of both directions unless named."""
		self.each("clear", rail, to)

	def release(self, rail, to=None):
		self.each("release", rail, to)

	def forget(self, rail, to=None):
		self.each("forget", rail, to)

	def each(self, verb, rail, to):
		for host in railyard_vm.HOSTS if to is None else [to]:
			self.tell(verb, rail, host)

	def stats(self):
		return stats_of(self.tell("stats"))
