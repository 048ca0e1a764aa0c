"""Both guests come up with every rail ACTIVE, RoCEv2 over IPv4 at GID index 1, bpffs and tracefs."""


def run(rig):
	for guest in (rig.a, rig.b):
		for rail in range(rig.rails):
			assert guest.rdma_state(rail) == "ACTIVE", "%s: rxe%d is not ACTIVE" % (
				guest.host, rail)
			port = "/sys/class/infiniband/rxe%d/ports/1" % rail
			kind = guest.run("cat %s/gid_attrs/types/1" % port).out.strip()
			gid = guest.run("cat %s/gids/1" % port).out.strip()
			assert kind == "RoCE v2" and ":ffff:" in gid, "GID 1 is %s %s" % (kind, gid)
		mounts = guest.run("cat /proc/mounts").out
		for kind in (" bpf ", " tracefs "):
			assert kind in mounts, "%s: no%smount" % (guest.host, kind)
	return {"boot_s": rig.boot_s}
