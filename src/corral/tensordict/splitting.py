"""Distribute entries among several TensorDicts, and gather entries in one array."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from corral.arrays.libraries import copy_into, library_of
from corral.arrays.operations import cat as cat_arrays
from corral.arrays.operations import stack as stack_arrays
from corral.tensordict.base import Base
from corral.tensordict.keys import Keys
from corral.tensordict.nested_keys import NestedKey, unravel_key

__all__ = ["Splitting"]

_MISSING: Any = object()


class Splitting(Keys):
    """Work on the set of keys as a whole."""

    __slots__ = ()

    def split_keys(
        self,
        *key_sets: Any,
        inplace: bool = False,
        default: Any = _MISSING,
        strict: bool = True,
        reproduce_struct: bool = False,
    ) -> tuple[Self, ...]:
        """Return a TensorDict for each set of keys, and one for the entries that are left.

        Parameters
        ----------
        *key_sets : iterable of keys, dict or callable
            The keys of each; a dict gives each a new name, a function of a key (a tuple) and its entry says whether
            it belongs there.
        inplace : bool
            Remove the entries from this TensorDict, and return it last.
        default : optional
            Taken for keys that do not exist, unless `strict`; without it, they are left out.
        strict : bool
            Raise a `KeyError` for keys that do not exist.
        reproduce_struct : bool
            Keep nested TensorDicts that have become empty.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2), b=np.ones(2), c=np.ones(2))
        >>> [list(part.keys()) for part in td.split_keys(["a"], {"b": "z"})]
        [['a'], ['z'], ['c']]
        """
        rest = self._copy_tree()
        if strict:
            default = _MISSING
        elif default is _MISSING:
            default = None
        parts: list[Self] = []
        removed: list[NestedKey] = []
        for keys in key_sets:
            part = self.empty(recurse=reproduce_struct)
            parts.append(part)
            if callable(keys) and not isinstance(keys, Iterable):
                keys = [
                    key for key, value in rest.items(True, True) if keys((key,) if isinstance(key, str) else key, value)
                ]
            for key, name in (keys if isinstance(keys, dict) else {key: key for key in keys}).items():
                value = rest.pop(key) if default is _MISSING else rest.pop(key, default)
                if value is not None:
                    part.set(name, value)
                removed.append(key)
        if inplace:
            for key in removed:
                if key in self:
                    self.pop(key)
            rest = self
        if not reproduce_struct:
            rest.filter_empty_()
        return (*parts, rest)

    def _copy_tree(self) -> Self:
        return self._map_values(lambda leaf: leaf)

    def separates(
        self, *keys: NestedKey, default: Any = _MISSING, strict: bool = True, filter_empty: bool = True
    ) -> Self:
        """Remove entries and return a TensorDict with them.

        Parameters
        ----------
        *keys : str or tuple of str
            The entries.
        default : optional
            Taken for keys that do not exist.
        strict : bool
            Raise a `KeyError` for keys that do not exist, if there is no `default`.
        filter_empty : bool
            Remove nested TensorDicts that have become empty.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2), b=np.ones(2))
        >>> list(td.separates("b").keys()), list(td.keys())
        (['b'], ['a'])
        """
        result = self.empty(recurse=True)
        for key in keys:
            if default is _MISSING:
                result_value = self.pop(key) if strict else self.pop(key, None)
            else:
                result_value = self.pop(key, default)
            if result_value is not None:
                result.set(key, result_value)
        result.filter_empty_()
        if filter_empty:
            self.filter_empty_()
        return result

    def filter_empty_(self) -> Self:
        """Remove nested TensorDicts that have no leaves.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> list(TensorDict(a=np.zeros(2), b={}).filter_empty_().keys())
        ['a']
        """
        for key, value in list(self._peeks()):
            if isinstance(value, Splitting):
                value.filter_empty_()
                if value.is_empty():
                    self.del_(key)
        return self

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """Return a TensorDict in which some entries, given as a dict, a TensorDict or keywords, are others.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2))
        >>> td.replace(a=np.ones(2))["a"], td["a"]
        (array([1., 1.]), array([0., 0.]))
        """
        if len(args) > 1:
            raise RuntimeError(
                "Only a single argument containing a dictionary-like structure of entries to replace can be passed to "
                f"replace. Received {len(args)} arguments instead."
            )
        entries: Any = args[0] if args else {}
        if not isinstance(entries, (Base, Mapping)):
            raise RuntimeError(f"Cannot use object type {type(entries)} to update values in tensordict.")
        if not kwargs and (entries.is_empty() if isinstance(entries, Keys) else not entries):
            return self
        result = self._copy_tree().update(entries)
        return result.update(kwargs) if kwargs else result

    def rename_keys(self, mapping: Mapping[NestedKey, NestedKey], *, strict: bool = True) -> Self:
        """Return a TensorDict with the same leaves, some of which have other keys.

        Parameters
        ----------
        mapping : dict
            Present keys and new ones. All are read before any is written, so that keys can be swapped.
        strict : bool
            Raise a `KeyError` for keys that do not exist.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> list(TensorDict(a=np.zeros(2), b=np.ones(2)).rename_keys({"a": ("c", "d")}).keys(True, True))
        ['b', ('c', 'd')]
        """
        result = self._copy_tree()
        moved = []
        for old, new in mapping.items():
            if old not in result:
                if strict:
                    raise result._no_key(old)
                continue
            moved.append((new, result.pop(old)))
        for new, value in moved:
            result.set(new, value)
        for old in mapping:
            result._prune(unravel_key(old))
        return result

    def _prune(self, key: NestedKey) -> None:
        """Remove the TensorDicts on the way to a key that have no entries."""
        if isinstance(key, str):
            return
        nested = self._source.get(key[0])
        if isinstance(nested, Splitting):
            nested._prune(key[1] if len(key) == 2 else key[1:])
            if not nested._source:
                del self._source[key[0]]

    def create_nested(self, key: NestedKey) -> Self:
        """Set an empty TensorDict of this one's batch size, in place of what the key had.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict(batch_size=[3]).create_nested(("a", "b"))["a", "b"].batch_size
        Size([3])
        """
        self._refuse_if_locked()
        name = unravel_key(key)
        td: Any = self
        for part in () if isinstance(name, str) else name[:-1]:
            current = td._source.get(part)
            if not isinstance(current, Base) or current._holds_objects:
                td._put(part, self._entry_class()._make({}, td._batch_size, td._device, td._names))
            td = td._source[part]
        last = name if isinstance(name, str) else name[-1]
        td._put(last, self._entry_class()._make({}, td._batch_size, td._device, td._names))
        return self

    def entry_class(self, key: NestedKey) -> type:
        """Return the type of an entry."""
        return type(self.get(key))

    def get_item_shape(self, key: NestedKey) -> Any:
        """Return the shape of an entry."""
        return self._require(key).shape

    # Several entries in one array

    def _chosen(self, order: Any) -> list[Any]:
        if order is None or isinstance(order, bool):
            return list(self.values(True, True, sort=bool(order)))
        keys = [unravel_key(key) for key in order]
        if set(keys) != set(self.keys(True, True)):
            raise RuntimeError("The provided set of keys differs from the tensordict list of keys.")
        return [self._require(key) for key in keys]

    def stack_from_tensordict(self, dim: int = 0, *, sorted: Any = None, out: Any = None) -> Any:
        """Return all leaves stacked in one array.

        Parameters
        ----------
        dim : int
            Where the new dimension goes.
        sorted : bool or list of keys, optional
            Whether the leaves are put in the order of their keys; or all keys, in the order to take.
        out : array, optional
            Write the result into this one.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros(2), b=np.ones(2)).stack_from_tensordict()
        array([[0., 0.],
               [1., 1.]])
        """
        return _joined(stack_arrays, self._chosen(sorted), dim, out)

    def cat_from_tensordict(self, dim: int = 0, *, sorted: Any = None, out: Any = None) -> Any:
        """Return all leaves joined in one array, along one of their dimensions."""
        return _joined(cat_arrays, self._chosen(sorted), dim, out)

    def stack_tensors(self, *keys: NestedKey, out_key: NestedKey, dim: int = 0, keep_entries: bool = False) -> Self:
        """Put one entry, that of some stacked, in place of these.

        Parameters
        ----------
        *keys : str or tuple of str
            The entries.
        out_key : str or tuple of str
            The key of the new one.
        dim : int
            Where the new dimension goes.
        keep_entries : bool
            Keep those that have been stacked.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2), b=np.ones(2)).stack_tensors("a", "b", out_key="c")
        >>> list(td.keys()), td["c"].shape
        (['c'], (2, 2))
        """
        return self._replaced(stack_arrays, keys, out_key, dim, keep_entries)

    def cat_tensors(self, *keys: NestedKey, out_key: NestedKey, dim: int = 0, keep_entries: bool = False) -> Self:
        """Put one entry, that of some joined, in place of these."""
        return self._replaced(cat_arrays, keys, out_key, dim, keep_entries)

    def _replaced(
        self, join: Callable[..., Any], keys: tuple[NestedKey, ...], out_key: NestedKey, dim: int, keep: bool
    ) -> Self:
        result = self._check(str(out_key), _joined(join, [self._require(key) for key in keys], dim, None))
        self.set(out_key, result)  # first, so that nothing is lost where it does not fit
        if not keep:
            for key in dict.fromkeys(map(unravel_key, keys)):
                if key != unravel_key(out_key):
                    self.del_(key)
        return self


def _joined(join: Callable[..., Any], values: list[Any], dim: int, out: Any) -> Any:
    if not values:
        raise RuntimeError("there is no entry to be stacked or joined")
    if values and isinstance(values[0], Base):
        raise TypeError("TensorDicts cannot be made one array: give the keys of their leaves")
    if out is not None and library_of(out) == "torch":
        torch = sys.modules["torch"]
        return (torch.stack if join is stack_arrays else torch.cat)(values, dim, out=out)
    try:
        result = join(values, dim)
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    if out is None:
        return result
    copy_into(out, result)
    return out
