#!/usr/bin/python3
"""Unit tests of the rig's parts that need no guest."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
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


if __name__ == "__main__":
	unittest.main()
