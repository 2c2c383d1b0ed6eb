"""Writing entries that stay in a file: what fits is found out before anything is written, which cannot be undone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corral.arrays.indexing import normalize
from corral.arrays.libraries import library_of
from corral.arrays.operations import as_array
from corral.tensordict import hdf5, stored_values
from corral.tensordict.base import Base
from corral.tensordict.dense import TensorDict
from corral.tensordict.errors import InplaceWriteError
from corral.tensordict.nested_keys import unravel_key
from corral.tensordict.sizes import Size
from corral.tensordict.stored import Stored, parts_of
from corral.tensordict.updating import _chosen

__all__ = ["StoredWriting"]


class StoredWriting(Stored):
    """Set, write and rename entries in a file."""

    __slots__ = ()

    def set(self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False, **kwargs: Any) -> Any:
        """Set an entry: a dataset of another shape or dtype is replaced, unless `inplace`."""
        key = unravel_key(key)
        if inplace and key in self:
            return self.set_(key, item)
        self._refuse_if_locked()
        self._put(key, item)
        return self

    def _put(self, key: Any, value: Any) -> None:
        if isinstance(key, str):
            is_value = library_of(value) == "other" and isinstance(value, (str, bytes))
            self._source[key] = value if is_value else self._check_entry(key, value)
            return
        first, rest = key[0], key[1] if len(key) == 2 else key[1:]
        nested = self._source.get(first)
        if nested is not None and not isinstance(nested, StoredWriting):
            raise KeyError(f"cannot set the nested key {key!r}: the entry {first!r} is a dataset, not a group")
        if nested is None:
            wrapped = TensorDict._make({}, self._batch_size, self._device)
            wrapped._put(rest, value)
            self._source.refuse(wrapped, new=True)  # before a group is made for it
            self._source[first] = TensorDict._make({}, self._batch_size, self._device)
            nested = self._source.get(first)
        nested._put(rest, value)

    def set_(self, key: Any, item: Any, *, non_blocking: bool = False) -> Any:
        """Write an entry in place; it must exist, and the value fit it."""
        if key not in self:
            raise self._no_key(key)
        parts = parts_of(key)
        self._owner(parts)._write(parts[-1], item)
        return self

    def setdefault(self, key: Any, default: Any, inplace: bool = False) -> Any:
        """Return an entry, setting it first if there is none."""
        if key not in self:
            self.set(key, default, inplace=inplace)
        return self.get(key)

    def _check_objects(self, key: str, entry: Any) -> None:
        """Raise a TypeError or ValueError if the file cannot hold objects."""
        stored_values.check(self._source.group, key, self._check(key, entry))

    def _put_objects(self, key: str, entry: Any) -> None:
        """Put objects into the file, in the place of those that are there."""
        self._source[key] = self._check(key, entry)

    def _write(self, key: str, item: Any, loosely: bool = False) -> None:
        node = self._source.get(key)
        if isinstance(node, StoredWriting):
            if not isinstance(item, (Base, Mapping)):
                raise RuntimeError(
                    f"the entry {key!r} is a TensorDict: a {type(item).__name__} cannot be written to it"
                )
            node.update_(item)
            return
        is_entry = isinstance(item, Base) and item._holds_objects
        if isinstance(item, (Base, Mapping)) and (hdf5.is_array(node) or not is_entry):
            raise InplaceWriteError(
                f"the entry {key!r} is no TensorDict: a {type(item).__name__} cannot be written into it"
            )
        if not hdf5.is_array(node):
            self._source[key] = self._check(key, item) if is_entry else item
            return
        value = as_array(item)
        rows, shape = self._source.rows, self._shape_of(key, node)
        if tuple(value.shape) != tuple(shape) and not self._broadcasts(value.shape, shape, loosely):
            raise RuntimeError(
                f"the value of shape {Size(value.shape)} does not fit the dataset {key!r}, of shape {Size(shape)}"
            )
        hdf5.write(node, value, rows)

    def _fitting(self, key: str, item: Any, shape: tuple[int, ...], loosely: bool) -> Any:
        if not hdf5.is_array(self._source.get(key)):
            return item  # objects, which take others of any kind
        return super()._fitting(key, item, shape, loosely)

    def _shape_of(self, key: str, leaf: Any) -> tuple[int, ...]:
        entries = self._source
        return tuple(leaf.shape if entries.rows is None else (*entries.size, *leaf.shape[len(entries.whole) :]))

    def _merge(self, entries: Any, clone: bool, inplace: bool, wanted: Any, is_leaf: Any) -> None:
        """Write entries after all have been checked, as what is in the file cannot be taken back."""
        outline = entries._outline() if isinstance(entries, StoredWriting) else entries  # nothing is read for it
        chosen = outline if wanted is None else _chosen(outline, wanted)
        trial = TensorDict._make({}, self._batch_size, self._device)
        trial._fill({key: value for key, value in chosen.items() if not (inplace and key in self)})
        self._source.refuse(trial)
        super()._merge(entries, clone, inplace, wanted, is_leaf)

    def __setitem__(self, index: Any, value: Any) -> None:
        named = isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], (str, tuple)))
        if named and index in self and not isinstance(value, (Base, Mapping)):
            self.set_(index, value)
        else:
            super().__setitem__(index, value)

    def _refuse_misfit_rows(self, entries: Any, size: Size, dims: int | None = None) -> None:
        self._outline()._refuse_misfit_rows(entries, size, dims)

    def _missing(self, value: Base, dims: int, path: tuple[str, ...]) -> Any:
        missing = self._outline()._missing(value, dims, path)  # which does not have objects
        return ((key, entry) for key, entry in missing if key not in self)

    def _assign(self, index: tuple[Any, ...], value: Any, keys: Iterable[str] | None = None) -> None:
        if self._source.rows is not None:
            dense = self.to_tensordict()
            dense._assign(index, value, keys)
            self.update_(dense)
            return
        for key in keys if keys is not None else value._source if isinstance(value, Base) else self._source:
            node = self._source.get(key)
            new = value._source[key] if isinstance(value, Base) else value
            if isinstance(node, StoredWriting):
                node._assign(index, new)
            elif hdf5.is_array(node):
                hdf5.write(node, new, index)
            else:
                self._source[key] = self._source[key]._assign(index, new)

    def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Any:
        """Write a part of an entry in place; the rest is not touched."""
        if key not in self:
            raise self._no_key(key)
        parts = parts_of(key)
        owner = self._owner(parts)
        node = owner._source.get(parts[-1])
        if isinstance(node, Base):
            node[index] = value  # type: ignore[index]
        elif not hdf5.is_array(node):
            owner._source[parts[-1]] = owner._source[parts[-1]]._assign(normalize(index, len(self._batch_size)), value)
        elif owner._source.rows is None:
            hdf5.write(node, as_array(value), normalize(index, node.ndim))
        else:
            current = self.get(key)
            TensorDict._make({"x": current}, Size()).set_at_("x", value, index)
            self.set_(key, current)
        return self

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Any:
        """Give an entry another key; nothing is copied."""
        self._refuse_if_locked()
        if old_key not in self:
            raise self._no_key(old_key)
        old, new = parts_of(old_key), parts_of(new_key)
        if old == new:
            return self
        if new_key in self:
            if safe:
                raise KeyError(f"key {new_key} already present in TensorDict.")
            self.del_(new_key)
        self._source.group.move("/".join(old), "/".join(new))
        self._owner(old)._source.nested.pop(old[-1], None)
        return self
