"""The containers that a tree of arrays may be made of: how to look into each kind, and how to make one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from corral.wire.errors import CodecError

__all__ = ["MAX_DEPTH", "assign", "construct", "kind_of", "parts", "type_key"]

MAX_DEPTH = 100
"""Levels of containers that a tree may have."""

# "T" is corral's TensorDict, "R" that of the package tensordict.
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
    base = getattr(ours, "TensorDictBase", None) or getattr(ours, "TensorDict", None)
    if base is not None and issubclass(cls, base):
        return "T"
    theirs = sys.modules.get("tensordict")
    if theirs is not None and issubclass(cls, theirs.TensorDictBase):
        return "R"
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
    items = list(tree.items())
    return [key for key, _ in items], [value for _, value in items], list(map(int, tree.batch_size)), ""


def construct(
    kind: str,
    name: str,
    batch_size: Sequence[int] | None,
    keys: list[Any],
    children: list[Any],
    classes: dict[str, type],
) -> Any:
    """Make a container. No module is imported for it, and records are made without calling their classes."""
    if kind == "d":
        return dict(zip(keys, children, strict=True))
    if kind == "l":
        return children
    if kind == "t":
        return tuple(children)
    if kind in ("n", "c"):
        cls = classes.get(name) or _loaded(name)
        if kind == "n":
            if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
                raise CodecError(f"the namedtuple {name:.200} is not known here")
            if list(cls._fields) != keys:
                raise CodecError(f"the namedtuple {name:.200} has other fields here")
            return tuple.__new__(cls, children)
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise CodecError(f"the dataclass {name:.200} is not known here")
        if [field.name for field in dataclasses.fields(cls)] != keys:
            raise CodecError(f"the dataclass {name:.200} has other fields here")
        record = object.__new__(cls)
        for key, child in zip(keys, children, strict=True):
            object.__setattr__(record, key, child)
        return record
    if kind in ("T", "R") and batch_size is not None:
        package: Any = sys.modules.get("tensordict") if kind == "R" else None
        if package is None:
            import corral.tensordict as package
        return package.TensorDict(dict(zip(keys, children, strict=True)), batch_size=list(batch_size))
    raise CodecError("malformed layout: an unknown kind of container")


def _loaded(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type) or type(found) is type(sys) else None
    return found


def assign(container: Any, key: Any, value: Any) -> None:
    """Put an entry into a container that can take one."""
    kind = kind_of(container)
    if kind in ("T", "R"):
        container.set(key, value)
    elif kind == "d" or (kind == "l" and key < len(container)):
        container[key] = value
    elif kind == "c":
        setattr(container, key, value)
    else:
        raise TypeError(f"a {type(container).__qualname__} cannot be given the entry {key!r}")
