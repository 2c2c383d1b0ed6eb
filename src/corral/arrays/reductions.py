"""Sums, extremes and other values of many elements, with torch's names and meaning in every library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from corral.arrays.arithmetic import matching
from corral.arrays.libraries import library_of, to_numpy
from corral.arrays.operations import cast
from corral.arrays.storing import as_result, module_of

__all__ = ["Extremes", "cumulate", "extreme", "logsumexp", "norm", "quantile", "reduce", "softmax"]

Dims: TypeAlias = int | tuple[int, ...] | None


class Extremes(NamedTuple):
    """The smallest or largest elements, and where they are: what torch's `min` and `max` return."""

    values: Any
    indices: Any


def reduce(name: str, x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None, correction: int = 1) -> Any:
    """Return a value of all elements, or of those along some dimensions.

    Parameters
    ----------
    name : str
        ``"all"``, ``"amax"``, ``"amin"``, ``"any"``, ``"mean"``, ``"nanmean"``, ``"nansum"``, ``"prod"``, ``"std"``,
        ``"sum"`` or ``"var"``.
    x : array
        The array.
    dim : int or tuple of int, optional
        Dimensions to reduce; all by default.
    keepdim : bool
        Keep those dimensions, of length 1.
    dtype : optional
        What to cast the elements to first.
    correction : int
        How much less than the number of elements ``"std"`` and ``"var"`` divide by.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [3.0, np.nan]])
    >>> reduce("nansum", x), reduce("sum", x, 0), reduce("var", x[0], 0, keepdim=True)
    (array(6.), array([ 4., nan]), array([0.5]))
    """
    if dtype is not None:
        x = cast(x, dtype)
    if library_of(x) == "torch":
        return _torch(name, x, dim, keepdim, correction)
    module = module_of(x)
    options = {"ddof": correction} if name in ("std", "var") else {}
    return as_result(getattr(module, name)(x, axis=dim, keepdims=keepdim, **options))


def _torch(name: str, x: Any, dim: Dims, keepdim: bool, correction: int) -> Any:
    function = getattr(sys.modules["torch"], name)
    if name in ("std", "var"):
        return function(x, dim=dim, correction=correction, keepdim=keepdim)
    if name in ("amin", "amax"):
        return function(x, dim=() if dim is None else dim, keepdim=keepdim)
    if name in ("prod", "all", "any") and dim is None:
        result = function(x)
        return result.reshape((1,) * x.ndim) if keepdim else result
    return function(x, dim=dim, keepdim=keepdim)


def extreme(name: str, x: Any, dim: int, keepdim: bool = False) -> Extremes:
    """Return the smallest (``"min"``) or largest (``"max"``) elements along one dimension, and their indices there.

    Examples
    --------
    >>> import numpy as np
    >>> extreme("max", np.array([[1, 7], [3, 4]]), 1)
    Extremes(values=array([7, 4]), indices=array([1, 1]))
    """
    if library_of(x) == "torch":
        return Extremes(*getattr(sys.modules["torch"], name)(x, dim, keepdim))
    module = module_of(x)
    indices = getattr(module, f"arg{name}")(x, axis=dim, keepdims=True)
    values = module.take_along_axis(x, indices, axis=dim)
    if not keepdim:
        values, indices = values.squeeze(dim), indices.squeeze(dim)
    return Extremes(as_result(values), as_result(indices))


def cumulate(name: str, x: Any, dim: int) -> Extremes:
    """Return the smallest (``"cummin"``) or largest (``"cummax"``) elements up to each one, and their indices.

    Of equal elements, the last one counts, as in torch; nothing is larger or smaller than NaN.

    Examples
    --------
    >>> import numpy as np
    >>> cumulate("cummax", np.array([2.0, 1.0, 2.0, np.nan, 3.0]), 0)
    Extremes(values=array([ 2.,  2.,  2., nan, nan]), indices=array([0, 0, 2, 3, 3]))
    """
    if library_of(x) == "torch":
        return Extremes(*getattr(sys.modules["torch"], name)(x, dim))
    module = module_of(x)
    smaller = name == "cummin"
    if x.ndim == 0:
        return Extremes(x.copy(), module.zeros_like(x, dtype="int64"))
    values = (module.minimum if smaller else module.maximum).accumulate(x, axis=dim)
    places = module.arange(x.shape[dim]).reshape((-1,) + (1,) * (x.ndim - 1 - dim % x.ndim))
    new = (x == values) | (x != x)  # NaN alone is not equal to itself
    return Extremes(values, module.maximum.accumulate(module.where(new, places, 0), axis=dim))


def quantile(x: Any, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear") -> Any:
    """Return the values below which a share `q` of the elements is; a vector `q` gives the result a first dimension.

    Examples
    --------
    >>> import numpy as np
    >>> quantile(np.arange(5.0), np.array([0.25, 0.5]))
    array([1., 2.])
    """
    if library_of(x) == "torch":
        torch = sys.modules["torch"]
        q = q if isinstance(q, (int, float)) else matching(x, q).to(x.dtype)
        return torch.quantile(x, q, dim=dim, keepdim=keepdim, interpolation=interpolation)
    module = module_of(x)
    q = q if isinstance(q, (int, float)) else module.asarray(to_numpy(q))
    return as_result(module.quantile(x, q, axis=dim, keepdims=keepdim, method=interpolation))


def logsumexp(x: Any, dim: tuple[int, ...], keepdim: bool = False) -> Any:
    """Return the logarithms of the sums of the exponentials along some dimensions, without overflow.

    Examples
    --------
    >>> import numpy as np
    >>> logsumexp(np.array([1000.0, 1000.0]), (0,)).round(3)
    np.float64(1000.693)
    """
    if library_of(x) == "torch":
        return sys.modules["torch"].logsumexp(x, dim, keepdim)
    module = module_of(x)
    top = module.max(x, axis=dim, keepdims=True) if x.size else module.zeros(())
    top = module.where(module.isfinite(top), top, 0)
    total = module.sum(module.exp(x - top), axis=dim, keepdims=True)
    result = _quiet(module.log, total) + top
    return as_result(result if keepdim else result.squeeze(dim))


def softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Return the exponentials divided by their sums along one dimension, without overflow.

    Examples
    --------
    >>> import numpy as np
    >>> softmax(np.array([1000.0, 1000.0]), 0)
    array([0.5, 0.5])
    """
    if library_of(x) == "torch":
        x = x if dtype is None else cast(x, dtype)
        return sys.modules["torch"].softmax(x, dim)
    x = x if dtype is None else cast(x, dtype)
    module = module_of(x)
    if not x.size:
        return module.exp(x)
    powers = module.exp(x - module.max(x, axis=dim, keepdims=True))
    return powers / module.sum(powers, axis=dim, keepdims=True)


def norm(x: Any, dtype: Any = None) -> Any:
    """Return the square root of the sum of the squares of all elements.

    Examples
    --------
    >>> import numpy as np
    >>> norm(np.array([[3.0], [4.0]]))
    array(5.)
    """
    if dtype is not None:
        x = cast(x, dtype)
    if library_of(x) == "torch":
        return sys.modules["torch"].linalg.vector_norm(x)
    return as_result(module_of(x).linalg.norm(x.reshape(-1)))


def _quiet(function: Callable[[Any], Any], x: Any) -> Any:
    """Call a function without NumPy's warnings of infinite results, which are right here."""
    import numpy as np

    with np.errstate(divide="ignore"):
        return function(x)
