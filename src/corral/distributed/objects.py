"""Collective operations on Python objects."""

from __future__ import annotations

from typing import Any

from corral.distributed import groups
from corral.distributed.collectives import destination
from corral.distributed.errors import DistBackendError
from corral.distributed.groups import Group
from corral.wire import codec

__all__ = ["gather_object"]

# Sent in place of an object that its rank could not encode, so that the others learn of it and do not wait.
# No encoded object starts like this.
_REFUSED = b"\xffcorral: no object\n"


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    """Bring every rank's object to one rank.

    Plain data and arrays travel in a safe format; other objects are pickled, unless that is denied.

    Parameters
    ----------
    obj
        This rank's object.
    object_gather_list
        On the destination, a list as long as the group, whose entry *i* becomes the object of group rank *i*;
        ``None`` elsewhere.
    dst
        Global rank of the destination; 0 when neither this nor `group_dst` is given.
    group
        The group; the default one when ``None``.
    group_dst
        Rank in the group of the destination, in place of `dst`.

    Raises
    ------
    TypeError
        On the sender, if the object can be sent in no permitted way.
    DistBackendError
        On the destination, if some rank could not send its object; the list is left as it was.
    """
    pg = groups.member_group(group, "gather_object")
    if pg is None:
        return
    root = destination(pg, dst, group_dst, "gather_object")
    if root == pg._rank:
        _check_output(object_gather_list, pg._size)
    elif object_gather_list is not None:
        raise ValueError(
            "Argument ``object_gather_list`` must NOT be specified on non-destination ranks: expected None, "
            "got "
            f"{type(object_gather_list).__qualname__}."
        )
    refusal: Exception | None = None
    try:
        payload = codec.dumps(obj, pg.allow_pickle)
    except Exception as error:
        refusal = error
        payload = _REFUSED + f"{type(error).__name__}: {error}".encode(errors="replace")
    parts = pg.backend.gather_bytes(payload, root)
    if refusal is not None:
        raise refusal
    if parts is None:
        return
    received: list[Any] = []
    for rank, part in enumerate(parts):
        if part.startswith(_REFUSED):
            reason = part[len(_REFUSED) :].decode(errors="replace")
            raise DistBackendError(f"gather_object: rank {pg.ranks[rank]} could not send its object: {reason}")
        received.append(codec.loads(part, pg.allow_pickle))
    assert object_gather_list is not None
    object_gather_list[:] = received


def _check_output(object_gather_list: Any, size: int) -> None:
    if object_gather_list is None:
        raise ValueError(
            f"Argument ``object_gather_list`` must be specified on destination rank: expected a list of {size}."
        )
    if not isinstance(object_gather_list, list):
        raise TypeError(
            f"object_gather_list must be a list of {size} on the destination, got "
            f"{type(object_gather_list).__qualname__}"
        )
    if len(object_gather_list) != size:
        raise ValueError(
            f"object_gather_list must have one entry for each of the {size} ranks of the group, got "
            f"{len(object_gather_list)}"
        )
