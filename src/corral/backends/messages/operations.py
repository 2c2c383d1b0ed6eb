"""What is under way: the part that all operations have in common, and the two ends of a message."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

from corral.backends.messages.turns import Gate

if TYPE_CHECKING:
    from corral import _core
    from corral.backends.messages.calls import Call
    from corral.backends.messages.job import Job

__all__ = ["ANYONE", "Failure", "Operation", "Reason", "Receive", "Send"]

ANYONE = -1


class Reason(enum.IntEnum):
    """Why an operation did not complete."""

    TIMEOUT = 1
    LOST = 2
    DIFFERENT = 3
    SIZE = 4
    TYPE = 5
    GAVE_UP = 6
    INTERRUPTED = 7
    CLOSED = 8
    CORRUPT = 9
    SYSTEM = 10
    REFUSED = 11
    ABORTED = 12


class Failure(NamedTuple):
    """What is known of why an operation did not complete. Ranks are ranks of the job."""

    reason: Reason
    rank: int = -1
    detail: int = 0
    finder: int = -1
    actual: int = 0
    expected: int = 0
    text: str = ""
    calls: tuple[tuple[int, Call], ...] = ()


class Operation:
    """Something under way. All but `done` and `failure` is for the thread that has the turn.

    Attributes
    ----------
    label : int
        What the user called, as in :mod:`corral.backends.shm_names`.
    done : bool
        Whether it has ended, well or not.
    failure : Failure or None
        Why it did not end well.
    gate : Gate or None
        Where a thread waits for it that does not drive.
    waited : bool
        Whether some thread waits for it.
    loose : bool
        Whether it has failed while bytes move in its memory, which the transport goes on to move.
    """

    __slots__ = ("context", "done", "failure", "gate", "job", "label", "loose", "waited")

    def __init__(self, job: Job, context: int, label: int) -> None:
        self.job = job
        self.context = context
        self.label = label
        self.done = False
        self.failure: Failure | None = None
        self.gate: Gate | None = None
        self.waited = False
        self.loose = False

    def start(self) -> None:
        raise NotImplementedError

    def give_up(self, failure: Failure) -> None:
        """End it now; the others that take part must be able to go on."""
        raise NotImplementedError

    def needed(self) -> list[int]:
        """List the ranks of the job that it may be waiting for."""
        raise NotImplementedError

    @property
    def sequence(self) -> int | None:
        """Its number among the group's collectives, if it is one."""
        return None

    @property
    def peer(self) -> int:
        """The rank of the job that it is with, if there is just one."""
        return ANYONE

    @property
    def match(self) -> int:
        """Its tag, or its number."""
        return 0

    def finish(self, failure: Failure | None = None) -> None:
        """Note that it has ended, and tell the thread that waits for it."""
        if self.done:
            return
        self.failure = failure
        self.done = True
        self.job.pending.discard(self)
        if self.gate is not None:
            self.gate.open()


class Send(Operation):
    """A message of which nothing, or only its head, has left."""

    __slots__ = ("dst", "memory", "number", "tag")

    def __init__(self, job: Job, context: int, label: int, dst: int, tag: int, memory: _core.Memory) -> None:
        super().__init__(job, context, label)
        self.dst = dst
        self.tag = tag
        self.memory = memory
        self.number = 0

    def start(self) -> None:
        self.job.post.send(self)

    def give_up(self, failure: Failure) -> None:
        self.job.post.withdraw_send(self)
        self.finish(failure)

    def needed(self) -> list[int]:
        return [self.dst]

    @property
    def peer(self) -> int:
        return self.dst

    @property
    def match(self) -> int:
        return self.tag


class Receive(Operation):
    """A message that is wanted.

    Attributes
    ----------
    source : int
        The rank of the job that it is to come from, or `ANYONE`.
    memory : Memory or None
        Where it goes; ``None`` to make `made`, of whatever size the message has.
    sender : int
        The rank of the job that it came from.
    order : int
        Its place among the group's receives.
    """

    __slots__ = ("made", "memory", "order", "others", "sender", "source", "tag", "transfers")

    def __init__(
        self,
        job: Job,
        context: int,
        label: int,
        source: int,
        tag: int,
        memory: _core.Memory | None,
        others: tuple[int, ...],
    ) -> None:
        super().__init__(job, context, label)
        self.source = source
        self.tag = tag
        self.memory = memory
        self.others = others
        self.made: Any = None
        self.sender = ANYONE
        self.order = 0
        self.transfers = 0

    def start(self) -> None:
        self.job.post.receive(self)

    def give_up(self, failure: Failure) -> None:
        self.job.post.withdraw_receive(self)
        self.finish(failure)

    def needed(self) -> list[int]:
        return list(self.others) if self.source == ANYONE else [self.source]

    @property
    def peer(self) -> int:
        return self.source

    @property
    def match(self) -> int:
        return self.tag

    def finish(self, failure: Failure | None = None) -> None:
        if self.done:
            return
        if failure is None and self.memory is not None:
            self.memory.settle()
        super().finish(failure)
