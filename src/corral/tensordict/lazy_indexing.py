"""Which members of a lazy stack an index selects, and what of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from corral.arrays.indexing import take
from corral.arrays.libraries import to_numpy

__all__ = ["Grid", "Member", "Members", "locate"]

Index = tuple[Any, ...]


class Member(NamedTuple):
    """One member, and the index into it."""

    number: int
    inner: Index


class Members(NamedTuple):
    """Several members, the index into each, and the dimension of the result along which they are stacked."""

    numbers: Any
    inner: Index
    stack_dim: int


class Grid(NamedTuple):
    """Single elements: positions in the batch as if it were flat, in the shape of the result."""

    positions: np.ndarray[Any, Any]


def locate(index: Index, batch_size: tuple[int, ...], stack_dim: int) -> Member | Members | Grid:
    """Say what a normalized index selects of a lazy stack.

    Examples
    --------
    >>> locate((slice(1, None), 0), (2, 3), 1)
    Member(number=0, inner=(slice(1, None, None),))
    >>> locate((0,), (2, 3), 1)
    Members(numbers=[0, 1, 2], inner=(0,), stack_dim=0)
    """
    count = batch_size[stack_dim]
    consumed = produced = 0
    arrays = sum(not isinstance(item, (int, slice, type(None))) for item in index)
    rest: list[Any] = []
    chosen: Any = None
    place = stack_dim
    for item in index:
        width = 0 if item is None else _width(item)
        if item is not None and consumed <= stack_dim < consumed + width:
            if width > 1:
                return _grid(index, batch_size)
            chosen, place = item, produced
        else:
            rest.append(item)
        consumed += width
        produced += 0 if type(item) is int else _made(item)
    if consumed <= stack_dim:  # only dimensions before the members' are indexed
        place = produced + stack_dim - consumed
        chosen = slice(None)
    if type(chosen) is int:
        if not -count <= chosen < count:
            raise IndexError(f"index {chosen} is out of bounds for the stack dim of size {count}")
        if arrays > 1:
            return _grid(index, batch_size)
        return Member(chosen % count, tuple(rest))
    if arrays > 1:
        return _grid(index, batch_size)
    if isinstance(chosen, slice):
        if arrays and any(type(item) is int for item in index):
            return _grid(index, batch_size)
        return Members(list(range(*chosen.indices(count))), tuple(rest), place)
    rows = to_numpy(chosen)
    if rows.dtype.kind == "b":
        if rows.shape != (count,):
            raise IndexError(f"the mask of shape {list(rows.shape)} does not fit the batch of size {list(batch_size)}")
        rows = np.flatnonzero(rows)
    if rows.size and not (-count <= rows.min() and rows.max() < count):
        raise IndexError(f"an index is out of bounds for the stack dim of size {count}")
    return Members((rows % count if count else rows).tolist(), tuple(rest), place)


def _grid(index: Index, batch_size: tuple[int, ...]) -> Grid:
    return Grid(take(np.arange(int(np.prod(batch_size))).reshape(batch_size), index))


def _width(item: Any) -> int:
    """Return how many dimensions an item of an index consumes."""
    return int(item.ndim) if str(getattr(item, "dtype", "")).endswith("bool") else 1


def _made(item: Any) -> int:
    """Return how many dimensions an item other than an integer makes."""
    if item is None or isinstance(item, slice) or str(item.dtype).endswith("bool"):
        return 1
    return int(item.ndim)
