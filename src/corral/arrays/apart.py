"""Whether what an operation reads and what it writes are apart in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from corral.arrays.buffers import extent_of
from corral.arrays.overlap import Extent, share_memory

__all__ = ["check_apart"]


def check_apart(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    output_name: str,
    input_name: str,
    same: Sequence[tuple[int, int]] = (),
) -> None:
    """Raise `ValueError` if an array to be written shares memory with one that others read meanwhile.

    Parameters
    ----------
    outputs, inputs
        The arrays; inputs may share memory with each other.
    output_name, input_name
        What the messages call them; a name that ends in ``[]`` gets the position put into it.
    same
        Positions in `outputs` and in `inputs` that may be the very same elements.

    Examples
    --------
    >>> a = np.zeros((2, 3))
    >>> check_apart([a[0]], [a[1], a[1]], "output", "input_list[]")
    >>> check_apart([a[0]], [a[0], a[1]], "output", "input_list[]", [(0, 0)])
    >>> check_apart([a[0]], [a[1], a[0]], "output", "input_list[]", [(0, 0)])
    Traceback (most recent call last):
        ...
    ValueError: output shares memory with input_list[1], which is still read while output is written
    """
    owners = {*map(_owner, outputs)}
    if None not in owners:
        owners.add(None)
        if owners.isdisjoint(map(_owner, inputs)):
            return  # parts of different arrays that own their memory
    writes = [extent_of(a, output_name) for a in outputs]
    reads = [extent_of(a, input_name) for a in inputs]
    for i, j in _touching(writes, reads):
        if (i, j) in same and _merged(writes[i]) == _merged(reads[j]):
            continue
        if share_memory([writes[i], reads[j]]) is not None:
            output, input_ = output_name.replace("[]", f"[{i}]"), input_name.replace("[]", f"[{j}]")
            raise ValueError(f"{output} shares memory with {input_}, which is still read while {output} is written")


def _owner(array: Any) -> int | None:
    """Identify the array that owns the memory of a NumPy array; ``None`` if that is not plain to see."""
    if type(array) is not np.ndarray:
        return None
    base = array.base
    if base is None:
        return id(array)
    return id(base) if type(base) is np.ndarray and base.base is None else None


def _touching(writes: Sequence[Extent], reads: Sequence[Extent]) -> Iterator[tuple[int, int]]:
    """Yield the pairs whose spans of addresses intersect."""
    spans = [(e.space, *e.bounds(), True, i) for i, e in enumerate(writes)]
    spans += [(e.space, *e.bounds(), False, i) for i, e in enumerate(reads)]
    spans.sort()
    open_spans: list[tuple[str, int, int, bool, int]] = []
    for span in spans:
        space, low, high, written, i = span
        if low == high:
            continue
        open_spans = [other for other in open_spans if other[0] == space and other[2] > low]
        for _, _, _, other_written, j in open_spans:
            if written != other_written:
                yield (i, j) if written else (j, i)
        open_spans.append(span)


def _merged(extent: Extent) -> Extent:
    """Return the extent of the same elements in the same order, in the fewest dimensions."""
    shape: list[int] = []
    strides: list[int] = []
    for length, step in zip(extent.shape, extent.strides, strict=True):
        if length == 1:
            continue
        if strides and strides[-1] == step * length:
            shape[-1] *= length
            strides[-1] = step
        else:
            shape.append(length)
            strides.append(step)
    return extent._replace(shape=tuple(shape), strides=tuple(strides))
