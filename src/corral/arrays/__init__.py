"""The only place that knows NumPy's arrays from torch's, JAX's and CuPy's."""

from __future__ import annotations

from corral.arrays.libraries import (
    Library,
    convert,
    copy_into,
    dtype_name,
    is_array,
    library_of,
    namespace_of,
    to_numpy,
)

__all__ = [
    "Library",
    "convert",
    "copy_into",
    "dtype_name",
    "is_array",
    "library_of",
    "namespace_of",
    "to_numpy",
]
