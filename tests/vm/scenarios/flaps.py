"""A rail that flaps: five times in a row, then it is used again with its full share.

With --full: 100 flaps of random length, a GID index that changes meanwhile, a long silent loss (a minute,
for the ten that a switch may need), and the CPU time of the plugin's threads while a rail is down.
"""

import random
import time

import failures
import relay

RAIL = 1
# Of four equal rails; the aim is 25.
SHARE_PCT = 17
SILENT_S = 60
CPU_S = 10
# The plugin's threads together, of one CPU.
CPU_PCT = 50

# The address goes and comes; another takes its place in the table of GIDs first, or none does.
FIRST_INDEX = "ip addr del 10.77.{0}.{1}/24 dev rail{0} && ip addr add 10.77.{0}.{1}/24 dev rail{0}"
OTHER_INDEX = ("ip addr del 10.77.{0}.{1}/24 dev rail{0} && ip addr add 10.79.{0}.{1}/24 dev rail{0} && "
	       "ip addr add 10.77.{0}.{1}/24 dev rail{0} && sleep 0.5 && ip addr del 10.79.{0}.{1}/24 dev rail{0}")
SHOW_INDEX = "grep -l ffff:0a4d /sys/class/infiniband/rxe%d/ports/1/gids/*" % RAIL


def full_share(job):
	job.until(lambda: job.share()[RAIL] >= SHARE_PCT, lambda: "shares stay at %s" % job.share())


def flap(job, rig, times, longest_s, seed=5):
	chance = random.Random(seed)
	with job.step("%d flaps" % times):
		for _ in range(times):
			host = chance.choice("ab")
			rig.link(host, RAIL, up=False)
			time.sleep(chance.uniform(0.05, longest_s))
			rig.link(host, RAIL, up=True)
			time.sleep(chance.uniform(0.05, longest_s))
		job.works()
		job.used(RAIL)
		full_share(job)


def other_gid_index(job, rig):
	"""To another and back again."""
	for change in (OTHER_INDEX, FIRST_INDEX):
		before = rig.a.run(SHOW_INDEX).out
		with job.step("another GID index"):
			rig.link("a", RAIL, up=False)
			job.failed(RAIL)
			rig.a.run(change.format(RAIL, 1))
			after = rig.a.run(SHOW_INDEX).out
			assert after != before, "the GID index did not change: " + after
			rig.link("a", RAIL, up=True)
			job.used(RAIL)
			full_share(job)


def silent(job, rig):
	with relay.Relay(rig) as hole, job.step("silent for long"):
		for to in "ab":
			hole.rule(RAIL, to, "all", "drop")
		job.failed(RAIL)
		time.sleep(SILENT_S)
		hole.clear(RAIL)
		job.used(RAIL)
		full_share(job)


def cpu_ticks(rig, host):
	"""Of the bench's threads but the one that drives the plugin."""
	text = rig.guest(host).run("p=$(pidof railyard); for t in /proc/$p/task/*; do "
				   "[ ${t##*/} = $p ] || sed 's/.*) //' $t/stat; done").out
	return sum(sum(map(int, line.split()[11:13])) for line in text.splitlines())


def cpu(job, rig):
	with job.step("cpu"):
		rig.link("a", RAIL, up=False)
		job.failed(RAIL)
		before = {h: cpu_ticks(rig, h) for h in "ab"}
		begin = time.monotonic()
		time.sleep(CPU_S)
		pct = {h: (cpu_ticks(rig, h) - before[h]) / (time.monotonic() - begin) for h in "ab"}
		rig.link("a", RAIL, up=True)
		job.used(RAIL)
	job.figures["cpu_pct"] = "/".join("%.0f" % pct[h] for h in "ab")
	assert max(pct.values()) < CPU_PCT, "CPU time of the plugin's threads: %s %%" % pct


def run(rig):
	with failures.Job(rig) as job:
		if rig.full:
			flap(job, rig, 100, 2.0)
			other_gid_index(job, rig)
			silent(job, rig)
			cpu(job, rig)
		else:
			flap(job, rig, 5, 1.0)
	return job.figures
