"""The containers that a tree of arrays may be made of: how to look into each kind, and how to make one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.arrays.libraries import library_of
from corral.wire import entries, theirs
from corral.wire.entries import Rows, plain
from corral.wire.errors import CodecError

__all__ = [
    "MAX_DEPTH",
    "TENSORDICTS",
    "Rows",
    "assign",
    "can_assign",
    "construct",
    "facts",
    "is_possible",
    "is_possible_facts",
    "kind_of",
    "led",
    "parts",
    "payload",
    "plain",
    "type_key",
]

MAX_DEPTH = 100
"""Levels of containers that a tree may have."""

# "T" is corral's TensorDict, "L" its lazy stack, "N" its NonTensorData and "S" its NonTensorStack. For those of the
# package tensordict see `theirs`.
TENSORDICTS = frozenset("TLRK")
"""Kinds that can have names of dimensions and a device."""

_BUILTIN: dict[type, str] = {dict: "d", list: "l", tuple: "t"}
_known: dict[type, str | None] = {}


def kind_of(tree: Any) -> str | None:
    """Return the letter of a container's kind; ``None`` for what is not a container."""
    cls = type(tree)
    kind = _BUILTIN.get(cls)
    if kind is not None:
        return kind
    if cls in _known:
        return _known[cls]
    kind = _known[cls] = _classify(cls)
    return kind


def _classify(cls: type) -> str | None:
    ours = sys.modules.get("corral.tensordict")
    base = getattr(ours, "TensorDictBase", None)
    if ours is not None and base is not None and issubclass(cls, base):
        if cls._holds_objects:  # type: ignore[attr-defined]
            return None  # see `payload` and `entries.parts`
        return "L" if issubclass(cls, ours.LazyStackedTensorDict) else "T"
    kind = theirs.kind_of(cls)
    if kind is not None:
        return kind
    if theirs.is_entry(cls):
        return None  # a value in their clothes: see `payload`
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make"):
        return "n"
    if issubclass(cls, dict):
        return "d"
    if issubclass(cls, list):
        return "l"
    if issubclass(cls, tuple):
        return "t"
    if dataclasses.is_dataclass(cls):
        return "c"
    return None


def payload(tree: Any, stacking: bool = False) -> Any:
    """Return the object that a leaf is or holds; if it is to be stacked, with the objects of each of its elements."""
    entry = entries.parts(tree)
    if entry is not None:
        return entry[1] if entry[0] == "N" else tree
    package = sys.modules.get("tensordict")
    if package is not None:
        if isinstance(tree, package.NonTensorStack):
            return entries.adopted(tree) if stacking else tree.tolist()
        if isinstance(tree, package.NonTensorData):
            return tree.data
    return tree


def type_key(cls: type) -> str:
    """Return the full name of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def parts(kind: str, tree: Any) -> tuple[list[Any], list[Any], list[int] | None, str]:
    """Return a container's keys, entries, batch size, and class if its kind does not tell that."""
    if kind == "d":
        return list(tree.keys()), list(tree.values()), None, ""
    if kind in "lt":
        return list(range(len(tree))), list(tree), None, ""
    if kind == "n":
        return list(tree._fields), list(tree), None, type_key(type(tree))
    if kind == "c":
        names = [field.name for field in dataclasses.fields(tree)]
        return names, [getattr(tree, name) for name in names], None, type_key(type(tree))
    if kind == "L":
        return list(range(len(tree.tensordicts))), list(tree.tensordicts), None, str(tree.stack_dim)
    if kind in theirs.KINDS:
        return theirs.parts(tree)
    pairs = list(tree._source.items())  # not by what fields of a tensorclass can hide
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    return keys, values, list(map(int, tree._batch_size)), entries.class_name(type(tree))


def facts(kind: str, tree: Any) -> tuple[list[Any] | None, str | None]:
    """Return a TensorDict's names of dimensions, if it has some, and its device, as it has them when it arrives.

    Raises
    ------
    TypeError
        If a name is neither a string nor a number.
    """
    if kind in ("R", "K"):
        names, device = theirs.facts(kind, tree)
    elif kind in ("N", "M", "S", "P"):
        names, device = None, tree.device
    elif kind == "L":
        names, device = (None if tree._stack_name is None else [tree._stack_name]), None
    else:
        names, device = tree._names, tree._device
    if names is not None and not all(name is None or type(name) in (str, int) for name in names):
        raise TypeError(f"names of dimensions can be sent if they are strings, not {list(names)}: rename them")
    return None if names is None else list(names), None if device is None else "cpu"


def is_possible_facts(
    kind: str, batch_size: Sequence[int] | None, dim_names: Sequence[Any] | None, device: str | None
) -> bool:
    """Whether a container of this kind and batch size can have these names of dimensions and this device."""
    if device not in (None, "cpu") or (device is not None and kind not in ("T", "R", "N", "S", "M", "P")):
        return False
    if dim_names is None:
        return True
    given = [name for name in dim_names if name is not None]
    dims = 1 if kind in ("L", "K") else -1 if batch_size is None or kind not in ("T", "R") else len(batch_size)
    return len(dim_names) == dims and len(set(given)) == len(given)


def led(dim_names: list[Any] | None, leading: int, kind: str) -> list[Any] | None:
    """Return the names of a TensorDict's dimensions where it has unnamed ones before them."""
    return dim_names if dim_names is None or kind in ("L", "K") else [*(None,) * leading, *dim_names]


def is_possible(kind: str, keys: list[Any], batch_size: Sequence[int] | None) -> bool:
    """Whether a container of this kind can have these keys and this batch size."""
    if kind in ("T", "R"):
        return batch_size is not None and all(size >= 0 for size in batch_size) and _are_names(keys)
    if kind in ("N", "S", "M", "P"):
        return entries.is_possible(keys, batch_size)
    if batch_size is not None:
        return False
    if kind in ("l", "t", "L", "K"):
        return keys == list(range(len(keys)))
    return kind == "d" or (kind in ("n", "c") and _are_names(keys))


def _are_names(keys: list[Any]) -> bool:
    return all(type(key) is str for key in keys)


def construct(
    kind: str,
    name: str,
    batch_size: Sequence[int] | None,
    keys: list[Any],
    children: list[Any],
    classes: dict[str, type],
    dim_names: list[Any] | None = None,
    device: str | None = None,
) -> Any:
    """Make a container.

    No module is imported for it. A namedtuple or a dataclass whose class is not loaded here, or has other
    fields here, becomes a tuple or a dict; any other is made without calling its class.
    """
    if kind not in ("R", "T"):
        children = [plain(child) for child in children]
    if kind == "d":
        return dict(zip(keys, children, strict=True))
    if kind == "l":
        return children
    if kind == "t":
        return tuple(children)
    if kind in ("n", "c"):
        cls = classes.get(name) or _loaded(name)
        if kind == "n":
            if isinstance(cls, type) and issubclass(cls, tuple) and list(getattr(cls, "_fields", ())) == keys:
                return tuple.__new__(cls, children)
            return tuple(children)
        if (
            not (isinstance(cls, type) and dataclasses.is_dataclass(cls))
            or [field.name for field in dataclasses.fields(cls)] != keys
        ):
            return dict(zip(keys, children, strict=True))
        record = object.__new__(cls)
        for key, child in zip(keys, children, strict=True):
            object.__setattr__(record, key, child)
        return record
    if kind in theirs.KINDS:
        return theirs.construct(kind, name, batch_size, keys, children, dim_names, device)
    if kind == "L":
        return entries.make_lazy(name, children, *dim_names or ())
    if kind in ("N", "S") and batch_size is not None and len(children) == 1:
        return entries.make_entry(kind, children[0], batch_size, device)
    if kind == "T" and batch_size is not None:
        named = dict(zip(keys, children, strict=True))
        from corral.tensordict import Size, TensorDict

        if not name and device is None and dim_names is None and all(map(_is_leaf, children)):
            return TensorDict._make(named, Size(batch_size))  # whoever made the arrays by a layout checked that
        source = {k: entries.of_rows(v, batch_size) for k, v in named.items()}
        td = TensorDict(source, list(batch_size), device, dim_names)
        return entries.in_class(td, name) if name else td
    raise CodecError("malformed layout: an unknown kind of container")


def _is_leaf(child: Any) -> bool:
    return type(child) is np.ndarray or library_of(child) == "torch"


def _loaded(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type) or type(found) is type(sys) else None
    return found


def can_assign(container: Any, new: bool = False) -> bool:
    """Whether `assign` can put something else in an entry's place; or, if it is `new`, add it."""
    kind = kind_of(container)
    if kind in ("T", "R"):
        return not container.is_locked
    if kind == "c":
        return not type(container).__dataclass_params__.frozen
    return kind == "d" or (kind == "l" and not new)


def assign(container: Any, key: Any, value: Any) -> None:
    """Put an entry into a container that can take one."""
    kind = kind_of(container)
    if kind == "R":
        container.set(key, theirs.value(value, container.batch_size))
    elif kind == "T":
        present = container._source.get(key)
        holds = getattr(present, "_holds_objects", False)
        new = entries.of_rows(value, container.batch_size, holds)
        if holds:
            container._replace(key, container._check(key, present._received(new)))
        else:
            container.set(key, new)
    elif kind == "c":
        setattr(container, key, plain(value))
    else:
        container[key] = plain(value)
