#!/usr/bin/python3
"""Tests of the packet relay, between sockets that stand for the guests' NICs: test_relay.py RELAY"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
PATIENCE_S = 30
DATA, ACK = 0x0a, 0x11


def frame(opcode=DATA, number=0, port=4791, protocol=17, ethertype=b"\x08\x00", options=0):
	"""An Ethernet frame with IPv4, UDP and a BTH."""
	ip = bytes([0x45 + options]) + bytes(8) + bytes([protocol]) + bytes(10) + bytes(4 * options)
	udp = bytes(2) + port.to_bytes(2, "big") + bytes(4)
	return bytes(12) + ethertype + ip + udp + bytes([opcode]) + number.to_bytes(4, "big") + bytes(60)


class Relay(unittest.TestCase):
	def setUp(self):
		self.folder = tempfile.TemporaryDirectory()
		self.nics = {}
		for host in "ab":
			for rail in range(2):
				self.nics[rail, host] = nic = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
				nic.bind(self.path("rail%d.%s" % (rail, host)))
				nic.settimeout(PATIENCE_S)
		self.process = subprocess.Popen([PROGRAM, "7", self.folder.name, "2"], text=True,
						stdin=subprocess.PIPE, stdout=subprocess.PIPE)
		self.assertEqual(self.process.stdout.readline(), "ok ready\n")

	def tearDown(self):
		self.process.stdin.close()
		self.assertEqual(self.process.wait(PATIENCE_S), 0)
		self.process.stdout.close()
		for nic in self.nics.values():
			nic.close()
		self.folder.cleanup()

	def path(self, name):
		return os.path.join(self.folder.name, name)

	def tell(self, line):
		self.process.stdin.write(line + "\n")
		self.process.stdin.flush()
		return self.process.stdout.readline().strip()

	def send(self, data, rail=0, to="b"):
		self.nics[rail, "ab"[to == "a"]].sendto(data, self.path("relay%d.%s" % (rail, to)))

	def numbers(self, count, rail=0, to="b"):
		"""The numbers of the next frames that a NIC gets."""
		return [int.from_bytes(self.nics[rail, to].recv(9999)[43:47], "big") for _ in range(count)]

	def nothing(self, rail=0, to="b"):
		"""Nothing has come: what is sent now is the next to arrive."""
		self.tell("clear %d %s" % (rail, to))
		self.send(frame(number=99), rail, to)
		self.assertEqual(self.numbers(1, rail, to), [99])

	def test_passes_all_in_order_to_the_right_nic(self):
		for n in range(8):
			self.send(frame(number=n), n % 2, "ab"[n // 4])
		for rail, host, numbers in ((0, "a", [0, 2]), (1, "a", [1, 3]), (0, "b", [4, 6]), (1, "b", [5, 7])):
			self.assertEqual(self.numbers(2, rail, host), numbers)

	def test_a_rule_is_for_its_kind_rail_and_direction(self):
		frames = {"data": frame(DATA, 1), "acks": frame(ACK, 2), "arp": frame(ethertype=b"\x08\x06", number=3),
			  "tcp": frame(protocol=6, number=4), "udp": frame(port=53, number=5)}
		for what, lost in (("all", (1, 2, 3, 4, 5)), ("roce", (1, 2)), ("data", (1,)), ("acks", (2,))):
			self.assertEqual(self.tell("rule 0 b %s drop 100" % what), "ok")
			for data in frames.values():
				self.send(data)
			left = [n for n in range(1, 6) if n not in lost]
			self.assertEqual(self.numbers(len(left)), left, what)
			self.send(frame(number=7), 0, "a")
			self.send(frame(number=8), 1, "b")
			self.assertEqual(self.numbers(1, 0, "a") + self.numbers(1, 1, "b"), [7, 8])
			self.nothing()

	def test_short_frames_and_ip_options(self):
		self.tell("rule 0 b acks drop 100")
		whole = frame(ACK)
		for length in (0, 1, 14, 33, 34, 41, 42):
			self.send(whole[:length])
			self.assertEqual(self.nics[0, "b"].recv(9999), whole[:length])
		self.send(frame(ACK, options=2))
		self.send(whole[:43])
		self.nothing()

	def test_held_frames_come_at_release_and_again(self):
		self.tell("rule 0 b data hold 100")
		for n in range(3):
			self.send(frame(number=n))
		self.send(frame(ACK, 9))
		self.assertEqual(self.numbers(1), [9])
		self.tell("clear 0 b")
		for _ in range(2):
			self.assertEqual(self.tell("release 0 b"), "ok")
			self.assertEqual(self.numbers(3), [0, 1, 2])
		self.tell("forget 0 b")
		self.tell("release 0 b")
		self.nothing()

	def test_copies_are_the_newest(self):
		self.tell("rule 0 b all copy 100")
		for n in range(600):
			self.send(frame(number=n))
			self.assertEqual(self.numbers(1), [n])
		self.tell("release 0 b")
		self.assertEqual(self.numbers(512), list(range(88, 600)))
		self.nothing()

	def test_twice_and_late(self):
		self.tell("rule 0 b data twice 100 300")
		self.tell("rule 0 b acks late 100 100")
		self.send(frame(number=1))
		self.send(frame(ACK, 2))
		self.send(frame(port=1, number=3))
		self.assertEqual(self.numbers(4), [1, 3, 2, 1])

	def test_percent(self):
		self.tell("rule 0 b data drop 30")
		arrived = 0
		for n in range(1000):
			self.send(frame(number=n))
			self.send(frame(ACK, 2000))
			while self.numbers(1) != [2000]:
				arrived += 1
		self.assertTrue(600 < arrived < 800, arrived)
		words = self.tell("stats").split()
		at = words.index("b") + 1
		self.assertEqual(words[at:at + 2], [str(arrived + 1000), str(1000 - arrived)])

	def test_a_guest_that_does_not_read_loses_nothing(self):
		self.nics[0, "a"].setblocking(False)
		sent = 0
		try:
			while sent < 5000:
				self.nics[0, "a"].sendto(frame(number=sent), self.path("relay0.b"))
				sent += 1
		except BlockingIOError:
			pass
		self.assertLess(sent, 5000)
		self.assertEqual(self.numbers(sent), list(range(sent)))

	def test_refusals(self):
		for line in ("", "rule", "rule 0 b", "rule 0 b all drop", "rule 0 b all drop -1",
			     "rule 0 b all drop 101", "rule 0 b all lose 5", "rule 0 b some drop 5",
			     "rule 2 b all drop 5", "rule 0 c all drop 5", "burn 0 b", "x" * 300):
			self.assertTrue(self.tell(line).startswith("error: "), line)
		while not self.tell("rule 0 a all drop 5").startswith("error: too many"):
			pass
		self.nothing()


if __name__ == "__main__":
	PROGRAM = sys.argv.pop(1)
	unittest.main()
