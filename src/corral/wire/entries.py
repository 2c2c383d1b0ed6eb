"""Entries of TensorDicts that are objects, and lazy stacks, in plain data."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from corral.wire.errors import CodecError

__all__ = [
    "Rows",
    "adopted",
    "class_name",
    "in_class",
    "is_possible",
    "make_entry",
    "make_lazy",
    "of_rows",
    "parts",
    "plain",
]

_LETTERS = {"NonTensorData": "N", "NonTensorStack": "S"}
_NUMBERS = (bool, int, float, complex)


class Rows(list[Any]):
    """Objects that are no arrays, one for each row of a stack."""


def plain(value: Any) -> Any:
    """Return a value without the mark that it has an entry for each row."""
    if type(value) is not Rows:
        return value
    return [row if parts(row) is None else row.tolist() for row in value]


def parts(entry: Any) -> tuple[str, Any, list[int]] | None:
    """Return the letter of a kind of entry, its object or list of objects, and its batch size.

    It is ``"N"`` for a `NonTensorData` and ``"S"`` for a `NonTensorStack`; the result is ``None`` for anything else.
    """
    ours = sys.modules.get("corral.tensordict.nontensor")
    if ours is None or not isinstance(entry, (ours.NonTensorData, ours.NonTensorStack)):
        return None
    kind = _LETTERS[type(entry).__name__]
    return kind, entry.data if kind == "N" else entry.flat(), list(map(int, entry.batch_size))


def is_possible(keys: list[Any], batch_size: Sequence[int] | None) -> bool:
    """Whether an entry can have these keys and this batch size."""
    return batch_size is not None and all(size >= 0 for size in batch_size) and keys == ["data"]


def make_entry(kind: str, objects: Any, batch_size: Sequence[int], device: str | None = None) -> Any:
    """Invert `parts`."""
    from corral.tensordict import NonTensorData, NonTensorStack

    if kind == "N":
        return NonTensorData(objects, list(batch_size), device)
    if type(objects) is not list or len(objects) != math.prod(batch_size):
        raise CodecError("malformed layout: objects that do not fill their batch")
    stack = NonTensorStack.from_flat(objects, batch_size)
    if device is not None:
        stack._set_device(device)
    return stack


def adopted(stack: Any) -> Any:
    """Return the objects of another library's `NonTensorStack` as corral's."""
    from corral.tensordict.nontensor import wrap

    return wrap(stack, (), None)


def make_lazy(stack_dim: Any, members: list[Any], stack_name: Any = None) -> Any:
    """Make a lazy stack, whose dimension along which it is stacked may have a name."""
    from corral.tensordict import LazyStackedTensorDict

    try:
        result = LazyStackedTensorDict(*members, stack_dim=int(stack_dim))
        kind = result._kind_for(members)
        result = result if kind is LazyStackedTensorDict else kind._of(members, result.stack_dim)
    except (ValueError, TypeError, RuntimeError) as error:
        raise CodecError(f"malformed layout: an impossible lazy stack: {error}") from None
    result._stack_name = stack_name
    return result


def class_name(cls: type) -> str:
    """Return the name by which ranks know a tensorclass of corral's; an empty one for other TensorDicts."""
    kinds = sys.modules.get("corral.tensordict.tensorclass_kinds")
    return "" if kinds is None else str(kinds.name_of(cls))


def in_class(td: Any, name: str) -> Any:
    """Return a TensorDict as the tensorclass of a name, if there is one here that has its fields.

    No module is imported for it: the class is one that this process has defined.
    """
    from corral.tensordict.tensorclass_kinds import known

    cls = known(name)
    return td if cls is None or not cls._fits_class(td) else cls._of_tensordict(td)


def of_rows(value: Any, batch_size: Sequence[int], numbers: bool = False) -> Any:
    """Return what corral's TensorDict keeps of a value: objects of several ranks as a `NonTensorStack`.

    Numbers become an array, unless `numbers` says that they are to be objects, too.
    """
    if type(value) is not Rows or (not numbers and all(type(row) in _NUMBERS for row in value)):
        return plain(value)
    from corral.tensordict import NonTensorStack

    return NonTensorStack.of_rows(list(value), batch_size)
