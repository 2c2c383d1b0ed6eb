"""Trees as they are sent and received: their layouts, and the buffers of their arrays."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from corral.arrays.buffers import NATIVE, readable, writable
from corral.arrays.libraries import convert
from corral.wire import array_values
from corral.wire.layout import Array, Layout, Value, key_text

__all__ = [
    "Incoming",
    "Outgoing",
    "check_like",
    "check_that_holds",
    "dtype_of",
    "is_certain",
    "layout_from",
    "pack",
    "prepare",
]

_LIBRARIES = ("numpy", "torch", "jax", "cupy")
_TAGGED = 0xC1  # first byte of encoded objects that are not plain data
_LARGEST_REMEMBERED = 8192  # bytes of a layout


class Outgoing(NamedTuple):
    """A tree as it is sent."""

    layout: Layout
    leaves: list[Any]
    buffers: list[Any]


class Incoming(NamedTuple):
    """A tree as it is received."""

    layout: Layout
    arrays: list[Any]
    objects: list[Any]
    buffers: list[Any]
    finishes: list[Callable[[], None]]

    def rebuild(self, like: str | None) -> Any:
        """Make the tree, once its buffers are filled."""
        for finish in self.finishes:
            finish()
        return self.layout.rebuild(self.arrays, like, self.objects)


def check_like(like: Any, load: bool = True) -> None:
    """Raise `ValueError` or `ImportError` unless results can be made arrays of a library; import it for that."""
    if like is None:
        return
    if like not in _LIBRARIES:
        raise ValueError(f"like must be 'numpy', 'torch', 'jax' or 'cupy', got {like!r}")
    if load:
        importlib.import_module(like)


def pack(tree: Any, allow_pickle: bool) -> Outgoing:
    """Describe a tree, and find its arrays' memory."""
    layout, leaves = Layout.of(tree, allow_pickle)
    paths = layout.arrays()
    buffers = [readable(leaf, key_text(path)) for leaf, (path, _) in zip(leaves, paths, strict=True)]
    return Outgoing(layout, leaves, buffers)


def prepare(layout: Layout, like: str | None, allow_pickle: bool) -> Incoming:
    """Allocate a tree's arrays, and find out now whether it can be made of them: later is too late to say no."""
    check_that_holds(layout, like)
    nodes = layout.arrays()
    arrays = [node.empty() for _, node in nodes]
    pairs = [writable(array, key_text(path)) for array, (path, _) in zip(arrays, nodes, strict=True)]
    finishes = [finish for _, finish in pairs if finish is not None]
    return Incoming(layout, arrays, layout.objects(allow_pickle), [buffer for buffer, _ in pairs], finishes)


def check_that_holds(layout: Layout, like: str | None) -> None:
    """Raise `TypeError` if some array cannot become one of the library `like`."""
    if like is None:
        return
    for path, node in layout.arrays():
        if _is_common(node):
            continue
        try:
            convert(Array(node.dtype, [0], node.library).empty(), like)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{key_text(path)} ({node.dtype_text}) cannot become an array of {like}: {error}") from None


def is_certain(layout: Layout) -> bool:
    """Whether every rank can make such a tree, whatever is installed there, if it has the memory.

    All ranks that see the layout find the same, so that they need not tell each other.
    """
    for _, node in layout.entries():
        if isinstance(node, Value):
            if node.data[0] == _TAGGED:
                return False
        elif not _is_common(node):
            return False
    return True


def _is_common(node: Array) -> bool:
    """Whether every library has the dtype."""
    return _is_common_dtype(node.dtype) if isinstance(node.dtype, str) else False


@functools.lru_cache(maxsize=256)
def _is_common_dtype(form: str) -> bool:
    try:
        return np.dtype(form) in NATIVE
    except TypeError:
        return False


def layout_from(data: bytes) -> Layout:
    """Return the layout that bytes describe; small ones are remembered, as they tend to come again."""
    return _remembered(data) if len(data) <= _LARGEST_REMEMBERED else Layout.from_bytes(data)


@functools.lru_cache(maxsize=256)
def _remembered(data: bytes) -> Layout:
    return Layout.from_bytes(data)


def dtype_of(node: Array) -> str:
    """Return the name of an array's dtype, the same for every library and byte order."""
    return str(node.dtype) if node.library == "torch" else str(array_values.dtype_from(node.dtype).newbyteorder("="))
