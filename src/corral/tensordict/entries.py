"""The entries of a group in an HDF5 file or a zarr store as a mapping, which reads what it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping
from typing import Any

from corral.arrays.dtypes import EXTENDED
from corral.arrays.libraries import convert, dtype_name, library_of, to_numpy
from corral.tensordict import hdf5, stored_values, zarr_stores
from corral.tensordict.base import Base
from corral.tensordict.names import after_index
from corral.tensordict.nontensor import NonTensorData
from corral.tensordict.sizes import Size

__all__ = ["Entries"]

_MISSING: Any = object()


class Entries(MutableMapping[str, Any]):
    """What a `PersistentTensorDict` has in place of a dict.

    ``entries[key]`` reads; `get` returns an entry as it is in the file, with its shape and dtype, and reads nothing.

    Parameters
    ----------
    group : h5py.Group or Group
        Where the entries are.
    rows : tuple, optional
        The part of the batch that this mapping shows: an index.
    options : dict
        What new datasets are made with.
    library : str
        Library of the arrays that are read.
    device : str, optional
        Where arrays lie that are read.
    origin : Entries, optional
        Those that `rows` is a part of.
    """

    def __init__(
        self,
        group: Any,
        rows: tuple[Any, ...] | None,
        options: dict[str, Any],
        library: str,
        device: str | None,
        origin: Entries | None = None,
    ) -> None:
        self.group = group
        self.rows = rows
        self.options = options
        self.library = library
        self.device = device
        self.origin = origin
        self.whole = Size()  # the batch that `rows` is an index of
        self.size = Size()  # what the index makes of it
        self.nested: dict[str, Any] = {}

    def node(self, key: str, default: Any = _MISSING) -> Any:
        """Return the group or dataset of a key."""
        if "/" in key or key in ("", ".", ".."):
            if default is _MISSING:
                raise KeyError(f"{key!r} cannot be a key in a file, where slashes and dots form paths")
            return default
        node = self.group.get(key)
        if node is not None:
            return node
        if default is _MISSING:
            raise KeyError(f"key {key!r} not found in {self.group}, which has {sorted(self.group)}")
        return default

    def child(self, key: str, node: Any) -> Any:
        """Return the TensorDict that a group stands for."""
        if key not in self.nested:
            from corral.tensordict.persistent import PersistentTensorDict

            whole = None if self.origin is None else self.origin.child(key, node)
            origin = None if whole is None else whole._source
            entries = Entries(node, self.rows, self.options, self.library, self.device, origin)
            entries.whole, entries.size = self.whole, self.size
            more = () if origin is None else origin.size[len(self.whole) :]
            child = self.nested[key] = PersistentTensorDict._over(entries, Size((*self.size, *more)))
            if whole is not None and self.rows is not None:
                child._names = after_index(whole._names, self.rows)
            if self.rows is None and isinstance(node, zarr_stores.Group) and "batch_size" in node.facts:
                child._resize(Size(node.facts["batch_size"]))
            if self.rows is None:
                child._name_as_told()
        return self.nested[key]

    def __getitem__(self, key: str) -> Any:
        node = self.node(key)
        if hdf5.is_group(node):
            return self.child(key, node)
        if not hdf5.is_array(node):
            value = stored_values.read(node, self.rows)
            return value if isinstance(value, Base) else NonTensorData(value, self.size, self.device)
        array = hdf5.read(node, self.rows)
        if self.device in (None, "cpu"):
            return convert(array, self.library)
        return convert(array, "torch" if self.library == "numpy" else self.library, self.device)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the dataset or the TensorDict of a key without reading values."""
        node = self.node(key, None)
        if node is None:
            return default
        return self.child(key, node) if hdf5.is_group(node) else node

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.node(key, None) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.group))

    def __len__(self) -> int:
        return len(self.group)

    def __delitem__(self, key: str) -> None:
        self.node(key)
        del self.group[key]
        self.nested.pop(key, None)

    def popitem(self) -> tuple[str, Any]:
        """Remove the last entry and return it."""
        key = list(self.group)[-1]
        return key, self.pop(key)

    def clear(self) -> None:
        """Remove all entries; none is read."""
        for key in list(self.group):
            del self[key]

    def __setitem__(self, key: str, value: Any) -> None:
        node = self.node(key, None)
        if isinstance(value, Base) and not getattr(value, "_holds_objects", False):
            self._set_nested(key, node, value)
            return
        if library_of(value) == "other":
            if self.rows is not None and self.origin is not None and node is not None:
                self.origin[key] = self.origin[key]._assign(self.rows, value)
                return
            stored_values.check(self.group, key, value)
            self._make_room(key)
            stored_values.create(self.group, key, value)
            return
        refuse_array(key, value)
        array = to_numpy(value)
        if self.rows is not None:
            self._set_rows(key, node, array)
        elif node is None or hdf5.is_group(node) or node.shape != array.shape or node.dtype != array.dtype:
            self._create(key, array)
        else:
            hdf5.write(node, array)

    def refuse(self, td: Base, new: bool = False) -> None:
        """Raise the error that writing the entries of a TensorDict would raise, here or, if `new`, to a new group."""
        for key, value in td._source.items():
            node = None if new else self.node(key, None)
            if "/" in key or key in ("", ".", ".."):
                raise KeyError(f"{key!r} cannot be a key in a file, where slashes and dots form paths")
            if isinstance(value, Base) and not value._holds_objects:
                if node is not None and not hdf5.is_group(node):
                    raise RuntimeError(
                        f"cannot set a TensorDict as the entry {key!r}, which is a dataset: delete it first"
                    )
                (self if node is None else self.child(key, node)._source).refuse(value, node is None)
            elif library_of(value) != "other":
                refuse_array(key, value)

    def _set_nested(self, key: str, node: Any, value: Base) -> None:
        if node is not None and not hdf5.is_group(node):
            raise RuntimeError(f"cannot set a TensorDict as the entry {key!r}, which is a dataset: delete it first")
        if node is None:
            self._make_room(key)
            size = (value._batch_size,) if isinstance(self.group, zarr_stores.Group) else ()
            node = self.group.create_group(key, *size)
            child = self.child(key, node)
            if self.rows is None:
                child._resize(value._batch_size)
        child = self.child(key, node)
        child.update(value)
        if value._names is not None and self.rows is None and len(value._names) == len(child._batch_size):
            child._set_names(value._names)

    def _make_room(self, key: str) -> None:
        """Remove what a key has, or raise an error if it can be none."""
        if "/" in key or key in ("", ".", ".."):
            raise KeyError(f"{key!r} cannot be a key in a file, where slashes and dots form paths")
        if key in self:
            del self[key]

    def _create(self, key: str, array: Any) -> None:
        self._make_room(key)
        self.group.create_dataset(key, data=array, **(self.options if array.ndim and array.size else {}))

    def _set_rows(self, key: str, node: Any, array: Any) -> None:
        if node is None:
            self._make_room(key)
            # The other rows of a new entry are zeros, as in tensordict.
            extra = array.shape[len(self.size) :]
            shape = (*self.whole, *extra)
            options = self.options if math.prod(shape) and shape else {}
            node = self.group.create_dataset(key, shape, array.dtype, **options)
        hdf5.write(node, array, self.rows)


def refuse_array(key: str, value: Any) -> None:
    """Raise if an array cannot be in a file."""
    if library_of(value) == "torch" and value.requires_grad:
        raise RuntimeError(f"the value of key {key!r} requires grad, and a file cannot: set value.detach()")
    if dtype_name(value) in EXTENDED:  # of whose numbers only the bytes would be kept
        raise TypeError(
            f"the value of key {key!r} is of dtype {dtype_name(value)}, which files of this format do not have: "
            "cast it to float32 first"
        )
