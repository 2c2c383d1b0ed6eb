"""Containers of the package tensordict: how they are taken apart, and made again in their class."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from corral.wire import entries
from corral.wire.entries import Rows, plain
from corral.wire.errors import CodecError

__all__ = ["KINDS", "adopted", "construct", "entry_parts", "facts", "is_entry", "kind_of", "parts", "value"]

# "R" is a TensorDict or a tensorclass, "K" a lazy stack, "M" a NonTensorData and "P" a NonTensorStack. Where tensordict
# is not loaded, they are corral's "T", "L", "N" and "S".
KINDS = ("R", "K", "M", "P")
_OURS = {"M": "N", "P": "S"}


def kind_of(cls: type) -> str | None:
    """Return the letter of a class's kind; ``None`` for entries of objects, and for what is not tensordict's."""
    theirs = sys.modules.get("tensordict")
    if theirs is None or issubclass(cls, (theirs.NonTensorData, theirs.NonTensorStack)):
        return None
    if issubclass(cls, theirs.LazyStackedTensorDict):
        return "K"
    return "R" if issubclass(cls, theirs.TensorDictBase) or theirs.is_tensorclass(cls) else None


def is_entry(cls: type) -> bool:
    """Whether a class is one of entries of objects."""
    theirs = sys.modules.get("tensordict")
    return theirs is not None and issubclass(cls, (theirs.NonTensorData, theirs.NonTensorStack))


def entry_parts(entry: Any) -> tuple[str, Any, list[int]] | None:
    """Return the letter of an entry of objects, its object or list of objects, and its batch size."""
    theirs = sys.modules.get("tensordict")
    if theirs is None:
        return None
    if isinstance(entry, theirs.NonTensorStack):
        from corral.tensordict.object_arrays import cells

        return "P", cells(entry.tolist(), len(entry.batch_size)).reshape(-1).tolist(), list(map(int, entry.batch_size))
    if isinstance(entry, theirs.NonTensorData):
        return "M", entry.data, list(map(int, entry.batch_size))
    return None


def parts(tree: Any) -> tuple[list[Any], list[Any], list[int] | None, str]:
    """Return a container's keys, entries, batch size, and its class's name or stack dimension."""
    name = ""
    inner = getattr(tree, "_tensordict", None)
    if sys.modules["tensordict"].is_tensorclass(type(tree)):
        name = f"{type(tree).__module__}:{type(tree).__qualname__}"
        tree = inner
    if hasattr(tree, "tensordicts"):
        members = list(tree.tensordicts)
        return list(range(len(members))), members, None, f"{tree.stack_dim}/{name}" if name else f"{tree.stack_dim}"
    items = list(tree.items())
    return [key for key, _ in items], [item for _, item in items], list(map(int, tree.batch_size)), name


def facts(kind: str, tree: Any) -> tuple[list[Any] | None, Any]:
    """Return a container's names of dimensions, if it has some, and its device; of a lazy stack its dimension's name.

    What a lazy stack has besides is its members'.
    """
    if kind == "K":
        name = getattr(tree if hasattr(tree, "tensordicts") else tree._tensordict, "_td_dim_name", None)
        return (None if name is None else [name]), None
    td = tree._tensordict if sys.modules["tensordict"].is_tensorclass(type(tree)) else tree
    names = td.names
    return None if all(name is None for name in names) else list(names), td.device


def value(item: Any, batch_size: Sequence[int]) -> Any:
    """Return an entry as a TensorDict of the package tensordict, of a batch size, keeps it."""
    if type(item) is not Rows:
        return adopted(item)
    theirs = sys.modules["tensordict"]
    size = list(batch_size[1:])
    rows = []
    for row in item:
        entry = entries.parts(row)
        rows.append(_objects(theirs, "M", row, size) if entry is None else _objects(theirs, "P", entry[1], entry[2]))
    return theirs.NonTensorStack(*rows)


def adopted(item: Any) -> Any:
    """Return a TensorDict of corral's as one of the package tensordict; anything else as it is."""
    ours = sys.modules.get("corral.tensordict")
    if ours is None or not isinstance(item, ours.TensorDictBase):
        return item
    theirs = sys.modules["tensordict"]
    entry = entries.parts(item)
    if entry is not None:
        return _objects(theirs, "M" if entry[0] == "N" else "P", entry[1], entry[2], item._device)
    members = item._members()
    if members is not None:
        return _stacked(theirs, [*map(adopted, members)], item.stack_dim, item._stack_name)
    source = {key: adopted(value) for key, value in item._source.items()}
    return theirs.TensorDict(source, list(item._batch_size), item._device, item._names and list(item._names))


def construct(
    kind: str,
    name: str,
    batch_size: Sequence[int] | None,
    keys: list[Any],
    children: list[Any],
    dim_names: list[Any] | None = None,
    device: str | None = None,
) -> Any:
    """Make a container, in its class if that is loaded here."""
    theirs = sys.modules.get("tensordict")
    if kind == "K":
        stack_dim, _, name = name.partition("/")
        if theirs is None:
            return entries.make_lazy(stack_dim, children, *dim_names or ())
        return _in_class(name, _stacked(theirs, children, stack_dim, *dim_names or ()))
    if batch_size is None:
        raise CodecError("malformed layout: a TensorDict without a batch size")
    if kind in _OURS:
        if theirs is None:
            return entries.make_entry(_OURS[kind], children[0], batch_size, device)
        return _objects(theirs, kind, children[0], list(batch_size), device)
    named = dict(zip(keys, children, strict=True))
    if theirs is not None:
        source = {key: value(item, batch_size) for key, item in named.items()}
        return _in_class(name, theirs.TensorDict(source, list(batch_size), device, dim_names))
    from corral.arrays import is_array
    from corral.tensordict import TensorDict, TensorDictBase

    if not all(isinstance(child, (TensorDictBase, Rows)) or is_array(child) for child in children):
        return {key: plain(item) for key, item in named.items()}  # objects stay what they are
    source = {k: entries.of_rows(v, batch_size) for k, v in named.items()}
    return TensorDict(source, list(batch_size), device, dim_names)


def _stacked(theirs: Any, members: list[Any], stack_dim: str, stack_name: Any = None) -> Any:
    try:
        return theirs.LazyStackedTensorDict(*members, stack_dim=int(stack_dim), stack_dim_name=stack_name)
    except (ValueError, TypeError, RuntimeError) as error:
        raise CodecError(f"malformed layout: an impossible lazy stack: {error}") from None


def _objects(theirs: Any, kind: str, objects: Any, batch_size: list[int], device: str | None = None) -> Any:
    if kind == "M":
        return theirs.NonTensorData(objects, batch_size=batch_size, device=device)
    cells = entries.make_entry("S", objects, batch_size)._cells()

    def build(at: tuple[int, ...]) -> Any:
        if len(at) == cells.ndim:
            return theirs.NonTensorData(cells[at], device=device)
        return theirs.NonTensorStack(*(build((*at, i)) for i in range(cells.shape[len(at)])))

    return build(())


def _in_class(name: str, td: Any) -> Any:
    """Return a TensorDict as the tensorclass of a name, if that is loaded here and has its fields."""
    if not name:
        return td
    module, _, qualname = name.partition(":")
    cls: Any = sys.modules.get(module)
    for part in qualname.split("."):
        cls = vars(cls).get(part) if isinstance(cls, type) or type(cls) is type(sys) else None
    if not isinstance(cls, type) or not sys.modules["tensordict"].is_tensorclass(cls):
        return td
    fields = set(getattr(cls, "__expected_keys__", ()))
    return cls.from_tensordict(td) if set(td.keys()) <= fields else td  # type: ignore[attr-defined]
