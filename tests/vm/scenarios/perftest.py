"""perftest moves bytes over one unshaped rail, both ways."""


def run(rig):
	figures = {"write_mbyte_s": rig.perftest(0), "send_mbyte_s": rig.perftest(0, "b", "ib_send_bw")}
	for name, rate in figures.items():
		assert rate > 1, "%s is only %.1f" % (name, rate)
	return figures
