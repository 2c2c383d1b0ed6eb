"""What an engine that only moves messages must be able to do for corral to run on it.

Matching, agreement, collectives, time-outs and errors are written once, in :mod:`corral.backends.messages`, over
what is asked for here. A new engine is one module with one class.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["Arrival", "Transfer", "Transport"]


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
    """

    name: str
    rank: int
    size: int
    hosts: Sequence[str]
    head_limit: int
    any_source: bool = False
    vectors: bool = False
    several_hosts: bool = True

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

    @abc.abstractmethod
    def close(self, timeout: float) -> None:
        """Deliver what was sent, for at most some seconds, and release everything."""
