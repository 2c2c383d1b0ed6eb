"""Go through the leaves of a TensorDict, and put others in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from corral.tensordict.base import Base
from corral.tensordict.names import Names, some_names
from corral.tensordict.nested_keys import unravel_key
from corral.tensordict.sizes import Size

__all__ = ["Path", "leaves_like", "leaves_of", "mapped", "rebuilt", "renamed", "rewrite", "slots", "zipped"]

T = TypeVar("T", bound=Base)
Path: TypeAlias = tuple[str, ...]


def slots(td: Base, path: Path = ()) -> Iterator[tuple[Base, Path]]:
    """Yield for every leaf the TensorDict that it is an entry of, and its nested key.

    Numbers of members are parts of the keys of leaves in lazy stacks.
    """
    members = td._members()
    if members is not None:
        for number, member in enumerate(members):
            yield from slots(member, (*path, str(number)))
        return
    for key, value in td._source.items():
        if isinstance(value, Base):
            yield from slots(value, (*path, key))
        else:
            yield td, (*path, key)


def leaves_of(td: Base) -> dict[Path, Any]:
    """Return the leaves by their nested keys.

    Examples
    --------
    >>> from corral import TensorDict
    >>> leaves_of(TensorDict(a=1, b={"c": 2}))
    {('a',): array(1), ('b', 'c'): array(2)}
    """
    return {path: parent._source[path[-1]] for parent, path in slots(td)}


def leaves_like(td: Base, other: Base) -> dict[Path, Any]:
    """Return the leaves of another TensorDict by the keys that `slots` gives those of the first.

    Where only one of the two is a lazy stack, the other's leaves are taken apart or stacked.
    """
    return dict(_leaves_like(td, other, ()))


def _leaves_like(td: Any, other: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    members = td._members()
    if members is not None:
        for number, (member, piece) in enumerate(zip(members, td._pieces(other), strict=True)):
            yield from _leaves_like(member, piece, (*path, str(number)))
        return
    for key, value in other._source.items():
        if isinstance(value, Base):
            nested = td._source.get(key)
            yield from _leaves_like(nested if isinstance(nested, Base) else value, value, (*path, key))
        else:
            yield (*path, key), value


def rewrite(td: T, function: Callable[[Any, str], Any]) -> T:
    """Let a function of each leaf and of its name in messages write it in place; keep what it returns.

    Examples
    --------
    >>> from corral import TensorDict
    >>> td = TensorDict(a=1, b={"c": 2})
    >>> rewrite(td, lambda leaf, label: leaf.__iadd__(1)) is td, td["b", "c"]
    (True, array(3))
    """
    for parent, path in slots(td):
        leaf = parent._source[path[-1]]
        new = function(leaf, f"the entry {path[0] if len(path) == 1 else path!r}")
        if new is not leaf:  # an immutable array's successor; locks fix keys, not values
            parent._source[path[-1]] = new
    return td


def rebuilt(td: T, leaves: dict[Path, Any], drop: bool = False) -> T:
    """Return a TensorDict of the same structure with other leaves.

    Parameters
    ----------
    td : TensorDict
        Gives the structure; locked if the result shall be.
    leaves : dict
        The leaves by their nested keys. One that is not here is left out; a new one gets the TensorDicts it needs.
    drop : bool
        Leave out nested TensorDicts without leaves.

    Examples
    --------
    >>> from corral import TensorDict
    >>> rebuilt(TensorDict(a=1, b={"c": 2}), {("b", "c"): 5, ("d",): 6}).to_dict()
    {'b': {'c': 5}, 'd': array(6)}
    """
    rest = dict(leaves)
    result = _rebuilt(td, rest, drop, ())
    for path, leaf in rest.items():
        _put(result, path, leaf)
    if td._locked:
        result._lock(True)
    return result


def _put(td: Any, path: Path, leaf: Any) -> None:
    """Set a leaf by a key of `slots`."""
    node = td
    for depth, part in enumerate(path[:-1]):
        members = node._members()
        if members is None and not isinstance(node._source.get(part), Base):
            node._put(path[depth:], leaf)
            return
        node = node._source[part] if members is None else members[int(part)]
    node._put(path[-1], leaf)


def _rebuilt(td: T, leaves: dict[Path, Any], drop: bool, path: Path) -> T:
    members = td._members()
    if members is not None:
        parts = [_rebuilt(member, leaves, drop, (*path, str(i))) for i, member in enumerate(members)]
        stack: T = td._restacked(parts)
        return stack
    if td._holds_objects:
        return td._map_values(lambda leaf: leaf)
    source: dict[str, Any] = {}
    for key, value in td._source.items():
        here = (*path, key)
        if isinstance(value, Base):
            nested = _rebuilt(value, leaves, drop, here)
            if not drop or not _is_bare(nested):
                source[key] = nested
        elif here in leaves:
            source[key] = leaves.pop(here)
    return td._make(source, td._batch_size, td._device, td._names)


def _is_bare(td: Base) -> bool:
    """Whether a TensorDict has no entries."""
    members = td._members()
    return not (td._holds_objects or td._source) if members is None else all(map(_is_bare, members))


def mapped(
    td: T,
    function: Callable[[Any, Any], Any],
    resize: Callable[[Size], Size] | None = None,
    drop: bool = False,
    rename: Callable[[tuple[str | None, ...]], Names] | None = None,
) -> T:
    """Return a TensorDict of what a function makes of each leaf and of the TensorDict that it is an entry of.

    Parameters
    ----------
    td : TensorDict
        The leaves and the structure; whether it is locked plays no role.
    function : callable
        Takes a leaf and its TensorDict.
    resize : callable, optional
        Takes a batch size and returns the one to take its place.
    drop : bool
        Leave out nested TensorDicts without leaves.
    rename : callable, optional
        Takes the names of dimensions and returns those of the resized batch, which has none by default. Where that has
        fewer dimensions, it takes the first.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(a=np.arange(6).reshape(2, 3), batch_size=[2])
    >>> mapped(td, lambda leaf, _: leaf.sum(0), lambda size: size[1:])["a"]
    array([3, 5, 7])
    """
    source: dict[str, Any] = {}
    for key, value in td._source.items():
        if not isinstance(value, Base):
            source[key] = function(value, td)
            continue
        if value._fits_any and not drop:  # one object for all elements is that of any batch
            source[key] = value._resized(value._batch_size if resize is None else resize(value._batch_size))
            continue
        nested = mapped(value, function, resize, drop, rename)
        if nested._source or not drop:
            source[key] = nested
    if resize is None:
        return td._make(source, td._batch_size, td._device, td._names)
    size = resize(td._batch_size)
    names = None if rename is None or td._names is None else some_names((rename(td._names) or ())[: len(size)])
    return td._make(source, size, td._device, names)


def zipped(td: T, other: Base, function: Callable[[Any, Any], Any]) -> T | None:
    """Return a TensorDict of what a function makes of corresponding leaves, without nested ones that have none.

    The result is locked if the first is. ``None`` means that the two are not alike, or not plain: that keys differ,
    or that a lazy stack or objects are among the entries.

    Examples
    --------
    >>> from corral import TensorDict
    >>> td = TensorDict(a=[1, 2], b={"c": [3, 4]})
    >>> zipped(td, td, lambda x, y: x + y).to_dict()
    {'a': array([2, 4]), 'b': {'c': array([6, 8])}}
    """
    result: T | None = _zipped(td, other, function)
    if result is not None:
        if not result._source:
            return None
        if td._locked:
            result._lock(True)
    return result


def _zipped(td: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    mine, its = td._source, other._source
    if type(mine) is not dict or type(its) is not dict or mine.keys() != its.keys():
        return None
    source: dict[str, Any] = {}
    for key, leaf in mine.items():
        value = its[key]
        if isinstance(leaf, Base):
            nested = _zipped(leaf, value, function) if isinstance(value, Base) else None
            if nested is None:
                return None
            if nested._source:
                source[key] = nested
        elif isinstance(value, Base):
            return None
        else:
            source[key] = function(leaf, value)
    return td._make(source, td._batch_size, td._device, td._names)


def renamed(td: T, function: Callable[[str], str]) -> T:
    """Return a TensorDict of the same leaves whose keys, at each level, are what a function makes of them.

    Examples
    --------
    >>> from corral import TensorDict
    >>> renamed(TensorDict(a=1, b={"c": 2}), str.upper).to_dict()
    {'A': array(1), 'B': {'C': array(2)}}
    """
    result = td._make({}, td._batch_size, td._device, td._names)
    for key, value in td._source.items():
        result._put(unravel_key(function(key)), renamed(value, function) if isinstance(value, Base) else value)
    return result
