#!/usr/bin/env python3
"""Checks the source tree itself: layout, layering and calls that a module must not make.

tidy.py [ROOT]      check the tree below ROOT (default: this repository); prints
                    file:line: rule: text
tidy.py --selftest  feed each rule bad and good snippets: it must fire on the bad ones only

A rule is a function that takes a Tree and yields (path, line, text). To add one: write it, put it
in RULES with its snippets. It needs no compiler, so it judges text: what it cannot see (symbols
that a library really uses) is checked in tests/exports.
"""
import fnmatch
import os
import re
import sys

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
DOC_LINES_MAX = {"CONTRIBUTING.md": 120, "src/README.md": 200}

# Layers of src/, lowest first. A module may include modules of its own or a lower layer; src/core/
# includes nothing but itself. A new module is named here; x_part belongs to the module x.
LAYERS = [
    ("core", ["core/*"]),
    ("base", ["util", "log", "config", "shmfile", "thread", "wire"]),
    ("world", ["verbs", "control", "railmap", "nccl_net"]),
    ("ports", ["device", "mr", "signals", "pairs"]),
    ("comms", ["keys", "comm", "connect", "flight", "lane", "plugin", "recover", "request",
               "state"]),
    ("shim", ["nccl_shim"]),
]

# Hosts that a link in the tree may name; anything else is most likely a private mirror or registry.
URL_HOSTS = ["github.com", "kernel.org", "debian.org", "json-schema.org", "nvidia.com", "amd.com",
             "example.com", "example.org", "localhost", "127.0.0.1"]

CODE_DIRS = ("src/", "bpf/", "include/", "tools/", "tests/")
SKIP_NAMES = {".git", "build", "__pycache__"}


class Tree:
    """The files of the repository as {path: text}, and the views of them that the rules use."""

    def __init__(self, files):
        self.files = files
        self._code = {}

    @classmethod
    def read(cls, root):
        files = {}
        for folder, dirs, names in os.walk(root):
            dirs[:] = sorted(d for d in dirs if d not in SKIP_NAMES)
            # In a linked worktree, .git is a file.
            for name in sorted(set(names) - SKIP_NAMES):
                full = os.path.join(folder, name)
                if os.path.islink(full) or not os.path.isfile(full):
                    continue
                try:
                    with open(full, encoding="utf-8") as f:
                        files[os.path.relpath(full, root)] = f.read()
                except UnicodeDecodeError:
                    continue
        return cls(files)

    def c_files(self, *prefixes):
        for path in sorted(self.files):
            if path.endswith((".c", ".h")) and path.startswith(prefixes or CODE_DIRS):
                yield path

    def code(self, path):
        """The file with comments, strings and character constants blanked, line for line."""
        if path not in self._code:
            self._code[path] = blank(self.files[path], strings=True)
        return self._code[path]


TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text, strings):
    def repl(match):
        token = match.group(0)
        if token[0] != "/" and not strings:
            return token
        return re.sub(r"[^\n]", " ", token)
    return TOKEN.sub(repl, text)


def matches(text, pattern):
    for match in re.finditer(pattern, text, re.M):
        yield text.count("\n", 0, match.start()) + 1, match


def calls(tree, paths, names, allowed, why):
    pattern = r"(?<![\w.>])(%s)\s*\(" % "|".join(names)
    for path in paths:
        if path in allowed:
            continue
        for line, match in matches(tree.code(path), pattern):
            yield path, line, "%s() %s" % (match.group(1), why)


def is_source(path):
    name = os.path.basename(path)
    return (path.endswith((".c", ".h", ".py", ".sh", ".cmake")) or name == "CMakeLists.txt"
            or "." not in name and path.startswith(("tools/", "tests/", ".ci/")))


def rule_columns(tree):
    """Lines of C and CMake are at most 100 columns, a tab being 8."""
    for path, text in tree.files.items():
        if not path.endswith((".c", ".h", ".cmake", "CMakeLists.txt")):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            width = len(line.expandtabs(8))
            if width > COLUMNS_MAX:
                yield path, number, "%d columns, at most %d" % (width, COLUMNS_MAX)


def rule_whitespace(tree):
    """C is indented by tabs; no line ends in white space; a file ends in one newline."""
    for path, text in tree.files.items():
        if not is_source(path):
            continue
        for line, _ in matches(text, r"[ \t]+$"):
            yield path, line, "white space at the end of the line"
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            yield path, text.count("\n"), "the file should end in exactly one newline"
    for path in tree.c_files():
        for line, _ in matches(tree.code(path), r"^ {2,}\S"):
            yield path, line, "indented by spaces, use tabs"


def functions(code):
    """Yields (line of the opening brace, lines from it to its closing brace) of each function."""
    depth, start, is_function = 0, 0, False
    for match in re.finditer(r"[{}]", code):
        if match.group(0) == "{":
            if depth == 0:
                start = match.start()
                is_function = code[:start].rstrip().endswith(")")
            depth += 1
            continue
        depth = max(depth - 1, 0)
        if depth == 0 and is_function:
            yield code.count("\n", 0, start) + 1, code.count("\n", start, match.end()) + 1
            is_function = False


def rule_function_length(tree):
    """A function is at most 70 lines from brace to brace."""
    for path in tree.c_files():
        for line, length in functions(tree.code(path)):
            if length > FUNCTION_LINES_MAX:
                yield path, line, "function of %d lines, at most %d" % (length, FUNCTION_LINES_MAX)


def rule_head_comment(tree):
    """A module opens, in its .c or .h file, with a comment that says what it is for."""
    def has_head(path):
        text = re.sub(r"\A(/\*|//) SPDX-.*\n", "", tree.files.get(path, ""))
        return text.startswith("/*")

    for path in tree.c_files():
        if not has_head(path) and not (path.endswith(".c") and has_head(path[:-2] + ".h")):
            yield path, 1, "no head comment: what is the file for, what must it not do?"


def rule_todo(tree):
    """No notes to self: what is open belongs in the issue tracker."""
    for path, text in tree.files.items():
        if is_source(path) and path != "tests/tidy/tidy.py":
            for line, match in matches(text, r"\b(TODO|FIXME|XXX)\b"):
                yield path, line, "%s in the source" % match.group(1)


def rule_core_calls(tree):
    """The core does not allocate, read a clock, draw random numbers, print or lock."""
    names = ["malloc", "calloc", "realloc", "free", "alloca", "strdup", "clock_gettime",
             "gettimeofday", "time", "clock", "nanosleep", "usleep", "rand", "random", r"\w*printf",
             r"pthread_\w+", "now_ns"]
    yield from calls(tree, tree.c_files("src/core/"), names, (), "is banned in src/core")


def rule_core_integers(tree):
    """The core computes with integers only, so that traces are the same on every compiler."""
    for path in tree.c_files("src/core/"):
        for line, match in matches(tree.code(path), r"\b(float|double)\b"):
            yield path, line, "%s in src/core: integer arithmetic only" % match.group(1)


def rule_getenv(tree):
    """The environment is read in one place, and never written."""
    yield from calls(tree, tree.c_files("src/"), ["getenv", "secure_getenv"], ("src/config.c",),
                     "only in src/config.c")
    yield from calls(tree, tree.c_files("src/"), ["setenv", "putenv", "unsetenv"], (),
                     "is banned: the process is not ours")


def rule_clock(tree):
    """The clock is read in one place, so that one pass sees one time."""
    yield from calls(tree, tree.c_files("src/"), ["clock_gettime", "gettimeofday", "time"],
                     ("src/util.h",), "only in src/util.h")


def rule_verbs(tree):
    """Only the verbs module knows libibverbs; all others go through its ops table."""
    allowed = ("src/verbs.h", "src/verbs.c")
    for path in tree.c_files("src/", "tools/railyard/", "bpf/", "include/"):
        if path in allowed:
            continue
        text = blank(tree.files[path], strings=False)
        for line, _ in matches(text, r"^\s*#\s*include\s*<infiniband/"):
            yield path, line, "<infiniband/...> only in src/verbs.h and src/verbs.c"
    yield from calls(tree, tree.c_files("src/"), [r"ibv_\w+", r"___?ibv_\w+"], allowed,
                     "only in src/verbs.c: call the ops table")


def layer_of(module):
    """The rank of a module, None if it has no layer. Of the names that fit, the longest counts."""
    if module.startswith("core/"):
        return 0
    ranks = {name: rank for rank, (_, members) in enumerate(LAYERS) for name in members}
    fitting = [name for name in ranks if module == name or module.startswith(name + "_")]
    return ranks[max(fitting, key=len)] if fitting else None


def quoted_includes(tree, path):
    text = blank(tree.files[path], strings=False)
    for line, match in matches(text, r'^\s*#\s*include\s*"([^"]+)"'):
        name = match.group(1)
        local = os.path.normpath(os.path.join(os.path.dirname(path), name))
        for candidate in (local, "src/" + name):
            if candidate in tree.files:
                yield line, candidate
                break


def rule_layers(tree):
    """Includes point down: core < base < world < plugin < shim."""
    for path in tree.c_files("src/"):
        module = os.path.splitext(path[len("src/"):])[0]
        rank = layer_of(module)
        if rank is None:
            yield path, 1, "module %s has no layer: name it in LAYERS of tidy.py" % module
            continue
        for line, target in quoted_includes(tree, path):
            if not target.startswith("src/"):
                continue
            other = os.path.splitext(target[len("src/"):])[0]
            other_rank = layer_of(other)
            if rank == 0 and other_rank != 0:
                yield path, line, "core includes %s: core includes only core" % target
            elif other_rank is not None and other_rank > rank:
                yield path, line, "%s (%s) includes %s (%s): includes point down" % (
                    module, LAYERS[rank][0], other, LAYERS[other_rank][0])


def rule_machine_paths(tree):
    """Nothing in the tree depends on the machine it was written on."""
    private = re.compile(r"(?:^|[^\w.$}/-])(/%s/[\w./-]*)" % "work")
    for path, text in tree.files.items():
        for number, line in enumerate(text.split("\n"), 1):
            found = private.search(line)
            if found:
                yield path, number, "path of one machine: %s" % found.group(1)


def rule_urls(tree):
    """Links name public hosts only, never a mirror or registry of one site."""
    for path, text in tree.files.items():
        for line, match in matches(text, r"\b(?:https?|ftp|git)://([\w.-]+)"):
            host = match.group(1).lower().rstrip(".")
            if not any(host == h or host.endswith("." + h) for h in URL_HOSTS):
                yield path, line, "host %s: not one of URL_HOSTS in tests/tidy/tidy.py" % host


ENV_NAME = r"\b((?:RAILYARD|NCCL_IB)_[A-Z0-9_]*)(\*?)"


def env_names(text):
    """Yields (line, name, is_prefix) for each environment name inside string literals."""
    for token in TOKEN.finditer(text):
        if token.group(0)[0] != '"':
            continue
        for match in re.finditer(ENV_NAME, token.group(0)):
            line = text.count("\n", 0, token.start() + match.start()) + 1
            name = match.group(1)
            yield line, name, bool(match.group(2)) or name.endswith("_")


def rule_env_table(tree):
    """Every environment name in src/ or told to users is a row of the table in src/config.c."""
    table = {name for _, name, _ in env_names(tree.files.get("src/config.c", ""))}

    def known(name, is_prefix):
        return name in table or is_prefix and any(row.startswith(name) for row in table)

    for path in tree.c_files("src/"):
        if path == "src/config.c":
            continue
        for line, name, is_prefix in env_names(tree.files[path]):
            if not known(name, is_prefix):
                yield path, line, "%s is not in the table of src/config.c" % name
    for path, text in tree.files.items():
        if path.startswith("deploy/") or path in ("README.md", "src/README.md"):
            for line, match in matches(text, ENV_NAME):
                name = match.group(1)
                if not known(name, bool(match.group(2)) or name.endswith("_")):
                    yield path, line, "%s is not in the table of src/config.c" % name


def is_named(text, relative, name):
    """Whether a CMakeLists.txt names a file by path, name (without test_ or .c) or a glob."""
    short = re.sub(r"(\.bpf)?\.c$", "", name)
    names = "|".join(re.escape(n) for n in (relative[:-2], short, re.sub("^test_", "", short)))
    globs = re.findall(r"[\w./*-]*\*[\w./-]*\.c\b", text)
    return (re.search(r"(?<![\w.-])(%s)(?![\w-])" % names, text) is not None
            or any(fnmatch.fnmatchcase(relative, glob) for glob in globs))


def in_script(tree, path):
    """Whether a script beside a test's C file names it, since it builds the file itself."""
    folder, name = os.path.split(path)
    return path.startswith("tests/") and any(
        name in text for other, text in tree.files.items()
        if os.path.dirname(other) == folder and is_source(other)
        and not other.endswith((".c", ".h")))


def rule_orphans(tree):
    """Every C file is named by a CMakeLists.txt at or above its directory, or by a script in it."""
    for path in tree.c_files("src/", "bpf/", "tools/", "tests/"):
        if not path.endswith(".c"):
            continue
        folder, name = os.path.split(path)
        found = False
        while folder and not found:
            text = tree.files.get(folder + "/CMakeLists.txt", "")
            found = is_named(text, os.path.relpath(path, folder), name)
            folder = os.path.dirname(folder)
        if not found and not in_script(tree, path):
            yield path, 1, "no CMakeLists.txt names it"


def rule_doc_length(tree):
    """Pages that a newcomer must read stay short."""
    for path, limit in DOC_LINES_MAX.items():
        count = tree.files.get(path, "").count("\n")
        if count > limit:
            yield path, limit + 1, "%d lines, at most %d" % (count, limit)


# Rule: (snippets on which it must fire, snippets on which it must not).
LONG = "int f(void)\n{\n" + "\tg();\n" * FUNCTION_LINES_MAX + "}\n"
LISTED = {"src/CMakeLists.txt": "add_library(x a.c)\n"}
RULES = {
    rule_columns: ([{"src/a.c": "\t" * 12 + "12345\n"}, {"src/b.h": "x" * 101 + "\n"}],
                   [{"src/a.c": "\t" * 12 + "1234\n"}, {"README.md": "x" * 200 + "\n"}]),
    rule_whitespace: ([{"src/a.c": "int a; \n"}, {"src/a.c": "int a;"},
                       {"src/a.c": "    int a;\n"}],
                      [{"src/a.c": "/*\n    text\n */\n\tint a;\n"}]),
    rule_function_length: ([{"src/a.c": LONG}],
                           [{"src/a.c": LONG.replace("\tg();\n", "", 2)},
                            {"src/a.c": "int t[] = {\n" + "1,\n" * 90 + "};\n"}]),
    rule_head_comment: ([{"src/a.c": "int a;\n"}, {"src/a.c": "/* SPDX-x */\nint a;\n"}],
                        [{"src/a.c": "/* a - for a. */\nint a;\n"},
                         {"src/a.c": "int a;\n", "src/a.h": "/* SPDX-x */\n/*\n * a.\n */\n"}]),
    rule_todo: ([{"src/a.c": "/* TODO later */\n"}], [{"src/a.c": "/* TODOS */\n"}]),
    rule_core_calls: ([{"src/core/a.c": "p = malloc(3);\n"}, {"src/core/a.h": "t = time (NULL);\n"},
                       {"src/core/a.c": "free(p);\n"}, {"src/core/a.c": "clock_gettime(0, &t);\n"}],
                      [{"src/core/a.c": "/* malloc() */ slot_free(s); y = \"free(\";\n"},
                       {"src/a.c": "p = malloc(3);\n"}]),
    rule_core_integers: ([{"src/core/a.c": "double x;\n"}],
                         [{"src/core/a.c": "/* double */ int doubled;\n"}]),
    rule_getenv: ([{"src/a.c": "getenv(x);\n"}, {"src/config.c": "setenv(x, y, 1);\n"}],
                  [{"src/config.c": "getenv(x);\n"}, {"tests/a.c": "setenv(x, y, 1);\n"}]),
    rule_clock: ([{"src/a.c": "clock_gettime(c, &t);\n"}],
                 [{"src/util.h": "clock_gettime(c, &t);\n"},
                  {"tests/a.c": "clock_gettime(c, &t);\n"}]),
    rule_verbs: ([{"src/a.c": "#include <infiniband/verbs.h>\n"}, {"src/a.c": "ibv_poll_cq(q);\n"},
                  {"tools/railyard/a.c": "# include <infiniband/verbs.h>\n"}],
                 [{"src/verbs.c": "#include <infiniband/verbs.h>\nibv_poll_cq(q);\n"},
                  {"tests/fake/f.c": "#include <infiniband/verbs.h>\n"},
                  {"src/a.c": "v->ibv_poll_cq(q);\n"}]),
    rule_layers: ([{"src/core/a.c": '#include "util.h"\n', "src/util.h": ""},
                   {"src/verbs.c": '#include "comm.h"\n', "src/comm.h": ""},
                   {"src/core/a.c": '#include "../verbs.h"\n', "src/verbs.h": ""},
                   {"src/plugin.c": '#include "nccl_shim.h"\n', "src/nccl_shim.h": ""},
                   {"src/unheard_of.c": ""},
                   {"src/verbs_x.c": '#include "comm_x.h"\n', "src/comm_x.h": ""}],
                  [{"src/comm.c": '#include "core/core.h"\n#include "verbs.h"\n',
                    "src/core/core.h": '#include "wire.h"\n', "src/core/wire.h": "",
                    "src/verbs.h": '#include "util.h"\n#include <stdio.h>\n', "src/util.h": ""}]),
    rule_machine_paths: ([{"README.md": "see /%s/main/x\n" % "work"}],
                         [{"README.md": "see build/%s/x, ${W}/%s/y and work/\n" % ("work", "work")}]),
    rule_urls: ([{"tools/setup": "https:" + "//mirror.internal/debian\n"}],
                [{"README.md": "https://github.com/x and https://docs.kernel.org/y\n"}]),
    rule_env_table: ([{"src/config.c": '"RAILYARD_A"', "src/a.c": 'x("RAILYARD_B");\n'},
                      {"src/config.c": '"RAILYARD_A"', "src/a.c": 'log("NCCL_IB_TC=%d is bad");\n'},
                      {"src/a.c": 'x("RAILYARD_A");\n'}, {"deploy/job.env": "RAILYARD_A=1\n"}],
                     [{"src/config.c": '"RAILYARD_A", "NCCL_IB_TC"',
                       "src/a.c": '/* "RAILYARD_B" */ x("NCCL_IB_TC RAILYARD_*"); RAILYARD_C;\n'}]),
    rule_orphans: ([dict(LISTED, **{"src/b.c": ""}), {"tests/x/b.c": "", "tests/x/a.c": "b.c"}],
                   [dict(LISTED, **{"src/a.c": ""}),
                    {"bpf/links.bpf.c": "", "bpf/CMakeLists.txt": "foreach(p rows links)\n"},
                    {"tests/x/b.c": "", "tests/x/run": "cc b.c"},
                    {"tools/x/ab.c": "", "tools/x/CMakeLists.txt": "file(GLOB s a*.c)\n"},
                    {"src/CMakeLists.txt": "add_library(core core/slot.c)\n",
                     "src/core/slot.c": ""}]),
    rule_doc_length: ([{"CONTRIBUTING.md": "x\n" * 121}], [{"CONTRIBUTING.md": "x\n" * 120}]),
}


def check(root):
    tree = Tree.read(root)
    if not any(path.startswith("src/") for path in tree.files):
        print("tidy: no src/ below %s: give the repository's root" % root)
        return 1
    found = sorted({(path, line, rule.__name__[5:], text)
                    for rule in RULES for path, line, text in rule(tree)})
    for path, line, rule, text in found:
        print("%s:%d: %s: %s" % (path, line, rule, text))
    print("tidy: %d files, %d rules, %d findings" % (len(tree.files), len(RULES), len(found)))
    return 1 if found else 0


def selftest():
    failed = 0
    for name, rule in sorted(globals().items()):
        if name.startswith("rule_") and rule not in RULES:
            print("%s: has no snippets" % name)
            failed += 1
    for rule, (bad, good) in RULES.items():
        for must_fire, snippets in ((True, bad), (False, good)):
            for files in snippets:
                findings = list(rule(Tree(files)))
                if bool(findings) != must_fire:
                    print("%s: %s on %r: %r" % (rule.__name__, "silent" if must_fire else "fires",
                                                files, findings))
                    failed += 1
        if not bad or not good:
            print("%s: needs a bad and a good snippet" % rule.__name__)
            failed += 1
    print("tidy --selftest: %d rules, %d failures" % (len(RULES), failed))
    return 1 if failed else 0


def main():
    args = sys.argv[1:]
    if args == ["--selftest"]:
        return selftest()
    if len(args) > 1 or args and not os.path.isdir(args[0]):
        print("usage: tidy.py [ROOT | --selftest]; ROOT is a directory")
        return 2
    here = os.path.dirname(os.path.abspath(__file__))
    return check(args[0] if args else os.path.dirname(os.path.dirname(here)))


if __name__ == "__main__":
    sys.exit(main())
