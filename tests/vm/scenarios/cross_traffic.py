"""Cross traffic slows one rail after the other, a second each, by the guests' own clock, and ends cleanly."""

import time

NOMINAL = 4.0


def run(rig):
	rig.shape(mbyte_s=NOMINAL)
	with rig.cross_traffic(pct=20) as cross:
		time.sleep(2 * rig.rails + 1.5)
	log = cross.log("a")
	low = [entry for entry in log if entry[2] < NOMINAL]
	assert [rail for _, rail, _ in low[:rig.rails]] == list(range(rig.rails)), log
	begin = low[0][0]
	average = cross.available("a", begin, begin + 2 * rig.rails)
	expected = NOMINAL * (rig.rails - 0.4)
	assert abs(average - expected) < 0.05 * expected, "average %.2f, expected %.2f" % (
		average, expected)
	left = rig.both("tc qdisc show")
	for host, shown in left.items():
		assert shown.out.count("rate 32Mbit") == rig.rails, "%s: %s" % (host, shown.out)
	return {"available_mbyte_s": round(average, 2)}
