"""What the server of a `TCPStore` does with a request that has come. Nothing here waits or knows a socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.distributed.stores.shelf import Change, Shelf
from corral.distributed.stores.tcp_wire import Kind, Malformed, integer, parse_integer

__all__ = ["MAX_WAITS", "Caller", "Service"]

MAX_WAITS = 4096
"""How many requests of one client may wait at a time."""

_FIELDS = {  # fields of the requests that have a fixed number of them
    Kind.SET: 2,
    Kind.ADD: 2,
    Kind.COMPARE_SET: 3,
    Kind.DELETE: 1,
    Kind.NUM_KEYS: 0,
    Kind.LIST_KEYS: 0,
    Kind.APPEND: 2,
    Kind.PUSH: 2,
    Kind.POP: 1,
    Kind.QUEUE_LEN: 1,
    Kind.BARRIER: 2,
    Kind.REACH: 2,
    Kind.CANCEL: 0,
}


class Caller(Protocol):
    """Whoever asks."""

    waits: dict[int, Wait]
    """The requests that wait, by number."""
    will: tuple[bytes, bytes] | None
    """The key to set when it is gone, unless that has a value, and the value."""

    def reply(self, number: int, kind: Kind, fields: Sequence[bytes] = ()) -> None:
        """Answer a request."""


class Wait:
    """A request whose answer is not there yet."""

    def __init__(self, caller: Caller, number: int, kind: Kind, keys: list[bytes], goal: int = 0) -> None:
        self.caller = caller
        self.number = number
        self.kind = kind
        self.keys = keys
        self.goal = goal
        self.next = 0  # where in the keys to look first: those before are likely to be there still
        self.key = b""  # the one whose change it waits for


class Service:
    """A store that is asked by requests, each of which it answers once, at once or when it can."""

    def __init__(self) -> None:
        self._shelf = Shelf(self._changed)
        self._waits: dict[bytes, dict[Wait, None]] = {}  # by the key that they wait for, oldest first
        self._touched: dict[bytes, None] = {}

    def _changed(self, change: Change, key: bytes, value: bytes) -> None:
        if change is not Change.DELETE and change is not Change.POP and key in self._waits:
            self._touched[key] = None

    def request(self, caller: Caller, number: int, kind: Kind, fields: list[bytes]) -> None:
        """Do what a request says.

        Raises
        ------
        Malformed
            If it is not one that a client would have made.
        """
        expected = _FIELDS.get(kind, len(fields))
        if kind < Kind.SET or len(fields) != expected:
            raise Malformed(f"{kind.name} with {len(fields)} fields")
        if number in caller.waits and kind is not Kind.CANCEL:
            raise Malformed(f"two requests of number {number}")
        try:
            if len(caller.waits) >= MAX_WAITS and kind is not Kind.CANCEL:
                raise ValueError(f"one client waits for more than {MAX_WAITS} things at a time")
            answer = self._do(caller, number, kind, fields)
        except ValueError as error:
            caller.reply(number, Kind.INVALID, [str(error).encode(errors="replace")])
        else:
            if answer is not None:
                caller.reply(number, Kind.DONE, answer)
        self._wake()

    def forget(self, caller: Caller) -> None:
        """Wait no longer for somebody who is gone, and do what they have left to do."""
        for wait in list(caller.waits.values()):
            self._end(wait)
        if caller.will is not None:
            self._shelf.compare_set(caller.will[0], b"", caller.will[1])
            caller.will = None
            self._wake()

    def _do(self, caller: Caller, number: int, kind: Kind, fields: list[bytes]) -> list[bytes] | None:
        """Return the fields of the answer; ``None`` if there is none yet, or it has been given."""
        shelf = self._shelf
        match kind, fields:
            case Kind.SET, [key, value]:
                shelf.set(key, value)
            case Kind.ADD, [key, amount]:
                return [integer(shelf.add(key, parse_integer(amount)))]
            case Kind.CHECK, _:
                return [integer(all(map(shelf.has, fields)))]
            case Kind.COMPARE_SET, [key, old, new]:
                return [shelf.compare_set(key, old, new)]
            case Kind.DELETE, [key]:
                return [integer(shelf.delete(key))]
            case Kind.NUM_KEYS, _:
                return [integer(len(shelf.values))]
            case Kind.LIST_KEYS, _:
                return list(shelf.values)
            case Kind.MULTI_SET, _:
                if len(fields) % 2:
                    raise Malformed("a key without a value")
                for key, value in zip(fields[::2], fields[1::2], strict=True):
                    shelf.set(key, value)
            case Kind.APPEND, [key, value]:
                shelf.append(key, value)
            case Kind.PUSH, [key, value]:
                shelf.push(key, value)
            case Kind.QUEUE_LEN, [key]:
                return [integer(shelf.queue_len(key))]
            case Kind.WILL, [key, value]:
                caller.will = (key, value)
            case Kind.WILL, []:
                caller.will = None
            case Kind.WILL, _:
                raise Malformed(f"a will of {len(fields)} fields")
            case Kind.CANCEL, _:
                self._cancel(caller, number)
                return None
            case Kind.BARRIER | Kind.REACH, [key, goal]:
                shelf.add(key, 1 if kind is Kind.BARRIER else 0)
                self._await(Wait(caller, number, kind, [key], parse_integer(goal)))
                return None
            case _:  # GET, WAIT, POP
                self._await(Wait(caller, number, kind, fields))
                return None
        return []

    def _await(self, wait: Wait) -> None:
        wait.caller.waits[wait.number] = wait
        if not self._finish(wait):
            self._waits.setdefault(wait.key, {})[wait] = None

    def _wake(self) -> None:
        while self._touched:
            key, _ = self._touched.popitem()
            waits = self._waits.pop(key, {})
            for wait in waits:
                if not self._finish(wait):
                    self._waits.setdefault(wait.key, {})[wait] = None

    def _finish(self, wait: Wait) -> bool:
        """Answer a request that waits, if what it waits for is there; else say which key that is about."""
        answer = self._answer(wait)
        if answer is None:
            return False
        del wait.caller.waits[wait.number]
        wait.caller.reply(wait.number, Kind.DONE, answer)
        return True

    def _answer(self, wait: Wait) -> list[bytes] | None:
        shelf = self._shelf
        if wait.kind in (Kind.GET, Kind.WAIT):
            there = shelf.values.__contains__ if wait.kind is Kind.GET else shelf.has
            count = len(wait.keys)
            for at in range(wait.next, wait.next + count):
                if not there(wait.keys[at % count]):
                    wait.next = at % count
                    wait.key = wait.keys[wait.next]
                    return None
            return [shelf.values[key] for key in wait.keys] if wait.kind is Kind.GET else []
        wait.key = wait.keys[0]
        if wait.kind is Kind.POP:
            value = shelf.pop(wait.key)
            return None if value is None else [value]
        return [] if self._count(wait.key) >= wait.goal else None

    def _count(self, key: bytes) -> int:
        """Return a counter; 0 if somebody has put something else in its place."""
        try:
            return self._shelf.number(key)
        except ValueError:
            return 0

    def _cancel(self, caller: Caller, number: int) -> None:
        wait = caller.waits.get(number)
        if wait is None:
            return  # it has just been answered
        if wait.kind in (Kind.BARRIER, Kind.REACH):
            missing = [integer(self._count(wait.key))]
        elif wait.kind is Kind.GET:
            missing = [key for key in wait.keys if key not in self._shelf.values]
        else:
            missing = self._shelf.missing(wait.keys)
        self._end(wait)
        caller.reply(number, Kind.NOTHING, missing)

    def _end(self, wait: Wait) -> None:
        del wait.caller.waits[wait.number]
        same = self._waits[wait.key]
        del same[wait]
        if not same:
            del self._waits[wait.key]
        if wait.kind is Kind.BARRIER:  # it will not be there when the others come
            if (count := self._count(wait.key)) > 0:
                self._shelf.set(wait.key, b"%d" % (count - 1))
            self._touched.pop(wait.key, None)
