#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Copies of the transfer core with small textual changes, and the proof that the simulator sees
them.

A table holds entries; an entry is `name: ...`, `why: ...`, perhaps `late: N`, then one or more
triples of `file: ...`, `find: ...`, `with: ...`. The find text must stand in the file exactly once, whatever
white space is between its words. In both texts \\n is a line break. `on: NAME` applies another
entry of the same table first.

  mutate.py copy --core DIR --table FILE --name NAME --out DIR
  mutate.py run --core DIR --table FILE --sim DIR --work DIR --cc CC --seeds N [--only NAME,...]

run builds one simulator per mutant and fails unless each breaks a rule within N seeds, and the
core as it is breaks none. An entry that needs more than N seeds (`late`) is passed over and named.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

CORE_SUFFIXES = (".c", ".h")


class TableError(Exception):
    pass


def table_read(path):
    """{name: entry}; an entry has `why`, `on`, `edits` [(file, find, with)]."""
    entries, entry = {}, None
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if not line or line.startswith("#"):
            continue
        match = re.match(r"(name|why|on|late|file|find|with):(?: (.*))?$", line)
        if not match:
            raise TableError(f"{path}:{number}: expected `key: text` with a known key")
        key, text = match.group(1), match.group(2) or ""
        if key == "name":
            entry = entries[text] = {"name": text, "why": "", "on": None, "late": "0",
                                     "edits": []}
        elif key == "file":
            entry["edits"].append([text, None, None])
        elif key == "find":
            entry["edits"][-1][1] = text.replace("\\n", "\n")
        elif key == "with":
            entry["edits"][-1][2] = text.replace("\\n", "\n")
        else:
            entry[key] = text
    return entries


def entry_apply(entries, name, out):
    entry = entries.get(name)
    if entry is None:
        raise TableError(f"no entry {name}")
    if entry["on"]:
        entry_apply(entries, entry["on"], out)
    for file, find, replacement in entry["edits"]:
        path = os.path.join(out, file)
        text = open(path).read()
        pattern = re.compile(r"\s+".join(re.escape(word) for word in find.split()))
        count = len(pattern.findall(text))
        if count != 1:
            raise TableError(f"{name}: the text to change stands {count} times in {file}, not "
                             f"once: {find!r}: bring the table up to date")
        open(path, "w").write(pattern.sub(lambda match: replacement, text))


def core_copy(core, entries, name, out):
    os.makedirs(out, exist_ok=True)
    for file in os.listdir(core):
        if file.endswith(CORE_SUFFIXES):
            shutil.copy(os.path.join(core, file), os.path.join(out, file))
    if name:
        entry_apply(entries, name, out)


def compile_one(args, source, include, out):
    subprocess.run([args.cc, "-std=gnu11", "-O1", "-g", "-w", "-I" + include, "-I" + args.sim,
                    "-c", source, "-o", out], check=True)
    return out


def sources(folder):
    return [os.path.join(folder, f) for f in sorted(os.listdir(folder))
            if f.endswith(".c") and f not in ("fuzz.c", "rates.c")]


def sim_build(args, entries, name):
    """The simulator over the core as entry `name` makes it (None: as it is).

    Where only a source file differs from the base (the plain core, or the entry that this one is
    on), the other objects are the base's."""
    top = os.path.join(args.work, name or "plain")
    core_copy(args.core, entries, name, os.path.join(top, "core"))
    base, changed = None, None
    if name:
        changed = {file for file, _, _ in entries[name]["edits"]}
        base = os.path.join(args.work, entries[name]["on"] or "plain")
        if any(f.endswith(".h") for f in changed) or not os.path.exists(os.path.join(base, "sim")):
            changed = None
    objects = []
    for source in sources(args.sim) + sources(os.path.join(top, "core")):
        file = os.path.basename(source)
        if changed is not None and file not in changed:
            objects.append(os.path.join(base, file + ".o"))
        else:
            objects.append(compile_one(args, source, top, os.path.join(top, file + ".o")))
    exe = os.path.join(top, "sim")
    subprocess.run([args.cc, *objects, "-o", exe], check=True)
    return exe


def sim_run(exe, seeds, timeout_s):
    try:
        done = subprocess.run([exe, "--seeds", str(seeds), "--quiet"], capture_output=True,
                              text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return 2, f"no end within {timeout_s} s"
    match = re.search(r"seed (\d+) fails", done.stdout)
    text = f"seed {match.group(1)}" if match else done.stdout.strip()[-200:] + done.stderr.strip()
    return done.returncode, text


def mutant_try(args, entries, name):
    try:
        exe = sim_build(args, entries, name)
    except (TableError, subprocess.CalledProcessError) as error:
        return name, False, str(error)
    code, text = sim_run(exe, args.seeds, 300)
    if entries[name]["why"] == "variant":
        return name, code == 0, "clean" if code == 0 else text
    return name, code == 1, text


def run(args):
    shutil.rmtree(args.work, ignore_errors=True)
    entries = table_read(args.table)
    bad = 0
    code, text = sim_run(sim_build(args, entries, None), min(args.seeds, 2000), 300)
    print(f"{'ok  ' if code == 0 else 'FAIL'} the core as it is: {text}")
    bad += code != 0
    names = [n for n in entries if not args.only or n in args.only.split(",")]
    late = [n for n in names if int(entries[n]["late"]) > args.seeds]
    names = [n for n in names if n not in late]
    for name in late:  # not run, but a text that is not there any more is told now
        try:
            core_copy(args.core, entries, name, os.path.join(args.work, name))
        except TableError as error:
            print(f"FAIL {name:24} {error}")
            bad += 1
    for name in names:
        name, good, text = mutant_try(args, entries, name)
        print(f"{'ok  ' if good else 'FAIL'} {name:24} {text:12} {entries[name]['why']}",
              flush=True)
        bad += not good
    print(f"{len(names)} entries, {bad} wrong; passed over, as they need more seeds: "
          f"{', '.join(late) or 'none'}")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("copy", "run"))
    for option in ("core", "table", "sim", "work", "out", "name", "only"):
        parser.add_argument("--" + option)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--seeds", type=int, default=10000)
    args = parser.parse_args()
    try:
        if args.command == "run":
            return run(args)
        core_copy(args.core, table_read(args.table), args.name, args.out)
        return 0
    except TableError as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
