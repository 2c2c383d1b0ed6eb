"""Hosts of our own: network namespaces whose links meet in a bridge, all of which goes with this process.

A host is held by a process that ends when its input does, and the bridge is in a namespace held in the same way: the
kernel removes everything when the last process in it has ended, even if the test run is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corral.processes import die_with_parent

__all__ = ["Counters", "Host", "Network", "why_not"]

_TOOLS = ("ip", "nsenter", "unshare")


class Counters(NamedTuple):
    """What has come in and gone out over a host's link."""

    bytes_in: int
    bytes_out: int
    packets_in: int
    packets_out: int

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(now - then for now, then in zip(self, other, strict=True)))


class _Namespace:
    """Namespaces of one kind each for network, names and mounts, held by a process that does nothing."""

    def __init__(self) -> None:
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.holder.stdout is not None
        if not self.holder.stdout.readline():
            raise OSError(self.holder.communicate()[1].decode().strip())

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return what runs a command in here."""
        entering = ["nsenter", f"--target={self.holder.pid}", "--net", "--uts", "--mount", "--"]
        return [*entering, *map(str, arguments)]

    def run(self, *arguments: str) -> str:
        ended = subprocess.run(self.command(arguments), capture_output=True, text=True, timeout=30)
        if ended.returncode:
            raise OSError(f"{' '.join(arguments)}: {ended.stderr.strip()}")
        return ended.stdout

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.holder.communicate(timeout=10)
        self.holder.kill()
        self.holder.wait()


class Host(_Namespace):
    """A host with one link.

    Attributes
    ----------
    number : int
        Its place in the network.
    name : str
        The name that it has itself, and by which all hosts of the network know it.
    address, address6 : str
        Where it is.
    """

    def __init__(self, number: int, switch: _Namespace) -> None:
        super().__init__()
        self.number = number
        self.switch = switch
        self.name = f"host{number}"
        self.address = f"10.77.0.{number + 1}"
        self.address6 = f"fd77::{number + 1:x}"
        self._port = f"port{number}"
        self._started: list[subprocess.Popen[Any]] = []

    def connect(self, names: Path) -> None:
        """Plug the host in, and have it know the names of all."""
        self.switch.run("ip", "link", "add", self._port, "type", "veth", "peer", "eth0", "netns", str(self.holder.pid))
        self.switch.run("ip", "link", "set", self._port, "master", "switch", "up")
        self.run("hostname", self.name)
        self.run("mount", "--bind", str(names), "/etc/hosts")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "address", "add", f"{self.address6}/64", "dev", "eth0", "nodad")
        for link in ("lo", "eth0"):
            self.run("ip", "link", "set", link, "up")

    def start(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on this host, which ends with the network at the latest."""
        parent = os.getpid()
        ctypes.CDLL(None)  # loaded before the fork
        process = subprocess.Popen(
            self.command(arguments), preexec_fn=lambda: die_with_parent(parent), start_new_session=True, **options
        )
        self._started.append(process)
        return process

    def counters(self) -> Counters:
        """Return what has gone over the link since the host was plugged in."""
        (link,) = json.loads(self.run("ip", "-s", "-j", "link", "show", "dev", "eth0"))
        come, gone = link["stats64"]["rx"], link["stats64"]["tx"]
        return Counters(come["bytes"], gone["bytes"], come["packets"], gone["packets"])

    def cut(self) -> None:
        """Cut the link, in the middle of whatever is on it: nobody is told."""
        self.switch.run("ip", "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        self.switch.run("ip", "link", "set", self._port, "master", "switch")

    def throttle(self, rate: str, queue: str) -> None:
        """Let no more out than `rate`, and drop what does not fit into a short queue."""
        self.run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "16kb", "limit", queue)

    def dropped(self) -> int:
        """Return how many packets the queue has dropped."""
        (queue,) = json.loads(self.run("tc", "-s", "-j", "qdisc", "show", "dev", "eth0"))
        return int(queue["drops"])

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        super().close()


class Network:
    """Some hosts that reach each other, and nothing else.

    Parameters
    ----------
    size
        How many.
    folder
        Where to write their list of names.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self._all = contextlib.ExitStack()
        try:
            switch = _Namespace()
            self._all.callback(switch.close)
            switch.run("ip", "link", "add", "switch", "type", "bridge")
            switch.run("ip", "link", "set", "switch", "up")
            self.hosts: list[Host] = []
            for number in range(size):
                host = Host(number, switch)
                self._all.callback(host.close)
                self.hosts.append(host)
            names = folder / "hosts"
            lines = ["127.0.0.1 localhost", "::1 localhost"]
            for host in self.hosts:
                lines += [f"{host.address} {host.name}", f"{host.address6} {host.name}-6"]
            names.write_text("\n".join(lines) + "\n")
            for host in self.hosts:
                host.connect(names)
        except BaseException:
            self._all.close()
            raise

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()


def why_not(folder: Path) -> str:
    """Return why no network can be made here; nothing if one can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts of our own need {', '.join(missing)} (iproute2 and util-linux)"
    try:
        with Network(2, folder) as network:
            network[0].run("sh", "-c", "exit 0")
    except OSError as error:
        return f"hosts of our own cannot be made here, which takes root's rights: {error}"
    return ""
