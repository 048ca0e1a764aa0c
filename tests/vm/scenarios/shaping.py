"""A shaped rail carries its nominal rate within 10 %, and a quarter of it when slowed to 25 %."""


def check(rate, nominal):
	assert abs(rate - nominal) <= 0.1 * nominal, "measured %.2f MB/s, nominal %.2f" % (rate, nominal)
	return round(rate, 2)


def run(rig):
	rig.shape(mbyte_s=4.0)
	figures = {"rail%d" % r: check(rig.perftest(r, sender="ab"[r % 2]), 4.0)
		   for r in range(rig.rails)}
	rig.slow(0, 25)
	figures["rail0_at_25_pct"] = check(rig.perftest(0, mbytes=4), 1.0)
	return figures
