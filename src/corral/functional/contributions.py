"""What a rank contributes to a reduction: arrays in an order that all ranks share, and what becomes of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from corral.arrays.buffers import readable, writable
from corral.arrays.libraries import copy_into, library_of
from corral.distributed.errors import MismatchError
from corral.functional.fitting import kind_of_value, where
from corral.functional.parcels import check_that_holds, dtype_of
from corral.wire import array_values, codec
from corral.wire.layout import Array, Branch, Layout, Path, Value, key_text

__all__ = ["Contribution", "check_reducible", "contribute"]

_NUMBERS = {bool: "?", int: "<i8", float: "<f8", complex: "<c16"}
_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")


class _Leaf(NamedTuple):
    path: Path
    node: Array
    array: Any


class Contribution(NamedTuple):
    """One rank's part of a reduction."""

    tree: Layout
    layout: Layout
    """The tree's, with arrays in the place of numbers."""
    leaves: list[_Leaf]
    """Its arrays, as this rank passed them."""
    reduced: dict[Path, Any]
    """The arrays that the result is written to, where one is received."""
    buffers: list[Any]
    """In the order of the leaves' paths, whatever that of the tree."""

    def canonical(self) -> bytes:
        """Return bytes that are the same on all ranks whose trees fit."""
        entries = [
            (repr(path), *((dtype_of(node), node.shape) if isinstance(node, Array) else ("None", [])))
            for path, node in self.layout.entries()
        ]
        return msgspec.msgpack.encode(sorted(entries))

    def result(self, like: str | None) -> Any:
        """Make the tree, once the arrays have been reduced."""
        passed = {leaf.path: leaf.array for leaf in self.leaves}
        arrays: list[Any] = []
        objects: list[Any] = []
        for path, node in self.tree.entries():
            if isinstance(node, Array):
                array = self.reduced[path]
                arrays.append(_as_passed(array, node, passed[path]) if like is None else array)
            else:
                objects.append(self.reduced[path].item() if path in self.reduced else None)
        return self.tree.rebuild(arrays, like, objects)


def contribute(tree: Any, allow_pickle: bool, like: str | None, receives: bool) -> Contribution:
    """Find what a tree contributes.

    Parameters
    ----------
    tree
        The tree.
    allow_pickle
        Whether objects may be pickled. They cannot be reduced either, but then that is what the error says.
    like
        Library that the result will be converted to.
    receives
        Whether this rank gets the result. If so its arrays are copied, for the result is written over what is sent.

    Raises
    ------
    TypeError, ValueError, PickleError
        If the tree cannot be sent, or holds what is neither an array nor a number.
    """
    layout, found = Layout.of(tree, allow_pickle, stacking=True)
    leaves: list[_Leaf] = []
    numeric = Layout(_with_numbers(layout.root, (), iter(found), leaves))
    buffers = {path: readable(array, key_text(path)) for path, _, array in leaves}
    reduced: dict[Path, Any] = {}
    if receives:
        check_that_holds([(key_text(path), node) for path, node, _ in leaves], like)
        for path, node, array in leaves:
            reduced[path] = _copy(node, array)
            buffers[path], _ = writable(reduced[path], key_text(path))
    ordered = [buffers[path] for path in sorted(buffers, key=repr)]
    return Contribution(layout, numeric, leaves, reduced, ordered)


def _with_numbers(
    node: Array | Value | Branch, path: Path, arrays: Iterator[Any], leaves: list[_Leaf]
) -> Array | Value | Branch:
    """Return a layout with arrays in the place of numbers, and list them all."""
    if isinstance(node, Array):
        leaves.append(_Leaf(path, node, next(arrays)))
        return node
    if isinstance(node, Branch):
        names = node.names()
        children = [
            _with_numbers(child, (*path, key), arrays, leaves) for key, child in zip(names, node.children, strict=True)
        ]
        return msgspec.structs.replace(node, children=children)
    try:
        value = codec.loads(node.data, False)
    except codec.PickleError:
        value = ...  # neither number nor None
    if value is None:
        return node
    form = _NUMBERS.get(type(value))
    if form is None:
        raise TypeError(f"{where(path)} is {kind_of_value(node)}: only arrays and numbers can be reduced")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where(path)} is an int of more than 64 bits")
    number = Array(form, [], "numpy")
    leaves.append(_Leaf(path, number, np.array(value, form)))
    return number


def _copy(node: Array, array: Any) -> Any:
    """Return an array's values in memory of their own, in order, that the engine can write."""
    if library_of(array) == "torch":
        torch = sys.modules["torch"]
        array = array.detach()
        if array.is_quantized:
            array = array.dequantize()
        if array.layout is not torch.strided:
            array = array.to_dense()
        copy = torch.empty(array.shape, dtype=array.dtype)
    else:
        copy = np.empty(node.shape, array_values.dtype_from(node.dtype).newbyteorder("="))
    copy_into(copy, array)
    return copy


def _as_passed(reduced: Any, node: Array, array: Any) -> Any:
    """Return a result on the device, or in the byte order, of the array that this rank passed."""
    if library_of(reduced) == "torch":
        return reduced.to(array.device)
    return reduced.astype(array_values.dtype_from(node.dtype), copy=False)


def check_reducible(layout: Layout, op: str, rank: int) -> None:
    """Raise `MismatchError` if a reduction has no meaning for some array; `rank` is one that has it."""
    for path, node in layout.arrays():
        dtype = dtype_of(node)
        known = dtype in _INTEGERS or (not op.startswith("b") and dtype in _FLOATS)
        if not known and not (dtype in _COMPLEX and op in ("sum", "avg", "product", "premul_sum")):
            raise MismatchError(
                f"{where(path)} on rank {rank} has dtype {dtype} (shape {tuple(node.shape)}), for which the reduction "
                f"{op!r} has no meaning"
            )
