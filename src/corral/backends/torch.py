"""The transport over point-to-point messages of torch's engines: gloo.

Gloo says that a receive has ended to nobody but a thread that waits for it, and a wait of its own that times
out breaks the connections to all ranks. So the waits here have no limit, each in a thread that has nothing
else to do: one for each other rank's heads, and, once there is need, one for bodies from it and one for what is
sent to it. Several receives for heads are always posted, so that a head comes without a handshake.
"""

from __future__ import annotations

import functools
import itertools
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from corral.backends import pieces, torch_groups
from corral.backends.at_exit import AtExit
from corral.backends.lanes import Lane, Movement
from corral.backends.messages.backend import MessageBackend
from corral.backends.messages.transport import Arrival, Transfer, Transport
from corral.backends.waking import Signal
from corral.distributed.errors import DistNetworkError
from corral.distributed.host_identity import host_identity

__all__ = ["GlooBackend", "TorchTransport", "backend_of"]

_HEAD_TAG = 0x63000000  # as nobody else who uses the group will choose
_FIRST_BODY_TAG, _BODY_TAGS = 0x63000001, 1 << 14
_UNUSED_TAG = _FIRST_BODY_TAG + _BODY_TAGS  # which nothing is sent with
_POSTED = 4  # receives for heads, for each rank
_PREFIX = struct.Struct("<BHHI")  # kind, the body's number and messages, bytes of the head; then the messages' sizes
_DATA, _BYE, _ENDING = 1, 2, 3
_MOST_MESSAGES = 256  # of one body
_SMALL, _LARGE = 1 << 17, 1 << 30  # bytes up to which pieces of a body are put together; most bytes of a message
_UNWAITED = 32  # heads sent to a rank whose ends nobody has waited for
_NO_LIMIT = timedelta(days=10000)
_LAST_WORDS = 1.0  # seconds for telling the others that this process ends
_NO_TIME = timedelta(milliseconds=1)


class TorchTransport(Transport):
    """Frames as messages of a group of torch's.

    Parameters
    ----------
    engine
        The group's engine for CPU tensors. All its ranks make a transport of it, and send nothing else with
        this one's tags.
    hosts
        A name of each rank's host.
    """

    name = "gloo"
    head_limit = 1 << 15

    def __init__(self, engine: Any, hosts: Sequence[str], signal: Signal | None = None) -> None:
        self.rank, self.size = engine.rank(), engine.size()
        self.hosts = hosts
        self._engine = engine
        self._signal = Signal() if signal is None else signal
        self._arrived: deque[Arrival] = deque()
        self._gone: dict[int, str] = {}
        self._said_bye: set[int] = set()
        self._lock = threading.Lock()  # of the two above
        self._closed = False
        self._bodies = [0] * self.size  # sent to each rank
        self._unwaited: dict[int, deque[Any]] = {}
        self._sending: dict[int, Lane] = {}
        self._taking: dict[int, Lane] = {}
        self._hearing = [
            threading.Thread(
                target=self._hear, args=(peer, self._post_all(peer)), name=f"corral-gloo-{peer}", daemon=True
            )
            for peer in range(self.size)
            if peer != self.rank
        ]
        for thread in self._hearing:
            thread.daemon = True  # gloo has no way to end a wait
            thread.start()
        self._at_exit = AtExit(self._end)

    @classmethod
    def create(
        cls,
        rank: int,
        world_size: int,
        meet: Callable[[bytes], list[bytes]],
        timeout: float,
        signal: Signal | None = None,
    ) -> TorchTransport:
        """Connect the ranks of a job."""
        hosts = [told.decode() for told in meet(host_identity().encode())]
        return cls(torch_groups.gloo_group(rank, world_size, meet, hosts, timeout), hosts, signal)

    # Sending -------------------------------------------------------------------------------------------------

    def send(self, dst: int, head: bytes, body: Sequence[memoryview] = ()) -> Transfer:
        movement = Movement()
        if dst in self._gone:
            movement.end(DistNetworkError(f"rank {dst} {self._gone[dst]}"))
            return movement
        sizes: Sequence[int] = ()
        number = 0
        if body:
            sizes = pieces.parcels(body, _MOST_MESSAGES, _SMALL, _LARGE)
            number = self._bodies[dst] = (self._bodies[dst] + 1) % _BODY_TAGS
        frame = _PREFIX.pack(_DATA, number, len(sizes), len(head)) + struct.pack(f"<{len(sizes)}Q", *sizes) + head
        unwaited = self._unwaited.setdefault(dst, deque())
        try:
            unwaited.append(self._post(frame, dst))
            if not sizes:
                movement.end()  # the frame is a copy: the caller's memory is free
                if len(unwaited) > _UNWAITED:
                    self._wait_for_sent(dst)
                return movement
            works = [
                (self._engine.send([tensor], dst, _FIRST_BODY_TAG + number), tensor)
                for tensor in map(_tensor, pieces.outgoing(body, sizes))
            ]
        except RuntimeError as error:
            movement.end(self._failure(dst, error))
            return movement
        self._wait_for_sent(dst, works, movement)
        return movement

    def _post(self, frame: bytes, dst: int) -> tuple[Any, Any]:
        tensor = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        return self._engine.send([tensor], dst, _HEAD_TAG), tensor

    def _wait_for_sent(self, dst: int, works: Sequence[Any] = (), movement: Movement | None = None) -> None:
        """Let the thread for what is sent to a rank wait for everything sent so far."""
        sent = [*self._unwaited[dst], *works]
        self._unwaited[dst].clear()
        self._lane(self._sending, dst).add(functools.partial(self._await_all, dst, sent, movement, None))

    def _lane(self, lanes: dict[int, Lane], peer: int) -> Lane:
        with self._lock:
            lane = lanes.get(peer)
            if lane is None:
                lane = lanes[peer] = Lane(f"corral-gloo-{'to' if lanes is self._sending else 'from'}-{peer}")
            return lane

    def _await_all(
        self, peer: int, works: list[Any], movement: Movement | None, after: Callable[[], None] | None
    ) -> None:
        error: BaseException | None = None
        for work, _ in works:  # all of them, even after an error: each keeps memory that gloo may yet use
            try:
                work.wait(_NO_LIMIT)
            except RuntimeError as failure:
                error = error or failure
        if error is None and after is not None:
            after()
        if movement is not None:
            movement.end(None if error is None else self._failure(peer, error))
            self._signal.set()

    def _failure(self, peer: int, error: BaseException) -> DistNetworkError:
        return DistNetworkError(f"gloo could not exchange data with rank {peer}: {_reason(error)}")

    # Receiving -----------------------------------------------------------------------------------------------

    def arrivals(self) -> Iterable[Arrival]:
        arrived = self._arrived
        while arrived:
            yield arrived.popleft()

    def receive(self, arrival: Arrival, into: Sequence[memoryview]) -> Transfer:
        movement = Movement()
        source = arrival.source
        number, sizes = arrival.handle
        incoming = pieces.Incoming(into, sizes)
        try:
            works = [
                (self._engine.recv([tensor], source, _FIRST_BODY_TAG + number), tensor)
                for tensor in map(_tensor, incoming.messages)
            ]
        except RuntimeError as error:
            movement.end(self._failure(source, error))
            return movement

        self._lane(self._taking, source).add(
            functools.partial(self._await_all, source, works, movement, incoming.finish)
        )
        return movement

    def _post_all(self, peer: int) -> list[_Slot]:
        size = _PREFIX.size + 8 * _MOST_MESSAGES + self.head_limit
        return [_Slot(self._engine, peer, size) for _ in range(_POSTED)]

    def _hear(self, peer: int, slots: list[_Slot]) -> None:
        """Take heads from one rank until it says goodbye or is lost; the body of a thread."""
        left = _POSTED
        for slot in itertools.cycle(slots):
            try:
                slot.work.wait(_NO_LIMIT)
            except RuntimeError as error:
                self._lose(peer, f"cannot be reached any more: {_reason(error)}")
                return
            arrival = self._read(peer, slot.view)
            if arrival is None:
                left -= 1
                if not left:
                    return
                continue
            try:
                slot.post()
            except RuntimeError:
                pass  # the next one's wait says what is wrong
            self._arrived.append(arrival)
            self._signal.set()

    def _read(self, peer: int, view: memoryview) -> Arrival | None:
        """Return the frame whose head has come, ``None`` if it is the last one that will."""
        kind, number, count, size = _PREFIX.unpack_from(view)
        start = _PREFIX.size + 8 * count
        if kind == _BYE:
            self._lose(peer, "left the job (destroy_process_group)")
            self._say_bye(peer, _BYE)  # so that its own thread for this rank ends too
            return None
        if kind == _ENDING:
            self._say_bye(peer, _BYE)
            self._lose(peer, "is ending")
            return None
        if kind != _DATA or number >= _BODY_TAGS or count > _MOST_MESSAGES or size > self.head_limit:
            self._lose(peer, "sent a message that makes no sense")
            return None
        sizes = struct.unpack_from(f"<{count}Q", view, _PREFIX.size)
        return Arrival(peer, bytes(view[start : start + size]), sum(sizes), (number, sizes))

    def _lose(self, peer: int, how: str) -> None:
        with self._lock:
            self._gone.setdefault(peer, how)
        self._signal.set()

    # Waiting and ending --------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        if not self._arrived:
            self._signal.wait(seconds)

    def wake(self) -> None:
        self._signal.set()

    def lost(self) -> Mapping[int, str]:
        with self._lock:
            return dict(self._gone)

    def _say_bye(self, peer: int, kind: int) -> None:
        with self._lock:
            if peer in self._said_bye:
                return
            self._said_bye.add(peer)
        try:
            # One for each receive that the other has posted: none may be left when the group goes on to serve others.
            works = [self._post(_PREFIX.pack(kind, 0, 0, 0), peer) for _ in range(_POSTED)]
        except RuntimeError:  # it is gone already
            return
        self._lane(self._sending, peer).add(functools.partial(self._await_all, peer, works, None, None))

    def close(self, timeout: float) -> None:
        self._leave(_BYE, timeout)

    def _end(self) -> None:
        """Let no thread be left in gloo: Python unwinds those that come back to it while it ends, and C++ then aborts.

        So where a rank does not say goodbye in time, the waits for it are broken off.
        """
        ended = self._join(time.monotonic() + _LAST_WORDS) if self._closed else self._leave(_ENDING, _LAST_WORDS)
        if not ended:
            self._break()
            self._join(time.monotonic() + _LAST_WORDS)

    def _leave(self, kind: int, timeout: float) -> bool:
        """Deliver what was sent, and let the threads end; return whether they have."""
        if self._closed:
            return True
        self._closed = True
        deadline = time.monotonic() + timeout
        for peer, unwaited in self._unwaited.items():
            if unwaited:
                self._wait_for_sent(peer)
        for lane in [*self._sending.values()]:
            lane.drain(deadline - time.monotonic())
        for peer in range(self.size):
            if peer != self.rank and peer not in self._gone:
                self._say_bye(peer, kind)
        return self._join(deadline)

    def _join(self, deadline: float) -> bool:
        """Wait for the threads to end, and return whether they have; if not, it is done again when the process ends."""
        for thread in self._hearing:  # each ends when its rank has said goodbye too, for which that need do nothing
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            lanes = [*self._sending.values(), *self._taking.values()]
        ended = [lane.close(deadline - time.monotonic()) for lane in lanes]
        if not all(ended) or any(thread.is_alive() for thread in self._hearing):
            return False
        self._at_exit.cancel()
        self._engine = None
        return True

    def _break(self) -> None:
        """End all waits in gloo: one that times out closes the connections to all ranks, and the others' waits fail."""
        for peer in range(self.size):
            if peer == self.rank:
                continue
            try:
                work = self._engine.recv([torch.empty(1, dtype=torch.uint8)], peer, _UNUSED_TAG)
            except RuntimeError:  # this connection is closed already, and that alone
                continue
            try:
                work.wait(_NO_TIME)
            except RuntimeError:
                pass


class _Slot:
    """A receive for a head from one rank, and its memory."""

    def __init__(self, engine: Any, peer: int, size: int) -> None:
        self._engine = engine
        self._peer = peer
        memory = np.empty(size, np.uint8)
        self._tensor = torch.from_numpy(memory)
        self.view = memoryview(memory)
        self.post()

    def post(self) -> None:
        self.work = self._engine.recv([self._tensor], self._peer, _HEAD_TAG)


class _Memory:
    """Memory of the caller's as NumPy takes it: also where it is read-only, which torch would warn of."""

    __slots__ = ("__array_interface__", "piece")

    def __init__(self, piece: memoryview) -> None:
        self.piece = piece
        self.__array_interface__ = {
            "shape": (piece.nbytes,),
            "typestr": "|u1",
            "data": (pieces.address_of(piece), False),
            "version": 3,
        }


def _tensor(piece: memoryview) -> Any:
    """Return a tensor over a piece's memory."""
    if not piece.readonly:
        return torch.frombuffer(piece, dtype=torch.uint8)
    return torch.from_numpy(np.asarray(_Memory(piece)))


def _reason(error: BaseException) -> str:
    """Return what gloo says, without where in its source it says it."""
    text = str(error)
    if text.startswith("["):
        text = text.partition("] ")[2]
    return text.partition(". This is typically")[0]


class GlooBackend(MessageBackend):
    """A group of ranks on gloo, as torch has it."""

    transport = TorchTransport
    called = "gloo"

    @classmethod
    def create(cls, rank: int, world_size: int, meet: Callable[[bytes], list[bytes]], timeout: float) -> MessageBackend:
        """Join a job: connect the ranks who meet."""
        transport = TorchTransport.create(rank, world_size, meet, timeout)
        transport.name = cls.called
        return cls.over(transport, timeout)


def backend_of(group: Any, timeout: float) -> MessageBackend:
    """Make the backend of a group of torch's, which goes on to serve torch as well."""
    engine = torch_groups.gloo_of(group)
    hosts = torch_groups.exchange_hosts(engine, host_identity(), timeout)
    return GlooBackend.over(TorchTransport(engine, hosts), timeout)
