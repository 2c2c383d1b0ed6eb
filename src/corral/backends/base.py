"""What an engine must be able to do for :mod:`corral.distributed` to run on it.

A backend speaks of *buffers*: objects whose memory the engine can read (or write) where it lies. It
knows nothing of tensors, of containers, or of global ranks: every rank below is a rank *in the group*.
Each operation takes a list of buffers, so that a container of many leaves is one operation.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

__all__ = ["Backend", "Buffer", "Operation", "Request"]

Buffer: TypeAlias = Any
"""An object whose memory the engine reads or writes: see :mod:`corral.arrays.buffers`."""


class Operation(NamedTuple):
    """One point-to-point operation of a batch."""

    kind: Literal["send", "recv"]
    buffers: Sequence[Buffer]
    peer: int | None
    tag: int = 0


class Request(Protocol):
    """An operation under way."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until the operation is complete; raise its error, or a time-out after `timeout` seconds."""

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not. Makes progress; never blocks."""

    def exception(self) -> BaseException | None:
        """Return the error of an operation that failed, or ``None``."""

    def source(self) -> int | None:
        """Rank in the group that a completed receive came from; ``None`` for anything else."""


class Backend(abc.ABC):
    """One rank's view of a group of ranks that can exchange buffers.

    Attributes
    ----------
    name : str
        Name under which the backend is registered, such as ``"shm"``.
    rank, size : int
        This rank in the group, and the number of ranks in it.
    timeout : float
        Seconds that an operation without a timeout of its own may take.
    """

    name: str
    rank: int
    size: int
    timeout: float

    @abc.abstractmethod
    def split(self, ranks: Sequence[int], name: str, timeout: float | None = None) -> Backend:
        """Make the backend of a subgroup, without talking to anyone.

        Parameters
        ----------
        ranks
            Members of the new group as ranks of this one, in the new group's order; this rank is among them.
        name
            The group's name: the same on every member, and never used before.
        timeout
            Seconds; this backend's own when ``None``.
        """

    @abc.abstractmethod
    def send(self, buffers: Sequence[Buffer], dst: int, tag: int = 0, timeout: float | None = None) -> None:
        """Send the buffers' values as one message and return when their memory may be used again."""

    @abc.abstractmethod
    def recv(self, buffers: Sequence[Buffer], src: int | None, tag: int = 0, timeout: float | None = None) -> int:
        """Receive one message into the buffers, in place, and return the rank it came from.

        `src` is ``None`` to take the next message from anyone. A message of another dtype or another number
        of bytes raises `MismatchError` here; it is consumed, and the sender completes.
        """

    @abc.abstractmethod
    def batch(self, operations: Sequence[Operation]) -> list[Request]:
        """Start every operation at once, whatever their order, and return one request for each."""

    @abc.abstractmethod
    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank of the group has called it."""

    @abc.abstractmethod
    def ibarrier(self) -> Request:
        """Start a barrier."""

    @abc.abstractmethod
    def gather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        timeout: float | None = None,
    ) -> None:
        """Bring each rank's buffers to `root`, into ``into[rank]``; `into` is ``None`` elsewhere.

        Ranks may contribute different sizes, as long as ``into[rank]`` says so.
        """

    @abc.abstractmethod
    def igather(self, buffers: Sequence[Buffer], into: Sequence[Sequence[Buffer]] | None, root: int) -> Request:
        """Start a gather."""

    @abc.abstractmethod
    def gather_bytes(self, payload: bytes, root: int, timeout: float | None = None) -> list[bytes] | None:
        """Bring each rank's bytes, of any length, to `root`: a list in rank order, ``None`` elsewhere."""

    @abc.abstractmethod
    def broadcast_bytes(self, payload: bytes | None, root: int, timeout: float | None = None) -> bytes:
        """Return `root`'s bytes on every rank; `payload` is ``None`` elsewhere."""

    @abc.abstractmethod
    def gather_rows(self, tree: Any, root: int, timeout: float | None = None) -> bool:
        """Write every other rank's leaves into the rows of `root`'s, in rank order, without `root`'s own.

        `tree` is a container that `corral._core` can walk (see :mod:`corral.arrays.buffers`). ``True`` means
        done. ``False``, on every rank alike, means that keys, dtypes or shapes did not fit as they are and
        that nothing was written: the caller must negotiate.
        """

    @abc.abstractmethod
    def abort(self, reason: str) -> None:
        """Make every operation of the group that is under way, here or elsewhere, fail with `reason`."""

    @abc.abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent, then release the group; the last group of a job releases its memory."""
