"""A store in a file that processes share."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from corral.distributed.errors import QueueEmptyError, StoreTimeoutError
from corral.distributed.stores.base import Store
from corral.distributed.stores.file_log import Busy, Log
from corral.distributed.stores.shelf import Change, Shelf

__all__ = ["FileStore"]

_FIRST_PAUSE, _LAST_PAUSE = 0.0005, 0.02  # seconds between two looks at the file
_LEAST_LIMIT = 5.0  # seconds that a store waits for the file itself, however short its timeout

T = TypeVar("T")


class FileStore(Store):
    """A store in a file, as ``torch.distributed.FileStore``, for processes that see the same file system.

    A process that is killed while it writes leaves the file as it was before. The last user removes the file
    if as many as `world_size` have used it; those that were killed count as gone.

    Parameters
    ----------
    file_name
        Path of the file. It is made for this user alone, and must not be another user's.
    world_size
        Number of users; the file stays if it is negative.

    Raises
    ------
    DistStoreError
        If the file cannot be used, or is not one of a `FileStore`.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "store")
    >>> store = FileStore(path, 1)
    >>> store.set("key", "value")
    >>> FileStore(path, 2).get("key")
    b'value'
    """

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__()
        self._path = os.path.abspath(os.fspath(file_name))
        self._world_size = int(world_size)
        self._open()

    def _open(self) -> None:
        changes: list[tuple[Change, bytes, bytes]] = []
        self._changes = changes  # made, and not yet written down
        self._shelf = shelf = Shelf(lambda change, key, value: changes.append((change, key, value)))
        self._pid = os.getpid()

        def redo(change: Change, key: bytes, value: bytes) -> None:
            shelf.redo(change, key, value)
            changes.clear()

        try:
            self._log = Log(self._path, redo, max(self._limit, _LEAST_LIMIT))
        except Busy:
            raise self._held_too_long("FileStore") from None
        self._leave = weakref.finalize(self, _close, self._log, self._world_size, self._pid)

    def __repr__(self) -> str:
        return f"FileStore({self._path!r}, {self._world_size})"

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._path

    def clone(self) -> FileStore:
        other = FileStore(self._path, self._world_size)
        other._limit = self._limit
        return other

    def _held_too_long(self, where: str) -> StoreTimeoutError:
        return StoreTimeoutError(
            f"{where} on {self!r} could not get the file: another process holds it all the time. Is one of its users "
            "stopped?"
        )

    @contextlib.contextmanager
    def _held(self, where: str) -> Iterator[Shelf]:
        """Have the contents for oneself; what is changed in them is written down."""
        if self._pid != os.getpid():  # a fork: the file that it has open is its parent's
            self._open()
        try:
            with self._log.held(max(self._limit, _LEAST_LIMIT)):
                try:
                    yield self._shelf
                    self._log.write(self._changes)
                except BaseException:
                    if self._changes:  # they were not written down: forget them, with all else
                        self._log.rewind()
                        self._shelf.clear()
                    raise
                finally:
                    self._changes.clear()
        except Busy:
            raise self._held_too_long(where) from None

    def _until(self, look: Callable[[Shelf], T | None], where: str, limit: float) -> T | None:
        """Look again whenever the file has changed, until there is an answer; ``None`` if there is none in time."""
        deadline = time.monotonic() + limit
        pause = _FIRST_PAUSE
        while True:
            with self._held(where) as shelf:
                answer = look(shelf)
                seen = self._log.position
            if answer is not None:
                return answer
            while not self._log.changed(seen):
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LAST_PAUSE)
            if time.monotonic() >= deadline:
                with self._held(where) as shelf:
                    return look(shelf)

    def _set(self, key: bytes, value: bytes) -> None:
        with self._held("set") as shelf:
            shelf.set(key, value)

    def _get(self, keys: list[bytes], where: str) -> list[bytes]:
        def look(shelf: Shelf) -> list[bytes] | None:
            missing[:] = [key for key in keys if key not in shelf.values]
            return None if missing else [shelf.values[key] for key in keys]

        missing: list[bytes] = []
        found = self._until(look, where, self._limit)
        if found is None:
            raise self._nobody_set(where, self._limit, missing)
        return found

    def _add(self, key: bytes, amount: int) -> int:
        with self._held("add") as shelf:
            return shelf.add(key, amount)

    def _wait(self, keys: list[bytes], limit: float) -> None:
        def look(shelf: Shelf) -> bool | None:
            missing[:] = shelf.missing(keys)
            return None if missing else True

        missing: list[bytes] = []
        if self._until(look, "wait", limit) is None:
            raise self._nobody_set("wait", limit, missing)

    def _check(self, keys: list[bytes]) -> bool:
        with self._held("check") as shelf:
            return not shelf.missing(keys)

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        with self._held("compare_set") as shelf:
            return shelf.compare_set(key, expected, desired)

    def _delete(self, key: bytes) -> bool:
        with self._held("delete_key") as shelf:
            return shelf.delete(key)

    def _num_keys(self) -> int:
        with self._held("num_keys") as shelf:
            return len(shelf.values) + 1  # torch's count of users is a key, too

    def _list_keys(self) -> list[bytes]:
        with self._held("list_keys") as shelf:
            return list(shelf.values)

    def _multi_set(self, keys: list[bytes], values: list[bytes]) -> None:
        with self._held("multi_set") as shelf:
            for key, value in zip(keys, values, strict=True):
                shelf.set(key, value)

    def _append(self, key: bytes, value: bytes) -> None:
        with self._held("append") as shelf:
            shelf.append(key, value)

    def _push(self, key: bytes, value: bytes) -> None:
        with self._held("queue_push") as shelf:
            shelf.push(key, value)

    def _pop(self, key: bytes, block: bool) -> bytes:
        value = self._until(lambda shelf: shelf.pop(key), "queue_pop", self._limit if block else 0.0)
        if value is None:
            raise self._nobody_pushed(self._limit, key) if block else QueueEmptyError(self._empty(key))
        return value

    def _queue_len(self, key: bytes) -> int:
        with self._held("queue_len") as shelf:
            return shelf.queue_len(key)

    def _barrier(self, key: bytes, size: int, limit: float) -> None:
        self._add(key, 1)
        passed = False
        try:
            passed = bool(self._until(lambda shelf: shelf.number(key) >= size or None, "barrier", limit))
        finally:
            if not passed:  # it will not be there when the others come
                with self._held("barrier") as shelf:
                    came = shelf.number(key)
                    passed = came >= size
                    if not passed:
                        shelf.add(key, -1)
        if not passed:
            raise self._few_came(limit, key, came, size)


def _close(log: Log, users: int, pid: int) -> None:
    if pid == os.getpid():
        log.close(users, _LEAST_LIMIT)
    else:  # a fork, whose parent still has the locks of the same open file
        log.abandon()
