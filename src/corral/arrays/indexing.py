"""Index arrays of every library by torch's rules.

They differ from NumPy's in three places: an integer selects before the arrays of an index are looked at (so it
never moves a dimension), the result is always an array, and steps are positive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from corral.arrays.libraries import convert, copy_into, is_traced, library_of, to_numpy

__all__ = ["assign", "is_advanced", "is_mask", "normalize", "take", "taker"]

_PLAIN = (int, slice, type(None), type(...))


def normalize(index: Any, ndim: int) -> tuple[Any, ...]:
    """Return an index as a tuple of integers, slices, ``None`` and index arrays, its ``...`` replaced.

    Examples
    --------
    >>> normalize((..., 0), 3)
    (slice(None, None, None), slice(None, None, None), 0)
    """
    items = index if isinstance(index, tuple) else (index,)
    parts: list[Any] = []
    used, gap = 0, -1
    for item in items:
        kind = type(item)
        if kind is slice:
            if item.step is not None and item.step <= 0:
                raise ValueError("step must be greater than zero")
            used += 1
        elif item is None:
            pass
        elif item is Ellipsis:
            if gap >= 0:
                raise IndexError("an index can only have a single ellipsis ('...')")
            gap = len(parts)
            continue
        elif kind is int:
            used += 1
        else:
            item = _array(item)
            if type(item) is int:
                used += 1
            else:
                used += item.ndim if is_mask(item) else 1
        parts.append(item)
    if used > ndim:
        raise IndexError(f"too many indices for tensor of dimension {ndim}")
    if gap >= 0:
        parts[gap:gap] = [slice(None)] * (ndim - used)
    return tuple(parts)


def _array(item: Any) -> Any:
    if isinstance(item, (list, tuple, range)):
        item = np.asarray(item)
        if item.size == 0:
            item = item.astype(np.int64)
    elif isinstance(item, (bool, np.bool_)):
        item = np.asarray(item)
    elif hasattr(item, "__index__") and not getattr(item, "ndim", 0) and not is_mask(item):
        return item if is_traced(item) else int(item)
    elif library_of(item) == "other":
        raise IndexError(f"cannot index with {item!r}: use integers, slices, None, ..., masks or integer arrays")
    kind = item.dtype.kind if isinstance(item, np.ndarray) else "i"
    if kind not in "iub":
        raise IndexError(f"arrays used as indices must be of integer or boolean type, not {item.dtype}")
    return item


def is_mask(item: Any) -> bool:
    """Whether part of an index is an array of booleans."""
    dtype = getattr(item, "dtype", None)
    return dtype is not None and (dtype == np.bool_ if isinstance(dtype, np.dtype) else str(dtype).endswith("bool"))


def is_advanced(index: tuple[Any, ...]) -> bool:
    """Whether a normalized index has index arrays, so that its result is a copy."""
    return any(not isinstance(item, _PLAIN) for item in index)


def take(x: Any, index: tuple[Any, ...]) -> Any:
    """Return ``x[index]`` for a normalized index: a view unless the index has arrays.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(24).reshape(2, 3, 4)
    >>> take(x, normalize((0, slice(None), [1, 1, 2]), 3)).shape
    (3, 3)
    """
    library = library_of(x)
    if library == "torch":
        return x[_torch_index(index, x)]
    if not is_advanced(index):
        return x[(*index, ...)]
    basic, advanced = _two_steps(index)
    return x[(*basic, ...)][(*_library_index(advanced, library), ...)]


def taker(index: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return a function that takes ``x[index]`` of many arrays, and looks at the index only once.

    Examples
    --------
    >>> first = taker((0,))
    >>> first(np.arange(3)), first(np.ones((2, 2)))
    (array(0), array([1., 1.]))
    """
    advanced = is_advanced(index)
    full = (*index, ...)
    plain = index[0] if len(index) == 1 else index
    converted: dict[Any, Any] = {}  # the index on each device: moving it there costs more than using it

    def function(x: Any) -> Any:
        if type(x) is np.ndarray:
            return take(x, index) if advanced else x[full]
        if library_of(x) != "torch":
            return take(x, index)
        if not advanced:
            return x[plain]
        device = x.device
        if device not in converted:
            moved = _torch_index(index, x)
            converted[device] = moved[0] if len(moved) == 1 else moved
        return x[converted[device]]

    return function


def assign(x: Any, index: tuple[Any, ...], value: Any) -> Any:
    """Write ``x[index] = value`` for a normalized index; return the array, a new one if `x` is immutable."""
    library = library_of(x)
    if library == "torch":
        torch = sys.modules["torch"]
        if library_of(value) == "other" and not isinstance(value, (int, float, complex)):
            value = np.asarray(value)
        if not isinstance(value, (int, float, complex)):
            value = convert(value, "torch").to(x.device, x.dtype)
        with torch.no_grad():
            x[_torch_index(index, x)] = value
        return x
    if library == "jax":
        return x.at[_library_index(index, library)].set(convert(value, "jax"))
    if not is_advanced(index):
        copy_into(x[(*index, ...)], value)
        return x
    basic, advanced = _two_steps(index)
    target = x[(*basic, ...)]
    if library == "numpy":
        if library_of(value) != "numpy":
            value = to_numpy(value)
        value = value.astype(x.dtype, copy=False)
    target[(*_library_index(advanced, library), ...)] = value
    return x


def _two_steps(index: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split an index into one of integers, slices and ``None``, and one of arrays into the result of that."""
    basic: list[Any] = []
    advanced: list[Any] = []
    for item in index:
        if type(item) is int:
            basic.append(item)
        elif isinstance(item, _PLAIN):
            basic.append(item)
            advanced.append(slice(None))
        else:
            basic.extend([slice(None)] * (item.ndim if is_mask(item) else 1))
            advanced.append(item)
            if is_mask(item) and item.ndim == 0:
                basic.append(None)
                advanced[-1] = item[None]
    return tuple(basic), tuple(advanced)


def _library_index(index: tuple[Any, ...], library: str) -> tuple[Any, ...]:
    if library == "numpy":
        return tuple(item if isinstance(item, _PLAIN) else to_numpy(item) for item in index)
    return tuple(item if isinstance(item, _PLAIN) else convert(item, library) for item in index)


def _torch_index(index: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
    return tuple(item if isinstance(item, _PLAIN) else convert(item, "torch", x.device) for item in index)
