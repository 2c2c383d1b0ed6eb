"""What a call of any operation is made with: a group, a root, arrays in some layout, and the values of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ranks import LAYOUTS, in_layout

import corral.distributed as dist
from corral.arrays.libraries import to_numpy

__all__ = ["ORDERS", "Call", "Held", "my_groups", "same", "values"]

ORDERS = [[0, 1, 2, 3, 4], [3, 0, 2], [4, 1], [2, 3, 4], [1, 0], [2, 4, 0, 3, 1]]
"""Global ranks of the groups that the operations are tried in, in the order of their group ranks."""


def my_groups(orders: Sequence[list[int]] = ORDERS) -> list[tuple[Any, list[int]]]:
    """Make groups of these ranks in these orders, and return those that this rank is in, each with its ranks."""
    made = [(None if ranks == ORDERS[0] else dist.new_group(ranks, sort_ranks=False), ranks) for ranks in orders]
    return [(group, ranks) for group, ranks in made if dist.get_rank() in ranks]


def values(shape: tuple[int, ...], dtype: Any, rank: int, part: int = 0) -> np.ndarray:
    """Values that every rank can compute: another one in each place, of each rank, in each of its parts."""
    dtype = np.dtype(dtype)
    count = math.prod(shape)
    numbers = (np.arange(count) + count * (7 * rank + part) + 1).reshape(shape)
    if dtype.names is not None:
        made = np.zeros(shape, dtype)
        for i, name in enumerate(dtype.names):
            made[name] = values(shape, dtype[name], rank, part + i)
        return made
    if dtype.kind == "b":
        return np.asarray(numbers * 2654435761 >> 7 & 1).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(numbers - 0.5j * numbers).astype(dtype)
    if dtype.name.startswith("float8"):  # all bit patterns, as the values are only moved
        return np.asarray(numbers).astype("u1").view(dtype)
    return np.asarray(numbers).astype(dtype)


def same(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays are the same, bit by bit, in either byte order: a NaN is one, and -0.0 is not 0.0."""
    native = actual.dtype.newbyteorder("=")
    if actual.shape != expected.shape or native != expected.dtype.newbyteorder("="):
        return False
    if native == np.dtype("longdouble"):  # has bytes that belong to no value
        return np.array_equal(actual, expected)
    return actual.astype(native).tobytes() == expected.astype(native).tobytes()


class Held:
    """An array that a rank gives or has filled, in some layout, as a part of memory that must stay as it is."""

    def __init__(self, content: np.ndarray, layout: str, library: str = "numpy") -> None:
        if library == "torch" and layout == "reversed":  # torch has no such strides
            layout = "gaps"
        self.view, memory = in_layout(np.zeros(content.shape, content.dtype), layout)
        self._memory = memory.view("u1") if memory.ndim and memory.size else memory
        self._memory[...] = np.zeros_like(self._memory)
        self.view[...] = content
        self.array = self.view if library == "numpy" else _as_torch(self.view)

    def check(self, expected: np.ndarray, label: str = "") -> None:
        """Assert that the array has these values, and that nothing beside it was written."""
        assert same(self.view, expected.reshape(self.view.shape)), f"{label}: {self.view!r} is not {expected!r}"
        self.view.view(f"V{self.view.itemsize}")[...] = np.zeros((), f"V{self.view.itemsize}")
        assert not any(self._memory.tobytes()), f"{label}: wrote beside the array"


def _as_torch(view: np.ndarray) -> Any:
    """Return a tensor of the same memory and strides."""
    import torch

    if view.dtype.name.startswith(("bfloat", "float8")):
        return torch.from_numpy(view.view(f"u{view.dtype.itemsize}")).view(getattr(torch, view.dtype.name))
    return torch.from_numpy(view)


def _sum(parts: list[np.ndarray], op: str) -> np.ndarray:
    total = parts[0].astype(parts[0].dtype.newbyteorder("="))
    for part in parts[1:]:
        total = total + part
    return total.astype(parts[0].dtype)


class Call:
    """One call of an operation, as one rank makes it.

    Parameters
    ----------
    group, ranks
        The group, and the global ranks of its members.
    root
        Group rank of the source or destination, where there is one.
    shape, dtype
        Of the arrays.
    number
        Chooses layouts, and how roots are named: by their global rank if it is even, by that in the group if not.
    asynchronous
        Whether an operation that can returns a `Work`.
    library
        Of the arrays: "numpy", or "torch".
    op, combined
        For reductions: the name of a ReduceOp, and what it makes of the ranks' arrays.
    """

    def __init__(
        self,
        group: Any,
        ranks: Sequence[int],
        root: int = 0,
        shape: tuple[int, ...] = (4, 5),
        dtype: Any = "f8",
        number: int = 0,
        asynchronous: bool = False,
        library: str = "numpy",
        op: str = "SUM",
        reduce_op: Any = None,
        combined: Callable[[list[np.ndarray], str], np.ndarray] = _sum,
    ) -> None:
        self.group, self.ranks, self.root, self.number = group, list(ranks), root, number
        self.shape, self.dtype, self.asynchronous, self.library = shape, np.dtype(dtype), asynchronous, library
        self.reduce_op = dist.ReduceOp.__members__[op] if reduce_op is None else reduce_op
        self._op, self._combined = op, combined
        self.size = len(self.ranks)
        self.me = self.ranks.index(dist.get_rank())
        self.others = [i for i in range(self.size) if i != self.me]

    @property
    def tree_op(self) -> Any:
        """The reduction as the functional forms name it."""
        return self._op.lower() if self._op != "PREMUL_SUM" else self.reduce_op

    @property
    def is_root(self) -> bool:
        return self.me == self.root

    def at(self, argument: str, rank: int | None = None) -> dict[str, int]:
        """Name a rank, the root if none is given, as `argument` ("src", "dst", "peer") or as that of the group."""
        rank = self.root if rank is None else rank
        return {f"group_{argument}": rank} if self.number % 2 else {argument: self.ranks[rank]}

    def values(self, rank: int, part: int = 0, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Return what a rank gives."""
        return values(self.shape if shape is None else shape, self.dtype, rank, part)

    def total(self, part: int = 0, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Return what a reduction makes of what the ranks give."""
        return self._combined([self.values(rank, part, shape) for rank in range(self.size)], self._op)

    def given(self, part: int = 0, rank: int | None = None, shape: tuple[int, ...] | None = None) -> Held:
        """Return an array that this rank gives: the layouts of the two ends go through all pairs with the number."""
        content = self.values(self.me if rank is None else rank, part, shape)
        return self.held(content, self.number + part)

    def blank(self, part: int = 0, shape: tuple[int, ...] | None = None) -> Held:
        """Return an array to be filled."""
        content = np.zeros(self.shape if shape is None else shape, self.dtype)
        return self.held(content, self.number // len(LAYOUTS) + part)

    def held(self, content: np.ndarray, layout: int) -> Held:
        content = content.astype(self.dtype)  # what NumPy joins is in the machine's byte order
        return Held(content, LAYOUTS[layout % len(LAYOUTS)], self.library)

    def check(self, actual: Any, expected: np.ndarray) -> None:
        """Assert that an array that an operation made has these values."""
        array = to_numpy(actual)
        assert same(array, expected), f"{array!r} is not {expected!r}"

    def __repr__(self) -> str:
        return (
            f"group rank {self.me} of {self.ranks}, root {self.root}, {self.dtype} {self.shape}, number {self.number}, "
            f"{'asynchronous' if self.asynchronous else 'synchronous'}, {self.library}, {self._op}"
        )
