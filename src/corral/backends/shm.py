"""The shared-memory backend: ranks of one host, through :mod:`corral._core`.

The engine moves bytes and says *that* something failed; this module says it to the user.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from corral import _core
from corral.backends.base import Backend, Buffer, Operation, Request
from corral.backends.shm_errors import Job, connect_error, error_of, verdict_error
from corral.distributed.errors import DistBackendError

__all__ = ["ShmBackend", "ShmRequest"]

_ANY = -1
_CLOSE_TIMEOUT = 5.0


def _context(name: str) -> int:
    """Derive a group's number on the wire from its name: the same on every rank, without talking."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class ShmRequest:
    """An operation of the native engine that is under way."""

    __slots__ = ("_backend", "_request")

    def __init__(self, backend: ShmBackend, request: _core.Request) -> None:
        self._backend = backend
        self._request = request

    def wait(self, timeout: float | None = None) -> None:
        failure = self._request.wait(self._backend.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._backend._error(failure, timeout)
        verdict = self._request.verdict()
        if verdict is not None:
            raise verdict_error(verdict, self._backend)

    def is_completed(self) -> bool:
        return self._request.done()

    def exception(self) -> BaseException | None:
        failure = self._request.failure()
        if failure is not None:
            return self._backend._error(failure, None)
        verdict = self._request.verdict() if self._request.done() else None
        return None if verdict is None else verdict_error(verdict, self._backend)

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
        self.context = _context(name)
        self._group = _core.Group(job.engine, self.context, list(members))
        job.open_groups += 1
        self._closed = False

    @classmethod
    def create(cls, rank: int, world_size: int, meet: Callable[[bytes], list[bytes]], timeout: float) -> ShmBackend:
        """Join a job: publish this rank's address, open the others' segments, wait for all."""
        direct = os.environ.get("CORRAL_SHM_DIRECT", "1") != "0"
        engine = _core.Engine(rank, world_size, direct)
        addresses = meet(engine.address())
        try:
            engine.connect(addresses)
        except RuntimeError as error:
            raise connect_error(error, rank) from None
        backend = cls(Job(engine), "world", range(world_size), timeout)
        # No rank may go before all have opened its segment: it has no name by which to find it later.
        backend.barrier(timeout)
        return backend

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

    def barrier(self, timeout: float | None = None) -> None:
        failure = self._group.barrier(self.timeout if timeout is None else timeout)
        if failure is not None:
            raise self._error(failure, timeout)

    def ibarrier(self) -> ShmRequest:
        return self._in_background(self._group.ibarrier())

    def _in_background(self, request: _core.Request) -> ShmRequest:
        request.background()
        return ShmRequest(self, request)

    def gather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        timeout: float | None = None,
    ) -> None:
        outcome = self._group.gather(buffers, into, root, self.timeout if timeout is None else timeout)
        if outcome is None:
            return
        if type(outcome) is _core.Verdict:
            raise verdict_error(outcome, self)
        raise self._error(outcome, timeout)

    def igather(self, buffers: Sequence[Buffer], into: Sequence[Sequence[Buffer]] | None, root: int) -> ShmRequest:
        return self._in_background(self._group.igather(buffers, into, root))

    def gather_bytes(self, payload: bytes, root: int, timeout: float | None = None) -> list[bytes] | None:
        outcome = self._group.gather_bytes(payload, root, self.timeout if timeout is None else timeout)
        if outcome is None or type(outcome) is list:
            return outcome
        raise self._error(outcome, timeout)

    def broadcast_bytes(self, payload: bytes | None, root: int, timeout: float | None = None) -> bytes:
        outcome = self._group.broadcast_bytes(payload, root, self.timeout if timeout is None else timeout)
        if isinstance(outcome, bytes):
            return outcome
        raise self._error(outcome, timeout)

    def gather_rows(self, tree: Any, root: int, timeout: float | None = None) -> bool:
        outcome = self._group.gather_rows(tree, root, self.timeout if timeout is None else timeout)
        if outcome is True or outcome is False:
            return outcome
        raise self._error(outcome, timeout)

    def abort(self, reason: str) -> None:
        self._group.abort()

    def close(self, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self.job.open_groups -= 1
        self.job.engine.flush(_CLOSE_TIMEOUT if timeout is None else timeout)
        if self.job.open_groups == 0:
            self.job.engine.leave()

    def segment_bytes(self) -> int:
        """Memory that this rank's segment holds now, in bytes; pages never touched do not count."""
        return self.job.engine.resident_bytes()
