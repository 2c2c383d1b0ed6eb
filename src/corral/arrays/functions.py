"""Functions of one array, element by element, with torch's names and meaning in every library."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from corral.arrays.libraries import library_of
from corral.arrays.storing import as_result, module_of, store

__all__ = ["FUNCTIONS", "PREDICATES", "unary", "unary_"]

_SAME_NAME = ("abs", "ceil", "floor", "round", "sign", "trunc")
_FLOATING = {
    **{name: name for name in ("cos", "cosh", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt")},
    "tan": "tan",
    "tanh": "tanh",
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
}
_SPECIAL = {"erf": "erf", "erfc": "erfc", "lgamma": "gammaln"}  # with their names in scipy.special

PREDICATES = ("isfinite", "isnan", "isneginf", "isposinf", "isreal")
"""Names of the functions whose results are booleans."""

FUNCTIONS = tuple(sorted((*_SAME_NAME, *_FLOATING, *_SPECIAL, "frac", "neg", "reciprocal", "sigmoid")))
"""Names of the functions whose results are numbers."""


def unary(name: str, x: Any) -> Any:
    """Return a function of every element, one of `FUNCTIONS` or `PREDICATES`.

    Integers become floats where the function's values are not integers: torch's of its default dtype, NumPy's float64.

    Examples
    --------
    >>> unary("sigmoid", np.array([0.0, 1000.0])), unary("reciprocal", np.array([1, 4]))
    (array([0.5, 1. ]), array([1.  , 0.25]))
    >>> unary("lgamma", np.array([0.0, 1.0, 5.0])).round(3)
    array([  inf, 0.   , 3.178])
    """
    if library_of(x) == "torch":
        return getattr(sys.modules["torch"], name)(x)
    module = module_of(x)
    if name in PREDICATES:
        return as_result(getattr(module, name)(x))
    if name in _SAME_NAME:
        # Before NumPy 2.1, integers rounded are floats; booleans have no sign in NumPy.
        if (x.dtype.kind in "iub" and name not in ("abs", "sign")) or x.dtype.kind == "b":
            return x.copy()
        result = getattr(module, name)(x)
        if name == "sign" and x.dtype.kind != "i":
            result = module.where(x != x, 0, result).astype(x.dtype)  # what torch takes the sign of NaN for
        return as_result(result)
    if name == "neg":
        return as_result(-x)
    if name == "frac":
        return as_result(x - module.trunc(x))
    x = _floating(x)
    if name in _FLOATING:
        return as_result(getattr(module, _FLOATING[name])(x))
    if name in _SPECIAL:
        return _special(name, x)
    return as_result(_COMPOSED[name](module, x))


def unary_(name: str, x: Any, label: str = "the array") -> Any:
    """Set every element to a function of it, and return the array; return a new one where it is immutable.

    Raises
    ------
    RuntimeError
        If the function's values do not fit the dtype.

    Examples
    --------
    >>> a = np.array([1.0, 4.0])
    >>> unary_("sqrt", a) is a, a
    (True, array([1., 2.]))
    """
    if library_of(x) == "torch":
        return getattr(x, f"{name}_")()
    return store(x, unary(name, x), label)


def _floating(x: Any) -> Any:
    """Return integers as floats of enough precision: NumPy takes float16 for small ones."""
    return x.astype(np.float64) if library_of(x) != "jax" and x.dtype.kind in "iub" else x


def _special(name: str, x: Any) -> Any:
    library = library_of(x)
    if library == "numpy":
        result: Any = _SCALAR[name](x)
        return result.astype(x.dtype, copy=False)
    special = importlib.import_module("jax.scipy.special" if library == "jax" else "cupyx.scipy.special")
    return getattr(special, _SPECIAL[name])(x)


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # at zero and the negative integers, and beyond all floats
        return math.inf


def _sigmoid(module: Any, x: Any) -> Any:
    if x.dtype.kind == "c":
        return 1 / (1 + module.exp(-x))
    small = module.exp(-module.abs(x))
    return module.where(x < 0, small, 1) / (1 + small)


_SCALAR: dict[str, Callable[[Any], Any]] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "lgamma": np.vectorize(_lgamma, otypes=[np.float64]),
}
_COMPOSED: dict[str, Callable[[Any, Any], Any]] = {
    "reciprocal": lambda module, x: 1 / x,
    "sigmoid": _sigmoid,
}
