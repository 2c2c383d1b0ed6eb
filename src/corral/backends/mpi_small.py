"""Calls over MPI that are over before the engine in Python could begin to work on them.

A small message, or a small collective on which all ranks agree at once, is a matter of one call into the core. What it
cannot do, or not at once, is done as everywhere: nothing is lost but the moment in which that turned out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corral.backends.base import Buffer, Reduction
from corral.backends.messages.backend import MessageBackend
from corral.backends.messages.reducing import Result
from corral.backends.shm_names import LABELS, REDUCTIONS

if TYPE_CHECKING:
    from corral.backends.messages.agreement import Round
    from corral.backends.messages.job import Job
    from corral.backends.messages.transport import Transport

__all__ = ["SmallCalls"]

_DONE, _POOR = 1, 2  # what the core says of a message
_OVER, _UNFIT = -1, -2  # and of a collective; or else, the number of a call to go on with
_ENOUGH = 1 << 16  # bytes of credit that are worth lending
_BARRIER = LABELS["barrier"]


class SmallCalls(MessageBackend):
    """A group of ranks whose transport has a :class:`corral._core.MpiPort`."""

    def __init__(self, job: Job, name: str, members: Sequence[int], timeout: float) -> None:
        super().__init__(job, name, members, timeout)
        # Looked up once: each costs as much as a tenth of a small message.
        self._port: Any = job.transport.port  # type: ignore[attr-defined]
        self._turns = job.turns
        self._box = job.post.box(self.context)
        self._failed = self._ledger.failed  # calls to come that others have given up
        self._numbered = False

    @classmethod
    def over(cls, transport: Transport, timeout: float) -> MessageBackend:
        backend = super().over(transport, timeout)
        assert isinstance(backend, SmallCalls)
        backend._numbered = transport.numbers is not None
        return backend

    def send(self, buffers: Sequence[Buffer], dst: int, tag: int = 0, timeout: float | None = None) -> None:
        if not self._turns.held:
            try:
                sent = self._port.send_message(self.context, self.members[dst], tag, buffers)
            except Exception:
                sent = 0  # it fails again, with a better error
            if sent == _DONE:
                return
            if sent == _POOR:
                self._lend(self.members[dst])
        super().send(buffers, dst, tag, timeout)

    def _lend(self, member: int) -> None:
        """Let the core use half of the credit that this rank has with another."""
        credit = self.job.post.credit
        half = credit[member] // 2
        if half >= _ENOUGH:
            credit[member] -= half
            self._port.lend(member, half)

    def recv(self, buffers: Sequence[Buffer], src: int | None, tag: int = 0, timeout: float | None = None) -> int:
        box = self._box
        if src is not None and not self._turns.held and not box.arrived.lines and not box.posted.lines:
            member = self.members[src]
            try:
                done = self._port.recv_message(self.context, member, tag, buffers)
            except Exception:
                done = 0
            if done:
                if done > 1:
                    self.job.call(lambda: self.job.post.consumed(member, done))
                return src
        return super().recv(buffers, src, tag, timeout)

    # Where another thread drives, or others have given up what this rank is about to call, the core is not asked. What
    # it raises comes of the arguments, which are then refused on all ranks, as everywhere.

    def barrier(self, timeout: float | None = None) -> None:
        if self._numbered and not self._turns.held and not self._failed:
            number = self._port.barrier(_BARRIER)
            if number == _OVER:
                return
            if number >= 0:
                return self._go_on(self._make.barrier(), number, timeout)
        super().barrier(timeout)

    def broadcast(
        self, buffers: Sequence[Buffer], root: int, timeout: float | None = None, operation: str = "broadcast"
    ) -> None:
        if self._numbered and not self._turns.held and not self._failed:
            try:
                number = self._port.broadcast(LABELS[operation], root, buffers)
            except Exception:
                number = _UNFIT
            if number == _OVER:
                return
            if number >= 0:
                return self._go_on(self._make.broadcast(buffers, root, operation), number, timeout)
        super().broadcast(buffers, root, timeout, operation)

    def all_reduce(
        self,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        timeout: float | None = None,
        operation: str = "all_reduce",
    ) -> None:
        if self._numbered and not self._turns.held and not self._failed:
            try:
                number = self._port.all_reduce(LABELS[operation], REDUCTIONS[reduction.op], buffers)
            except Exception:
                number = _UNFIT
            if number == _OVER:
                return
            if number >= 0:
                round_ = self._make.reduce(Result.EVERYWHERE, buffers, reduction, -1, operation)
                return self._go_on(round_, number, timeout)
        super().all_reduce(buffers, reduction, timeout, operation)

    def all_gather(
        self,
        buffers: Sequence[Buffer],
        into: list[Any] | Buffer,
        timeout: float | None = None,
        operation: str = "all_gather",
    ) -> None:
        if self._numbered and not self._turns.held and not self._failed and not isinstance(into, list):
            try:
                number = self._port.all_gather(LABELS[operation], buffers, into)
            except Exception:
                number = _UNFIT
            if number == _OVER:
                return
            if number >= 0:
                return self._go_on(self._make.all_gather(buffers, into, operation), number, timeout)
        super().all_gather(buffers, into, timeout, operation)

    def _go_on(self, round_: Round, number: int, timeout: float | None) -> None:
        self._run(round_.begun(number), timeout)
