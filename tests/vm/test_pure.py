#!/usr/bin/python3
"""Unit tests of the rig's parts that need no guest."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import bench  # noqa: E402
import failures  # noqa: E402
import figures  # noqa: E402
import railyard_vm  # noqa: E402
import relay  # noqa: E402
from railyard_vm import Rail, available, tc_commands  # noqa: E402


def rail(**settings):
	r = Rail()
	vars(r).update(settings)
	return r


def commands(before, after):
	return [line.split(" limit")[0] for line in tc_commands(1, vars(before), after)]


class TcCommands(unittest.TestCase):
	def test_nothing_to_do(self):
		self.assertEqual(commands(rail(), rail()), [])
		self.assertEqual(commands(rail(mbyte_s=4.0), rail(mbyte_s=4.0)), [])

	def test_first_shape_adds_both(self):
		self.assertEqual(commands(rail(), rail(mbyte_s=4.0)), [
			"qdisc add dev rail1 root handle 1: netem",
			"qdisc add dev rail1 parent 1:1 handle 10: tbf rate 32000000bit burst 65536"])

	def test_slow_changes_the_rate_only_and_keeps_the_queue(self):
		lines = commands(rail(mbyte_s=4.0), rail(mbyte_s=1.0))
		self.assertEqual(lines[-1], "qdisc change dev rail1 parent 1:1 handle 10: tbf "
				 "rate 8000000bit burst 65536")
		self.assertNotIn("qdisc del dev rail1 root", lines)

	def test_loss_after_marks_begins_anew(self):
		lines = tc_commands(1, vars(rail(loss_pct=5.0, mark=True)), rail(loss_pct=100.0))
		self.assertEqual(lines, ["qdisc del dev rail1 root",
			"qdisc add dev rail1 root handle 1: netem limit 20000 loss 100%"])

	def test_plain_removes(self):
		self.assertEqual(commands(rail(mbyte_s=4.0), rail()), ["qdisc del dev rail1 root"])


class Available(unittest.TestCase):
	RATES = {0: 4.0, 1: 4.0}

	def test_no_change(self):
		self.assertAlmostEqual(available([], self.RATES, 10, 12), 8.0)

	def test_changes_before_within_and_after(self):
		log = [(9, 0, 1.0), (11, 0, 4.0), (11.5, 1, 2.0), (13, 1, 0.0)]
		self.assertAlmostEqual(available(log, self.RATES, 10, 12), (5 + 4 + 3) / 2)


class Figures(unittest.TestCase):
	# Two rails, equal until 1000 ms, then 1:3.
	SAMPLES = [(t, [t, t]) for t in range(0, 1001, 25)] + [
		(t, [1000 + (t - 1000) // 2, 1000 + 3 * (t - 1000) // 2]) for t in range(1025, 2001, 25)]

	def test_read(self):
		self.assertEqual(figures.read("sampling\n10.5 1 2\n35.0 3 4\n"),
				 [(10.5, [1, 2]), (35.0, [3, 4])])

	def test_over(self):
		self.assertEqual(figures.over(self.SAMPLES, 0, 1000), [50, 50])
		self.assertEqual(figures.over(self.SAMPLES, 1000, 2000), [25, 75])
		self.assertIsNone(figures.over(self.SAMPLES, 3000, 4000))

	def test_sliding_takes_whole_windows_only(self):
		found = figures.sliding(self.SAMPLES, 500)
		self.assertEqual(found[0], (500, [50, 50]))
		self.assertEqual(found[-1], (2000, [25, 75]))

	def test_time_until_below(self):
		# 50 points below over the whole window: 2 points after 8 ms of 200, seen by the next sample.
		self.assertEqual(figures.time_until_below(self.SAMPLES, 0, 1000), 25)
		self.assertEqual(figures.time_until_below(self.SAMPLES, 0, 1000, points=49), 200)
		self.assertIsNone(figures.time_until_below(self.SAMPLES, 1, 1000))

	def test_lowest(self):
		self.assertEqual(figures.lowest(self.SAMPLES, 0), 25)
		self.assertEqual(figures.lowest(self.SAMPLES, 1), 50)


def load_command(name):
	loader = importlib.machinery.SourceFileLoader(
		name, os.path.join(os.path.dirname(os.path.realpath(__file__)), name))
	module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
	loader.exec_module(module)
	return module


class Measure(unittest.TestCase):
	measure = load_command("measure")

	def test_whole_intervals_only(self):
		# Four seconds and a bit, in halves; the first second and the last half are left out.
		row = {"ranks": [None, {"start_wall_ms": 5000, "elapsed_ns": 4.2e9,
					"interval_bytes_per_s": [1, 2, 3, 4, 5, 6, 7, 8, 9]}]}
		self.assertEqual(bench.receiver_intervals(row, 1, 0.5), (6.0, [3, 4, 5, 6, 7]))

	def test_throughput_is_a_part_of_what_was_there(self):
		asked = []

		def available(begin, end):
			asked.append((begin, end))
			return 16.0

		result = argparse.Namespace(rows=[{"ranks": [None, {
			"start_wall_ms": 5000, "elapsed_ns": 4.2e9, "interval_bytes_per_s": [8e6] * 9}]}])
		self.assertEqual(self.measure.throughput(result, available), 0.5)
		self.assertEqual(asked, [(6.0, 8.5)])

	def test_modes_take_turns(self):
		jobs = self.measure.jobs_of(argparse.Namespace(only=["equal", "ce"], runs=2))
		self.assertEqual([j.mode for j in jobs if j.size == "128K"], ["on", "observe"] * 2)
		self.assertEqual([j.mode for j in jobs if j.case == "ce"], ["map", "no map"] * 2)

	def test_marked_rail(self):
		rates = [(t, [4 * t] * 4) for t in range(0, 3001, 25)]
		marked = [(t, [4 * t] * 3 + [12000 + 3 * (t - 3000)]) for t in range(3025, 6001, 25)]
		found = self.measure.ce_figures(rates + marked, 3010)
		self.assertEqual(found["noise"], 0)
		self.assertAlmostEqual(found["steady"][3], 20)
		self.assertAlmostEqual(found["lowest"], 20)
		self.assertAlmostEqual(found["settled"], 20)
		self.assertEqual(found["ms"], 65)


CONSOLE = "[    1.2] BUG: something long ago\n" + "guest-setup: agent\n" * 200 + """\
[   12.345678] BUG: unable to handle page fault for address: ffff
[   12.345679] Oops: 0000 [#1] PREEMPT SMP
[   12.345680]  <TASK>
[   12.4] Kernel panic - not syncing: Fatal exception in interrupt
[   12.5] Kernel Offset: disabled
"""


class FakeRig(contextlib.nullcontext):
	"""Dies of a panic, or without one, in the jobs that are listed."""
	kernel = "6.12"

	def __init__(self, trouble):
		super().__init__(self)
		self.trouble = trouble
		self.channel = self
		self.closed = False
		self.died_of = None

	def work(self, _, job):
		how = self.trouble.pop(0) if self.trouble and self.trouble[0].endswith(job) else None
		if not how:
			return {"name": job, "pass": True}
		self.closed = True
		self.died_of = "a: BUG" if how.startswith("panic") else None
		return {"name": job, "pass": False, "reason": "gone"}

	def panic(self, _):
		return self.died_of


class Panics(unittest.TestCase):
	def test_first_line(self):
		self.assertEqual(railyard_vm.panic_line(CONSOLE),
				 "BUG: unable to handle page fault for address: ffff")
		self.assertIsNone(railyard_vm.panic_line("BUG: only said\n"))
		self.assertEqual(railyard_vm.panic_line("[ 1.0] Kernel panic - not syncing: x\r\n"),
				 "Kernel panic - not syncing: x")

	@staticmethod
	def run_jobs(trouble):
		"""Returns the results, the panics, and how many pairs were booted."""
		rigs, results, panics = [], [], []

		def start():
			rigs.append(FakeRig(trouble))
			return rigs[-1]

		with contextlib.redirect_stdout(io.StringIO()):
			railyard_vm.on_guests(start, "xyz", lambda rig, job: rig.work(rig, job),
					      results.append, panics)
		return [(r["name"], r["pass"]) for r in results], len(panics), len(rigs)

	def test_no_panic(self):
		self.assertEqual(self.run_jobs([]),
				 ([("x", True), ("y", True), ("z", True)], 0, 1))

	def test_the_interrupted_job_and_the_rest_run_again(self):
		self.assertEqual(self.run_jobs(["panic y"]),
				 ([("x", True), ("y", True), ("z", True)], 1, 2))

	def test_a_second_panic_of_a_job_is_a_failure(self):
		self.assertEqual(self.run_jobs(["panic y", "panic y"]),
				 ([("x", True), ("y", False), ("z", True)], 2, 3))

	def test_no_second_try_without_a_panic(self):
		self.assertEqual(self.run_jobs(["quit y"]), ([("x", True), ("y", False)], 0, 1))


class FakeProcess:
	def __init__(self, out, err=""):
		self.out = out
		self.err = err
		self.command = "ib_write_bw"
		self.returncode = 1

	def shown(self):
		return self.out + self.err


class Perftest(unittest.TestCase):
	RESULT = " 65536      183      0.00      0.030   0.0001\n"
	ALONE = "ethernet_read_keys: Couldn't read remote address\n"

	def rate(self, *outputs):
		"""What perftest() makes of the client's outputs, one for each time that it is run."""
		rig = railyard_vm.Rig.__new__(railyard_vm.Rig)
		left = list(outputs)
		rig.perftest_once = lambda *_: (FakeProcess(""), FakeProcess(left.pop(0)))
		return rig.perftest(0), len(left)

	def test_run_again_when_it_failed_by_itself(self):
		self.assertEqual(self.rate(self.ALONE, "", self.RESULT), (3.75, 0))

	def test_five_times_at_most(self):
		with self.assertRaisesRegex(railyard_vm.RigError, "no result, 5 times.*\n?.*read remote"):
			self.rate(*5 * [self.ALONE], self.RESULT)

	def test_run_again_when_there_was_no_way_yet(self):
		self.assertEqual(self.rate(" Failed to modify QP 34 to RTR\n", self.RESULT), (3.75, 0))

	def test_not_when_the_transfer_failed(self):
		with self.assertRaisesRegex(railyard_vm.RigError, "the transfer failed"):
			self.rate(" Completion with error at client\n Failed status 12", self.RESULT)


class Wires(unittest.TestCase):
	def test_stats(self):
		stats = relay.stats_of("0 a 1 2 3 4 5 6 0 b 7 8 9 10 11 12".split())
		self.assertEqual(stats[0, "b"]["passed"], 7)
		self.assertEqual(stats[0, "a"], {"passed": 1, "dropped": 2, "kept": 3, "twice": 4, "late": 5,
						 "released": 6})

	def test_links_lead_through_and_past(self):
		rig = railyard_vm.Rig.__new__(railyard_vm.Rig)
		rig.egress = {("a", 0): None, ("b", 0): None}
		with tempfile.TemporaryDirectory() as rig.sockets:
			for through, target in ((True, "relay0.b"), (False, "rail0.b")):
				rig.through(through)
				self.assertEqual(os.readlink(os.path.join(rig.sockets, "rail0.to-b")), target)
			self.assertEqual(len(os.listdir(rig.sockets)), 2)


FAILED = ("[7] INFO 100.250000 lane_say:9 NET/Railyard : lane 1 rxe1:1 -> rxe2:1 of b (pid 9): failed: port down\n"
	  "[7] INFO 100.300000 lane_say:9 NET/Railyard : lane 1 rxe1:1 -> rxe2:1 of b (pid 9): fenced after 50.2 ms, "
	  "3 pieces sent again, 1 had landed\n"
	  "[7] INFO 106.500000 lane_say:9 NET/Railyard : lane 1 rxe1:1 -> rxe2:1 of b (pid 9): in use again, "
	  "generation 2, after 6200 ms\n")


class Jobs(unittest.TestCase):
	@staticmethod
	def job(**texts):
		job = failures.Job.__new__(failures.Job)
		job.begin, job.steps, job.figures, job.marks = 0, ["1.0 s: a step"], {}, {}
		job.rig = argparse.Namespace(rails=4, guest=lambda _: (_ for _ in ()).throw(
			railyard_vm.RigError("gone")))
		processes = {h: FakeProcess(texts.get(h, "")) for h in "ab"}
		for p in processes.values():
			p.poll = lambda: None
		job.run = argparse.Namespace(processes=processes)
		return job

	def test_half_seconds_with_traffic(self):
		job = self.job(a="interval  rank 0  0.500 s  0.000 MB/s\ninterval  rank 0  1.000 s  7.250 MB/s\n"
			       "interval  rank 0  1.500 s  0.010 MB/s\nother 5 MB/s\n")
		self.assertEqual((job.received("a"), job.received("b")), (2, 0))

	def test_lines_are_of_the_lane_on_that_rail(self):
		job = self.job(a=FAILED)
		self.assertEqual(job.count(failures.rail_pattern(1, "failed")), 1)
		self.assertEqual(job.count(failures.rail_pattern(2, "failed")), 0)
		job.failed(1)
		job.fenced(1)

	def test_a_lane_that_is_down_already_has_failed(self):
		job = self.job(b=FAILED.splitlines()[0] + "\n")
		job.mark()
		job.failed(1)
		self.assertFalse(failures.lane_is_down(FAILED, 1))
		self.assertFalse(failures.lane_is_down(FAILED.splitlines()[0], 2))

	def test_lines_of_an_earlier_step_do_not_count(self):
		job = self.job(a=FAILED)
		job.mark()
		with self.assertRaisesRegex(failures.Story, "(?s)no lane.*a step.*fenced after.*a: gone"):
			job.until(lambda: job.count(failures.rail_pattern(1, "failed")) > job.marks[
				failures.rail_pattern(1, "failed")], "no lane of rail 1 failed", 0)

	def test_the_rail_of_control(self):
		log = ("NET/Railyard : control connection to b (pid 5, 10.77.0.2:999) is up\n"
		       "NET/Railyard : control connection to b (pid 5, 10.77.3.2:999) is up\n")
		self.assertEqual(failures.control_rail(log), 3)
		log += ("NET/Railyard : control connection to b (pid 5, 10.77.3.2:999) is there again, now with 10.77.1.2:9, "
			"after 80 ms\nlane 0 rxe0:1 -> rxe0:1 of b (pid 5, 10.77.0.2:999): failed: x\n")
		self.assertEqual(failures.control_rail(log), 1)
		self.assertEqual(failures.control_rail(""), 0)

	def test_an_ended_bench_is_no_wait(self):
		job = self.job()
		job.run.processes["b"].poll = lambda: 1
		with self.assertRaisesRegex(failures.Story, "bench on b ended with status 1"):
			job.until(lambda: False, "never", 60)


class Cuts(unittest.TestCase):
	cuts = load_command("cuts")
	# The cut was at 100.2 s of the sender's clock, which is 0.2 s ahead by then; the receiver's is not.
	CUT = cuts.Cut([1], 1, 100.0, 100.0, 104.0, 0.001)
	CLOCKS = {"a": [(90, 0.1), (110, 0.3)], "b": [(90, 0), (110, 0)]}

	@staticmethod
	def rank(rate_of, gap_of):
		times = [85 + n / 10 for n in range(300)]
		return {"start_wall_ms": 85000, "interval_bytes_per_s": [rate_of(t + 0.05) for t in times],
			"interval_gap_ms": [gap_of(t) for t in times]}

	def figures(self, log=FAILED):
		rank = self.rank(lambda t: 16e6 if t < 100 or t > 106 else 8e6 if t < 101 else 12e6,
				 lambda t: 90 if 100 <= t < 100.3 else 20)
		return self.cuts.cut_figures(self.CUT, log, rank, 115, self.CLOCKS)

	def test_times_from_the_cut(self):
		found = self.figures()
		self.assertAlmostEqual(found["closed_ms"], 50)
		self.assertAlmostEqual(found["replay_ms"], 100)
		self.assertAlmostEqual(found["back_s"], 2.3)
		self.assertAlmostEqual(found["full_s"], 1.9, delta=0.11)
		self.assertEqual((found["gap_ms"], found["gap_before_ms"]), (90, 20))

	def test_rates(self):
		found = self.figures()
		self.assertEqual((found["before"], found["during"], found["after"]), (16e6, 8e6, 12e6))
		entry = {"case": "a", "rate": 4.0, "size": "1M", "cuts": [found] * 2, "wrong": 0, "late": 0}
		self.assertEqual(self.cuts.ratio_text(entry, "after"), "1.00 (1.00)")
		self.assertEqual(self.cuts.ratio_text(dict(entry, rate=0), "during"), "0.67 (0.67)")
		self.assertIn("| 2 | 50 (50) | 100 (100) | 100 (100) of 2: missed (10) |", self.cuts.table([entry]))

	def test_nothing_said_is_nothing_shown(self):
		found = self.figures(FAILED.replace("3 pieces", "0 pieces"))
		self.assertEqual((found["again"], found["replay_ms"]), (0, None))
		found = self.figures("")
		self.assertEqual((found["closed_ms"], found["again"], found["back_s"]), (None, None, None))
		self.assertEqual(self.cuts.spread([None, None]), "-")


if __name__ == "__main__":
	unittest.main()
