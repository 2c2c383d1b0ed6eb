"""Shapes and batch sizes."""

from __future__ import annotations

import math
import operator
from typing import Any

__all__ = ["Size", "as_size"]


class Size(tuple[int, ...]):
    """A shape: a tuple of integers.

    Examples
    --------
    >>> Size((2, 3)).numel(), Size((2, 3)) == (2, 3)
    (6, True)
    """

    __slots__ = ()

    def numel(self) -> int:
        """Return the number of elements of an array of this shape."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"Size({list(self)})"


def as_size(value: Any) -> Size:
    """Return a shape given as a sequence, an integer or nothing."""
    if value is None:
        return Size()
    if isinstance(value, int):
        return Size((int(value),))
    try:
        if not isinstance(value, (str, bytes)):
            return Size(map(operator.index, value))
    except TypeError:
        if hasattr(value, "__index__"):  # a number of NumPy's
            return Size((operator.index(value),))
    raise TypeError(f"a batch size is a sequence of integers, got {value!r}")
