"""The shared-memory backend: ranks of one host, through :mod:`corral._core`.

The engine moves bytes and says *that* something failed; this module says it to the user.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from corral import _core
from corral.backends.base import Backend, Buffer, Operation, Received, Reduction, Request, context_of
from corral.backends.capabilities import Capabilities
from corral.backends.shm_errors import Job, connect_error, error_of, verdict_error
from corral.backends.shm_names import LABELS, REDUCTIONS
from corral.distributed.errors import DistBackendError
from corral.distributed.host_identity import host_identity

__all__ = ["ShmBackend", "ShmRequest"]

_ANY = -1
_CLOSE_TIMEOUT = 5.0
_HOST_END = b"\0"  # after a host's name, in what ranks tell each other


class ShmRequest:
    """An operation of the native engine that is under way."""

    __slots__ = ("_backend", "_operation", "_request")

    def __init__(self, backend: ShmBackend, request: _core.Request, operation: str = "") -> None:
        self._backend = backend
        self._request = request
        self._operation = operation

    def wait(self, timeout: float | None = None) -> None:
        failure = self._request.wait(self._backend.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._backend._error(failure, timeout)
        verdict = self._request.verdict()
        if verdict is not None:
            raise verdict_error(verdict, self._backend, self._operation)

    def is_completed(self) -> bool:
        return self._request.done()

    def linger(self, seconds: float) -> None:
        self._request.linger(seconds)

    def exception(self) -> BaseException | None:
        failure = self._request.failure()
        if failure is not None:
            return self._backend._error(failure, None)
        verdict = self._request.verdict() if self._request.done() else None
        return None if verdict is None else verdict_error(verdict, self._backend, self._operation)

    def source(self) -> int | None:
        world = self._request.source()
        return self._backend.members.index(world) if world in self._backend.members else None


class ShmBackend(Backend):
    """A group of ranks on one host.

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

    name = "shm"

    def __init__(self, job: Job, name: str, members: Sequence[int], timeout: float) -> None:
        self.job = job
        self.group_name = name
        self.members = tuple(members)
        self.rank = self.members.index(job.engine.rank)
        self.size = len(self.members)
        self.timeout = timeout
        self.context = context_of(name)
        self._group = _core.Group(job.engine, self.context, list(members))
        job.open_groups += 1
        self._closed = False

    @classmethod
    def create(cls, rank: int, world_size: int, meet: Callable[[bytes], list[bytes]], timeout: float) -> ShmBackend:
        """Join a job: publish this rank's address, open the others' segments, wait for all.

        Raises
        ------
        DistBackendError
            If the ranks are not all on one host.
        """
        direct = os.environ.get("CORRAL_SHM_DIRECT", "1") != "0"
        engine = _core.Engine(rank, world_size, direct)
        told = meet(host_identity().encode() + _HOST_END + engine.address())
        hosts, addresses = zip(*(each.split(_HOST_END, 1) for each in told), strict=True)
        elsewhere = [other for other, host in enumerate(hosts) if host != hosts[rank]]
        if elsewhere:
            raise DistBackendError(
                f"the backend 'shm' on rank {rank}: ranks {elsewhere} run on another host, which shared memory does "
                "not reach. Ask for the backend 'hybrid', or name none in init_process_group, which then chooses it."
            )
        try:
            engine.connect(list(addresses))
        except RuntimeError as error:
            raise connect_error(error, rank) from None
        backend = cls(Job(engine), "world", range(world_size), timeout)
        # No rank may go before all have opened its segment: it has no name by which to find it later.
        backend.barrier(timeout)
        return backend

    def capabilities(self) -> Capabilities:
        return Capabilities(any_source=True, vectors=True, several_hosts=False)

    def split(self, ranks: Sequence[int], name: str, timeout: float | None = None) -> ShmBackend:
        members = [self.members[rank] for rank in ranks]
        return ShmBackend(self.job, name, members, self.timeout if timeout is None else timeout)

    def _error(self, failure: Any, timeout: float | None) -> DistBackendError:
        return error_of(failure, self, self.timeout if timeout is None else timeout)

    def send(self, buffers: Sequence[Buffer], dst: int, tag: int = 0, timeout: float | None = None) -> None:
        failure = self._group.send(buffers, dst, tag, self.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._error(failure, timeout)

    def recv(self, buffers: Sequence[Buffer], src: int | None, tag: int = 0, timeout: float | None = None) -> int:
        source = self._group.recv(
            buffers, _ANY if src is None else src, tag, self.timeout if timeout is None else timeout
        )
        if type(source) is int:
            return source
        raise self._error(source, timeout)

    def batch(self, operations: Sequence[Operation]) -> list[Request]:
        start = self._group.start
        requests = []
        for kind, buffers, peer, tag in operations:
            requests.append(ShmRequest(self, start(kind == "send", buffers, _ANY if peer is None else peer, tag)))
        for request in requests:
            request._request.background()
        return [*requests]

    def recv_bytes(self, src: int | None, tag: int = 0, timeout: float | None = None) -> tuple[int, Received]:
        outcome = self._group.recv_bytes(_ANY if src is None else src, tag, self._limit(timeout))
        if type(outcome) is tuple:
            return outcome
        raise self._error(outcome, timeout)

    def _limit(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def _started(self, request: Any, operation: str = "") -> ShmRequest:
        return ShmRequest(self, request, operation)

    def barrier(self, timeout: float | None = None) -> None:
        failure = self._group.barrier(self.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._error(failure, timeout)

    def ibarrier(self) -> ShmRequest:
        return self._started(self._group.barrier(None))

    def gather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        timeout: float | None = None,
        operation: str = "gather",
    ) -> None:
        outcome = self._group.gather(
            buffers, into, root, LABELS[operation], self.timeout if timeout is None else timeout
        )
        if outcome is None:
            return
        if type(outcome) is _core.Verdict:
            raise verdict_error(outcome, self, operation)
        raise self._error(outcome, timeout)

    def igather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        operation: str = "gather",
    ) -> ShmRequest:
        return self._started(self._group.gather(buffers, into, root, LABELS[operation], None), operation)

    def broadcast(
        self, buffers: Sequence[Buffer], root: int, timeout: float | None = None, operation: str = "broadcast"
    ) -> None:
        failure = self._group.broadcast(buffers, root, LABELS[operation], self.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._error(failure, timeout)

    def ibroadcast(self, buffers: Sequence[Buffer], root: int, operation: str = "broadcast") -> ShmRequest:
        return self._started(self._group.broadcast(buffers, root, LABELS[operation], None))

    def scatter(
        self,
        parts: Sequence[Sequence[Buffer]] | None,
        into: Sequence[Buffer],
        root: int,
        timeout: float | None = None,
        operation: str = "scatter",
    ) -> None:
        failure = self._group.scatter(
            parts, into, root, LABELS[operation], self.timeout if timeout is None else timeout
        )
        if failure is not None:
            raise self._error(failure, timeout)

    def iscatter(
        self, parts: Sequence[Sequence[Buffer]] | None, into: Sequence[Buffer], root: int, operation: str = "scatter"
    ) -> ShmRequest:
        return self._started(self._group.scatter(parts, into, root, LABELS[operation], None))

    def all_gather(
        self,
        buffers: Sequence[Buffer],
        into: list[Any] | Buffer,
        timeout: float | None = None,
        operation: str = "all_gather",
    ) -> None:
        failure = self._group.all_gather(buffers, into, LABELS[operation], self.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._error(failure, timeout)

    def iall_gather(
        self, buffers: Sequence[Buffer], into: Sequence[Sequence[Buffer]], operation: str = "all_gather"
    ) -> ShmRequest:
        return self._started(self._group.all_gather(buffers, into, LABELS[operation], None))

    def all_to_all(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Sequence[Buffer]],
        timeout: float | None = None,
        operation: str = "all_to_all",
    ) -> None:
        failure = self._group.all_to_all(parts, into, LABELS[operation], self.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._error(failure, timeout)

    def iall_to_all(
        self, parts: Sequence[Sequence[Buffer]], into: Sequence[Sequence[Buffer]], operation: str = "all_to_all"
    ) -> ShmRequest:
        return self._started(self._group.all_to_all(parts, into, LABELS[operation], None))

    def all_reduce(
        self,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        timeout: float | None = None,
        operation: str = "all_reduce",
    ) -> None:
        failure = self._group.all_reduce(
            buffers,
            REDUCTIONS[reduction.op],
            reduction.factor,
            LABELS[operation],
            self.timeout if timeout is None else timeout,
        )
        if failure is not None:
            raise self._error(failure, timeout)

    def iall_reduce(self, buffers: Sequence[Buffer], reduction: Reduction, operation: str = "all_reduce") -> ShmRequest:
        return self._started(
            self._group.all_reduce(buffers, REDUCTIONS[reduction.op], reduction.factor, LABELS[operation], None)
        )

    def reduce(
        self,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        root: int,
        timeout: float | None = None,
        operation: str = "reduce",
    ) -> None:
        failure = self._group.reduce(
            buffers,
            REDUCTIONS[reduction.op],
            reduction.factor,
            root,
            LABELS[operation],
            self.timeout if timeout is None else timeout,
        )
        if failure is not None:
            raise self._error(failure, timeout)

    def ireduce(
        self, buffers: Sequence[Buffer], reduction: Reduction, root: int, operation: str = "reduce"
    ) -> ShmRequest:
        return self._started(
            self._group.reduce(buffers, REDUCTIONS[reduction.op], reduction.factor, root, LABELS[operation], None)
        )

    def reduce_scatter(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Buffer],
        reduction: Reduction,
        timeout: float | None = None,
        operation: str = "reduce_scatter",
    ) -> None:
        failure = self._group.reduce_scatter(
            parts,
            into,
            REDUCTIONS[reduction.op],
            reduction.factor,
            LABELS[operation],
            self.timeout if timeout is None else timeout,
        )
        if failure is not None:
            raise self._error(failure, timeout)

    def ireduce_scatter(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Buffer],
        reduction: Reduction,
        operation: str = "reduce_scatter",
    ) -> ShmRequest:
        return self._started(
            self._group.reduce_scatter(parts, into, REDUCTIONS[reduction.op], reduction.factor, LABELS[operation], None)
        )

    def gather_bytes(
        self, payload: Any, root: int, timeout: float | None = None, operation: str = "gather_object"
    ) -> list[Received] | None:
        outcome = self._group.gather_bytes(payload, root, LABELS[operation], self._limit(timeout))
        if outcome is None or type(outcome) is list:
            return outcome
        raise self._error(outcome, timeout)

    def broadcast_bytes(
        self, payload: Any, root: int, timeout: float | None = None, operation: str = "broadcast_object_list"
    ) -> Any:
        outcome = self._group.broadcast_bytes(payload, root, LABELS[operation], self._limit(timeout))
        if type(outcome) is _core.Failure:
            raise self._error(outcome, timeout)
        return outcome

    def all_gather_bytes(
        self, payload: Any, timeout: float | None = None, operation: str = "all_gather_object"
    ) -> list[Received]:
        outcome = self._group.all_gather_bytes(payload, LABELS[operation], self._limit(timeout))
        if type(outcome) is list:
            return outcome
        raise self._error(outcome, timeout)

    def scatter_bytes(
        self,
        payloads: list[Any] | None,
        root: int,
        timeout: float | None = None,
        operation: str = "scatter_object_list",
    ) -> Received:
        outcome = self._group.scatter_bytes(payloads, root, LABELS[operation], self._limit(timeout))
        if isinstance(outcome, (bytes, memoryview)):
            return outcome
        raise self._error(outcome, timeout)

    def all_to_all_bytes(
        self, payloads: list[Any], timeout: float | None = None, operation: str = "all_to_all"
    ) -> list[Received]:
        outcome = self._group.all_to_all_bytes(payloads, LABELS[operation], self._limit(timeout))
        if type(outcome) is list:
            return outcome
        raise self._error(outcome, timeout)

    def gather_rows(
        self, tree: Any, root: int, timeout: float | None = None, operation: str = "gather_and_stack"
    ) -> bool:
        outcome = self._group.gather_rows(tree, root, LABELS[operation], self.timeout if timeout is None else timeout)
        if outcome is True or outcome is False:
            return outcome
        raise self._error(outcome, timeout)

    def refuse(self, operation: str) -> None:
        self._group.refuse(LABELS[operation])

    def abort(self, reason: str) -> None:
        self._group.abort()

    def close(self, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        late = self._group.late()
        self.job.open_groups -= 1
        self.job.engine.flush(_CLOSE_TIMEOUT if timeout is None else timeout)
        if self.job.open_groups == 0:
            self.job.engine.leave()
        if late is not None:  # the last chance to say it
            raise self._error(late, timeout)

    def renumber(self, ranks: Sequence[int] | None = None) -> None:
        self.job.global_ranks = dict(zip(self.members, range(self.size) if ranks is None else ranks, strict=True))

    def abandon(self, deliver: bool) -> None:
        if deliver:
            self.job.engine.flush(_CLOSE_TIMEOUT)
        self.job.engine.abandon()

    def segment_bytes(self) -> int:
        """Memory that this rank's segment holds now, in bytes; pages never touched do not count."""
        return self.job.engine.resident_bytes()
