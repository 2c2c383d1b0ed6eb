"""Memory of operations that have failed while a body was on its way into it, or out of it.

An operation that fails lets its caller go on, who may use the memory for something else. So the movement goes on with
memory of the engine's own, where the transport can do that. Where it cannot, the memory is kept, and whoever passes it
to another operation before the movement has ended is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corral import _core
from corral.backends.pieces import address_of, total
from corral.distributed.errors import DistBackendError

if TYPE_CHECKING:
    from corral.backends.messages.operations import Operation
    from corral.backends.messages.transport import Transfer, Transport

__all__ = ["Moving", "Strays", "waste"]

_WASTE = np.empty(1 << 20, np.uint8)


class Moving(NamedTuple):
    """A movement under way."""

    transfer: Transfer
    then: Callable[[BaseException | None], None] | None
    pieces: Sequence[memoryview]
    """Where the bytes go, or come from; they live as long as this does."""
    incoming: bool
    operation: Operation | None
    """Whose memory that is, if it is an operation's."""


class Strays:
    """Movements that outlive their operations, in memory that is the caller's.

    Parameters
    ----------
    transport
        Which moves the bytes.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kept: list[Moving] = []

    def divert(self, moving: Moving) -> Moving:
        """Let a movement go on with other memory, and return it as it is then; as it was, if that cannot be."""
        pieces = waste(total(moving.pieces)) if moving.incoming else [memoryview(bytes(each)) for each in moving.pieces]
        if not self._transport.divert(moving.transfer, pieces):
            return moving
        return moving._replace(pieces=pieces, operation=None)

    def keep(self, moving: Moving) -> None:
        """Take note of a movement that goes on where its operation has ended."""
        assert moving.operation is not None
        moving.operation.loose = True
        self._kept.append(moving)

    def check(self, memory: _core.Memory) -> None:
        """Raise if memory is to be used in which a movement goes on that nobody waits for.

        Raises
        ------
        DistBackendError
            If it is.
        """
        if not self._kept:
            return
        self._kept = [each for each in self._kept if not each.transfer.done()]
        used = [_range(piece) for each in self._kept for piece in each.pieces if len(piece)]
        for start, end in map(_range, filter(len, memory.pieces())):
            if any(start < other_end and other_start < end for other_start, other_end in used):
                raise DistBackendError(
                    "bytes of an operation that failed are still on their way into, or out of, this memory: use other "
                    "memory until the rank at the other end goes on, or is gone"
                )


def waste(nbytes: int) -> list[memoryview]:
    """Return memory for what nobody wants: all of it in the same place."""
    whole, rest = divmod(nbytes, _WASTE.nbytes)
    view = memoryview(_WASTE)
    return [view] * whole + ([view[:rest]] if rest else [])


def _range(piece: memoryview) -> tuple[int, int]:
    start = address_of(piece)
    return start, start + piece.nbytes
