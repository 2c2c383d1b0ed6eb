"""See the bytes of an array as elements of another dtype."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from corral.arrays.libraries import dtype_name, library_of

__all__ = ["dtype_in", "is_dtype", "view_dtype"]


def is_dtype(value: Any) -> bool:
    """Whether a value is a library's dtype, or one of the types that NumPy takes for it.

    Examples
    --------
    >>> is_dtype(np.float32), is_dtype(np.dtype("int8")), is_dtype(3), is_dtype("float32")
    (True, True, False, False)
    """
    if isinstance(value, type):
        return issubclass(value, np.generic) or value in (bool, int, float, complex)
    return isinstance(value, np.dtype) or type(value).__name__ == "dtype"


def dtype_in(dtype: Any, library: str) -> Any:
    """Return a dtype, or the name of one, as that of a library.

    Examples
    --------
    >>> dtype_in("float32", "numpy")
    dtype('float32')
    """
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, (type, np.dtype)):
        name = dtype_name(np.empty(0, dtype))
    else:
        name = str(dtype).rpartition(".")[2]
    if library == "torch":
        return getattr(sys.modules["torch"], name)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def view_dtype(x: Any, dtype: Any) -> Any:
    """Return a view of an array as another dtype: its last dimension holds as many bytes as before.

    Raises
    ------
    RuntimeError
        If the last dimension does not hold a whole number of elements, or there is none.

    Examples
    --------
    >>> view_dtype(np.zeros((2, 4), "int16"), np.int64).shape
    (2, 1)
    """
    library = library_of(x)
    kind = dtype_in(dtype, library)
    if library == "torch":
        return x.view(kind)
    try:
        return x.view(kind)
    except ValueError as error:
        raise RuntimeError(
            f"an array of {dtype_name(x)} and shape {list(x.shape)} cannot be seen as {kind}: {error}"
        ) from error
