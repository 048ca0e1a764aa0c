"""One rail of four at a quarter of the rate carries far less than an equal share, and all arrives right."""

FULL = True

import bench

SLOW = 3


def run(rig):
	rig.shape(mbyte_s=3.0)
	rig.slow(SLOW, 25)
	result = bench.run(rig, "sendrecv -b 1M -e 1M --duration 5")
	bench.right(result)
	text = result.shares_text("a")
	# Of 3.25 rails it is 7.7 %; an equal share would be 25 %.
	assert result.shares("a")[SLOW] < 15, "shares are %s: rail %d has a quarter of the rate" % (
		text, SLOW)
	return {"shares": text,
		"mbyte_s": round(result.rows[0]["busbw"] * 1e3, 2)}
