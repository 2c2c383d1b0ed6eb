"""Cut one array into the parts that ranks contribute or receive: views, whatever the library."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from corral.arrays.buffers import describe, host_view, readable, writable
from corral.arrays.libraries import dtype_name, library_of
from corral.arrays.operations import clone, contiguous

__all__ = ["count", "divide", "divide_to_fill", "dtype_of", "split"]

Finish: TypeAlias = Callable[[], None]


def count(array: Any) -> int:
    """Return the number of an array's elements.

    Examples
    --------
    >>> count(np.zeros((2, 3))), count(b"abcd")
    (6, 4)
    """
    if type(array) is np.ndarray:
        return array.size
    shape = getattr(array, "shape", None)
    return math.prod(memoryview(array).shape or () if shape is None else shape)


def dtype_of(array: Any) -> str:
    """Return the name of the dtype of anything that can be sent: `dtype_name`, but strings of bytes are arrays, too.

    Examples
    --------
    >>> dtype_of(np.zeros(2, "f4")), dtype_of(b"abcd")
    ('float32', 'uint8')
    """
    return dtype_name(array if hasattr(array, "dtype") else host_view(array, "tensor"))


def split(array: Any, sizes: Sequence[int], name: str, fill: bool = False) -> list[Any]:
    """Return the views of so many rows each.

    Parameters
    ----------
    array
        Any array with at least one dimension, of as many rows as the sizes add up to.
    sizes
        Rows of each part.
    name
        The caller's argument, for error messages.
    fill
        Whether the parts are to be written.

    Examples
    --------
    >>> [part.tolist() for part in split(np.arange(4), [1, 3, 0], "input")]
    [[0], [1, 2, 3], []]
    """
    array = _sliceable(array, name, fill)
    ends = list(itertools.accumulate(sizes))
    return [array[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def divide(array: Any, parts: int, name: str) -> list[Any]:
    """Return equal parts of the elements, in the order of the array's indices.

    Examples
    --------
    >>> [part.tolist() for part in divide(np.arange(4).reshape(2, 2).T, 2, "input")]
    [[[0, 2]], [[1, 3]]]
    """
    array = _sliceable(array, name, False)
    if array.ndim == 0 or array.shape[0] % parts:
        array = contiguous(array).reshape(-1)
    return split(array, [array.shape[0] // parts] * parts, name)


def divide_to_fill(array: Any, parts: int, name: str) -> tuple[list[Any], Finish | None]:
    """Return equal parts of the elements, to be written, and what to call once they are.

    Parts that no view can be, as the middle of a row belongs to two of them, are of memory that stands in for it.
    """
    array = _sliceable(array, name, True)
    if array.ndim and array.shape[0] % parts == 0:
        return split(array, [array.shape[0] // parts] * parts, name, True), None
    writable(array, name)  # or an error that tells why not
    flat = array.reshape(-1)
    if _is_contiguous(array):
        return split(flat, [flat.shape[0] // parts] * parts, name, True), None
    flat = clone(flat)

    def finish() -> None:
        array[...] = flat.reshape(array.shape)

    return split(flat, [flat.shape[0] // parts] * parts, name, True), finish


def _is_contiguous(array: Any) -> bool:
    return bool(array.is_contiguous() if library_of(array) == "torch" else array.flags.c_contiguous)


def _sliceable(array: Any, name: str, fill: bool) -> Any:
    """Return the array as one whose slices are views."""
    if type(array) is np.ndarray:
        return array
    library = library_of(array)
    if library == "torch":
        array = array.detach()
        if array.layout is sys.modules["torch"].strided:
            return array
        if fill:
            raise TypeError(
                f"{name} cannot be received into in parts: its layout is {array.layout}; use a dense tensor"
            )
        return array.to_dense()
    if library == "jax":
        if fill:
            writable(array, name)  # which says why not
        return np.asarray(array)
    if library == "cupy" or isinstance(array, np.ndarray):
        return array
    readable(array, name)  # or an error that tells what it must be
    view = host_view(array, name)
    if view.ndim == 0 and fill:
        raise TypeError(f"{name} ({describe(array)}) has no parts")
    return view
