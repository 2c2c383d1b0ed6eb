"""A part of another store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import SupportsIndex

from corral.distributed.stores.base import Key, Store, Value, key_bytes, key_text

__all__ = ["PrefixStore"]


class PrefixStore(Store):
    """A store whose keys are those of another one that start with a prefix, as ``torch.distributed.PrefixStore``.

    Parameters
    ----------
    prefix
        What the other store's keys start with; a slash follows it.
    store
        The other store.

    Examples
    --------
    >>> from corral.distributed import HashStore
    >>> whole = HashStore()
    >>> part = PrefixStore("part", whole)
    >>> part.set("key", "value")
    >>> part.list_keys(), whole.list_keys()
    (['key'], ['part/key'])
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"PrefixStore: store must be a corral.distributed.Store, got {type(store).__qualname__}")
        super().__init__()
        self._prefix = key_bytes(prefix, "PrefixStore") + b"/"
        self._store = store

    def __repr__(self) -> str:
        return f"PrefixStore({key_text(self._prefix[:-1])!r}, {self._store!r})"

    @property
    def underlying_store(self) -> Store:
        """The store that this is a part of."""
        return self._store

    @property
    def _underlying_non_prefix_store(self) -> Store:
        store: Store = self
        while isinstance(store, PrefixStore):
            store = store._store
        return store

    def _full(self, key: Key, where: str) -> str:
        return key_text(self._prefix + key_bytes(key, where))

    def _all(self, keys: Iterable[Key], where: str) -> list[str]:
        if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
            raise TypeError(f"{where}: keys must be a list of strings, got {type(keys).__qualname__}")
        return [self._full(key, where) for key in keys]

    @property
    def timeout(self) -> timedelta:
        """How long methods wait; it is the other store's."""
        return self._store.timeout

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Set how long methods of this store, and of the other one, wait."""
        self._store.set_timeout(timeout)

    def set(self, key: Key, value: Value) -> None:
        self._store.set(self._full(key, "set"), value)

    def get(self, key: Key) -> bytes:
        return self._store.get(self._full(key, "get"))

    def add(self, key: Key, amount: SupportsIndex) -> int:
        return self._store.add(self._full(key, "add"), amount)

    def wait(self, keys: Iterable[Key], timeout: timedelta | float | None = None) -> None:
        names = self._all(keys, "wait")
        if timeout is None:
            self._store.wait(names)
        else:
            self._store.wait(names, timeout)

    def check(self, keys: Iterable[Key]) -> bool:
        return self._store.check(self._all(keys, "check"))

    def compare_set(self, key: Key, expected_value: Value, desired_value: Value) -> bytes:
        return self._store.compare_set(self._full(key, "compare_set"), expected_value, desired_value)

    def delete_key(self, key: Key) -> bool:
        return self._store.delete_key(self._full(key, "delete_key"))

    def num_keys(self) -> int:
        """Return the number of keys of the whole other store, as in torch."""
        return self._store.num_keys()

    def list_keys(self) -> list[str]:
        """Return all keys of this part, without the prefix."""
        prefix = key_text(self._prefix)
        return [key.removeprefix(prefix) for key in self._store.list_keys() if key.startswith(prefix)]

    def multi_get(self, keys: Iterable[Key]) -> list[bytes]:
        return self._store.multi_get(self._all(keys, "multi_get"))

    def multi_set(self, keys: Iterable[Key], values: Iterable[Value]) -> None:
        self._store.multi_set(self._all(keys, "multi_set"), values)

    def append(self, key: Key, value: Value) -> None:
        self._store.append(self._full(key, "append"), value)

    def queue_push(self, key: Key, value: Value) -> None:
        self._store.queue_push(self._full(key, "queue_push"), value)

    def queue_pop(self, key: Key, block: bool = True) -> bytes:
        return self._store.queue_pop(self._full(key, "queue_pop"), block)

    def queue_len(self, key: Key) -> int:
        return self._store.queue_len(self._full(key, "queue_len"))

    def barrier(self, key: Key, world_size: SupportsIndex, timeout: timedelta | float | None = None) -> None:
        self._store.barrier(self._full(key, "barrier"), world_size, timeout)

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def clone(self) -> PrefixStore:
        return PrefixStore(key_text(self._prefix[:-1]), self._store.clone())
