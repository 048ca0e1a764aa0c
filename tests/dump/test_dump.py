#!/usr/bin/env python3
"""`railyard dump` and `replay`: pages and flight logs, after kill -9 too, and files that are none.

test_dump.py RAILYARD PLUGIN FAKE    the built command, plugin and fake libibverbs; status 0 = passed
"""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

RAILYARD, PLUGIN, FAKE = "", "", ""
PATIENCE_S = 60


def dump(*args):
    run = subprocess.run([RAILYARD, "dump", *args], capture_output=True, text=True, check=False,
                         timeout=PATIENCE_S)
    return run.returncode, run.stdout, run.stderr


def want(good, what, outcome):
    if not good:
        raise AssertionError("%s\nstatus %d\n%s\n%s" % (what, *outcome))


def shown(*args):
    outcome = dump(*args)
    want(outcome[0] == 0 and outcome[2] == "", "not shown: %s" % (args,), outcome)
    return outcome[1]


def refused(path, says):
    outcome = dump(path)
    want(outcome[0] == 1 and outcome[1] == "" and outcome[2].count("\n") == 1
         and says in outcome[2] and path in outcome[2], "not refused by '%s'" % says, outcome)


def rank_start(*args):
    # A rank that ends while the plugin's threads run can crash LeakSanitizer's own tracer.
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    environment = dict(os.environ, NCCL_IBVERBS_LIB=FAKE, NCCL_SOCKET_IFNAME="lo",
                       RAILYARD_STATE="1", RAILYARD_FLIGHT="1", ASAN_OPTIONS=sanitizer.lstrip(":"))
    return subprocess.Popen([RAILYARD, "bench", "sendrecv", "--plugin", PLUGIN, "-b", "64K", "-e",
                             "64K", "--timeout", "600",
                             *(args or ("--duration", "600"))], env=environment,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def moving(rank):
    """The page once messages have moved over both halves of the connection."""
    end = time.monotonic() + PATIENCE_S
    while rank.poll() is None and time.monotonic() < end:
        if os.path.exists("/dev/shm/railyard.%d" % rank.pid):
            status, out, _ = dump(str(rank.pid), "--json")
            page = json.loads(out) if status == 0 else {"comms": []}
            if len(page["comms"]) == 2 and all(c["next"] > 0 for c in page["comms"]):
                return page
        time.sleep(0.05)
    rank.kill()
    raise AssertionError("no page shows that messages move: %s" % rank.communicate()[1].decode())


def test_living(rank):
    page = moving(rank)
    assert page["alive"] and page["pid"] == rank.pid and page["damaged"] == 0, page
    assert page["comms_hidden"] == 0 and page["mode"] == "on" and page["look_s"] < PATIENCE_S, page
    assert [port["name"] for port in page["ports"]] == ["fake0:1"], page
    assert sorted(c["kind"] for c in page["comms"]) == ["receive", "send"], page
    assert {c["id"] for c in page["comms"]} == {c["peer_id"] for c in page["comms"]}, page
    assert all(c["connected"] and c["heard_s"] < PATIENCE_S for c in page["comms"]), page
    assert len(page["lanes"]) == 2, page
    for lane in page["lanes"]:
        assert lane["state"] == "in use" and lane["port"] == lane["peer_port"] == "fake0:1", page
        assert lane["faults"] == 0 and lane["fault_s"] is None and lane["cause"] == "", page
    text = shown(str(rank.pid))
    for words in ("process %d of " % rank.pid, ": alive; last look", "fake0:1", "\nsend comm ",
                  "\nreceive comm ", "pid %d" % rank.pid, "in use"):
        assert words in text, "'%s' is not in:\n%s" % (words, text)
    # All pages there are; of other users', or half made ones, it may say something on stderr.
    assert "process %d of" % rank.pid in dump()[1]
    assert rank.pid in [p["pid"] for p in json.loads(dump("--json")[1])]


def test_dead(rank, folder):
    path = "/dev/shm/railyard.%d" % rank.pid
    rank.send_signal(signal.SIGKILL)
    rank.communicate()
    text = shown(str(rank.pid))
    assert "GONE" in text and "\nsend comm " in text, text
    page = json.loads(shown(path, "--json"))
    assert not page["alive"] and len(page["lanes"]) == 2, page
    with open(path, "rb") as f:
        data = f.read()
    os.unlink(path)
    refused(path, "No such file")
    return os.path.join(folder, "page"), data


def logs(rank):
    return sorted(glob.glob("/dev/shm/railyard-flight.%d.*" % rank.pid))


def replay(*args):
    run = subprocess.run([RAILYARD, "replay", *args], capture_output=True, text=True, check=False,
                         timeout=PATIENCE_S)
    return run.returncode, run.stdout, run.stderr


def test_logs(rank):
    """The killed rank's calls, made again; and what is no log."""
    assert len(logs(rank)) == 2, logs(rank)
    for path in logs(rank):
        outcome = replay(path)
        want(outcome[0] == 0 and "all as they were" in outcome[1], "not replayed", outcome)
        outcome = replay("--print", path)
        want(outcome[0] == 0 and "half " in outcome[1] and "release slot" in outcome[1],
             "not printed", outcome)
        os.truncate(path, 8192)
        outcome = replay(path)
        want(outcome[0] == 1 and "truncated" in outcome[2] and outcome[2].count("\n") == 1,
             "cut short, but taken", outcome)
        os.unlink(path)
    for bad in (RAILYARD, "/dev/null", "/nowhere"):
        outcome = replay(bad)
        want(outcome[0] == 1 and outcome[1] == "" and outcome[2].count("\n") == 1,
             "no log, but taken", outcome)


def test_no_page(path, data):
    def write(content):
        with open(path, "wb") as f:
            f.write(content)

    write(data)
    assert "GONE" in shown(path)
    for content, says in ((b"", "no state page"), (b"x" * 5000, "no state page"),
                          (data[:300], "cut short"), (data[:-1], "cut short"),
                          (data[:8] + b"\x63" + data[9:], "another version"),
                          (data + b"x", "sizes are not right"),
                          (data[:12] + b"\xff" + data[13:], "sizes are not right")):
        write(content)
        refused(path, says)
    refused(os.path.dirname(path), "not a file")
    write(data[:256] + os.urandom(len(data) - 256))
    assert "left out" in shown(path)
    json.loads(shown(path, "--json"))


def test_exit():
    """The older ABIs have no finalize: a rank that ends well leaves nothing all the same."""
    for abi in ("8", "12"):
        rank = rank_start("--abi", abi, "-n", "2")
        assert rank.wait(PATIENCE_S) == 0, rank.communicate()[1]
        rank.communicate()
        assert not os.path.exists("/dev/shm/railyard.%d" % rank.pid), "v%s leaves its page" % abi
        assert not logs(rank), "v%s leaves its logs" % abi


def test_usage():
    assert "usage" in shown("--help")
    for args in (("1", "2"), ("--nonsense",)):
        outcome = dump(*args)
        want(outcome[0] == 2 and "usage" in outcome[2], "bad use is not told", outcome)


def main():
    global RAILYARD, PLUGIN, FAKE
    RAILYARD, PLUGIN, FAKE = sys.argv[1:]
    test_usage()
    test_exit()
    with tempfile.TemporaryDirectory() as folder:
        rank = rank_start()
        try:
            test_living(rank)
            path, data = test_dead(rank, folder)
            test_logs(rank)
        finally:
            if rank.poll() is None:
                rank.kill()
                rank.communicate()
            for left in logs(rank) + glob.glob("/dev/shm/railyard.%d" % rank.pid):
                os.unlink(left)
        test_no_page(path, data)
    print("ok")


if __name__ == "__main__":
    main()
