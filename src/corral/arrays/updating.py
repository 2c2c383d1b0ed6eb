"""Buffers of arrays that an operation first reads and then writes, as a reduction in place does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from corral.arrays.buffers import readable, writable

__all__ = ["updatable"]


def updatable(array: Any, name: str = "tensor") -> tuple[Any, Callable[[], None] | None]:
    """Return a buffer of an array's values to be changed in place, and what to call once it has been.

    Parameters, results and errors are those of `corral.arrays.buffers.writable`.

    Examples
    --------
    >>> a = np.arange(3, dtype=">i4")
    >>> buffer, finish = updatable(a)
    >>> buffer += buffer
    >>> finish()
    >>> a.tolist()
    [0, 2, 4]
    """
    buffer, finish = writable(array, name)
    if finish is None:
        return buffer, None
    # Memory that stands in for the array's, in the same form as that of its values.
    values = readable(array, name)
    target: Any = getattr(buffer, "exporter", buffer)
    values = getattr(values, "exporter", values)
    if isinstance(target, np.ndarray):
        target[...] = values
    else:
        with sys.modules["torch"].no_grad():
            target.copy_(values)
    return buffer, finish
