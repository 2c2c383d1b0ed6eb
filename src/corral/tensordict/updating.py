"""Set entries, or write them in place: one, or all that a dict or another TensorDict has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from corral.arrays.libraries import copy_into, library_of
from corral.arrays.operations import as_array
from corral.arrays.operations import clone as clone_array
from corral.tensordict.base import Base
from corral.tensordict.errors import InplaceWriteError
from corral.tensordict.finding import MISSING, Finding, refuse_no_entries, split
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.sizes import Size

__all__ = ["Updating"]


def _is_dictionary(value: Any) -> bool:
    """Whether a value has entries of its own."""
    return isinstance(value, Mapping) or (isinstance(value, Base) and not value._holds_objects)


def _copied(value: Any) -> Any:
    if isinstance(value, Base):
        return value.clone()  # type: ignore[attr-defined]
    try:
        return clone_array(as_array(value))
    except TypeError:
        return value  # an object that is no array, and is wrapped as it is


class Updating(Finding):
    """Write entries."""

    __slots__ = ()

    def set(
        self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False, **kwargs: Any
    ) -> Self:
        """Set an entry; TensorDicts on the way to a nested key are made.

        Parameters
        ----------
        key : str or tuple of str
            Key of the entry.
        item : array, number, list, dict or TensorDict
            Its new value.
        inplace : bool
            Write into the memory of the entry if there is one; into that of its entries if it is a TensorDict, which
            gets those that it lacks.
        non_blocking, **kwargs
            Accepted for compatibility.
        """
        if not (inplace or self._locked):
            if type(key) is str:
                self._source[key] = self._check_entry(key, item)
                return self
            if type(key) is tuple and len(key) == 2 and type(key[0]) is type(key[1]) is str:
                nested = self._source.get(key[0])
                if type(nested) is type(self) and type(nested._source) is dict and not nested._locked:
                    nested._source[key[1]] = nested._check_entry(key[1], item)
                    return self
        key = unravel_key(key)
        if inplace:
            current = self._find(key)
            if _is_dictionary(current) and _is_dictionary(item):
                current.update(item, inplace=True)
                return self
            if current is not MISSING:
                return self.set_(key, item)
        self._refuse_if_locked()
        self._put(key, item)
        return self

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        """Write an entry in place; the entry must exist, and the value fit it."""
        self._require(key)
        first, rest = split(key)
        if rest is not None:
            self._source[first].set_(rest, item)
        elif _is_dictionary(self._source[first]) and _is_dictionary(item):
            self._source[first].update_(self._check(first, item))
        else:
            self._write(first, item)
        return self

    def _write(self, key: str, item: Any, loosely: bool = False) -> None:
        """Write one entry of this level in place.

        A value is repeated behind the batch alone, or along the batch as well if `loosely`.
        """
        current = self._source[key]
        if isinstance(current, Base) and current._holds_objects:
            self._source[key] = self._check(key, current._rewritten(item))  # type: ignore[attr-defined]
            return
        if isinstance(current, Updating):
            if not _is_dictionary(item):
                raise InplaceWriteError(
                    f"the entry {key!r} is a TensorDict: a {type(item).__name__} cannot be written into it"
                )
            current.update_(item)
            return
        value = self._fitting(key, item, tuple(current.shape), loosely)
        if library_of(current) == "jax":
            self._source[key] = current.at[...].set(value)
        elif value is not current:
            copy_into(current, value)

    def _fitting(self, key: str, item: Any, shape: tuple[int, ...], loosely: bool) -> Any:
        """Return what is to be written into an array as an array, or raise if it does not fit."""
        if isinstance(item, (Base, Mapping)):
            raise InplaceWriteError(f"the entry {key!r} is an array: a {type(item).__name__} cannot be written into it")
        try:
            value = as_array(item)
        except TypeError as error:
            raise InplaceWriteError(f"the entry {key!r} is an array, which cannot be written: {error}") from error
        if tuple(value.shape) != shape and not self._broadcasts(value.shape, shape, loosely):
            raise InplaceWriteError(
                f"Failed to update {key!r} in tensordict {self!r}: the value of shape {Size(value.shape)} does not "
                f"fit the entry of shape {Size(shape)}"
            )
        return value

    def _refuse_misfits(self, entries: Any, required: bool, loosely: bool = True) -> None:
        """Raise the error that writing entries in place would raise, so that none is written if one does not fit.

        Entries that do not exist are errors if `required`.
        """
        for key, value in (entries._outline() if getattr(entries, "_in_file", False) else entries).items():
            first, rest = split(key)
            current = self._source.get(first)
            if current is None or (rest is not None and not (isinstance(current, Updating) and rest in current)):
                if required:
                    raise KeyError(f"The key {key} was not found in the dest tensordict.")
                if current is None and rest is None:
                    self._check(first, value)
                elif current is None:
                    self._entry_class()._make({}, self._batch_size)._put(rest, value)
            elif rest is not None:
                current._refuse_misfits({rest: value}, required, loosely)
            elif isinstance(current, Base):
                if current._holds_objects:
                    continue
                if _is_dictionary(value):
                    current._refuse_misfits(value, required, loosely)  # type: ignore[attr-defined]
                elif not hasattr(value, "items"):
                    raise InplaceWriteError(
                        f"the entry {first!r} is a TensorDict: a {type(value).__name__} cannot be written into it"
                    )
            elif hasattr(current, "shape"):
                self._fitting(first, value, self._shape_of(first, current), loosely)

    def _refuse_misfit_rows(self, entries: Any, size: Size, dims: int | None = None) -> None:
        """Raise if an entry that is to be written into rows does not fit them, so that none is written.

        `size` is that of the rows, in the place of `dims` dimensions: those of the TensorDict that is indexed.
        """
        dims = len(self._batch_size) if dims is None else dims
        outline: Any = self._outline() if self._in_file else self  # type: ignore[attr-defined]  # nothing is read
        mine = dict(outline._peeks())
        if getattr(entries, "_in_file", False):
            entries = entries._outline()
        for key, value in entries._peeks() if isinstance(entries, Base) else entries.items():
            current = mine.get(key)
            if isinstance(current, Base):
                if isinstance(current, Updating) and not current._holds_objects and _is_dictionary(value):
                    current._refuse_misfit_rows(value, size, dims)
                continue
            if current is None or not hasattr(value, "shape") or isinstance(value, Base):
                continue
            target = (*size, *current.shape[dims:])
            shape = tuple(value.shape)
            while len(shape) > len(target) and shape[0] == 1:  # as the array libraries assign
                shape = shape[1:]
            rest = target[len(target) - len(shape) :]
            if len(shape) > len(target) or not all(
                n in (1, m) or -1 in (n, m) for n, m in zip(shape, rest, strict=True)
            ):
                raise RuntimeError(
                    f"the value of shape {Size(shape)} for the key {key!r} does not fit the rows of shape "
                    f"{Size(target)} that it is assigned to"
                )

    def _shape_of(self, key: str, leaf: Any) -> tuple[int, ...]:
        """Return the shape of a leaf that is written in place."""
        return tuple(leaf.shape)

    def _broadcasts(self, shape: Sequence[int], target: Sequence[int], loosely: bool = False) -> bool:
        """Whether a value of a shape can be written into an entry."""
        size = self._batch_size
        extra = len(target) - len(shape)
        return (
            extra >= 0
            and (loosely or tuple(shape[: len(size)]) == size)
            and all(n in (1, m) for n, m in zip(shape, target[extra:], strict=True))
        )

    def _replace(self, key: NestedKey, value: Any) -> None:
        """Put another value where an entry is, whether the TensorDict is locked or not."""
        first, rest = split(key)
        if rest is not None:
            self._source[first]._replace(rest, value)
            return
        if isinstance(value, Base) and value._holds_objects:
            value._succeed(self._source[first])  # type: ignore[attr-defined]
        self._source[first] = value

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
        """Set all entries that a dict or another TensorDict has.

        Parameters
        ----------
        input_dict_or_td : dict or TensorDict, optional
            The entries; nested ones are merged.
        clone : bool
            Set copies.
        inplace : bool
            Write into the memory of entries that exist.
        non_blocking, ignore_lock : bool
            Accepted for compatibility; the lock holds.
        keys_to_update : iterable of keys, optional
            Take only these entries.
        is_leaf : callable, optional
            Takes the class of an entry and says whether it takes the place of the present one as a whole, instead of
            being merged with it.
        update_batch_size : bool
            Take over the batch size of a TensorDict that has all keys of this one.
        **kwargs
            Further entries; they win over those of `input_dict_or_td`.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> a = np.zeros(2)
        >>> td = TensorDict(a=a).update({"a": np.ones(2)}, inplace=True, b=3)
        >>> a, td["b"]
        (array([1., 1.]), array(3))
        """
        if kwargs:
            if input_dict_or_td is not None:
                self.update(input_dict_or_td, clone, inplace, keys_to_update=keys_to_update, is_leaf=is_leaf)
            input_dict_or_td = kwargs
        if input_dict_or_td is self or input_dict_or_td is None:
            return self
        if isinstance(input_dict_or_td, Base):
            mine, theirs = self._batch_size, input_dict_or_td._batch_size
            if mine[: len(theirs)] != theirs[: len(mine)]:
                if not update_batch_size:
                    raise RuntimeError(
                        f"update() got a source with batch size {theirs} for a destination with batch size {mine}. "
                        "Pass update_batch_size=True to replace the batch size."
                    )
                self._prepare_batch_size(input_dict_or_td, inplace, keys_to_update)
        wanted = None if keys_to_update is None else [unravel_key(key) for key in keys_to_update]
        if wanted is not None and not wanted:
            return self
        if not inplace:
            self._refuse_if_locked()
        before = _structure(self)
        try:
            self._merge(input_dict_or_td, clone, inplace, wanted, is_leaf)
        except BaseException:
            for source, entries in before:
                source.clear()
                source.update(entries)
            raise
        return self

    def _merge(
        self,
        entries: Any,
        clone: bool,
        inplace: bool,
        wanted: list[NestedKey] | None,
        is_leaf: Callable[[type[Any]], bool] | None,
    ) -> None:
        if inplace:
            chosen = entries if wanted is None else _chosen(entries, wanted)
            self._refuse_misfits(chosen, required=False, loosely=False)
        for name, value in entries.items():
            first, rest = split(name)
            subset = None
            if wanted is not None:
                matches = [split(key)[1] for key in wanted if split(key)[0] == first]
                if not matches:
                    continue
                if None not in matches:
                    subset = [key for key in matches if key is not None]
            current = self._source.get(first)
            merged = _is_dictionary(value) and not (is_leaf is not None and is_leaf(type(value)))
            if rest is not None and isinstance(current, Updating) and not current._holds_objects:
                current.update({rest: value}, clone=clone, inplace=inplace, keys_to_update=subset, is_leaf=is_leaf)
            elif merged and isinstance(current, Updating) and not current._holds_objects:
                current.update(value, clone=clone, inplace=inplace, keys_to_update=subset, is_leaf=is_leaf)
            else:
                if subset is not None and _is_dictionary(value):
                    value = value.select(*subset) if isinstance(value, Base) else value  # type: ignore[attr-defined]
                if clone:
                    value = _copied(value)
                self.set(first if rest is None else name, value, inplace=inplace)

    def _prepare_batch_size(self, source: Base, inplace: bool, keys: Any) -> None:
        """Make room for the entries of a TensorDict of another batch size: all of the present ones go."""
        missing = [key for key in self._source if key not in source._source]
        if inplace or keys is not None or missing:
            raise RuntimeError(
                f"update: the batch size {self._batch_size} can become {source._batch_size} only if all entries are "
                + (f"replaced, and the source lacks {missing}" if missing else "replaced by whole new ones")
            )
        self._refuse_if_locked()
        for key in list(self._source):
            del self._source[key]
        self.batch_size = source._batch_size

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Iterable[NestedKey] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Write entries in place; each must exist. Values are repeated to the shape of the entries, as torch does it.

        Parameters
        ----------
        input_dict_or_td : dict or TensorDict, optional
            The entries.
        clone, non_blocking : bool
            Accepted for compatibility: values are copied in any case.
        keys_to_update : iterable of keys, optional
            Take only these entries.
        **kwargs
            Further entries; they win over those of `input_dict_or_td`.

        Raises
        ------
        KeyError
            If there is no such entry.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> a = np.zeros(2)
        >>> _ = TensorDict(a=a).update_({"a": [5, 6]})
        >>> a
        array([5., 6.])
        """
        wanted = None if keys_to_update is None else [unravel_key(key) for key in keys_to_update]
        for entries in (input_dict_or_td, kwargs):
            if entries is None or entries is self:
                continue
            refuse_no_entries("update_", entries)
            if wanted is not None:
                entries = _chosen(entries, wanted)
            self._refuse_misfits(entries, required=True)
            for key, value in entries.items():
                first, rest = split(key)
                if rest is None:
                    self._write(first, value, loosely=True)
                else:
                    self._source[first].update_({rest: value})
        return self


def _structure(td: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the dicts of entries of a TensorDict, nested ones and members of lazy stacks, each with a copy."""
    found = []
    for member in td._members() or ():
        found += _structure(member)
    source = td._source
    if type(source) is dict:
        found.append((source, source.copy()))
        for value in source.values():
            if isinstance(value, Updating):
                found += _structure(value)
    return found


def _chosen(entries: Any, wanted: Iterable[NestedKey]) -> dict[NestedKey, Any]:
    """Return the entries of some keys, as far as they exist."""
    chosen: dict[NestedKey, Any] = {}
    for key in wanted:
        value: Any = entries
        for part in (key,) if isinstance(key, str) else key:
            value = value.get(part, MISSING) if hasattr(value, "items") else MISSING
        if value is not MISSING:
            chosen[key] = value
    return chosen
