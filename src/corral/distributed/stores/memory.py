"""A store of one process, for its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from corral.distributed.errors import QueueEmptyError
from corral.distributed.stores.base import Store
from corral.distributed.stores.shelf import Change, Shelf

__all__ = ["HashStore"]


class _Shared:
    """What a store and its clones have in common."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.shelf = Shelf(self._wake)

    def _wake(self, change: Change, key: bytes, value: bytes) -> None:
        if change not in (Change.DELETE, Change.POP):
            self.condition.notify_all()


class HashStore(Store):
    """A store in this process's memory, as ``torch.distributed.HashStore``; its threads share it.

    Examples
    --------
    >>> store = HashStore()
    >>> store.set("key", b"value")
    >>> store.get("key")
    b'value'
    """

    def __init__(self) -> None:
        super().__init__()
        self._shared = _Shared()

    def __repr__(self) -> str:
        return "HashStore()"

    def clone(self) -> HashStore:
        other = HashStore()
        other._shared = self._shared
        other._limit = self._limit
        return other

    def _until(self, ready: Callable[[], object], limit: float) -> bool:
        """Wait, with the lock held on entry and on return."""
        return bool(self._shared.condition.wait_for(ready, min(limit, threading.TIMEOUT_MAX)))

    def _set(self, key: bytes, value: bytes) -> None:
        with self._shared.condition:
            self._shared.shelf.set(key, value)

    def _get(self, keys: list[bytes], where: str) -> list[bytes]:
        values = self._shared.shelf.values
        with self._shared.condition:
            if not self._until(lambda: all(key in values for key in keys), self._limit):
                raise self._nobody_set(where, self._limit, [key for key in keys if key not in values])
            return [values[key] for key in keys]

    def _add(self, key: bytes, amount: int) -> int:
        with self._shared.condition:
            return self._shared.shelf.add(key, amount)

    def _wait(self, keys: list[bytes], limit: float) -> None:
        shelf = self._shared.shelf
        with self._shared.condition:
            if not self._until(lambda: all(map(shelf.has, keys)), limit):
                raise self._nobody_set("wait", limit, shelf.missing(keys))

    def _check(self, keys: list[bytes]) -> bool:
        with self._shared.condition:
            return not self._shared.shelf.missing(keys)

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        with self._shared.condition:
            return self._shared.shelf.compare_set(key, expected, desired)

    def _delete(self, key: bytes) -> bool:
        with self._shared.condition:
            return self._shared.shelf.delete(key)

    def _num_keys(self) -> int:
        with self._shared.condition:
            return len(self._shared.shelf.values)

    def _list_keys(self) -> list[bytes]:
        with self._shared.condition:
            return list(self._shared.shelf.values)

    def _multi_set(self, keys: list[bytes], values: list[bytes]) -> None:
        with self._shared.condition:
            for key, value in zip(keys, values, strict=True):
                self._shared.shelf.set(key, value)

    def _append(self, key: bytes, value: bytes) -> None:
        with self._shared.condition:
            self._shared.shelf.append(key, value)

    def _push(self, key: bytes, value: bytes) -> None:
        with self._shared.condition:
            self._shared.shelf.push(key, value)

    def _pop(self, key: bytes, block: bool) -> bytes:
        shelf = self._shared.shelf
        with self._shared.condition:
            if block:
                self._until(lambda: shelf.queue_len(key), self._limit)
            value = shelf.pop(key)
        if value is None:
            raise self._nobody_pushed(self._limit, key) if block else QueueEmptyError(self._empty(key))
        return value

    def _queue_len(self, key: bytes) -> int:
        with self._shared.condition:
            return self._shared.shelf.queue_len(key)

    def _barrier(self, key: bytes, size: int, limit: float) -> None:
        shelf = self._shared.shelf
        with self._shared.condition:
            shelf.add(key, 1)
            passed = False
            try:
                passed = self._until(lambda: shelf.number(key) >= size, limit)
            finally:
                came = shelf.number(key)
                if not passed:  # it will not be there when the others come
                    shelf.add(key, -1)
        if not passed:
            raise self._few_came(limit, key, came, size)
