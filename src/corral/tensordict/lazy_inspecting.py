"""What a lazy stack holds, without stacking it, and TensorDicts that are made by its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from corral.tensordict.base import Base
from corral.tensordict.dense import TensorDict
from corral.tensordict.errors import KeyThroughLeafError
from corral.tensordict.finding import split
from corral.tensordict.lazy_base import LazyBase
from corral.tensordict.lazy_entries import Ragged
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.sizes import Size

__all__ = ["LazyInspecting"]


class LazyInspecting(LazyBase):
    """Look at entries as the members have them, whatever their shapes."""

    __slots__ = ()

    def _found(self, key: NestedKey) -> Any:
        """Return what an entry is like."""
        first, rest = split(key)
        if first not in self._source:
            raise self._no_key(key)
        entry: Any = self._peek(first)
        if rest is None:
            return entry
        if not isinstance(entry, Base):
            raise self._no_key(key)
        return entry._found(rest) if isinstance(entry, LazyInspecting) else entry._require(rest)  # type: ignore[attr-defined]

    def entry_class(self, key: NestedKey) -> type:
        """Return the type of an entry: of the arrays, where these have different shapes."""
        key = unravel_key(key)
        if key not in self:
            if isinstance(error := self._no_key(key), KeyThroughLeafError):
                raise error
            return type(None)
        entry = self._found(key)
        return type(entry.example if isinstance(entry, Ragged) else entry)

    def get_item_shape(self, key: NestedKey) -> Size:
        """Return the shape of an entry, with -1 where the members' differ."""
        entry = self._found(key)
        if isinstance(entry, Base) and entry._holds_objects:
            return self._batch_size
        return Size(entry.shape)

    def filter_non_tensor_data(self) -> Self:
        """Return a lazy stack of the members' arrays, which are shared, without objects that are no arrays."""
        return self._memberwise(lambda td: td.filter_non_tensor_data())

    def filter_empty_(self) -> Self:
        """Remove nested TensorDicts that have no leaves from all members."""
        for td in self.tensordicts:
            td.filter_empty_()
        return self

    def rename_keys(self, mapping: Mapping[NestedKey, NestedKey], *, strict: bool = True) -> Self:
        """Return a lazy stack in which entries have other keys."""
        return self._memberwise(lambda td: td.rename_keys(mapping, strict=strict))

    def to_dict(self, **options: Any) -> dict[str, Any]:
        """Return the entries as nested dicts; an error if members have different keys, which dicts cannot have."""
        self._refuse_other_keys("to_dict", "tolist() returns one for each row")
        return super().to_dict(**options)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Return the entries as `TensorDict.state_dict` does; an error if members have different keys."""
        self._refuse_other_keys("state_dict", "save those of its members one by one")
        return super().state_dict(*args, **options)

    def numpy(self) -> Any:
        """Return the entries as NumPy's arrays, as `to_dict` does."""
        self._refuse_other_keys("numpy", "tolist() returns one for each row")
        return super().numpy()

    def to_namedtuple(self, *args: Any, **options: Any) -> Any:
        """Return the entries as a named tuple; an error if members have different keys."""
        self._refuse_other_keys("to_namedtuple", "make one of each member")
        return super().to_namedtuple(*args, **options)

    def _refuse_other_keys(self, method: str, advice: str) -> None:
        others = self._other_keys()
        if others:
            raise RuntimeError(
                f"the method {method} cannot complete when there are exclusive keys: only some members of this lazy "
                f"stack have {others}. {advice}."
            )

    def _new(self, *arguments: Any) -> Any:
        """Return new entries in place of those that all members have."""
        if self._other_keys():
            return self._common()._new(*arguments)
        return super()._new(*arguments)


def _through(name: str) -> Callable[..., Any]:
    """Return a class method that makes a TensorDict as `TensorDict` does."""
    made = getattr(TensorDict, name)

    def method(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return made(*args, **kwargs)

    method.__name__, method.__qualname__ = name, f"LazyStackedTensorDict.{name}"
    method.__doc__ = f"Return the TensorDict that `TensorDict.{name}` makes."
    return method


for _name in ("from_any", "from_dict", "from_list", "from_namedtuple", "from_pytree", "from_tuple", "fromkeys"):
    setattr(LazyInspecting, _name, classmethod(_through(_name)))
