"""Put the result of a calculation into the array that it was made of, as operations in place do."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from corral.arrays.libraries import copy_into, library_of

__all__ = ["as_result", "module_of", "store"]

_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}  # V: the floats of ml_dtypes


def module_of(x: Any) -> Any:
    """Return the module with NumPy's functions for an array of any library but torch.

    Examples
    --------
    >>> module_of(np.zeros(2)) is np
    True
    """
    library = library_of(x)
    if library == "jax":
        return sys.modules["jax"].numpy
    return sys.modules["cupy"] if library == "cupy" else np


def as_result(value: Any) -> Any:
    """Return a result as an array: NumPy makes scalars of what it does to 0-d arrays.

    Examples
    --------
    >>> as_result(np.float64(1.5))
    array(1.5)
    """
    return np.asarray(value) if isinstance(value, np.generic) else value


def store(x: Any, value: Any, label: str) -> Any:
    """Write a result into an array and return that; return the result where the array is immutable, as JAX's are.

    Parameters
    ----------
    x, value : array
        The array to write, and what to write, of the same library.
    label : str
        What the array is called in messages.

    Raises
    ------
    RuntimeError
        If the shapes differ, or the value's kind of number does not fit the array, as floats do not fit integers.

    Examples
    --------
    >>> a = np.zeros(2, "int16")
    >>> store(a, np.array([3, 4]), "a") is a, a
    (True, array([3, 4], dtype=int16))
    """
    if tuple(x.shape) != tuple(value.shape):
        raise RuntimeError(f"the result of shape {tuple(value.shape)} does not fit {label} of shape {tuple(x.shape)}")
    if not _fits(value.dtype, x.dtype):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {x.dtype} of {label}: "
            "use the operation that is not in place, or cast first"
        )
    if library_of(x) == "jax":
        return value if value.dtype == x.dtype else value.astype(x.dtype)
    copy_into(x, value)
    return x


def _fits(source: Any, target: Any) -> bool:
    """Whether torch would write numbers of one dtype into an array of another."""
    ranks = _RANKS.get(np.dtype(source).kind), _RANKS.get(np.dtype(target).kind)
    if ranks[0] is None or ranks[1] is None:
        return bool(np.can_cast(source, target, "same_kind"))
    return ranks[0] <= ranks[1]
