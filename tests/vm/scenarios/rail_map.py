"""The rail map on a stock kernel: every hook lives, a pulled cable shows, and a second one at once;
packets and CE marks are counted; unload leaves nothing."""

import json
import os
import time

RAILS = 2


def find_railyard():
	"""RAILYARD, or the newest build of it."""
	if "RAILYARD" in os.environ:
		return os.environ["RAILYARD"]
	build = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "..", "build")
	found = [os.path.join(build, preset, "tools/railyard/railyard")
		 for preset in ("dev", "ci", "release")]
	found = [os.path.realpath(path) for path in found if os.path.exists(path)]
	assert found, "no build of the railyard command: cmake --workflow --preset dev"
	return max(found, key=os.path.getmtime)


class Map:
	def __init__(self, rig, railyard):
		self.rig = rig
		self.railyard = railyard

	def read(self, host):
		return json.loads(self.rig.guest(host).run(self.railyard + " rails --json").out)

	def row(self, host, rail):
		name = "rail%d" % rail
		return next(r for r in self.read(host)["rails"] if r["netdev"] == name)

	def wait(self, host, rail, link, seconds=5):
		end = time.monotonic() + seconds
		while self.row(host, rail)["link"] != link:
			assert time.monotonic() < end, "rail %d of %s is not %s: %s" % (
				rail, host, link, self.row(host, rail))


def pull(rig, rail_map, rail):
	"""Pull and plug a cable; returns after how many seconds the loss was seen."""
	before = rail_map.row("a", rail)["link_downs"]
	begin = time.monotonic()
	rig.link("a", rail, up=False)
	rail_map.wait("a", rail, "down")
	took = time.monotonic() - begin
	assert rail_map.row("a", rail)["link_downs"] == before + 1, "one loss, counted twice"
	assert rail_map.row("b", rail)["link"] == "up", "the other end lost no carrier"
	rig.link("a", rail, up=True)
	rail_map.wait("a", rail, "up")
	return round(took, 2)


def left(rig):
	return rig.a.run("bpftool prog show; bpftool map show; ls /sys/fs/bpf").out


def run(rig):
	railyard = find_railyard()
	rail_map = Map(rig, railyard)
	figures = {}
	for done in rig.both(railyard + " load").values():
		assert "missing" not in done.out, done.out
	hooks = rail_map.read("a")["hooks"]
	assert len(hooks) == 7, hooks
	for rail in range(RAILS):
		row = rail_map.row("a", rail)
		assert row["ibdev"] == "rxe%d" % rail and row["pci"] and row["link"] == "up", row

	figures["loss_s"] = pull(rig, rail_map, 1)
	# Linkwatch would sit on a second loss for the rest of its second.
	figures["second_loss_s"] = pull(rig, rail_map, 1)

	rig.perftest(0, mbytes=4)
	row = rail_map.row("b", 0)
	figures["rx_packets"] = row["rx_packets"]
	assert row["rx_packets"] >= 61 * 16 and row["rx_bytes"] > 4e6, row
	assert row["rx_packets"] == rail_map.row("a", 0)["tx_packets"], rail_map.row("a", 0)
	assert row["rx_ce"] == 0 and row["rx_nak"] == 0, row

	rig.shape(mbyte_s=4.0)
	rig.ce(0, 10)
	rig.perftest(0, mbytes=4, options="--tclass=2")
	figures["ce"] = rail_map.row("b", 0)["rx_ce"]
	assert 20 < figures["ce"] < 400, figures

	for done in rig.both(railyard + " unload").values():
		assert done.out.startswith("unloaded"), done.out
	# The kernel frees a trampoline's program some time after its link is gone.
	bench.until(lambda: not re.search("qdisc_reset|carrier|rail", left(rig)),
		    lambda: "left after unload: " + left(rig))
	return figures
