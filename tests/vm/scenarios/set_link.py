"""Pulling a cable takes the RDMA port down at that end only; plugging it brings it back."""


def run(rig):
	figures = {}
	for host, rail in (("a", 1), ("b", 2)):
		rig.link(host, rail, up=False)
		figures["down_s_" + host] = round(rig.wait_link(host, rail, "DOWN"), 2)
		peer = rig.b if host == "a" else rig.a
		assert peer.rdma_states()[rail] == "ACTIVE", "the other end went down too"
		rig.link(host, rail, up=True)
		figures["up_s_" + host] = round(rig.wait_link(host, rail, "ACTIVE"), 2)
	return figures
