"""The entries of TensorDicts that are no arrays, on their way from one rank to another.

They are a message of their own, which goes by a tag that no array has: how long it is, the receiver does not know
before it comes. Its number is in the record that comes with the arrays.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from corral.distributed.errors import MismatchError
from corral.distributed.groups import ProcessGroup
from corral.tensordict.base import Base
from corral.tensordict.moving.leaves import Slot
from corral.wire import codec
from corral.wire.errors import CodecError

__all__ = ["TAG", "check", "decode", "encode", "put", "take"]

TAG = 1 << 40
"""Added to the tag of the arrays."""

_NUMBER = 8  # bytes
_numbers = itertools.count(1)
_waiting: weakref.WeakKeyDictionary[ProcessGroup, _Arrived] = weakref.WeakKeyDictionary()
_new = threading.Lock()


class _Arrived:
    """Messages that came before those that were asked for, by their peer, tag and number."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: dict[tuple[int, int, int], bytes] = {}


def encode(slots: Sequence[Slot], allow_pickle: bool) -> tuple[int, bytes]:
    """Return a number for the objects of a TensorDict, and the message that they are; 0 if there are none.

    Raises
    ------
    PickleError
        If some object can only be pickled, and that is refused.
    """
    if not slots:
        return 0, b""
    number = next(_numbers)
    return number, number.to_bytes(_NUMBER, "little") + codec.dumps([slot.leaf for slot in slots], allow_pickle)


def take(pg: ProcessGroup, peer: int, tag: int, number: int) -> bytes:
    """Return the message of a number from a rank; others that come first are kept for who asks for them."""
    with _new:
        arrived = _waiting.setdefault(pg, _Arrived())
    with arrived.lock:
        while (peer, tag, number) not in arrived.messages:
            message = bytes(pg.backend.recv_bytes(peer, tag + TAG)[1])
            arrived.messages[peer, tag, int.from_bytes(message[:_NUMBER], "little")] = message[_NUMBER:]
        return arrived.messages.pop((peer, tag, number))


def decode(message: bytes, slots: Sequence[Slot], allow_pickle: bool) -> list[Any]:
    """Return the entries of a message, of which there must be one for each place.

    Raises
    ------
    MismatchError, PickleError
        If the message does not have them, or an object can only be unpickled, and that is refused.
    """
    try:
        entries = codec.loads(message, allow_pickle)
    except CodecError as error:
        raise MismatchError(f"the objects cannot be read: {error}") from None
    if type(entries) is not list or len(entries) != len(slots):
        raise MismatchError(f"there should be objects for {[slot.name for slot in slots]}, and are not")
    for slot, entry in zip(slots, entries, strict=True):
        check(slot, entry)
    return entries


def check(slot: Slot, entry: Any) -> None:
    """Raise `MismatchError` unless an entry fits a place."""
    if slot.holder._in_file:
        fits = isinstance(entry, (str, bytes)) or (isinstance(entry, Base) and entry._holds_objects)
    else:
        fits = isinstance(entry, Base) and entry._holds_objects and entry._batch_size == slot.leaf._batch_size
    if not fits:
        shape = tuple(getattr(entry, "shape", ()))
        raise MismatchError(f"the objects of batch size {shape} that come for {slot.name} do not fit what is there")


def put(slots: Sequence[Slot], entries: Sequence[Any]) -> None:
    """Put objects that have come into their places, locked or not."""
    for slot, entry in zip(slots, entries, strict=True):
        holder: Any = slot.holder
        if holder._in_file:
            holder.set_(slot.key, entry._unwrapped() if isinstance(entry, Base) and entry._fits_any else entry)
        elif slot.key:
            holder._replace(slot.key, holder._check(slot.key, slot.leaf._received(entry)))
        else:
            holder._take_over(entry)
