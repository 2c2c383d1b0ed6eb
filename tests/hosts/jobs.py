"""Jobs that `corral run`, or `mpirun`, starts on the hosts of a network."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

__all__ = ["PORT", "Job", "mpirun"]

PORT = 29500  # each network has all ports to itself


class Job:
    """A job whose launchers run on the hosts of a network."""

    def __init__(self):
        self.launchers = []

    def start(self, host, *arguments, nodes, node=None, secret="a secret", rdzv=None):
        environ = {name: value for name, value in os.environ.items() if name != "CORRAL_SECRET"}
        if secret is not None:
            environ["CORRAL_SECRET"] = secret
        rdzv = f"10.77.0.1:{PORT}" if rdzv is None else rdzv
        node = host.number if node is None else node
        command = [sys.executable, "-m", "corral", "run", f"--nnodes={nodes}", f"--node-rank={node}", f"--rdzv={rdzv}"]
        started = host.start(
            [*command, *map(str, arguments)],
            env=environ | {"COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.launchers.append(started)
        return started

    def on_all(self, network, *arguments, **options):
        for host in network:
            self.start(host, *arguments, nodes=len(network.hosts), **options)
        return self

    def ended(self, timeout=60):
        """Wait for all launchers; return each one's exit code, output and error output."""
        said = [launcher.communicate(timeout=timeout) for launcher in self.launchers]
        return [(launcher.returncode, *each) for launcher, each in zip(self.launchers, said, strict=True)]

    def lines(self, each):
        """Read a number of lines of each launcher; return them all, without the rank before them."""
        got = [launcher.stdout.readline() for launcher in self.launchers for _ in range(each)]
        return [line.split("] ", 1)[1].strip() for line in got]


AGENT = """#!/bin/sh
# What mpirun takes for ssh: the options, the name of a host, and the command to start there.
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
case $host in
{cases}
*) exit 1 ;;
esac
exec nsenter --target="$pid" --net --uts --mount -- sh -c "$*"
"""


def mpirun(network, ranks, folder, *command, timeout=150):
    """Start ranks of Open MPI on all hosts of a network; return what these said, or skip the test."""
    pytest.importorskip("mpi4py")
    start = Path(sysconfig.get_path("scripts")) / "mpirun"
    if not start.exists():
        pytest.skip("Open MPI is not installed in this environment")
    agent = folder / "agent"
    agent.write_text(AGENT.format(cases="\n".join(f"{host.name}) pid={host.holder.pid} ;;" for host in network)))
    agent.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    size = len(network.hosts) * ranks
    hosts = ",".join(f"{host.name}:{ranks}" for host in network)
    options = ["--allow-run-as-root", "--map-by", f"ppr:{ranks}:node:oversubscribe", "-x", "PYTHONPATH"]
    options += ["--prtemca", "plm_ssh_agent", str(agent), "--host", hosts]
    process = network[0].start(
        [str(start), *options, "-n", str(size), sys.executable, *map(str, command)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, out
    return [line for line in out.splitlines() if not line.startswith("[host")]  # mpirun's own words, as of setpgid
