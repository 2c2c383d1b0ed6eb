"""Tensorclasses from what holds the same data: TensorDicts, dicts, dataclasses, files, other ranks."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from corral.tensordict.base import Base
from corral.tensordict.dense import TensorDict
from corral.tensordict.tensorclass_kinds import state_into, stored_as

__all__ = ["Conversions"]


class Conversions(TensorDict):
    """Make instances of what holds their fields."""

    __slots__ = ()

    _front: ClassVar[Any]
    _storage: ClassVar[Any]
    _fields: ClassVar[frozenset[str]]
    _hints: ClassVar[Any]

    @classmethod
    def _fits_class(cls, td: Any) -> bool:
        """Whether all entries of a TensorDict are fields of the class."""
        return isinstance(td, Base) and not td._holds_objects and cls._fields.issuperset(td._source)

    @classmethod
    def _of_tensordict(cls, td: Any) -> Any:
        """Return an instance over the very entries of a TensorDict."""
        front = cls._front
        if front is None:
            raise TypeError(f"{cls.__name__} has no fields: call this on a class that declares some")
        if not front._fits_class(td):
            extra = set(td._source) - front._fields
            raise ValueError(
                f"Keys from the tensordict ({set(td._source)}) must correspond to the class attributes "
                f"({set(front._fields)}). Got the set of keys {extra} which do not belong to the class."
            )
        storage = td._storage if isinstance(td, Conversions) else type(td)
        return state_into(td, front if storage in (None, TensorDict) else stored_as(front, storage))

    @classmethod
    def _with_nested(cls, td: Any) -> Any:
        """Return a TensorDict whose entries are tensorclasses where the fields are: a shallow copy if some were not."""
        changed: dict[str, Any] = {}
        if getattr(td, "_storage", None) is None and type(td._source) is dict:
            for key, nested in cls._hints.nested.items():
                entry = td._source.get(key)
                if isinstance(entry, TensorDict) and not isinstance(entry, nested) and nested._fits_class(entry):
                    changed[key] = nested._of_tensordict(nested._with_nested(entry))
        if not changed:
            return td
        result = state_into(td, type(td))
        result._source = {**td._source, **changed}
        return result.lock_() if td.is_locked else result

    @classmethod
    def from_tensordict(
        cls, tensordict: Any, non_tensordict: Mapping[str, Any] | None = None, safe: bool | None = None
    ) -> Any:
        """Return an instance over the entries of a TensorDict, which are not copied.

        Entries of fields that are annotated as tensorclasses become instances of these, where their keys fit.

        Parameters
        ----------
        tensordict : TensorDict, LazyStackedTensorDict or PersistentTensorDict
            The fields; those that it lacks are ``None``. One of the package tensordict will do, too.
        non_tensordict : dict, optional
            Further fields, which are kept as objects.
        safe : bool, optional
            Accepted for compatibility.

        Raises
        ------
        ValueError
            If it has keys that are no fields.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorClass, TensorDict
        >>> class Step(TensorClass):
        ...     obs: np.ndarray
        ...     reward: np.ndarray | None = None
        >>> Step.from_tensordict(TensorDict(obs=np.zeros((2, 3)), batch_size=[2]))
        Step(batch_size=[2], library=numpy, fields={obs: f64[3], reward: None})
        """
        if not isinstance(tensordict, Base):
            theirs = sys.modules.get("tensordict")
            if theirs is None or not theirs.is_tensor_collection(tensordict):
                raise RuntimeError(f"Expected a TensorDictBase instance but got {type(tensordict)}")
            tensordict = TensorDict(getattr(tensordict, "_tensordict", tensordict), batch_size=tensordict.batch_size)
        front = cls._front
        if front is None:
            raise TypeError(f"{cls.__name__} has no fields: call from_tensordict on a class that declares some")
        result = front._of_tensordict(front._with_nested(tensordict))
        for key, value in (non_tensordict or {}).items():
            if key in result._source:
                raise KeyError(f"{key} is present in both tensor and non-tensor dicts.")
            if key not in front._fields:
                raise ValueError(f"{key!r} is no field of {front.__name__}: its fields are {sorted(front._fields)}")
            if value is not None:
                result.set_non_tensor(key, value)
        result._arrived()
        return result

    def _arrived(self) -> None:
        """Call ``__post_init__``, on each member of a lazy stack."""
        if not hasattr(type(self), "__post_init__"):
            return
        members = getattr(self, "tensordicts", None)
        if members is not None:
            for member in members:
                (member if isinstance(member, self._front) else self._front._of_tensordict(member))._arrived()
            return
        fields = type(self).__dataclass_fields__.values()  # type: ignore[attr-defined]
        variables = [field for field in fields if field._field_type is dataclasses._FIELD_INITVAR]  # type: ignore[attr-defined]
        self.__post_init__(*(field.default for field in variables))  # type: ignore[attr-defined]

    @classmethod
    def from_dict(
        cls,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
    ) -> Any:
        """Return an instance of a dict's entries: see `TensorDict.from_dict`. Those that are ``None`` are left out."""
        td = TensorDict.from_dict(
            {key: value for key, value in input_dict.items() if value is not None},
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )
        return cls.from_tensordict(td)

    @classmethod
    def from_remote_init(
        cls,
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        use_broadcast: bool = False,
        *,
        group_src: int | None = None,
    ) -> Any:
        """Receive an instance of this class: see `TensorDict.from_remote_init`."""
        received = TensorDict.from_remote_init(src, group, device, use_broadcast, group_src=group_src)
        if received is None or isinstance(received, cls):
            return received
        if not cls._front._fits_class(received):
            from corral.distributed.errors import MismatchError

            raise MismatchError(
                f"{cls.__name__}.from_remote_init: received the keys {sorted(received._source)}, of which "
                f"{sorted(set(received._source) - cls._fields)} are no fields of {cls.__name__}: receive them with "
                "TensorDict.from_remote_init"
            )
        return cls.from_tensordict(received)


def _through(name: str) -> Callable[..., Any]:
    """Return a class method that makes a TensorDict by one of TensorDict's, and an instance of that."""
    made = getattr(TensorDict, name)

    def method(cls: Any, *args: Any, **kwargs: Any) -> Any:
        td = made(*args, **kwargs)
        if not isinstance(td, Base) or isinstance(td, cls):
            return td
        return cls.from_tensordict(td)

    method.__name__, method.__qualname__ = name, f"TensorClass.{name}"
    method.__doc__ = f"Return an instance of what `TensorDict.{name}` makes a TensorDict of."
    return method


for _name in (
    "from_any",
    "from_tuple",
    "from_namedtuple",
    "from_dataclass",
    "from_struct_array",
    "from_pandas",
    "from_csv",
    "from_parquet",
    "from_json",
    "from_h5",
    "from_zarr",
    "from_safetensors",
    "from_consolidated",
    "fromkeys",
    "load_memmap",
):
    setattr(Conversions, _name, classmethod(_through(_name)))
