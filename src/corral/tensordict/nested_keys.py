"""Keys of entries, and of those of nested TensorDicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from corral.tensordict.errors import InvalidKeyError

__all__ = ["NestedKey", "unravel_key"]

NestedKey: TypeAlias = str | tuple[Any, ...]


def unravel_key(key: Any) -> NestedKey:
    """Return a key as a string, or a tuple of two or more strings.

    Examples
    --------
    >>> unravel_key(("a", ("b", "c"))), unravel_key(("a",))
    (('a', 'b', 'c'), 'a')
    """
    if isinstance(key, str):
        return key
    if type(key) is tuple and len(key) > 1 and {*map(type, key)} == {str}:
        return key
    flat = tuple(_strings(key))
    if not flat:
        raise InvalidKeyError("a key must not be an empty tuple")
    return flat[0] if len(flat) == 1 else flat


def _strings(key: Any) -> Iterable[str]:
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, str):
            yield part
        elif isinstance(part, tuple):
            yield from _strings(part)
        else:
            raise InvalidKeyError(f"a key must be a string or a tuple of strings, got {type(part).__name__}: {key!r}")
