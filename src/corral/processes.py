"""What starters of ranks share: the ranks' environment, their end with their parent, words for it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["GRACE", "Job", "Share", "adopt_orphans", "describe_exit", "die_with_parent", "free_port"]

GRACE = 2.0
"""Seconds that a process has between being asked to end and being made to."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FOREIGN = {"CORRAL_STORE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"}
_FOREIGN_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")


class Share(NamedTuple):
    """What a host has of a job that runs on several.

    Attributes
    ----------
    node, nodes : int
        Which of how many hosts this is.
    first, ranks : int
        The first of its ranks, and how many it has.
    address : str
        ``MASTER_ADDR``: of the first host.
    store : str
        Host and port of the store in which all ranks meet.
    """

    node: int
    nodes: int
    first: int
    ranks: int
    address: str
    store: str


class Job(NamedTuple):
    """A set of ranks that are started together.

    Attributes
    ----------
    size : int
        Number of ranks.
    port : int
        ``MASTER_PORT``: corral takes it for a name, and torch can listen on it.
    token : str
        Tells this job from any other that happens to have the same port.
    share : Share or None
        What this host has of it, if there are others.

    Examples
    --------
    >>> job = Job.create(4)
    >>> job.environment(3, {})["RANK"]
    '3'
    """

    size: int
    port: int
    token: str
    share: Share | None = None

    @classmethod
    def create(cls, size: int) -> Job:
        """Make a job of `size` ranks on this host, with a port that is free now."""
        return cls(size, free_port("127.0.0.1"), os.urandom(8).hex())

    @property
    def ranks(self) -> range:
        """The ranks that this host has."""
        if self.share is None:
            return range(self.size)
        return range(self.share.first, self.share.first + self.share.ranks)

    def variables(self, rank: int) -> dict[str, str]:
        """Return what a rank's environment has of its own, under the names that torchrun uses."""
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(rank - self.ranks.start),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "CORRAL_JOB": self.token,
        }
        if self.share is not None:
            variables |= {
                "GROUP_RANK": str(self.share.node),
                "GROUP_WORLD_SIZE": str(self.share.nodes),
                "NODE_RANK": str(self.share.node),
                "MASTER_ADDR": self.share.address,
                "CORRAL_STORE": self.share.store,
            }
        return variables

    def environment(self, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        """Return a rank's whole environment, without what another starter of ranks left in `environ`."""
        kept = {
            name: value
            for name, value in environ.items()
            if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)
        }
        return kept | self.variables(rank)


def free_port(host: str) -> int:
    """Return a port that nobody listens on at an address of this host now."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.bind(address)
        return int(probe.getsockname()[1])


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it is gone, however that happens.

    Parameters
    ----------
    parent
        The process that started this one: if it is gone already, this process ends here.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request was made
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of descendants that have lost theirs."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def describe_exit(code: int) -> str:
    """Say how a process ended, given its exit code, or the negative number of the signal that killed it.

    Examples
    --------
    >>> describe_exit(3), describe_exit(-9)
    ('exited with code 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
