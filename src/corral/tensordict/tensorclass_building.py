"""How a class becomes a tensorclass: its fields, its constructor, and where it is known."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from corral.tensordict import pytrees
from corral.tensordict.base import Base, device_name
from corral.tensordict.names import Named
from corral.tensordict.sizes import Size, as_size
from corral.tensordict.tensorclass_fields import Field, Options, cast, check_arrays_only, hints_of
from corral.tensordict.tensorclass_kinds import register_class

__all__ = ["copied_field", "define", "recreate"]

_SET_SOURCE, _SET_SIZE, _SET_NAMES = (Named.__dict__[name].__set__ for name in ("_source", "_batch_size", "_names"))
_SET_DEVICE, _SET_LOCKED = (Base.__dict__[name].__set__ for name in ("_device", "_locked"))
_ALLOWED = frozenset({"data", "fields"})
_ABOUT = ("batch_size", "device", "names", "non_blocking", "lock")  # what every constructor takes besides fields
_WRITTEN = ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__hash__", "__replace__")


def define(cls: type[Any], options: Options, kw_only: bool) -> None:
    """Make a subclass of `TensorClass` a tensorclass: read its annotations and write its constructor."""
    options.check(cls.__name__)
    parents = [base for base in cls.__mro__[1:] if base.__dict__.get("_front") is base and base._fields]
    if options.frozen and any(not base._options.frozen for base in parents):
        raise TypeError("cannot inherit frozen dataclass from a non-frozen one")
    if not options.frozen and any(base._options.frozen for base in parents):
        raise TypeError("cannot inherit non-frozen dataclass from a frozen one")
    own = _own_fields(cls)
    inherited = {name for base in parents for name in base._fields}
    for name in own:
        if not options.shadow and name not in _ALLOWED and name not in inherited and _is_member(cls, name):
            raise AttributeError(
                f"Attribute name {name} can't be used with @tensorclass or TensorClass, as tensorclasses have a member "
                "of that name. To allow it, pass shadow=True (@tensorclass(shadow=True) or TensorClass['shadow'])."
            )
        if name not in cls.__dict__ and name not in inherited and hasattr(cls, name):
            setattr(cls, name, dataclasses.field())  # else the method of that name would be its default
    custom = "__init__" in cls.__dict__
    dataclasses.dataclass(eq=False, repr=False, kw_only=kw_only)(cls)
    fields = dataclasses.fields(cls)
    cls._options = options
    cls._front = cls
    cls._storage = None
    cls._fields = frozenset(field.name for field in fields)
    cls._hidden = frozenset(field.name for field in fields if not field.repr)
    cls._order = tuple(field.name for field in fields)
    cls._preset = tuple(
        (field.name, field.default) for field in fields if not field.init and field.default is not dataclasses.MISSING
    )
    cls._hints = hints_of(cls, cls._fields)
    if options.tensor_only:
        check_arrays_only(cls, cls._fields)
    if "__init__" in cls.__dict__:
        cls.__init__ = _constructor(cls, cls.__init__, custom)
    for field in fields:
        if field.name in own:
            setattr(cls, field.name, Field(field.name, field.default))
    register_class(cls)
    pytrees.register_kind(cls)
    core = sys.modules.get("corral._core")
    if core is not None:  # the engine walks it as it walks a TensorDict
        core.register_container(cls, "_source", "_batch_size")


def _is_member(cls: type[Any], name: str) -> bool:
    return any(name in vars(base) for base in cls.__mro__[1:] if base.__module__.startswith("corral.tensordict."))


def _own_fields(cls: type[Any]) -> list[str]:
    """Return the names that the body of a class annotates, without those of class variables."""
    annotations = inspect.get_annotations(cls)
    return [name for name, hint in annotations.items() if "ClassVar" not in (hint if type(hint) is str else repr(hint))]


def _constructor(cls: type[Any], init: Callable[..., None], custom: bool) -> Callable[..., None]:
    """Return a constructor that makes the state of a TensorDict before fields are set."""
    signature = inspect.signature(init)
    declared = frozenset(signature.parameters)
    about = [name for name in _ABOUT if name not in cls._fields]
    quick = None if custom else _quick(cls)

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {name: kwargs[name] if name in declared else kwargs.pop(name) for name in about if name in kwargs}
        if "_building" in self.__dict__:  # called by the constructor of a subclass
            _amend(self, given)
            init(self, *args, **kwargs)
            return
        _begin(self, given)
        if quick is None or args or type(self) is not cls or not quick(self, kwargs):
            init(self, *args, **kwargs)
        if custom:
            _complete(self)
        building = self.__dict__.pop("_building")
        lock = building.get("lock", given.get("lock"))
        if self._options.frozen if lock is None else lock:
            self._lock(True)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in about if name not in declared
    ]
    parameters = list(signature.parameters.values())
    last = [p for p in parameters if p.kind is p.VAR_KEYWORD]
    __init__.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[p for p in parameters if p not in last] + more + last
    )
    return __init__


def _quick(cls: type[Any]) -> Callable[[Any, dict[str, Any]], bool] | None:
    """Return what sets all fields at once, as the constructor that dataclasses write does one by one.

    It returns whether it has: wrong arguments are left to the constructor, for its errors. There is none for classes
    that have more to do, or set fields in a way of their own.
    """
    every = cls.__dataclass_fields__.values()
    ours = all(
        getattr(cls, name).__module__ == "corral.tensordict.tensorclass_base"
        for name in ("set", "__setattr__", "_check")
    )
    plain = all(field.init for field in every if field.name in cls._fields)
    variables = any(field._field_type is dataclasses._FIELD_INITVAR for field in every)  # type: ignore[attr-defined]
    if not ours or not plain or variables or hasattr(cls, "__post_init__"):
        return None
    fields = [(f.name, f.default, f.default_factory) for f in dataclasses.fields(cls)]
    missing = dataclasses.MISSING
    known = cls._fields
    required = frozenset(name for name, default, factory in fields if default is missing and factory is missing)

    def fill(td: Any, kwargs: dict[str, Any]) -> bool:
        if not required <= kwargs.keys() <= known:
            return False
        source, check = td._source, Base._check
        for name, default, factory in fields:
            value = kwargs[name] if name in kwargs else default if factory is missing else factory()
            if value is not None:
                source[name] = check(td, name, cast(td, name, value))
        return True

    return fill


def _begin(td: Any, given: dict[str, Any]) -> None:
    if len(sys.modules) != pytrees.seen[0]:
        pytrees.register()
    td.__dict__["_building"] = {}
    _SET_SOURCE(td, {})
    _SET_SIZE(td, as_size(given.get("batch_size")))
    _SET_DEVICE(td, device_name(given.get("device")))
    _SET_LOCKED(td, False)
    _SET_NAMES(td, None)
    if given.get("names") is not None:
        td._set_names(given["names"])
    for name, default in td._preset:
        td.set(name, default)


def _amend(td: Any, given: dict[str, Any]) -> None:
    """Let what a subclass's constructor passes on take the place of what it was called with."""
    if given.get("device") is not None:
        td._set_device(device_name(given["device"]))
    if given.get("batch_size") is not None:
        Base.batch_size.fset(td, Size(as_size(given["batch_size"])))  # type: ignore[attr-defined]
    if given.get("names") is not None:
        td._set_names(given["names"])
    if given.get("lock") is not None:
        td.__dict__["_building"]["lock"] = given["lock"]


def _complete(td: Any) -> None:
    """Give fields that a constructor written by hand has not set their defaults."""
    emptied = td.__dict__["_building"].get("emptied", ())
    for field in dataclasses.fields(td):
        if field.name in td._source or field.name in emptied:
            continue
        if field.default_factory is not dataclasses.MISSING:
            td.set(field.name, field.default_factory())
        elif field.default is not dataclasses.MISSING:
            td.set(field.name, field.default)
        elif field.init:
            raise TypeError(f"{type(td).__name__}.__init__() did not set the required field {field.name!r}")


def recreate(cls: type[Any], base: type[Any], **options: Any) -> type[Any]:
    """Return a class of the same body, whose instances are TensorDicts: a class cannot change what it inherits.

    Calls of ``super()`` without arguments and ``__class__`` in its methods mean the new class.
    """
    body = {key: value for key, value in cls.__dict__.items() if key not in ("__dict__", "__weakref__")}
    if "__dataclass_fields__" in body:  # what `dataclasses.dataclass` has written is written anew
        body = {key: value for key, value in body.items() if key not in _WRITTEN and not _is_generated(value)}
        for name in inspect.get_annotations(cls):
            field = cls.__dataclass_fields__.get(name)
            if field is not None:
                body[name] = copied_field(field)
    bases = tuple(each for each in cls.__bases__ if each is not object)
    if not any(issubclass(each, base) for each in bases):
        bases = (*bases, base)
    new = types.new_class(cls.__name__, bases, options, lambda names: names.update(body))
    for value in body.values():
        for function in _functions(value):
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if name == "__class__" and cell.cell_contents is cls:
                    cell.cell_contents = new
    return new


def _is_generated(value: Any) -> bool:
    function = inspect.unwrap(value) if callable(value) else value
    return isinstance(function, types.FunctionType) and function.__code__.co_filename == "<string>"


def copied_field(field: Any) -> Any:
    """Return a field as one that a new class can have."""
    options = {
        name: getattr(field, name)
        for name in ("default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
    }
    return dataclasses.field(**options)


def _functions(value: Any) -> list[types.FunctionType]:
    found = [value]
    if isinstance(value, property):
        found = [value.fget, value.fset, value.fdel]
    elif isinstance(value, (classmethod, staticmethod)):
        found = [value.__func__]
    elif isinstance(value, functools.cached_property):
        found = [value.func]
    found = [inspect.unwrap(each) if callable(each) else each for each in found]
    return [each for each in found if isinstance(each, types.FunctionType)]
