"""Two guests joined by 1-4 RoCEv2 rails, as a Python object.

	with Rig(kernel="6.12", rails=4) as rig:
		rig.shape(mbyte_s=4.0)
		server = rig.b.popen("ib_write_bw -d rxe0 -x 1")
		print(rig.a.run("ib_write_bw -d rxe0 -x 1 b").out)

Hosts are "a" and "b" (10.78.0.1 and .2 on the control NIC, which is never shaped or cut), rails 0-3
are netdev railR and RDMA device rxeR with address 10.77.R.HOST. Guests end with this process.
Standard library only. Rates are in MB/s (10^6 bytes), times in seconds.
"""

import base64
import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.realpath(__file__))
REPO = os.path.dirname(os.path.dirname(HERE))
VM_DIR = os.path.join(REPO, "build", "vm")
KERNELS = ("6.1", "6.12")
HOSTS = ("a", "b")
CHUNK = 32768
PERFTEST_TRIES = 5
PERFTEST_PAUSE_S = 0.5
# How a console says that all is over, and before that why (PANIC_LINES at most before).
PANIC = r"Kernel panic - not syncing|supervisor: the guest reset itself"
PANIC_CAUSE = (r"BUG: |kernel BUG at|Oops|double fault|invalid opcode|general protection fault"
	       r"|stack segment|divide error|int3: |PANIC: ")
PANIC_LINES = 120
# Packets that netem may hold: more than the tbf below it can, so that nothing is dropped.
NETEM_LIMIT = 20000


class RigError(Exception):
	"""The rig or a command in it failed; the text says what, and shows its output."""


def other(host):
	return "b" if host == "a" else "a"


class Channel:
	"""The supervisor's socket; a thread hands each answer to the handler of its id."""

	def __init__(self, path):
		self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
		try:
			self.socket.connect(path)
		except OSError as e:
			raise RigError("no guests answer at %s: %s" % (path, e.strerror)) from e
		self.lock = threading.Lock()
		self.next_id = 0
		self.handlers = {}
		self.closed = False
		threading.Thread(target=self.receive, daemon=True).start()

	def open_id(self, handler):
		with self.lock:
			self.next_id += 1
			self.handlers[self.next_id] = handler
			return self.next_id

	def send(self, message):
		data = json.dumps(message).encode() + b"\n"
		try:
			with self.lock:
				self.socket.sendall(data)
		except OSError as e:
			raise RigError("the guests are gone (%s)" % e) from e

	def receive(self):
		try:
			with self.socket.makefile("rb") as lines:
				for line in lines:
					message = json.loads(line)
					handler = self.handlers.get(message["id"])
					if handler:
						handler(message)
		except OSError:
			pass
		self.closed = True
		for handler in list(self.handlers.values()):
			handler(None)

	def ask(self, message, timeout=30):
		"""A request with one answer."""
		box, ready = [], threading.Event()
		ident = self.open_id(lambda m: (box.append(m), ready.set()))
		self.send(dict(message, id=ident))
		if not ready.wait(timeout):
			raise RigError("no answer to %s within %d s" % (message, timeout))
		del self.handlers[ident]
		if box[0] is None:
			raise RigError("the guests are gone")
		if "error" in box[0]:
			raise RigError("%s: %s" % (message, box[0]["error"]))
		return box[0]["return"]

	def close(self):
		try:
			self.socket.shutdown(socket.SHUT_RDWR)
		except OSError:
			pass
		self.socket.close()


class Process:
	"""A command that runs in a guest."""

	def __init__(self, guest, command, on_output=None):
		self.guest = guest
		self.command = command
		self.on_output = on_output
		self.returncode = None
		self.changed = threading.Condition()
		self.data = {1: bytearray(), 2: bytearray()}
		self.ident = guest.channel.open_id(self.event)
		guest.channel.send({"id": self.ident, "to": guest.host, "run": command})

	def event(self, message):
		with self.changed:
			if message is None:
				self.returncode = 255 if self.returncode is None else self.returncode
				self.data[2] += b"(guest is gone)"
			elif "out" in message:
				data = base64.b64decode(message["out"])
				self.data[message["fd"]] += data
				if self.on_output:
					self.on_output(message["fd"], data)
			elif "exit" in message:
				self.returncode = message["exit"]
				del self.guest.channel.handlers[self.ident]
			self.changed.notify_all()

	@property
	def out(self):
		return self.data[1].decode(errors="replace")

	@property
	def err(self):
		return self.data[2].decode(errors="replace")

	def poll(self):
		return self.returncode

	def wait(self, timeout=60):
		"""The exit status; kills the command and raises RigError after timeout."""
		with self.changed:
			if self.changed.wait_for(lambda: self.returncode is not None, timeout):
				return self.returncode
		self.kill()
		raise RigError("%s still runs after %g s%s" % (self, timeout, self.shown()))

	def wait_for(self, pattern, timeout=60):
		"""Wait for a line of output matching a regular expression; returns the match."""
		def found():
			return re.search(pattern, self.out + "\n" + self.err, re.M)
		with self.changed:
			self.changed.wait_for(lambda: found() or self.returncode is not None, timeout)
			match = found()
		if not match:
			raise RigError("%s did not print /%s/ (status %s)%s" % (
				self, pattern, self.returncode, self.shown()))
		return match

	def write(self, data):
		"""Bytes for the command's standard input; b"" closes it."""
		for i in range(0, max(1, len(data)), CHUNK):
			self.guest.channel.send({
				"id": self.ident, "to": self.guest.host,
				"stdin": base64.b64encode(data[i:i + CHUNK]).decode()})

	def kill(self, number=signal.SIGKILL):
		"""Signal the command and its children."""
		if self.returncode is None:
			self.guest.channel.send({"id": self.ident, "to": self.guest.host,
						 "kill": int(number)})

	def stop(self, timeout=10):
		"""SIGTERM, then wait; returns the exit status."""
		self.kill(signal.SIGTERM)
		return self.wait(timeout)

	def shown(self, limit=3000):
		return "\n--- stdout ---\n%s\n--- stderr ---\n%s" % (self.out[-limit:], self.err[-limit:])

	def __str__(self):
		return "%s: %s" % (self.guest.host, self.command)


class Guest:
	"""One host of the rig."""

	def __init__(self, host, channel):
		self.host = host
		self.channel = channel
		self.address = "10.78.0.%d" % (1 + HOSTS.index(host))

	def popen(self, command, on_output=None):
		"""Start a shell command (bash, as root, in the checkout, standard input open)."""
		return Process(self, command, on_output)

	def run(self, command, timeout=60, check=True, stdin=b""):
		"""Run a shell command to its end; returns the Process (.returncode .out .err)."""
		process = Process(self, command)
		if stdin:
			process.write(stdin)
		process.write(b"")
		if process.wait(timeout) and check:
			raise RigError("%s: status %d%s" % (process, process.returncode, process.shown()))
		return process

	def push(self, path, target):
		"""Copy a file of this machine into the guest, with its mode."""
		with open(path, "rb") as f:
			data = f.read()
		mode = os.stat(path).st_mode & 0o7777
		self.run("cat > '%s' && chmod %o '%s'" % (target, mode, target), stdin=data)

	def rdma_states(self):
		"""{rail: ACTIVE or DOWN}, as `rdma link` says."""
		found = re.findall(r"^link rxe(\d+)/1 state (\S+)", self.run("rdma link").out, re.M)
		return {int(rail): state for rail, state in found}


class Rail:
	"""What one host's egress of one rail is told to do."""

	def __init__(self):
		self.mbyte_s = None	# None: unshaped
		self.loss_pct = 0.0
		self.mark = False	# set CE instead of dropping, for packets with ECT
		self.up = True

	def plain(self):
		return self.mbyte_s is None and not self.loss_pct


class Rig:
	"""Two guests. attach=NAME uses those that `tests/vm/shell` keeps up, instead of new ones."""

	def __init__(self, kernel="6.12", rails=4, name=None, attach=None, memory=1536, append=""):
		if attach is None and kernel not in KERNELS:
			raise RigError("kernel %s is not known: use one of %s" % (kernel, " ".join(KERNELS)))
		if not 1 <= rails <= 4:
			raise RigError("rails=%d: use 1 to 4" % rails)
		self.supervisor = self.owner = None
		path = socket_of(attach) if attach else self.start(kernel, rails, name or kernel,
								    memory, append)
		self.channel = Channel(path)
		info = self.channel.ask({"info": 1})
		self.kernel = info["kernel"]
		self.rails = info["rails"]
		self.state_dir = info["state"]
		self.out_dir = os.path.join(self.state_dir, "out")	# /out in the guests
		self.sockets = info["sockets"]
		self.pids = info["pids"]
		self.boot_s = info["boot_s"]
		self.a = Guest("a", self.channel)
		self.b = Guest("b", self.channel)
		self.hosts = {"a": self.a, "b": self.b}
		self.egress = {(h, r): Rail() for h in HOSTS for r in range(self.rails)}
		if attach:
			self.reset(everything=True)

	def start(self, kernel, rails, name, memory, append):
		prepare(kernel)
		read_end, self.owner = os.pipe()
		argv = supervisor_argv(kernel, rails, name, memory, append) + ["--owner", str(read_end)]
		self.supervisor, path = start_supervisor(argv, pass_fds=[read_end])
		os.close(read_end)
		return path

	def __enter__(self):
		return self

	def __exit__(self, *exc):
		self.close()

	def close(self):
		"""End the guests (or only leave them, when attached)."""
		self.channel.close()
		if self.supervisor:
			os.close(self.owner)
			self.supervisor.wait()
			self.supervisor = None

	def guest(self, host):
		return self.hosts[host]

	def panic(self, wait_s=0):
		"""The first line of a guest's kernel panic, or None; a console may need some time to say it."""
		if wait_s and not self.channel.closed:
			time.sleep(wait_s)
		for host in HOSTS:
			with open(os.path.join(self.state_dir, host + ".console"), errors="replace") as f:
				if line := panic_line(f.read()):
					return "%s: %s" % (host, line)
		return None

	def both(self, command, timeout=60):
		"""Run a command on both hosts at once; returns {"a": Process, "b": Process}."""
		running = {h: g.popen(command) for h, g in self.hosts.items()}
		for p in running.values():
			p.write(b"")
		for p in running.values():
			if p.wait(timeout):
				raise RigError("%s: status %d%s" % (p, p.returncode, p.shown()))
		return running

	# --- what a rail does -------------------------------------------------------------------

	def select(self, rail, host):
		rails = range(self.rails) if rail is None else [rail]
		hosts = HOSTS if host is None else [host]
		return [(h, r) for h in hosts for r in rails]

	def apply(self, keys, change):
		"""Change the egress records of keys, then make the guests' queues follow."""
		self.ready(keys, change)()

	def ready(self, keys, change):
		"""Like apply, but the change is made when the result is called, by a tc that waits for it."""
		batches = {}
		for host, rail in keys:
			before, egress = dict(vars(self.egress[host, rail])), self.egress[host, rail]
			change(egress)
			batches.setdefault(host, []).extend(tc_commands(rail, before, egress))
		waiting = [(self.hosts[host].popen("exec tc -b -"), "".join(line + "\n" for line in lines))
			   for host, lines in batches.items() if lines]

		def go():
			for p, lines in waiting:
				p.write(lines.encode())
				p.write(b"")
			for p, _ in waiting:
				if p.wait(30):
					raise RigError("%s: status %d%s" % (p, p.returncode, p.shown()))
		return go

	def shape(self, rail=None, host=None, mbyte_s=4.0):
		"""Limit egress (of all rails and both hosts, unless named) to mbyte_s; None: no limit."""
		self.nominal = mbyte_s
		self.apply(self.select(rail, host), lambda e: setattr(e, "mbyte_s", mbyte_s))

	def slow(self, rail, pct, host=None):
		"""Set a rail to pct percent of the rate last given to shape()."""
		rate = self.nominal * pct / 100
		self.apply(self.select(rail, host), lambda e: setattr(e, "mbyte_s", rate))

	def ce(self, rail, pct, host=None, later=False):
		"""Mark pct percent of a rail's packets CE (needs ECT: NCCL_IB_TC=2; else they drop).

		later: returns a function that does it, faster under load.
		"""
		go = self.ready(self.select(rail, host),
				lambda e: vars(e).update(loss_pct=pct, mark=pct > 0))
		return go if later else go()

	def blackhole(self, rail, host=None, on=True):
		"""Lose all that a rail sends, silently; on=False repairs it."""
		self.apply(self.select(rail, host),
			   lambda e: vars(e).update(loss_pct=100.0 if on else 0.0, mark=False))

	def link(self, host, rail, up):
		"""Plug or pull a host's cable: the guest sees carrier change at once."""
		self.channel.ask({"to": host, "qmp": "set_link",
				  "arguments": {"name": "rail%d" % rail, "up": up}})
		self.egress[host, rail].up = up

	def wait_link(self, host, rail, state, timeout=10):
		"""Wait until `rdma link` shows state (ACTIVE or DOWN); returns the seconds it took."""
		begin = time.monotonic()
		while (now := self.hosts[host].rdma_states().get(rail)) != state:
			if time.monotonic() - begin > timeout:
				raise RigError("%s: rxe%d is %s after %g s, not %s"
					       % (host, rail, now, timeout, state))
			time.sleep(0.1)
		return time.monotonic() - begin

	def cross_traffic(self, pct=20, period=1.0, host=None):
		"""All rails full for a period, one at pct percent for the next, each in turn: see CrossTraffic."""
		return CrossTraffic(self, pct, period, HOSTS if host is None else [host])

	def flood(self, rail, host, mbyte_s):
		"""A second sender in a rail's queue: UDP at mbyte_s; returns its Process, .stop() ends it."""
		address = "10.77.%d.%d" % (rail, 1 + HOSTS.index(other(host)))
		process = self.hosts[host].popen(
			"exec /usr/bin/python3 -I -S tests/vm/guest-flood %s %g" % (address, mbyte_s))
		process.wait_for("flooding", 30)
		return process

	def through(self, relay):
		"""Lead all rails through the relay that binds the sockets, or past it (relay.py)."""
		for host, rail in self.egress:
			link = os.path.join(self.sockets, "rail%d.to-%s" % (rail, host))
			os.symlink("%s%d.%s" % ("relay" if relay else "rail", rail, host), link + ".new")
			os.replace(link + ".new", link)

	def reset(self, everything=False):
		"""Back to unshaped rails with all cables plugged."""
		if everything:
			self.through(relay=False)
		for (host, rail), egress in self.egress.items():
			if everything or not egress.up:
				self.link(host, rail, True)
		if everything:
			self.both("for d in /sys/class/net/rail*; do "
				  "tc qdisc del dev ${d##*/} root 2>/dev/null; done; true")
		self.apply(self.select(None, None),
			   lambda e: vars(e).update(mbyte_s=None, loss_pct=0.0, mark=False))
		for host, guest in self.hosts.items():
			if set(guest.rdma_states().values()) != {"ACTIVE"}:
				for rail in range(self.rails):
					self.wait_link(host, rail, "ACTIVE")

	# --- perftest ---------------------------------------------------------------------------

	def perftest(self, rail, sender="a", tool="ib_write_bw", size=65536, mbytes=12, options=""):
		"""MB/s at which a perftest program moves mbytes over one rail.

		-u 18 (an ACK timeout of 1 s): perftest's own 14 is as short as a shaped rail's queue.
		-t 8: its own 128 posted messages need seconds to drain from a slow rail.
		A count (-n), since -D measures only a short window in the middle.

		perftest sometimes loses its own TCP connection, finds no way to the other end yet (an address
		that is not resolved in time), or measures nothing: then it is run again.
		"""
		count = max(8, int(mbytes * 1e6 / size))
		command = "exec stdbuf -oL %s -d rxe%d -x 1 -s %d -n %d -F -u 18 -t 8 --report_gbits %s" % (
			tool, rail, size, count, options)
		for _ in range(PERFTEST_TRIES):
			server, client = self.perftest_once(sender, command, 30 + 4 * mbytes)
			rows = re.findall(r"^\s*%d\s+\d+\s+\S+\s+(\S+)" % size, client.out, re.M)
			if rows and float(rows[-1]):
				return float(rows[-1]) * 1000 / 8
			if perftest_saw_rdma_fail(server, client):
				raise RigError("%s: the transfer failed%s%s" % (
					client, client.shown(), server.shown()))
			time.sleep(PERFTEST_PAUSE_S)
		raise RigError("%s printed no result, %d times; the last:%s%s" % (
			client, PERFTEST_TRIES, client.shown(), server.shown()))

	def perftest_once(self, sender, command, timeout):
		"""Returns server and client, both ended."""
		server = self.hosts[other(sender)].popen(command)
		try:
			server.wait_for(r"Waiting for client", 30)
			client = self.hosts[sender].run("%s %s" % (command, other(sender)), timeout,
							check=False)
		except RigError:
			if server.poll() is None:
				server.kill()
				raise
			return server, server
		if client.returncode:
			server.kill()
		server.wait(30)
		return server, client


def perftest_saw_rdma_fail(*processes):
	"""Whether perftest says that RDMA failed, not itself."""
	return any(re.search(r"(?i)completion with error|failed status", p.out + p.err)
		   for p in processes)


def tc_commands(rail, before, egress):
	"""Lines for `tc -b` that take a rail from the settings before to those of egress."""
	old, dev = Rail(), "dev rail%d" % rail
	vars(old).update(before)
	if vars(old) == vars(egress):
		return []
	lines = []
	# netem keeps its ecn flag over a change, and a child once given: then begin anew.
	fresh = old.plain() or (old.mark and not egress.mark) or (old.mbyte_s and not egress.mbyte_s)
	if not old.plain() and (fresh or egress.plain()):
		lines.append("qdisc del %s root" % dev)
	if egress.plain():
		return lines
	loss = "loss %g%%%s" % (egress.loss_pct, " ecn" if egress.mark else "")
	lines.append("qdisc %s %s root handle 1: netem limit %d %s" % (
		"add" if fresh else "change", dev, NETEM_LIMIT, loss))
	if egress.mbyte_s and (fresh or old.mbyte_s != egress.mbyte_s):
		lines.append("qdisc %s %s parent 1:1 handle 10: tbf %s" % (
			"change" if old.mbyte_s and not fresh else "add", dev, tbf(egress.mbyte_s)))
	return lines


def tbf(mbyte_s):
	"""tbf's settings for a rate.

	No drops: rxe stops at 64 packets per QP, far below the limit. The burst is what a guest may catch
	up after its CPU was taken away: with 16 KiB a busy machine gives 3.5 of 4 MB/s, with 64 KiB 3.9.
	"""
	return "rate %dbit burst %d limit 8mb" % (mbyte_s * 8e6, max(65536, mbyte_s * 16e3))


class CrossTraffic:
	"""A schedule that runs inside the guests; a context manager.

	Step 2k: every rail has the nominal rate; step 2k+1: rail k mod N has pct percent of it.
	The guests' own log says when each change was made; available() reads it.
	"""

	def __init__(self, rig, pct, period, hosts):
		self.rig = rig
		low = rig.nominal * pct / 100
		command = "exec tests/vm/guest-cross %d %g '%s' '%s'" % (
			rig.rails, period, tbf(rig.nominal), tbf(low))
		self.rates = {"high": rig.nominal, "low": low}
		self.processes = {h: rig.guest(h).popen(command) for h in hosts}

	def __enter__(self):
		for p in self.processes.values():
			p.wait_for(r"^\S+ \d+ high", 30)
		return self

	def __exit__(self, *exc):
		for p in self.processes.values():
			p.stop()
		full = "".join("qdisc change dev rail%d parent 1:1 handle 10: tbf %s\n"
			       % (r, tbf(self.rates["high"])) for r in range(self.rig.rails))
		for host in self.processes:
			self.rig.guest(host).run("tc -b -", stdin=full.encode())

	def log(self, host):
		"""[(time, rail, MB/s)], time as the guest's CLOCK_REALTIME."""
		entries = re.findall(r"^(\S+) (\d+) (high|low)$", self.processes[host].out, re.M)
		return [(float(t), int(rail), self.rates[which]) for t, rail, which in entries]

	def available(self, host, begin, end):
		"""Time average of the sum of a host's rates between two of the guest's times, in MB/s."""
		return available(self.log(host), {r: self.rates["high"] for r in range(self.rig.rails)},
				 begin, end)


def available(log, rates, begin, end):
	"""Time average over [begin, end] of the sum of rates, which change as log says."""
	rates, at, area = dict(rates), begin, 0.0
	for t, rail, mbyte_s in sorted(log):
		if t > end:
			break
		if t > at:
			area += (t - at) * sum(rates.values())
			at = t
		rates[rail] = mbyte_s
	area += (end - at) * sum(rates.values())
	return area / (end - begin)


# --- kernel panics ------------------------------------------------------------------------------

def panic_line(console):
	"""The line of a console with which its last panic begins, or None."""
	lines = [re.sub(r"^\[ *[\d.]+\] ", "", line) for line in console.splitlines()]
	ends = [n for n, line in enumerate(lines) if re.match(PANIC, line)]
	if not ends:
		return None
	# Some of the report is older than the panic's own line.
	report = lines[max(0, ends[-1] - PANIC_LINES):ends[-1] + 1]
	return next(line for line in report if re.match(PANIC + "|" + PANIC_CAUSE, line)).strip()


def on_guests(start, jobs, work, done, panics):
	"""work(rig, job) for each job on the pair of guests that start() makes, then done(its result).

	A result is a dictionary with "pass" and, if that is false, "reason". When a guest's kernel panics,
	the first line of it is added to panics, and a new pair is booted for the rest. A job that failed by
	it is tried once more there. Ends early when the guests die without a panic.
	"""
	left, again = list(jobs), set()
	while left:
		with start() as rig:
			panic = None
			while left and not panic and not rig.channel.closed:
				result = work(rig, left[0])
				panic = rig.panic(0 if result["pass"] else 1)
				if panic and not result["pass"]:
					if left[0] not in again:
						again.add(left[0])
						continue
					result["reason"] = "a second guest panic: " + panic
				left.pop(0)
				done(result)
		if not panic:
			return
		panics.append(panic)
		print("kernel %s: guest panic: %s%s" % (
			rig.kernel, panic, "; booting new guests" if left else ""), flush=True)


def panics_text(panics):
	"""For a summary's line: "", or ", 2 guest panics"."""
	return ", %d guest panic%s" % (len(panics), "s"[:len(panics) > 1]) if panics else ""


# --- starting -----------------------------------------------------------------------------------

def prepare(kernel):
	done = subprocess.run([os.path.join(HERE, "prepare"), kernel], stdout=subprocess.DEVNULL,
			      stderr=subprocess.PIPE, text=True)
	if done.returncode:
		raise RigError(done.stderr.strip())


def supervisor_argv(kernel, rails, name, memory=1536, append=""):
	return [os.path.join(HERE, "supervisor"), "--name", name, "--kernel", kernel,
		"--rails", str(rails), "--memory", str(memory), "--append", append]


def start_supervisor(argv, **kw):
	"""Start it and wait until the guests are up; returns (its Popen, its socket's path)."""
	process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
				   text=True, start_new_session=True, **kw)
	line = process.stdout.readline()
	answer = json.loads(line) if line else {"error": "the supervisor ended"}
	if "error" in answer:
		process.wait()
		raise RigError(answer["error"])
	return process, answer["ready"]


@contextlib.contextmanager
def turn():
	"""One at a time in this checkout: two pairs of busy guests would measure each other."""
	with open(os.path.join(VM_DIR, "turn.lock"), "w") as lock:
		fcntl.flock(lock, fcntl.LOCK_EX)
		yield


def socket_of(name):
	"""The socket of a running rig by its name."""
	try:
		with open(os.path.join(VM_DIR, "rigs", name, "socket")) as f:
			return f.read().strip()
	except FileNotFoundError:
		raise RigError("no guests named %s are up: start them with tests/vm/shell" % name) from None


def is_up(name):
	"""Whether a rig of that name answers."""
	try:
		Channel(socket_of(name)).close()
	except (RigError, OSError):
		return False
	return True


def kernel_of(name):
	"""The kernel of a running rig."""
	channel = Channel(socket_of(name))
	try:
		return channel.ask({"info": 1})["kernel"]
	finally:
		channel.close()
