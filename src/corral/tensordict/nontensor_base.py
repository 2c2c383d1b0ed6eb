"""What entries of one object, and of one for each element of a batch, have in common."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from corral.arrays.gathering import gather
from corral.arrays.indexing import take
from corral.arrays.libraries import is_array, library_of, to_numpy
from corral.tensordict.abstract import TensorDictBase
from corral.tensordict.base import Base
from corral.tensordict.dense import TensorDict
from corral.tensordict.errors import InplaceWriteError
from corral.tensordict.names import Names
from corral.tensordict.nontensor_files import ObjectFiles
from corral.tensordict.object_arrays import cells, equal, filled, joined, nested_list, stacked
from corral.tensordict.shaping import Unsqueezing
from corral.tensordict.sizes import Size

__all__ = ["ObjectEntry", "added_by", "cells_of", "common_device", "refuse_arrays"]


class ObjectEntry(ObjectFiles, TensorDictBase):
    """What both have in common: no keys, and nothing that arithmetic or a change of dtype would reach."""

    __slots__ = ()

    _holds_objects: ClassVar[bool] = True
    _joins: ClassVar[bool] = True
    _source: ClassVar[Any] = MappingProxyType({})  # type: ignore[misc]

    @classmethod
    def _make(cls, source: dict[str, Any], batch_size: Size, device: str | None = None, names: Names = None) -> Any:
        return TensorDict._make(source, batch_size, device, names)

    @property
    def _names(self) -> Names:
        return None

    @_names.setter
    def _names(self, names: Names) -> None:
        """Objects have the dimensions of what they are an entry of, and no names of their own."""

    def _cells(self) -> np.ndarray[Any, Any]:
        """Return an array of the objects, of the shape of the batch."""
        raise NotImplementedError

    def _fits(self, size: Size) -> bool:
        return self._batch_size[: len(size)] == size

    def _with(self, objects: np.ndarray[Any, Any]) -> Any:
        from corral.tensordict.nontensor import entry_of

        return entry_of(objects, self._device)

    def _map_values(self, function: Callable[[Any], Any]) -> Self:
        return self.copy()

    def copy(self) -> Self:
        """Return an entry of the same objects."""
        return self.clone(recurse=False)

    __copy__ = copy

    def _label(self) -> str:
        """Return what stands for the entry where a TensorDict is shown."""
        return type(self).__name__

    def _leaves(self) -> Sequence[Any]:
        return ()

    def _slots(self, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Base, str, bool]]:
        yield path, self, "", True

    def is_empty(self) -> bool:
        """Whether there is nothing: never."""
        return False

    def to_tensordict(self, **ignored: Any) -> Any:
        """Return an entry of the same objects."""
        return self.copy()

    def empty(self, recurse: bool = False, *, batch_size: Any = None, device: Any = None, names: Any = None) -> Any:
        """Return the entry itself: it has no leaves."""
        return self.copy()

    def _without_leaves(self, recurse: bool) -> Any:
        return self.copy()

    def _apply(self, fn: Any, others: Any, size: Size | None, inplace: bool, *options: Any) -> Any:
        if inplace or size is None:
            return self
        return self._resized(size) if self._fits(size) else None

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        prefix = (slice(None),) * dim
        objects: Any = self._cells()
        return tuple(self._with(objects[(*prefix, i, ...)]) for i in range(self._batch_size[dim]))

    def _gathered(self, dim: int, index: Any, size: Size, out: Any) -> Any:
        if self._fits_any:
            return self._resized(Size(index.shape))
        return self._with(gather(self._cells(), dim, to_numpy(index), None))

    def _where(self, condition: Any, other: Any, out: Any, pad: Any) -> Any:
        if not isinstance(other, ObjectEntry):
            return self.copy()
        if self._fits_any and other._fits_any and equal(self._unwrapped(), other._unwrapped()):
            return self.copy()
        mask = to_numpy(condition)
        mask = mask.reshape((*mask.shape, *(1,) * (len(self._batch_size) - mask.ndim)))
        return self._with(np.where(mask, self._cells(), other._cells()))

    def tolist(self, **ignored: Any) -> Any:
        """Return the object of a batch without dimensions, or the objects as nested lists.

        Examples
        --------
        >>> from corral import NonTensorData
        >>> NonTensorData("a").tolist(), NonTensorData("a", batch_size=[2]).tolist()
        ('a', ['a', 'a'])
        """
        return nested_list(self._cells())

    def numpy(self) -> Any:
        """Return what `to_dict` does."""
        return self.to_dict()

    def _binary(self, function: Any, other: Any, default: Any = None) -> Any:
        if function is not operator.eq and function is not operator.ne:
            known = isinstance(other, (Base, bool, int, float, complex)) or is_array(other)
            return self.copy() if known else NotImplemented
        if not isinstance(other, ObjectEntry):
            return NotImplemented
        mine, theirs = np.broadcast_arrays(self._cells(), other._cells())
        result = np.empty(mine.shape, bool)
        for place in np.ndindex(mine.shape):
            result[place] = equal(mine[place], theirs[place])
        return result if function is operator.eq else ~result

    __hash__ = None  # type: ignore[assignment]

    def _rewritten(self, item: Any) -> Any:
        """Replace the objects in place where that is possible; return the entry that has the new ones."""
        raise NotImplementedError

    def _assign(self, index: tuple[Any, ...], value: Any, keys: Iterable[str] | None = None) -> Any:
        """Replace some of the objects; return the entry that has the new ones."""
        part = take(self._cells(), index)
        new = np.broadcast_to(cells_of(value, part.shape), part.shape)
        if all(equal(one, other) for one, other in zip(part.reshape(-1), new.reshape(-1), strict=True)):
            return self
        objects = self._cells()
        if not objects.ndim:
            return self._rewritten(new[()])
        positions = take(np.arange(objects.size).reshape(objects.shape), index)
        flat = objects.flatten()
        flat[positions.reshape(-1)] = new.reshape(-1)
        return self._with_all(flat.reshape(objects.shape))

    def _with_all(self, objects: np.ndarray[Any, Any]) -> Any:
        """Replace the objects of all elements; return the entry that has the new ones."""
        raise NotImplementedError

    def maybe_to_stack(self) -> Any:
        """Return a `NonTensorStack`, with an object for each element, unless the batch has no dimensions."""
        raise NotImplementedError

    def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False, **ignored: Any) -> Self:
        """Take the objects of another entry."""
        return self.update_(input_dict_or_td, clone)

    def update_(self, input_dict_or_td: Any = None, clone: bool = False, **ignored: Any) -> Self:
        """Take the objects of another entry."""
        if not isinstance(input_dict_or_td, ObjectEntry):
            raise NotImplementedError(
                f"{type(self).__name__}.update takes a NonTensorData or a NonTensorStack, not a "
                f"{type(input_dict_or_td).__name__}"
            )
        self._take_over(input_dict_or_td.clone() if clone else input_dict_or_td)
        return self

    def _take_over(self, other: ObjectEntry) -> None:
        raise NotImplementedError

    def _received(self, new: Any) -> Any:
        """Return the entry that is kept when another one arrives: itself, where it can take the objects in place."""
        return new

    @classmethod
    def _stack_all(cls, entries: Sequence[Any], dim: int) -> Any:
        from corral.tensordict.nontensor import NonTensorStack, entry_of

        if not entries[0]._batch_size and all(each._fits_any and not each._batch_size for each in entries):
            objects = np.empty(len(entries), object)
            for number, each in enumerate(entries):
                objects[number] = each._unwrapped()
            return NonTensorStack._of(objects, common_device(entries))
        return entry_of(stacked([each._cells() for each in only(entries)], dim), common_device(entries))

    @classmethod
    def _cat_all(cls, entries: Sequence[Any], dim: int) -> Any:
        found = only(entries)
        first = found[0]
        if all(each._fits_any and equal(each._unwrapped(), first._unwrapped()) for each in found):
            size = first._batch_size
            length = sum(each._batch_size[dim] for each in found)
            return first._resized(Size((*size[:dim], length, *size[dim + 1 :])))
        from corral.tensordict.nontensor import NonTensorStack

        return NonTensorStack._of(joined([each._cells() for each in found], dim), common_device(entries))


def only(entries: Sequence[Any]) -> Sequence[ObjectEntry]:
    """Return entries that are all of objects; raise if one is not."""
    for each in entries:
        if not isinstance(each, ObjectEntry):
            raise RuntimeError(
                f"objects that are no arrays can be joined only with others, not with a {type(each).__name__}"
            )
    return entries


def common_device(entries: Sequence[Any]) -> str | None:
    """Return the device that entries have in common, or ``None``."""
    found = {each._device for each in entries}
    return found.pop() if len(found) == 1 else None


def cells_of(value: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the objects that are written to elements of a shape."""
    if isinstance(value, ObjectEntry):
        return value._cells()
    if isinstance(value, list) and shape:
        found = cells(value, len(shape))
        if found.shape == shape:
            return found
    return filled(value, ())


def refuse_arrays(item: Any) -> None:
    """Raise if what is to be written into an entry of objects is an array or a TensorDict."""
    if library_of(item) != "other" or (isinstance(item, Base) and not item._holds_objects):
        raise InplaceWriteError(f"the entry is an object: a {type(item).__name__} cannot be written into it in place")


def added_by(function: Any) -> list[int]:
    """Return the dimensions that `unsqueeze` or an expansion adds: elements along them are to differ from now on."""
    index = getattr(function, "index", ())
    added = [index.index(None)] if type(index) is Unsqueezing else []
    return added + list(range(getattr(function, "expanded", 0)))
