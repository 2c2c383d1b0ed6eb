"""How objects travel: one message each, which may also say that its sender could send none."""

from __future__ import annotations

from typing import Any

from corral.backends.base import Received
from corral.distributed import groups
from corral.distributed.errors import DistBackendError, MismatchError
from corral.distributed.groups import ProcessGroup
from corral.wire import codec

__all__ = ["check_list", "pack", "refuse", "root_of", "unpack", "unpack_list"]

# Starts what is sent in place of an object that its rank could not encode, so that the others learn of it and do
# not wait. No encoded object starts like this.
_REFUSED = b"\xffcorral: no object\n"
_LONGEST_REASON = 4096


def pack(obj: Any, pg: ProcessGroup) -> tuple[Any, BaseException | None]:
    """Return the message that carries an object; or one that says why not, and the exception to raise once it is sent.

    Parameters
    ----------
    obj
        The object.
    pg
        The group, which permits pickles or not.
    """
    try:
        return codec.pieces(obj, pg.allow_pickle), None
    except BaseException as error:  # also an exit, or Ctrl-C, in the middle of a pickle
        return refuse(error), error


def refuse(error: BaseException) -> bytes:
    """Return the message that says why there is no object."""
    return _REFUSED + f"{type(error).__name__}: {error}"[:_LONGEST_REASON].encode(errors="replace")


def unpack(message: Received, source: int, pg: ProcessGroup, operation: str) -> Any:
    """Return the object that a message carries.

    Parameters
    ----------
    message
        From `source`, a rank in the group. If it can be written, arrays keep it as their memory.
    source, pg, operation
        For the errors; and whether the group permits pickles.

    Raises
    ------
    DistBackendError
        If the sender could not send its object.
    CodecError, PickleError
        If the message is malformed, or contains a pickle that is refused or fails.
    """
    try:
        return codec.loads(message, pg.allow_pickle)
    except (codec.CodecError, codec.PickleError) as error:
        rank = pg.ranks[source]
        if type(message) is bytes and message.startswith(_REFUSED):
            reason = message[len(_REFUSED) :].decode(errors="replace")
            raise DistBackendError(f"{operation}: rank {rank} could not send its object: {reason}") from None
        raise type(error)(f"{operation}: the object of rank {rank} cannot be received: {error}") from error


def unpack_list(message: Received, source: int, pg: ProcessGroup, count: int, operation: str) -> list[Any]:
    """Return the objects of a message that holds as many as there are entries for them."""
    objects = unpack(message, source, pg, operation)
    rank = pg.ranks[source]
    if type(objects) is not list:
        raise DistBackendError(f"{operation}: the message of rank {rank} is not a list of objects")
    if len(objects) != count:
        raise MismatchError(
            f"{operation}: rank {rank} sent a list of {len(objects)}, object_list on rank {pg.ranks[pg._rank]} has "
            f"{count}. Give lists of one length on both."
        )
    return objects


def root_of(pg: ProcessGroup, rank: int | None, group_rank: int | None, name: str, operation: str) -> int:
    """Return the group rank of a collective's source or destination; the default is global rank 0, as in torch."""
    if group_rank is None:
        if rank is None:
            rank = 0
        if pg is groups.world and type(rank) is int and 0 <= rank < pg._size:
            return rank
    return groups.resolve_rank(pg, rank, group_rank, name, operation)


def check_list(value: Any, size: int | None, name: str, operation: str) -> None:
    """Raise unless an argument is a list, of a size if there is one that it must have."""
    if not isinstance(value, list):
        expected = "a list" if size is None else f"a list of {size}, one entry for each rank of the group"
        raise TypeError(f"{operation}: {name} must be {expected}, got {type(value).__qualname__}")
    if size is not None and len(value) != size:
        raise ValueError(
            f"{operation}: {name} must have one entry for each of the {size} ranks of the group, got {len(value)}"
        )
