"""Put the elements of an array in other places, or several times. As in torch, all results but slices are copies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.arrays.libraries import convert, library_of, namespace_of, to_numpy

__all__ = ["flip", "pad", "repeat", "repeat_interleave", "roll", "rot90"]


def flip(x: Any, dims: Sequence[int]) -> Any:
    """Return an array with the order of its elements reversed along some dimensions.

    Examples
    --------
    >>> flip(np.arange(4).reshape(2, 2), [0])
    array([[2, 3],
           [0, 1]])
    """
    library = library_of(x)
    if library == "torch":
        return x.flip(tuple(dims))
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"a dimension appears multiple times in the list of dims {list(dims)}")
    if library == "numpy":
        return np.flip(x, tuple(dims)).copy()
    return namespace_of(x).flip(x, axis=tuple(dims))


def roll(x: Any, shifts: int | Sequence[int], dims: int | Sequence[int]) -> Any:
    """Return an array with its elements moved along some dimensions; those that leave at the end come in again.

    Examples
    --------
    >>> roll(np.arange(4), 1, 0)
    array([3, 0, 1, 2])
    """
    steps = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    if library_of(x) == "torch":
        return x.roll(steps, axes)
    if len(steps) != len(axes):
        raise RuntimeError(f"shifts and dimensions must align, got {len(steps)} shifts and {len(axes)} dimensions")
    return (np if library_of(x) == "numpy" else namespace_of(x)).roll(x, steps, axis=axes)


def rot90(x: Any, k: int, dims: tuple[int, int]) -> Any:
    """Return an array turned `k` times by a quarter, from the first of two dimensions to the second.

    Examples
    --------
    >>> rot90(np.arange(4).reshape(2, 2), 1, (0, 1))
    array([[1, 3],
           [0, 2]])
    """
    library = library_of(x)
    if library == "torch":
        return x.rot90(k, dims)
    if dims[0] == dims[1]:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    if library == "numpy":
        return np.rot90(x, k, dims).copy()
    order = list(range(len(x.shape)))
    order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    if k == 2:
        return flip(x, dims)
    return flip(x, dims[1:]).transpose(*order) if k == 1 else flip(x, dims[:1]).transpose(*order)


def repeat(x: Any, counts: Sequence[int]) -> Any:
    """Return copies of an array side by side; each of the last dimensions has as many as `counts` says.

    Examples
    --------
    >>> repeat(np.arange(2), [2, 2])
    array([[0, 1, 0, 1],
           [0, 1, 0, 1]])
    """
    library = library_of(x)
    if library == "torch":
        return x.repeat(tuple(counts))
    extra = len(counts) - len(x.shape)
    if any(count * n < 0 for count, n in zip(counts, (*(1,) * extra, *x.shape), strict=True)):
        raise RuntimeError(f"a dimension cannot be repeated a negative number of times: {list(counts)}")
    return (np if library == "numpy" else namespace_of(x)).tile(x, tuple(max(0, count) for count in counts))


def repeat_interleave(x: Any, repeats: Any, dim: int, output_size: int | None = None) -> Any:
    """Return an array in which each part along a dimension stands several times, one behind the other.

    Parameters
    ----------
    x : array
        The array.
    repeats : int or array of int
        How often; for all parts, or for each.
    dim : int
        The dimension.
    output_size : int, optional
        The length of the dimension in the result.

    Examples
    --------
    >>> repeat_interleave(np.arange(3), np.array([1, 0, 2]), 0)
    array([0, 2, 2])
    """
    library = library_of(x)
    if library == "torch":
        if not isinstance(repeats, int):
            repeats = convert(repeats, "torch").to(x.device)
        return x.repeat_interleave(repeats, dim, output_size=output_size)
    counts = repeats if isinstance(repeats, int) else to_numpy(repeats)
    if np.any(np.less(counts, 0)):
        raise RuntimeError("repeats can not be negative")
    if not isinstance(counts, int) and counts.shape not in ((), (1,), (x.shape[dim],)):
        raise RuntimeError(f"repeats must have the same size as input along dim: {counts.shape} and {x.shape[dim]}")
    result = (np if library == "numpy" else namespace_of(x)).repeat(x, counts, axis=dim)
    if output_size is not None and result.shape[dim] != output_size:
        raise RuntimeError(f"output_size is {output_size}, but the repeats make {result.shape[dim]}")
    return result


def pad(x: Any, widths: Sequence[tuple[int, int]], value: Any) -> Any:
    """Return an array with elements of one value added before and behind those of its first dimensions.

    Negative widths remove elements.

    Examples
    --------
    >>> pad(np.arange(3), [(1, 2)], 7)
    array([7, 0, 1, 2, 7, 7])
    >>> pad(np.arange(3), [(-1, 0)], 7)
    array([1, 2])
    """
    library = library_of(x)
    full = [*widths, *[(0, 0)] * (len(x.shape) - len(widths))]
    if library == "torch":
        flat = [width for pair in reversed(full) for width in pair]
        return sys.modules["torch"].nn.functional.pad(x, flat, value=value)
    kept = tuple(slice(max(0, -low), n - max(0, -high)) for n, (low, high) in zip(x.shape, full, strict=True))
    if any(n + low + high < 0 for n, (low, high) in zip(x.shape, full, strict=True)):
        raise RuntimeError(f"the widths {full} leave less than nothing of an array of shape {list(x.shape)}")
    shape = tuple(n + low + high for n, (low, high) in zip(x.shape, full, strict=True))
    inner = tuple(
        slice(max(0, low), n + low + min(0, high) if high < 0 else n + low)
        for n, (low, high) in zip(x.shape, full, strict=True)
    )
    if library == "numpy":
        result = np.full(shape, value).astype(x.dtype) if np.isscalar(value) else np.full(shape, value, x.dtype)
        result[inner] = x[kept]
        return result
    namespace = namespace_of(x)
    positive = tuple((max(0, low), max(0, high)) for low, high in full)
    return namespace.pad(x[kept], positive, constant_values=value)
