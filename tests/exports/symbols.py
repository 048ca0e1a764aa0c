#!/usr/bin/env python3
"""Checks symbols of what was built, with nm and readelf.

symbols.py exports LIBRARY   the plugin exports exactly ncclNetPlugin_v8 to v12, cannot be unloaded,
                             and needs no library but libc's, libpthread's and libibverbs
symbols.py core OBJECT...    the transfer core uses no symbol but its own, mem*, and the two that
                             assert() and the stack protector call
"""
import re
import subprocess
import sys

EXPORTS = {"ncclNetPlugin_v%d" % version for version in range(8, 13)}
NEEDED = re.compile(r"^(libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|librt\.so\.1|libibverbs\.so\.1|"
                    r"ld-linux-[\w-]+\.so\.\d)$")
PURE = re.compile(r"^(mem(cpy|move|set|cmp|chr)|__mem(cpy|move|set)_chk|__assert_fail|"
                  r"__stack_chk_fail|_GLOBAL_OFFSET_TABLE_)$")


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def nm(option, files):
    """Names of the symbols that nm lists with the option, version suffixes cut off."""
    names = set()
    for line in output("nm", *option, *files).splitlines():
        fields = line.split()
        if len(fields) >= 2 and not line.endswith(":"):
            names.add(fields[-1].split("@")[0])
    return names


def check_exports(library):
    exported = nm(["-D", "--defined-only"], [library])
    problems = ["does not export %s" % name for name in sorted(EXPORTS - exported)]
    problems += ["exports %s" % name for name in sorted(exported - EXPORTS)]
    dynamic = output("readelf", "--wide", "--dynamic", library)
    if not re.search(r"FLAGS_1.*NODELETE", dynamic):
        problems.append("is not linked with -z nodelete: threads would outlive its code")
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not NEEDED.match(name):
            problems.append("needs %s" % name)
    return problems


def check_core(objects):
    own = nm(["--defined-only"], objects)
    if not own:
        return ["the objects define nothing: nothing was checked"]
    return ["uses %s" % name for name in sorted(nm(["-u"], objects) - own) if not PURE.match(name)]


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("exports", "core"):
        print("usage: symbols.py exports LIBRARY | core OBJECT...")
        return 2
    what, files = sys.argv[1], sys.argv[2:]
    problems = check_exports(files[0]) if what == "exports" else check_core(files)
    for problem in problems:
        print("%s: %s" % (files[0] if what == "exports" else "src/core", problem))
    print("%s: %d problems" % (what, len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
