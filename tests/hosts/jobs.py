"""Jobs that `corral run` starts on the hosts of a network."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["PORT", "Job"]

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
