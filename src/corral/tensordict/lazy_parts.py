"""Rows of a lazy stack, and other shapes of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from corral.arrays.indexing import normalize
from corral.arrays.operations import expand as expand_array
from corral.arrays.operations import unbind as unbind_array
from corral.tensordict.base import Base
from corral.tensordict.blocks import undone
from corral.tensordict.errors import DimensionError
from corral.tensordict.indexing import indexed_size
from corral.tensordict.lazy_base import LazyBase
from corral.tensordict.lazy_indexing import Grid, Member, locate
from corral.tensordict.names import Names
from corral.tensordict.shaping import _shape as shape_of
from corral.tensordict.sizes import Size

__all__ = ["LazyParts"]

_NUMBERS = (bool, int, float, complex)


class LazyParts(LazyBase):
    """Index, split and reshape a lazy stack: members stay views of what they were."""

    __slots__ = ()

    def _take(self, index: tuple[Any, ...]) -> Any:
        found = locate(index, self._batch_size, self.stack_dim)
        if isinstance(found, Member):
            return _part(self.tensordicts[found.number], found.inner)
        if isinstance(found, Grid):
            return self._elements(found.positions)
        if not len(found.numbers):
            one = self._of(self.tensordicts[:1], self.stack_dim)._dense()
            return one._take((*(slice(None),) * self.stack_dim, slice(0, 0)))._take(index)
        result = self._picked(found.numbers, found.inner, found.stack_dim)
        if self._stack_name is not None and all(isinstance(number, int) for number in found.numbers):
            result._stack_name = self._stack_name
        return self._locked_as_this(result)

    def _picked(self, numbers: Any, index: tuple[Any, ...], stack_dim: int) -> Any:
        if isinstance(numbers, int):
            return _part(self.tensordicts[numbers], index)
        return self._of([self._picked(each, index, stack_dim) for each in numbers], stack_dim)

    def _elements(self, positions: np.ndarray[Any, Any]) -> Any:
        """Return elements of the batch, by their positions in it as if it were flat."""
        if positions.ndim == 0:
            number, index = self._place(int(positions))
            return _part(self.tensordicts[number], index)
        if not positions.size:
            flat = self._dense().reshape(-1) if math.prod(self._batch_size) else self._dense().reshape(0)
            return flat[:0].reshape(positions.shape)
        return self._of([self._elements(row) for row in positions], 0)

    def _place(self, position: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of the member that an element is in, and its index there."""
        place = [int(i) for i in np.unravel_index(position, self._batch_size)]
        number = place.pop(self.stack_dim)
        return number, tuple(place)

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        stack_dim = self.stack_dim
        if dim == stack_dim:
            return tuple(self.tensordicts)
        columns = [td._unbind(dim - (dim > stack_dim)) for td in self.tensordicts]
        if len({len(column) for column in columns}) > 1:
            raise RuntimeError(
                f"a lazy stack of batch size {self._batch_size} cannot be unbound along dimension {dim}: its members' "
                f"lengths are {[len(column) for column in columns]}"
            )
        return tuple(self._of(row, stack_dim - (dim < stack_dim)) for row in zip(*columns, strict=True))

    def _indexed(self, index: Any) -> tuple[tuple[Any, ...], Size]:
        """Return an index normalized, and the batch size of what it selects."""
        parts = normalize(index, len(self._batch_size))
        return parts, indexed_size(self._batch_size, parts)

    def _prepare_keys(self, value: Base) -> None:
        """Leave it to the members, which may differ."""

    def _assign(self, index: tuple[Any, ...], value: Any, keys: Iterable[str] | None = None) -> None:
        if not isinstance(value, Base) and keys is None:
            keys = list(self._source)
        found = locate(index, self._batch_size, self.stack_dim)
        if isinstance(found, Member):
            _write(self.tensordicts[found.number], found.inner, value, keys)
            return
        size = indexed_size(self._batch_size, index)
        if not isinstance(value, (Base, *_NUMBERS)) and tuple(value.shape[: len(size)]) != size:
            value = expand_array(value, size)
        if isinstance(found, Grid):
            for place in np.ndindex(found.positions.shape):
                number, at = self._place(int(found.positions[place]))
                _write(self.tensordicts[number], at, _piece(value, place), keys)
        else:
            self._assign_rows(found.numbers, found.inner, found.stack_dim, value, keys)

    def _assign_rows(
        self, numbers: Any, index: tuple[Any, ...], stack_dim: int, value: Any, keys: Iterable[str] | None
    ) -> None:
        if isinstance(numbers, int):
            _write(self.tensordicts[numbers], index, value, keys)
            return
        pieces: Sequence[Any]
        if isinstance(value, _NUMBERS):
            pieces = [value] * len(numbers)
        elif isinstance(value, Base):
            pieces = value._unbind(stack_dim)  # type: ignore[attr-defined]
        else:
            pieces = unbind_array(value, stack_dim)
        for each, piece in zip(numbers, pieces, strict=True):
            self._assign_rows(each, index, stack_dim, piece, keys)

    # Shapes

    def _reshaped(
        self, shape: Sequence[int], function: Callable[[Any, Sequence[int]], Any], names: Names = None
    ) -> Any:
        target = Size(shape)
        if target == self._batch_size:
            return self._of(self.tensordicts, self.stack_dim)
        if not math.prod(target):
            return self._dense()._reshaped(target, function, names)
        if self.stack_dim == 0 and target and target[0] == len(self.tensordicts):
            return self._memberwise(lambda td: td._reshaped(target[1:], function))
        return self._locked_as_this(self._elements(np.arange(math.prod(self._batch_size)).reshape(target)))

    @undone
    def permute(self, *args: Any, dims: Any = None) -> Any:
        """Return a lazy stack with its batch dimensions in another order."""
        order = list(shape_of(args if dims is None else (dims,)))
        count = len(self._batch_size)
        if len(order) != count or sorted(d % count for d in order if -count <= d < count) != list(range(count)):
            raise DimensionError("Received an permutation order incompatible with the tensordict shape.")
        order = [d % count for d in order]
        stack_dim = self.stack_dim
        if order == list(range(count)):
            return self._restacked(self.tensordicts)
        inner = [d - (d > stack_dim) for d in order if d != stack_dim]
        result = self._of([td.permute(*inner) for td in self.tensordicts], order.index(stack_dim))
        result._stack_name = self._stack_name
        return result

    def expand(self, *args: Any, shape: Any = None, inplace: bool = False) -> Any:
        """Return a lazy stack whose batch dimensions of length 1 are repeated, without a copy."""
        target = shape_of(args if shape is None else (shape,))
        size, stack_dim = self._batch_size, self.stack_dim
        extra = len(target) - len(size)
        place = stack_dim + extra
        length = target[place] if extra >= 0 else 0
        members = self.tensordicts
        if extra < 0 or length not in (-1, len(members), *((length,) if len(members) == 1 else ())):
            raise RuntimeError(
                "Incompatible expanded shape: The expanded shape length at non-singleton dimension should be same "
                f"as the original length. target_shape = {tuple(target)}, existing_shape = {size}"
            )
        rest = (*target[:place], *target[place + 1 :])
        repeated = members if length in (-1, len(members)) else members * length
        if not repeated:
            return self._dense().expand(target)
        return self._of([td.expand(rest) for td in repeated], place)


def _part(td: Any, index: tuple[Any, ...]) -> Any:
    """Return a part of a member: itself if that is all of it."""
    return td if _is_all(index) else td._take(index)


def _is_all(index: tuple[Any, ...]) -> bool:
    return all(type(item) is slice and item == slice(None) for item in index)


def _write(td: Any, index: tuple[Any, ...], value: Any, keys: Iterable[str] | None) -> None:
    if isinstance(value, Base):
        if not td._locked and _is_all(index) and {*value._source} - {*td._source}:
            td.update(value, inplace=True)  # a member as a whole may get new entries
            return
        td._prepare_keys(value)
    td._assign(index, value, keys)


def _piece(value: Any, place: tuple[int, ...]) -> Any:
    if isinstance(value, _NUMBERS):
        return value
    return value._take(place) if isinstance(value, Base) else value[place]  # type: ignore[attr-defined]
