"""Whether the elements of one array, or of several, share memory.

A receive into memory that two elements share has no right answer, so it is refused before any byte moves.
The usual arrays (contiguous ones, rows or columns of one matrix) are cleared by comparing a few integers;
only what those cannot clear is examined element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

__all__ = ["Extent", "is_nested", "overlaps_itself", "share_memory"]


class Extent(NamedTuple):
    """Where the elements of an array lie.

    Attributes
    ----------
    space : str
        Address space: ``"cpu"``, or the name of a device.
    address : int
        Address of the first element.
    shape, strides : tuple of int
        Length and step in bytes of every dimension.
    itemsize : int
        Bytes of one element.
    """

    space: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def bounds(self) -> tuple[int, int]:
        """Return the first address and the one behind the last; equal for an array of no elements."""
        if self.itemsize == 0 or 0 in self.shape:
            return self.address, self.address
        low = high = self.address
        for length, step in zip(self.shape, self.strides, strict=True):
            if step < 0:
                low += (length - 1) * step
            else:
                high += (length - 1) * step
        return low, high + self.itemsize


def is_nested(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether each dimension steps over all that the smaller ones span, so that surely no elements overlap.

    Almost every array is like this; the core writes only into such.

    Examples
    --------
    >>> is_nested((3, 4), (8, 24), 8)  # transposed
    True
    >>> is_nested((3, 2), (16, 24), 8)  # interleaved: no overlap, but it takes a closer look to see that
    False
    """
    if itemsize == 0 or 0 in shape:
        return True
    reach = itemsize
    for step, length in sorted((abs(step), length) for length, step in zip(shape, strides, strict=True) if length > 1):
        if step < reach:
            return False
        reach += step * (length - 1)
    return True


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether two elements of an array share memory.

    Parameters
    ----------
    shape, strides
        Length and step in bytes of every dimension.
    itemsize
        Bytes of one element.

    Examples
    --------
    >>> overlaps_itself((3, 4), (32, 8), 8)  # contiguous
    False
    >>> overlaps_itself((3, 4), (0, 8), 8)  # one row, expanded
    True
    >>> overlaps_itself((3, 2), (8, 8), 8)  # a sliding window
    True
    >>> overlaps_itself((3, 2), (16, 24), 8)  # interleaved, but never twice the same place
    False
    """
    if is_nested(shape, strides, itemsize):
        return False
    dims = [(step, length) for length, step in zip(shape, strides, strict=True) if length > 1]
    if any(step == 0 for step, _ in dims):
        return True
    offsets = np.zeros(1, np.int64)
    for step, length in dims:
        offsets = np.add.outer(offsets, np.arange(length, dtype=np.int64) * step).ravel()
    offsets.sort()
    return bool((np.diff(offsets) < itemsize).any())


class _Memory:
    """An extent in the form that NumPy reads, so that it can compare two of them exactly."""

    def __init__(self, extent: Extent) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{extent.itemsize}",
            "data": (extent.address, False),
            "shape": extent.shape,
            "strides": extent.strides,
        }


def share_memory(extents: Sequence[Extent]) -> tuple[int, int] | None:
    """Return the positions of two extents that share memory, or ``None`` if there are none.

    Examples
    --------
    >>> row = Extent("cpu", 4096, (3,), (8,), 8)
    >>> share_memory([row, row._replace(address=4096 + 24), row._replace(address=4096 + 16)])
    (0, 2)
    >>> column = Extent("cpu", 4096, (3,), (16,), 8)
    >>> share_memory([column, column._replace(address=4096 + 8)]) is None
    True
    """
    spaces: dict[str, list[int]] = {}
    for i, extent in enumerate(extents):
        spaces.setdefault(extent.space, []).append(i)
    for members in spaces.values():
        found = _share_memory(extents, members)
        if found is not None:
            return found
    return None


def _share_memory(extents: Sequence[Extent], members: list[int]) -> tuple[int, int] | None:
    spans = sorted((*extents[i].bounds(), i) for i in members)
    spans = [span for span in spans if span[0] != span[1]]
    if all(before[1] <= after[0] for before, after in pairwise(spans)):
        return None
    if _interleave(extents, [i for _, _, i in spans]):
        return None
    for k, (_, end, i) in enumerate(spans):
        for low, _, j in spans[k + 1 :]:
            if low >= end:
                break
            if np.shares_memory(np.asarray(_Memory(extents[i])), np.asarray(_Memory(extents[j]))):
                return min(i, j), max(i, j)
    return None


def _interleave(extents: Sequence[Extent], order: list[int]) -> bool:
    """Whether equally shaped arrays at equal distances, such as a matrix's columns, are surely apart."""
    first = extents[order[0]]
    step = extents[order[1]].address - first.address
    for k, i in enumerate(order):
        if extents[i] != first._replace(address=first.address + k * step):
            return False
    return not overlaps_itself((len(order), *first.shape), (step, *first.strides), first.itemsize)
