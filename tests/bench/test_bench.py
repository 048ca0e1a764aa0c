#!/usr/bin/env python3
"""End-to-end tests of `railyard bench` over the loopback plugin tcpnet.

test_bench.py BENCH PLUGIN GROUP    runs one group of cases (see GROUPS), exit status 0 = all passed

Each case runs real ranks (processes) and reads rank 0's JSON. The fault cases prove that the checks
of bench can fail: each makes the plugin misbehave once and wants it found, and named.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

BENCH, PLUGIN = "", ""
SEED_SIZES = ["-b", "0", "-e", "1M", "-f", "8", "-n", "6", "-w", "1"]


class Outcome:
    def __init__(self, status, out, err, report):
        self.status, self.out, self.err, self.report = status, out, err, report

    def rows(self):
        return self.report["results"]


def bench(args, fault=None, env=None, timeout=100):
    environment = dict(os.environ, **(env or {}))
    if fault:
        environment["TCPNET_FAULT"] = fault
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        run = subprocess.run([BENCH, *args, "-p", PLUGIN, "--json", path], env=environment,
                             capture_output=True, text=True, timeout=timeout)
        report = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                report = json.load(f)
    return Outcome(run.returncode, run.stdout, run.stderr, report)


def want(condition, what, outcome):
    if not condition:
        raise AssertionError("%s\nstatus %d\n%s\n%s"
                             % (what, outcome.status, outcome.out, outcome.err))


def expect_clean(args, rows=None, **kwargs):
    outcome = bench(args, **kwargs)
    want(outcome.status == 0, "not clean", outcome)
    for row in outcome.rows():
        faults = [row[key] for key in ("wrong", "bad_sizes", "overruns", "canaries")]
        want(faults == [0, 0, 0, 0], "faults %s" % faults, outcome)
        sent = sum(rank["sent_bytes"] for rank in row["ranks"])
        received = sum(rank["received_bytes"] for rank in row["ranks"])
        want(sent == received, "sent %d, received %d" % (sent, received), outcome)
    if rows is not None:
        want(len(outcome.rows()) == rows, "%d rows, not %d" % (len(outcome.rows()), rows), outcome)
    return outcome


def total(outcome, key):
    return sum(rank[key] for row in outcome.rows() for rank in row["ranks"])


def ops():
    for ranks in ("2", "4"):
        for op in ("sendrecv", "pingpong", "allreduce", "allgather", "alltoall"):
            # 1 B is no whole element or block: rounded down to 0 B, which was just run.
            rows = 8 if op in ("sendrecv", "pingpong") else 7
            expect_clean([op, "--local", ranks, *SEED_SIZES], rows=rows)
    expect_clean(["allreduce", "--local", "3", "--chunk", "4K", *SEED_SIZES], rows=7)
    expect_clean(["sendrecv", "--local", "1", *SEED_SIZES], rows=8)


def bytes_moved():
    """The amount of data is what the operation's definition says."""
    one = ["--local", "2", "-b", "300000", "-n", "5", "-w", "3", "--chunk", "64K"]
    for args, expected in (
            (["sendrecv"], 5 * 300000),
            (["sendrecv", "--bidir"], 2 * 5 * 300000),
            (["sendrecv", "--group", "3"], 3 * 5 * 300000),
            (["pingpong"], 2 * 5 * 300000),
            (["allreduce"], 2 * 5 * 300000),            # 2 ranks, each 2 halves
            (["allgather"], 2 * 5 * 150000),
            (["alltoall"], 2 * 5 * 150000)):
        outcome = expect_clean(args + one, rows=1)
        want(total(outcome, "received_bytes") == expected,
             "%s: %d bytes" % (args, total(outcome, "received_bytes")), outcome)
    for args, sender in ((["sendrecv"], 0), (["sendrecv", "--reverse"], 1)):
        outcome = expect_clean(args + one)
        sent = [rank["sent_bytes"] for rank in outcome.rows()[0]["ranks"]]
        want(sent[sender] and not sent[1 - sender], "wrong direction: %s" % sent, outcome)


def groups():
    for group in ("2", "5", "8"):
        expect_clean(["sendrecv", "--local", "2", "--group", group, "--chunk", "32K", *SEED_SIZES])
        expect_clean(["alltoall", "--local", "3", "--group", group, "--chunk", "32K", "--test",
                      "all", *SEED_SIZES])


def shapes():
    """Windows, chunks, connections, devices, polling."""
    small = ["-b", "0", "-e", "200000", "-f", "9", "-n", "5"]
    for extra in (["--window", "1"], ["--window", "32"], ["--chunk", "128"], ["--comms", "3"],
                  ["--merge", "none"], ["--dev", "1"], ["--dev", "tcp1,tcp0"], ["--poll", "sleep"],
                  ["--poll", "spin"], ["--test", "all"], ["--canary", "off"], ["-i", "70001"]):
        expect_clean(["sendrecv", "--local", "2", "--bidir", *small, *extra])
    outcome = expect_clean(["sendrecv", "--local", "2", "-b", "4K", "--merge", "none"])
    want(outcome.report["options"]["comms"] == 2, "not one connection per device", outcome)
    want(outcome.report["ranks"][1]["devices"] == "tcp0,tcp1", "devices", outcome)
    outcome = expect_clean(["sendrecv", "--local", "2", "-b", "4K"])
    want(outcome.report["ranks"][0]["speed_mbps"] == 20000, "devices not fused", outcome)
    outcome = expect_clean(["sendrecv", "--local", "2", "-b", "4K", "--abi", "11"],
                           env={"TCPNET_DEVS": "6"})
    want(outcome.report["options"]["comms"] == 6, "6 devices cannot be fused by v11", outcome)


def abi():
    for version in ("8", "9", "10", "11", "12"):
        outcome = expect_clean(["alltoall", "--local", "2", "--abi", version, "--group", "4",
                                *SEED_SIZES], rows=7)
        want(outcome.report["plugin"]["abi"] == int(version), "another ABI", outcome)
    outcome = expect_clean(["sendrecv", "--local", "2", "-b", "1K"])
    want(outcome.report["plugin"]["abi"] == 12, "not the newest ABI", outcome)


def late_writes(message):
    """Ping-pong, so that bench has used message n before n + 1 comes and brings the late write."""
    # Seen when the buffer is posted again; after the last message none is, but bench looks as well.
    for number, iters in ((7, "40"), (18, "20")):
        outcome = bench(["pingpong", *message, "-n", iters], fault="late:%d" % number)
        want(outcome.status == 3, "late: status", outcome)
        want(outcome.rows()[0]["canaries"] == 2, "late: not once at each rank", outcome)
        want("changed after done (canary): message %d " % number in outcome.err, "unnamed", outcome)
    outcome = bench(["pingpong", *message, "--canary", "off"], fault="late:18")
    want(outcome.status == 0, "a write that only the canary can see was seen without it", outcome)


def faults():
    message = ["--local", "2", "-b", "1000", "-n", "20", "-w", "0", "--timeout", "2"]
    for kind, key, text in (("corrupt", "wrong", "wrong data: message 7 "),
                            ("overrun", "overruns", "behind the message changed: message 7 "),
                            ("size", "bad_sizes", "told a wrong size: message 7 ")):
        outcome = bench(["sendrecv", *message], fault=kind + ":7")
        want(outcome.status == 3, "%s: status" % kind, outcome)
        want(outcome.rows()[0][key] == 1, "%s: not counted once" % kind, outcome)
        want(text in outcome.err, "%s: not named" % kind, outcome)
    late_writes(message)
    # Errors of the warm-up count, and errors inside a reduction show in the sums of all ranks.
    outcome = bench(["sendrecv", *message, "-w", "10"], fault="corrupt:3")
    want(outcome.status == 3 and outcome.rows()[0]["wrong"] == 1, "warm-up", outcome)
    for op in ("allreduce", "allgather", "alltoall", "pingpong"):
        outcome = bench([op, *message], fault="corrupt:4")
        want(outcome.status == 3 and outcome.rows()[0]["wrong"] >= 1, op, outcome)
    outcome = bench(["sendrecv", *message, "--check", "off"], fault="corrupt:7")
    want(outcome.status == 0 and "N/A" in outcome.out, "--check off checks", outcome)


def failures():
    message = ["--local", "2", "-b", "1000", "-n", "20", "--timeout", "1"]
    for kind, text in (("hang", "stuck: receive from rank 0, comm 0: message 7 posted"),
                       ("block", "has not returned from test for 1 s"),
                       ("error", "test (v12) returned 6 (remote error)"),
                       ("silent", "irecv succeeded without writing *request")):
        outcome = bench(["sendrecv", *message], fault=kind + ":7", timeout=20)
        want(outcome.status == 1, "%s: status" % kind, outcome)
        want(text in outcome.err, "%s: not named" % kind, outcome)
        want(kind in ("error", "silent") or "rank 0: stopped because of rank 1" in outcome.err,
             "%s: rank 0 was not told" % kind, outcome)
        want(outcome.report and outcome.report.get("error"), "%s: not in the JSON" % kind, outcome)
    for args, status, text in (
            (["bogus", "--local", "2"], 2, 'no operation "bogus"'),
            (["sendrecv", "--local", "2", "--group", "9"], 2, "from 1 to 8"),
            (["sendrecv", "--local", "2", "--chunk", "100"], 2, "multiple of 128"),
            (["sendrecv", "--local", "2", "-b", "1Z"], 2, "give a size like"),
            (["sendrecv", "--local", "2", "-b", "99999999999G"], 2, "give a size like"),
            (["sendrecv", "--local", "2", "-b", "2", "-e", "1"], 2, "-b is larger"),
            (["sendrecv", "--ranks", "2"], 2, "give --meet"),
            (["sendrecv", "--rank", "2", "--ranks", "2"], 2, "not below --ranks"),
            (["--local", "2"], 2, "name an operation"),
            (["sendrecv", "--local", "3"], 1, "3 ranks is odd"),
            (["allreduce"], 1, "needs 2 ranks"),
            (["allreduce", "--local", "2", "--group", "2"], 1, "--group is for"),
            (["sendrecv", "--local", "2", "--dev", "tcp7"], 1, 'no device "tcp7"'),
            (["sendrecv", "--local", "2", "--meet", "nowhere"], 1, "give HOST:PORT")):
        outcome = bench(args, timeout=20)
        want(outcome.status == status and text in outcome.err, "%s" % args, outcome)
    outcome = bench(["sendrecv", "--local", "2", "--merge", "all", "--abi", "11"],
                    env={"TCPNET_DEVS": "6"})
    want(outcome.status == 1 and "can fuse 4 with ABI v11" in outcome.err, "merge", outcome)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(args, env=None):
    return subprocess.Popen([BENCH, *args, "-p", PLUGIN], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ, **(env or {})))


def meeting():
    """Ranks that are started one by one, as on several hosts."""
    meet = "127.0.0.1:%d" % free_port()
    common = ["--ranks", "3", "--meet", meet]
    late = start([*common, "--rank", "2"])
    first = start(["allreduce", *common, "--rank", "0", "-b", "4K", "-n", "3"])
    second = start(["allreduce", *common, "--rank", "1"])
    for process in (first, second, late):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert process is first or out == "", "only rank 0 prints: " + out

    # Strangers and a wrong operation.
    meet = "127.0.0.1:%d" % free_port()
    common = ["--ranks", "2", "--meet", meet]
    first = start(["sendrecv", *common, "--rank", "0", "-b", "4K"])
    host, port = meet.split(":")
    for payload in (b"GET / HTTP/1.0\r\n\r\n", b""):
        for _ in range(100):
            try:
                with socket.create_connection((host, int(port)), timeout=5) as s:
                    s.sendall(payload)
                break
            except ConnectionRefusedError:
                subprocess.run(["sleep", "0.05"], check=True)
    second = start(["alltoall", *common, "--rank", "1"])
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1 and "told to run alltoall, but rank 0 runs sendrecv" in err, err
    _, err = first.communicate(timeout=60)
    assert first.returncode == 1, err
    assert "a stranger called" in err and "stopped because of rank 1" in err, err

    # Nobody comes.
    alone = start(["sendrecv", "--ranks", "2", "--meet", "127.0.0.1:%d" % free_port(),
                   "--timeout", "1"])
    _, err = alone.communicate(timeout=30)
    assert alone.returncode == 1 and "rank 1 did not come within 1 s" in err, err


def intervals():
    outcome = expect_clean(["sendrecv", "--local", "2", "-b", "64K", "--duration", "2",
                            "--interval", "250", "--per-rank", "--calls"])
    ranks = outcome.rows()[0]["ranks"]
    rates = ranks[1]["interval_bytes_per_s"]
    want(8 <= len(rates) <= 12, "%d intervals in 2 s" % len(rates), outcome)
    want(abs(sum(rates) * 0.25 - ranks[1]["received_bytes"]) < 1, "intervals' sum", outcome)
    want(ranks[0]["interval_bytes_per_s"] == [] or sum(ranks[0]["interval_bytes_per_s"]) == 0,
         "a sender received", outcome)
    want(outcome.out.count("interval  rank 1") >= 7, "not printed as they come", outcome)
    want(outcome.report["ranks"][0]["calls"]["isend"]["max_ns"] > 0, "calls", outcome)
    for op in ("allreduce", "pingpong", "alltoall"):
        outcome = expect_clean([op, "--local", "2", "-b", "4K", "--duration", "1"])
        want(outcome.rows()[0]["iters"] > 10, op, outcome)


def rank_alone(rank, meet, args=(), env=None):
    return start([*args, "--rank", str(rank), "--ranks", "2", "--meet", meet], env)


def endings():
    """A run by time that is ended early; a rank that fails, with the others told late."""
    meet = "127.0.0.1:%d" % free_port()
    second = rank_alone(1, meet, ["--log", "info", "--log-times"])
    first = rank_alone(0, meet, ["sendrecv", "-b", "64K", "--bidir", "--duration", "600",
                                 "--interval", "100"])
    # Both have connected when one has received.
    while not first.stdout.readline().startswith("interval"):
        assert first.poll() is None, first.communicate()
    second.send_signal(signal.SIGINT)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0 and "no byte wrong" in out, out + err
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert re.search(r"^\[\d+\] INFO \d{10,}\.\d{6} \w+:\d+ ", err, re.M), err

    # A rank that fails tells the others two seconds later.
    meet = "127.0.0.1:%d" % free_port()
    begin = time.monotonic()
    second = rank_alone(1, meet, env={"TCPNET_FAULT": "error:7"})
    first = rank_alone(0, meet, ["sendrecv", "-b", "64K", "--duration", "600", "--linger", "2"])
    _, err = first.communicate(timeout=60)
    assert first.returncode == 1 and "stopped because of rank 1" in err, err
    assert time.monotonic() - begin >= 2, "rank 0 was told at once"
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1 and "remote error" in err, err


GROUPS = {f.__name__: f for f in (ops, bytes_moved, groups, shapes, abi, faults, failures, meeting,
                                  intervals, endings)}


def main():
    global BENCH, PLUGIN
    BENCH, PLUGIN, name = sys.argv[1:]
    GROUPS[name]()
    print("passed")


if __name__ == "__main__":
    main()
