"""What is in a store: values and queues, and what each change does to them. Nothing here waits."""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Callable, Iterable

__all__ = ["Change", "Shelf"]

_NUMBER = re.compile(rb"[+-]?[0-9]{1,20}")


class Change(enum.IntEnum):
    """What happened to a key."""

    SET = 1
    APPEND = 2
    DELETE = 3
    PUSH = 4
    POP = 5


class Shelf:
    """The contents of one store.

    Parameters
    ----------
    changed
        Called with each change after it is made: the kind, the key, and the value that was set, appended or
        pushed.
    """

    def __init__(self, changed: Callable[[Change, bytes, bytes], None]) -> None:
        self.values: dict[bytes, bytes] = {}
        self._queues: dict[bytes, deque[bytes]] = {}
        self._changed = changed

    def has(self, key: bytes) -> bool:
        """Whether a key has a value or a queue that is not empty."""
        return key in self.values or key in self._queues

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those keys that have neither."""
        return [key for key in keys if not self.has(key)]

    def set(self, key: bytes, value: bytes) -> None:
        self.values[key] = value
        self._changed(Change.SET, key, value)

    def append(self, key: bytes, value: bytes) -> None:
        self.values[key] = self.values.get(key, b"") + value
        self._changed(Change.APPEND, key, value)

    def number(self, key: bytes) -> int:
        """Return a counter, which an absent or empty value starts at 0.

        Raises
        ------
        ValueError
            If the value is something else.
        """
        value = self.values.get(key, b"") or b"0"
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"its value {value[:40]!r} is no number")
        return int(value)

    def add(self, key: bytes, amount: int) -> int:
        total = self.number(key) + amount
        if not -(1 << 63) <= total < 1 << 63:
            raise ValueError(f"the sum {total} does not fit into 64 bits")
        self.set(key, b"%d" % total)
        return total

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        current = self.values.get(key)
        if current is None and expected:
            return expected
        if current is not None and current != expected:
            return current
        self.set(key, desired)
        return desired

    def delete(self, key: bytes) -> bool:
        if self.values.pop(key, None) is None:
            return False
        self._changed(Change.DELETE, key, b"")
        return True

    def push(self, key: bytes, value: bytes) -> None:
        self._queues.setdefault(key, deque()).append(value)
        self._changed(Change.PUSH, key, value)

    def pop(self, key: bytes) -> bytes | None:
        """Take the first value out of a queue; ``None`` if it is empty."""
        queue = self._queues.get(key)
        if queue is None:
            return None
        value = queue.popleft()
        if not queue:
            del self._queues[key]
        self._changed(Change.POP, key, b"")
        return value

    def queue_len(self, key: bytes) -> int:
        return len(self._queues.get(key, ()))

    def clear(self) -> None:
        """Forget everything, as if nothing had happened."""
        self.values.clear()
        self._queues.clear()

    def redo(self, change: Change, key: bytes, value: bytes) -> None:
        """Make a change that was made elsewhere."""
        if change is Change.SET:
            self.set(key, value)
        elif change is Change.APPEND:
            self.append(key, value)
        elif change is Change.DELETE:
            self.delete(key)
        elif change is Change.PUSH:
            self.push(key, value)
        else:
            self.pop(key)
