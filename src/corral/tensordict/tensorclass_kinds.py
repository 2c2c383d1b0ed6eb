"""Tensorclasses by name, and over other containers than a dict: lazy stacks, HDF5 files."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable
from typing import Any

from corral.tensordict import pytrees
from corral.tensordict.base import Base

__all__ = ["common_class", "known", "name_of", "register_class", "state_into", "stored_as"]

_known: weakref.WeakValueDictionary[str, type[Any]] = weakref.WeakValueDictionary()


def name_of(cls: type[Any]) -> str:
    """Return the full name of a tensorclass, by which other processes know it; an empty one for other classes.

    What a script defines has the same name in the processes that it starts.
    """
    front = getattr(cls, "_front", None)
    if front is None:
        return ""
    module = "__main__" if front.__module__ == "__mp_main__" else front.__module__
    return f"{module}.{front.__qualname__}"


def register_class(cls: type[Any]) -> None:
    """Let TensorDicts that arrive be instances of a class; of several of one name, it is the last."""
    _known[name_of(cls)] = cls


def known(name: str) -> Any:
    """Return the tensorclass that this process has defined under a name, or ``None``. Nothing is imported for it.

    Examples
    --------
    >>> known("os.system") is None
    True
    """
    return _known.get(name.replace("__mp_main__.", "__main__.", 1))


def common_class(entries: Iterable[Any]) -> Any:
    """Return the tensorclass that all entries are instances of, or ``None``."""
    fronts = {getattr(type(each), "_front", None) for each in entries}
    return fronts.pop() if len(fronts) == 1 else None


def stored_as(front: Any, storage: type[Any]) -> Any:
    """Return the class of a tensorclass's instances over another container."""
    made = front.__dict__.get("_kinds")
    if made is None:
        made = front._kinds = {}
    kind = made.get(storage)
    if kind is None:
        names = {
            "__module__": front.__module__,
            "__qualname__": front.__qualname__,
            "__doc__": front.__doc__,
            "__slots__": (),
            "_front": front,
            "_storage": storage,
        }
        kind = made[storage] = types.new_class(
            front.__name__, (front, storage), {"_abstract": True}, lambda body: body.update(names)
        )
        pytrees.register_kind(kind)
    return kind


def state_into(td: Base, kind: Any) -> Any:
    """Return an instance of a class with the very state of another of the same container: no entry is copied."""
    new = kind.__new__(kind)
    for cls in type(td).__mro__:
        for name in _slots(cls):
            member = cls.__dict__[name]
            try:
                value = member.__get__(td)
            except AttributeError:
                continue
            member.__set__(new, value)
    return new


def _slots(cls: type) -> tuple[str, ...]:
    names: Any = cls.__dict__.get("__slots__", ())
    return tuple(name for name in ((names,) if isinstance(names, str) else names) if name != "__weakref__")
