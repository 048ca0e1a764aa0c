"""Each kind of trouble that the rig offers does what its name says: CE marks arrive on packets with ECT,
a black hole passes nothing and ends, a second sender takes its part of a rail."""

# Counts CE packets where they arrive (u32: the two lowest bits of the TOS byte are both set).
COUNT_CE = ("tc qdisc replace dev rail1 clsact && tc filter replace dev rail1 ingress handle 800::800 "
	    "prio 1 protocol ip u32 match ip tos 3 3 action pass")
SHOW_CE = "tc -j -s filter show dev rail1 ingress | grep -o '\"packets\":[0-9]*' | head -1"


def ce_packets(rig):
	return int(rig.b.run(SHOW_CE).out.split(":")[1])


def marks(rig):
	rig.b.run(COUNT_CE)
	rig.ce(1, 10)
	rig.perftest(1, mbytes=4, options="--tclass=2")
	seen = ce_packets(rig)
	rig.ce(1, 0)
	rig.perftest(1, mbytes=1, options="--tclass=2")
	later = ce_packets(rig) - seen
	rig.b.run("tc qdisc del dev rail1 clsact")
	assert seen >= 20, "only %d of about 1000 packets arrived marked" % seen
	assert later == 0, "%d packets were still marked afterwards" % later
	return seen


def reaches(rig):
	return rig.a.run("busybox ping -c 2 -W 2 10.77.2.2", check=False).returncode == 0


def run(rig):
	rig.shape(mbyte_s=4.0)
	figures = {"ce_packets": marks(rig)}

	rig.blackhole(2, "a")
	assert not reaches(rig), "a packet came through the black hole"
	rig.blackhole(2, "a", on=False)
	assert reaches(rig), "rail 2 is not repaired"

	flood = rig.flood(3, "a", 2.5)
	rate = figures["beside_2.5_mbyte_s"] = round(rig.perftest(3, mbytes=6), 2)
	flood.stop()
	assert rate <= 3.0, "%.2f MB/s of 4 were left beside a sender of 2.5" % rate
	return figures
