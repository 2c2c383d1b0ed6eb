"""Entries that are no arrays: any Python object, one for a whole batch or one for each of its elements."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from corral.arrays.indexing import normalize
from corral.tensordict import pytrees
from corral.tensordict.base import device_name
from corral.tensordict.names import Names
from corral.tensordict.nontensor_base import ObjectEntry, added_by, cells_of, common_device, refuse_arrays
from corral.tensordict.object_arrays import cells, copied, equal, filled, is_one, nested_list, partly_filled, stacked
from corral.tensordict.sizes import Size, as_size

__all__ = ["NonTensorData", "NonTensorStack"]

_SHOWN = 50


class NonTensorData(ObjectEntry):
    """One Python object that belongs to a whole batch.

    A TensorDict wraps strings and other objects in it, and unwraps them when they are read by their key.

    Parameters
    ----------
    data
        The object.
    batch_size : sequence of int, optional
        The dimensions of the batch.
    device : optional
        Device of the TensorDict that it belongs to.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import NonTensorData, TensorDict
    >>> td = TensorDict(a=np.zeros(2), name="cartpole", batch_size=[2])
    >>> td["name"], td.get("name"), td[0]["name"]
    ('cartpole', NonTensorData(data=cartpole, batch_size=[2], device=None), 'cartpole')
    """

    __slots__ = ("_data",)

    _fits_any: ClassVar[bool] = True
    _data: Any

    def __init__(self, data: Any, batch_size: Any = None, device: Any = None, names: Any = None) -> None:
        if names is not None:
            raise NotImplementedError(f"NonTensorData: dimensions cannot have names here: leave names={names!r} out")
        self._data = data._data if isinstance(data, NonTensorData) else data
        self._batch_size = as_size(batch_size)
        self._device = device_name(device)
        self._locked = False

    @property
    def data(self) -> Any:
        """The object."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._refuse_if_locked()
        self._data = value

    @property
    def batch_size(self) -> Size:
        """The dimensions of the batch."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        self._batch_size = as_size(value)

    def _cells(self) -> np.ndarray[Any, Any]:
        return filled(self._data, self._batch_size)

    def _unwrapped(self) -> Any:
        return self._data

    def _label(self) -> str:
        return type(self._data).__name__

    def _fits(self, size: Size) -> bool:
        return True

    def _resized(self, size: Size) -> Any:
        return NonTensorData(self._data, size, self._device)

    def _map_resized(self, function: Callable[[Any], Any], root: Size, replaced: int, names: Names = None) -> Any:
        size = Size(root + self._batch_size[replaced:])
        added = added_by(function)
        if added and 0 not in size:
            return NonTensorStack._of(partly_filled(self._data, size, added), self._device)
        return self._resized(size)

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = Size((*self._batch_size[:dim], *self._batch_size[dim + 1 :]))
        return tuple(self._resized(size) for _ in range(self._batch_size[dim]))

    def clone(self, recurse: bool = True, **kwargs: Any) -> Any:
        """Return an entry of the same object, which is not copied."""
        return self._resized(self._batch_size)

    def __deepcopy__(self, memo: Any) -> Any:
        return NonTensorData(copy.deepcopy(self._data, memo), self._batch_size, self._device)

    def maybe_to_stack(self) -> Any:
        """Return a `NonTensorStack`, with an object for each element, unless the batch has no dimensions."""
        return NonTensorStack._of(self._cells().copy(), self._device) if self._batch_size else self

    def to_dict(self, **ignored: Any) -> Any:
        """Return the object."""
        return self._data

    def __setitem__(self, index: Any, value: Any) -> None:
        raise ValueError(
            "a NonTensorData has one object for all elements, so that it cannot take another one at an index: "
            "maybe_to_stack() returns a NonTensorStack, which has one for each element"
        )

    def _with_all(self, objects: np.ndarray[Any, Any]) -> Any:
        stack = NonTensorStack._of(objects, self._device)
        stack._succeed(self)
        return stack

    def _rewritten(self, item: Any) -> Any:
        if isinstance(item, (NonTensorStack, list)):
            raise RuntimeError("a NonTensorData cannot be updated with the objects of a NonTensorStack: it has but one")
        refuse_arrays(item)
        data = item._data if isinstance(item, NonTensorData) else item
        self._file_away(data)
        self._data = data
        return self

    def _take_over(self, other: ObjectEntry) -> None:
        if not isinstance(other, NonTensorData):
            raise ValueError("a NonTensorData cannot take the objects of a NonTensorStack: it has but one")
        self._file_away(other._data)
        self._data = other._data

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled(NonTensorData, self._data, tuple(self._batch_size), self._device)

    def __repr__(self) -> str:
        shown = str(self._data)
        if len(shown) > _SHOWN:
            shown = f"{shown[: _SHOWN // 2 - 3]} ... {shown[3 - _SHOWN // 2 :]}"
        return f"NonTensorData(data={shown}, batch_size={list(self._batch_size)}, device={self._device})"


class NonTensorStack(ObjectEntry):
    """Python objects, one for each element of a batch.

    Parameters
    ----------
    *args
        The objects, or `NonTensorData` and `NonTensorStack` entries of one batch size.
    stack_dim : int
        The dimension along which they are stacked.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import NonTensorStack, TensorDict
    >>> NonTensorStack("a", "b").tolist()
    ['a', 'b']
    >>> td = TensorDict(a=np.zeros(2), name=["ant", "bee"], batch_size=[2])
    >>> td["name"], td[1]["name"]
    (['ant', 'bee'], 'bee')
    """

    __slots__ = ("_objects",)
    _kind_in_files: ClassVar[str] = "NonTensorStack"

    _objects: np.ndarray[Any, Any]

    def __init__(self, *args: Any, stack_dim: int = 0) -> None:
        entries = [each if isinstance(each, ObjectEntry) else NonTensorData(each) for each in args]
        if not 0 <= stack_dim <= (len(entries[0]._batch_size) if entries else 0):
            raise RuntimeError(f"stack_dim={stack_dim} is too big for entries with {len(entries)} batch dimensions")
        objects = stacked([each._cells() for each in entries], stack_dim) if entries else np.empty(0, object)
        self._set(objects, common_device(entries))

    def _set(self, objects: np.ndarray[Any, Any], device: str | None) -> None:
        self._objects = objects
        self._batch_size = Size(objects.shape)
        self._device = device
        self._locked = False

    @classmethod
    def _of(cls, objects: np.ndarray[Any, Any], device: str | None = None) -> NonTensorStack:
        self = cls.__new__(cls)
        self._set(objects, device)
        return self

    @classmethod
    def from_list(cls, non_tensors: list[Any]) -> NonTensorStack:  # type: ignore[override]
        """Return the objects of nested lists: a dimension for each level at which all lists have one length.

        Examples
        --------
        >>> from corral import NonTensorStack
        >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]]).batch_size
        Size([2, 2])
        """
        return cls._of(cells(non_tensors))

    def flat(self) -> list[Any]:
        """Return the objects of all elements in one list."""
        return list(self._objects.reshape(-1))

    @classmethod
    def from_flat(cls, objects: list[Any], batch_size: Sequence[int]) -> NonTensorStack:
        """Return the objects of a list, in the order of the elements of a batch."""
        return cls._of(cells(objects, 1).reshape(tuple(batch_size)))

    @classmethod
    def of_rows(cls, rows: list[Any], batch_size: Sequence[int]) -> NonTensorStack:
        """Return the rows of a batch: objects, or entries with one for each element of the row."""
        shape = tuple(batch_size[1:])
        entries = [row._cells() if isinstance(row, ObjectEntry) else filled(row, ()) for row in rows]
        whole = [np.broadcast_to(each, shape) if each.shape != shape else each for each in entries]
        return cls._of(stacked(whole, 0) if whole else np.empty((0, *shape), object))

    @classmethod
    def from_nontensordata(cls, non_tensor: NonTensorData) -> Any:
        """Return an entry with the same object for each element."""
        return non_tensor.maybe_to_stack()

    @property  # type: ignore[misc]  # cannot be set
    def data(self) -> Any:
        """The object of all elements; an error if they have several."""
        flat = self._objects.reshape(-1)
        if not flat.size or not all(equal(flat[0], each) for each in flat):
            raise AttributeError("Cannot get the non-unique data of a NonTensorStack. Use .tolist() instead.")
        return flat[0]

    @property
    def batch_size(self) -> Size:
        """The dimensions of the batch."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        if as_size(value) != self._batch_size:
            self._misfit(as_size(value))

    def _misfit(self, size: Size) -> NoReturn:
        raise RuntimeError(
            f"batch dimension mismatch: a NonTensorStack of batch size {self._batch_size} does not fit the batch size "
            f"{size}"
        )

    @property
    def stack_dim(self) -> int:
        """The dimension along which objects differ: the first."""
        return 0

    def _cells(self) -> np.ndarray[Any, Any]:
        return self._objects

    def _unwrapped(self) -> Any:
        return nested_list(self._objects)

    def _resized(self, size: Size) -> Any:
        return self.copy() if self._fits(size) else self._misfit(size)

    def _map_resized(self, function: Callable[[Any], Any], root: Size, replaced: int, names: Names = None) -> Any:
        objects = self._objects
        try:
            result = function(objects)
        except RuntimeError:  # no view has that shape
            result = function(objects.copy())
        if type(result) is not np.ndarray or result.dtype != object:
            raise RuntimeError("a NonTensorStack has no such operation: it holds objects that are no arrays")
        if result.strides.count(0) > objects.strides.count(0):  # repeated: elements are to differ from now on
            result = result.copy()
        return self._with(result)

    def clone(self, recurse: bool = True, **kwargs: Any) -> Any:
        """Return an entry of the same objects, which are not copied."""
        return NonTensorStack._of(copied(self._objects), self._device)

    def __deepcopy__(self, memo: Any) -> Any:
        objects = self._cells()
        fresh = np.empty(objects.shape, object)
        for place in np.ndindex(objects.shape):
            fresh[place] = copy.deepcopy(objects[place], memo)
        return NonTensorStack._of(fresh, self._device)

    def _received(self, new: Any) -> Any:
        return self._rewritten(new) if isinstance(new, NonTensorStack) and new.shape == self.shape else new

    def maybe_to_stack(self) -> Any:
        """Return the entry itself, or a copy that can be written if elements share their objects."""
        if 0 in self._objects.strides and self._objects.size:
            self._objects = self._objects.copy()
        return self

    def to_dict(self, **ignored: Any) -> Any:
        """Return the objects as nested lists."""
        return nested_list(self._objects)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._assign(normalize(index, self._objects.ndim), value)

    def _rewritten(self, item: Any) -> Any:
        refuse_arrays(item)
        if self._objects.ndim:
            self._overwrite(np.broadcast_to(cells_of(item, self._objects.shape), self._objects.shape))
        return self

    def _with_all(self, objects: np.ndarray[Any, Any]) -> Any:
        self._overwrite(objects)
        return self

    def _overwrite(self, objects: np.ndarray[Any, Any]) -> None:
        """Replace all objects, in the directory of a memory-mapped entry as well."""
        self._file_away(nested_list(objects))
        self.maybe_to_stack()
        self._objects[...] = objects

    def _take_over(self, other: ObjectEntry) -> None:
        self._rewritten(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled(_rebuild, self._objects.shape, self.flat(), self._device)

    def __repr__(self) -> str:
        shown = str(nested_list(self._objects))
        if len(shown) > _SHOWN:
            shown = f"{shown[: _SHOWN - 1]}..."
        return f"NonTensorStack({shown}, batch_size={list(self._batch_size)}, device={self._device})"


def _rebuild(shape: tuple[int, ...], objects: list[Any], device: str | None) -> NonTensorStack:
    return NonTensorStack._of(cells(objects, 1).reshape(shape), device)


def wrap(value: Any, size: Sequence[int], device: str | None) -> Any:
    """Return what a TensorDict of a batch size keeps in place of an object that is no array."""
    theirs = sys.modules.get("tensordict")
    if theirs is not None:
        if isinstance(value, theirs.NonTensorStack):
            return NonTensorStack._of(cells(value.tolist(), len(value.batch_size)), device)
        if isinstance(value, theirs.NonTensorData):
            return NonTensorData(value.data, tuple(value.batch_size), device)
    if isinstance(value, list):
        return NonTensorStack._of(cells(value), device)
    return NonTensorData(value, size, device)


def entry_of(objects: np.ndarray[Any, Any], device: str | None) -> Any:
    """Return an entry: one object if all elements share it, and an object for each if not."""
    if is_one(objects):
        return NonTensorData(objects[(0,) * objects.ndim], objects.shape, device)
    return NonTensorStack._of(objects, device)


pytrees.register_kind(NonTensorData)
pytrees.register_kind(NonTensorStack)
