#!/usr/bin/env python3
"""Checks the deployment examples.

check.py examples DIR  the YAML parses and is complete, the ConfigMap says what job.env says, and
                       the Slurm script runs (with srun and scontrol played by stand-ins) and
                       hands job.env's settings to the job
check.py unit FILE     systemd accepts the unit; ends with 77 where there is no systemd-analyze
check.py install BUILD an installation has what the unit runs and the plugin under both names
"""
import os
import shutil
import subprocess
import sys
import tempfile


def read_env(path):
    with open(path, encoding="utf-8") as f:
        lines = [line.strip() for line in f]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def check_yaml(folder, env):
    try:
        import yaml
    except ImportError:
        return ["python has no yaml module: install python3-yaml"]
    with open(os.path.join(folder, "kubernetes.yaml"), encoding="utf-8") as f:
        documents = list(yaml.safe_load_all(f))
    problems = ["kubernetes.yaml: a document without %s" % key for document in documents
                for key in ("apiVersion", "kind", "metadata") if key not in document]
    by_kind = {document.get("kind"): document for document in documents}
    for kind in ("DaemonSet", "ConfigMap", "Pod"):
        if kind not in by_kind:
            return problems + ["kubernetes.yaml: no %s" % kind]
    if by_kind["ConfigMap"]["data"] != env:
        problems.append("kubernetes.yaml: the ConfigMap differs from job.env")
    specs = [by_kind["Pod"]["spec"], by_kind["DaemonSet"]["spec"]["template"]["spec"]]
    for spec in specs:
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec.get("initContainers", []) + spec["containers"]:
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    problems.append("kubernetes.yaml: no volume %s" % mount["name"])
    return problems


STANDINS = {
    "scontrol": "#!/bin/sh\n[ \"$*\" = 'show hostnames nodes[1-2]' ] && echo node1 && echo node2\n",
    "srun": "#!/bin/sh\n[ \"$1\" = --export=ALL ] || exit 1\nshift\nSLURM_PROCID=1 exec \"$@\"\n",
    "railyard": "#!/bin/sh\necho \"$@\"\nenv\n",
}


def check_slurm(folder, env):
    with tempfile.TemporaryDirectory() as bin_dir:
        for name, text in STANDINS.items():
            path = os.path.join(bin_dir, name)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(path, 0o755)
        given = dict(os.environ, PATH=bin_dir + ":" + os.environ["PATH"], SLURM_NTASKS="2",
                     SLURM_JOB_NODELIST="nodes[1-2]", SLURM_SUBMIT_DIR=folder)
        run = subprocess.run(["bash", os.path.join(folder, "slurm-job.sh")], env=given, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    lines = run.stdout.splitlines()
    problems = []
    if run.returncode != 0:
        problems.append("slurm-job.sh ended with %d: %s" % (run.returncode, run.stdout[-500:]))
    if not any(line.startswith("bench ") and "node1" in line for line in lines):
        problems.append("slurm-job.sh did not start railyard bench with the first node's name")
    return problems + ["slurm-job.sh: the job does not get %s=%s" % item for item in env.items()
                       if "%s=%s" % item not in lines]


def check_unit(path):
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        print("no systemd-analyze on this machine")
        sys.exit(77)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    lines = [line for line in text.splitlines() if line.startswith(("ExecStart=", "ExecStop="))]
    problems = ["%s: not an absolute path to railyard" % line for line in lines
                if not line.split("=", 1)[1].split()[0].startswith("/")]
    if [line.split()[-1] for line in lines] != ["load", "unload"]:
        problems.append("the unit does not run load and unload")
    with tempfile.TemporaryDirectory() as folder:
        # The command is not installed while tests run: systemd is shown one that is.
        copy = os.path.join(folder, os.path.basename(path))
        command = lines[0].split("=", 1)[1].split()[0] if lines else ""
        with open(copy, "w", encoding="utf-8") as f:
            f.write(text.replace(command, shutil.which("true") or "/bin/true") if command else text)
        run = subprocess.run([analyze, "verify", "--man=no", copy], text=True, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    own = [line for line in run.stdout.splitlines() if os.path.basename(path) in line]
    return problems + own


def installed(root, path):
    """The file that a path names once root is /, symbolic links included."""
    full = root + path
    while os.path.islink(full):
        target = os.readlink(full)
        full = root + target if target.startswith("/") else os.path.join(
            os.path.dirname(full), target)
    return full if os.path.isfile(full) else None


def check_install(build):
    problems = []
    with tempfile.TemporaryDirectory() as root:
        run = subprocess.run(["cmake", "--install", build], env=dict(os.environ, DESTDIR=root),
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             check=False)
        if run.returncode != 0:
            return ["cmake --install ended with %d: %s" % (run.returncode, run.stdout[-500:])]
        found = {}
        for folder, _, names in os.walk(root):
            for name in names:
                found[name] = os.path.join(folder, name)[len(root):]
        for name in ("libnccl-net-railyard.so", "librccl-net-railyard.so"):
            if name not in found or not installed(root, found[name]):
                problems.append("no %s" % name)
        with open(root + found["railyard-load.service"], encoding="utf-8") as f:
            commands = [line.split("=", 1)[1].split()[0] for line in f
                        if line.startswith(("ExecStart=", "ExecStop="))]
        problems += ["the unit runs %s, which is not installed" % command
                     for command in commands if not os.access(root + command, os.X_OK)]
    return problems


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("examples", "unit", "install"):
        print("usage: check.py examples DIR | unit FILE | install BUILD")
        return 2
    if sys.argv[1] == "unit":
        problems = check_unit(sys.argv[2])
    elif sys.argv[1] == "install":
        problems = check_install(sys.argv[2])
    else:
        env = read_env(os.path.join(sys.argv[2], "job.env"))
        problems = check_yaml(sys.argv[2], env) + check_slurm(sys.argv[2], env)
    for problem in problems:
        print(problem)
    print("%s: %d problems" % (sys.argv[1], len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
