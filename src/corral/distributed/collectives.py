"""Collective operations with one rank at their root, and barriers: every rank of a group calls them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from numpy import ndarray

from corral.arrays.apart import check_apart
from corral.arrays.buffers import NATIVE, check_distinct, readable, writable
from corral.distributed import groups
from corral.distributed.arguments import array_list, check_fit, inputs, outputs, root_rank
from corral.distributed.groups import Group, ProcessGroup
from corral.distributed.work import Work, seconds

__all__ = ["barrier", "broadcast", "gather", "monitored_barrier", "scatter"]

# A small collective takes the engine a few microseconds. As in `send`, the common case (the default group, a NumPy
# array of a common dtype) is one condition of cheap comparisons, and all else is in a function of its own.


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
    limit = None
    if timeout is not None:
        try:
            limit = seconds(timeout)
        except Exception:
            pg.backend.refuse("barrier")
            raise
    if async_op:
        return Work(pg.backend.ibarrier(), [], timeout=pg.backend.timeout if limit is None else limit)
    pg.backend.barrier(limit)
    return None


def monitored_barrier(
    group: Group = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every rank of a group has called it, or tell which have not.

    Parameters
    ----------
    group
        The group; the default one when ``None``.
    timeout
        A `datetime.timedelta` or seconds; the group's when ``None``.
    wait_all_ranks
        Accepted for compatibility with torch: the error names all ranks that are missing, in either case.

    Raises
    ------
    DistTimeoutError
        On every rank that waited: which ranks have not come, and what each of them does instead.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     dist.monitored_barrier(timeout=10.0)
    """
    pg = groups.member_group(group, "monitored_barrier")
    if pg is None:
        return
    try:
        limit = seconds(timeout)
    except Exception:
        pg.backend.refuse("monitored_barrier")
        raise
    # Nobody has anything to say: that all have spoken is what counts.
    pg.backend.all_gather_bytes(b"", limit, "monitored_barrier")


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Write one rank's array into every rank's.

    Parameters
    ----------
    tensor
        On the source, the array to send; elsewhere, one of the same dtype and size to fill. Arrays may be of
        different libraries.
    src
        Global rank of the source.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.
    group_src
        Rank in the group of the source, in place of `src`.

    Raises
    ------
    MismatchError
        On every rank, if ranks named different sources, or gave arrays of different dtypes or sizes.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     weights = np.arange(3.0) if dist.get_rank() == 0 else np.empty(3)
    ...     dist.broadcast(weights, src=0)
    """
    pg = groups.world
    if (
        group is not None
        or pg is None
        or group_src is not None
        or async_op
        or type(src) is not int
        or not 0 <= src < pg._size
        or type(tensor) is not ndarray
        or tensor.dtype not in NATIVE
        or not tensor.flags.carray
    ):
        return _broadcast(tensor, src, group, async_op, group_src)
    pg.backend.broadcast((tensor,), src)
    return None


def _broadcast(tensor: Any, src: int | None, group: Group, async_op: bool, group_src: int | None) -> Work | None:
    """Do all that `broadcast` does not."""
    pg = groups.member_group(group, "broadcast", 2)
    if pg is None:
        return None
    finish: Callable[[], None] | None = None
    try:
        root = root_rank(pg, src, group_src, "src", "broadcast")
        if root == pg._rank:
            buffer = readable(tensor)
        else:
            buffer, finish = writable(tensor)
    except Exception:
        pg.backend.refuse("broadcast")
        raise
    if async_op:
        return Work(pg.backend.ibroadcast([buffer], root), [tensor], finish, pg.backend.timeout)
    pg.backend.broadcast([buffer], root)
    if finish is not None:
        finish()
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
    into: list[list[Any]] | None = None
    finish: Callable[[], None] | None = None
    try:
        root = destination(pg, dst, group_dst, "gather")
        buffer = readable(tensor)
        if root == pg._rank:
            into, finish = _gather_outputs(tensor, gather_list, pg)
        elif gather_list:
            raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    except Exception:
        pg.backend.refuse("gather")
        raise
    if async_op:
        request = pg.backend.igather([buffer], into, root)
        return Work(request, list(gather_list or ()), finish, pg.backend.timeout)
    pg.backend.gather([buffer], into, root)
    if finish is not None:
        finish()
    return None


def destination(pg: ProcessGroup, dst: int | None, group_dst: int | None, operation: str) -> int:
    """Return the group rank of a gather's destination; the default is global rank 0, as in torch."""
    return root_rank(pg, 0 if dst is None and group_dst is None else dst, group_dst, "dst", operation)


def _gather_outputs(
    tensor: Any, gather_list: Any, pg: ProcessGroup
) -> tuple[list[list[Any]], Callable[[], None] | None]:
    """Return the buffers of the arrays to fill, and what to call once they are filled."""
    if gather_list is None or (isinstance(gather_list, list) and not gather_list):
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    arrays = array_list(gather_list, pg._size, "gather_list", "gather")
    check_distinct(arrays, "gather_list")
    check_apart(arrays, [tensor], "gather_list[]", "tensor", [(pg._rank, 0)])
    return outputs(arrays, "gather_list")


def scatter(
    tensor: Any,
    scatter_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Send a different array to each rank, from one of them.

    Parameters
    ----------
    tensor
        The array to fill.
    scatter_list
        On the source, one array for each rank of the group, of the dtype and size of that rank's `tensor`;
        ``None`` elsewhere. Arrays may be of different libraries and sizes.
    src
        Global rank of the source; 0 when neither this nor `group_src` is given.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.
    group_src
        Rank in the group of the source, in place of `src`.

    Raises
    ------
    MismatchError
        On every rank, if ranks named different sources, or expect other dtypes or sizes than they are sent.
    ValueError
        If the source's `tensor` shares memory with what the others get, or is read-only.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     rows = list(np.eye(dist.get_world_size())) if dist.get_rank() == 0 else None
    ...     dist.scatter(np.empty(dist.get_world_size()), rows, src=0)
    """
    pg = groups.member_group(group, "scatter")
    if pg is None:
        return None
    parts: list[list[Any]] | None = None
    try:
        root = root_rank(pg, 0 if src is None and group_src is None else src, group_src, "src", "scatter")
        if root == pg._rank:
            parts = _scatter_inputs(tensor, scatter_list, pg)
        elif scatter_list:
            raise ValueError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
        buffer, finish = writable(tensor)
    except Exception:
        pg.backend.refuse("scatter")
        raise
    if async_op:
        return Work(pg.backend.iscatter(parts, [buffer], root), [tensor], finish, pg.backend.timeout)
    pg.backend.scatter(parts, [buffer], root)
    if finish is not None:
        finish()
    return None


def _scatter_inputs(tensor: Any, scatter_list: Any, pg: ProcessGroup) -> list[list[Any]]:
    """Return the buffers of the arrays to send."""
    if scatter_list is None or (isinstance(scatter_list, list) and not scatter_list):
        raise ValueError("Argument ``scatter_list`` must be specified on source rank.")
    arrays = array_list(scatter_list, pg._size, "scatter_list", "scatter")
    parts = inputs(arrays, "scatter_list")
    check_fit(tensor, "tensor", arrays[pg._rank], f"scatter_list[{pg._rank}]", "scatter")
    check_apart([tensor], arrays, "tensor", "scatter_list[]", [(0, pg._rank)])
    return parts
