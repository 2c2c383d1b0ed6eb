"""The structure of a tree of arrays, apart from their values: what it takes to make it again elsewhere."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from corral.arrays.libraries import convert, dtype_name, is_array, library_of, to_numpy
from corral.digests import digest
from corral.wire import array_values, codec, entries, theirs, trees
from corral.wire.errors import CodecError

__all__ = ["Array", "Branch", "Layout", "Path", "Value", "key_text"]

Path: TypeAlias = tuple[Any, ...]

_MOST_DIMENSIONS = 64
_MOST_BYTES = 1 << 62


class Array(msgspec.Struct, tag="a", array_like=True, frozen=True):
    """One array: its dtype in plain data, its shape, and the library that it belongs to."""

    dtype: Any
    shape: list[int]
    library: str

    @property
    def dtype_text(self) -> str:
        """Name of the dtype, as error messages give it."""
        return self.dtype if self.library == "torch" else str(array_values.dtype_from(self.dtype))

    def check(self) -> None:
        """Raise `CodecError` unless an array can be like this."""
        if len(self.shape) > _MOST_DIMENSIONS or any(size < 0 for size in self.shape):
            raise CodecError("malformed layout: an impossible shape")
        if self.library == "torch":
            if type(self.dtype) is not str:
                raise CodecError("malformed layout: a dtype that is not a name")
            width = 8
        else:
            width = array_values.dtype_from(self.dtype).itemsize
        if math.prod(self.shape) * width > _MOST_BYTES:
            raise CodecError("malformed layout: an impossible shape")

    def empty(self, leading: Sequence[int] = (), like: str | None = None) -> Any:
        """Return a new array of this kind, of this library if it is loaded and writable; else of NumPy's."""
        shape = (*leading, *self.shape)
        torch = sys.modules.get("torch")
        if self.library == "torch":
            if torch is not None and like in (None, "torch"):
                dtype = getattr(torch, self.dtype, None)
                if not isinstance(dtype, torch.dtype):
                    raise CodecError(f"malformed layout: no such dtype as torch.{self.dtype:.40}")
                return torch.empty(shape, dtype=dtype)
            return np.empty(shape, array_values.dtype_from(array_values.numpy_form(self.dtype)))
        return np.empty(shape, array_values.dtype_from(self.dtype))

    def zeros(self) -> Any:
        """Return a new array of this kind, of zeros."""
        array = self.empty()
        if library_of(array) == "torch":
            return array.zero_()
        return np.zeros(array.shape, array.dtype)


class Value(msgspec.Struct, tag="v", array_like=True, frozen=True):
    """Something that is not an array, encoded."""

    data: bytes


class Branch(msgspec.Struct, tag="b", array_like=True, frozen=True):
    """A container: its kind, its class where the kind does not say it, its keys, and what lies under them."""

    kind: str
    name: str
    batch_size: list[int] | None
    keys: bytes
    children: list[Array | Value | Branch]
    dim_names: list[str | int | None] | None = None
    """A TensorDict's names of dimensions, if it has some; of a lazy stack only that along which it is stacked."""
    device: str | None = None
    """``"cpu"`` for a TensorDict that is bound to a device: whatever that is, what arrives lies in host memory."""

    def names(self) -> list[Any]:
        """Return the keys."""
        return list(_names(self.keys, len(self.children)))


@functools.lru_cache(maxsize=256)
def _names(data: bytes, count: int) -> tuple[Any, ...]:
    keys = codec.loads(data, False)
    if type(keys) is not list or len(keys) != count:
        raise CodecError("malformed layout: keys and entries do not add up")
    try:
        if len(set(keys)) != len(keys):
            raise CodecError("malformed layout: a key comes twice")
    except TypeError:
        raise CodecError("malformed layout: a key that cannot be one") from None
    return tuple(keys)


Node: TypeAlias = Array | Value | Branch
_DATA = codec.dumps(["data"], False)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Node).decode


class Entry(NamedTuple):
    """A leaf of a layout."""

    path: Path
    node: Array | Value


def key_text(path: Path) -> str:
    """Return a path as error messages give it.

    Examples
    --------
    >>> key_text(("a", "b")), key_text(("a",)), key_text(())
    ("('a', 'b')", "'a'", 'the array')
    """
    return "the array" if not path else repr(path[0] if len(path) == 1 else path)


class Layout:
    """What a tree of arrays looks like.

    Examples
    --------
    >>> layout, leaves = Layout.of({"a": np.zeros((2, 3)), "b": (np.ones(1),)})
    >>> again = Layout.from_bytes(layout.to_bytes())
    >>> [(entry.path, entry.node.shape) for entry in again.entries()]
    [(('a',), [2, 3]), (('b', 0), [1])]
    >>> again.rebuild(leaves)
    {'a': array([[0., 0., 0.],
           [0., 0., 0.]]), 'b': (array([1.]),)}
    """

    __slots__ = ("root",)

    def __init__(self, root: Node) -> None:
        self.root = root

    @classmethod
    def of(
        cls, tree: Any, allow_pickle: bool = True, stacking: bool = False, dense: bool = False
    ) -> tuple[Layout, list[Any]]:
        """Return a tree's layout and its arrays, in the layout's order.

        Parameters
        ----------
        tree
            The tree.
        allow_pickle
            Whether objects that are not arrays may be pickled.
        stacking
            Whether what can be the row of an array counts as one: NumPy's scalars and bytearrays, which otherwise are
            objects and stay what they are.
        dense
            Whether lazy stacks are stacked, if their members are alike.

        Raises
        ------
        PickleError
            If it contains an object that is not an array, and can only be pickled, which is refused.
        ValueError
            If a container contains itself, or they lie too deep.
        TypeError
            If an array cannot be sent.
        """
        leaves: list[Any] = []
        return cls(_describe(tree, leaves, allow_pickle, stacking, dense, ())), leaves

    def to_bytes(self) -> bytes:
        """Return the layout as bytes."""
        return _pack(self.root)

    def fingerprint(self) -> bytes:
        """Return 128 bits that are the same for equal layouts, on every rank, and different for others.

        Examples
        --------
        >>> one, other = (Layout.of({"a": np.zeros(n)})[0] for n in (2, 3))
        >>> len(one.fingerprint()), one.fingerprint() == other.fingerprint()
        (16, False)
        """
        return digest(self.to_bytes(), 16)

    @classmethod
    def from_bytes(cls, data: Any) -> Layout:
        """Invert `to_bytes`; raise `CodecError` for anything else."""
        try:
            root = _unpack(data)
            _check(root, [])
        except CodecError:
            raise
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise CodecError(f"malformed layout: {error}") from None
        return cls(root)

    def entries(self) -> list[Entry]:
        """Return the path and description of every leaf, in order."""
        return list(_entries(self.root, ()))

    def branches(self) -> list[tuple[Path, Branch]]:
        """Return the path and description of every container, outer ones first."""
        return list(_branches(self.root, ()))

    def arrays(self) -> list[tuple[Path, Array]]:
        """Return the path and description of every array, in order."""
        return [(path, node) for path, node in self.entries() if isinstance(node, Array)]

    def objects(self, allow_pickle: bool = True) -> list[Any]:
        """Return what is not an array, in order: all of a tree that comes in the layout itself.

        Raises
        ------
        CodecError, PickleError
            If some object cannot be decoded here.
        """
        return [codec.loads(node.data, allow_pickle) for _, node in self.entries() if isinstance(node, Value)]

    def rebuild(
        self,
        leaves: Sequence[Any],
        like: str | None = None,
        objects: Sequence[Any] | None = None,
        classes: dict[str, type] | None = None,
        leading: Sequence[int] = (),
    ) -> Any:
        """Make the tree of the given arrays.

        Parameters
        ----------
        leaves
            Arrays in the layout's order.
        like
            Library to convert them to; each keeps its own when ``None``.
        objects
            What `objects` returned; decoded here, pickles included, when ``None``.
        classes
            Classes of namedtuples and dataclasses by full name, besides those that their modules have.
        leading
            Dimensions that the arrays have before those of the layout.
        """
        source = iter(leaves)
        others = iter(self.objects() if objects is None else objects)

        def build(node: Node) -> Any:
            if isinstance(node, Array):
                array = next(source)
                library = like or (node.library if node.library in sys.modules else None)
                return array if library in (None, library_of(array)) else convert(array, library)
            if isinstance(node, Value):
                return next(others)
            batch_size = None if node.batch_size is None else [*leading, *node.batch_size]
            children = [build(child) for child in node.children]
            return trees.construct(
                node.kind,
                node.name,
                batch_size,
                node.names(),
                children,
                classes or {},
                trees.led(node.dim_names, len(leading), node.kind),
                node.device,
            )

        return build(self.root)


def _describe(tree: Any, leaves: list[Any], allow_pickle: bool, stacking: bool, dense: bool, path: Path) -> Node:
    if len(path) > trees.MAX_DEPTH:
        raise ValueError(f"a container contains itself, or lies deeper than {trees.MAX_DEPTH} levels")
    kind = trees.kind_of(tree)
    if kind is None:
        is_object = isinstance(tree, (np.generic, bytearray)) and not stacking
        if not is_object and is_array(tree) and not (type(tree) is np.ndarray and tree.dtype.hasobject):
            node, array = _describe_array(tree, path)
            leaves.append(array)
            return node
        entry = None if stacking else entries.parts(tree) or theirs.entry_parts(tree)
        if entry is not None:
            value = Value(codec.dumps(entry[1], allow_pickle))
            return Branch(entry[0], "", entry[2], _DATA, [value], *trees.facts(entry[0], tree))
        return Value(codec.dumps(trees.payload(tree, stacking), allow_pickle))
    if kind in ("L", "K") and dense:
        with contextlib.suppress(RuntimeError):  # members that differ stay members
            kind, tree = ("T" if kind == "L" else "R"), tree.to_tensordict()
    keys, values, batch_size, name = trees.parts(kind, tree)
    if kind == "R" and batch_size is None:
        kind = "K"  # a tensorclass over a lazy stack
    children = [
        _describe(value, leaves, allow_pickle, stacking, dense, (*path, key))
        for key, value in zip(keys, values, strict=True)
    ]
    if kind in trees.TENSORDICTS:
        return Branch(kind, name, batch_size, codec.dumps(keys, False), children, *trees.facts(kind, tree))
    return Branch(kind, name, batch_size, codec.dumps(keys, False), children)


def _describe_array(array: Any, path: Path) -> tuple[Array, Any]:
    library = library_of(array)
    if library == "torch":
        if array.is_nested:
            from corral.arrays.torch_buffers import nested_error

            raise nested_error(key_text(path))
        dtype = "float32" if array.is_quantized else dtype_name(array)
        return Array(dtype, list(array.shape), "torch"), array
    if library == "other":
        array = to_numpy(array)
        library = "numpy"
    if isinstance(array, np.generic):
        array = np.asarray(array)
    return Array(array_values.dtype_form(np.dtype(array.dtype)), list(array.shape), library), array


def _check(node: Node, batch: list[int]) -> None:
    """Raise `CodecError` for what no tree is like."""
    if isinstance(node, Array):
        node.check()
        if node.shape[: len(batch)] != batch:
            raise CodecError("malformed layout: an array that does not fit its TensorDict")
    elif isinstance(node, Branch):
        names = node.names()
        if not trees.is_possible(node.kind, names, node.batch_size):
            raise CodecError("malformed layout: an impossible container")
        if not trees.is_possible_facts(node.kind, node.batch_size, node.dim_names, node.device):
            raise CodecError("malformed layout: impossible names of dimensions, or an impossible device")
        if node.kind in ("L", "K"):
            batch = []  # its members lack the dimension that they are stacked along
        elif node.batch_size is not None:
            if node.batch_size[: len(batch)] != batch:
                raise CodecError("malformed layout: a TensorDict that does not fit another")
            batch = node.batch_size
        for child in node.children:
            _check(child, batch)


def _entries(node: Node, path: Path) -> Iterator[Entry]:
    if isinstance(node, Branch):
        for key, child in zip(node.names(), node.children, strict=True):
            yield from _entries(child, (*path, key))
    else:
        yield Entry(path, node)


def _branches(node: Node, path: Path) -> Iterator[tuple[Path, Branch]]:
    if isinstance(node, Branch):
        yield path, node
        for key, child in zip(node.names(), node.children, strict=True):
            yield from _branches(child, (*path, key))
