"""A rail goes down while nothing is in flight on it: the map's row and the plugin say so, new messages avoid
it, and they use it again once it is up. By a pulled cable at one end, by `ip link` at the other.

With --full: both ways at both ends, and without a map.
"""

FULL = True

import time

import bench

RAIL = 2
# Many sizes, each of which gives a verdict after its 3 s.
ENDLESS = "-b 1M -i 4K -e 4M -w 0"
# Packets of 4 KiB in two seconds, at 9 MB/s.
MANY = 200


def pull(rig, host, up):
	rig.link(host, RAIL, up)


def ip_link(rig, host, up):
	rig.guest(host).run("ip link set rail%d %s" % (RAIL, "up" if up else "down"))


def row_says(rig, host, *links):
	bench.until(lambda: bench.map_row(rig, host, RAIL)["link"] in links,
		    "%s: the row of rail %d does not become %s" % (host, RAIL, " or ".join(links)))


def packets(rig, enough):
	"""Packets on each rail, both ends, until an other one had enough."""
	before, end = bench.sent(rig), time.monotonic() + 30
	while True:
		time.sleep(1)
		grown = bench.grown(before, bench.sent(rig))
		if enough(grown):
			return grown
		assert time.monotonic() < end, "packets by rail in 30 s: %s" % grown


def cut(rig, host, change, has_map=True):
	"""Returns the packets by rail while it was down, and after it was up again."""
	name = "rxe%d:1: " % RAIL
	run = bench.Run(rig, "sendrecv --window 2 --duration 3 " + ENDLESS)
	try:
		packets(rig, lambda grown: grown[RAIL] > MANY)
		with run.held():
			change(rig, host, False)
			run.wait_for(name + "link down, no new pieces", host)
			if has_map:
				row_says(rig, host, "down", "admin down")
			time.sleep(1)		# until the other end has been told
		down = packets(rig, lambda grown: sum(grown) - grown[RAIL] > 3 * MANY)
		change(rig, host, True)
		run.wait_for(name + "link up, in use again", host)
		if has_map:
			row_says(rig, host, "up")
		up = packets(rig, lambda grown: grown[RAIL] > MANY)
		verdicts = len(run.table())
		bench.until(lambda: len(run.table()) >= verdicts + 2, "the bench stands still", 60)
	finally:
		change(rig, host, True)
		run.kill()
	assert not any(wrong or late for _, wrong, late in run.table()), run.table()
	assert down[RAIL] == 0, "packets by rail while rail %d was down: %s" % (RAIL, down)
	return "%s/%s" % (down, up)


def run(rig):
	figures = {}
	rig.shape(mbyte_s=3.0)
	with bench.rail_map(rig):
		figures["pulled_a"] = cut(rig, "a", pull)
		figures["ip_link_b"] = cut(rig, "b", ip_link)
		if rig.full:
			figures["pulled_b"] = cut(rig, "b", pull)
			figures["ip_link_a"] = cut(rig, "a", ip_link)
	if rig.full:
		figures["no_map_pulled_a"] = cut(rig, "a", pull, False)
		figures["no_map_pulled_b"] = cut(rig, "b", pull, False)
	return figures
