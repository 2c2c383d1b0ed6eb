"""What an engine that only moves messages must be able to do for corral to run on it.

Matching, agreement, collectives, time-outs and errors are written once, in :mod:`corral.backends.messages`, over
what is asked for here. A new engine is one module with one class.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["ALIKE", "OPEN", "Arrival", "Numbers", "Transfer", "Transport"]

OPEN, ALIKE = 0, 1
"""What is known of a call: not all that the ranks say of it, or that all have said the same."""


class Arrival(NamedTuple):
    """A frame that has come: its head is here, its body is not taken in yet."""

    source: int
    head: bytes
    body_size: int
    handle: Any = None
    """What the transport needs to receive the body."""


class Transfer(Protocol):
    """A movement of bytes under way."""

    def done(self) -> bool:
        """Whether it has ended, well or not. Never blocks."""

    def error(self) -> BaseException | None:
        """Return what ended it, if it did not end well."""


class Numbers(Protocol):
    """Agreement in one step: every rank tells each other at once what it calls, and what it gives, if that is little.

    A transport that has it numbers the collectives of all its ranks. A call that was begun so is over when all ranks
    have said the same; otherwise, and where a rank says that it has more to say, it goes on like any other.
    """

    @property
    def next(self) -> int:
        """The number of the next call."""

    def begin(self) -> int:
        """Give a call a number, and tell the others that it is like any other."""

    def state(self, number: int) -> int:
        """What is known of a call: `OPEN`, `ALIKE`, or another number if the ranks have not said the same."""

    def has(self, number: int, rank: int) -> bool:
        """Whether a rank has said what it calls."""

    def contents(self, number: int) -> list[bytes]:
        """Return what each rank gives in a call in which all have said the same."""

    def forget(self, number: int) -> None:
        """Forget a call that is over."""

    def last(self) -> tuple[int, int, int, int, int, int] | None:
        """Return the last call that was over in one step: its number, label, root, reduction + 1, type and size."""


class Transport(abc.ABC):
    """Carries frames between the ranks of a job: reliably, and in order for each pair of ranks.

    A frame is a head, of at most `head_limit` bytes, and a body of any size, which may be empty. Heads always
    come, whether anyone waits for them or not. A body is only ever sent once its receiver has said, in a frame
    of its own, that its memory is ready; so a transport need not hold one for long.

    All methods but `wake` are called by one thread at a time.

    Attributes
    ----------
    name : str
        Name of the backend, such as ``"gloo"``.
    rank, size : int
        This rank of the job, and the number of ranks.
    hosts : sequence of str
        A name of each rank's host, the same for ranks that share one.
    head_limit : int
        Bytes that a head may have, at least 4096. Small payloads travel in heads.
    any_source, vectors, several_hosts : bool
        What the engine does by itself, as `corral.backends.capabilities.Capabilities` has it: to be told to who asks.
    numbers : Numbers or None
        What agrees on small collectives of all ranks in one step, where there is such a thing.
    """

    name: str
    rank: int
    size: int
    hosts: Sequence[str]
    head_limit: int
    any_source: bool = False
    vectors: bool = False
    several_hosts: bool = True
    numbers: Numbers | None = None

    @abc.abstractmethod
    def send(self, dst: int, head: bytes, body: Sequence[memoryview] = ()) -> Transfer:
        """Start sending a frame.

        `body` is contiguous pieces of bytes (format ``"B"``), which the transport reads where they lie until the
        transfer is done. It never blocks, and never raises for a peer that is gone: the transfer's error says so.
        """

    @abc.abstractmethod
    def arrivals(self) -> Iterable[Arrival]:
        """Take the frames that have come since the last call, in order. Never blocks."""

    @abc.abstractmethod
    def receive(self, arrival: Arrival, into: Sequence[memoryview]) -> Transfer:
        """Start receiving a frame's body into pieces of memory that hold `body_size` bytes together."""

    def divert(self, transfer: Transfer, pieces: Sequence[memoryview]) -> bool:
        """Let a transfer that is not done go on with other memory; return whether it does.

        That is asked when an operation fails, by a time-out or Ctrl-C, while its body moves: what has yet to come goes
        into `pieces`, what has yet to leave is taken from them. They hold as many bytes as the memory that the transfer
        began with, which nothing touches any more if this returns true. Otherwise that memory is kept until the
        transfer is done, and the user is told not to use it before: an engine that has no way back can do no more.
        """
        return False

    @abc.abstractmethod
    def wait(self, seconds: float) -> None:
        """Return when something may have changed, when another thread calls `wake`, or after some seconds.

        The global interpreter lock is not held meanwhile, and a signal interrupts it.
        """

    @abc.abstractmethod
    def wake(self) -> None:
        """End a `wait` of another thread now, or the next one if there is none."""

    @abc.abstractmethod
    def lost(self) -> Mapping[int, str]:
        """Return the ranks that cannot be reached any more, and what is known of how they went.

        That is said in words that follow "rank 3", as in "has closed its connection"; and only when all that has come
        from that rank has been taken by `arrivals`. Empty where an engine cannot know.
        """

    def heard(self, rank: int) -> float:
        """When something last came from a rank, by `time.monotonic`, that `arrivals` does not tell of."""
        return 0.0

    @abc.abstractmethod
    def close(self, timeout: float) -> None:
        """Deliver what was sent, for at most some seconds, and release everything."""
