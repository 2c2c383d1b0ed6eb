"""What a TensorDict in an HDF5 file tells without reading values, and how it reads those that it is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import numpy as np

from corral.arrays.indexing import normalize
from corral.tensordict import hdf5
from corral.tensordict.base import Base
from corral.tensordict.dense import TensorDict
from corral.tensordict.entries import Entries
from corral.tensordict.finding import MISSING
from corral.tensordict.indexing import indexed_size
from corral.tensordict.names import Names, after_index, some_names
from corral.tensordict.nested_keys import unravel_key
from corral.tensordict.sizes import Size, as_size
from corral.tensordict.views import KeysView

__all__ = ["Stored", "parts_of", "take_sizes"]


class Stored(TensorDict):
    """The parts of `PersistentTensorDict` that change nothing in the file."""

    __slots__ = ("filename", "mode")

    filename: Any
    mode: str
    _source: Any

    @classmethod
    def _over(cls, entries: Entries, size: Size) -> Self:
        self = cls.__new__(cls)
        self.filename, self.mode = None, entries.group.file.mode
        self._device = entries.device
        self._locked = False
        self._names = None
        self._source = entries
        self._batch_size = size
        return self

    def _resize(self, size: Size) -> None:
        self._batch_size = self._source.size = self._source.whole = size
        self._resize_names(len(size))

    def _name_as_told(self, nested: bool = False) -> None:
        """Take the names of dimensions that are written in the file, as far as there are as many dimensions."""
        told = hdf5.told_names(self._source.group)
        if told is not None:
            self._names = some_names((*told, *(None,) * len(self._batch_size))[: len(self._batch_size)])
        for key in self._source if nested else ():
            node = self._source.get(key)
            if isinstance(node, Stored):
                node._name_as_told(True)

    @classmethod
    def _make(cls, source: dict[str, Any], batch_size: Size, device: str | None = None, names: Names = None) -> Any:
        return TensorDict._make(source, batch_size, device, names)

    # What is known without reading

    def _outline(self) -> TensorDict:
        """Return a TensorDict with the shapes and dtypes of this one, whose leaves take no memory."""
        entries = self._source
        source: dict[str, Any] = {}
        for key in entries:
            node = entries.get(key)
            if isinstance(node, Stored):
                source[key] = node._outline()
            elif hdf5.is_array(node):
                source[key] = self._outline_of(node)
        return TensorDict._make(source, self._batch_size, self._device, self._names)

    _in_file: ClassVar[bool] = True

    def _like(self, key: str) -> Any:
        return self._outline_of(self._source.get(key))

    def _places(self) -> dict[str, Any]:
        """Return the nested TensorDicts, arrays that are like those in the file, and what else there is."""
        places = {}
        for key in self._source:
            node = self._source.get(key)
            if isinstance(node, Stored):
                places[key] = node
            else:
                places[key] = self._outline_of(node) if hdf5.is_array(node) else self._source[key]
        return places

    def _peeks(self) -> Iterator[tuple[str, Any]]:
        for key in self._source:
            node = self._source.get(key)
            yield key, node if isinstance(node, Stored) or not hdf5.is_array(node) else self._outline_of(node)

    def _outline_of(self, node: Any) -> Any:
        entries = self._source
        shape = node.shape
        if entries.rows is not None:
            shape = (*entries.size, *shape[len(entries.whole) :])
        return np.broadcast_to(np.empty((), node.dtype), shape)

    def _slots(self, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Base, str, bool]]:
        for key in self._source:
            node = self._source.get(key)
            if isinstance(node, Stored):
                yield from node._slots((*path, key))
            else:
                yield (*path, key), self, key, not hdf5.is_array(node)

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        *,
        sort: bool = False,
    ) -> KeysView:
        """Return the keys, as they are now; no entry is read."""
        if not include_nested and not leaves_only:
            return KeysView(_names(self), False, False, sort)
        return KeysView(self._outline(), include_nested, leaves_only, sort, is_leaf)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (str, tuple)):
            return super().__contains__(key)
        node: Any = self
        for part in parts_of(key):
            if not isinstance(node, Base):
                return False
            node = node._source.get(part)
            if node is None:
                return False
        return True

    def _find(self, key: Any) -> Any:
        value: Any = self
        for part in parts_of(key):
            if not isinstance(value, Base) or part not in value._source:
                return MISSING
            value = value._source[part]
        return value

    @property
    def batch_size(self) -> Size:
        """The leading dimensions that all datasets share."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        size = as_size(value)
        if self._source.rows is not None and size != self._batch_size:
            raise RuntimeError("the batch size of a part of a PersistentTensorDict cannot be changed")
        outline = self._outline()
        outline.batch_size = size
        self._resize(size)
        for key, nested in outline._source.items():
            if isinstance(nested, Base):
                self._source.get(key)._resize(nested._batch_size)

    def auto_batch_size_(self, batch_dims: int | None = None, keep_compliant_size: bool = False) -> Any:
        """Set the batch size to the leading dimensions that all datasets share, `batch_dims` of them at most."""
        outline = self._outline()
        _auto(outline, batch_dims)
        take_sizes(self, outline)
        return self

    def is_empty(self) -> bool:
        """Whether there is no dataset."""
        return self._outline().is_empty()

    def bytes(self, *, count_duplicates: Any = True) -> Any:
        """Return the number of bytes of all datasets."""
        return self._outline().bytes()

    @property
    def dtype(self) -> Any:
        """The dtype of all datasets, or ``None`` if they have several."""
        return self._outline().dtype

    @property
    def requires_grad(self) -> Any:
        """Whether a leaf requires a gradient: none does."""
        return False

    def is_shared(self) -> bool:
        """Whether the leaves lie in shared memory: they lie in a file."""
        return False

    def __repr__(self) -> str:
        if not self._source.group:
            return "PersistentTensorDict(closed)"
        shown = repr(self._outline()).replace("TensorDict(", f"{type(self).__name__}(", 1)
        shown = shown.replace("library=numpy", f"library={self._source.library}", 1)
        return shown.replace(", fields=", ", is_locked=True, fields=", 1) if self._locked else shown

    # Reading

    @property
    def file(self) -> Any:
        """The group of h5py or zarr that the entries are in."""
        return getattr(self._source.group, "node", self._source.group)

    def to_tensordict(self, *args: Any, **kwargs: Any) -> TensorDict:
        """Return a TensorDict with all entries, read into memory."""
        return self._map(lambda leaf: leaf)

    def _take(self, index: tuple[Any, ...]) -> Any:
        if self._source.rows is not None:
            return self.to_tensordict()._take(index)
        return self._view(index, indexed_size(self._batch_size, index))

    def _view(self, index: tuple[Any, ...], size: Size) -> Self:
        mine = self._source
        entries = Entries(mine.group, index, mine.options, mine.library, mine.device, mine)
        entries.whole, entries.size = self._batch_size, size
        view = type(self)._over(entries, size)
        view._names = after_index(self._names, index)
        return view

    def get_at(self, key: Any, index: Any, default: Any = None) -> Any:
        """Return a part of an entry; nothing else is read."""
        if key not in self:
            return default
        parts = parts_of(key)
        owner = self._owner(parts)
        node = owner._source.get(parts[-1])
        if isinstance(node, Base):
            return node[index]  # type: ignore[index]
        if owner._source.rows is not None or not hdf5.is_array(node):
            return super().get_at(key, index, default)
        part = Entries(owner._source.group, normalize(index, node.ndim), {}, owner._source.library, self._device)
        return part[parts[-1]]

    def _owner(self, parts: tuple[str, ...]) -> Any:
        node: Any = self
        for part in parts[:-1]:
            node = node._source.get(part)
        return node

    def _lock(self, locked: Any) -> None:
        self._locked = locked
        nested: Any = weakref.ref(self) if locked else False
        for key in self._source:
            value = self._source.get(key)
            if isinstance(value, Base):
                value._lock(nested)

    def _set_device(self, device: str | None) -> None:
        self._device = self._source.device = device
        for key in self._source:
            value = self._source.get(key)
            if isinstance(value, Base):
                value._set_device(device)


def parts_of(key: Any) -> tuple[str, ...]:
    key = unravel_key(key)
    return (key,) if isinstance(key, str) else key


def _names(td: Stored) -> Any:
    return TensorDict._make(dict.fromkeys(td._source), td._batch_size)


def _auto(outline: Any, batch_dims: int | None) -> None:
    """Give an outline and the TensorDicts in it the largest batch sizes, innermost first."""
    for value in outline._source.values():
        if isinstance(value, Base):
            _auto(value, batch_dims)
    outline._batch_size = Size()
    shapes = [tuple(value.shape) for value in outline._source.values()]
    size: list[int] = []
    for lengths in zip(*shapes, strict=False):
        if len(set(lengths)) > 1 or (batch_dims is not None and len(size) >= batch_dims):
            break
        size.append(lengths[0])
    outline._batch_size = Size(size)
    outline._resize_names(len(size))


def take_sizes(td: Any, outline: Any) -> None:
    td._resize(outline._batch_size)
    if outline._names is not None:
        td._names = outline._names
    for key, value in outline._source.items():
        if isinstance(value, Base):
            take_sizes(td._source.get(key), value)
