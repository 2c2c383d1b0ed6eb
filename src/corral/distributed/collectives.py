"""Collective operations on arrays: every rank of a group calls them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from corral.arrays.buffers import check_distinct, readable, writable
from corral.distributed import groups
from corral.distributed.groups import Group, ProcessGroup
from corral.distributed.work import Work, seconds

__all__ = ["barrier", "gather"]


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | float | None = None,
) -> Work | None:
    """Wait until every rank of a group has called it.

    Parameters
    ----------
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.
    device_ids
        Accepted for compatibility with torch, and not used.
    timeout
        A `datetime.timedelta` or seconds; the group's when ``None``.
    """
    pg = groups.member_group(group, "barrier")
    if pg is None:
        return None
    if async_op:
        limit = seconds(timeout)
        return Work(pg.backend.ibarrier(), [], timeout=pg.backend.timeout if limit is None else limit)
    pg.backend.barrier(seconds(timeout))
    return None


def gather(
    tensor: Any,
    gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Bring every rank's array to one rank.

    Parameters
    ----------
    tensor
        This rank's array.
    gather_list
        On the destination, one array to fill for each rank of the group, of that rank's dtype and size;
        ``None`` elsewhere. Arrays may be of different libraries and sizes.
    dst
        Global rank of the destination; 0 when neither this nor `group_dst` is given.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.
    group_dst
        Rank in the group of the destination, in place of `dst`.

    Raises
    ------
    MismatchError
        On every rank, if ranks named different destinations, or sent what does not fit.
    ValueError
        If two arrays of `gather_list` share memory, or one is read-only.
    """
    pg = groups.member_group(group, "gather")
    if pg is None:
        return None
    root = destination(pg, dst, group_dst, "gather")
    buffer = readable(tensor)
    into: list[list[Any]] | None = None
    finish: Callable[[], None] | None = None
    if root == pg._rank:
        into, finish = _outputs(gather_list, pg)
    elif gather_list:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    if async_op:
        request = pg.backend.igather([buffer], into, root)
        return Work(request, list(gather_list or ()), finish, pg.backend.timeout)
    pg.backend.gather([buffer], into, root)
    if finish is not None:
        finish()
    return None


def destination(pg: ProcessGroup, dst: int | None, group_dst: int | None, operation: str) -> int:
    """Return the group rank of a gather's destination; the default is global rank 0, as in torch."""
    if group_dst is None:
        if dst is None:
            dst = 0
        if pg is groups.world and dst.__class__ is int and 0 <= dst < pg._size:
            return dst
    return groups.resolve_rank(pg, dst, group_dst, "dst", operation)


def _outputs(gather_list: Any, pg: ProcessGroup) -> tuple[list[list[Any]], Callable[[], None] | None]:
    """Return the buffers of the arrays to fill, and what to call once they are filled."""
    if gather_list is None or (isinstance(gather_list, list) and not gather_list):
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    if not isinstance(gather_list, (list, tuple)):
        raise TypeError(f"gather_list must be a list of arrays, got {type(gather_list).__qualname__}")
    if len(gather_list) != pg._size:
        raise ValueError(
            f"gather_list must have one array for each of the {pg._size} ranks of the group, got {len(gather_list)}"
        )
    check_distinct(gather_list, "gather_list")
    into: list[list[Any]] = []
    finishes: list[Callable[[], None]] = []
    for i, array in enumerate(gather_list):
        buffer, finish = writable(array, f"gather_list[{i}]")
        into.append([buffer])
        if finish is not None:
            finishes.append(finish)
    if not finishes:
        return into, None

    def finish_all() -> None:
        for finish in finishes:
            finish()

    return into, finish_all
