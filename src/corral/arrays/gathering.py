"""Take elements by an array of indices along one dimension."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from corral.arrays.libraries import convert, copy_into, is_traced, library_of, namespace_of, to_numpy

__all__ = ["gather"]


def gather(x: Any, dim: int, index: Any, out: Any = None) -> Any:
    """Return the elements of `x` whose place along one dimension is given, as ``torch.gather``.

    Parameters
    ----------
    x : array
        The array.
    dim : int
        The dimension.
    index : array of int
        Has as many dimensions as `x`, none of which, but `dim`, is longer. Its values are checked, except in a function
        that JAX compiles.
    out : array, optional
        Write the result into this one.

    Examples
    --------
    >>> gather(np.array([[1, 2], [3, 4]]), 1, np.array([[0, 0], [1, 0]]))
    array([[1, 1],
           [4, 3]])
    """
    library = library_of(x)
    if library == "torch":
        return sys.modules["torch"].gather(x, dim, convert(index, "torch", x.device), out=out)
    traced = is_traced(index)  # values are not known, and out-of-bounds ones are treated as JAX treats them
    if traced:
        library, x = "jax", convert(x, "jax")
    rows: Any = index if traced else to_numpy(index)
    if rows.dtype.kind not in "iu":
        raise RuntimeError(f"gather(): Expected an integer array for index, got {rows.dtype}")
    length = x.shape[dim]
    if rows.size and not traced and not (rows.min() >= 0 and rows.max() < length):
        raise RuntimeError(f"index out of bounds: gather takes those from 0 to {length - 1} along dimension {dim}")
    if any(n > m for d, (n, m) in enumerate(zip(rows.shape, x.shape, strict=True)) if d != dim):
        raise RuntimeError(
            f"Size does not match: the index of shape {list(rows.shape)} is larger than {list(x.shape)} apart from "
            f"dimension {dim}"
        )
    part = x[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(rows.shape))]
    if library == "numpy":
        result: Any = np.take_along_axis(part, rows, dim)
    else:
        result = namespace_of(x).take_along_axis(part, convert(index, library), axis=dim)
    if out is None:
        return result
    copy_into(out, result)
    return out
