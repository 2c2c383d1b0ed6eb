"""Trees as they are sent and received: their layouts, and the buffers of their arrays."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from corral.arrays.buffers import NATIVE, readable, register_torch, writable
from corral.arrays.libraries import convert
from corral.wire import array_values
from corral.wire.layout import Array, Layout, Value, key_text

try:
    from corral._core import survey
except ImportError:  # other engines do without; every array is looked at, then
    survey = None  # type: ignore[assignment]

__all__ = [
    "Incoming",
    "Known",
    "Outgoing",
    "check_like",
    "check_that_holds",
    "dtype_of",
    "known",
    "pack",
    "prepare",
]

_LIBRARIES = ("numpy", "torch", "jax", "cupy")
_TAGGED = 0xC1  # first byte of encoded objects that are not plain data
_LARGEST_REMEMBERED, _MOST_REMEMBERED = 8192, 64  # bytes of a layout, layouts


class Known(NamedTuple):
    """What follows from a layout, looked up rather than found anew where trees are alike from call to call."""

    layout: Layout
    arrays: list[tuple[str, Array]]
    """Each array's path, as error messages give it, and description."""
    certain: bool
    """Whether every rank can make such a tree, whatever is installed there, if it has the memory.

    All ranks that see the layout find the same, so that they need not tell each other.
    """
    forms: list[tuple[tuple[int, ...], np.dtype[Any], str]]
    """Shape, dtype in NumPy's terms and, if it is torch's, name of the dtype there of each array.

    Empty unless all arrays have dtypes that every library has.
    """
    values: list[Value]
    """What is not an array."""


class Outgoing(NamedTuple):
    """A tree as it is sent."""

    known: Known
    data: bytes
    """Its layout."""
    leaves: list[Any]
    buffers: list[Any]


# How trees of plain arrays looked, and what was found about them.
_looks: dict[bytes, tuple[Known, bytes]] = {}


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
    seen = None if survey is None else survey(tree, np.ndarray, False)
    if seen is not None:  # all of it are plain arrays, which are buffers as they are
        look, plain = seen
        described = _looks.get(look)
        if described is not None:
            return Outgoing(*described, plain, plain)
    layout, leaves = Layout.of(tree, allow_pickle)
    data = layout.to_bytes()
    found = known(data)
    buffers = [readable(leaf, name) for leaf, (name, _) in zip(leaves, found.arrays, strict=True)]
    if seen is not None and len(data) <= _LARGEST_REMEMBERED:
        if len(_looks) >= _MOST_REMEMBERED:
            _looks.pop(next(iter(_looks)))
        _looks[seen[0]] = found, data
    return Outgoing(found, data, leaves, buffers)


def prepare(tree: Known, like: str | None, allow_pickle: bool) -> Incoming:
    """Allocate a tree's arrays, and find out now whether it can be made of them: later is too late to say no."""
    if tree.forms:  # new arrays of common dtypes are buffers as they are, and become those of any library
        arrays = _new(tree.forms, like)
        return Incoming(tree.layout, arrays, _objects(tree, allow_pickle), arrays, [])
    check_that_holds(tree.arrays, like)
    arrays = [node.empty() for _, node in tree.arrays]
    pairs = [writable(array, name) for array, (name, _) in zip(arrays, tree.arrays, strict=True)]
    finishes = [finish for _, finish in pairs if finish is not None]
    return Incoming(tree.layout, arrays, _objects(tree, allow_pickle), [buffer for buffer, _ in pairs], finishes)


def _new(forms: list[tuple[tuple[int, ...], np.dtype[Any], str]], like: str | None) -> list[Any]:
    """Allocate arrays: torch's where that is loaded and they are to be of it, others once they are filled."""
    torch = sys.modules.get("torch") if like in (None, "torch") and register_torch() else None
    if torch is None:
        return [np.empty(shape, dtype) for shape, dtype, _ in forms]
    new = torch.empty
    return [new(shape, dtype=getattr(torch, name)) if name else np.empty(shape, dtype) for shape, dtype, name in forms]


def _objects(tree: Known, allow_pickle: bool) -> list[Any]:
    return tree.layout.objects(allow_pickle) if tree.values else []


def check_that_holds(arrays: list[tuple[str, Array]], like: str | None) -> None:
    """Raise `TypeError` if some array cannot become one of the library `like`."""
    if like is None:
        return
    for name, node in arrays:
        if _is_common(node):
            continue
        try:
            convert(Array(node.dtype, [0], node.library).empty(), like)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} ({node.dtype_text}) cannot become an array of {like}: {error}") from None


def known(data: bytes) -> Known:
    """Return what is known of the layout that bytes describe; raise `CodecError` if this rank has no such arrays."""
    return _remembered(data) if len(data) <= _LARGEST_REMEMBERED else _find(data)


@functools.lru_cache(maxsize=256)
def _remembered(data: bytes) -> Known:
    return _find(data)


def _find(data: bytes) -> Known:
    layout = Layout.from_bytes(data)
    entries = layout.entries()
    arrays = [(key_text(path), node) for path, node in entries if isinstance(node, Array)]
    certain = all(node.data[0] != _TAGGED if isinstance(node, Value) else _is_common(node) for _, node in entries)
    common = all(_is_common(node) for _, node in arrays)
    forms = [_form(node) for _, node in arrays] if common else []
    return Known(layout, arrays, certain, forms, [node for _, node in entries if isinstance(node, Value)])


def _form(node: Array) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    return tuple(node.shape), np.dtype(node.dtype), node.dtype if node.library == "torch" else ""


def _is_common(node: Array) -> bool:
    """Whether every library has the dtype."""
    return _is_common_dtype(node.dtype) if isinstance(node.dtype, str) else False


@functools.lru_cache(maxsize=256)
def _is_common_dtype(form: str) -> bool:
    try:
        return np.dtype(form) in NATIVE
    except TypeError:
        return False


def dtype_of(node: Array) -> str:
    """Return the name of an array's dtype, the same for every library and byte order."""
    return str(node.dtype) if node.library == "torch" else str(array_values.dtype_from(node.dtype).newbyteorder("="))
