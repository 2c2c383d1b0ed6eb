"""Fields of tensorclasses: what is declared, and what a value becomes that one of them is set to."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from corral.arrays.libraries import convert, library_of
from corral.arrays.operations import as_array
from corral.tensordict.base import Base

__all__ = ["Field", "Hints", "Options", "cast", "check_arrays_only", "hints_of", "is_array_class"]

_LIBRARIES = {"numpy": "ndarray", "torch": "Tensor", "jax": "Array", "cupy": "ndarray"}
_SCALARS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}


class Options(NamedTuple):
    """How the fields of a class treat values: see `tensorclass`."""

    autocast: bool = False
    nocast: bool = False
    frozen: bool = False
    tensor_only: bool = False
    shadow: bool = False
    skip_post_init_on_rebuild: bool = False

    def check(self, name: str) -> None:
        """Raise `TypeError` for options that exclude each other."""
        exclusive = [key for key in ("autocast", "nocast", "tensor_only") if getattr(self, key)]
        if len(exclusive) > 1:
            raise TypeError(f"{name}: {' and '.join(exclusive)} are exclusive: give one of them")


class Hints(NamedTuple):
    """What the annotations of a class say of its fields."""

    kinds: dict[str, Any]
    """Classes of fields; `typing.Any` where the annotation is no class."""
    nested: dict[str, Any]
    """Fields that are tensorclasses, or may be one or ``None``."""
    scalars: dict[str, tuple[type, ...]]
    """Fields that are numbers, with the types that fit them."""
    dicts: frozenset[str]
    """Fields that are TensorDicts, or may be one."""


class Field:
    """Reads and writes one field of an instance: its attribute."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: Any) -> None:
        self.name = name
        self.default = default

    def __get__(self, td: Any, owner: Any = None) -> Any:
        if td is None:
            if self.default is dataclasses.MISSING:
                raise AttributeError(f"type object {owner.__name__!r} has no attribute {self.name!r}")
            return self.default
        try:
            value = td._source[self.name]
        except KeyError:
            return td._partial(self.name)
        return value._unwrapped() if isinstance(value, Base) else value

    def __set__(self, td: Any, value: Any) -> None:
        td.set(self.name, value)

    def __delete__(self, td: Any) -> None:
        td.del_(self.name)


def is_array_class(kind: Any) -> bool:
    """Whether a class is one of arrays.

    Examples
    --------
    >>> import numpy as np
    >>> is_array_class(np.ndarray), is_array_class(int)
    (True, False)
    """
    return _library_of_class(kind) is not None


def _library_of_class(kind: Any) -> str | None:
    if not isinstance(kind, type):
        return None
    for library, name in _LIBRARIES.items():
        array = getattr(sys.modules.get(library), name, None)
        if isinstance(array, type) and issubclass(kind, array):
            return library
    return None


def hints_of(cls: type[Any], names: frozenset[str]) -> Hints:
    """Read a class's annotations of some fields."""
    found = _resolved(cls)
    kinds, nested, scalars, dicts = {}, {}, {}, []
    for name in names:
        hint = found.get(name, Any)
        kind = _array_type(hint)
        kinds[name] = kind if isinstance(kind, type) else Any
        parts = [part for part in _alternatives(hint) if part is not types.NoneType]
        single = _plain_class(parts[0]) if len(parts) == 1 else None
        if getattr(single, "_front", None) is not None:
            nested[name] = single
        if parts and all(part in _SCALARS for part in parts):
            scalars[name] = tuple({fitting for part in parts for fitting in _SCALARS[part]})
        if any(isinstance(part, type) and issubclass(part, Base) for part in map(_plain_class, parts)):
            dicts.append(name)
    return Hints(kinds, nested, scalars, frozenset(dicts))


def check_arrays_only(cls: type[Any], names: frozenset[str]) -> None:
    """Raise `TypeError` unless all fields are annotated as arrays or TensorDicts, or as one of these or ``None``."""
    found = _resolved(cls)
    for name in sorted(names):
        for part in _alternatives(found.get(name, Any)):
            kind = _array_type(_plain_class(part))
            if part is types.NoneType or is_array_class(kind):
                continue
            if not (isinstance(kind, type) and issubclass(kind, Base)):
                raise TypeError(
                    f"{cls.__name__}.{name}: tensor_only requires fields to be arrays, TensorDicts or None, not "
                    f"{part!r}"
                )


def _resolved(cls: type[Any]) -> dict[str, Any]:
    """Return the annotations; names that are no module's are looked up where the class is defined."""
    local: dict[str, Any] = {cls.__name__: cls}
    try:
        return typing.get_type_hints(cls, localns=dict(local))
    except NameError:
        pass
    except Exception:
        return {}
    frame = inspect.currentframe()
    try:
        while frame is not None:
            if not str(frame.f_globals.get("__name__")).startswith("corral.tensordict."):
                local = {**frame.f_locals, **local}
            frame = frame.f_back
        return typing.get_type_hints(cls, localns=local)
    except Exception:  # a name that nothing has: annotations are not looked at
        return {}
    finally:
        del frame


def _alternatives(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [part for each in typing.get_args(hint) for part in _alternatives(each)]
    return [hint]


def _plain_class(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def _array_type(hint: Any) -> Any:
    """Return the array class of an annotation such as those of jaxtyping or `numpy.typing.NDArray`."""
    if isinstance(hint, type) and isinstance(getattr(hint, "dim_str", None), str):
        return getattr(hint, "array_type", hint)
    origin = typing.get_origin(hint)
    return origin if is_array_class(origin) else hint


def cast(td: Any, key: str, value: Any) -> Any:
    """Return what a field keeps when it is set to a value that is not ``None``."""
    options = td._options
    is_array = library_of(value) != "other" and not isinstance(value, np.flexible)
    if is_array and not options.autocast:
        return value
    if options.autocast and not (isinstance(value, Base) and value._holds_objects):
        done, value = _autocast(td, key, td._hints.kinds[key], value)
        if done:
            return value
    if is_array or isinstance(value, Base):
        return value
    if options.tensor_only:
        if isinstance(value, Mapping) and key in td._hints.dicts:
            return value
        try:
            return as_array(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the field {key!r} of {type(td).__name__} takes arrays only: {error}") from error
    if isinstance(value, (bool, int, float, complex)):
        if options.autocast:
            return value
        scalar = td._hints.scalars.get(key)
        if options.nocast or (td._batch_size and scalar is not None and isinstance(value, scalar)):
            return _object(td, value)
        return value
    if (isinstance(value, list) and not options.autocast) or (hasattr(value, "batch_size") and hasattr(value, "items")):
        return value  # it is for all TensorDicts to say what these become
    return _object(td, value)


def _autocast(td: Any, key: str, kind: Any, value: Any) -> tuple[bool, Any]:
    """Return whether a value has its final form, and that."""
    nested = td._hints.nested.get(key)
    if isinstance(kind, type) and issubclass(kind, Base):
        if isinstance(value, Mapping):
            return True, kind.from_dict(value, auto_batch_size=False)  # type: ignore[attr-defined]
        if nested is not None and isinstance(value, Base) and not isinstance(value, nested):
            return True, nested.from_tensordict(value) if nested._fits_class(value) else value
        if not isinstance(value, Base):
            raise TypeError(
                f"Failed to cast the value {key} to the type annotation {kind}: it is a {type(value).__name__}"
            )
        return True, value
    if isinstance(value, Mapping):
        return False, value
    library = _library_of_class(kind)
    if library is not None:
        try:
            return True, value if isinstance(value, (kind, Base)) else convert(as_array(value), library)
        except (TypeError, ValueError) as error:
            raise TypeError(f"Failed to cast the value {key} to the type annotation {kind}: {error}") from error
    if kind is Any or not isinstance(kind, type):
        return False, value
    return True, _object(td, value if type(value) is kind else kind(value))


def _object(td: Any, value: Any) -> Any:
    from corral.tensordict.nontensor import NonTensorData

    return NonTensorData(value, td._batch_size, td._device)
