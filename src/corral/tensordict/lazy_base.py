"""The members of a lazy stack, and what every part of it builds on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self

from corral.tensordict import assembling
from corral.tensordict.abstract import TensorDictBase
from corral.tensordict.base import Base
from corral.tensordict.dense import TensorDict
from corral.tensordict.lazy_entries import LazyEntries, common_shape
from corral.tensordict.names import Names
from corral.tensordict.sizes import Size, as_size
from corral.tensordict.tensorclass_kinds import common_class, stored_as

__all__ = ["LazyBase"]


class LazyBase(TensorDictBase):
    """TensorDicts that are stacked without copying them."""

    __slots__ = ("_own_lock", "_stack_name", "stack_dim", "tensordicts")

    _joins: ClassVar[bool] = True

    tensordicts: list[Any]
    """The members."""
    stack_dim: int
    """The dimension along which they are stacked."""
    _stack_name: str | None
    _own_lock: bool | weakref.ref[Base]

    def _set(self, members: list[Any], stack_dim: int) -> None:
        self.tensordicts = members
        self.stack_dim = stack_dim
        self._stack_name = None
        self._update_size()

    def _update_size(self) -> None:
        shape = common_shape([td._batch_size for td in self.tensordicts])
        dim = self.stack_dim
        self._batch_size = Size((*shape[:dim], len(self.tensordicts), *shape[dim:]))
        devices = {td._device for td in self.tensordicts}
        self._device = devices.pop() if len(devices) == 1 else None

    @classmethod
    def _of(cls, members: Iterable[Any], stack_dim: int) -> Self:
        self = cls.__new__(cls)
        self._locked = False
        self._set(list(members), stack_dim)
        return self

    @classmethod
    def _kind_for(cls, members: Iterable[Any]) -> Any:
        """Return the class of a lazy stack of TensorDicts: where all are of one tensorclass, it is of that, too."""
        front = common_class(members)
        storage = getattr(cls, "_storage", None) or cls
        return storage if front is None else stored_as(front, storage)

    @classmethod
    def _make(cls, source: dict[str, Any], batch_size: Size, device: str | None = None, names: Names = None) -> Any:
        return TensorDict._make(source, batch_size, device, names)

    @property
    def _source(self) -> Any:  # type: ignore[override]
        return LazyEntries(self)

    @property
    def _names(self) -> Names:
        inner = self.tensordicts[0]._names if self.tensordicts else None
        if inner is None:
            if self._stack_name is None:
                return None
            inner = (None,) * (len(self._batch_size) - 1)
        return (*inner[: self.stack_dim], self._stack_name, *inner[self.stack_dim :])

    @_names.setter
    def _names(self, names: Names) -> None:
        dim = self.stack_dim
        inner = None if names is None else (*names[:dim], *names[dim + 1 :])
        for td in self.tensordicts:
            td._set_names(inner)
        self._stack_name = None if names is None else names[dim]

    def _set_names(self, names: Sequence[Any] | None) -> None:
        self._names = self._checked(names)  # of what is nested in them, the members take care

    def _forget_names(self) -> Self:
        self._stack_name = None
        for td in self.tensordicts:
            td._forget_names()
        return self

    @property
    def batch_size(self) -> Size:
        """The leading dimensions that all leaves share, the stacked one among them."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        if as_size(value) != self._batch_size:
            raise RuntimeError(
                f"the batch size {self._batch_size} of a lazy stack cannot be changed to {as_size(value)}: it is that "
                "of its members. Call to_tensordict() first."
            )

    def _resized(self, size: Size) -> Any:
        copy = self.clone(recurse=False)
        copy.batch_size = size
        return copy

    def _fits(self, size: Size) -> bool:
        return self._batch_size[: len(size)] == size

    def _refuse_inplace(self, name: str) -> NoReturn:
        """Raise the error of operations that change the shape of a batch in place: members have shapes of their own."""
        raise NotImplementedError(
            f"{name} with inplace=True is not supported on a {type(self).__name__}: call to_tensordict() first, or use "
            "inplace=False"
        )

    def _members(self) -> Sequence[Any]:
        return self.tensordicts

    def _restacked(self, members: Sequence[Any]) -> Self:
        result = self._of(members, self.stack_dim)
        result._stack_name = self._stack_name
        return result

    def _memberwise(self, function: Callable[[Any], Any]) -> Self:
        return self._restacked([function(td) for td in self.tensordicts])

    def _pieces(self, other: Any) -> Sequence[Any]:
        """Return the parts of a TensorDict or a dict that belong to the members."""
        if isinstance(other, Mapping):
            wrapped = TensorDict._make({}, self._batch_size, self._device)
            wrapped._fill(other)
            other = wrapped
        size = other._batch_size
        if len(size) <= self.stack_dim or size[self.stack_dim] != len(self.tensordicts):
            raise RuntimeError(
                f"a TensorDict of batch size {size} does not fit a lazy stack of batch size {self._batch_size}: it has "
                f"no part for each of the {len(self.tensordicts)} members along dimension {self.stack_dim}"
            )
        parts: Sequence[Any] = other._unbind(self.stack_dim)
        return parts

    def _map_values(self, function: Callable[[Any], Any]) -> Self:
        return self._memberwise(lambda td: td._map_values(function))

    def _map_resized(self, function: Callable[[Any], Any], root: Size, replaced: int, names: Names = None) -> Any:
        index = getattr(function, "index", None)
        if index is not None:
            return self._take(index)
        if hasattr(function, "expanded"):
            return self.expand((*root, *self._batch_size[replaced:]))
        return self._dense()._map_resized(function, root, replaced, names)

    def _leaves(self) -> Iterator[Any]:
        for td in self.tensordicts:
            yield from td._leaves()

    def _partial(self, key: str) -> list[Any] | None:
        values = []
        for td in self.tensordicts:
            value = td._source.get(key)
            values.append(
                td._partial(key) if value is None else value._unwrapped() if isinstance(value, Base) else value
            )
        return None if all(value is None for value in values) else values

    def _peek(self, key: str) -> Any:
        return self._source.peek(key)

    def _peeks(self) -> Iterator[tuple[str, Any]]:
        entries = self._source
        return ((key, entries.peek(key)) for key in entries)

    def _children(self) -> Iterable[Any]:
        return self.tensordicts

    def _set_device(self, device: str | None) -> None:
        for td in self.tensordicts:
            td._set_device(device)
        self._device = device

    @property  # a part of a locked stack has locked members, and is locked by that
    def _locked(self) -> bool | weakref.ref[Base]:
        if self._own_lock is not False:
            return self._own_lock
        return all(td._locked is not False for td in self.tensordicts)

    @_locked.setter
    def _locked(self, locked: bool | weakref.ref[Base]) -> None:
        self._own_lock = locked

    def _lock(self, locked: bool | weakref.ref[Base]) -> None:
        self._own_lock = locked
        for td in self.tensordicts:
            td._lock(weakref.ref(self) if locked else False)

    def unlock_(self) -> Self:
        """Allow again what `lock_` forbids; what was locked with something else is unlocked with that."""
        self._refuse_if_held()
        return super().unlock_()

    def _refuse_if_held(self) -> None:
        """Raise if a member was locked with something else than this stack."""
        for td in self.tensordicts:
            holder = td._locked() if isinstance(td._locked, weakref.ref) else None
            if (
                holder is not None
                and holder is not self
                and holder._locked
                and any(v is td for v in holder._children())
            ):
                raise RuntimeError(
                    "Cannot unlock a tensordict that is part of a locked graph. Unlock the root tensordict first."
                )
            if isinstance(td, LazyBase) and holder is None:
                td._refuse_if_held()

    def _other_keys(self) -> list[str]:
        """Return the keys that only some of the members have."""
        common = set(self._source)
        return sorted({key for td in self.tensordicts for key in td._source if key not in common})

    def _common(self) -> Any:
        """Return a dense TensorDict of the entries that all members have."""
        return self._memberwise(lambda td: td.select(*self._source))._dense()

    def _locked_as_this(self, part: Any) -> Any:
        """Lock a part of this stack if the stack is; members that both have stay locked with the stack."""
        if self._locked and isinstance(part, LazyBase):
            for td in part.tensordicts:
                if not td._locked:
                    td._lock(True)
        return part

    def _dense(self) -> Any:
        return assembling.stack(
            [td._dense() if isinstance(td, LazyBase) else td for td in self.tensordicts], self.stack_dim
        )
