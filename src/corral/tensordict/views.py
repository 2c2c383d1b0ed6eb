"""Views of a TensorDict's keys and entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from corral.tensordict.base import Base

try:
    from corral._core import collect_keys, count_keys, register_keys
except ImportError:  # other systems do without
    register_keys = None  # type: ignore[assignment]

__all__ = ["ItemsView", "KeysView", "ValuesView"]


class _NestedKinds(dict[type, bool]):
    """Whether entries of a class are TensorDicts."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = nested = issubclass(kind, Base)
        return nested


_nested_kinds = _NestedKinds()


class _View:
    _parents_first = True
    _reads = True

    def __init__(
        self,
        td: Base,
        include_nested: bool,
        leaves_only: bool,
        sort: bool = False,
        is_leaf: Callable[[type[Any]], bool] | None = None,
    ) -> None:
        self._td = td
        self._nested = bool(include_nested)
        self._leaves_only = bool(leaves_only)
        self._sort = sort
        self._is_leaf = is_leaf if leaves_only else None

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        leaves_only = self._leaves_only and self._is_leaf is None
        pairs = _walk(self._td, (), self._nested, leaves_only, self._parents_first, self._reads)
        if self._is_leaf is not None:
            pairs = ((key, value) for key, value in pairs if self._is_leaf(type(value)))
        if not self._sort:
            return pairs
        return iter(sorted(pairs, key=lambda pair: pair[0] if isinstance(pair[0], str) else ".".join(pair[0])))

    def __len__(self) -> int:
        if not self._nested and not self._leaves_only:
            return len(self._td._source)
        if self._is_leaf is None:
            return count_keys(self._td, self._nested, self._leaves_only)
        return sum(1 for _ in self._pairs())


class KeysView(_View):
    """The keys of a TensorDict: strings, and tuples for nested ones."""

    _reads = False  # shapes that differ in a lazy stack do not matter
    _parents_first = False  # the order of tensordict, in which keys differ from entries here

    def __iter__(self) -> Iterator[Any]:
        if not self._nested and not self._leaves_only and not self._sort:
            return iter(self._td._source)
        if self._sort or self._is_leaf is not None:
            return (key for key, _ in self._pairs())
        return iter(collect_keys(self._td, self._nested, self._leaves_only))

    def __contains__(self, key: object) -> bool:
        parts = tuple(_parts(key))
        if not parts or not all(isinstance(part, str) for part in parts):
            raise TypeError(
                "keys of TensorDicts are strings, and tuples of strings for nested ones: a "
                f"{type(key).__name__} ({key!r}) cannot be one"
            )
        if len(parts) > 1 and not self._nested:
            return False
        value: Any = self._td
        for part in parts:
            if not isinstance(value, Base) or part not in value._source:
                return False
            value = value._peek(part)
        return not (self._leaves_only and isinstance(value, Base))

    def __eq__(self, other: object) -> bool:
        try:
            return set(self) == set(other)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Any) -> set[Any]:
        return set(self) | set(other)

    def __and__(self, other: Any) -> set[Any]:
        return set(self) & set(other)

    def __sub__(self, other: Any) -> set[Any]:
        return set(self) - set(other)

    def __xor__(self, other: Any) -> set[Any]:
        return set(self) ^ set(other)

    def __repr__(self) -> str:
        return f"KeysView({list(self)})"


class ValuesView(_View):
    """The entries of a TensorDict."""

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._pairs())


class ItemsView(_View):
    """Pairs of keys and entries of a TensorDict."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs()


def _parts(key: Any) -> Iterator[Any]:
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, tuple):
            yield from _parts(part)
        else:
            yield part


def _collect(td: Base, prefix: tuple[str, ...], nested: bool, leaves_only: bool, found: list[Any]) -> None:
    """Append the keys in their order; a generator for each TensorDict would take twice as long."""
    for key, value in td._peeks():
        name = (*prefix, key) if prefix else key
        if _nested_kinds[type(value)]:
            if nested:
                _collect(value, (*prefix, key), True, leaves_only, found)
            if not leaves_only:
                found.append(name)
        else:
            found.append(name)


if register_keys is not None:
    register_keys("_source", _nested_kinds, _collect)
else:

    def collect_keys(container: Any, nested: bool, leaves_only: bool) -> list[Any]:
        found: list[Any] = []
        _collect(container, (), nested, leaves_only, found)
        return found

    def count_keys(container: Any, nested: bool, leaves_only: bool) -> int:
        return len(collect_keys(container, nested, leaves_only))


def _walk(
    td: Base, prefix: tuple[str, ...], nested: bool, leaves_only: bool, parents_first: bool, reads: bool
) -> Iterator[tuple[Any, Any]]:
    for key, value in td._source.items() if reads else td._peeks():
        name = (*prefix, key) if prefix else key
        if isinstance(value, Base):
            if parents_first and not leaves_only:
                yield name, value
            if nested:
                yield from _walk(value, (*prefix, key), True, leaves_only, parents_first, reads)
            if not (parents_first or leaves_only):
                yield name, value
        else:
            yield name, value
