"""Both guests come up with every rail ACTIVE, RoCEv2 over IPv4 at GID index 1, bpffs and tracefs."""


def run(rig):
	for guest in (rig.a, rig.b):
		states = guest.rdma_states()
		assert states == {r: "ACTIVE" for r in range(rig.rails)}, "%s: %s" % (guest.host, states)
		port = "/sys/class/infiniband/rxe*/ports/1"
		kinds = guest.run("cat %s/gid_attrs/types/1" % port).out.splitlines()
		gids = guest.run("cat %s/gids/1" % port).out.splitlines()
		assert kinds == ["RoCE v2"] * rig.rails, "%s: GID 1 is %s" % (guest.host, kinds)
		assert all(":ffff:0a4d:" in gid for gid in gids), "%s: GID 1 is %s" % (guest.host, gids)
		mounts = guest.run("cat /proc/mounts").out
		for kind in (" bpf ", " tracefs "):
			assert kind in mounts, "%s: no%smount" % (guest.host, kind)
	return {"boot_s": rig.boot_s}
