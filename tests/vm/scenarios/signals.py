"""What the rail map counts is what arrives, by an independent count; a driver tap puts the counters
that an unrelated tool reads into the map; the driver can be reloaded under the map."""

import json
import os

import bench

RAILS = 4
INJECTED = 300
FIELDS = {"hw_rx_pkts": "rcvd_pkts", "hw_tx_pkts": "sent_pkts", "hw_out_of_seq": "out_of_seq_request",
	  "hw_rx_nak_seq": "rcvd_seq_err", "hw_ack_timeout": "completer_retry_err",
	  "hw_rx_rnr": "rcvd_rnr_err"}


def near(got, want, what):
	assert abs(got - want) <= max(1, want / 100), "%s: %d, by an independent count %d" % (what, got, want)


class Watch:
	"""The map's and a packet socket's counts of a rail's arrivals at a host."""

	def __init__(self, rig, host):
		self.rig, self.host = rig, host
		self.process = rig.guest(host).popen("exec /usr/bin/python3 -I -S tests/vm/guest-count rail0")
		self.process.wait_for("watching")
		self.before = bench.map_row(rig, host, 0)

	def end(self, name):
		"""(the map's, the socket's)."""
		after = bench.map_row(self.rig, self.host, 0)
		self.process.write(b"")
		self.process.wait()
		words = self.process.out.split()
		return after["rx_" + name] - self.before["rx_" + name], int(words[words.index(name) + 1])


def counted(rig):
	figures = {}
	rig.shape(rail=0, mbyte_s=4.0)
	rig.ce(0, 10)
	watch = Watch(rig, "b")
	rig.perftest(0, mbytes=4, options="--tclass=2")
	figures["ce"], seen = watch.end("ce")
	assert seen > 20, seen
	near(figures["ce"], seen, "CE")

	rig.reset()
	rig.apply(rig.select(0, "a"), lambda e: vars(e).update(loss_pct=2.0, mark=False))
	watch = Watch(rig, "a")
	rig.perftest(0, mbytes=4)
	figures["nak"], seen = watch.end("nak")
	assert seen > 2, seen
	near(figures["nak"], seen, "NAK")
	rig.reset()
	return figures


def injected(rig):
	"""CNPs over IPv4, IPv6 and VLAN, and RNR: as many as were sent."""
	# QEMU's NIC drops tags that the guest did not ask for, unless it is promiscuous.
	rig.b.run("ip link set rail0 promisc on")
	before = bench.map_row(rig, "b", 0)
	rig.a.run("exec /usr/bin/python3 -I -S tests/vm/guest-inject rail0 %d" % INJECTED)

	def grown(name):
		return bench.map_row(rig, "b", 0)[name] - before[name]

	bench.until(lambda: grown("rx_cnp") >= 3 * INJECTED * 0.99, lambda: "CNPs: %d" % grown("rx_cnp"), 5)
	near(grown("rx_cnp"), 3 * INJECTED, "CNP")
	near(grown("rx_rnr"), INJECTED, "RNR")
	rig.b.run("ip link set rail0 promisc off")
	return {"cnp": grown("rx_cnp"), "rnr": grown("rx_rnr")}


def pin_dir(rig):
	return rig.b.run("ls -d /sys/fs/bpf/railyard /run/railyard/bpf 2>/dev/null; true").out.split()[0]


def raw_row(rig, place, index):
	dump = json.loads(rig.b.run("bpftool -j map lookup pinned %s/v1/rails key %d 0 0 0"
				    % (place, index)).out)
	return dump["formatted"]["value"]


def statistic(rig):
	words = rig.b.run("rdma statistic show link rxe0/1").out.split()
	return {name: int(words[words.index(name) + 1]) for name in FIELDS.values()}


def tapped(rig):
	"""`rdma statistic`, which knows nothing of us, feeds the map."""
	index, place = bench.map_row(rig, "b", 0)["rail"], pin_dir(rig)
	tap = rig.b.popen("exec %s %s" % (os.path.join(bench.build(), "tests/bpf/hold_taps"), place))
	tap.wait_for("tables 0", 60)
	assert raw_row(rig, place, index)["hw_src"] == 0, "somebody wrote the hw part before"
	statistic(rig)
	tap.wait_for("tables 1", 20)
	want = statistic(rig)
	row = raw_row(rig, place, index)
	assert row["hw_src"] == 2 and row["hw_seq"] % 2 == 0 and row["hw_sample_ns"], row
	assert {f: row[f] for f in FIELDS} == {f: want[name] for f, name in FIELDS.items()}, (row, want)
	assert want["rcvd_pkts"] > 0, want
	held = rig.b.run("modprobe -r rdma_rxe", check=False)
	assert "in use" in held.err, "a tap should hold the module: " + str(held.err)
	tap.write(b"")
	assert tap.wait() == 0, tap.shown()
	return tap.out.count(" live ")


def reloaded(rig):
	"""rdma_rxe goes and comes under the pinned map; the rows are there again."""
	before = bench.map_row(rig, "b", 0)
	# The kernel lets go of a trampoline some time after its link.
	bench.until(lambda: rig.b.run("modprobe -r rdma_rxe", check=False).returncode == 0,
		    "rdma_rxe cannot be unloaded with the map loaded")
	lines = "\\n".join("link add rxe%d type rxe netdev rail%d" % (r, r) for r in range(rig.rails))
	rig.b.run("modprobe rdma_rxe && printf '%s\\n' | rdma -b -" % lines)
	rig.b.run(bench.railyard() + " load --add")
	after = bench.map_row(rig, "b", 0)
	assert after["rail"] == before["rail"] and after["ibdev"] == "rxe0", after
	rig.perftest(0, mbytes=1)
	assert bench.map_row(rig, "b", 0)["rx_packets"] > after["rx_packets"] >= before["rx_packets"]


def run(rig):
	with bench.rail_map(rig):
		figures = counted(rig)
		figures.update(injected(rig))
		figures["taps"] = tapped(rig)
		reloaded(rig)
	return figures
