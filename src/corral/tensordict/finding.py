"""Find entries by their keys, and say which part of a key leads nowhere."""

from __future__ import annotations

from typing import Any

from corral.tensordict.base import Base
from corral.tensordict.errors import KeyThroughLeafError
from corral.tensordict.nested_keys import NestedKey, unravel_key

__all__ = ["MISSING", "Finding", "refuse_no_entries", "split"]

MISSING: Any = object()


def split(key: Any) -> tuple[str, NestedKey | None]:
    """Return the first part of a key, and the rest of it or ``None``."""
    key = unravel_key(key)
    if isinstance(key, str):
        return key, None
    return key[0], key[1] if len(key) == 2 else key[1:]


def refuse_no_entries(name: str, value: Any) -> None:
    """Raise if what a method is given has no entries."""
    if not hasattr(value, "items"):
        raise TypeError(f"{name}: a dict or a TensorDict is expected, not a {type(value).__name__}")


class Finding(Base):
    """Look up entries."""

    __slots__ = ()

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (str, tuple)):
            raise NotImplementedError(f"TensorDict does not support membership checks of {type(key).__name__}")
        return self._find(key) is not MISSING

    def _find(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._source.get(key, MISSING)
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
                return MISSING
            value = value._source.get(part, MISSING)
        return value

    def _no_key(self, key: Any) -> Exception:
        node: Any = self
        unraveled = unravel_key(key)
        parts = (unraveled,) if isinstance(unraveled, str) else unraveled
        for depth, part in enumerate(parts, 1):
            lazy = node._members() is not None  # whose arrays need not be stacked for it, and may not fit
            value = node._source.get(part) if not lazy else node._peek(part) if part in node._source else None
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
        if value is MISSING:
            raise self._no_key(key)
        return value
