"""The rail map on a stock kernel: every hook lives, a pulled cable shows, and a second one at once;
packets and CE marks are counted; unload leaves nothing."""

import re
import time

import bench

RAILS = 2


def row_becomes(rig, rail, link):
	bench.until(lambda: bench.map_row(rig, "a", rail)["link"] == link,
		    lambda: "rail %d is not %s: %s" % (rail, link, bench.map_row(rig, "a", rail)), 5)


def pull(rig, rail):
	"""Pull and plug a cable; returns after how many seconds the loss was seen."""
	before = bench.map_row(rig, "a", rail)["link_downs"]
	begin = time.monotonic()
	rig.link("a", rail, up=False)
	row_becomes(rig, rail, "down")
	took = time.monotonic() - begin
	assert bench.map_row(rig, "a", rail)["link_downs"] == before + 1, "one loss, counted twice"
	assert bench.map_row(rig, "b", rail)["link"] == "up", "the other end lost no carrier"
	rig.link("a", rail, up=True)
	row_becomes(rig, rail, "up")
	return round(took, 2)


def loaded(rig):
	hooks = bench.map_read(rig, "a")["hooks"]
	assert len(hooks) == 8, hooks
	for rail in range(RAILS):
		row = bench.map_row(rig, "a", rail)
		assert row["ibdev"] == "rxe%d" % rail and row["pci"] and row["link"] == "up", row


def counted(rig):
	"""Returns packets and CE marks that arrived."""
	rig.perftest(0, mbytes=4)
	row = bench.map_row(rig, "b", 0)
	assert row["rx_packets"] >= 61 * 16 and row["rx_bytes"] > 4e6, row
	assert row["rx_packets"] == bench.map_row(rig, "a", 0)["tx_packets"], bench.map_row(rig, "a", 0)
	assert row["rx_ce"] == 0 and row["rx_nak"] == 0, row

	rig.shape(mbyte_s=4.0)
	rig.ce(0, 10)
	rig.perftest(0, mbytes=4, options="--tclass=2")
	marks = bench.map_row(rig, "b", 0)["rx_ce"]
	assert 20 < marks < 400, "CE marks of some 1000 packets, 10 %% marked: %d" % marks
	return row["rx_packets"], marks


def left(rig):
	return rig.a.run("bpftool prog show; bpftool map show; ls /sys/fs/bpf").out


def run(rig):
	figures = {}
	for done in rig.both(bench.railyard() + " load").values():
		assert "missing" not in done.out, done.out
	loaded(rig)
	figures["loss_s"] = pull(rig, 1)
	# Linkwatch would sit on a second loss for the rest of its second.
	figures["second_loss_s"] = pull(rig, 1)
	figures["rx_packets"], figures["ce"] = counted(rig)

	for done in rig.both(bench.railyard() + " unload").values():
		assert done.out.startswith("unloaded"), done.out
	# The kernel frees a trampoline's program some time after its link is gone.
	bench.until(lambda: not re.search("qdisc_reset|carrier|rail", left(rig)),
		    lambda: "left after unload: " + left(rig))
	return figures
