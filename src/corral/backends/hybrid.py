"""The transport of jobs on several hosts: shared memory between ranks of one host, another engine between hosts."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from corral.backends import available, load, pieces
from corral.backends.at_exit import AtExit
from corral.backends.base import Operation, Request
from corral.backends.lanes import Movement
from corral.backends.messages.backend import MessageBackend
from corral.backends.messages.transport import Arrival, Transfer, Transport
from corral.backends.shm import ShmBackend
from corral.backends.waking import Signal
from corral.distributed.errors import DistError, DistTimeoutError, PeerLostError
from corral.distributed.starters import starter_of

__all__ = ["HybridBackend", "HybridTransport", "between_hosts"]

_HEAD_TAG, _FIRST_BODY_TAG, _BODY_TAGS = 0, 1, 1 << 14
_PREFIX = struct.Struct("<HH")  # the body's number and messages; then the messages' sizes
_MOST_MESSAGES = 512  # of one body
_SMALL, _LARGE = 1 << 16, 1 << 40  # bytes up to which pieces of a body are put together; most bytes of a message
_PATIENCE = 3600.0  # seconds between two looks of the thread that takes heads whether it is still needed
_STOP = b""
_FIRST_PAUSE, _LAST_PAUSE = 20e-6, 1e-3
_LAST_WORDS = 1.0  # seconds for the thread to end when the process does
_LOOK = 0.02  # seconds between two looks for ranks of this host that have ended


class _Local(Movement):
    """A movement through shared memory."""

    __slots__ = ("_finish", "_keep", "_requests")

    def __init__(self, requests: list[Request], keep: Any, finish: Callable[[], None] | None) -> None:
        super().__init__()
        self._requests = requests
        self._keep = keep
        self._finish = finish

    def done(self) -> bool:
        if self._done:
            return True
        while self._requests:
            if not self._requests[-1].is_completed():
                return False
            self._error = self._requests.pop().exception() or self._error
        if self._finish is not None and self._error is None:
            self._finish()
        self._keep = self._finish = None
        self._done = True
        return True


class HybridTransport(Transport):
    """Frames through shared memory where both ranks are on one host, else by another transport.

    Parameters
    ----------
    remote
        Reaches all ranks.
    local
        A group in shared memory, of this transport alone, of the ranks of this host, in their order.
    signal
        What `remote` waits for.
    """

    name = "hybrid"

    def __init__(self, remote: Transport, local: ShmBackend, signal: Signal) -> None:
        self.rank, self.size, self.hosts = remote.rank, remote.size, remote.hosts
        self.head_limit = remote.head_limit
        self.any_source, self.vectors = remote.any_source, remote.vectors  # within a host, both in any case
        self._remote = remote
        self._local = local
        self._signal = signal
        self._mates = _mates(self.hosts, self.rank)
        self._place = {rank: place for place, rank in enumerate(self._mates)}
        self._bodies = [0] * len(self._mates)
        self._arrived: deque[Arrival] = deque()
        self._moving: list[_Local] = []
        self._pause = _FIRST_PAUSE
        self._gone: dict[int, str] = {}
        self._going: set[int] = set()
        self._looked = 0.0
        self._closing = False
        self._taking = threading.Thread(target=self._take, name="corral-hybrid", daemon=True)
        self._taking.start()
        self._at_exit = AtExit(self._end)

    @classmethod
    def create(
        cls,
        rank: int,
        world_size: int,
        meet: Callable[[bytes], list[bytes]],
        timeout: float,
        engine: Callable[..., Transport],
    ) -> HybridTransport:
        """Join a job: connect all ranks by `engine`, and those of each host through shared memory.

        Parameters
        ----------
        rank, world_size, meet, timeout
            As for `corral.backends.Engine.create`.
        engine
            Makes the transport between hosts, of the same arguments and a `Signal`.
        """
        signal = Signal()
        remote = engine(rank, world_size, meet, timeout, signal=signal)
        mates = _mates(remote.hosts, rank)

        def meet_mates(payload: bytes) -> list[bytes]:
            told = meet(payload)
            return [told[mate] for mate in mates]

        return cls(remote, ShmBackend.create(mates.index(rank), len(mates), meet_mates, timeout), signal)

    def send(self, dst: int, head: bytes, body: Sequence[memoryview] = ()) -> Transfer:
        place = self._place.get(dst)
        if place is None:
            return self._remote.send(dst, head, body)
        sizes: Sequence[int] = ()
        number = 0
        if body:
            sizes = pieces.parcels(body, _MOST_MESSAGES, _SMALL, _LARGE)
            number = self._bodies[place] = (self._bodies[place] + 1) % _BODY_TAGS
        frame = _PREFIX.pack(number, len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes) + head
        messages = pieces.outgoing(body, sizes)
        tag = _FIRST_BODY_TAG + number
        sends = [Operation("send", [message], place, tag) for message in messages]
        return self._start([Operation("send", [frame], place, _HEAD_TAG), *sends], (frame, messages))

    def _start(self, operations: list[Operation], keep: Any, finish: Callable[[], None] | None = None) -> Transfer:
        try:
            requests = self._local.batch(operations)
        except DistError as error:
            failed = Movement()
            failed.end(error)
            return failed
        transfer = _Local(requests, keep, finish)
        if not transfer.done():
            self._moving.append(transfer)
            self._pause = _FIRST_PAUSE
        return transfer

    def arrivals(self) -> Iterable[Arrival]:
        arrived = self._arrived
        while arrived:
            yield arrived.popleft()
        yield from self._remote.arrivals()

    def receive(self, arrival: Arrival, into: Sequence[memoryview]) -> Transfer:
        place = self._place.get(arrival.source)
        if place is None:
            return self._remote.receive(arrival, into)
        number, sizes = arrival.handle
        incoming = pieces.Incoming(into, sizes)
        tag = _FIRST_BODY_TAG + number
        receives = [Operation("recv", [message], place, tag) for message in incoming.messages]
        return self._start(receives, incoming.messages, incoming.finish)

    def divert(self, transfer: Transfer, pieces: Sequence[memoryview]) -> bool:
        return not isinstance(transfer, _Local) and self._remote.divert(transfer, pieces)

    def _take(self) -> None:
        """Take heads from the ranks of this host; the body of a thread."""
        while not self._closing:
            try:
                place, frame = self._local.recv_bytes(None, _HEAD_TAG, _PATIENCE)
            except DistTimeoutError:
                continue
            except DistError:  # nobody is left; or the group is closed
                return
            if place == self._local.rank:  # it closes
                return
            number, count = _PREFIX.unpack_from(frame)
            start = _PREFIX.size + 8 * count
            sizes = struct.unpack_from(f"<{count}Q", frame, _PREFIX.size)
            self._arrived.append(Arrival(self._mates[place], bytes(frame[start:]), sum(sizes), (number, sizes)))
            self._signal.set()

    def wait(self, seconds: float) -> None:
        if self._arrived:
            return
        if self._moving:
            moving = [transfer for transfer in self._moving if not transfer.done()]
            ended, self._moving = len(moving) < len(self._moving), moving
            if ended:
                self._pause = _FIRST_PAUSE
                return
            seconds = min(seconds, self._pause)  # the end of these wakes nobody
            self._pause = min(1.5 * self._pause, _LAST_PAUSE)
        if len(self._going) > len(self._gone):
            seconds = min(seconds, _LOOK)  # until the next look
        self._remote.wait(seconds)

    def wake(self) -> None:
        self._signal.set()

    def lost(self) -> Mapping[int, str]:
        elsewhere = self._remote.lost()
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            for place, rank in enumerate(self._mates):
                if rank != self.rank and rank not in self._gone:
                    self._look(rank, place, elsewhere.get(rank))
        away = {rank: how for rank, how in elsewhere.items() if rank not in self._mates}
        return {**away, **self._gone}

    def _look(self, rank: int, place: int, told: str | None) -> None:
        """See whether a rank of this host is lost, of which the other transport has told something, or nothing.

        That one hears of a rank whose process lives on for long while it ends: MPI may let none end before all do.
        But it may do so before what the rank has sent through shared memory has come.
        """
        gone, left, _ = self._local.job.engine.gone(place)
        if not gone and told is None:
            return
        if rank not in self._going:
            self._going.add(rank)
        elif left:
            self._gone[rank] = "left the job (destroy_process_group)"
        else:  # at the last look, too: what it sent is taken
            self._gone[rank] = told or "is gone"

    def close(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        try:
            self._local.job.engine.flush(timeout)
            self._stop(timeout)
            self._local.close(max(0.0, deadline - time.monotonic()))
        except PeerLostError:  # what was sent to it is lost with it
            pass
        finally:
            self._remote.close(max(0.0, deadline - time.monotonic()))

    def _stop(self, timeout: float) -> None:
        """End the thread: one that is in native code when Python ends crashes it."""
        self._at_exit.cancel()
        self._closing = True
        self._local.send([_STOP], self._local.rank, _HEAD_TAG, timeout)
        self._taking.join(max(timeout, _LAST_WORDS))

    def _end(self) -> None:
        self._stop(_LAST_WORDS)
        self._local.abandon(deliver=True)


def _mates(hosts: Sequence[str], rank: int) -> list[int]:
    return [other for other, host in enumerate(hosts) if host == hosts[rank]]


class HybridBackend(MessageBackend):
    """A group of ranks on several hosts."""

    @classmethod
    def create(cls, rank: int, world_size: int, meet: Callable[[bytes], list[bytes]], timeout: float) -> MessageBackend:
        """Join a job: shared memory within each host; between hosts, what `between_hosts` says."""
        return cls.over(HybridTransport.create(rank, world_size, meet, timeout, _engine()), timeout)


def between_hosts() -> str:
    """Return the name of the backend that carries data between hosts.

    That is what the environment variable ``CORRAL_HYBRID`` says; else ``"mpi"`` where MPI started this process and
    mpi4py is installed, and ``"gloo"`` elsewhere.

    Examples
    --------
    >>> between_hosts()
    'gloo'
    """
    asked = os.environ.get("CORRAL_HYBRID")
    if asked:
        if asked not in ("gloo", "mpi"):
            raise ValueError(f"CORRAL_HYBRID must be 'gloo' or 'mpi', got {asked!r}")
        return asked
    started_by_mpi = starter_of(os.environ).name != "torchrun"
    return "mpi" if started_by_mpi and available("mpi") else "gloo"


def _engine() -> Callable[..., Transport]:
    engine: Any = load(between_hosts())
    make: Callable[..., Transport] = engine.transport.create
    return make
