"""A rail that marks CE at an unchanged rate gets a smaller share while the rail map counts the marks.

All rails always have work waiting, so that only pacing can make the share smaller.
"""

FULL = True

import bench

MARKED = 1


def run(rig):
	rig.shape(mbyte_s=3.0)
	rig.ce(MARKED, 10, "a")
	with bench.rail_map(rig):
		result = bench.run(rig, "sendrecv -b 1M -e 1M --window 8 --duration 8",
				   env="NCCL_IB_TC=2")
		bench.right(result)
		marks = [bench.map_row(rig, "b", r)["rx_ce"] for r in range(rig.rails)]
	assert marks[MARKED] > 0 and sum(marks) == marks[MARKED], "CE marks by rail: %s" % marks
	shares, text = result.shares("a"), result.shares_text("a")
	others = (100 - shares[MARKED]) / (rig.rails - 1)
	assert shares[MARKED] < others - 1, "shares are %s: rail %d marks CE" % (text, MARKED)
	return {"marks": marks[MARKED], "shares": text}
