"""Change the shape of the batch. Every leaf keeps the dimensions behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from corral.arrays.dtype_views import is_dtype, view_dtype
from corral.arrays.operations import expand as expand_array
from corral.arrays.operations import permute as permute_array
from corral.arrays.operations import reshape as reshape_array
from corral.arrays.operations import view as view_array
from corral.tensordict.blocks import undone
from corral.tensordict.errors import DimensionError
from corral.tensordict.indexing import Indexing
from corral.tensordict.names import Names
from corral.tensordict.sizes import Size

__all__ = ["Shaping", "Unsqueezing"]


class Shaping(Indexing):
    """Split, reshape and reorder batches."""

    __slots__ = ()

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Return consecutive parts of the batch, of one length (the last may be shorter) or of given ones.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(5), batch_size=[5])
        >>> [part["a"].tolist() for part in td.split(2)]
        [[0, 1], [2, 3], [4]]
        """
        dim = self._dim(dim)
        length = self._batch_size[dim]
        if isinstance(split_size, int):
            if split_size < 0 or (split_size == 0 and length):
                raise DimensionError(f"split_size must be a positive integer, but got {split_size}.")
            ends = [*range(split_size, length, split_size or 1), length]
        else:
            sizes = list(split_size)
            if any(size < 0 for size in sizes) or sum(sizes) != length:
                raise RuntimeError(
                    f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size at "
                    f"dimension {dim}), but got split_sizes={sizes}"
                )
            ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        prefix = (slice(None),) * dim
        starts = [0, *ends]
        return tuple(
            self._locked_alike(self._take((*prefix, slice(start, end))))
            for start, end in zip(starts, ends, strict=False)
        )

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Return at most this many parts of equal length; the last may be shorter."""
        if chunks < 1:
            raise ValueError(f"chunks must be a strictly positive integer, got {chunks}.")
        if self._batch_size[self._dim(dim)] == 0:
            return self.split([0] * chunks, dim)
        return self.split(max(1, -(-self._batch_size[self._dim(dim)] // chunks)), dim)

    def _reshaped(
        self, shape: Sequence[int], function: Callable[[Any, Sequence[int]], Any], names: Names = None
    ) -> Self:
        count = len(self._batch_size)
        return self._locked_alike(
            self._map(lambda leaf: function(leaf, (*shape, *leaf.shape[count:])), Size(shape), names)
        )

    def _locked_alike(self, result: Self) -> Self:
        if self._locked and result is not self:
            result._lock(True)
        return result

    def reshape(self, *shape: Any, size: Any = None, inplace: bool = False) -> Self:
        """Return a TensorDict whose batch has another shape; one dimension may be -1.

        With `inplace`, this TensorDict gets the reshaped leaves.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros((4, 6, 5)), batch_size=[4, 6]).reshape(3, -1)["a"].shape
        (3, 8, 5)
        """
        if inplace:
            self._refuse_inplace("reshape")
        target = self._complete(_shape(shape if size is None else (size,)))
        result = self if target == self._batch_size else self._reshaped(target, reshape_array)._forget_names()
        return self._rebind(result) if inplace else result

    @undone
    def view(self, *shape: Any, size: Any = None, batch_size: Any = None) -> Self:
        """Return the same as `reshape`, but fail where a leaf would have to be copied.

        Given a dtype in place of a shape, return one whose leaves are the same bytes seen as that dtype;
        `batch_size` is then that of the result.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros((4, 2), "float32"), batch_size=[4])
        >>> td.view(2, 2)["a"].shape, td.view(np.dtype("int64"))["a"].shape
        ((2, 2, 2), (4, 1))
        """
        if len(shape) == 1 and is_dtype(shape[0]):
            dtype = shape[0]
            result: Any = self.apply(lambda leaf: view_dtype(leaf, dtype), batch_size=batch_size)  # type: ignore[attr-defined]
            return result  # type: ignore[no-any-return]
        target = self._complete(_shape(shape if size is None else (size,)))
        if target == self._batch_size:
            return self
        return self._reshaped(target, view_array)._forget_names()

    def _complete(self, shape: Size) -> Size:
        total = math.prod(self._batch_size)
        if shape.count(-1) == 1:
            known = -math.prod(shape)
            if known and total % known == 0:
                return Size(total // known if length == -1 else length for length in shape)
        elif math.prod(shape) == total and all(length >= 0 for length in shape):
            return shape
        raise RuntimeError(f"shape '{list(shape)}' is invalid for a batch of size {list(self._batch_size)}")

    @undone
    def flatten(self, start_dim: int | None = None, end_dim: int | None = None, *, inplace: bool = False) -> Self:
        """Return a TensorDict in which several batch dimensions are one; with `inplace`, change this one."""
        if inplace:
            self._refuse_inplace("flatten")
        count = len(self._batch_size)
        start = 0 if start_dim is None else start_dim
        end = -1 if end_dim is None else end_dim
        start, end = (d + count if d < 0 else d for d in (start, end))
        if not count and start in (0, -1) and end in (0, -1):
            return self._reshaped((1,), reshape_array)
        if not (0 <= start < count and 0 <= end < count):
            raise DimensionError(
                f"Incompatible start_dim={start_dim} and end_dim={end_dim} for tensordict with shape "
                f"{self._batch_size}."
            )
        if end < start:
            raise DimensionError("The end dimension must be greater or equal to the start dim.")
        if end == start:
            return self._locked_alike(self._map_values(lambda leaf: leaf))
        size = self._batch_size
        shape = (*size[:start], math.prod(size[start : end + 1]), *size[end + 1 :])
        names = self._names and (*self._names[:start], None, *self._names[end + 1 :])
        result = self._reshaped(shape, reshape_array, names)
        return self._rebind(result) if inplace else result

    @undone
    def unflatten(self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False) -> Self:
        """Return a TensorDict in which one batch dimension is several; with `inplace`, change this one."""
        if inplace:
            self._refuse_inplace("unflatten")
        dim = self._dim(dim)
        size = self._batch_size
        part = list(unflattened_size)
        if part.count(-1) == 1:
            known = -math.prod(part)
            part[part.index(-1)] = size[dim] // known if known else 0
        if math.prod(part) != size[dim]:
            raise RuntimeError(
                f"unflatten: Provided sizes {list(unflattened_size)} don't multiply up to the size of dim {dim} "
                f"({size[dim]}) in the input tensor"
            )
        names = self._names and (*self._names[:dim], *(None,) * (len(part) - 1), *self._names[dim:])
        result = self._reshaped((*size[:dim], *part, *size[dim + 1 :]), reshape_array, names)
        return self._rebind(result) if inplace else result

    def _refuse_inplace(self, name: str) -> None:
        """Raise where a TensorDict cannot take other shapes in place."""

    def _rebind(self, result: Self) -> Self:
        """Take over the leaves, the batch size and the names of what was made of this TensorDict."""
        if result is self:
            return self
        self._refuse_if_locked()
        for key, value in result._source.items():
            mine = self._source[key]
            if isinstance(mine, Shaping):
                mine._rebind(value)
            else:
                self._source[key] = value
        self._batch_size, self._names = result._batch_size, result._names
        return self

    @undone
    def permute(self, *args: Any, dims: Any = None) -> Self:
        """Return a TensorDict with its batch dimensions in another order."""
        order = list(_shape(args if dims is None else (dims,)))
        count = len(self._batch_size)
        if len(order) != count or sorted(d % count for d in order if -count <= d < count) != list(range(count)):
            raise DimensionError("Received an permutation order incompatible with the tensordict shape.")
        order = [d % count for d in order]
        if order == list(range(count)):
            return self
        size = Size(self._batch_size[d] for d in order)
        names = self._names and tuple(self._names[d] for d in order)
        return self._locked_alike(
            self._map(lambda leaf: permute_array(leaf, (*order, *range(count, len(leaf.shape)))), size, names)
        )

    @undone
    def transpose(self, dim0: int, dim1: int) -> Self:
        """Return a TensorDict with two batch dimensions swapped."""
        count = len(self._batch_size)
        if not (-count <= dim0 < count and -count <= dim1 < count):
            raise DimensionError(
                "The provided dimensions are incompatible with the tensordict batch-size: "
                f"dim0={dim0}, dim1={dim1}, batch_size={self._batch_size}"
            )
        order = list(range(count))
        order[dim0], order[dim1] = order[dim1], order[dim0]
        return self.permute(*order)

    @undone
    def squeeze(self, dim: int | None = None) -> Self:
        """Return a TensorDict without one batch dimension, or without all, of length 1."""
        size = self._batch_size
        if dim is None:
            dropped = [d for d, length in enumerate(size) if length == 1]
        else:
            count = len(size)
            position = dim + count if dim < 0 else dim
            if not 0 <= position < count:
                raise DimensionError(f"Incompatible dim {dim} for tensordict with shape {size}.")
            dropped = [position] if size[position] == 1 else []
        if not dropped:
            return self
        index = tuple(0 if d in dropped else slice(None) for d in range(len(size)))
        return self._locked_alike(self._take(index))

    @undone
    def unsqueeze(self, dim: int) -> Self:
        """Return a TensorDict with a batch dimension of length 1 more."""
        count = len(self._batch_size)
        if not -count - 1 <= dim <= count:
            raise DimensionError(
                "unsqueezing is allowed for dims comprised between `-td.batch_dims - 1` and `td.batch_dims` only. "
                f"Got dim={dim} with a batch size of {self._batch_size}."
            )
        return self._locked_alike(self._take(Unsqueezing((*(slice(None),) * (dim % (count + 1)), None))))

    def expand(self, *args: Any, shape: Any = None, inplace: bool = False) -> Self:
        """Return a TensorDict whose batch dimensions of length 1 are repeated, without a copy.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros((1, 3)), batch_size=[1]).expand(5, 4).shape
        Size([5, 4])
        """
        target = _shape(args if shape is None else (shape,))
        size = self._batch_size
        extra = len(target) - len(size)
        aligned = target[extra:] if extra >= 0 else ()
        full = [mine if length == -1 else length for mine, length in zip(size, aligned, strict=False)]
        if extra < 0 or any(mine not in (1, length) for mine, length in zip(size, full, strict=True)):
            raise RuntimeError(
                "Incompatible expanded shape: The expanded shape length at non-singleton dimension should be same "
                f"as the original length. target_shape = {tuple(target)}, existing_shape = {size}"
            )
        result = Size((*target[:extra], *full))
        count = len(size)
        names = self._names and (*(None,) * extra, *self._names)

        def repeat(leaf: Any) -> Any:
            return expand_array(leaf, (*result, *leaf.shape[count:]))

        repeat.expanded = extra  # type: ignore[attr-defined]  # for entries of objects
        return self._locked_alike(self._map(repeat, result, names))

    def expand_as(self, other: Any) -> Self:
        """Return this TensorDict expanded to the batch size of another one."""
        return self.expand(other.shape)


class Unsqueezing(tuple[Any, ...]):
    """The index that stands for `unsqueeze`: unlike others with ``None`` it gives each element an object of its own."""

    __slots__ = ()


def _shape(args: tuple[Any, ...]) -> Size:
    shape = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
    if isinstance(shape, str) or not hasattr(shape, "__iter__") or any(isinstance(length, str) for length in shape):
        raise TypeError(f"a shape is made of integers, got {shape!r}; a dtype is given as a library's object")
    return Size(shape)
