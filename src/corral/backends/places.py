"""Processes of this machine that are ranks of a job over an engine that does not tell when one of them ends."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from corral import _core
from corral.distributed.host_identity import host_identity, kernel_identity
from corral.processes import describe_exit

__all__ = ["Place", "Processes", "here"]

_END = 100  # milliseconds for the status of a process that has ended to be known


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where one rank runs.

    Attributes
    ----------
    host : str
        The same for ranks that share a host; see `corral.distributed.host_identity`.
    kernel : str
        The same for ranks of one machine, which may be several hosts: see there, too.
    namespace : int
        Tells apart process numbers of different containers.
    pid, started : int
        The process, and when it began: its number alone may come again.
    """

    host: str
    kernel: str
    namespace: int
    pid: int
    started: int

    def encode(self) -> bytes:
        """Return the place as bytes, which `decode` reads."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Place:
        """Read what `encode` wrote on another rank.

        Raises
        ------
        msgspec.ValidationError
            If it is something else.
        """
        return msgspec.msgpack.decode(data, type=cls)


def here() -> Place:
    """Return where this process runs.

    Examples
    --------
    >>> Place.decode(here().encode()) == here()
    True
    """
    pid = os.getpid()
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return Place(host_identity(), kernel_identity(), namespace, pid, _core.start_time(pid))


class Processes:
    """The processes of a job's ranks, of which those that this one can see are watched.

    Parameters
    ----------
    places
        Of every rank, in rank order.
    rank
        Which of them this process is.
    """

    def __init__(self, places: Sequence[Place], rank: int) -> None:
        self._watched: dict[int, _core.Process] = {}
        mine = places[rank]
        for other, place in enumerate(places):
            if other != rank and (place.kernel, place.namespace) == (mine.kernel, mine.namespace):
                try:
                    self._watched[other] = _core.Process(place.pid, place.started)
                except OSError:  # a kernel without pidfd_open, or no descriptor left: what the engine says must do
                    continue

    def ended(self) -> dict[int, str]:
        """Return the ranks whose processes have ended since the last call, and how."""
        ended = {}
        for rank, process in [*self._watched.items()]:
            if not process.alive():
                status = process.status(_END)
                ended[rank] = "is gone" if status is None else describe_exit(os.waitstatus_to_exitcode(status))
                del self._watched[rank]
        return ended

    def close(self) -> None:
        """Watch no more."""
        self._watched.clear()
