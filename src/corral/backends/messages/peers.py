"""Which ranks can still be reached, and how the others went."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral import _core
from corral.backends.messages import frames
from corral.backends.messages.frames import Frame

if TYPE_CHECKING:
    from corral.backends.messages.job import Job
    from corral.backends.messages.transport import Arrival

__all__ = ["Peers"]

_PROCESS = struct.Struct("<qQ")
_LOOK = 0.1  # seconds between looks at the other processes of the host
_GRACE = 0.3  # seconds for what a process sent before its end to come
_END = 500  # milliseconds for a process to end whose connection has


class Peers:
    """The other ranks of the job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lost: dict[int, str] = {}
        self.left: set[int] = set()
        self.suspects: dict[int, float] = {}
        self._known = 0  # of those that the transport has told
        self._processes: dict[int, _core.Process] = {}
        self._pids: dict[int, int] = {}
        self._looked = 0.0
        self.handlers = {frames.LEAVE: self._on_leave}

    @staticmethod
    def introduction() -> bytes:
        """Return what lets the ranks of one host watch each other's processes."""
        pid = os.getpid()
        try:
            space = os.readlink("/proc/self/ns/pid") + Path("/proc/sys/kernel/random/boot_id").read_text()
        except OSError:
            space = ""
        return _PROCESS.pack(pid, _core.start_time(pid)) + space.encode()

    def meet(self, introductions: Sequence[bytes | memoryview]) -> None:
        """Take note of the other processes; watch those of this host."""
        mine = bytes(introductions[self.job.rank])
        for rank, told in enumerate(introductions):
            if len(told) < _PROCESS.size:
                continue
            pid, started = _PROCESS.unpack_from(told)
            self._pids[rank] = pid
            if (
                rank != self.job.rank
                and len(mine) > _PROCESS.size
                and bytes(told[_PROCESS.size :]) == mine[_PROCESS.size :]
            ):
                try:
                    self._processes[rank] = _core.Process(pid, started)
                except OSError:  # a kernel without pidfd_open, or no descriptor left
                    continue

    def look(self, lost: Mapping[int, str]) -> None:
        """Find out who is gone since the last look, besides those whom the transport has told of."""
        if len(lost) != self._known:
            self._known = len(lost)
            for rank, how in list(lost.items()):
                self.lose(rank, f"is gone: it {how}")
        if not self._processes:
            return
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            for rank, process in self._processes.items():
                if rank not in self.lost and rank not in self.suspects and not process.alive():
                    self.suspects[rank] = now
        for rank, since in list(self.suspects.items()):
            if rank in self.lost:
                del self.suspects[rank]
            elif now - since > _GRACE:
                del self.suspects[rank]
                self.lose(rank, "is gone")

    def lose(self, rank: int, how: str) -> None:
        """Note that a rank is gone, and end what needs it."""
        if rank in self.lost or rank == self.job.rank:
            return
        self.lost[rank] = how
        self.job.post.lose(rank)
        self.job.rounds.lose(rank)
        self.job.inquiries.lose(rank)

    def _on_leave(self, arrival: Arrival, frame: Frame) -> None:
        self.left.add(arrival.source)
        self.lose(arrival.source, "left the job (destroy_process_group)")

    def status(self, rank: int) -> int | None:
        """Return the status that a lost rank's process ended with, if that can be known."""
        process = self._processes.get(rank)
        return None if process is None else process.status(_END)

    def failed(self, rank: int) -> bool:
        """Whether a rank is gone, and did not leave by itself."""
        return rank in self.lost and rank not in self.left and self.status(rank) != 0

    def end_text(self, rank: int) -> str:
        """Say how a lost rank went."""
        if rank in self.left:
            return self.lost[rank]
        status = self.status(rank)
        if status is None:
            return self.lost.get(rank, "is gone")
        number = status & 0x7F
        if not number:
            return f"exited with code {status >> 8 & 0xFF}"
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"

    def process_text(self, rank: int) -> str:
        """Name a rank's process."""
        return f" (process {self._pids[rank]})" if rank in self._pids else ""
