"""Collective operations in which every rank receives from every other."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from numpy import ndarray

from corral.arrays.apart import check_apart
from corral.arrays.buffers import NATIVE, check_distinct, readable
from corral.arrays.parts import count, divide_to_fill, split
from corral.distributed import groups
from corral.distributed.arguments import array_list, check_fit, check_total, inputs, outputs, together
from corral.distributed.groups import Group, ProcessGroup
from corral.distributed.work import Work

__all__ = ["all_gather", "all_gather_into_tensor", "all_gather_single", "all_to_all", "all_to_all_single"]


def all_gather(tensor_list: list[Any], tensor: Any, group: Group = None, async_op: bool = False) -> Work | None:
    """Bring every rank's array to every rank.

    Parameters
    ----------
    tensor_list
        One array to fill for each rank of the group, of that rank's dtype and size: they may differ from rank to
        rank, but every rank must say the same. Arrays may be of different libraries.
    tensor
        This rank's array; it may be the very memory of its entry in `tensor_list`.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.

    Raises
    ------
    MismatchError
        On every rank, if ranks expect different sizes or dtypes.
    ValueError
        If arrays share memory, one is read-only, or this rank's own does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     rows = np.empty((dist.get_world_size(), 3))
    ...     dist.all_gather(list(rows), np.full(3, float(dist.get_rank())))
    """
    pg = groups.member_group(group, "all_gather")
    if pg is None:
        return None
    try:
        arrays = array_list(tensor_list, pg._size, "tensor_list", "all_gather")
        into, finish = outputs(arrays, "tensor_list")
        buffer = readable(tensor)
        check_distinct(arrays, "tensor_list")
        check_fit(arrays[pg._rank], f"tensor_list[{pg._rank}]", tensor, "tensor", "all_gather")
        check_apart(arrays, [tensor], "tensor_list[]", "tensor", [(pg._rank, 0)])
    except Exception:
        pg.backend.refuse("all_gather")
        raise
    if async_op:
        return Work(pg.backend.iall_gather([buffer], into), arrays, finish, pg.backend.timeout)
    pg.backend.all_gather([buffer], into)
    if finish is not None:
        finish()
    return None


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group = None, async_op: bool = False
) -> Work | None:
    """Bring every rank's array to every rank, into one array.

    Parameters
    ----------
    output_tensor
        The array to fill, with the elements of all ranks in rank order: joined along the first dimension or stacked,
        or of any other shape with as many elements.
    input_tensor
        This rank's array, of the same dtype and size on all ranks; it may be its part of `output_tensor`.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.

    Raises
    ------
    MismatchError
        On every rank, if ranks contribute different sizes or dtypes.
    ValueError
        If the output does not fit, is read-only, or shares memory with the input anywhere but in this rank's part.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     rows = np.empty((dist.get_world_size(), 3))
    ...     dist.all_gather_into_tensor(rows, np.full(3, float(dist.get_rank())))
    """
    pg = groups.world
    if (
        group is not None
        or pg is None
        or async_op
        or type(output_tensor) is not ndarray
        or type(input_tensor) is not ndarray
        or output_tensor.base is not None
        or input_tensor.base is not None
        or output_tensor.dtype not in NATIVE
        or input_tensor.dtype is not output_tensor.dtype
        or output_tensor.size != input_tensor.size * pg._size
        or not output_tensor.flags.carray
    ):
        return _all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
    pg.backend.all_gather((input_tensor,), output_tensor, None, "all_gather_into_tensor")
    return None


all_gather_single = all_gather_into_tensor


def _all_gather_into_tensor(output: Any, tensor: Any, group: Group, async_op: bool) -> Work | None:
    """Do all that `all_gather_into_tensor` does not."""
    name = "all_gather_into_tensor"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return None
    try:
        buffer = readable(tensor, "input_tensor")
        readable(output, "output_tensor")
        check_total(output, "output_tensor", tensor, "input_tensor", pg._size, name)
        arrays, last = divide_to_fill(output, pg._size, "output_tensor")
        into, finish = outputs(arrays, "output_tensor")
        check_distinct(arrays, "output_tensor")
        check_apart(arrays, [tensor], "output_tensor", "input_tensor", [(pg._rank, 0)])
        finish = together([finish, last])
    except Exception:
        pg.backend.refuse(name)
        raise
    if async_op:
        return Work(pg.backend.iall_gather([buffer], into, name), [output], finish, pg.backend.timeout)
    pg.backend.all_gather([buffer], into, None, name)
    if finish is not None:
        finish()
    return None


def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: Group = None, async_op: bool = False
) -> Work | None:
    """Send a different array from each rank to each other.

    Parameters
    ----------
    output_tensor_list
        One array to fill for each rank of the group, of the dtype and size of what that rank sends to this one.
    input_tensor_list
        One array for each rank of the group. Arrays may be of different libraries and sizes.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.

    Raises
    ------
    MismatchError
        On every rank that takes part in what does not fit: a rank sends another dtype or size than one expects.
    ValueError
        If arrays to fill share memory with each other or with what is sent, or one is read-only.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     sent = np.arange(dist.get_world_size()) + 10 * dist.get_rank()
    ...     received = np.empty_like(sent)
    ...     dist.all_to_all(list(received[:, None]), list(sent[:, None]))
    """
    pg = groups.member_group(group, "all_to_all")
    if pg is None:
        return None
    try:
        arrays = array_list(output_tensor_list, pg._size, "output_tensor_list", "all_to_all")
        sent = array_list(input_tensor_list, pg._size, "input_tensor_list", "all_to_all")
        into, finish = outputs(arrays, "output_tensor_list")
        parts = inputs(sent, "input_tensor_list")
        check_distinct(arrays, "output_tensor_list")
        me = pg._rank
        check_fit(arrays[me], f"output_tensor_list[{me}]", sent[me], f"input_tensor_list[{me}]", "all_to_all")
        check_apart(arrays, sent, "output_tensor_list[]", "input_tensor_list[]", [(me, me)])
    except Exception:
        pg.backend.refuse("all_to_all")
        raise
    if async_op:
        return Work(pg.backend.iall_to_all(parts, into), arrays, finish, pg.backend.timeout)
    pg.backend.all_to_all(parts, into)
    if finish is not None:
        finish()
    return None


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Send some rows of an array to each rank, and receive rows from each into another array.

    Parameters
    ----------
    output
        The array to fill, with what the ranks send, in rank order, along its first dimension.
    input
        The array to send, divided among the ranks along its first dimension.
    output_split_sizes, input_split_sizes
        How many rows come from, and go to, each rank of the group; equal parts when ``None`` or empty.
    group
        The group; the default one when ``None``.
    async_op
        Whether to return at once, with a `Work`.

    Raises
    ------
    MismatchError
        On every rank that takes part in what does not fit: a rank sends another dtype or size than one expects.
    ValueError
        If the split sizes do not add up, or the output is read-only or shares memory with the input.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     sent = np.arange(dist.get_world_size()) + 10 * dist.get_rank()
    ...     received = np.empty_like(sent)
    ...     dist.all_to_all_single(received, sent)
    """
    pg = groups.member_group(group, "all_to_all_single")
    if pg is None:
        return None
    try:
        parts, into, finish = _single_parts(output, input, output_split_sizes, input_split_sizes, pg)
    except Exception:
        pg.backend.refuse("all_to_all_single")
        raise
    if async_op:
        request = pg.backend.iall_to_all(parts, into, "all_to_all_single")
        return Work(request, [output], finish, pg.backend.timeout)
    pg.backend.all_to_all(parts, into, None, "all_to_all_single")
    if finish is not None:
        finish()
    return None


def _single_parts(
    output: Any, tensor: Any, output_sizes: Any, input_sizes: Any, pg: ProcessGroup
) -> tuple[list[list[Any]], list[list[Any]], Callable[[], None] | None]:
    """Return the buffers to read, those to fill, and what to call once they are filled."""
    name, me = "all_to_all_single", pg._rank
    readable(tensor, "input")
    readable(output, "output")
    sent = split(tensor, _sizes(tensor, input_sizes, "input", pg._size), "input")
    arrays = split(output, _sizes(output, output_sizes, "output", pg._size), "output", True)
    into, finish = outputs(arrays, "output")
    check_distinct(arrays, "output")
    check_fit(arrays[me], f"output's part {me}", sent[me], f"input's part {me}", name)
    check_apart(arrays, sent, "output's part []", "input's part []", [(me, me)])
    return inputs(sent, "input"), into, finish


def _sizes(array: Any, sizes: Any, name: str, size: int) -> list[int]:
    """Return how many rows of an array belong to each rank."""
    shape = getattr(array, "shape", None)
    shape = (count(array),) if shape is None else tuple(shape)
    if not shape:
        raise ValueError(f"all_to_all_single: {name} must have a first dimension to divide among the ranks, got 0-d")
    rows = shape[0]
    if sizes is None or (isinstance(sizes, (list, tuple)) and not sizes):
        if rows % size:
            raise ValueError(
                f"all_to_all_single: {name} has {rows} rows, which {size} ranks cannot share equally: give "
                f"{name}_split_sizes"
            )
        return [rows // size] * size
    try:
        numbers = [operator.index(number) for number in sizes]
    except TypeError:
        raise TypeError(f"all_to_all_single: {name}_split_sizes must be a list of integers, got {sizes!r}") from None
    if len(numbers) != size or min(numbers) < 0 or sum(numbers) != rows:
        raise ValueError(
            f"all_to_all_single: {name}_split_sizes must be {size} numbers (the group's size) that add up to the "
            f"{rows} rows of {name}, got {numbers}"
        )
    return numbers
