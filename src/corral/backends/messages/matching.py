"""Which message goes to which receive: by source and tag, in order."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Generic, TypeVar

from corral.backends.messages.operations import ANYONE, Receive

__all__ = ["Arrived", "Mailbox", "Taken"]


class Arrived:
    """A message that has come, or been offered, before anyone wanted it."""

    __slots__ = ("cost", "name", "number", "order", "payload", "sender", "size", "tag", "taken")

    def __init__(
        self,
        sender: int,
        tag: int,
        number: int,
        size: int,
        payload: bytes | memoryview | None,
        name: int,
        cost: int = 0,
    ) -> None:
        self.sender = sender
        self.tag = tag
        self.number = number
        self.size = size
        self.payload = payload
        """Its bytes; ``None`` while they are still with the sender."""
        self.name = name
        """What the sender knows an offer by."""
        self.cost = cost
        """What it takes of the sender's credit."""
        self.taken: Taken | None = None
        """Set once the sender was told to send the bytes."""
        self.order = 0


class Taken:
    """An offer whose bytes are to come. Whoever wanted them may have given up since, and another may have come."""

    __slots__ = ("arrived", "receive", "started")

    def __init__(self, arrived: Arrived, receive: Receive) -> None:
        self.arrived = arrived
        self.receive: Receive | None = receive
        self.started = False


_Item = TypeVar("_Item", Arrived, Receive)


class _Lines(Generic[_Item]):
    """Items that stand in line, for each tag and rank, with their order over all lines."""

    def __init__(self) -> None:
        self.lines: dict[int, dict[int, deque[_Item]]] = {}  # by tag and rank; none is empty

    def add(self, item: _Item, tag: int, rank: int) -> None:
        self.lines.setdefault(tag, {}).setdefault(rank, deque()).append(item)

    def add_back(self, item: _Item, tag: int, rank: int) -> None:
        """Put an item where it was."""
        line = self.lines.setdefault(tag, {}).setdefault(rank, deque())
        items = list(line)
        insort(items, item, key=lambda each: each.order)
        line.clear()
        line.extend(items)

    def first(self, tag: int, ranks: tuple[int, ...] | None) -> _Item | None:
        """Return the first item with a tag, of some ranks or of any."""
        lines = self.lines.get(tag)
        if lines is None:
            return None
        heads = [line[0] for rank, line in lines.items() if ranks is None or rank in ranks]
        return min(heads, key=lambda each: each.order) if heads else None

    def remove(self, item: _Item, tag: int, rank: int) -> bool:
        line = self.lines.get(tag, {}).get(rank)
        if line is None or item not in line:
            return False
        if line[0] is item:
            line.popleft()
        else:
            line.remove(item)
        if not line:
            del self.lines[tag][rank]
            if not self.lines[tag]:
                del self.lines[tag]
        return True

    def __iter__(self):  # type: ignore[no-untyped-def]
        for lines in list(self.lines.values()):
            for line in list(lines.values()):
                yield from list(line)


class Mailbox:
    """The messages and receives of one group."""

    def __init__(self) -> None:
        self.arrived: _Lines[Arrived] = _Lines()
        self.posted: _Lines[Receive] = _Lines()
        self.closed = False
        self._order = 0

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def claim(self, receive: Receive) -> Arrived | None:
        """Take the message that a new receive is for, if it is here."""
        ranks = None if receive.source == ANYONE else (receive.source,)
        found = self.arrived.first(receive.tag, ranks)
        if found is not None:
            self.arrived.remove(found, found.tag, found.sender)
        return found

    def match(self, sender: int, tag: int) -> Receive | None:
        """Take the receive that a new message is for, if there is one."""
        found = self.posted.first(tag, (sender, ANYONE))
        if found is not None:
            self.posted.remove(found, tag, found.source)
        return found

    def put(self, message: Arrived) -> None:
        message.order = self.next_order()
        self.arrived.add(message, message.tag, message.sender)

    def post(self, receive: Receive) -> None:
        receive.order = self.next_order()
        self.posted.add(receive, receive.tag, receive.source)
