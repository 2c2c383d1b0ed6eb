"""Names of batch dimensions: what a TensorDict stores of them, and how indices move them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeAlias

__all__ = ["Named", "Names", "after_index", "inserted", "merged", "some_names"]

Names: TypeAlias = tuple[Any, ...] | None
"""A name or ``None`` for each batch dimension; ``None`` where none has a name."""


class Named:
    """The state that names have to fit: entries and batch size."""

    __slots__ = ("_batch_size", "_names", "_source")

    _source: dict[str, Any]
    _batch_size: tuple[int, ...]
    _names: Names
    _peeks: Any

    def _set_names(self, names: Sequence[Any] | None) -> None:
        """Name the dimensions here, and those that nested TensorDicts share; nothing changes if that fails."""
        value = self._checked(names)
        for td, inner in self._renamed(value, ()):
            td._names = inner
        self._names = value

    def _checked(self, names: Sequence[Any] | None) -> Names:
        if names is None:
            return None
        value = tuple(names)
        unnamed = value.count(None)
        if unnamed == len(self._batch_size):
            return None
        if len(set(value)) != len(value) - max(0, unnamed - 1):
            raise ValueError(f"Some dimension names are non-unique: {list(value)}.")
        if len(value) != len(self._batch_size):
            raise ValueError(
                "the length of the dimension names must equate the tensordict batch_dims attribute. Got "
                f"{list(value)} for batch_dims {len(self._batch_size)}."
            )
        return value

    def _renamed(self, names: Names, path: tuple[str, ...]) -> list[tuple[Named, Names]]:
        """Return the names that nested TensorDicts get when this one has others."""
        found: list[tuple[Named, Names]] = []
        if not self._batch_size:
            return found
        for key, value in self._peeks():
            if isinstance(value, Named):
                inner = merged(names, len(self._batch_size), value._names, len(value._batch_size))
                given = [name for name in inner or () if name is not None]
                if len(set(given)) != len(given):
                    raise ValueError(
                        f"Some dimension names are non-unique: {list(inner or ())} for the nested tensordict at key "
                        f"{(*path, key)}."
                    )
                found.append((value, inner))
                found.extend(value._renamed(inner, (*path, key)))
        return found

    def _named_alike(self, value: Any) -> Any:
        """Return a TensorDict that becomes an entry, with the names of this one; an unnamed one takes those it has."""
        count = len(self._batch_size)
        theirs = (value._names or (None,) * len(value._batch_size))[:count]
        if self._names is None:
            if any(name is not None for name in theirs):
                self._set_names(theirs)
        elif theirs != self._names:
            value = value._map_values(_same)
            for mine, name in zip(self._names, theirs, strict=True):
                if name is not None and name != mine:
                    raise RuntimeError(
                        f"refine_names: cannot coerce TensorDict names {list(value._names)} with "
                        f"{[*self._names, *value._names[count:]]}."
                    )
            value._set_names(merged(self._names, count, value._names, len(value._batch_size)))
        return value

    def _resize_names(self, dims: int) -> None:
        """Keep the names of the dimensions that there are still; new ones have none."""
        if self._names is not None:
            self._names = some_names((*self._names, *(None,) * dims)[:dims])

    def _name_list(self) -> list[Any]:
        return list(self._names or (None,) * len(self._batch_size))

    def _forget_names(self) -> Self:
        """Remove all names, also those of dimensions that only nested TensorDicts have."""
        self._names = None
        for value in self._source.values():
            if isinstance(value, Named):
                value._forget_names()
        return self


def _same(leaf: Any) -> Any:
    return leaf


def some_names(names: tuple[Any, ...]) -> Names:
    """Return names, or ``None`` if all are."""
    return names if any(name is not None for name in names) else None


def merged(root: Names, replaced: int, names: Names, dims: int) -> Names:
    """Return names whose first ones are those of the root, of `dims` dimensions of which `replaced` were its.

    Examples
    --------
    >>> merged(("x", None), 1, ("a", "z"), 2), merged(None, 1, ("a", None), 2)
    (('x', None, 'z'), None)
    """
    if names is None:
        return None if root is None else (*root, *(None,) * (dims - replaced))
    return some_names((*((None,) * replaced if root is None else root), *names[replaced:]))


def inserted(names: Names, dim: int) -> Names:
    """Return names with an unnamed dimension more."""
    return None if names is None else (*names[:dim], None, *names[dim:])


def after_index(names: Names, index: Sequence[Any]) -> Names:
    """Return the names that are left by a normalized index.

    A dimension keeps its name where the one that it comes from is known: that of a slice, and of an index array
    that no other array is broadcast with.

    Examples
    --------
    >>> after_index(("x", "y", "z"), (0, None, slice(2)))
    (None, 'y', 'z')
    """
    if names is None:
        return None
    result: list[Any] = []
    arrays: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    used, place, last, apart = 0, 0, -1, False
    for position, item in enumerate(index):
        if type(item) is int:
            used += 1
            last = position if arrays and last == position - 1 else last  # it parts no arrays: it selects before them
        elif type(item) is slice:
            result.append(names[used])
            used += 1
        elif item is None:
            result.append(None)
        else:
            mask = str(item.dtype).endswith("bool")
            if not arrays:
                place = len(result)
            elif last != position - 1:
                apart = True
            last = position
            count = item.ndim if mask else 1
            shape = ((-1,) if item.ndim else ()) if mask else tuple(item.shape)
            arrays.append((shape, tuple(range(used, used + count))))
            used += count
            if mask and not item.ndim:
                arrays[-1] = ((1,), ())
    result.extend(names[used:])
    if arrays:
        place = 0 if apart else place
        result[place:place] = _block(names, arrays)
    return some_names(tuple(result))


def _block(names: tuple[Any, ...], arrays: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Any]:
    """Return the names of the dimensions that index arrays make, which are given by shape and indexed dimensions."""
    found: list[tuple[Any, bool]] = []
    for dim in range(-max(len(shape) for shape, _ in arrays), 0):
        here = [(shape[dim], dims) for shape, dims in arrays if len(shape) >= -dim]
        varying = [dims for length, dims in here if length != 1]
        sources = {source for dims in varying or [dims for _, dims in here] for source in dims}
        found.append((names[sources.pop()] if len(sources) == 1 else None, bool(varying)))
    every = [name for name, _ in found]
    varied = [name for name, varies in found if varies]
    # A name goes to one dimension: of several, to the only one along which the index varies.
    return [name if every.count(name) == 1 or (varies and varied.count(name) == 1) else None for name, varies in found]
