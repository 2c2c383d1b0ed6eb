"""Collective operations that combine the ranks' arrays, element by element, in rank order."""

from __future__ import annotations

from typing import Any

from numpy import ndarray

from corral.arrays.apart import check_apart
from corral.arrays.buffers import readable, writable
from corral.arrays.parts import divide
from corral.arrays.updating import updatable
from corral.distributed import groups
from corral.distributed.arguments import array_list, check_fit, check_total, inputs, root_rank
from corral.distributed.groups import Group
from corral.distributed.reduce_ops import ReduceOp, check_reducible, reduction_of
from corral.distributed.work import Work

__all__ = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor"]


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False) -> Work | None:
    """Combine every rank's array, in place: all get the same bits, on every run.

    Parameters
    ----------
    tensor
        The array to contribute and to fill, of the same dtype and size on all ranks. Elements are combined in rank
        order, 16-bit floats in float32.
    op
        A `ReduceOp`, or one of torch's.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.

    Raises
    ------
    MismatchError
        On every rank, if ranks gave different ops, dtypes or sizes.
    TypeError
        If the op has no meaning for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     gradient = np.full(3, float(dist.get_rank()))
    ...     dist.all_reduce(gradient, dist.ReduceOp.AVG)
    """
    pg = groups.world
    if (
        group is not None
        or pg is None
        or async_op
        or type(op) is not ReduceOp
        or type(tensor) is not ndarray
        or tensor.dtype not in op._native
        or not tensor.flags.carray
    ):
        return _all_reduce(tensor, op, group, async_op)
    pg.backend.all_reduce((tensor,), op._reduction)
    return None


def _all_reduce(tensor: Any, op: Any, group: Group, async_op: bool) -> Work | None:
    """Do all that `all_reduce` does not."""
    pg = groups.member_group(group, "all_reduce", 2)
    if pg is None:
        return None
    try:
        how = reduction_of(op, "all_reduce")
        buffer, finish = updatable(tensor)
        check_reducible(tensor, how, "all_reduce")
    except Exception:
        pg.backend.refuse("all_reduce")
        raise
    if async_op:
        return Work(pg.backend.iall_reduce([buffer], how._reduction), [tensor], finish, pg.backend.timeout)
    pg.backend.all_reduce([buffer], how._reduction)
    if finish is not None:
        finish()
    return None


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Combine every rank's array into that of one rank; the others' stay as they are.

    Parameters
    ----------
    tensor
        The array to contribute and, on the destination, to fill.
    dst
        Global rank of the destination.
    op, group, async_op
        As for `all_reduce`.
    group_dst
        Rank in the group of the destination, in place of `dst`.

    Raises
    ------
    MismatchError
        On every rank, if ranks gave different destinations, ops, dtypes or sizes.
    TypeError
        If the op has no meaning for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     steps = np.array([1000 + dist.get_rank()])
    ...     dist.reduce(steps, dst=0)
    """
    pg = groups.member_group(group, "reduce")
    if pg is None:
        return None
    finish = None
    try:
        root = root_rank(pg, dst, group_dst, "dst", "reduce")
        how = reduction_of(op, "reduce")
        if root == pg._rank:
            buffer, finish = updatable(tensor)
        else:
            buffer = readable(tensor)
        check_reducible(tensor, how, "reduce")
    except Exception:
        pg.backend.refuse("reduce")
        raise
    if async_op:
        return Work(pg.backend.ireduce([buffer], how._reduction, root), [tensor], finish, pg.backend.timeout)
    pg.backend.reduce([buffer], how._reduction, root)
    if finish is not None:
        finish()
    return None


def reduce_scatter(
    output: Any, input_list: list[Any], op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Combine what the ranks have for each rank, and give it to that rank.

    Parameters
    ----------
    output
        The array to fill: all ranks' ``input_list[i]`` on group rank *i*, combined. It may be the very memory of this
        rank's own ``input_list[i]``.
    input_list
        One array for each rank of the group, of the same dtypes and sizes on all ranks.
    op, group, async_op
        As for `all_reduce`.

    Raises
    ------
    MismatchError
        On every rank, if ranks gave different ops, dtypes or sizes.
    TypeError
        If the op has no meaning for the dtype.
    ValueError
        If the output does not fit, is read-only, or shares memory with another rank's part of the input.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     parts = np.ones((dist.get_world_size(), 3))
    ...     dist.reduce_scatter(np.empty(3), list(parts))
    """
    pg = groups.member_group(group, "reduce_scatter")
    if pg is None:
        return None
    try:
        how = reduction_of(op, "reduce_scatter")
        arrays = array_list(input_list, pg._size, "input_list", "reduce_scatter")
        parts = inputs(arrays, "input_list")
        buffer, finish = writable(output, "output")
        check_reducible(output, how, "reduce_scatter", "output")
        check_fit(output, "output", arrays[pg._rank], f"input_list[{pg._rank}]", "reduce_scatter")
        check_apart([output], arrays, "output", "input_list[]", [(0, pg._rank)])
    except Exception:
        pg.backend.refuse("reduce_scatter")
        raise
    if async_op:
        request = pg.backend.ireduce_scatter(parts, [buffer], how._reduction)
        return Work(request, [output], finish, pg.backend.timeout)
    pg.backend.reduce_scatter(parts, [buffer], how._reduction)
    if finish is not None:
        finish()
    return None


def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Combine the ranks' arrays and give each rank an equal part of the result.

    Parameters
    ----------
    output
        The array to fill: group rank *i*'s part. It may be the very memory of this part of `input`.
    input
        The array to contribute: parts in rank order, joined along the first dimension or stacked, or of any other shape
        with as many elements.
    op, group, async_op
        As for `all_reduce`.

    Raises
    ------
    MismatchError, TypeError, ValueError
        As for `reduce_scatter`.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     dist.reduce_scatter_tensor(np.empty(3), np.ones((dist.get_world_size(), 3)))
    """
    name = "reduce_scatter_tensor"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    try:
        how = reduction_of(op, name)
        buffer, finish = writable(output, "output")
        readable(input, "input")
        check_reducible(output, how, name, "output")
        check_total(input, "input", output, "output", pg._size, name)
        arrays = divide(input, pg._size, "input")
        parts = inputs(arrays, "input")
        check_apart([output], arrays, "output", "input's part []", [(0, pg._rank)])
    except Exception:
        pg.backend.refuse(name)
        raise
    if async_op:
        request = pg.backend.ireduce_scatter(parts, [buffer], how._reduction, name)
        return Work(request, [output], finish, pg.backend.timeout)
    pg.backend.reduce_scatter(parts, [buffer], how._reduction, None, name)
    if finish is not None:
        finish()
    return None


reduce_scatter_single = reduce_scatter_tensor
