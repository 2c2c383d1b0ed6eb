"""The transport over MPI, by mpi4py.

MPI has no wait with a limit, and nothing that another thread could end: it is asked again and again, at once
for a moment, then after pauses that grow to a millisecond, and further where nothing has come for long.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

try:
    from mpi4py import MPI
except RuntimeError as error:  # mpi4py is installed, but no MPI that it could load
    raise ImportError(str(error)) from error

from corral import _core
from corral.backends import pieces
from corral.backends.at_exit import AtExit
from corral.backends.lanes import Movement
from corral.backends.messages.backend import MessageBackend
from corral.backends.messages.transport import Arrival, Transfer, Transport
from corral.backends.mpi_small import SmallCalls
from corral.backends.places import Place, Processes, here
from corral.backends.waking import Signal
from corral.distributed.errors import DistBackendError, DistNetworkError

__all__ = ["MpiBackend", "MpiTransport"]

_HEAD_TAG = 1
_FIRST_BODY_TAG, _BODY_TAGS = 2, 1 << 14  # MPI allows tags up to 32767 at least
_DATA, _BYE, _ENDING = 1, 2, 3
_BLOCK = 1 << 30  # most bytes of a block: counts of MPI before 4.0 are of 31 bits
_SPIN = 1e-3  # seconds without pauses
_FIRST_PAUSE, _LAST_PAUSE = 50e-6, 1e-3
_LATER, _LONGEST_PAUSE = 0.05, 10e-3  # pauses grow to this part of what has been waited in vain, and to no more seconds
_APART = 5e-3  # seconds between two waits that do not belong together
_LOOK = 0.02  # seconds between two looks for ranks that have ended
_MOMENT = 0.2  # seconds in which a process that says so is seen to end
_LAST_WORDS = 1.0  # seconds for telling the others that this process ends
_MOST_AT_ONCE = 16  # ranks that tell each other what they call, each all others
_FUNCTIONS = (
    *("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Get_count"),
    *("MPI_Cancel", "MPI_Test_cancelled", "MPI_Improbe", "MPI_Mrecv"),
)


class _Transfer(Movement):
    """A request of MPI, and what it needs until it is complete."""

    __slots__ = ("keep", "kind", "peer", "request")

    def __init__(self, peer: int, request: Any, keep: Any, kind: Any = None) -> None:
        super().__init__()
        self.peer = peer
        self.request = request
        self.keep = keep
        self.kind = kind  # the derived datatype, to be freed

    def look(self) -> bool:
        """Ask MPI whether it has ended."""
        if self._done:
            return True
        error: BaseException | None = None
        try:
            if not self.request.Test():
                return False
        except MPI.Exception as failure:
            error = DistNetworkError(f"MPI could not exchange data with rank {self.peer}: {failure}")
        self.release()
        self.end(error)
        return True

    def release(self) -> None:
        self.keep = None
        if self.kind is not None:
            self.kind.Free()
            self.kind = None


def _port(comm: Any) -> _core.MpiPort:
    """Make what moves a communicator's heads: it calls the functions of the MPI that mpi4py has loaded."""
    library = ctypes.CDLL(MPI.__file__)  # through which those of its MPI are found
    functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
    handles = MPI._handleof(comm), MPI._handleof(MPI.BYTE)
    return _core.MpiPort(functions, *handles, MPI.ANY_SOURCE, _HEAD_TAG, comm.rank, comm.size, MpiTransport.head_limit)


class MpiTransport(Transport):
    """Frames as messages of MPI.

    Parameters
    ----------
    comm
        A communicator, of which every rank makes a transport at the same time. A duplicate of it is used.
    """

    name = "mpi"
    head_limit = 1 << 14
    any_source = vectors = True

    def __init__(self, comm: Any, signal: Signal | None = None) -> None:
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"comm must be an intracommunicator of mpi4py, got {type(comm).__qualname__}")
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise DistBackendError(
                "MPI was initialized for use by one thread only; corral needs MPI_THREAD_SERIALIZED at least: set "
                "mpi4py.rc.thread_level = 'multiple' before the first `from mpi4py import MPI`"
            )
        self._comm: Any = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.rank, self._comm.size
        places = [Place.decode(place) for place in self._comm.allgather(here().encode())]
        self.hosts = [place.host for place in places]
        self._processes = Processes(places, self.rank)
        self._signal = Signal() if signal is None else signal
        self._moving: list[_Transfer] = []
        self._arrived: deque[Arrival] = deque()
        self._gone: dict[int, str] = {}
        self._vain_since = self._vain_until = 0.0  # when a wait began that nothing has ended, and when it was left
        self._ending: dict[int, float] = {}  # ranks whose processes end, and when to wait no longer to see how
        self._kept: list[_Transfer] = []  # of ranks that are lost: MPI may yet touch their memory
        self._keeps = False  # whether the same is true of heads
        self._bodies = [0] * self.size  # sent to each rank
        self._looked = 0.0
        self._at_exit = AtExit(self._end)
        self.port = _port(self._comm)
        self.numbers = self.port if self.size <= _MOST_AT_ONCE else None
        _transports.add(self)

    @classmethod
    def create(
        cls,
        rank: int,
        world_size: int,
        meet: Callable[[bytes], list[bytes]] | None,
        timeout: float,
        signal: Signal | None = None,
        comm: Any = None,
    ) -> MpiTransport:
        """Make a transport of a communicator; when ``None``, of those of `COMM_WORLD` who meet: all, if nobody does.

        Raises
        ------
        DistBackendError
            If MPI does not connect those who meet.
        """
        world = MPI.COMM_WORLD
        if comm is not None or meet is None:
            return cls(world if comm is None else comm, signal)
        members = [int.from_bytes(told, "little") for told in meet(world.rank.to_bytes(4, "little"))]
        if len(set(members)) < world_size or max(members) >= world.size:
            raise DistBackendError(
                f"MPI does not connect the {world_size} ranks that meet: this process is rank {world.rank} of "
                f"{world.size} in MPI.COMM_WORLD. Start all of them by one mpirun or srun."
            )
        if members == [*range(world.size)]:
            return cls(world, signal)
        some = world.Create_group(world.Get_group().Incl(members))
        try:
            return cls(some, signal)
        finally:
            some.Free()

    # Sending -------------------------------------------------------------------------------------------------

    def send(self, dst: int, head: bytes, body: Sequence[memoryview] = ()) -> Transfer:
        size = pieces.total(body)
        tag = 0
        if size:
            tag = _FIRST_BODY_TAG + self._bodies[dst] % _BODY_TAGS
            self._bodies[dst] += 1
        if dst in self._gone:
            return self._failed(dst)
        try:
            self.port.send(dst, _DATA, tag, size, head)
        except RuntimeError as error:
            return self._failed(dst, error)
        if not size:  # the head was copied: the caller's memory is free
            return _finished
        return self._start(self._comm.Isend, dst, tag, body)

    def _start(self, start: Callable[..., Any], peer: int, tag: int, parts: Sequence[memoryview]) -> _Transfer:
        """Start moving pieces of memory, from or to where they lie."""
        kind = None
        blocks = [part[at : at + _BLOCK] for part in parts for at in range(0, part.nbytes, _BLOCK)]
        try:
            if len(blocks) == 1:
                request = start([blocks[0], MPI.BYTE], peer, tag)
            else:
                kind = MPI.BYTE.Create_hindexed([block.nbytes for block in blocks], [*map(pieces.address_of, blocks)])
                kind.Commit()
                request = start([MPI.BOTTOM, 1, kind], peer, tag)
        except MPI.Exception as error:
            if kind is not None:
                kind.Free()
            return self._failed(peer, error)
        transfer = _Transfer(peer, request, parts, kind)
        if not transfer.look():
            self._moving.append(transfer)
        return transfer

    def _failed(self, peer: int, error: BaseException | None = None) -> _Transfer:
        transfer = _Transfer(peer, None, None)
        if peer in self._gone:
            transfer.end(DistNetworkError(f"rank {peer} {self._gone[peer]}"))
        else:
            transfer.end(DistNetworkError(f"MPI could not exchange data with rank {peer}: {error}"))
        return transfer

    # Receiving -----------------------------------------------------------------------------------------------

    def arrivals(self) -> Iterable[Arrival]:
        self._progress()
        arrived = self._arrived
        while arrived:
            yield arrived.popleft()

    def receive(self, arrival: Arrival, into: Sequence[memoryview]) -> Transfer:
        return self._start(self._comm.Irecv, arrival.source, arrival.handle, into)

    def _progress(self) -> bool:
        """See what has come and what has ended; say whether anything has."""
        try:
            changed = self.port.poll()
        except RuntimeError as error:
            changed = True
            self._hear_of_failure(error)
        for message in self.port.take():
            changed = True
            self._take(*message)
        if self._moving:
            moving = [transfer for transfer in self._moving if not transfer.look()]
            changed = changed or len(moving) < len(self._moving)
            self._moving = moving
        return changed

    def _take(self, source: int, kind: int, tag: int, size: int, head: bytes) -> None:
        if source in self._gone:
            return
        if kind == _DATA:
            self._arrived.append(Arrival(source, head, size, tag))
        elif kind == _BYE:
            self._lose(source, "left the job (destroy_process_group)")
        elif kind == _ENDING:
            self._ending[source] = time.monotonic() + _MOMENT
        else:
            self._lose(source, "sent a message that makes no sense")

    # Ranks that are lost -------------------------------------------------------------------------------------

    def _hear_of_failure(self, error: Any) -> None:
        """Note the ranks that an MPI with fault tolerance knows to have failed, so that it serves the others."""
        try:
            self._comm.Ack_failed(self.size)
            failed = self._comm.Get_failed()
            ranks = MPI.Group.Translate_ranks(failed, None, self._comm.Get_group())
        except (MPI.Exception, NotImplementedError, AttributeError):
            raise DistBackendError(f"MPI failed on rank {self.rank}: {error}") from error
        for rank in ranks:
            self._lose(rank, "has failed")

    def _lose(self, rank: int, how: str) -> None:
        if rank in self._gone:
            return
        self._gone[rank] = how
        for transfer in self._moving:
            if transfer.peer == rank and not transfer.look():
                self._kept.append(transfer)
                transfer.end(DistNetworkError(f"rank {rank} {how}"))
        self._moving = [transfer for transfer in self._moving if not transfer._done]
        self._keeps = self.port.abandon(rank) or self._keeps

    def lost(self) -> Mapping[int, str]:
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            ended = self._processes.ended()
            if ended:
                self._progress()  # what they have sent before
                for rank, how in ended.items():
                    self._lose(rank, how)
            for rank, deadline in self._ending.items():
                if rank not in self._gone and now >= deadline:
                    self._lose(rank, "is ending")
        return self._gone

    # Waiting and ending --------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        if self._progress() or self._arrived or self._signal.wait(0.0):
            return
        start = now = time.monotonic()
        if start > self._vain_until + _APART:
            self._vain_since = start
        self._vain_until, known = 0.0, len(self._gone)
        pause = _FIRST_PAUSE
        while now < start + seconds:
            if now < self._vain_since + _SPIN:
                os.sched_yield()
                if self._signal.wait(0.0):
                    return
            else:
                longest = min(max(_LAST_PAUSE, (now - self._vain_since) * _LATER), _LONGEST_PAUSE)
                if self._signal.wait(min(pause, start + seconds - now)):
                    return
                pause = longest if longest > _LAST_PAUSE else min(pause * 1.5, longest)
            if self._progress() or len(self.lost()) > known:
                return
            now = time.monotonic()
        self._vain_until = now

    def heard(self, rank: int) -> float:
        return self.port.heard(rank)

    def wake(self) -> None:
        self._signal.set()

    def close(self, timeout: float) -> None:
        self._leave(_BYE, timeout)

    def _end(self) -> None:
        self._leave(_ENDING, _LAST_WORDS)

    def _leave(self, kind: int, timeout: float) -> None:
        """Deliver what was sent, and say that nothing more comes: the process itself may live on."""
        self._at_exit.cancel()
        self.port.disable()
        if self._comm == MPI.COMM_NULL or MPI.Is_finalized():
            return
        deadline = time.monotonic() + timeout
        for rank in range(self.size):
            if rank != self.rank and rank not in self._gone:
                with contextlib.suppress(RuntimeError):  # it is gone
                    self.port.send(rank, kind, 0, 0, b"")
        while (self._moving or self.port.sending()) and time.monotonic() < deadline:
            self.wait(min(_LOOK, deadline - time.monotonic()))
            self._moving = [transfer for transfer in self._moving if not transfer.look()]
        sent = not self._moving and not self.port.sending()
        self.port.close()
        self._processes.close()
        # A communicator made later could be mistaken for a freed one by ranks that still send in it.
        if sent and not self._kept and not self._keeps and len(self._gone) == self.size - 1:
            self._comm.Free()
        self._comm = MPI.COMM_NULL


_finished = Movement()
_finished.end()
_transports: weakref.WeakSet[MpiTransport] = weakref.WeakSet()


def _in_child() -> None:
    for transport in _transports:
        transport.port.disable()


os.register_at_fork(after_in_child=_in_child)


class MpiBackend(SmallCalls):
    """A group of ranks on MPI."""

    transport = MpiTransport

    meets = False
    """MPI has brought the ranks together already, and says which this is, of how many."""

    @classmethod
    def create(
        cls,
        rank: int,
        world_size: int,
        meet: Callable[[bytes], list[bytes]] | None,
        timeout: float,
        comm: Any = None,
    ) -> MessageBackend:
        """Join a job: see `MpiTransport.create`."""
        return cls.over(MpiTransport.create(rank, world_size, meet, timeout, comm=comm), timeout)
