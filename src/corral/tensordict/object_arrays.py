"""NumPy arrays of Python objects, where a dimension of stride 0 tells that its elements share one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from corral.arrays.libraries import is_array, to_numpy

__all__ = ["Cells", "cells", "copied", "equal", "filled", "is_one", "joined", "nested_list", "partly_filled", "stacked"]

Cells: TypeAlias = np.ndarray[Any, Any]


def filled(value: Any, shape: Sequence[int]) -> Cells:
    """Return an array of one object, repeated without a copy."""
    one = np.empty(1, object)
    one[0] = value
    return np.broadcast_to(one.reshape(()), tuple(shape))


def partly_filled(value: Any, shape: Sequence[int], own: Sequence[int]) -> Cells:
    """Return an array of one object, of which the elements along some dimensions do not share it."""
    one = np.empty([length if d in own else 1 for d, length in enumerate(shape)], object)
    for place in np.ndindex(one.shape):
        one[place] = value
    return _repeated(one, [d for d in range(len(shape)) if d not in own], tuple(shape))


def cells(values: list[Any], depth: int | None = None) -> Cells:
    """Return the objects of nested lists: a dimension for each level at which all lists have one length.

    Examples
    --------
    >>> cells([["a", "b"], ["c", "d"]]).shape, cells([["a", "b"], ["c"]]).shape, cells([["a"], ["b"]], 1).shape
    ((2, 2), (2,), (2,))
    """
    shape: list[int] = []
    level: list[Any] = [values]
    while (depth is None or len(shape) < depth) and level and all(isinstance(each, list) for each in level):
        lengths = {len(each) for each in level}
        if len(lengths) > 1:
            break
        shape.append(lengths.pop())
        level = [item for each in level for item in each]
    flat = np.empty(len(level), object)
    for i, value in enumerate(level):
        flat[i] = value
    return flat.reshape(shape)


def nested_list(objects: Cells) -> Any:
    """Return the objects as nested lists; the object itself of an array without dimensions."""
    if not objects.ndim:
        return objects[()]
    if objects.ndim == 1:
        return list(objects)
    return [nested_list(row) for row in objects]


def is_one(objects: Cells) -> bool:
    """Whether all elements share one object by the way they are stored."""
    return objects.size > 0 and not any(objects.strides)


def _shared(arrays: Sequence[Cells]) -> list[int]:
    return [d for d in range(arrays[0].ndim) if all(each.strides[d] == 0 and each.shape[d] for each in arrays)]


def _reduced(array: Cells, shared: Sequence[int]) -> Cells:
    return array[(*(slice(0, 1) if d in shared else slice(None) for d in range(array.ndim)), ...)]


def _repeated(array: Cells, shared: Sequence[int], shape: tuple[int, ...]) -> Cells:
    """Repeat an array along shared dimensions; unlike NumPy's broadcasting, others of length 1 keep their stride."""
    strides = [0 if d in shared else step for d, step in enumerate(array.strides)]
    return np.lib.stride_tricks.as_strided(array, shape, strides)


def stacked(arrays: Sequence[Cells], dim: int) -> Cells:
    """Return arrays stacked along a new dimension; what all of them share stays shared."""
    shapes = [each.shape for each in arrays]
    if len({*shapes}) > 1:
        raise RuntimeError(f"stacking objects requires batches of one size, got {[list(shape) for shape in shapes]}")
    shared = _shared(arrays)
    result = np.stack([_reduced(each, shared) for each in arrays], dim)
    return _repeated(result, [d + (d >= dim) for d in shared], (*shapes[0][:dim], len(arrays), *shapes[0][dim:]))


def joined(arrays: Sequence[Cells], dim: int) -> Cells:
    """Return arrays joined along one of their dimensions; what all of them share along others stays shared."""
    shared = [d for d in _shared(arrays) if d != dim]
    result = np.concatenate([_reduced(each, shared) for each in arrays], dim)
    shape = arrays[0].shape
    return _repeated(result, shared, (*shape[:dim], result.shape[dim], *shape[dim + 1 :]))


def copied(array: Cells) -> Cells:
    """Return a copy in which the same elements share their objects."""
    shared = _shared([array])
    return _repeated(_reduced(array, shared).copy(), shared, array.shape)


def equal(one: Any, other: Any) -> bool:
    """Whether two objects are equal; arrays, if all their elements are."""
    if one is other:
        return True
    result = one == other
    if isinstance(result, (bool, np.bool_)):
        return bool(result)
    if is_array(result):
        return bool(np.all(to_numpy(result)))
    return bool(result)
