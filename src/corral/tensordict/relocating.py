"""Copies of leaves in one buffer, one behind the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from corral.arrays.libraries import copy_into, library_of
from corral.arrays.operations import device_of, nbytes

__all__ = ["ALIGNMENT", "Relocation", "as_leaf", "grad_of", "on_host", "with_grad"]

ALIGNMENT = 64
"""Bytes of which each leaf's place is a multiple."""


class Relocation:
    """Gives leaves in host memory, met in the same order again, places in a new buffer; others stay where they are.

    Parameters
    ----------
    leaves
        All leaves.
    allocate
        Returns an array of so many bytes.
    grad
        Whether copies require it where the leaves do, and those of torch's parameters are parameters.

    Examples
    --------
    >>> leaves = [np.arange(3), np.ones(2)]
    >>> places = Relocation(leaves, lambda count: np.empty(count, np.uint8), False)
    >>> new = [places.move(leaf) for leaf in leaves]
    >>> places.copy()
    >>> new[0].tolist(), new[1].tolist(), new[0].base is new[1].base
    ([0, 1, 2], [1.0, 1.0], True)
    """

    def __init__(self, leaves: Iterable[Any], allocate: Callable[[int], Any], grad: bool) -> None:
        self._grad = grad
        # Those of exactly this type are copied together.
        self._tensor: Any = sys.modules["torch"].Tensor if "torch" in sys.modules and not grad else None
        ends = [0]
        for leaf in leaves:
            kind = type(leaf)
            if kind is np.ndarray or (leaf.is_cpu if kind is self._tensor else on_host(leaf)):
                size = leaf.nbytes if kind is np.ndarray or kind is self._tensor else nbytes(leaf)
                ends.append(ends[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        self._buffer = allocate(ends[-1])
        self._starts = iter(ends)
        self._whole: dict[Any, Any] = {}  # the buffer as a tensor of each dtype
        self._views: list[Any] = []
        self._originals: list[Any] = []

    def move(self, leaf: Any) -> Any:
        """Return a leaf's copy, which may lack its values until `copy` is called."""
        kind = type(leaf)
        if kind is np.ndarray:
            new: Any = np.ndarray(leaf.shape, leaf.dtype, self._buffer, next(self._starts))
            new[...] = leaf
            return new
        if not (leaf.is_cpu if kind is self._tensor else on_host(leaf)):
            return leaf
        start = next(self._starts)
        if kind is self._tensor and not leaf.is_quantized and self._buffer.size:
            return self._view(leaf, start)
        piece = self._buffer[start : start + nbytes(leaf)]
        new = as_leaf(piece, leaf.dtype, tuple(leaf.shape), library_of(leaf))
        copy_into(new, leaf)
        return with_grad(new, *grad_of(leaf)) if self._grad else new

    def copy(self) -> None:
        """Write what has not been written yet."""
        if self._views:
            torch = sys.modules["torch"]
            with torch.no_grad():
                torch._foreach_copy_(self._views, self._originals)

    def _view(self, leaf: Any, start: int) -> Any:
        dtype = leaf.dtype
        whole = self._whole.get(dtype)
        if whole is None:
            usable = self._buffer[: self._buffer.size // dtype.itemsize * dtype.itemsize]
            whole = self._whole[dtype] = sys.modules["torch"].from_numpy(usable).view(dtype)
        steps, step = [], 1
        for length in reversed(leaf.shape):
            steps.append(step)
            step *= max(length, 1)
        view = whole.as_strided(leaf.shape, steps[::-1], start // dtype.itemsize)
        self._views.append(view)
        self._originals.append(leaf)
        return view


def on_host(leaf: Any) -> bool:
    """Whether a leaf is an array of NumPy's or torch's in host memory."""
    library = library_of(leaf)
    return library == "numpy" or (library == "torch" and device_of(leaf) == "cpu")


def as_leaf(
    piece: Any, dtype: Any, shape: tuple[int, ...], library: str, strides: tuple[int, ...] | None = None, start: int = 0
) -> Any:
    """Return an array of `library` over bytes; `strides` and `start` count bytes."""
    if library == "numpy":
        return np.ndarray(shape, dtype, piece, start, strides)
    torch = sys.modules["torch"]
    if piece.size == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(piece).view(dtype)
    if strides is None:
        return flat.view(shape)
    size = dtype.itemsize
    return flat.as_strided(shape, tuple(step // size for step in strides), start // size)


def grad_of(leaf: Any) -> tuple[bool, bool]:
    """Return whether a leaf requires grad, and whether it is a parameter of torch's."""
    if library_of(leaf) != "torch":
        return False, False
    return leaf.requires_grad, isinstance(leaf, sys.modules["torch"].nn.Parameter)


def with_grad(leaf: Any, required: bool, parameter: bool) -> Any:
    """Return a leaf that requires grad, or is a parameter, as what `grad_of` tells of another."""
    if parameter:
        return sys.modules["torch"].nn.Parameter(leaf, required)
    return leaf.requires_grad_() if required else leaf
