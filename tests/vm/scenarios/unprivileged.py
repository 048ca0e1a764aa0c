"""A job of uid nobody: it reads the rail map, and moves its bytes if it may lock enough memory; if not,
the end that failed names the limit, and both ends stop."""

FULL = True

import bench

NOBODY = "prlimit --memlock=%d setpriv --reuid=65534 --regid=65534 --clear-groups "
LIMIT = r"RLIMIT_MEMLOCK|ulimit -l"
TRANSFER = "sendrecv -b 1M -e 1M -n 4"


def run(rig):
	with bench.rail_map(rig):
		enough = bench.run(rig, TRANSFER, prefix=NOBODY % (256 << 20))
		short = bench.run(rig, TRANSFER, prefix=NOBODY % (64 << 10), timeout=60)
	bench.right(enough)
	for host in "ab":
		assert enough.lines(host, "signals: rail map"), "no map for nobody" + enough.shown()
	assert 0 not in short.status.values(), "64 KiB of locked memory were enough" + short.shown()
	named = short.lines("a", LIMIT)
	assert named, "no line names the limit on locked memory" + short.shown()
	return {"said": repr(named[0].split(" : ")[-1])}
