"""Masks, repeated rows and softmax of a lazy stack: each member gets its part, whatever its shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from corral.arrays.libraries import to_numpy
from corral.arrays.operations import as_array
from corral.arrays.operations import unbind as unbind_array
from corral.tensordict.base import Base
from corral.tensordict.blocks import undone
from corral.tensordict.lazy_values import LazyValues

__all__ = ["LazyMasks"]


class LazyMasks(LazyValues):
    """Do member by member what is done to a batch by a mask, or row by row."""

    __slots__ = ()

    def where(
        self, condition: Any, other: Any, *, out: Any = None, pad: Any = None, update_batch_size: bool = False
    ) -> Any:
        """Return the elements where a condition is true, and others elsewhere, in a lazy stack."""
        if out is not None:
            return super().where(condition, other, out=out, pad=pad, update_batch_size=update_batch_size)
        masks, others = self._parts_of(condition, "where"), self._operands(other)
        results = [
            td.where(mask, piece, pad=pad) for td, mask, piece in zip(self.tensordicts, masks, others, strict=True)
        ]
        result = self._restacked(results)
        if self._locked and not isinstance(other, Base):
            result._lock(True)
        return result

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """Return the elements, with one value in the place of those that a mask over the batch chooses."""
        pairs = zip(self.tensordicts, self._parts_of(mask, "masked_fill"), strict=True)
        return self._restacked([td.masked_fill(part, value) for td, part in pairs])

    def masked_fill_(self, mask: Any, value: Any) -> Self:
        """Write one value into the elements that a mask over the batch chooses, in place."""
        for td, part in zip(self.tensordicts, self._parts_of(mask, "masked_fill_"), strict=True):
            td.masked_fill_(part, value)
        return self

    def _parts_of(self, mask: Any, name: str) -> Sequence[Any]:
        """Return each member's part of a mask, whose dimensions are the first ones of the batch."""
        array = as_array(mask)
        shape, size = tuple(array.shape), self._batch_size
        if len(shape) > self.stack_dim and shape[: len(size)] != size[: len(shape)] and -1 not in size:
            raise RuntimeError(f"{name}: the mask of shape {shape} does not fit the batch size {size}")
        if len(shape) <= self.stack_dim:
            return [array] * len(self.tensordicts)
        return unbind_array(array, self.stack_dim)

    def repeat(self, *repeats: Any, inplace: bool = False) -> Any:
        """Return a lazy stack with copies of its batch side by side, as many along each dimension as is said."""
        if inplace:
            self._refuse_inplace("repeat")
        times = list(self._repeats(repeats))
        many = times.pop(self.stack_dim)
        if min(many, *times) < 0:
            raise RuntimeError(f"repeat: a batch cannot be repeated {min(many, *times)} times")
        if not many:
            return self._no_rows().repeat(*times[: self.stack_dim], 1, *times[self.stack_dim :])
        rows = [td.repeat(*times) if times else td.clone() for _ in range(many) for td in self.tensordicts]
        return self._locked_alike(self._restacked(rows))

    def _no_rows(self) -> Any:
        """Return a dense TensorDict of no rows along the stack dimension."""
        return self._take((*(slice(None),) * self.stack_dim, slice(0, 0)))

    def repeat_interleave(
        self, repeats: Any, dim: int | None = None, *, output_size: int | None = None, inplace: bool = False
    ) -> Any:
        """Return a lazy stack in which each row stands several times, one behind the other."""
        count = len(self._batch_size)
        if dim is None or inplace or not -count <= dim < count:
            return super().repeat_interleave(repeats, dim, output_size=output_size, inplace=inplace)
        axis = dim % count
        if axis != self.stack_dim:
            inner = axis - (axis > self.stack_dim)
            repeated = self._memberwise(lambda td: td.repeat_interleave(repeats, inner, output_size=output_size))
            return self._locked_alike(repeated)
        times = [repeats] if isinstance(repeats, int) else to_numpy(repeats).reshape(-1).tolist()
        times = times * len(self.tensordicts) if len(times) == 1 else times
        if len(times) != len(self.tensordicts):
            raise RuntimeError(f"repeat_interleave: {len(times)} repeats for {len(self.tensordicts)} rows")
        if min(times) < 0:
            raise RuntimeError("repeat_interleave: repeats can not be negative")
        members = [td.clone() for td, many in zip(self.tensordicts, times, strict=True) for _ in range(many)]
        return self._locked_alike(self._restacked(members)) if members else self._no_rows()

    @undone
    def flip(self, dims: int | Sequence[int]) -> Self:
        """Return a lazy stack with the order of its rows reversed along some batch dimensions."""
        axes = [self._dim_of(dim) for dim in ((dims,) if isinstance(dims, int) else dims)]
        inner = [axis - (axis > self.stack_dim) for axis in axes if axis != self.stack_dim]
        members = [td.flip(inner) if inner else td.clone() for td in self.tensordicts]
        return self._restacked(members[::-1] if self.stack_dim in axes else members)

    @undone
    def roll(
        self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None, *, inplace: bool = False
    ) -> Self:
        """Return a lazy stack whose rows are moved along some batch dimensions, the last ones to the front."""
        if inplace:
            self._refuse_if_locked()
            rolled = self.roll(shifts, dims)
            self.tensordicts = list(rolled.unbind(self.stack_dim))
            return self
        if dims is None or (not isinstance(dims, int) and not len(dims)):
            return super().roll(shifts, dims)
        axes = [self._dim(dim) for dim in ((dims,) if isinstance(dims, int) else dims)]
        steps = [shifts] if isinstance(shifts, int) else list(shifts)
        if len(axes) != len(steps):
            raise RuntimeError(f"roll: shifts and dims must be as many, got {len(steps)} and {len(axes)}")
        own, inner = 0, dict.fromkeys((axis - (axis > self.stack_dim) for axis in axes if axis != self.stack_dim), 0)
        for axis, step in zip(axes, steps, strict=True):
            if axis == self.stack_dim:
                own += step
            else:
                inner[axis - (axis > self.stack_dim)] += step
        members = [td.roll(list(inner.values()), list(inner)) if inner else td.clone() for td in self.tensordicts]
        cut = -own % len(members)
        return self._restacked(members[cut:] + members[:cut])

    @undone
    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Return a lazy stack that is rotated in the plane of two batch dimensions, `k` times by 90 degrees."""
        first, second = self._plane(dims)
        k %= 4
        if k == 0:
            return self
        if k == 2:
            return self.flip((first, second))
        return self.flip(second if k == 1 else first).transpose(first, second)

    def softmax(self, dim: int, dtype: Any = None) -> Any:
        """Return exponentials that add up to 1 along a batch dimension, in a lazy stack."""
        count = len(self._batch_size)
        if not isinstance(dim, int) or not -count <= dim < count:
            return super().softmax(dim, dtype)
        axis = dim % count
        if axis != self.stack_dim:
            inner = axis - (axis > self.stack_dim)
            return self._memberwise(lambda td: td.softmax(inner, dtype))
        others = self._other_keys()
        if others:
            raise RuntimeError(
                f"softmax: only some members of this lazy stack have {others}, so that exponentials cannot be added up "
                f"along its stack dimension {axis}: exclude() them first"
            )
        try:
            dense = self._dense()
        except RuntimeError as error:
            raise RuntimeError(
                f"softmax: along the stack dimension {axis} of a lazy stack, exponentials of its members are added up, "
                f"which needs entries of one shape: {error}. Pad them first, or take another dimension."
            ) from error
        return self._restacked([row.clone() for row in dense.softmax(axis, dtype)._unbind(axis)])
