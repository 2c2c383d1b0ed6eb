"""Parts of datasets in HDF5 files and zarr stores: what an index asks for is read or written, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from corral.arrays.indexing import assign, normalize, take
from corral.arrays.libraries import to_numpy
from corral.tensordict import zarr_stores

__all__ = ["is_array", "is_group", "library", "read", "tell_names", "told_names", "write"]

NAMES = "corral_names"
"""The attribute of a group that keeps the names of dimensions, in JSON. tensordict neither writes nor reads it."""


def library() -> Any:
    """Return h5py, or say how to get it."""
    try:
        import h5py  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ModuleNotFoundError(
            "TensorDicts in HDF5 files need h5py, which is not installed: pip install 'corral[hdf5]'"
        ) from error
    return h5py


def is_group(node: Any) -> bool:
    """Whether an entry of a file is a group, which stands for a TensorDict."""
    return isinstance(node, zarr_stores.Group) or (
        not isinstance(node, zarr_stores.Array) and isinstance(node, library().Group)
    )


def is_array(node: Any) -> bool:
    """Whether an entry of a file is a dataset of numbers."""
    if isinstance(node, zarr_stores.Array):
        return node.is_array
    return node.dtype.kind in "biufc" and not library().check_opaque_dtype(node.dtype)


def told_names(group: Any) -> list[Any] | None:
    """Return the names of the dimensions of the TensorDict that a group stands for, if they are written there."""
    found: Any
    if isinstance(group, zarr_stores.Group):
        found = group.facts.get("names")
    else:
        try:
            found = json.loads(group.attrs.get(NAMES, "null"))
        except (TypeError, ValueError):  # an attribute of another program
            return None
    return found if isinstance(found, list) else None


def tell_names(group: Any, names: Sequence[Any] | None) -> None:
    """Write the names of dimensions to a group of an HDF5 file, if they are others than it has."""
    if names is None:
        group.attrs.pop(NAMES, None)
    elif told_names(group) != list(names):
        group.attrs[NAMES] = json.dumps(list(names))


def read(node: Any, index: tuple[Any, ...] | None = None) -> np.ndarray[Any, Any]:
    """Return the values of a dataset, or the part of them that a normalized index asks for.

    Rows that an array of integers or a mask chooses are read in runs of rows that lie behind each other.
    """
    if index is None:
        return np.asarray(node[...])
    box, local = _box(node.shape, index)
    return np.asarray(take(box.read(node), local))


def write(node: Any, value: Any, index: tuple[Any, ...] | None = None) -> None:
    """Write a dataset, or the part of it that a normalized index names, casting and broadcasting."""
    array = to_numpy(value)
    with np.errstate(invalid="ignore"):
        array = array.astype(node.dtype, copy=False)
    if index is None:
        node[...] = np.broadcast_to(array, node.shape)
        return
    box, local = _box(node.shape, index)
    whole = all(item is None or isinstance(item, (int, slice)) for item in local)
    block = np.empty(box.shape(node), node.dtype) if whole else box.read(node)
    assign(block, local, array)
    box.write(node, block)


class _Box:
    """The smallest block of a dataset that an index needs: slices, and for one dimension runs of rows."""

    def __init__(self, slices: list[slice], at: int | None, runs: Sequence[tuple[int, int]]) -> None:
        self.slices = slices
        self.at = at
        self.runs = runs

    def _parts(self) -> list[tuple[slice, ...]]:
        if self.at is None:
            return [tuple(self.slices)]
        before, after = self.slices[: self.at], self.slices[self.at + 1 :]
        return [(*before, slice(*run), *after) for run in self.runs]

    def shape(self, node: Any) -> tuple[int, ...]:
        lengths = [len(range(*part.indices(n))) for part, n in zip(self.slices, node.shape, strict=False)]
        if self.at is not None:
            lengths[self.at] = sum(stop - start for start, stop in self.runs)
        return (*lengths, *node.shape[len(lengths) :])

    def read(self, node: Any) -> np.ndarray[Any, Any]:
        block = np.empty(self.shape(node), node.dtype)
        self._each(block, lambda place, part: place.__setitem__(..., node[part]))
        return block

    def write(self, node: Any, block: np.ndarray[Any, Any]) -> None:
        self._each(block, lambda place, part: node.__setitem__(part, place))

    def _each(self, block: Any, use: Callable[[Any, Any], None]) -> None:
        done = 0
        for part in self._parts():
            if self.at is None:
                place = block
            else:
                count = part[self.at].stop - part[self.at].start
                place = block[(*(slice(None),) * self.at, slice(done, done + count), ...)]
                done += count
            if place.size:
                use(place, part or ...)


def _box(shape: tuple[int, ...], index: tuple[Any, ...]) -> tuple[_Box, tuple[Any, ...]]:
    """Return the block of a dataset that an index needs, and the index into the block."""
    slices: list[slice] = []
    local: list[Any] = []
    at: int | None = None
    runs: list[tuple[int, int]] = []
    for item in index:
        if item is None:
            local.append(None)
            continue
        if isinstance(item, int):
            place = _inside(np.asarray([item]), shape, len(slices))[0]
            slices.append(slice(int(place), int(place) + 1))
            local.append(0)
            continue
        if isinstance(item, slice):
            chosen = range(*item.indices(shape[len(slices)]))
            slices.append(slice(chosen.start, chosen.stop, chosen.step) if len(chosen) else slice(0, 0))
            local.append(slice(None))
            continue
        array = to_numpy(item)
        if array.dtype.kind != "b":
            arrays: tuple[Any, ...] = (array,)
        elif not array.ndim:
            local.append(array)
            continue
        elif array.shape != tuple(shape[len(slices) : len(slices) + array.ndim]):
            raise IndexError(
                f"The shape of the mask {list(array.shape)} does not match that of the dimensions it selects from, "
                f"{list(shape[len(slices) : len(slices) + array.ndim])}"
            )
        else:
            arrays = array.nonzero()
        for each in arrays:
            rows = _inside(each, shape, len(slices))
            if at is None:
                at = len(slices)
                needed, where = np.unique(rows, return_inverse=True)
                runs = _runs(needed)
                slices.append(slice(None))
                local.append(where.reshape(rows.shape))
            else:
                low, high = (int(rows.min()), int(rows.max()) + 1) if rows.size else (0, 0)
                slices.append(slice(low, high))
                local.append(rows - low)
    return _Box(slices, at, runs), normalize(tuple(local), len(shape))


def _inside(rows: np.ndarray[Any, Any], shape: tuple[int, ...], dim: int) -> np.ndarray[Any, Any]:
    length = shape[dim]
    rows = rows.astype(np.int64)
    if rows.size and not (-length <= rows.min() and rows.max() < length):
        raise IndexError(f"an index is out of bounds for dimension {dim} with size {length}")
    return np.where(rows < 0, rows + length, rows)


def _runs(rows: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Return sorted integers as runs of those that follow each other."""
    if not rows.size:
        return []
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = rows[np.concatenate(([0], breaks))], rows[np.concatenate((breaks - 1, [rows.size - 1]))]
    return [(int(start), int(end) + 1) for start, end in zip(starts, ends, strict=True)]
