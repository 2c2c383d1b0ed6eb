"""Choose and write elements by a mask over an array's first dimensions."""

from __future__ import annotations

import sys
from typing import Any

from corral.arrays.arithmetic import matching
from corral.arrays.libraries import dtype_name, library_of
from corral.arrays.storing import as_result, module_of

__all__ = ["fill_", "masked_fill_", "select"]


def select(mask: Any, x: Any, other: Any, name: str = "where") -> Any:
    """Return the elements of `x` where a mask is true, and those of `other` elsewhere.

    Parameters
    ----------
    mask : array of bool
        Its dimensions are the first ones of `x`.
    x : array
        Gives the library and the shape.
    other : number or array
        Broadcasts with `x`.
    name : str
        The caller's name, for error messages.

    Examples
    --------
    >>> import numpy as np
    >>> select(np.array([True, False]), np.ones((2, 2)), 0)
    array([[1., 1.],
           [0., 0.]])
    """
    mask, other = _aligned(mask, x, name), matching(x, other)
    if library_of(x) == "torch":
        return sys.modules["torch"].where(mask, x, other)
    return as_result(module_of(x).where(mask, x, other))


def masked_fill_(x: Any, mask: Any, value: Any) -> Any:
    """Write one value where a mask over the first dimensions is true; return the array, or a new one if immutable.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros((2, 2))
    >>> masked_fill_(a, np.array([True, False]), 7) is a, a
    (True, array([[7., 7.],
           [0., 0.]]))
    """
    mask, value = _aligned(mask, x, "masked_fill"), matching(x, value)
    if library_of(x) == "torch":
        return x.masked_fill_(mask, value)
    if library_of(x) == "jax":
        return module_of(x).where(mask, module_of(x).asarray(value, x.dtype), x)
    module_of(x).copyto(x, value, where=module_of(x).broadcast_to(mask, x.shape), casting="unsafe")
    return x


def fill_(x: Any, value: Any) -> Any:
    """Write one value everywhere; return the array, or a new one if it is immutable.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros(2)
    >>> fill_(a, 7) is a, a
    (True, array([7., 7.]))
    """
    if library_of(x) == "torch":
        with sys.modules["torch"].no_grad():
            return x.fill_(matching(x, value))
    if library_of(x) == "jax":
        return module_of(x).full_like(x, value)
    x[...] = value
    return x


def _aligned(mask: Any, x: Any, name: str) -> Any:
    """Return a mask with as many dimensions as the array, in its library."""
    mask = matching(x, mask)
    if dtype_name(mask) != "bool":
        raise RuntimeError(f"{name}: the mask must be an array of bool, but has dtype {dtype_name(mask)}")
    shape = tuple(mask.shape)
    if len(shape) > len(x.shape) or any(a not in (1, b) for a, b in zip(shape, x.shape, strict=False)):
        raise RuntimeError(
            f"{name}: the mask of shape {shape} does not fit an array of shape {tuple(x.shape)}: "
            "its dimensions must be the first ones of that"
        )
    return mask.reshape((*shape, *(1,) * (len(x.shape) - len(shape))))
