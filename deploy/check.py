#!/usr/bin/env python3
"""Checks the deployment examples.

check.py examples DIR  the YAML parses and is complete, the ConfigMap says what job.env says, and
                       the Slurm script runs (with srun and scontrol played by stand-ins) and
                       hands job.env's settings to the job
check.py units DIR     systemd accepts the units; ends with 77 where there is no systemd-analyze
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


UNITS = {
    "railyard-load.service": ["load", "load --add", "unload"],
    "railyard-add@.service": ["load --add --quiet"],
}


def exec_lines(path):
    """The commands of a unit, in the order of the file."""
    with open(path, encoding="utf-8") as f:
        return [line.split("=", 1)[1].strip() for line in f if line.startswith("Exec")]


def check_units(folder):
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        print("no systemd-analyze on this machine")
        sys.exit(77)
    problems = []
    with tempfile.TemporaryDirectory() as copies:
        for name, expected in UNITS.items():
            commands = exec_lines(os.path.join(folder, name))
            if [command.partition(" ")[2] for command in commands] != expected:
                problems.append("%s: runs %s" % (name, commands))
            problems += ["%s: %s: no absolute path" % (name, command) for command in commands
                         if not command.startswith("/")]
            # The command is not installed while tests run: systemd is shown one that is.
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                text = f.read()
            for command in commands:
                text = text.replace(command.split()[0] + " ", shutil.which("true") + " ")
            with open(os.path.join(copies, name), "w", encoding="utf-8") as f:
                f.write(text)
        units = [os.path.join(copies, name.replace("@", "@mlx5_0")) for name in UNITS]
        os.symlink("railyard-add@.service", os.path.join(copies, "railyard-add@mlx5_0.service"))
        run = subprocess.run([analyze, "verify", "--man=no"] + units, text=True, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return problems + [line for line in run.stdout.splitlines() if "railyard" in line]


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
        for unit in UNITS:
            commands = exec_lines(root + found[unit]) if unit in found else []
            if not commands:
                problems.append("no %s" % unit)
            problems += ["%s runs %s, which is not installed" % (unit, command)
                         for command in commands
                         if not os.access(root + command.split()[0], os.X_OK)]
    return problems


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("examples", "units", "install"):
        print("usage: check.py examples DIR | units DIR | install BUILD")
        return 2
    if sys.argv[1] == "units":
        problems = check_units(sys.argv[2])
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
