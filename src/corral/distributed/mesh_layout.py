"""How the dimensions of a mesh walk through its ranks: arithmetic, without any group.

A mesh and what is sliced from it or flattened share one list of ranks. Each is described by where its dimensions
step in that list: a dimension is a tuple of ``(size, stride)`` pairs, the slowest first. A dimension of a mesh as it
was made is one pair, or none if its size is 1; one that was flattened from several may be more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = ["Axis", "Layout"]

Axis: TypeAlias = tuple[tuple[int, int], ...]
"""The ``(size, stride)`` pairs of one dimension."""


class Layout(NamedTuple):
    """The dimensions of a mesh over a list of ranks.

    Examples
    --------
    >>> layout = Layout.of_shape((2, 3))
    >>> layout.offsets().tolist()
    [[0, 1, 2], [3, 4, 5]]
    >>> Layout((layout.axes[0],)).everywhere(6).tolist()
    [[0, 3], [1, 4], [2, 5]]
    """

    axes: tuple[Axis, ...]

    @classmethod
    def of_shape(cls, shape: Sequence[int]) -> Layout:
        """Return the layout of an array in order of its rows."""
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        return cls(tuple(() if size == 1 else ((size, stride),) for size, stride in zip(shape, strides, strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(math.prod(size for size, _ in axis) for axis in self.axes)

    @property
    def strides(self) -> tuple[int | tuple[int, ...], ...]:
        """The step of each dimension; a tuple for one that is not made of exactly one pair."""
        return tuple(axis[0][1] if len(axis) == 1 else tuple(stride for _, stride in axis) for axis in self.axes)

    def pairs(self) -> Axis:
        """Return the pairs of all dimensions, in their order."""
        return tuple(itertools.chain.from_iterable(self.axes))

    def flattened(self) -> Layout:
        """Return the layout with all dimensions made one, of as few pairs as describe it."""
        merged: list[tuple[int, int]] = []
        for size, stride in self.pairs():
            if merged and merged[-1][1] == size * stride:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        return Layout((tuple(merged),))

    def descends(self) -> bool:
        """Whether each dimension steps no farther than those before it."""
        return all(one[1] >= other[1] for one, other in itertools.pairwise(self.pairs()))

    def overlaps(self) -> bool:
        """Whether two places of the mesh would be the same entry of the list."""
        ordered = sorted(self.pairs(), key=lambda pair: (pair[1], pair[0]))
        return any(size * stride > step for (size, stride), (_, step) in itertools.pairwise(ordered))

    def offsets(self) -> np.ndarray[Any, Any]:
        """Return where in the list each place of the mesh is, for the mesh that has the list's first entry."""
        places = np.zeros((), np.intp)
        for axis in self.axes:
            steps = np.zeros((), np.intp)
            for size, stride in axis:
                steps = np.add.outer(steps, np.arange(size) * stride)
            places = np.add.outer(places, steps.reshape(-1))
        return places

    def everywhere(self, count: int) -> np.ndarray[Any, Any]:
        """Return the offsets of this mesh and of its siblings that have the other entries of a list of `count`."""
        offsets = self.offsets()
        taken = np.zeros(count, bool)
        firsts = []
        for first in range(count):
            if not taken[first]:
                taken[first + offsets] = True
                firsts.append(first)
        siblings: np.ndarray[Any, Any] = np.add.outer(np.asarray(firsts, np.intp), offsets)
        return siblings
