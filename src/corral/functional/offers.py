"""How ranks tell each other what they are about to send, and that they cannot: none is left waiting.

Every rank offers a layout, nothing, or its refusal, which whoever sees it raises; and as every rank waits for all
others' offers, all are at the same call whatever comes of it. Some trees can be received everywhere; of others a rank
may lack the library, the dtype or the class, and then all ranks consent before anything moves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from corral.distributed import groups
from corral.distributed.errors import MismatchError
from corral.functional.parcels import Incoming, Known, Outgoing, known, prepare
from corral.wire.agreement import is_refusal, raise_refusal, refusal
from corral.wire.errors import CodecError

if TYPE_CHECKING:
    from corral.distributed.groups import ProcessGroup

__all__ = [
    "JOINED",
    "Offer",
    "check_roots",
    "consent",
    "exchange",
    "messages_of",
    "prepare_offered",
    "read",
]

_HEAD = struct.Struct("<cBi")
_OFFER = b"L"
_UNCERTAIN, JOINED, _WITH_ARRAYS = 1, 2, 4
_NO_ROOT = -1
_Made = TypeVar("_Made")


class Offer(NamedTuple):
    """What a rank would send to this one."""

    flags: int
    root: int
    data: bytes

    @property
    def certain(self) -> bool:
        """Whether every rank can receive it; the same for all that its sender offers in one call."""
        return not self.flags & _UNCERTAIN

    @property
    def with_arrays(self) -> bool:
        """Whether arrays will follow, to this rank or to another."""
        return bool(self.flags & _WITH_ARRAYS)

    def tree(self) -> Known | None:
        """Return what is offered, if anything; raise `CodecError` if this rank has no such arrays."""
        return known(self.data) if self.data else None


def messages_of(
    pg: ProcessGroup,
    make: Callable[[], Sequence[Outgoing | None]],
    count: int = 1,
    flags: int = 0,
    root: int = _NO_ROOT,
) -> tuple[list[Outgoing | None], list[bytes]]:
    """Return what is to be sent, and the messages that offer it; or, if `make` raises, `count` times its refusal."""
    try:
        parcels = list(make())
        if not all(parcel is None or parcel.known.certain for parcel in parcels):
            flags |= _UNCERTAIN
        if any(parcel is not None and parcel.buffers for parcel in parcels):
            flags |= _WITH_ARRAYS
        head = _HEAD.pack(_OFFER, flags, root)
        return parcels, [head if parcel is None else head + parcel.data for parcel in parcels]
    except Exception as error:
        return [], [refusal(error, pg.ranks[pg._rank])] * count


def read(operation: str, messages: Sequence[bytes | memoryview]) -> list[Offer]:
    """Return what ranks offer; raise the first refusal among it."""
    for message in messages:
        if is_refusal(message):
            raise_refusal(operation, message)
    heads = [_HEAD.unpack_from(message) for message in messages]
    return [
        Offer(flags, root, bytes(message[_HEAD.size :]))
        for (_, flags, root), message in zip(heads, messages, strict=True)
    ]


def exchange(
    pg: ProcessGroup,
    operation: str,
    make: Callable[[], Sequence[Outgoing | None]],
    root: tuple[str, int] | None = None,
    each: bool = False,
    flags: int = 0,
) -> tuple[list[Outgoing | None], list[Offer]]:
    """Show every rank what is meant for it, and see what all others have for this one.

    Parameters
    ----------
    pg, operation
        The group, and the function that the user called.
    make
        Returns one tree for all, or with `each` one for each rank of the group. What it raises, all ranks raise.
    root
        Name and value of the argument that all ranks must have given alike, as a rank in the group.
    flags
        `JOINED`, or nothing.

    Returns
    -------
    parcels
        What `make` returned.
    offers
        Each rank's, in rank order.

    Raises
    ------
    MismatchError, PickleError
        On every rank, with the same text.
    """
    own = _NO_ROOT if root is None else root[1]
    parcels, messages = messages_of(pg, make, pg._size if each else 1, flags, own)
    if each:
        shown = pg.backend.all_to_all_bytes(messages, operation=operation)
    else:
        shown = pg.backend.all_gather_bytes(messages[0], operation=operation)
    offers = read(operation, shown)
    if root is not None:
        check_roots(pg, operation, root[0], [offer.root for offer in offers])
    return parcels, offers


def check_roots(pg: ProcessGroup, operation: str, name: str, roots: Sequence[int]) -> None:
    """Raise `MismatchError` unless all ranks gave the same argument `name`."""
    for rank, root in zip(pg.ranks, roots, strict=True):
        if root != roots[0]:
            raise MismatchError(
                f"{operation}: {name} is rank {pg.ranks[root]} on rank {rank}, but rank {pg.ranks[roots[0]]} on "
                f"rank {pg.ranks[0]}. Give the same on every rank."
            )


def prepare_offered(offer: Offer, like: str | None, allow_pickle: bool) -> Incoming:
    """Prepare to receive the tree that is offered."""
    tree = offer.tree()
    if tree is None:
        raise CodecError("malformed offer: there is no tree in it")
    return prepare(tree, like, allow_pickle)


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
        with groups.refusing(pg, operation):
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
