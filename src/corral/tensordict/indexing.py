"""Rows and parts of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from corral.arrays.creating import new_full
from corral.arrays.indexing import assign, is_mask, normalize, take, taker
from corral.arrays.libraries import is_traced
from corral.arrays.operations import as_array
from corral.arrays.operations import unbind as unbind_array
from corral.tensordict.base import Base
from corral.tensordict.errors import DimensionError
from corral.tensordict.finding import split
from corral.tensordict.keys import Keys
from corral.tensordict.names import after_index
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.sizes import Size
from corral.tensordict.updating import _chosen

__all__ = ["Indexing"]

_EVERYTHING = slice(None)


class Indexing(Keys):
    """Index a TensorDict along its batch, and assign to parts of it."""

    __slots__ = ()

    def __len__(self) -> int:
        return self._batch_size[0] if self._batch_size else 0

    def __iter__(self) -> Iterator[Self]:
        if not self._batch_size:
            raise TypeError(
                "iteration over a 0-d tensordict. Use keys(), values() or items() to iterate over its entries."
            )
        return iter(self.unbind(0))

    def __getitem__(self, index: Any) -> Any:
        value: Any
        if type(index) is str:
            try:
                value = self._source[index]
            except KeyError:
                raise self._no_key(index) from None
            return value._unwrapped() if isinstance(value, Base) else value
        if type(index) is tuple and index and type(index[0]) is str:
            value = self
            try:
                for part in index:
                    value = value._source[part]
                return value._unwrapped() if isinstance(value, Base) else value
            except (KeyError, AttributeError, TypeError):
                pass  # no such entry, or a tuple in the tuple
        if isinstance(index, str) or (isinstance(index, tuple) and _is_key(index)):
            value = self._require(index)
            return value._unwrapped() if isinstance(value, Base) else value
        parts = normalize(index, len(self._batch_size))
        kind = type(index)
        if (kind is slice and index == _EVERYTHING) or (
            (kind is tuple or index is ...) and all(type(part) is slice and part == _EVERYTHING for part in parts)
        ):
            members = self._members()  # of another stack, which can be appended to for itself
            return self if members is None else self._restacked(members)
        return self._take(parts)

    def _take(self, index: tuple[Any, ...]) -> Self:
        if len(index) == 1 and type(rows := index[0]) is np.ndarray and (rows.ndim == 1 or rows.dtype.kind != "b"):
            return self._rows(rows)
        size = indexed_size(self._batch_size, index)
        part = taker(index)
        part.index = index  # type: ignore[attr-defined]  # a lazy stack among the entries takes its members by it
        return self._map_resized(part, size, len(self._batch_size), after_index(self._names, index))

    def _rows(self, rows: np.ndarray[Any, Any]) -> Self:
        """Take rows by one array of integers or one mask, which is looked at once for all leaves."""
        size = self._batch_size
        if rows.dtype.kind == "b":
            if rows.shape != size[:1]:
                raise IndexError(
                    f"The shape of the mask {list(rows.shape)} does not match that of the batch {list(size)}"
                )
            rows = np.flatnonzero(rows)
        elif rows.size and not (-size[0] <= rows.min() and rows.max() < size[0]):
            raise IndexError(f"an index is out of bounds for dimension 0 with size {size[0]}")

        names = self._names and after_index(self._names, (rows,))

        other = taker((rows,))

        def pick(leaf: Any) -> Any:
            return leaf.take(rows, 0) if type(leaf) is np.ndarray else other(leaf)

        pick.index = (rows,)  # type: ignore[attr-defined]
        return self._map_resized(pick, Size((*rows.shape, *size[1:])), len(size), names)

    def get_at(self, key: Any, index: Any, default: Any = None) -> Any:
        """Return a part of the entry of a key, or `default`."""
        value: Any = self.get(key)
        if value is None:
            return default
        nested: Any = value  # keeps its type where `isinstance` would narrow it to the abstract base
        return nested[index] if isinstance(value, Base) else take(value, normalize(index, len(value.shape)))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str) or (isinstance(index, tuple) and _is_key(index)):
            self.set(index, value)
            return
        parts = normalize(index, len(self._batch_size))
        size = indexed_size(self._batch_size, parts)
        if not isinstance(value, (Base, Mapping)):
            if not isinstance(value, (bool, int, float, complex)):
                value = as_array(value)
            self._assign(parts, value)
            return
        if isinstance(value, Mapping):
            value = type(self)._make({}, size).update(value)
        if (theirs := value._batch_size) != size:
            try:
                # Dimensions may be missing in front, or be the entries' alone; a length of 1 is not repeated.
                alike = theirs and theirs == size[-len(theirs) :]
                value = value.expand(size) if alike else value._resized(size)
            except RuntimeError as error:
                raise RuntimeError(
                    f"indexed destination TensorDict batch size is {size} (batch_size = {self._batch_size}, "
                    f"index={index}), which differs from the source batch size {theirs}"
                ) from error
        self._refuse_misfit_rows(value, size)
        self._prepare_keys(value)
        self._assign(parts, value)

    def _prepare_keys(self, value: Base) -> None:
        """Make entries for the keys that a value for a part of the batch has, and this TensorDict lacks: of zeros."""
        missing = list(self._missing(value, len(value._batch_size), ()))
        if missing:
            self._refuse_if_locked()
        for key, entry in missing:
            self._put(key, entry)

    def _missing(self, value: Base, dims: int, path: tuple[str, ...]) -> Iterator[tuple[NestedKey, Any]]:
        for key, entry in value._source.items():
            mine = self._source.get(key)
            if mine is None:
                yield (*path, key) if path else key, _blank(entry, self._batch_size, dims)
                continue
            if isinstance(mine, Base) != isinstance(entry, Base):
                raise RuntimeError(f"the entry {key!r} is a leaf on one side and a TensorDict on the other")
            if isinstance(mine, Indexing) and isinstance(entry, Base):
                yield from mine._missing(entry, dims, (*path, key))

    def _assign(self, index: tuple[Any, ...], value: Any, keys: Iterable[str] | None = None) -> Any:
        """Write a part of the entries that a TensorDict has, or an array or number to some or all entries."""
        for key in value._source if isinstance(value, Base) else self._source if keys is None else keys:
            leaf = self._source[key]
            new = value._source[key] if isinstance(value, Base) else value
            if isinstance(leaf, Indexing):
                if leaf._holds_objects:
                    self._source[key] = leaf._assign(index, new)
                else:
                    leaf._assign(index, new)
            else:
                self._source[key] = assign(leaf, index, new)

    def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        """Write a part of an entry in place.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros(3)).set_at_("a", 1.0, slice(1, None))["a"]
        array([0., 1., 1.])
        """
        entry = self._require(key)
        if isinstance(entry, Indexing) and entry._holds_objects:
            self._replace(key, entry._assign(normalize(index, len(entry._batch_size)), value))
        elif isinstance(entry, Base):
            entry[index] = value  # type: ignore[index]
        else:
            assign(entry, normalize(index, len(entry.shape)), value)
        return self

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Iterable[NestedKey] | None = None,
    ) -> Self:
        """Write a part of the batch of every entry that a dict or TensorDict has, or only of `keys_to_update`."""
        wanted = None if keys_to_update is None else [unravel_key(key) for key in keys_to_update]
        rows = indexed_size(self._batch_size, normalize(idx, len(self._batch_size)))
        self._refuse_misfit_rows(input_dict_or_td if wanted is None else _chosen(input_dict_or_td, wanted), rows)
        for key, value in input_dict_or_td.items():
            if wanted is None:
                self.set_at_(key, value, idx)
                continue
            name = unravel_key(key)
            parts = [split(each)[1] for each in wanted if split(each)[0] == split(name)[0]]
            if name in wanted:
                self.set_at_(key, value, idx)
            elif parts and isinstance(value, (Base, Mapping)):
                nested = self._require(key)
                nested.update_at_(value, idx, keys_to_update=[part for part in parts if part is not None])
        return self

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the parts of the batch along one of its dimensions, which is removed."""
        if not self._batch_size:
            raise DimensionError("Dimension specified as 0 but tensordict has no batch dimensions.")
        dim = self._dim(dim)
        return self._unbind(dim)

    def _unbind(self, dim: int) -> tuple[Self, ...]:
        size, device = self._batch_size, self._device
        part = Size((*size[:dim], *size[dim + 1 :]))
        columns = [
            value._unbind(dim) if isinstance(value, Indexing) else unbind_array(value, dim)
            for value in self._source.values()
        ]
        keys = self._source.keys()
        names = self._names and after_index(self._names, (*(slice(None),) * dim, 0))
        if not columns:
            return tuple(self._make({}, part, device, names) for _ in range(size[dim]))
        return tuple(
            self._make(dict(zip(keys, row, strict=True)), part, device, names) for row in zip(*columns, strict=True)
        )

    def _dim(self, dim: int) -> int:
        count = len(self._batch_size)
        if not -count <= dim < count:
            raise DimensionError(
                f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})"
            )
        return dim % count


def _blank(entry: Any, size: Size, dims: int) -> Any:
    """Return what an entry is of which only a part, of so many dimensions of the batch, has a value."""
    shape = Size((*size, *entry.shape[dims:]))
    if not isinstance(entry, Base):
        return new_full(entry, shape, 0)
    if not entry._holds_objects:
        source = {key: _blank(value, size, dims) for key, value in entry._source.items()}
        return entry._make(source, shape, entry._device)
    return entry._resized(shape) if entry._fits_any else entry._with(np.full(shape, None, object))  # type: ignore[attr-defined]


def _is_key(index: tuple[Any, ...]) -> bool:
    return bool(index) and all(isinstance(part, str) or (isinstance(part, tuple) and _is_key(part)) for part in index)


def indexed_size(size: Size, index: tuple[Any, ...]) -> Size:
    """Return the shape that a normalized index makes of a shape."""
    result: list[int] = []
    rest = iter(size)
    for item in index:
        if type(item) is slice:
            result.append(len(range(*item.indices(next(rest)))))
        elif item is None:
            result.append(1)
        elif type(item) is int:
            length = next(rest)
            if not -length <= item < length:
                raise IndexError(f"index {item} is out of bounds for dimension 0 with size {length}")
        elif len(index) == 1 and not is_mask(item):
            return Size((*item.shape, *size[1:]))
        else:  # index arrays: let NumPy say
            index = tuple(
                np.zeros(each.shape, int) if is_traced(each) and not is_mask(each) else each for each in index
            )
            return Size(take(np.broadcast_to(np.empty((), np.bool_), size), index).shape)
    return Size((*result, *rest))
