"""Every operation moves every size from 0 B to 16 MiB over 4 rails, through the oldest, a middle and the
newest ABI: no byte wrong, none late. v8 cannot fuse devices: one connection per device.

With --full: all ABIs, every power of two, more iterations, groups of receives, small chunks.
"""

FULL = True

import bench

OPERATIONS = ("sendrecv", "allreduce", "alltoall", "allgather")


def sizes_of(rig, operation, abi, args):
	result = bench.run(rig, "%s --abi %d -b 0 -e 16M %s" % (operation, abi, args), 300)
	try:
		return bench.right(result)
	except AssertionError as error:
		raise AssertionError("%s v%d: %s" % (operation, abi, error)) from error


def run(rig):
	abis, args = (8, 11, 12), "-f 16 -n 2 -w 0"
	if rig.full:
		abis, args = range(8, 13), "-f 2 -n 4 -w 1"
	sizes = {}
	for abi in abis:
		for operation in OPERATIONS:
			sizes[operation] = sizes_of(rig, operation, abi, args)
		if rig.full:
			sizes_of(rig, "sendrecv", abi, "-f 4 -n 2 --group 8 --chunk 128K")
			sizes_of(rig, "pingpong", abi, "-f 4 -n 2 --test all")
	assert all(n >= 7 for n in sizes.values()), sizes
	return {"abis": "/".join("v%d" % a for a in abis), "sizes": sizes["sendrecv"], "wrong": 0}
