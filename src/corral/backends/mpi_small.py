"""Calls over MPI that are over before the engine in Python could begin to work on them.

A small message, or a small collective on which all ranks agree at once, is a matter of one call into the core. What it
cannot do, or not at once, is done as everywhere: nothing is lost but the moment in which that turned out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corral.backends.base import Buffer, Reduction
from corral.backends.messages.agreement import Round
from corral.backends.messages.backend import MessageBackend
from corral.backends.messages.calls import Call
from corral.backends.messages.operations import Failure, Reason
from corral.backends.messages.reducing import Result
from corral.backends.shm_names import LABELS, REDUCTIONS

if TYPE_CHECKING:
    from corral.backends.messages.job import Job
    from corral.backends.messages.transport import Transport

__all__ = ["SmallCalls"]

_DONE, _POOR = 1, 2  # what the core says of a message
_OVER = -1  # and of a collective; or else, the number of a call to go on with, or less where it has begun none
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
            sent = self._port.send_message(self.context, self.members[dst], tag, buffers)
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
            done = self._port.recv_message(self.context, member, tag, buffers)
            if done:
                if done > 1:
                    self.job.call(lambda: self.job.post.consumed(member, done))
                return src
        return super().recv(buffers, src, tag, timeout)

    # Where another thread drives, or others have given up what this rank is about to call, the core is not asked. It
    # raises nothing about the arguments: what it cannot use fails again, with a better error, and on all ranks. So what
    # is raised here comes of a signal's handler.

    def barrier(self, timeout: float | None = None) -> None:
        if self._numbered and not self._turns.held and not self._failed:
            try:
                number = self._port.barrier(_BARRIER)
                if number == _OVER:
                    return
                if number >= 0:
                    return self._go_on(self._make.barrier(), number, timeout)
            except BaseException:
                self._drop(_BARRIER)
                raise
        super().barrier(timeout)

    def broadcast(
        self, buffers: Sequence[Buffer], root: int, timeout: float | None = None, operation: str = "broadcast"
    ) -> None:
        if self._numbered and not self._turns.held and not self._failed:
            try:
                number = self._port.broadcast(LABELS[operation], root, buffers)
                if number == _OVER:
                    return
                if number >= 0:
                    return self._go_on(self._make.broadcast(buffers, root, operation), number, timeout)
            except BaseException:
                self._drop(LABELS[operation])
                raise
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
                if number == _OVER:
                    return
                if number >= 0:
                    round_ = self._make.reduce(Result.EVERYWHERE, buffers, reduction, -1, operation)
                    return self._go_on(round_, number, timeout)
            except BaseException:
                self._drop(LABELS[operation])
                raise
        super().all_reduce(buffers, reduction, timeout, operation)

    def all_gather(
        self,
        buffers: Sequence[Buffer],
        into: list[Any] | Buffer,
        timeout: float | None = None,
        operation: str = "all_gather",
    ) -> None:
        if self._numbered and not self._turns.held and not self._failed:
            try:
                number = self._port.all_gather(LABELS[operation], buffers, into)
                if number == _OVER:
                    return
                if number >= 0:
                    return self._go_on(self._make.all_gather(buffers, into, operation), number, timeout)
            except BaseException:
                self._drop(LABELS[operation])
                raise
        super().all_gather(buffers, into, timeout, operation)

    def gather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        timeout: float | None = None,
        operation: str = "gather",
    ) -> None:
        if self._numbered and not self._turns.held and not self._failed:
            try:
                number = self._port.gather(LABELS[operation], root, buffers, into)
                if number == _OVER:
                    return
                if number >= 0:
                    return self._go_on(self._make.gather(buffers, into, root, operation), number, timeout)
            except BaseException:
                self._drop(LABELS[operation])
                raise
        super().gather(buffers, into, root, timeout, operation)

    def _go_on(self, round_: Round, number: int, timeout: float | None) -> None:
        self._run(round_.begun(number), timeout)

    def _drop(self, label: int) -> None:
        """Give up a call that got a number, if it is neither over nor the engine's: the others wait for it."""
        ledger, job = self._ledger, self.job

        def begun() -> int | None:
            number, last = self._port.next - 1, self._port.last()
            return number if number > max(ledger.last_number, -1 if last is None else last[0]) else None

        def drop() -> None:
            number = begun()
            if number is not None:
                ledger.last, ledger.last_number = Call(label), number
                Round(job, ledger, ledger.last).begun(number).give_up(Failure(Reason.INTERRUPTED))

        if not (job.forked or job.closed or job.ending) and begun() is not None:
            job.call(drop)
