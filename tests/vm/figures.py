"""Shares of the rails over time, from samples of their counters. Pure: nothing here knows a guest.

A sample is (ms, [bytes that each rail has sent]); samples are in order of time.
"""


def read(text):
	"""The samples that guest-sample printed."""
	rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
	return [(float(row[0]), [int(n) for n in row[1:]]) for row in rows]


def percent(before, after):
	"""Share of each rail, in percent, of what was sent between two samples; None if nothing was."""
	grown = [b - a for a, b in zip(before[1], after[1])]
	return [100 * n / sum(grown) for n in grown] if sum(grown) else None


def within(samples, begin, end):
	return [s for s in samples if begin <= s[0] <= end]


def split(samples, at):
	"""Those before a time, and the rest."""
	return [s for s in samples if s[0] < at], [s for s in samples if s[0] >= at]


def over(samples, begin, end):
	"""Shares from begin to end; None if nothing was sent or sampled."""
	inside = within(samples, begin, end)
	return percent(inside[0], inside[-1]) if len(inside) > 1 else None


def sliding(samples, width_ms):
	"""(ms, shares of the width_ms before it) for each sample with so much before it."""
	first, found = 0, []
	for last in samples:
		while samples[first + 1][0] <= last[0] - width_ms:
			first += 1
		if samples[first][0] <= last[0] - width_ms and (shares := percent(samples[first], last)):
			found.append((last[0], shares))
	return found


def below_others(shares, rail):
	"""Points by which a rail's share is below the mean of the others'."""
	others = [s for r, s in enumerate(shares) if r != rail]
	return sum(others) / len(others) - shares[rail]


def time_until_below(samples, rail, mark, width_ms=200, points=2):
	"""ms from mark until the rail's share of the last width_ms is points below the others' mean.

	None if that never happens. At least a part of the window was after mark: what had been so
	before is not an answer to it.
	"""
	for at, shares in sliding(samples, width_ms):
		if at > mark and below_others(shares, rail) >= points:
			return at - mark
	return None


def lowest(samples, rail, width_ms=500):
	"""The lowest share of the rail over any width_ms; None if there are too few samples."""
	return min((shares[rail] for _, shares in sliding(samples, width_ms)), default=None)
