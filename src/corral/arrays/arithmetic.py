"""Functions of two or three arrays, element by element, with torch's names and meaning in every library.

Every function takes an array and its further operands: numbers, or arrays that broadcast with it, whatever their
library. The result is in the library of the first.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from corral.arrays.libraries import convert, library_of
from corral.arrays.storing import as_result, module_of, store

__all__ = ["SCALARS", "combine", "combine_", "matching", "number_like", "pairwise"]

SCALARS = (bool, int, float, complex)
"""Types of the numbers that operands can be."""


def matching(x: Any, other: Any) -> Any:
    """Return an operand in the library of an array, and where that lies; numbers stay what they are."""
    library = library_of(x)
    if isinstance(other, SCALARS) or library_of(other) == library:
        return other
    if library == "torch":
        return convert(other, "torch", x.device)
    return convert(other, library)


def number_like(x: Any, number: Any) -> Any:
    """Return a number as an array of no dimensions, of the dtype that it has together with another array.

    Examples
    --------
    >>> import numpy as np
    >>> number_like(np.zeros(2, "float32"), 3).dtype
    dtype('float32')
    """
    if library_of(x) == "torch":
        torch = sys.modules["torch"]
        return torch.tensor(number, dtype=torch.result_type(x, number), device=x.device)
    return module_of(x).asarray(number, dtype=(x.reshape(-1)[:0] + number).dtype)


def combine(name: str, x: Any, *others: Any, **options: Any) -> Any:
    """Return a function of corresponding elements.

    Parameters
    ----------
    name : str
        ``"add"``, ``"addcdiv"``, ``"addcmul"``, ``"bitwise_and"``, ``"clamp"``, ``"clamp_max"``, ``"clamp_min"``,
        ``"div"``, ``"lerp"``, ``"logical_and"``, ``"maximum"``, ``"minimum"``, ``"mod"``, ``"mul"``, ``"pow"``,
        ``"rsub"`` or ``"sub"``.
    x, *others
        The operands.
    **options
        ``alpha=`` or ``value=``, the factor that torch's function of that name has.

    Examples
    --------
    >>> import numpy as np
    >>> combine("lerp", np.array([0.0, 4.0]), np.array([1.0, 8.0]), 0.25)
    array([0.25, 5.  ])
    >>> combine("clamp", np.arange(5), 1, 3), combine("sub", np.arange(2), 1, alpha=3)
    (array([1, 1, 2, 3, 3]), array([-3, -2]))
    """
    others = tuple(matching(x, other) for other in others)
    if library_of(x) == "torch":
        return _torch(name, x, others, options)
    return as_result(_FUNCTIONS[name](x, *others, **options))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "bitwise_and": operator.and_,
}
_WITH_OPERATORS = frozenset({"numpy", "torch"})


def pairwise(name: str) -> Callable[[Any, Any], Any]:
    """Return `combine` of two arrays as a function, which is quick where they are of one kind.

    Examples
    --------
    >>> pairwise("add")(np.array(1), np.array(2))
    array(3)
    """
    quick = _OPERATORS.get(name)

    def function(x: Any, other: Any) -> Any:
        if quick is None or type(x) is not type(other) or library_of(x) not in _WITH_OPERATORS:
            return combine(name, x, other)
        result = quick(x, other)
        return np.asarray(result) if isinstance(result, np.generic) else result

    return function


def combine_(name: str, x: Any, *others: Any, label: str = "the array", **options: Any) -> Any:
    """Write a function of corresponding elements into the first array and return that; a new one if it is immutable.

    Raises
    ------
    RuntimeError
        If the values do not fit its shape or dtype.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([1.0, 4.0])
    >>> combine_("add", a, 1) is a, a
    (True, array([2., 5.]))
    """
    if library_of(x) != "torch":
        return store(x, combine(name, x, *others, **options), label)
    others = tuple(matching(x, other) for other in others)
    others = _tensors(x, others) if name in _TENSORS_ONLY else others
    return getattr(x, f"{_TORCH_NAMES.get(name, name)}_")(*others, **options)


_TORCH_NAMES = {"maximum": "clamp_min", "minimum": "clamp_max", "mod": "remainder"}
# Functions of torch that take no number as an operand, where those of other libraries do; how many may be numbers.
_TENSORS_ONLY = {"addcdiv": 2, "addcmul": 2, "lerp": 1, "logical_and": 1}


def _torch(name: str, x: Any, others: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if name == "rsub":
        alpha = options.get("alpha", 1)
        return x.neg().add(others[0]) if alpha == 1 else x.mul(-alpha).add(others[0])
    if name in _TENSORS_ONLY:
        others = _tensors(x, others[: _TENSORS_ONLY[name]]) + others[_TENSORS_ONLY[name] :]
    elif name == "clamp" and any(library_of(bound) == "torch" and bound.ndim for bound in others):
        others = _tensors(x, others)
    return getattr(sys.modules["torch"], _TORCH_NAMES.get(name, name))(x, *others, **options)


def _tensors(x: Any, others: tuple[Any, ...]) -> tuple[Any, ...]:
    torch = sys.modules["torch"]
    return tuple(torch.as_tensor(o, device=x.device) if isinstance(o, SCALARS) else o for o in others)


def _lerp(x: Any, end: Any, weight: Any) -> Any:
    # From the nearer end, as torch does, so that weights of 0 and 1 give the ends themselves.
    return module_of(x).where(abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1 - weight))


def _clamp(x: Any, low: Any, high: Any) -> Any:
    module = module_of(x)
    return module.minimum(module.maximum(x, low), high)


def _mod(x: Any, other: Any) -> Any:
    if x.dtype.kind not in "iub" or library_of(x) != "numpy":
        return x % other
    with np.errstate(divide="raise"):  # torch raises, too: integers have no value that says undefined
        return x % other


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, other, alpha=1: x + (other if alpha == 1 else other * alpha),
    "addcdiv": lambda x, one, two, value=1: x + value * one / two,
    "addcmul": lambda x, one, two, value=1: x + value * one * two,
    "bitwise_and": lambda x, other: x & other,
    "clamp": _clamp,
    "clamp_max": lambda x, other: module_of(x).minimum(x, other),
    "clamp_min": lambda x, other: module_of(x).maximum(x, other),
    "div": lambda x, other: x / other,
    "lerp": _lerp,
    "logical_and": lambda x, other: module_of(x).logical_and(x, other),
    "maximum": lambda x, other: module_of(x).maximum(x, other),
    "minimum": lambda x, other: module_of(x).minimum(x, other),
    "mod": _mod,
    "mul": lambda x, other: x * other,
    "pow": lambda x, other: x**other,
    "rsub": lambda x, other, alpha=1: other - (x if alpha == 1 else x * alpha),
    "sub": lambda x, other, alpha=1: x - (other if alpha == 1 else other * alpha),
}
