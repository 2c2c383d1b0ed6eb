"""Collective operations on several arrays at once: one message for all of them."""

from __future__ import annotations

import itertools
from typing import Any

from corral.arrays.apart import check_apart
from corral.arrays.buffers import check_distinct, readable
from corral.arrays.libraries import is_array
from corral.arrays.updating import updatable
from corral.distributed import groups
from corral.distributed.arguments import array_list, check_fit, outputs, together
from corral.distributed.groups import Group
from corral.distributed.reduce_ops import ReduceOp, check_reducible, reduction_of
from corral.distributed.work import Work

__all__ = ["all_gather_coalesced", "all_reduce_coalesced"]


def all_gather_coalesced(
    output_tensor_lists: list[list[Any]], input_tensor_list: list[Any], group: Group = None, async_op: bool = False
) -> Work | None:
    """Bring every rank's arrays to every rank.

    Parameters
    ----------
    output_tensor_lists
        For each rank of the group, one array to fill for each of those that the rank contributes.
    input_tensor_list
        This rank's arrays, of any dtypes and libraries.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.

    Raises
    ------
    MismatchError
        On every rank, if ranks expect different sizes or dtypes.
    ValueError
        If arrays share memory, one is read-only, or this rank's own do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     mine = [np.zeros(3), np.array(dist.get_rank())]
    ...     dist.all_gather_coalesced([[np.empty(3), np.array(0)] for _ in range(dist.get_world_size())], mine)
    """
    name = "all_gather_coalesced"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    try:
        arrays = _several(input_tensor_list, "input_tensor_list", name)
        buffers = [readable(array, f"input_tensor_list[{i}]") for i, array in enumerate(arrays)]
        lists = array_list(output_tensor_lists, pg._size, "output_tensor_lists", name)
        lists = [_several(each, f"output_tensor_lists[{i}]", name) for i, each in enumerate(lists)]
        filled = [outputs(each, f"output_tensor_lists[{i}]") for i, each in enumerate(lists)]
        into = [[*itertools.chain(*buffers_of_rank)] for buffers_of_rank, _ in filled]
        finish = together([finish for _, finish in filled])
        own = lists[pg._rank]
        if len(own) != len(arrays):
            raise ValueError(
                f"{name}: output_tensor_lists[{pg._rank}], for this rank's own arrays, must have {len(arrays)} arrays, "
                f"as input_tensor_list has, got {len(own)}"
            )
        for i, (output, array) in enumerate(zip(own, arrays, strict=True)):
            check_fit(output, f"output_tensor_lists[{pg._rank}][{i}]", array, f"input_tensor_list[{i}]", name)
        flat = [*itertools.chain(*lists)]
        first = sum(map(len, lists[: pg._rank]))
        check_distinct(flat, "output_tensor_lists, counted through")
        same = [(first + i, i) for i in range(len(arrays))]
        check_apart(flat, arrays, "output_tensor_lists, counted through, []", "input_tensor_list[]", same)
    except Exception:
        pg.backend.refuse(name)
        raise
    if async_op:
        return Work(pg.backend.iall_gather(buffers, into, name), flat, finish, pg.backend.timeout)
    pg.backend.all_gather(buffers, into, None, name)
    if finish is not None:
        finish()
    return None


def all_reduce_coalesced(
    tensors: list[Any], op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Combine every rank's arrays, in place: all get the same bits, on every run.

    Parameters
    ----------
    tensors
        The arrays to contribute and to fill, of the same number, dtypes and sizes on all ranks; or one array.
    op, group, async_op
        As for `all_reduce`.

    Raises
    ------
    MismatchError
        On every rank, if ranks gave different ops, dtypes or sizes.
    TypeError
        If the op has no meaning for one of the dtypes.
    ValueError
        If two of the arrays share memory.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     gradients = [np.ones((3, 2)), np.ones(2)]
    ...     dist.all_reduce_coalesced(gradients)
    """
    name = "all_reduce_coalesced"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    try:
        how = reduction_of(op, name)
        arrays = [tensors] if is_array(tensors) else _several(tensors, "tensors", name)
        updated = [updatable(array, f"tensors[{i}]") for i, array in enumerate(arrays)]
        for i, array in enumerate(arrays):
            check_reducible(array, how, name, f"tensors[{i}]")
        check_distinct(arrays, "tensors")
        buffers = [buffer for buffer, _ in updated]
        finish = together([finish for _, finish in updated])
    except Exception:
        pg.backend.refuse(name)
        raise
    if async_op:
        return Work(pg.backend.iall_reduce(buffers, how._reduction, name), arrays, finish, pg.backend.timeout)
    pg.backend.all_reduce(buffers, how._reduction, None, name)
    if finish is not None:
        finish()
    return None


def _several(arrays: Any, name: str, operation: str) -> list[Any]:
    if not isinstance(arrays, (list, tuple)) or not arrays:
        kind = "an empty one" if isinstance(arrays, (list, tuple)) else type(arrays).__qualname__
        raise TypeError(f"{operation}: {name} must be a list of arrays, got {kind}")
    return list(arrays)
