"""Tensorclasses: TensorDicts with fields that are declared, as those of a dataclass are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform, overload

from corral.arrays.libraries import library_of
from corral.tensordict.base import Base
from corral.tensordict.blocks import undone
from corral.tensordict.dense import TensorDict
from corral.tensordict.indexing import _is_key
from corral.tensordict.names import Named, Names
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.sizes import Size
from corral.tensordict.tensorclass_building import define, recreate
from corral.tensordict.tensorclass_fields import Hints, Options, cast
from corral.tensordict.tensorclass_files import Filed
from corral.tensordict.tensorclass_kinds import state_into

__all__ = ["TensorClass", "is_tensorclass", "tensorclass"]

T = TypeVar("T")
_MISSING: Any = object()
_SET_SOURCE, _SET_SIZE, _SET_NAMES = (Named.__dict__[name].__set__ for name in ("_source", "_batch_size", "_names"))
_SET_DEVICE, _SET_LOCKED = (Base.__dict__[name].__set__ for name in ("_device", "_locked"))


@dataclass_transform(field_specifiers=(dataclasses.field,))
class _Declared(Filed):
    """What makes type checkers, and Python, see subclasses of `TensorClass` as dataclasses."""

    __slots__ = ()

    def __init_subclass__(
        cls,
        *,
        autocast: bool | None = None,
        nocast: bool | None = None,
        frozen: bool | None = None,
        tensor_only: bool | None = None,
        shadow: bool | None = None,
        skip_post_init_on_rebuild: bool | None = None,
        kw_only: bool = False,
        _abstract: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if _abstract:
            return
        given = (autocast, nocast, frozen, tensor_only, shadow, skip_post_init_on_rebuild)
        inherited: Options = cls._options  # type: ignore[attr-defined]
        merged = (old if new is None else new for new, old in zip(given, inherited, strict=True))
        define(cls, Options(*merged), kw_only)


class TensorClass(_Declared, _abstract=True):
    """A TensorDict with declared fields.

    A subclass declares them as a dataclass does, with annotations, defaults and `dataclasses.field`, and may have
    methods and properties. Its instances are TensorDicts: they are indexed, stacked, reshaped, saved, sent and gathered
    as those are, and stay instances of their class. A field may be an array of any library, a TensorDict, another
    tensorclass, or any object, which is kept as `NonTensorData`. One that is ``None`` has no entry.

    Options are given as ``class A(TensorClass, autocast=True)``, or as ``class A(TensorClass["autocast"])``. They are
    those of `tensorclass`, and subclasses inherit them.

    Parameters
    ----------
    *args, **kwargs
        The fields.
    batch_size : sequence of int, optional
        The leading dimensions that all fields share; none by default.
    device : optional
        Where all arrays shall lie; by default each stays where it is.
    names : sequence of str or None, optional
        Names of the batch dimensions.
    lock : bool, optional
        Forbid to set fields.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorClass
    >>> class Step(TensorClass):
    ...     obs: np.ndarray
    ...     reward: np.ndarray
    ...     env: str = "cartpole"
    ...
    ...     @property
    ...     def best(self):
    ...         return self.reward.max()
    >>> steps = Step(obs=np.zeros((3, 4)), reward=np.arange(3.0), batch_size=[3])
    >>> steps
    Step(batch_size=[3], library=numpy, fields={obs: f64[4], reward: f64[], env: str})
    >>> steps.best, steps[:2].reward, steps[0].env
    (np.float64(2.0), array([0., 1.]), 'cartpole')
    """

    if TYPE_CHECKING:
        batch_size: Any = dataclasses.field(default=(), kw_only=True)
        device: Any = dataclasses.field(default=None, kw_only=True)
        names: Any = dataclasses.field(default=None, kw_only=True)
        non_blocking: Any = dataclasses.field(default=None, kw_only=True)
        lock: Any = dataclasses.field(default=None, kw_only=True)
    else:

        def __init__(self, *args, **kwargs):
            raise TypeError(f"{type(self).__name__} has no fields: make a subclass that declares some")

        def __class_getitem__(cls, item):
            options = item if isinstance(item, tuple) else (item,)
            if not all(isinstance(each, str) and each in Options._fields for each in options):
                inherited = getattr(super(), "__class_getitem__", None)  # that of typing.Generic
                if inherited is not None:
                    return inherited(item)
                raise TypeError(
                    f"{cls.__name__}[...] takes options of tensorclasses, which are {', '.join(Options._fields)}, not "
                    f"{item!r}"
                )
            flags = dict.fromkeys(options, True)
            return type(cls)(f"{cls.__name__}_{'_'.join(options)}", (cls,), {"__module__": cls.__module__}, **flags)

    _options: ClassVar[Options] = Options()
    _front: ClassVar[Any] = None  # the class that was declared; its instances over other containers have another type
    _storage: ClassVar[Any] = None  # that container, where it is not a dict
    _fields: ClassVar[frozenset[str]] = frozenset()
    _order: ClassVar[tuple[str, ...]] = ()
    _hidden: ClassVar[frozenset[str]] = frozenset()
    _preset: ClassVar[tuple[tuple[str, Any], ...]] = ()
    _hints: ClassVar[Hints] = Hints({}, {}, {}, frozenset())

    @classmethod
    def _make(cls, source: dict[str, Any], batch_size: Size, device: str | None = None, names: Names = None) -> Any:
        kind = cls._front
        self = kind.__new__(kind)
        _SET_SOURCE(self, source)
        _SET_SIZE(self, batch_size)
        _SET_DEVICE(self, device)
        _SET_LOCKED(self, False)
        _SET_NAMES(self, names)
        return self

    @classmethod
    def _entry_class(cls) -> Any:
        return TensorDict

    def _unclassed(self) -> Any:
        """Return the TensorDict, lazy stack or HDF5 file that this is an instance over: its entries are shared."""
        return state_into(self, self._storage or TensorDict)

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the declarations of the fields, as `dataclasses.fields` does."""
        return dataclasses.fields(cls)

    # Fields

    def __setattr__(self, name: str, value: Any) -> None:
        cls: Any = type(self)
        if name in cls._fields:
            if cls._options.frozen and "_building" not in self.__dict__:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        elif not hasattr(cls, name):
            raise self._no_field(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if self._options.frozen and name in self._fields:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    @classmethod
    def _no_field(cls, name: Any) -> AttributeError:
        return AttributeError(
            f"Cannot set the attribute {name!r}: {cls.__name__} has no such field. "
            f"Its fields are {sorted(cls._fields)}."
        )

    def _check(self, key: str, value: Any) -> Any:
        if key not in self._fields:
            raise self._no_field(key)
        return super()._check(key, value)

    def _put(self, key: NestedKey, value: Any) -> None:
        first = key if isinstance(key, str) else key[0]
        if first not in self._fields:
            raise self._no_field(first)
        super()._put(key, value)

    def get(self, key: NestedKey, default: Any = _MISSING, **kwargs: Any) -> Any:
        """Return the value of a field, as its attribute is; of other keys, `default` (``None``).

        A field that only some members of a lazy stack have is a list, with ``None`` for the others.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorClass
        >>> class Run(TensorClass):
        ...     score: np.ndarray
        ...     name: str
        >>> Run(score=np.zeros(()), name="first").get("name")
        'first'
        """
        key = unravel_key(key)
        if not isinstance(key, str):
            entry = self._source.get(key[0])
            if isinstance(entry, Base) and not entry._holds_objects:
                rest = key[1] if len(key) == 2 else key[1:]
                nested: Any = entry
                return nested.get(rest, **kwargs) if default is _MISSING else nested.get(rest, default, **kwargs)
            return super().get(key) if default is _MISSING else super().get(key, default)
        if key not in self._source:
            return self._partial(key) if key in self._fields else None if default is _MISSING else default
        value = super().get(key, **kwargs)
        return value._unwrapped() if isinstance(value, Base) else value

    def set(
        self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False, **kwargs: Any
    ) -> Self:
        """Set a field, as its attribute is set: the options of the class say what the value becomes."""
        key = unravel_key(key)
        if not isinstance(key, str):
            return super().set(key, item, inplace=inplace, **kwargs)
        if key not in self._fields:
            raise self._no_field(key)
        if item is self:
            raise ValueError(f"the field {key!r} of a {type(self).__name__} cannot be that very {type(self).__name__}")
        if item is None:
            self._refuse_if_locked()
            if key in self._source:
                del self._source[key]
            elif self._partial(key) is not None:
                self.del_(key)
            building = self.__dict__.get("_building")
            if building is not None:
                building.setdefault("emptied", set()).add(key)
            return self
        return super().set(key, cast(self, key, item), inplace=inplace, **kwargs)

    def __setitem__(self, index: Any, value: Any) -> None:
        known = isinstance(value, (Base, bool, int, float, complex)) or library_of(value) != "other"
        is_key = isinstance(index, str) or (isinstance(index, tuple) and _is_key(index))
        if not known and not is_key and not hasattr(value, "batch_size"):
            raise ValueError(
                f"rows of a {type(self).__name__} are set to tensorclasses, TensorDicts, arrays and numbers, not to a "
                f"{type(value).__name__}"
            )
        if isinstance(value, TensorClass) and not isinstance(value, self._front):
            mine, theirs = ({*each._fields} for each in (self, value))
            if mine != theirs:
                raise ValueError(
                    f"rows of a {type(self).__name__} cannot be those of a {type(value).__name__}: it has other fields"
                )
        super().__setitem__(index, value)

    # Fields that are None

    @classmethod
    def _prefix(cls) -> str:
        return cls.__name__

    def _shown(self) -> Any:
        for key, value in self._peeks():
            if key not in self._hidden:
                yield key, value
        present = set(self._source)
        for key in self._order:
            if key not in present and key not in self._hidden:
                yield key, None

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return a TensorDict with copies of the fields; with entries for those that are ``None`` if `retain_none`."""
        result = self._unclassed().to_tensordict()
        if retain_none:
            for key in self._order:
                if key not in result._source:
                    result.set_non_tensor(key, None)
        return result

    def to_dict(
        self, *, retain_none: bool = True, convert_tensors: Any = False, tolist_first: bool = False
    ) -> dict[str, Any]:
        """Return the fields as nested dicts; those that are ``None`` are left out if not `retain_none`."""
        result = super().to_dict(retain_none=retain_none, convert_tensors=convert_tensors, tolist_first=tolist_first)
        if retain_none:
            result.update({key: None for key in self._order if key not in result})
        return result

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Return an instance in memory of its own, with contiguous arrays: of a lazy stack, a dense one."""
        if self._storage is None:
            return super().contiguous(canonical=canonical, inplace=inplace)
        dense = self._unclassed().contiguous(canonical=canonical, inplace=inplace)
        return self._front._with_nested(self._front._of_tensordict(dense))

    # Keys

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Any:
        """Return an instance with only these fields; the others are ``None``. With `as_tensordict`, a TensorDict."""
        if as_tensordict:
            return self._unclassed().select(*keys, strict=strict)
        return super().select(*keys, inplace=inplace, strict=strict)

    @undone
    def flatten_keys(
        self, separator: str = ".", inplace: bool = False, is_leaf: Callable[[type[Any]], bool] | None = None
    ) -> Any:
        """Return the entries with nested keys joined, where the class has fields of these names."""
        return self._rekeyed(self._unclassed().flatten_keys(separator, is_leaf=is_leaf), inplace)

    @undone
    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Any:
        """Return the entries with keys nested where they have the separator, if the class has fields of these names."""
        return self._rekeyed(self._unclassed().unflatten_keys(separator), inplace)

    def _rekeyed(self, td: Any, inplace: bool) -> Any:
        result = self._front._of_tensordict(td)
        return self._become(result, inplace)

    # Pickles

    def __reduce__(self) -> tuple[Any, ...]:
        if self._storage is None:
            return super().__reduce__()
        return _rebuild, (self._front, self._unclassed())


def _rebuild(front: Any, td: Any) -> Any:
    return front._of_tensordict(td)


@overload
def tensorclass(cls: type[T], /) -> type[T]: ...


@overload
def tensorclass(
    *,
    autocast: bool = ...,
    frozen: bool = ...,
    nocast: bool = ...,
    shadow: bool = ...,
    tensor_only: bool = ...,
    skip_post_init_on_rebuild: bool = ...,
    kw_only: bool = ...,
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(dataclasses.field,))
def tensorclass(
    cls: Any = None,
    /,
    *,
    autocast: bool = False,
    frozen: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    skip_post_init_on_rebuild: bool = False,
    kw_only: bool = False,
) -> Any:
    """Make a class with annotations a tensorclass: the same as to derive it from `TensorClass`.

    Type checkers take it for a dataclass; that its instances are TensorDicts they only know of subclasses of
    `TensorClass`.

    Parameters
    ----------
    autocast : bool
        Convert what fields are set to, to the classes they are annotated with: ``int(value)``, ``str(value)``, an array
        of that library, a TensorDict or tensorclass of a dict.
    frozen : bool
        Raise `dataclasses.FrozenInstanceError` when a field is assigned; instances are locked.
    nocast : bool
        Keep numbers as they are. Otherwise they become arrays, unless the batch has dimensions and the field is
        annotated as a number.
    shadow : bool
        Allow fields with the names of methods, which they hide.
    tensor_only : bool
        Allow only fields that are arrays or TensorDicts, or may be ``None``.
    skip_post_init_on_rebuild : bool
        Accepted for compatibility: ``__post_init__`` is called by the constructor, by `from_tensordict` and the like,
        and for what is loaded from files, and not when a new instance is made of another one, as by an index, or
        arrives.
    kw_only : bool
        Take fields as keywords only.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import tensorclass
    >>> @tensorclass
    ... class Point:
    ...     x: np.ndarray
    ...     y: np.ndarray
    ...
    ...     def norm(self):
    ...         return np.hypot(self.x, self.y)
    >>> points = Point(x=np.array([3.0, 0.0]), y=np.array([4.0, 1.0]), batch_size=[2])
    >>> points.norm(), (points + 1)[:1].x
    (array([5., 1.]), array([4.]))
    """

    def wrap(cls: Any) -> Any:
        if is_tensorclass(cls):
            return cls
        return recreate(
            cls,
            TensorClass,
            autocast=autocast,
            frozen=frozen,
            nocast=nocast,
            shadow=shadow,
            tensor_only=tensor_only,
            skip_post_init_on_rebuild=skip_post_init_on_rebuild,
            kw_only=kw_only,
        )

    return wrap if cls is None else wrap(cls)


def is_tensorclass(obj: Any) -> bool:
    """Whether an object, or a class, is a tensorclass of corral's.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict, is_tensorclass
    >>> is_tensorclass(TensorDict(a=np.zeros(2)))
    False
    """
    cls = obj if isinstance(obj, type) else type(obj)
    return cls.__dict__.get("_front") is not None
