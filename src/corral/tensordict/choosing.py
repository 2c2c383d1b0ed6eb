"""Choose entries by their keys, and give them other keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from corral.tensordict.base import Base
from corral.tensordict.blocks import undone
from corral.tensordict.finding import MISSING, split
from corral.tensordict.keys import Keys
from corral.tensordict.nested_keys import NestedKey, unravel_key

__all__ = ["Choosing"]


def _leads_to(key: Any, other: Any) -> bool:
    """Whether the entry of one key is a TensorDict that holds, or would hold, the other's."""
    start, whole = (k if isinstance(k, tuple) else (k,) for k in map(unravel_key, (key, other)))
    return whole[: len(start)] == start


class Choosing(Keys):
    """Select, exclude and rename."""

    __slots__ = ()

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        """Return a TensorDict with only these entries, which are shared and not copied.

        Parameters
        ----------
        *keys : str or tuple of str
            The entries to keep.
        inplace : bool
            Remove the others from this one instead.
        strict : bool
            Raise a `KeyError` for a key that does not exist.
        as_tensordict : bool
            Accepted for compatibility: the result is a TensorDict.
        """
        result = self._make({}, self._batch_size, self._device, self._names)
        groups: dict[str, list[Any] | None] = {}
        for key in keys:
            if self._find(key) is MISSING:
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
            if parts is not None and not value._holds_objects:
                value = value.select(*parts, inplace=inplace, strict=strict)
            result._source[first] = value
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
            if isinstance(value, Choosing) and not value._holds_objects:
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
            if safe and self._find(new_key) is not MISSING:
                raise KeyError(f"key {new_key} already present in TensorDict.")
            if _leads_to(old_key, new_key) or _leads_to(new_key, old_key):
                self.del_(old_key)  # else the entry would be put into itself, or both would be removed
                self.set(new_key, value)
            else:
                self.set(new_key, value)
                self.del_(old_key)
        return self

    @undone
    def flatten_keys(
        self, separator: str = ".", inplace: bool = False, is_leaf: Callable[[type[Any]], bool] | None = None
    ) -> Self:
        """Return a TensorDict of one level, whose keys are the nested ones joined by a separator.

        Parameters
        ----------
        separator : str
            What stands between the parts of a key.
        inplace : bool
            Change this TensorDict.
        is_leaf : callable, optional
            Takes the class of an entry and says whether it is kept as one; those that are not are left out. By default
            arrays and objects are.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(b={"c": np.ones(2)}).flatten_keys()
        >>> list(td.keys()), list(td.unflatten_keys().keys(True))
        (['b.c'], [('b', 'c'), 'b'])
        """
        result = self._make({}, self._batch_size, self._device, self._names)
        for key, value in self._flat((), is_leaf):
            name = key if isinstance(key, str) else separator.join(key)
            if name in result._source:
                raise KeyError(f"Flattening keys in tensordict causes keys {[name]} to collide.")
            result._source[name] = value
        return self._become(result, inplace)

    def _flat(self, path: tuple[str, ...], is_leaf: Any) -> Iterator[tuple[Any, Any]]:
        for key, value in self._source.items():
            here = (*path, key)
            nested = isinstance(value, Base) and not value._holds_objects
            if not nested if is_leaf is None else is_leaf(type(value)):
                yield here if path else key, value
            elif nested:
                yield from value._flat(here, is_leaf)

    @undone
    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return a TensorDict whose keys are nested where they have the separator."""
        result = self._make({}, self._batch_size, self._device, self._names)
        for key, value in self._source.items():
            parts = tuple(key.split(separator))
            if len(parts) > 1 and result._find(parts) is not MISSING:
                raise KeyError(f"Unflattening key(s) in tensordict will override existing key(s) {[parts]}.")
            result._put(unravel_key(parts), value)
        return self._become(result, inplace)
