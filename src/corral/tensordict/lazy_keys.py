"""Entries of a lazy stack by their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from corral.arrays.operations import as_array
from corral.arrays.operations import expand as expand_array
from corral.arrays.padding import nested, pad_stack
from corral.tensordict.abstract import TensorDictBase
from corral.tensordict.base import Base
from corral.tensordict.blocks import undone
from corral.tensordict.dense import TensorDict
from corral.tensordict.finding import MISSING, refuse_no_entries, split
from corral.tensordict.lazy_parts import LazyParts
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.sizes import Size
from corral.tensordict.updating import _chosen, _structure

__all__ = ["LazyKeys"]

_MISSING: Any = object()


class LazyKeys(LazyParts):
    """Read, write, rename and choose entries of all members."""

    __slots__ = ()

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (str, tuple)):
            raise NotImplementedError(f"TensorDict does not support membership checks of {type(key).__name__}")
        return key in self.keys(include_nested=True)

    def is_empty(self) -> bool:
        """Whether there is no leaf that all members have."""
        entries = self._source
        return all(isinstance(value, TensorDictBase) and value.is_empty() for value in map(entries.peek, entries))

    def get(
        self,
        key: NestedKey,
        default: Any = _MISSING,
        *,
        as_list: bool = False,
        as_padded_tensor: bool = False,
        as_nested_tensor: bool = False,
        padding_side: str = "right",
        padding_value: Any = 0,
    ) -> Any:
        """Return the entry of a key, stacked, or `default` (``None``) if there is none.

        Parameters
        ----------
        key : str or tuple of str
            Key of the entry.
        default
            Returned where some member has no such entry.
        as_list : bool
            Return the list of the members' entries.
        as_padded_tensor : bool
            Fill up arrays of different shapes to one shape. Members come first, whatever the `stack_dim`.
        as_nested_tensor : bool
            Return one of torch's nested tensors, members first.
        padding_side : {"right", "left"}
            Where to fill up.
        padding_value
            What to fill up with.

        Raises
        ------
        RuntimeError
            If the arrays have different shapes, and none of these is asked for.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict, lazy_stack
        >>> td = lazy_stack([TensorDict(a=np.ones(n)) for n in (1, 2)])
        >>> td.get("a", as_list=True)
        [array([1.]), array([1., 1.])]
        >>> td.get("a", as_padded_tensor=True)
        array([[1., 0.],
               [1., 1.]])
        """
        if not (as_list or as_padded_tensor or as_nested_tensor):
            return super().get(key) if default is _MISSING else super().get(key, default)
        if key not in self:
            return None if default is _MISSING else default
        entry = self._peek(key) if isinstance(key, str) else None
        if isinstance(entry, Base):
            return super().get(key)
        options = {
            "as_list": as_list,
            "as_padded_tensor": as_padded_tensor,
            "padding_side": padding_side,
            "padding_value": padding_value,
        }
        deeper = options if as_list or as_padded_tensor else {}
        values = [td.get(key, **deeper) if isinstance(td, LazyKeys) else td.get(key) for td in self.tensordicts]
        if isinstance(values[0], Base):
            return super().get(key)
        if as_list:
            return values
        return nested(values) if as_nested_tensor else pad_stack(values, padding_value, padding_side)

    def get_nestedtensor(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Return an entry as one of torch's nested tensors."""
        return self.get(key, default, as_nested_tensor=True)

    def _put(self, key: NestedKey, value: Any) -> None:
        if isinstance(key, str):
            self._source[key] = self._check_entry(key, value)
            return
        first, rest = key[0], key[1:]
        rest_key = rest[0] if len(rest) == 1 else rest
        lacking = [td for td in self.tensordicts if first not in td._source]
        if lacking:
            wrapped = TensorDict._make({}, self._batch_size, self._device)
            wrapped._put(rest_key, value)  # which fails before anything is set
        for td in lacking:
            td._put(first, td._entry_class()._make({}, td._batch_size, td._device))
        nested_td = self._source[first]
        if not isinstance(nested_td, Base) or nested_td._holds_objects:
            raise KeyError(f"cannot set the nested key {key!r}: the entry {first!r} is a leaf, not a TensorDict")
        nested_td._put(rest_key, value)

    def _refuse_leaf_on_the_way(self, key: NestedKey) -> None:
        """Raise if a member has an array where a nested key leads through: in a dict, it would take its place."""
        first, rest = split(key)
        for td in self.tensordicts if rest is not None else ():
            entry = td._peek(first) if first in td._source else None
            if entry is not None and (not isinstance(entry, Base) or entry._holds_objects):
                raise KeyError(f"cannot set the nested key {key!r}: the entry {first!r} is a leaf, not a TensorDict")

    def set(
        self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False, **kwargs: Any
    ) -> Self:
        """Set an entry of all members."""
        key = unravel_key(key)
        if inplace and key in self:
            return self.set_(key, item)
        self._refuse_if_locked()
        self._put(key, item)
        return self

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        """Write an entry of all members in place; the entry must exist, and the value fit it."""
        key = unravel_key(key)
        if key not in self:
            raise self._no_key(key)
        wrapped = self._wrapped(key, item, self._batch_size)
        for td, piece in zip(self.tensordicts, self._pieces(wrapped), strict=True):
            td.update_(piece)
        return self

    def _wrapped(self, key: NestedKey, item: Any, size: Size) -> TensorDict:
        """Return a TensorDict of one entry, an array repeated along the batch where it lacks that."""
        if not isinstance(item, (Base, Mapping)) and not isinstance(item, str):
            try:
                item = as_array(item)
            except TypeError:
                pass
            else:
                if tuple(item.shape[: len(size)]) != size and -1 not in size:
                    item = expand_array(item, (*size, *self._behind(key)))
        wrapped = TensorDict._make({}, size, None)
        wrapped._put(unravel_key(key), item)
        return wrapped

    def _behind(self, key: NestedKey) -> tuple[int, ...]:
        """Return the shape of a leaf behind the batch."""
        td = self.tensordicts[0]
        return td._behind(key) if isinstance(td, LazyKeys) else tuple(td.get(key).shape[len(td._batch_size) :])

    def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        """Write a part of an entry in place."""
        key = unravel_key(key)
        if key not in self:
            raise self._no_key(key)
        entry = self._source.peek(key) if isinstance(key, str) else self._find(key)
        if isinstance(entry, Base) and not entry._holds_objects:
            nested: Any = self.get(key)
            nested[index] = value
            return self
        parts, size = self._indexed(index)
        if isinstance(key, str) and isinstance(value, (bool, int, float, complex)) and not isinstance(entry, Base):
            self._assign(parts, value, [key])  # whatever the shapes of the members
        else:
            self._assign(parts, self._wrapped(key, value, size))
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
        """Write another TensorDict's entries into a part of the batch: to the members that it is of."""
        if not isinstance(input_dict_or_td, TensorDictBase):
            return super().update_at_(input_dict_or_td, idx, keys_to_update=keys_to_update)
        source: Any = input_dict_or_td
        self[idx] = source if keys_to_update is None else source.select(*keys_to_update, strict=False)
        return self

    def update(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Iterable[NestedKey] | None = None,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Set all entries that a dict or another TensorDict has in the members."""
        if kwargs:
            self.update(input_dict_or_td, clone, inplace, keys_to_update=keys_to_update, is_leaf=is_leaf)
            input_dict_or_td = kwargs
        if input_dict_or_td is self or input_dict_or_td is None:
            return self
        if not inplace:
            self._refuse_if_locked()
        keys = None if keys_to_update is None else list(keys_to_update)
        for key in input_dict_or_td if isinstance(input_dict_or_td, dict) else ():
            self._refuse_leaf_on_the_way(key)
        before = _structure(self)
        pairs = list(zip(self.tensordicts, self._pieces(input_dict_or_td), strict=True))
        try:
            if inplace:
                for td, piece in pairs:
                    td._refuse_misfits(piece if keys is None else _chosen(piece, keys), required=False, loosely=False)
            for td, piece in pairs:
                td.update(piece, clone=clone, inplace=inplace, keys_to_update=keys, is_leaf=is_leaf)
        except BaseException:
            for source, entries in before:
                source.clear()
                source.update(entries)
            raise
        return self

    def _refuse_misfits(self, entries: Any, required: bool, loosely: bool = True) -> None:
        for td, piece in zip(self.tensordicts, self._pieces(entries), strict=True):
            td._refuse_misfits(piece, required, loosely)

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Iterable[NestedKey] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Write entries of the members in place; each must exist."""
        keys = None if keys_to_update is None else list(keys_to_update)
        for entries in (input_dict_or_td, kwargs):
            if entries is None or entries is self or (isinstance(entries, dict) and not entries):
                continue
            refuse_no_entries("update_", entries)
            pairs = list(zip(self.tensordicts, self._pieces(entries), strict=True))
            for td, piece in pairs:
                td._refuse_misfits(piece if keys is None else _chosen(piece, keys), required=True)
            for td, piece in pairs:
                td.update_(piece, clone, keys_to_update=keys)
        return self

    def rename_key_(self, old_key: NestedKey, new_key: NestedKey, safe: bool = False) -> Self:
        """Give an entry of all members another key."""
        self._refuse_if_locked()
        for td in self.tensordicts:
            td.rename_key_(old_key, new_key, safe)
        return self

    def del_(self, key: NestedKey) -> Self:
        """Remove an entry of all members that have it; one must."""
        self._refuse_if_locked()
        key = unravel_key(key)
        having = [td for td in self.tensordicts if key in td]
        if not having:
            raise self._no_key(key)
        for td in having:
            td.del_(key)
        return self

    def clear(self) -> Self:
        """Remove all entries of all members."""
        self._refuse_if_locked()
        for td in self.tensordicts:
            td.clear()
        return self

    def empty(self, recurse: bool = False, *, batch_size: Any = None, device: Any = MISSING, names: Any = None) -> Any:
        """Return a lazy stack of the members without their leaves; a dense TensorDict where `batch_size` is given."""
        if batch_size is not None:
            return TensorDict({}, batch_size, device=self._device if device is MISSING else device, names=names)
        result = self._memberwise(lambda td: td.empty(recurse, device=device))
        if names is not None:
            result._set_names(names)
        return result

    def _without_leaves(self, recurse: bool) -> Self:
        return self._memberwise(lambda td: td._without_leaves(recurse))

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        """Return a lazy stack with only these entries."""
        if inplace:
            self._refuse_if_locked()
        result = self._memberwise(lambda td: td.select(*keys, inplace=inplace, strict=strict))
        return self if inplace else result

    def exclude(self, *keys: NestedKey, inplace: bool = False) -> Self:
        """Return a lazy stack without these entries."""
        if inplace:
            self._refuse_if_locked()
        result = self._memberwise(lambda td: td.exclude(*keys, inplace=inplace))
        return self if inplace else result

    @undone
    def flatten_keys(
        self, separator: str = ".", inplace: bool = False, is_leaf: Callable[[type[Any]], bool] | None = None
    ) -> Self:
        """Return a lazy stack of the members with flattened keys."""
        result = self._memberwise(lambda td: td.flatten_keys(separator, inplace, is_leaf))
        return self if inplace else result

    @undone
    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return a lazy stack of the members with nested keys."""
        result = self._memberwise(lambda td: td.unflatten_keys(separator, inplace))
        return self if inplace else result
