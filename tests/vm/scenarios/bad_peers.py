"""What a peer may get wrong: another plugin's handle, wrong environment values, other rails or another order
of them, garbage or nothing at the control port. One clear line each, in bounded time, and right bytes
wherever bytes can move.
"""

FULL = True

import time

import bench
import railyard_vm

TRANSFER = "sendrecv -b 1M -e 1M -n 4"
ABUSED_S = 20
# Enough for a transfer in a guest that starves.
PATIENCE_S = 60
WRONG = "NCCL_IB_TC=banana RAILYARD_WINDOW_US=-1"
# Name, value, range and the default that is used.
WRONG_LINES = (r"NCCL_IB_TC=banana .* -1\.\.255 .*default, -1", r"RAILYARD_WINDOW_US=-1 .* 10\.\.\d+ .*default, \d+")


def one_line(result, host, pattern):
	found = result.lines(host, pattern)
	assert len(found) == 1, "%s: %d lines with /%s/%s" % (host, len(found), pattern, result.shown())


def no_warning_but(result, expected):
	"""expected: how many by host."""
	for host in "ab":
		found = result.lines(host, "WARN")
		assert len(found) == expected.get(host, 0), "%s: %d warnings%s" % (
			host, len(found), result.shown(5000))


def other_plugin(rig, side):
	"""A plugin with handles of its own says that it is Railyard. Returns the seconds until both gave up."""
	begin = time.monotonic()
	result = bench.run(rig, TRANSFER, PATIENCE_S, **{
		"plugin_" + side: bench.OTHER_PLUGIN, "env_" + side: "TCPNET_NAME=Railyard"})
	assert 0 not in result.status.values(), "a transfer between two plugins" + result.shown()
	if side == "b":
		one_line(result, "a", "peer's handle is not usable: unknown plugin")
	return round(time.monotonic() - begin, 1)


def wrong_values(rig):
	"""At one end; and the other names the rails in another order."""
	result = bench.run(rig, TRANSFER, env_a=WRONG, env_b="NCCL_IB_HCA==rxe3,rxe2,rxe1,rxe0")
	bench.right(result)
	for pattern in WRONG_LINES:
		one_line(result, "a", pattern)
	no_warning_but(result, {"a": len(WRONG_LINES)})
	assert min(result.shares("a")) > 10, "a rail is missing: shares %s" % result.shares_text("a")


def fewer_rails(rig, side):
	result = bench.run(rig, TRANSFER, **{"env_" + side: "NCCL_IB_HCA=rxe0"})
	bench.right(result)
	no_warning_but(result, {})
	assert result.shares("a")[0] > 95, "one end has rail 0 only: shares %s" % result.shares_text("a")


def abused(rig):
	"""Strangers at both control ports during a transfer. Returns what they saw."""
	strangers = {h: rig.guest(railyard_vm.other(h)).popen(
		"exec /usr/bin/python3 -I -S tests/vm/guest-abuse") for h in "ab"}
	for stranger in strangers.values():
		stranger.wait_for("ready")
	run = bench.Run(rig, "sendrecv -b 1M -e 1M --poll sleep --duration %d" % ABUSED_S)
	ports = {h: run.wait_for(r"control connections on ([\d.]+):(\d+)", h) for h in "ab"}
	# Only now: a control connection of the two would have to wait behind the strangers.
	run.wait_for("control connection to .* is up", "b")
	for host, stranger in strangers.items():
		stranger.write(("%s %s\n" % (ports[host][1], ports[host][2])).encode())
	said = {h: p.wait_for(r"^(\d+) connections, (\d+) closed after (.+) s", 45)
		for h, p in strangers.items()}
	ended = {h: p.poll() for h, p in run.processes.items()}
	result = run.finish()
	bench.right(result)
	assert set(ended.values()) == {None}, "the transfer ended before the strangers had"
	for host, match in said.items():
		assert match[1] == match[2], "%s: %s" % (host, match[0])
		check_abuse_log(result, host)
	return "/".join(match[3] for match in said.values())


def check_abuse_log(result, host):
	"""Each kind is told, once a second at most."""
	for pattern in ("on a control connection: closed", "sent no complete HELLO"):
		assert result.lines(host, "WARN.*" + pattern), "%s: no line says '%s'%s" % (
			host, pattern, result.shown())
	count = len(result.lines(host, "WARN"))
	assert count <= 2 * ABUSED_S, "%s: %d lines on 200 connections%s" % (host, count, result.shown(5000))


def run(rig):
	rig.shape(mbyte_s=3.0)
	figures = {"other_plugin_b_s": other_plugin(rig, "b"), "other_plugin_a_s": other_plugin(rig, "a")}
	wrong_values(rig)
	fewer_rails(rig, "b")
	fewer_rails(rig, "a")
	figures["strangers_closed_s"] = abused(rig)
	return figures
