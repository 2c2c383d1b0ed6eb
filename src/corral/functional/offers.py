"""How ranks tell each other what they are about to send, and that they cannot: none is left waiting.

A rank offers a layout, or its refusal, which whoever sees it raises. Some trees can be received everywhere; of others
a rank may lack the library, the dtype or the class, and then all ranks consent before anything moves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from corral.distributed.errors import MismatchError
from corral.functional.parcels import Outgoing, is_certain, layout_from
from corral.wire.agreement import is_refusal, raise_refusal, refusal
from corral.wire.layout import Layout

if TYPE_CHECKING:
    from corral.distributed.groups import ProcessGroup

__all__ = ["JOINED", "Offer", "consent", "offer", "offer_each", "read", "refusing"]

_OFFER = b"L"
_UNCERTAIN, JOINED = 1, 2
_Made = TypeVar("_Made")


class Offer(NamedTuple):
    """What a rank would send."""

    flags: int
    data: bytes

    @property
    def certain(self) -> bool:
        """Whether every rank can receive it; the same for all that its sender offers in one call."""
        return not self.flags & _UNCERTAIN

    def layout(self) -> Layout:
        """Return the layout; raise `CodecError` if this rank knows no such arrays."""
        return layout_from(self.data)


@contextlib.contextmanager
def refusing(pg: ProcessGroup, operation: str) -> Iterator[None]:
    """Let the other ranks know if this one's arguments make no sense."""
    try:
        yield
    except Exception:
        pg.backend.refuse(operation)
        raise


def offer(pg: ProcessGroup, make: Callable[[], Outgoing], flags: int = 0) -> tuple[Outgoing | None, bytes]:
    """Return what is to be sent, and the message that offers it; or ``None``, and a refusal."""
    parcels, messages = offer_each(pg, lambda: [make()], 1, flags)
    return (parcels[0] if parcels else None), messages[0]


def offer_each(
    pg: ProcessGroup, make: Callable[[], list[Outgoing]], count: int, flags: int = 0
) -> tuple[list[Outgoing], list[bytes]]:
    """Do the same for a tree for each rank: all are offered, or all of `count` messages are one refusal."""
    try:
        parcels = make()
        if not all(is_certain(parcel.layout) for parcel in parcels):
            flags |= _UNCERTAIN
        return parcels, [_OFFER + bytes([flags]) + parcel.layout.to_bytes() for parcel in parcels]
    except Exception as error:
        return [], [refusal(error, pg.ranks[pg._rank])] * count


def read(operation: str, messages: Sequence[bytes | memoryview]) -> list[Offer]:
    """Return what ranks offer; raise the first refusal among it."""
    for message in messages:
        if is_refusal(message):
            raise_refusal(operation, message)
    return [Offer(message[1], bytes(message[2:])) for message in messages]


def consent(pg: ProcessGroup, operation: str, certain: bool, prepare: Callable[[], _Made]) -> _Made:
    """Prepare to receive, or raise on every rank what some rank's preparation raises.

    Parameters
    ----------
    pg, operation
        The group, and the function that the user called.
    certain
        Whether preparations can fail only in ways that all ranks share, or for want of memory. All ranks give the same.
    prepare
        What is to be done before anything moves.
    """
    if certain:
        with refusing(pg, operation):
            try:
                return prepare()
            except MismatchError as error:
                raise MismatchError(f"{operation}: {error}") from None
    made: list[_Made] = []
    try:
        made.append(prepare())
        answer = b""
    except Exception as error:
        answer = refusal(error, pg.ranks[pg._rank])
    for message in pg.backend.all_gather_bytes(answer, operation=operation):
        if message:
            raise_refusal(operation, message)
    return made[0]
