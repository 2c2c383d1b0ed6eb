"""The leaves of a TensorDict as an operation takes them: in an order that all ranks share."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from corral.arrays.buffers import readable, register_torch, sharing, writable
from corral.arrays.libraries import convert, library_of
from corral.arrays.updating import updatable
from corral.distributed.arguments import Finish, together
from corral.functional.parcels import dtype_of
from corral.tensordict.base import Base
from corral.wire.errors import PickleError
from corral.wire.layout import Layout, Path, key_text

__all__ = ["Leaves", "Slot", "fill", "leaves_of", "slots_of"]

_LARGEST_REMEMBERED = 8192  # bytes of a layout


class Slot(NamedTuple):
    """The place of a leaf."""

    path: Path
    holder: Base
    key: str

    @property
    def leaf(self) -> Any:
        """The array that is there."""
        return self.holder._source[self.key]

    @property
    def name(self) -> str:
        """The leaf's key, as error messages give it."""
        return key_text(self.path)


class Leaves(NamedTuple):
    """All leaves of a TensorDict."""

    slots: list[Slot]
    layout: bytes
    """Their keys, dtypes, shapes and libraries."""
    fingerprint: bytes
    """128 bits that are the same wherever keys, dtypes and shapes are, whatever the order and the libraries."""

    @property
    def arrays(self) -> list[Any]:
        """The arrays themselves."""
        return [slot.leaf for slot in self.slots]

    def buffers(self) -> list[Any]:
        """Return buffers of their values."""
        return [readable(slot.leaf, slot.name) for slot in self.slots]


def slots_of(td: Any) -> list[Slot]:
    """Return the places of a TensorDict's leaves, in the order of their keys."""
    slots = [Slot(*each) for each in td._slots()]
    slots.sort(key=lambda slot: slot.path)
    return slots


def leaves_of(td: Any) -> Leaves:
    """Find and describe the leaves of a TensorDict; raise if one cannot be sent."""
    register_torch()
    slots = slots_of(td)
    flat = {slot.path if len(slot.path) > 1 else slot.path[0]: slot.leaf for slot in slots}
    try:
        layout = Layout.of(flat, False)[0].to_bytes()
    except PickleError:
        for slot in slots:  # the error that names the leaf
            readable(slot.leaf, slot.name)
        raise
    known = _fingerprint if len(layout) <= _LARGEST_REMEMBERED else _fingerprint.__wrapped__
    return Leaves(slots, layout, known(layout))


@functools.lru_cache(maxsize=256)
def _fingerprint(layout: bytes) -> bytes:
    entries = [(path, dtype_of(node), node.shape) for path, node in Layout.from_bytes(layout).arrays()]
    return hashlib.blake2b(msgspec.msgpack.encode(entries), digest_size=16).digest()


def fill(slots: Sequence[Slot], update: bool = False) -> tuple[list[Any], Finish | None]:
    """Return buffers of leaves to receive into, and what to call once they are filled.

    Parameters
    ----------
    slots
        Where the leaves are. A leaf of JAX never changes: a new one is put into its place.
    update
        Whether the buffers must hold the leaves' values.

    Raises
    ------
    ValueError
        If a leaf is read-only, or two of them share memory.
    """
    fixed = [slot for slot in slots if library_of(slot.leaf) != "jax"]
    if len(fixed) > 1:
        found = sharing([slot.leaf for slot in fixed])
        if found is not None:
            first, second = (fixed[i].name for i in found)
            raise ValueError(f"{first} and {second} share memory, so that one would overwrite the other")
    make = updatable if update else writable
    pairs = [_replace(slot) if library_of(slot.leaf) == "jax" else make(slot.leaf, slot.name) for slot in slots]
    return [buffer for buffer, _ in pairs], together([finish for _, finish in pairs])


def _replace(slot: Slot) -> tuple[Any, Callable[[], None]]:
    """Return a buffer whose values will be a new leaf."""
    staging = np.array(slot.leaf)

    def finish() -> None:
        slot.holder._source[slot.key] = convert(staging, "jax")

    return writable(staging, slot.name)[0], finish
