"""What every store offers: checks and conversions stand here, the engines below see only bytes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NoReturn, SupportsIndex

from corral.distributed.errors import StoreTimeoutError

__all__ = ["DEFAULT_TIMEOUT", "Store", "key_bytes", "limit_seconds", "missing_keys", "value_bytes"]

DEFAULT_TIMEOUT = timedelta(minutes=5)
"""How long a store waits for a key where no timeout is given."""

Key = str | bytes
Value = str | bytes | bytearray | memoryview


def limit_seconds(timeout: timedelta | float, where: str) -> float:
    """Return a timeout in seconds; zero, which means not to wait at all, included."""
    if isinstance(timeout, timedelta):
        value = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        value = float(timeout)
    else:
        raise TypeError(
            f"{where}: timeout must be a datetime.timedelta or a number of seconds, got {type(timeout).__qualname__}"
        )
    if math.isnan(value) or value < 0:
        raise ValueError(f"{where}: timeout must not be negative, got {timeout!r}")
    return min(value, 86400.0 * 365)


def key_bytes(key: Key, where: str) -> bytes:
    """Return a key as stores keep it. Bytes that are no text survive the way there and back."""
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape")
    if isinstance(key, bytes):
        return key
    raise TypeError(f"{where}: key must be a string, got {type(key).__qualname__}")


def key_text(key: bytes) -> str:
    """Return a key as callers see it."""
    return key.decode("utf-8", "surrogateescape")


def value_bytes(value: Value, where: str, name: str = "value") -> bytes:
    """Return a value as stores keep it."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{where}: {name} must be a string or bytes, got {type(value).__qualname__}")


def missing_keys(keys: Sequence[bytes]) -> str:
    """Write down keys for a message; many are cut short.

    Examples
    --------
    >>> missing_keys([b"a"]), missing_keys([b"a", b"b"])
    ("key 'a'", "keys 'a', 'b'")
    """
    shown = ", ".join(repr(key_text(key)[:200]) for key in keys[:8])
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    return f"key{'' if len(keys) == 1 else 's'} {shown}{more}"


class Store:
    """Base of all stores, as ``torch.distributed.Store``.

    Keys are strings; values are bytes, and a string that is given as one is encoded. A method that waits does
    so for at most `timeout`, and then raises an error that is a `DistStoreError` and a `TimeoutError`.

    A class of your own may derive from it and override the public methods; `PrefixStore` works over any.
    """

    def __init__(self) -> None:
        self._limit = DEFAULT_TIMEOUT.total_seconds()

    @property
    def timeout(self) -> timedelta:
        """How long methods of this store wait."""
        return timedelta(seconds=self._limit)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Set how long methods of this store wait: a `datetime.timedelta` or seconds.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.set_timeout(timedelta(seconds=10))
        >>> store.timeout
        datetime.timedelta(seconds=10)
        """
        self._limit = limit_seconds(timeout, "set_timeout")

    def set(self, key: Key, value: Value) -> None:
        """Give a key a value, in place of the one that it has.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.set("key", "value")
        >>> store.get("key")
        b'value'
        """
        self._set(key_bytes(key, "set"), value_bytes(value, "set"))

    def get(self, key: Key) -> bytes:
        """Return a key's value, waiting until it has one.

        Raises
        ------
        DistStoreError
            If it has none within `timeout`.
        """
        return self._get([key_bytes(key, "get")], "get")[0]

    def add(self, key: Key, amount: SupportsIndex) -> int:
        """Add to a counter, which is 0 before, and return the sum.

        The counter's value is its decimal digits.

        Raises
        ------
        ValueError
            If the key has a value that is no number, or if the sum does not fit into 64 bits.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.add("count", 1), store.add("count", 6), store.get("count")
        (1, 7, b'7')
        """
        try:
            number = operator.index(amount)
        except TypeError:
            raise TypeError(f"add: amount must be an integer, got {type(amount).__qualname__}") from None
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"add: amount must fit into 64 bits, got {number}")
        try:
            return self._add(key_bytes(key, "add"), number)
        except ValueError as error:
            raise ValueError(f"add to {key!r} on {self!r}: {error}") from None

    def wait(self, keys: Iterable[Key], timeout: timedelta | float | None = None) -> None:
        """Wait until all keys are there; a queue that is not empty counts as well.

        Parameters
        ----------
        keys
            What to wait for.
        timeout
            A `datetime.timedelta` or seconds; the store's when ``None``. Zero to look only once.

        Raises
        ------
        DistStoreError
            If some are not there in time.
        """
        limit = self._limit if timeout is None else limit_seconds(timeout, "wait")
        self._wait(_keys(keys, "wait"), limit)

    def check(self, keys: Iterable[Key]) -> bool:
        """Return whether all keys are there now; a queue that is not empty counts as well.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> HashStore().check(["key"])
        False
        """
        return self._check(_keys(keys, "check"))

    def compare_set(self, key: Key, expected_value: Value, desired_value: Value) -> bytes:
        """Set a key to `desired_value` if it has `expected_value`, or, if that is empty, if it has none.

        Returns
        -------
        bytes
            The value that the key has now; `expected_value` if it has none.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.compare_set("key", "", "first"), store.compare_set("key", "other", "second")
        (b'first', b'first')
        """
        where = "compare_set"
        expected = value_bytes(expected_value, where, "expected_value")
        return self._compare_set(key_bytes(key, where), expected, value_bytes(desired_value, where, "desired_value"))

    def delete_key(self, key: Key) -> bool:
        """Remove a key and its value; return whether it was there.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.set("key", "value")
        >>> store.delete_key("key"), store.delete_key("key")
        (True, False)
        """
        return self._delete(key_bytes(key, "delete_key"))

    def num_keys(self) -> int:
        """Return the number of keys; as in torch, one that a store counts its users with is among them."""
        return self._num_keys()

    def list_keys(self) -> list[str]:
        """Return all keys, in no particular order."""
        return [key_text(key) for key in self._list_keys()]

    def multi_get(self, keys: Iterable[Key]) -> list[bytes]:
        """Return the values of several keys, waiting until all have one.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.multi_set(["a", "b"], ["1", "2"])
        >>> store.multi_get(["a", "b"])
        [b'1', b'2']
        """
        return self._get(_keys(keys, "multi_get"), "multi_get")

    def multi_set(self, keys: Iterable[Key], values: Iterable[Value]) -> None:
        """Give several keys a value each, all at once."""
        names = _keys(keys, "multi_set")
        if isinstance(values, (str, bytes)):
            raise TypeError(f"multi_set: values must be a list of values, got {type(values).__qualname__}")
        contents = [value_bytes(value, "multi_set") for value in values]
        if len(names) != len(contents):
            raise ValueError(f"multi_set: as many values as keys are needed, got {len(names)} and {len(contents)}")
        self._multi_set(names, contents)

    def append(self, key: Key, value: Value) -> None:
        """Append to a key's value, which is empty before.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.append("key", "po")
        >>> store.append("key", "tato")
        >>> store.get("key")
        b'potato'
        """
        self._append(key_bytes(key, "append"), value_bytes(value, "append"))

    def queue_push(self, key: Key, value: Value) -> None:
        """Put a value at the end of a queue. Queues and values have names of their own.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> store = HashStore()
        >>> store.queue_push("queue", "a")
        >>> store.queue_push("queue", "b")
        >>> store.queue_len("queue"), store.queue_pop("queue"), store.queue_pop("queue")
        (2, b'a', b'b')
        """
        self._push(key_bytes(key, "queue_push"), value_bytes(value, "queue_push"))

    def queue_pop(self, key: Key, block: bool = True) -> bytes:
        """Take the first value out of a queue; one caller gets each.

        Parameters
        ----------
        key
            Name of the queue.
        block
            Whether to wait, for at most `timeout`, if the queue is empty.

        Raises
        ------
        QueueEmptyError
            If it is empty and `block` is false.
        DistStoreError
            If it stays empty for `timeout`.
        """
        return self._pop(key_bytes(key, "queue_pop"), bool(block))

    def queue_len(self, key: Key) -> int:
        """Return the number of values in a queue."""
        return self._queue_len(key_bytes(key, "queue_len"))

    def barrier(self, key: Key, world_size: SupportsIndex, timeout: timedelta | float | None = None) -> None:
        """Wait until `world_size` callers have come to the barrier of this name.

        A name serves for one barrier: later callers pass at once. A caller that gives up is not counted as
        one that has come.

        Parameters
        ----------
        key
            Name of the barrier; the number of callers is kept under it.
        world_size
            How many must come.
        timeout
            A `datetime.timedelta` or seconds; the store's when ``None``.

        Raises
        ------
        DistStoreError
            If not all come in time; the message says how many have.

        Examples
        --------
        >>> from corral.distributed import HashStore
        >>> HashStore().barrier("start", 1)
        """
        size = operator.index(world_size)
        if not 0 < size < 1 << 31:
            raise ValueError(f"barrier: world_size must be positive, got {size}")
        limit = self._limit if timeout is None else limit_seconds(timeout, "barrier")
        try:
            self._barrier(key_bytes(key, "barrier"), size, limit)
        except ValueError as error:
            raise ValueError(f"barrier {key!r} on {self!r}: {error}") from None

    def has_extended_api(self) -> bool:
        """Return whether `append`, `multi_get`, `multi_set` and the queues work; they do in all of corral's."""
        return True

    def clone(self) -> Store:
        """Return another object for the same store, which waits and is waited for independently."""
        self._lacks("clone")

    # What a store must do, over bytes; those below are for a class of one's own that has only some.

    def _set(self, key: bytes, value: bytes) -> None:
        self._lacks("set")

    def _get(self, keys: list[bytes], where: str) -> list[bytes]:
        self._lacks("get")

    def _add(self, key: bytes, amount: int) -> int:
        self._lacks("add")

    def _wait(self, keys: list[bytes], limit: float) -> None:
        self._lacks("wait")

    def _check(self, keys: list[bytes]) -> bool:
        self._lacks("check")

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        self._lacks("compare_set")

    def _delete(self, key: bytes) -> bool:
        self._lacks("delete_key")

    def _num_keys(self) -> int:
        self._lacks("num_keys")

    def _list_keys(self) -> list[bytes]:
        self._lacks("list_keys")

    def _multi_set(self, keys: list[bytes], values: list[bytes]) -> None:
        self._lacks("multi_set")

    def _append(self, key: bytes, value: bytes) -> None:
        self._lacks("append")

    def _push(self, key: bytes, value: bytes) -> None:
        self._lacks("queue_push")

    def _pop(self, key: bytes, block: bool) -> bytes:
        self._lacks("queue_pop")

    def _queue_len(self, key: bytes) -> int:
        self._lacks("queue_len")

    def _barrier(self, key: bytes, size: int, limit: float) -> None:
        self._lacks("barrier")

    def _lacks(self, name: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__qualname__} does not implement {name}")

    def _timed_out(self, where: str, limit: float, what: str) -> StoreTimeoutError:
        """Make the error of a wait that was in vain."""
        return StoreTimeoutError(
            f"{where} on {self!r} timed out after {limit:g} s: {what}. See whether the rank that should do so is "
            "alive and uses the same store, or allow more time with set_timeout()"
        )

    def _nobody_set(self, where: str, limit: float, missing: Sequence[bytes]) -> StoreTimeoutError:
        return self._timed_out(where, limit, f"nobody has set {missing_keys(missing)}")

    def _nobody_pushed(self, limit: float, key: bytes) -> StoreTimeoutError:
        return self._timed_out("queue_pop", limit, f"nobody has pushed to the queue of {missing_keys([key])}")

    def _few_came(self, limit: float, key: bytes, came: int, size: int) -> StoreTimeoutError:
        what = f"{came} of {size} have come to the barrier of {missing_keys([key])}; the others have not"
        return self._timed_out("barrier", limit, what)

    def _empty(self, key: bytes) -> str:
        return f"queue_pop on {self!r}: the queue of {missing_keys([key])} is empty, and block is false"


def _keys(keys: Iterable[Key], where: str) -> list[bytes]:
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise TypeError(f"{where}: keys must be a list of strings, got {type(keys).__qualname__}")
    return [key_bytes(key, where) for key in keys]
