"""The backend that any transport of messages makes: see :class:`MessageBackend`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral import _core
from corral.backends.base import Backend, Buffer, Operation, Received, Reduction, Request, context_of
from corral.backends.capabilities import Capabilities
from corral.backends.messages import operations
from corral.backends.messages.agreement import Refused, Round
from corral.backends.messages.errors import error_of
from corral.backends.messages.exchanges import Exchange, Pattern, copy, made
from corral.backends.messages.frames import ABORT, encode
from corral.backends.messages.job import Job
from corral.backends.messages.making import READ, WRITE, Maker
from corral.backends.messages.operations import ANYONE, Failure, Reason, Receive, Send
from corral.backends.messages.peers import Peers
from corral.backends.messages.reducing import Result
from corral.backends.messages.requests import MessageRequest
from corral.backends.messages.rows import Rows
from corral.backends.messages.transport import Transport
from corral.backends.shm_names import LABELS

__all__ = ["MessageBackend"]

_CLOSE_TIMEOUT = 5.0
_VIEWED_FROM = 64 * 1024


class MessageBackend(Backend):
    """A group of ranks that exchange messages.

    Parameters
    ----------
    job
        What the groups of one job share.
    name
        The group's name.
    members
        Ranks of the job, in the group's order.
    timeout
        Seconds that an operation may take.
    """

    def __init__(self, job: Job, name: str, members: Sequence[int], timeout: float) -> None:
        self.job = job
        self.name = job.transport.name
        self.group_name = name
        self.members = tuple(members)
        self.rank = self.members.index(job.rank)
        self.size = len(self.members)
        self.timeout = timeout
        self.context = context_of(name)
        self._ledger = job.rounds.ledger(self.context)
        self._closed = False
        self._rows = Rows(job, self._ledger)
        self._make = Maker(job, self._ledger, self.refuse)
        job.call(lambda: self._ledger.join(self.members, self.rank, job.transport.hosts))
        job.open_groups += 1

    @classmethod
    def over(cls, transport: Transport, timeout: float) -> MessageBackend:
        """Make this rank's view of the group of all ranks of a transport.

        Every rank calls it; it returns when all have.

        Examples
        --------
        How a new engine is made known, if ``Pigeons`` is a :class:`Transport`::

            class PigeonBackend(MessageBackend):
                @classmethod
                def create(cls, rank, world_size, meet, timeout):
                    return cls.over(Pigeons(rank, world_size, meet), timeout)

            corral.backends.register("pigeons", PigeonBackend)
        """
        backend = cls(Job(transport), "world", range(transport.size), timeout)
        backend._ledger.numbers = transport.numbers
        introductions = backend.all_gather_bytes(Peers.introduction(), timeout, "init_process_group")
        backend.job.call(lambda: backend.job.peers.meet(introductions))
        return backend

    def capabilities(self) -> Capabilities:
        transport = self.job.transport
        return Capabilities(
            any_source=transport.any_source, vectors=transport.vectors, several_hosts=transport.several_hosts
        )

    def split(self, ranks: Sequence[int], name: str, timeout: float | None = None) -> MessageBackend:
        members = [self.members[rank] for rank in ranks]
        return type(self)(self.job, name, members, self.timeout if timeout is None else timeout)

    # Point to point ---------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Buffer], dst: int, tag: int = 0, timeout: float | None = None) -> None:
        self._run(self._send(buffers, dst, tag), timeout)

    def recv(self, buffers: Sequence[Buffer], src: int | None, tag: int = 0, timeout: float | None = None) -> int:
        receive = self._receive(self._memory(buffers, WRITE), src, tag)
        self._run(receive, timeout)
        return self.members.index(receive.sender)

    def batch(self, operations: Sequence[Operation]) -> list[Request]:
        started: list[Send | Receive] = []
        for kind, buffers, peer, tag in operations:
            if kind == "send":
                assert peer is not None
                started.append(self._send(buffers, peer, tag))
            else:
                started.append(self._receive(self._memory(buffers, WRITE), peer, tag))
        self.job.start(started)
        return [MessageRequest(self, operation) for operation in started]

    def recv_bytes(self, src: int | None, tag: int = 0, timeout: float | None = None) -> tuple[int, Received]:
        receive = self._receive(None, src, tag)
        self._run(receive, timeout)
        return self.members.index(receive.sender), receive.made

    def _send(self, buffers: Sequence[Buffer], dst: int, tag: int) -> Send:
        return Send(self.job, self.context, LABELS["send"], self.members[dst], tag, self._memory(buffers, READ))

    def _memory(self, buffers: Sequence[Buffer], access: int) -> _core.Memory:
        memory = _core.Memory(buffers, access)
        self.job.strays.check(memory)
        return memory

    def _receive(self, memory: _core.Memory | None, src: int | None, tag: int) -> Receive:
        source = ANYONE if src is None else self.members[src]
        others = tuple(rank for rank in self.members if rank != self.job.rank)
        return Receive(self.job, self.context, LABELS["recv"], source, tag, memory, others)

    # Collectives ------------------------------------------------------------------------------------------------

    def barrier(self, timeout: float | None = None) -> None:
        self._run(self._make.barrier(), timeout)

    def ibarrier(self) -> Request:
        return self._started(self._make.barrier())

    def gather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        timeout: float | None = None,
        operation: str = "gather",
    ) -> None:
        self._run(self._make.gather(buffers, into, root, operation), timeout)

    def igather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        operation: str = "gather",
    ) -> Request:
        return self._started(self._make.gather(buffers, into, root, operation))

    def broadcast(
        self, buffers: Sequence[Buffer], root: int, timeout: float | None = None, operation: str = "broadcast"
    ) -> None:
        self._run(self._make.broadcast(buffers, root, operation), timeout)

    def ibroadcast(self, buffers: Sequence[Buffer], root: int, operation: str = "broadcast") -> Request:
        return self._started(self._make.broadcast(buffers, root, operation))

    def scatter(
        self,
        parts: Sequence[Sequence[Buffer]] | None,
        into: Sequence[Buffer],
        root: int,
        timeout: float | None = None,
        operation: str = "scatter",
    ) -> None:
        self._run(self._make.scatter(parts, into, root, operation), timeout)

    def iscatter(
        self,
        parts: Sequence[Sequence[Buffer]] | None,
        into: Sequence[Buffer],
        root: int,
        operation: str = "scatter",
    ) -> Request:
        return self._started(self._make.scatter(parts, into, root, operation))

    def all_gather(
        self,
        buffers: Sequence[Buffer],
        into: list[Any] | Buffer,
        timeout: float | None = None,
        operation: str = "all_gather",
    ) -> None:
        self._run(self._make.all_gather(buffers, into, operation), timeout)

    def iall_gather(
        self, buffers: Sequence[Buffer], into: Sequence[Sequence[Buffer]], operation: str = "all_gather"
    ) -> Request:
        return self._started(self._make.all_gather(buffers, into, operation))

    def all_to_all(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Sequence[Buffer]],
        timeout: float | None = None,
        operation: str = "all_to_all",
    ) -> None:
        self._run(self._make.all_to_all(parts, into, operation), timeout)

    def iall_to_all(
        self, parts: Sequence[Sequence[Buffer]], into: Sequence[Sequence[Buffer]], operation: str = "all_to_all"
    ) -> Request:
        return self._started(self._make.all_to_all(parts, into, operation))

    def all_reduce(
        self,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        timeout: float | None = None,
        operation: str = "all_reduce",
    ) -> None:
        self._run(self._make.reduce(Result.EVERYWHERE, buffers, reduction, -1, operation), timeout)

    def iall_reduce(self, buffers: Sequence[Buffer], reduction: Reduction, operation: str = "all_reduce") -> Request:
        return self._started(self._make.reduce(Result.EVERYWHERE, buffers, reduction, -1, operation))

    def reduce(
        self,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        root: int,
        timeout: float | None = None,
        operation: str = "reduce",
    ) -> None:
        self._run(self._make.reduce(Result.ROOT, buffers, reduction, root, operation), timeout)

    def ireduce(self, buffers: Sequence[Buffer], reduction: Reduction, root: int, operation: str = "reduce") -> Request:
        return self._started(self._make.reduce(Result.ROOT, buffers, reduction, root, operation))

    def reduce_scatter(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Buffer],
        reduction: Reduction,
        timeout: float | None = None,
        operation: str = "reduce_scatter",
    ) -> None:
        self._run(self._make.reduce_scatter(parts, into, reduction, operation), timeout)

    def ireduce_scatter(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Buffer],
        reduction: Reduction,
        operation: str = "reduce_scatter",
    ) -> Request:
        return self._started(self._make.reduce_scatter(parts, into, reduction, operation))

    # Of bytes whose number only the sender knows ----------------------------------------------------------------

    def gather_bytes(
        self, payload: Any, root: int, timeout: float | None = None, operation: str = "gather_object"
    ) -> list[Received] | None:
        own = self._make.payload(operation, payload)
        if self.rank != root:
            self._run(self._make.of_bytes(Pattern.TO_ROOT, operation, [own], [], root), timeout)
            return None
        round_ = self._make.of_bytes(Pattern.TO_ROOT, operation, [own], [None] * self.size, root)
        self._run(round_, timeout)
        return self._received(round_, own)

    def broadcast_bytes(
        self, payload: Any, root: int, timeout: float | None = None, operation: str = "broadcast_object_list"
    ) -> Any:
        if self.rank == root:
            own = self._make.payload(operation, payload)
            self._run(self._make.of_bytes(Pattern.BROADCAST, operation, [own], [], root), timeout)
            return payload
        round_ = self._make.of_bytes(Pattern.BROADCAST, operation, [], [None], root)
        self._run(round_, timeout)
        return _bytes_of(round_.takes[0])

    def all_gather_bytes(
        self, payload: Any, timeout: float | None = None, operation: str = "all_gather_object"
    ) -> list[Received]:
        own = self._make.payload(operation, payload)
        round_ = self._make.of_bytes(Pattern.TO_ALL, operation, [own], [None] * self.size)
        self._run(round_, timeout)
        return self._received(round_, own)

    def scatter_bytes(
        self,
        payloads: list[Any] | None,
        root: int,
        timeout: float | None = None,
        operation: str = "scatter_object_list",
    ) -> Received:
        if self.rank == root:
            parts = self._make.payloads(operation, payloads)
            self._run(self._make.of_bytes(Pattern.SCATTER, operation, parts, [], root), timeout)
            return _copy_of(parts[root])
        round_ = self._make.of_bytes(Pattern.SCATTER, operation, [], [None], root)
        self._run(round_, timeout)
        return _bytes_of(round_.takes[0])

    def all_to_all_bytes(
        self, payloads: list[Any], timeout: float | None = None, operation: str = "all_to_all"
    ) -> list[Received]:
        parts = self._make.payloads(operation, payloads)
        round_ = self._make.of_bytes(Pattern.PAIRS, operation, parts, [None] * self.size)
        self._run(round_, timeout)
        return self._received(round_, parts[self.rank])

    def gather_rows(
        self, tree: Any, root: int, timeout: float | None = None, operation: str = "gather_and_stack"
    ) -> bool:
        round_ = self._rows.round(tree, root, operation)
        self._run(round_, timeout)
        return self._rows.fitted(round_)

    # The group itself -------------------------------------------------------------------------------------------

    def refuse(self, operation: str) -> None:
        self.job.start([Refused(self.job, self._ledger, LABELS[operation])])

    def abort(self, reason: str) -> None:
        failure = Failure(Reason.ABORTED, self.job.rank, text=reason)

        def end() -> None:
            self.job.rounds.abort(self.context, failure)
            self.job.post.abort(self.context, failure)
            # Others may hear of this sooner than of a loss that is the cause of it.
            lost = next((rank + 1 for rank in self.members if rank in self.job.lost), 0)
            self.job.rounds.tell(self._ledger, encode(ABORT, self.context, lost, payload=reason.encode()[:1024]))

        self.job.call(end)

    def close(self, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self.job.open_groups -= 1
        limit = _CLOSE_TIMEOUT if timeout is None else timeout
        self.job.flush(limit)
        if self.job.open_groups == 0:
            self.job.leave(limit)
        else:
            self.job.forget(self.context)

    def renumber(self, ranks: Sequence[int] | None = None) -> None:
        self.job.global_ranks = dict(zip(self.members, range(self.size) if ranks is None else ranks, strict=True))

    def abandon(self, deliver: bool) -> None:
        if deliver:
            self.job.flush(_CLOSE_TIMEOUT)
        self.job.keep()

    # ------------------------------------------------------------------------------------------------------------

    def is_gather(self, operation: operations.Operation) -> bool:
        """Whether an operation brings arrays to a root."""
        return isinstance(operation, Exchange) and operation.pattern == Pattern.TO_ROOT

    def _run(self, operation: operations.Operation, timeout: float | None) -> None:
        limit = self.timeout if timeout is None else timeout
        self.job.run(operation, limit)
        if operation.failure is not None:
            raise error_of(operation, self, limit)

    def _received(self, round_: Exchange, own: _core.Memory) -> list[Received]:
        received: list[Received] = [_bytes_of(memory) for memory in round_.takes if memory is not None]
        received.insert(self.rank, _copy_of(own))
        return received

    def _started(self, round_: Round) -> Request:
        self.job.start([round_])
        return MessageRequest(self, round_)


def _bytes_of(memory: _core.Memory | None) -> Received:
    """Return what came into memory that was made for it."""
    assert memory is not None
    return memory.pieces()[0] if memory.nbytes >= _VIEWED_FROM else memory.read()


def _copy_of(memory: _core.Memory) -> Received:
    """Return what this rank gives itself."""
    if memory.nbytes < _VIEWED_FROM:
        return memory.read()
    target = made(memory.nbytes)
    copy(memory, target)
    return target.pieces()[0]
