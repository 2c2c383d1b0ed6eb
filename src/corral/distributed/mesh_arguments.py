"""Reading and checking what a mesh is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from corral.arrays.libraries import is_array, to_numpy

__all__ = ["Override", "overrides_of", "ranks_of", "without_index"]

Override: TypeAlias = tuple[str | None, Any]
"""The name of a backend and its options, for the groups along one dimension; each may be ``None``."""


def ranks_of(mesh: Any) -> np.ndarray[Any, Any]:
    """Return a mesh's ranks as an array, checked."""
    if mesh is None:
        raise TypeError("DeviceMesh: the mesh argument is required: the global ranks, such as [[0, 1], [2, 3]]")
    ranks = to_numpy(mesh) if is_array(mesh) else np.asarray(mesh)
    if ranks.ndim == 0 or ranks.size == 0:
        raise ValueError(f"DeviceMesh: mesh must have at least one dimension and one rank, got {mesh!r}")
    if ranks.dtype.kind not in "iu":
        raise TypeError(f"DeviceMesh: mesh must hold global ranks, which are integers, got {ranks.dtype}")
    if len(np.unique(ranks)) != ranks.size:
        raise ValueError(f"DeviceMesh: mesh must not have a rank twice, got {ranks.tolist()}")
    return ranks


def overrides_of(given: Mapping[int | str, Any], ndim: int, names: tuple[str, ...] | None) -> list[Override]:
    """Return what is overridden for each dimension.

    Parameters
    ----------
    given
        By index or name of a dimension: a backend's name, options, or a pair of both.
    ndim, names
        Of the mesh.
    """
    left = dict(given)
    overrides: list[Override] = []
    for dim in range(ndim):
        name = names[dim] if names else None
        if dim in left and name in left:
            raise RuntimeError(f"Found redundant dim index {dim} and name {name} in backend_override")
        value = left.pop(dim, None)
        if name is not None and name in left:
            value = left.pop(name)
        if isinstance(value, tuple):
            backend, options = value
            overrides.append((backend, options))
        else:
            overrides.append((value, None) if isinstance(value, str) else (None, value))
    if left:
        raise RuntimeError(
            f"Found invalid keys in backend_override: got {list(left)}, "
            f"expected integers in range [0, {ndim}) or one of {names or ()}"
        )
    return overrides


def without_index(device_type: str) -> str:
    """Return a device type, which must be a word without an index."""
    if device_type and not device_type.isalpha():
        raise RuntimeError(
            f"Device type with index is not supported but got {device_type!r}: "
            "pass the type alone, such as 'cuda'; each rank chooses its own device"
        )
    return device_type
