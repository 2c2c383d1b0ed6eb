"""The leaves of a TensorDict as an operation takes them: in an order that all ranks share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from corral.arrays.buffers import readable, register_torch, sharing, writable
from corral.arrays.libraries import convert, library_of
from corral.arrays.mapped import flush
from corral.arrays.updating import updatable
from corral.digests import digest
from corral.distributed.arguments import Finish, together
from corral.functional.parcels import dtype_of
from corral.tensordict.base import Base
from corral.wire.errors import PickleError
from corral.wire.layout import Array, Layout, Path, key_text

try:
    from corral._core import survey
except ImportError:  # other engines do without; every leaf is looked at, then
    survey = None  # type: ignore[assignment]

__all__ = ["Leaves", "Slot", "fill", "flush_files", "leaves_of", "slots_of"]

_LARGEST_REMEMBERED = 8192  # bytes of a layout
_MOST_REMEMBERED, _MOST_LEAVES = 64, 1024

# What TensorDicts of some keys, dtypes and shapes were last described by: those that are moved again and again.
_layouts: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
_plans: dict[bytes, Plan] = {}


class Slot(NamedTuple):
    """The place of a leaf."""

    path: Path
    holder: Base
    key: str
    objects: bool
    """Whether it is no array but objects."""

    @property
    def leaf(self) -> Any:
        """The array that is there, read if it is in a file; or the entry of objects."""
        return self.holder._source[self.key] if self.path and self.key else self.holder

    @property
    def like(self) -> Any:
        """An array that has the shape and dtype of the leaf; nothing is read for it."""
        return self.holder._like(self.key)

    @property
    def name(self) -> str:
        """The leaf's key, as error messages give it."""
        return key_text(self.path)


class Plan(NamedTuple):
    """What follows from how a TensorDict looks whose leaves are plain arrays."""

    order: list[int]
    """Positions of the leaves, as they are met, in the order of their keys; empty if that is theirs already."""
    kinds: list[tuple[int, str]]
    """Position and name of one leaf of each library and dtype, in the order of their keys."""
    layout: bytes
    fingerprint: bytes


class Leaves:
    """All leaves of a TensorDict, in the order of their keys."""

    __slots__ = ("_places", "_plain", "_plan", "_td", "_with_objects", "fingerprint", "layout")

    layout: bytes
    """Their keys, dtypes, shapes and libraries."""
    fingerprint: bytes
    """128 bits that are the same wherever keys, dtypes and shapes are, whatever the order and the libraries."""

    def __init__(self, td: Any, with_objects: bool, plain: list[Any] | None, plan: Plan | None) -> None:
        self._td = td
        self._with_objects = with_objects
        self._plain = plain
        self._plan = plan
        self._places: tuple[list[Slot], list[Slot]] | None = None

    @property
    def slots(self) -> list[Slot]:
        """Of the arrays."""
        return self._found()[0]

    @property
    def objects(self) -> list[Slot]:
        """Of the entries that are no arrays, where these take part."""
        return self._found()[1] if self._plain is None and self._with_objects else []

    @property
    def arrays(self) -> list[Any]:
        """The arrays themselves, but for those in files."""
        if self._plain is not None:
            return self._plain
        return [slot.leaf for slot in self.slots if not slot.holder._in_file]

    @property
    def count(self) -> int:
        """How many arrays there are."""
        return len(self.slots if self._plain is None else self._plain)

    def kinds(self) -> Iterator[tuple[Any, str]]:
        """Yield an array, or one like it, and its name for each library and dtype that there is."""
        if self._plain is not None and self._plan is not None:
            for position, name in self._plan.kinds:
                yield self._plain[position], name
            return
        for position, name in _kinds(self.slots):
            yield self.slots[position].like, name

    def buffers(self) -> list[Any]:
        """Return buffers of their values."""
        if self._plain is not None:
            return self._plain
        return [readable(slot.leaf, slot.name) for slot in self.slots]

    def fill(self, update: bool = False) -> tuple[list[Any], Finish | None]:
        """Return buffers to receive into, and what to call once they are filled; see `fill`."""
        if self._plain is not None:
            return self._plain, None
        return fill(self.slots, update)

    def _found(self) -> tuple[list[Slot], list[Slot]]:
        if self._places is None:
            self._places = slots_of(self._td)
        return self._places


def slots_of(td: Any) -> tuple[list[Slot], list[Slot]]:
    """Return the places of a TensorDict's arrays, and those of its objects, in the order of their keys."""
    slots = [Slot(*each) for each in td._slots()]
    slots.sort(key=lambda slot: slot.path)
    if not any(slot.objects for slot in slots):
        return slots, []
    return [slot for slot in slots if not slot.objects], [slot for slot in slots if slot.objects]


def leaves_of(td: Any, with_objects: bool = True, writes: bool = False) -> Leaves:
    """Find and describe the leaves of a TensorDict; raise if one cannot be sent.

    Parameters
    ----------
    td
        The TensorDict.
    with_objects
        Whether entries that are no arrays take part.
    writes
        Whether the leaves are to be written.
    """
    register_torch()
    seen = None if survey is None else survey(td, np.ndarray, writes)
    if seen is None:
        leaves = Leaves(td, with_objects, None, None)
        leaves.layout, leaves.fingerprint = _described(leaves)
        return leaves
    look, plain = seen
    plan = _plans.get(look)
    if plan is None:
        plan = _plan(td, look)
    if plan.order:
        plain = [plain[position] for position in plan.order]
    leaves = Leaves(td, with_objects, plain, plan)
    leaves.layout, leaves.fingerprint = plan.layout, plan.fingerprint
    return leaves


def _plan(td: Any, look: bytes) -> Plan:
    """Describe plain leaves, and remember that."""
    whole = Leaves(td, False, None, None)
    layout, fingerprint = _described(whole)
    paths = [path for path, *_ in td._slots()]  # as they are met
    order = sorted(range(len(paths)), key=paths.__getitem__)
    plan = Plan([] if order == list(range(len(paths))) else order, _kinds(whole.slots), layout, fingerprint)
    if len(paths) <= _MOST_LEAVES:
        if len(_plans) >= _MOST_REMEMBERED:
            _plans.pop(next(iter(_plans)))
        _plans[look] = plan
    return plan


def _kinds(slots: Sequence[Slot]) -> list[tuple[int, str]]:
    found: dict[tuple[type, Any], tuple[int, str]] = {}
    for position, slot in enumerate(slots):
        like = slot.like
        found.setdefault((type(like), like.dtype), (position, slot.name))
    return list(found.values())


def _described(leaves: Leaves) -> tuple[bytes, bytes]:
    slots, objects = leaves.slots, leaves.objects
    signature = None if objects else _signature(slots)
    known = None if signature is None else _layouts.get(signature)
    if known is not None:
        return known
    flat = {slot.path if len(slot.path) > 1 else slot.path[0]: slot.like for slot in slots}
    for slot in objects:  # what tells them apart is in the place of their values
        flat[slot.path if len(slot.path) != 1 else slot.path[0]] = str(list(getattr(slot.leaf, "shape", ())))
    try:
        layout = Layout.of(flat, False)[0].to_bytes()
    except PickleError:
        for slot in slots:  # the error that names the leaf
            readable(slot.leaf, slot.name)
        raise
    fingerprint = _fingerprint if len(layout) <= _LARGEST_REMEMBERED else _fingerprint.__wrapped__
    described = layout, fingerprint(layout)
    if signature is not None:
        if len(_layouts) >= _MOST_REMEMBERED:
            _layouts.pop(next(iter(_layouts)))
        _layouts[signature] = described
    return described


def _signature(slots: Sequence[Slot]) -> tuple[Any, ...] | None:
    """Return what the description of plain arrays depends on; ``None`` where there are others, or too many."""
    if len(slots) > _MOST_LEAVES:
        return None
    found: list[Any] = []
    for path, holder, key, _ in slots:
        array: Any = holder._like(key) if path and key else holder
        kind = type(array)
        if kind is np.ndarray:
            if array.dtype.hasobject:
                return None
        elif library_of(array) != "torch" or array.is_nested or array.is_quantized:
            return None
        found += (path, kind, array.dtype, array.shape)
    return tuple(found)


@functools.lru_cache(maxsize=256)
def _fingerprint(layout: bytes) -> bytes:
    entries = [
        (path, dtype_of(node), node.shape) if isinstance(node, Array) else (path, node.data)
        for path, node in Layout.from_bytes(layout).entries()
    ]
    return digest(msgspec.msgpack.encode(entries), 16)


def fill(slots: Sequence[Slot], update: bool = False) -> tuple[list[Any], Finish | None]:
    """Return buffers of leaves to receive into, and what to call once they are filled.

    Parameters
    ----------
    slots
        Where the leaves are. A leaf of JAX never changes: a new one is put into its place. One in an HDF5 file is
        written there, one in a mapped file is flushed.
    update
        Whether the buffers must hold the leaves' values.

    Raises
    ------
    ValueError
        If a leaf is read-only, or two of them share memory.
    """
    fixed = [slot for slot in slots if not slot.holder._in_file and library_of(slot.leaf) != "jax"]
    if len(fixed) > 1:
        found = sharing([slot.leaf for slot in fixed])
        if found is not None:
            first, second = (fixed[i].name for i in found)
            raise ValueError(f"{first} and {second} share memory, so that one would overwrite the other")
    pairs = [_place(slot, update) for slot in slots]
    finishes = [finish for _, finish in pairs]
    finishes += [functools.partial(flush, slot.leaf) for slot in fixed if _is_mapped(slot.holder)]
    return [buffer for buffer, _ in pairs], together(finishes)


def _place(slot: Slot, update: bool) -> tuple[Any, Callable[[], None] | None]:
    """Return a buffer for one leaf, and what to call once it is filled."""
    holder, key = slot.holder, slot.key
    if holder._in_file:
        if getattr(holder, "mode", None) == "r":
            raise ValueError(f'{slot.name} lies in a file that is open for reading only: open it with mode="r+"')
        staging = np.array(slot.leaf) if update else np.empty(slot.like.shape, slot.like.dtype)
        buffer, _ = writable(staging, slot.name)
        return buffer, functools.partial(_write, holder, key, staging)
    leaf = slot.leaf
    if library_of(leaf) != "jax":
        return (updatable if update else writable)(leaf, slot.name)
    staging = np.array(leaf)

    def finish() -> None:
        holder._source[key] = convert(staging, "jax")

    return writable(staging, slot.name)[0], finish


def _write(holder: Any, key: str, staging: Any) -> None:
    holder.set_(key, staging)


def _is_mapped(td: Any) -> bool:
    return bool(getattr(td, "_saved", (None, False))[1])


def flush_files(td: Any) -> None:
    """Write what has been received into mapped files to their disk."""
    if _is_mapped(td):
        for leaf in td._leaves():
            flush(leaf)
