"""Where the ranks of a job run, and how those that share a host with this one end.

Engines between hosts learn of a rank's end late, or not at all. The kernel tells at once of a process of the
same host, and often how it ended.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
from collections.abc import Sequence

import msgspec

from corral.distributed.host_identity import host_identity
from corral.processes import describe_exit

__all__ = ["Place", "Processes", "here"]

_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info of Linux 6.15
_INFO_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_STARTED, _EXIT_CODE = 22, 52  # fields of /proc/<pid>/stat, as proc(5) counts them


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where one rank runs.

    Attributes
    ----------
    host : str
        The same for ranks that share a host; see `corral.distributed.host_identity`.
    namespace : int
        Tells apart process numbers of different containers.
    pid, started : int
        The process, and when it began: its number alone may come again.
    """

    host: str
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
    return Place(host_identity(), _namespace(), pid, _stat(pid, _STARTED) or 0)


class Processes:
    """The processes of a job's ranks, of which those of this host are watched.

    Parameters
    ----------
    places
        Of every rank, in rank order.
    rank
        Which of them this process is.
    """

    def __init__(self, places: Sequence[Place], rank: int) -> None:
        self._files: dict[int, int] = {}
        self._pids = [place.pid for place in places]
        self._ends: dict[int, str] = {}
        self._poller = select.poll()
        self._lock = threading.Lock()
        mine = places[rank]
        for other, place in enumerate(places):
            if other != rank and (place.host, place.namespace) == (mine.host, mine.namespace):
                self._watch(other, place)

    def _watch(self, rank: int, place: Place) -> None:
        try:
            file = os.pidfd_open(place.pid)
        except ProcessLookupError:
            self._ends[rank] = f"is gone (process {place.pid})"
            return
        except OSError:  # a kernel that forbids it: what the engine says must do
            return
        if _stat(place.pid, _STARTED) != place.started:  # another process by now
            os.close(file)
            self._ends[rank] = f"is gone (process {place.pid})"
            return
        self._files[rank] = file
        self._poller.register(file, select.POLLIN)

    def ended(self) -> dict[int, str]:
        """Return the ranks whose processes have ended, and how."""
        with self._lock:
            ready = {file for file, _ in self._poller.poll(0)} if self._files else ()
            if ready:
                for rank, file in [*self._files.items()]:
                    if file in ready:
                        status = _exit_status(file, self._pids[rank])
                        how = "is gone" if status is None else describe_exit(os.waitstatus_to_exitcode(status))
                        self._ends[rank] = f"{how} (process {self._pids[rank]})"
                        self._forget(rank)
            return dict(self._ends)

    def end_of(self, rank: int, patience: float) -> str | None:
        """Return how a rank's process has ended, or does within some seconds; ``None`` if that is not known."""
        with self._lock:
            watched = os.dup(self._files[rank]) if rank in self._files else None
        if watched is not None:  # a descriptor of its own: others may forget the process meanwhile
            try:
                poller = select.poll()
                poller.register(watched, select.POLLIN)
                poller.poll(1000 * patience)
            finally:
                os.close(watched)
        return self.ended().get(rank)

    def _forget(self, rank: int) -> None:
        file = self._files.pop(rank)
        self._poller.unregister(file)
        os.close(file)

    def close(self) -> None:
        """Watch no more."""
        with self._lock:
            for rank in [*self._files]:
                self._forget(rank)


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _stat(pid: int, field: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the command's name in parentheses, and may itself hold spaces and parentheses.
            return int(file.read().rpartition(b")")[2].split()[field - 3])
    except (OSError, ValueError, IndexError):
        return None


def _exit_status(file: int, pid: int) -> int | None:
    """Return the wait status of a process that has ended, if the kernel or its entry in /proc says it."""
    info = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(file, _GET_INFO, info)
    except OSError:  # older than 6.15: an entry is there until the parent has waited
        return _stat(pid, _EXIT_CODE)
    fields = _INFO.unpack(info)
    return fields[-1] if fields[0] & _INFO_EXIT else _stat(pid, _EXIT_CODE)
