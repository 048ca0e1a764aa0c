"""Pulled cables under load: at the sender's port, the receiver's, both at once, a second rail while the first
recovers, and the rail of the control connection. The job goes on, each rail is used again, no byte is wrong.
"""

import failures


def cut(job, rig, rail, hosts, name):
	"""Pull the rail's cable at hosts; plug it when the rest carries the traffic."""
	with job.step(name):
		for host in hosts:
			rig.link(host, rail, up=False)
		job.failed(rail)
		job.works()
		for host in hosts:
			rig.link(host, rail, up=True)
		job.used(rail)


def second_while_first_recovers(job, rig):
	with job.step("a second rail"):
		rig.link("a", 1, up=False)
		job.failed(1)
		rig.link("b", 2, up=False)
		rig.link("a", 1, up=True)
		job.works()
		rig.link("b", 2, up=True)
		job.used(1)
		job.used(2)


def run(rig):
	# The plugin's control connection on a rail; the benches meet on the control NIC.
	with failures.Job(rig, env="NCCL_SOCKET_IFNAME=rail") as job:
		cut(job, rig, 1, "a", "one end")
		cut(job, rig, 2, "b", "the other end")
		cut(job, rig, 3, "ab", "both ends")
		second_while_first_recovers(job, rig)
		cut(job, rig, failures.control_rail(job.text("a")), "a", "control")
	return job.figures
