"""Access to entries by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from corral.arrays.libraries import copy_into, library_of
from corral.arrays.operations import as_array
from corral.arrays.operations import clone as clone_array
from corral.tensordict.base import Base, KeyThroughLeafError, NestedKey, Size, device_name, unravel_key
from corral.tensordict.views import ItemsView, KeysView, ValuesView

__all__ = ["Keys"]

_MISSING: Any = object()


def split(key: Any) -> tuple[str, NestedKey | None]:
    """Return the first part of a key, and the rest of it or ``None``."""
    key = unravel_key(key)
    if isinstance(key, str):
        return key, None
    return key[0], key[1] if len(key) == 2 else key[1:]


def _leads_to(key: Any, other: Any) -> bool:
    """Whether the entry of one key is a TensorDict that holds, or would hold, the other's."""
    start, whole = (k if isinstance(k, tuple) else (k,) for k in map(unravel_key, (key, other)))
    return whole[: len(start)] == start


def _is_dictionary(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, Base) and not value._holds_objects)


def _copied(value: Any) -> Any:
    if isinstance(value, Base):
        return value.clone()  # type: ignore[attr-defined]
    try:
        return clone_array(as_array(value))
    except TypeError:
        return value  # an object that is no array, and is wrapped as it is


class Keys(Base):
    """Read, write, rename and choose entries."""

    __slots__ = ()

    def keys(self, include_nested: bool = False, leaves_only: bool = False, *, sort: bool = False) -> KeysView:
        """Return the keys, as a view.

        Parameters
        ----------
        include_nested : bool
            Also those of nested TensorDicts, as tuples.
        leaves_only : bool
            Not those whose entries are TensorDicts.
        sort : bool
            In alphabetical order, nested keys by their parts joined with dots.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2), b={"c": np.ones(2)}, batch_size=[2])
        >>> list(td.keys(include_nested=True, leaves_only=True))
        ['a', ('b', 'c')]
        """
        return KeysView(self, include_nested, leaves_only, sort)

    def values(self, include_nested: bool = False, leaves_only: bool = False, *, sort: bool = False) -> ValuesView:
        """Return the entries, in the order of `keys`."""
        return ValuesView(self, include_nested, leaves_only, sort)

    def items(self, include_nested: bool = False, leaves_only: bool = False, *, sort: bool = False) -> ItemsView:
        """Return pairs of keys and entries, in the order of `keys`."""
        return ItemsView(self, include_nested, leaves_only, sort)

    @property
    def sorted_keys(self) -> list[str]:
        """The keys of this level in alphabetical order."""
        return sorted(self._source)

    def is_empty(self) -> bool:
        """Whether there is no leaf."""
        return all(isinstance(value, Keys) and value.is_empty() for value in self._source.values())

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (str, tuple)):
            raise NotImplementedError(f"TensorDict does not support membership checks of {type(key).__name__}")
        return self._find(key) is not _MISSING

    def _find(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._source.get(key, _MISSING)
        value: Any = self
        if type(key) is tuple and key:
            try:
                for part in key:
                    value = value._source[part]
            except (KeyError, AttributeError, TypeError):
                value = self  # no such entry, or a tuple in the tuple
            else:
                return value
        for part in (first,) if isinstance(first := unravel_key(key), str) else first:
            if not isinstance(value, Base):
                return _MISSING
            value = value._source.get(part, _MISSING)
        return value

    def _no_key(self, key: Any) -> Exception:
        node: Any = self
        unraveled = unravel_key(key)
        parts = (unraveled,) if isinstance(unraveled, str) else unraveled
        for depth, part in enumerate(parts, 1):
            value = node._source.get(part)
            if not isinstance(value, Base):
                if value is not None and depth < len(parts):
                    return KeyThroughLeafError(
                        f"the entry {part!r} on the way to {key!r} is an array, not a TensorDict"
                    )
                break
            node = value
        return KeyError(f'key "{part}" not found in TensorDict with keys {sorted(node._source)}')

    def _require(self, key: Any) -> Any:
        value = self._find(key)
        if value is _MISSING:
            raise self._no_key(key)
        return value

    def get(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Return the entry of a key, or `default` (``None``) if there is none.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(b={"c": np.ones(2)})
        >>> td.get(("b", "c"))
        array([1., 1.])
        >>> td.get("d") is None
        True
        """
        value = self._find(key)
        if value is not _MISSING:
            return value
        if default is not _MISSING:
            return default
        if isinstance(error := self._no_key(key), KeyThroughLeafError):
            raise error
        return None

    def set(self, key: NestedKey, item: Any, *, inplace: bool = False, non_blocking: bool = False) -> Self:
        """Set an entry; TensorDicts on the way to a nested key are made.

        Parameters
        ----------
        key : str or tuple of str
            Key of the entry.
        item : array, number, list, dict or TensorDict
            Its new value.
        inplace : bool
            Write into the memory of the entry if there is one.
        non_blocking : bool
            Accepted for compatibility.
        """
        if type(key) is str and not (inplace or self._locked):
            self._source[key] = self._check(key, item)
            return self
        key = unravel_key(key)
        if inplace and self._find(key) is not _MISSING:
            return self.set_(key, item)
        self._refuse_if_locked()
        self._put(key, item)
        return self

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        """Write an entry in place; the entry must exist, and the value fit it."""
        current = self._require(key)
        first, rest = split(key)
        if rest is not None:
            self._source[first].set_(rest, item)
        elif isinstance(current, Base) and current._holds_objects:
            self._source[first] = self._check(first, current._rewritten(item))  # type: ignore[attr-defined]
        elif isinstance(current, Keys):
            if not isinstance(item, (Base, Mapping)):
                raise RuntimeError(
                    f"the entry {first!r} is a TensorDict: a {type(item).__name__} cannot be written into it"
                )
            current.update_(item)
        else:
            self._write(first, current, item)
        return self

    def _write(self, key: str, current: Any, item: Any) -> None:
        if isinstance(item, (Base, Mapping)):
            raise RuntimeError(f"the entry {key!r} is an array: a {type(item).__name__} cannot be written into it")
        try:
            value = as_array(item)
        except TypeError as error:
            raise RuntimeError(f"the entry {key!r} is an array, which cannot be written: {error}") from error
        if tuple(value.shape) != tuple(current.shape) and not self._broadcasts(value.shape, current.shape):
            raise RuntimeError(
                f"Failed to update {key!r} in tensordict {self!r}: the value of shape {Size(value.shape)} does not "
                f"fit the entry of shape {Size(current.shape)}"
            )
        if library_of(current) == "jax":
            self._source[key] = current.at[...].set(value)
        elif value is not current:
            copy_into(current, value)

    def _replace(self, key: NestedKey, value: Any) -> None:
        """Put another value where an entry is, whether the TensorDict is locked or not."""
        first, rest = split(key)
        if rest is None:
            self._source[first] = value
        else:
            self._source[first]._replace(rest, value)

    def _broadcasts(self, shape: Sequence[int], target: Sequence[int]) -> bool:
        """Whether a value of a shape can be written into an entry: only what is behind the batch is repeated."""
        size = self._batch_size
        extra = len(target) - len(shape)
        return (
            extra >= 0
            and tuple(shape[: len(size)]) == size
            and all(n in (1, m) for n, m in zip(shape, target[extra:], strict=True))
        )

    def get_non_tensor(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Return the object of an entry, or its objects as lists; the entry itself if it is an array or a TensorDict.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict(name="ant").get_non_tensor("name")
        'ant'
        """
        value = self._find(key)
        if value is _MISSING:
            if default is _MISSING:
                raise self._no_key(key)
            return default
        return value._unwrapped() if isinstance(value, Base) else value

    def set_non_tensor(self, key: NestedKey, value: Any) -> Self:
        """Set an entry of one object, whatever that is: numbers and arrays, too.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict(batch_size=[2]).set_non_tensor("rate", 3)["rate"]
        3
        """
        from corral.tensordict.nontensor import NonTensorData

        return self.set(key, NonTensorData(value, self._batch_size, self._device))

    def setdefault(self, key: NestedKey, default: Any, inplace: bool = False) -> Any:
        """Return an entry, setting it first if there is none."""
        if self._find(key) is _MISSING:
            self.set(key, default, inplace=inplace)
        return self.get(key)

    def pop(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Remove an entry and return it, or return `default` if that is given and there is no entry."""
        self._refuse_if_locked()
        value = self._find(key)
        if value is _MISSING:
            if default is _MISSING:
                raise self._no_key(key)
            return default
        self.del_(key)
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the entry that was added last and return its key and value."""
        self._refuse_if_locked()
        return self._source.popitem()

    def clear(self) -> Self:
        """Remove all entries."""
        self._refuse_if_locked()
        self._source.clear()
        return self

    def empty(
        self, recurse: bool = False, *, batch_size: Any = None, device: Any = _MISSING, names: Any = None
    ) -> Self:
        """Return a TensorDict of the same batch size without leaves; with the nested ones if `recurse`.

        Parameters
        ----------
        recurse : bool
            Keep nested TensorDicts, without their leaves.
        batch_size, device, names : optional
            Those of the result, where they shall be others.
        """
        result = self._without_leaves(recurse)
        if device is not _MISSING:
            result._set_device(device_name(device))
        if batch_size is not None:
            result.batch_size = batch_size
        if names is not None:
            result._set_names(names)
        return result

    def _without_leaves(self, recurse: bool) -> Self:
        nested = {k: v._without_leaves(True) for k, v in self._source.items() if isinstance(v, Keys)} if recurse else {}
        return self._make(nested, self._batch_size, self._device, self._names)

    def del_(self, key: NestedKey) -> Self:
        """Remove an entry."""
        self._refuse_if_locked()
        first, rest = split(key)
        if first not in self._source or (rest is not None and not isinstance(self._source[first], Base)):
            raise self._no_key(key)
        if rest is None:
            del self._source[first]
        else:
            self._source[first].del_(rest)
        return self

    def __delitem__(self, key: NestedKey) -> None:
        self.del_(key)

    def update(
        self,
        input_dict_or_td: Any,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Iterable[NestedKey] | None = None,
    ) -> Self:
        """Set all entries that a dict or another TensorDict has.

        Parameters
        ----------
        input_dict_or_td : dict or TensorDict
            The entries; nested ones are merged.
        clone : bool
            Set copies.
        inplace : bool
            Write into the memory of entries that exist.
        non_blocking : bool
            Accepted for compatibility.
        keys_to_update : iterable of keys, optional
            Take only these entries.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> a = np.zeros(2)
        >>> td = TensorDict(a=a).update({"a": np.ones(2), "b": 3}, inplace=True)
        >>> a, td["b"]
        (array([1., 1.]), array(3))
        """
        if input_dict_or_td is self:
            return self
        if isinstance(input_dict_or_td, Base):
            mine, theirs = self._batch_size, input_dict_or_td._batch_size
            if mine[: len(theirs)] != theirs[: len(mine)]:
                raise RuntimeError(
                    f"update() got a source with batch size {theirs} for a destination with batch size {mine}."
                )
        wanted = None if keys_to_update is None else [unravel_key(key) for key in keys_to_update]
        if wanted is not None and not wanted:
            return self
        if not inplace:
            self._refuse_if_locked()
        for name, value in input_dict_or_td.items():
            first, rest = split(name)
            subset = None
            if wanted is not None:
                matches = [split(key)[1] for key in wanted if split(key)[0] == first]
                if not matches:
                    continue
                if None not in matches:
                    subset = [key for key in matches if key is not None]
            current = self._source.get(first)
            if rest is not None and isinstance(current, Keys):
                current.update({rest: value}, clone=clone, inplace=inplace, keys_to_update=subset)
            elif isinstance(current, Keys) and _is_dictionary(current) and _is_dictionary(value):
                current.update(value, clone=clone, inplace=inplace, keys_to_update=subset)
            else:
                if subset is not None and isinstance(value, Base) and _is_dictionary(value):
                    value = value.select(*subset)  # type: ignore[attr-defined]
                if clone:
                    value = _copied(value)
                self.set(first if rest is None else name, value, inplace=inplace)
        return self

    def update_(self, input_dict_or_td: Any, clone: bool = False, *, non_blocking: bool = False) -> Self:
        """Write entries in place; each must exist.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> a = np.zeros(2)
        >>> _ = TensorDict(a=a).update_({"a": [5, 6]})
        >>> a
        array([5., 6.])
        """
        if input_dict_or_td is self:
            return self
        for key, value in input_dict_or_td.items():
            if self._find(key) is _MISSING:
                raise KeyError(f"The key {key} was not found in the dest tensordict.")
            self.set_(key, value)
        return self

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True) -> Self:
        """Return a TensorDict with only these entries, which are shared and not copied.

        Parameters
        ----------
        *keys : str or tuple of str
            The entries to keep.
        inplace : bool
            Remove the others from this one instead.
        strict : bool
            Raise a `KeyError` for a key that does not exist.
        """
        result = self._make({}, self._batch_size, self._device, self._names)
        groups: dict[str, list[Any] | None] = {}
        for key in keys:
            if self._find(key) is _MISSING:
                if strict:
                    raise self._no_key(key)
                if not isinstance(self._source.get(split(key)[0]), Base):
                    continue
            first, rest = split(key)
            group = groups.setdefault(first, [])
            if rest is None:
                groups[first] = None
            elif group is not None:
                group.append(rest)
        for first, parts in groups.items():
            value = self._source[first]
            result._source[first] = value if parts is None else value.select(*parts, inplace=inplace, strict=strict)
        return self._become(result, inplace)

    def exclude(self, *keys: NestedKey, inplace: bool = False) -> Self:
        """Return a TensorDict without these entries; the others are shared and not copied."""
        result = self._make(dict(self._source), self._batch_size, self._device, self._names)
        groups: dict[str, list[NestedKey]] = {}
        for key in keys:
            first, rest = split(key)
            if rest is None:
                result._source.pop(first, None)
            else:
                groups.setdefault(first, []).append(rest)
        for first, parts in groups.items():
            value = result._source.get(first)
            if isinstance(value, Keys):
                result._source[first] = value.exclude(*parts, inplace=inplace)
        return self._become(result, inplace)

    def _become(self, result: Self, inplace: bool) -> Self:
        if not inplace:
            return result
        self._refuse_if_locked()
        self._source = result._source
        return self

    def rename_key_(self, old_key: NestedKey, new_key: NestedKey, safe: bool = False) -> Self:
        """Give an entry another key.

        Parameters
        ----------
        old_key, new_key : str or tuple of str
            The key now, and then.
        safe : bool
            Raise a `KeyError` if `new_key` exists already.
        """
        self._refuse_if_locked()
        value = self._require(old_key)
        if unravel_key(old_key) != unravel_key(new_key):
            if safe and self._find(new_key) is not _MISSING:
                raise KeyError(f"key {new_key} already present in TensorDict.")
            if _leads_to(old_key, new_key) or _leads_to(new_key, old_key):
                self.del_(old_key)  # else the entry would be put into itself, or both would be removed
                self.set(new_key, value)
            else:
                self.set(new_key, value)
                self.del_(old_key)
        return self

    def flatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return a TensorDict of one level, whose keys are the nested ones joined by a separator.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(b={"c": np.ones(2)}).flatten_keys()
        >>> list(td.keys()), list(td.unflatten_keys().keys(True))
        (['b.c'], [('b', 'c'), 'b'])
        """
        result = self._make({}, self._batch_size, self._device, self._names)
        for key, value in self.items(True):
            if isinstance(value, Base) and not value._holds_objects:
                continue
            name = key if isinstance(key, str) else separator.join(key)
            if name in result._source:
                raise KeyError(f"Flattening keys in tensordict causes keys {[name]} to collide.")
            result._source[name] = value
        return self._become(result, inplace)

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return a TensorDict whose keys are nested where they have the separator."""
        result = self._make({}, self._batch_size, self._device, self._names)
        for key, value in self._source.items():
            parts = tuple(key.split(separator))
            if len(parts) > 1 and result._find(parts) is not _MISSING:
                raise KeyError(f"Unflattening key(s) in tensordict will override existing key(s) {[parts]}.")
            result._put(unravel_key(parts), value)
        return self._become(result, inplace)
