"""What an engine must be able to do for :mod:`corral.distributed` to run on it.

A backend speaks of *buffers*: objects whose memory the engine can read (or write) where it lies. It
knows nothing of tensors, of containers, or of global ranks: every rank below is a rank *in the group*.
Each operation takes a list of buffers, so that a container of many leaves is one operation.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from corral.backends.capabilities import Capabilities
from corral.digests import digest

__all__ = ["Backend", "Buffer", "Operation", "Received", "Reduction", "Request", "context_of"]

Buffer: TypeAlias = Any
"""An object whose memory the engine reads or writes: see :mod:`corral.arrays.buffers`."""

Received: TypeAlias = bytes | memoryview
"""What a message of any size brought. A view can be written, and its memory belongs to whoever got it."""


def context_of(name: str) -> int:
    """Return a group's number on the wire, derived from its name: the same on every rank, without talking.

    Examples
    --------
    >>> context_of("world") == context_of("world"), context_of("world") == context_of("1")
    (True, False)
    """
    return int.from_bytes(digest(name.encode(), 8), "little")


class Operation(NamedTuple):
    """One point-to-point operation of a batch."""

    kind: Literal["send", "recv"]
    buffers: Sequence[Buffer]
    peer: int | None
    tag: int = 0


class Reduction(NamedTuple):
    """How the ranks' elements are combined: in rank order, 16-bit floats in float32."""

    op: Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"]
    factor: float = 1.0
    """What ``"premul_sum"`` multiplies this rank's elements by."""


class Request(Protocol):
    """An operation under way.

    One that can also be waited for without being given up has ``linger(seconds)``, which returns when it has ended, or
    after some seconds. Others are asked now and then by those who do not wait for them.
    """

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

    def capabilities(self) -> Capabilities:
        """Say what the engine does by itself: that it moves and reduces all dtypes in host memory, if not overridden.

        Asked once for each group.
        """
        return Capabilities()

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
    def recv_bytes(self, src: int | None, tag: int = 0, timeout: float | None = None) -> tuple[int, Received]:
        """Receive one message of any size, and return the rank it came from and its bytes."""

    # Collectives. Each rank of the group calls the same ones in the same order. `operation` is the name of the
    # function that the user called, for error messages. Those that begin with "i" start what their namesake does.

    @abc.abstractmethod
    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank of the group has called it."""

    @abc.abstractmethod
    def ibarrier(self) -> Request: ...

    @abc.abstractmethod
    def gather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        timeout: float | None = None,
        operation: str = "gather",
    ) -> None:
        """Bring each rank's buffers to `root`, into ``into[rank]``; `into` is ``None`` elsewhere.

        Ranks may contribute different sizes, as long as ``into[rank]`` says so.
        """

    @abc.abstractmethod
    def igather(
        self,
        buffers: Sequence[Buffer],
        into: Sequence[Sequence[Buffer]] | None,
        root: int,
        operation: str = "gather",
    ) -> Request: ...

    @abc.abstractmethod
    def broadcast(
        self, buffers: Sequence[Buffer], root: int, timeout: float | None = None, operation: str = "broadcast"
    ) -> None:
        """Write `root`'s buffers into everyone's."""

    @abc.abstractmethod
    def ibroadcast(self, buffers: Sequence[Buffer], root: int, operation: str = "broadcast") -> Request: ...

    @abc.abstractmethod
    def scatter(
        self,
        parts: Sequence[Sequence[Buffer]] | None,
        into: Sequence[Buffer],
        root: int,
        timeout: float | None = None,
        operation: str = "scatter",
    ) -> None:
        """Write ``parts[rank]`` of `root` into each rank's `into`; `parts` is ``None`` elsewhere."""

    @abc.abstractmethod
    def iscatter(
        self,
        parts: Sequence[Sequence[Buffer]] | None,
        into: Sequence[Buffer],
        root: int,
        operation: str = "scatter",
    ) -> Request: ...

    @abc.abstractmethod
    def all_gather(
        self,
        buffers: Sequence[Buffer],
        into: list[Any] | Buffer,
        timeout: float | None = None,
        operation: str = "all_gather",
    ) -> None:
        """Write each rank's buffers into everyone's ``into[rank]``.

        Sizes may differ from rank to rank; every rank's `into` must give the same ones. This rank's own entry may be
        the very memory that it contributes. Where all are equal, `into` may also be one buffer in place of a list: it
        is divided evenly.
        """

    @abc.abstractmethod
    def iall_gather(
        self, buffers: Sequence[Buffer], into: Sequence[Sequence[Buffer]], operation: str = "all_gather"
    ) -> Request: ...

    @abc.abstractmethod
    def all_to_all(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Sequence[Buffer]],
        timeout: float | None = None,
        operation: str = "all_to_all",
    ) -> None:
        """Write ``parts[i]`` of rank *j* into ``into[j]`` of rank *i*, for all of both."""

    @abc.abstractmethod
    def iall_to_all(
        self, parts: Sequence[Sequence[Buffer]], into: Sequence[Sequence[Buffer]], operation: str = "all_to_all"
    ) -> Request: ...

    @abc.abstractmethod
    def all_reduce(
        self,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        timeout: float | None = None,
        operation: str = "all_reduce",
    ) -> None:
        """Combine the ranks' buffers, element by element, into everyone's."""

    @abc.abstractmethod
    def iall_reduce(
        self, buffers: Sequence[Buffer], reduction: Reduction, operation: str = "all_reduce"
    ) -> Request: ...

    @abc.abstractmethod
    def reduce(
        self,
        buffers: Sequence[Buffer],
        reduction: Reduction,
        root: int,
        timeout: float | None = None,
        operation: str = "reduce",
    ) -> None:
        """Combine the ranks' buffers into `root`'s; the others' stay as they are."""

    @abc.abstractmethod
    def ireduce(
        self, buffers: Sequence[Buffer], reduction: Reduction, root: int, operation: str = "reduce"
    ) -> Request: ...

    @abc.abstractmethod
    def reduce_scatter(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Buffer],
        reduction: Reduction,
        timeout: float | None = None,
        operation: str = "reduce_scatter",
    ) -> None:
        """Combine the ranks' ``parts[i]`` into `into` of rank *i*, for all *i*."""

    @abc.abstractmethod
    def ireduce_scatter(
        self,
        parts: Sequence[Sequence[Buffer]],
        into: Sequence[Buffer],
        reduction: Reduction,
        operation: str = "reduce_scatter",
    ) -> Request: ...

    # Of bytes whose number only the sender knows. A payload may also be a list of buffers, sent as one.

    @abc.abstractmethod
    def gather_bytes(
        self, payload: Any, root: int, timeout: float | None = None, operation: str = "gather_object"
    ) -> list[Received] | None:
        """Bring each rank's bytes to `root`: a list in rank order, ``None`` elsewhere."""

    @abc.abstractmethod
    def broadcast_bytes(
        self, payload: Any, root: int, timeout: float | None = None, operation: str = "broadcast_object_list"
    ) -> Any:
        """Return `root`'s bytes on the other ranks, whose `payload` is ``None``; `payload` itself on `root`."""

    @abc.abstractmethod
    def all_gather_bytes(
        self, payload: Any, timeout: float | None = None, operation: str = "all_gather_object"
    ) -> list[Received]:
        """Return each rank's bytes on every rank, in rank order."""

    @abc.abstractmethod
    def scatter_bytes(
        self,
        payloads: list[Any] | None,
        root: int,
        timeout: float | None = None,
        operation: str = "scatter_object_list",
    ) -> Received:
        """Return ``payloads[rank]`` of `root` on each rank; `payloads` is ``None`` elsewhere."""

    @abc.abstractmethod
    def all_to_all_bytes(
        self, payloads: list[Any], timeout: float | None = None, operation: str = "all_to_all"
    ) -> list[Received]:
        """Return on each rank what the others' `payloads` have for it, in rank order."""

    @abc.abstractmethod
    def gather_rows(
        self, tree: Any, root: int, timeout: float | None = None, operation: str = "gather_and_stack"
    ) -> bool:
        """Write every other rank's leaves into the rows of `root`'s, in rank order, without `root`'s own.

        `tree` is a container that `corral._core` can walk (see :mod:`corral.arrays.buffers`). ``True`` means
        done. ``False``, on every rank alike, means that keys, dtypes or shapes did not fit as they are and
        that nothing was written: the caller must negotiate.
        """

    @abc.abstractmethod
    def refuse(self, operation: str) -> None:
        """Fail the next collective on every rank: this one was called with arguments that make no sense.

        The rank itself raises its own error afterwards; the others learn that it refused. Without this, all later
        collectives of the group would meet with the wrong ones.
        """

    @abc.abstractmethod
    def abort(self, reason: str) -> None:
        """Make every operation of the group that is under way, here or elsewhere, fail with `reason`."""

    @abc.abstractmethod
    def renumber(self, ranks: Sequence[int] | None = None) -> None:
        """Let errors call the ranks of this group by these numbers, in place of those that the job began with.

        By their ranks in the group when ``None``.
        """

    @abc.abstractmethod
    def abandon(self, deliver: bool) -> None:
        """Leave the job without a word, after what was sent is delivered or at once.

        The process is ending, and its peers are to learn from its end how it went.
        """

    @abc.abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent, then release the group; the last group of a job releases its memory."""
