"""Move, repeat and cut the batch as a whole, along its dimensions."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

from corral.arrays import rearranging as arrays
from corral.arrays.libraries import dtype_name, library_of, to_numpy
from corral.arrays.operations import device_of, expand
from corral.tensordict.blocks import undone
from corral.tensordict.errors import DimensionError
from corral.tensordict.names import Names
from corral.tensordict.shaping import Shaping
from corral.tensordict.sizes import Size

__all__ = ["Rearranging"]


class Rearranging(Shaping):
    """Flip, roll, repeat, narrow: what torch does to an array is done to the batch dimensions of all leaves."""

    __slots__ = ()

    def _batch_op(
        self, function: Callable[[Any], Any], size: Sequence[int], names: Names, inplace: bool = False
    ) -> Self:
        if inplace:
            self._refuse_if_locked()
        result = self._locked_alike(self._map(function, Size(size), names))
        return self._rebind(result) if inplace else result

    def _dim_of(self, dim: int) -> int:
        count = len(self._batch_size)
        if not -count <= dim < count:
            raise DimensionError(
                f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})"
            )
        return dim % count

    # Order of the dimensions

    @undone
    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Return a TensorDict with some batch dimensions in other places; the others keep their order.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros((2, 3, 4, 5)), batch_size=[2, 3, 4]).movedim(0, -1)["a"].shape
        (3, 4, 2, 5)
        """
        sources = _dims(source)
        places = _dims(destination)
        if len(sources) != len(places):
            raise ValueError(
                "movedim: source and destination must have the same number of elements, got "
                f"{len(sources)} and {len(places)}"
            )
        sources = tuple(self._dim_of(dim) for dim in sources)
        places = tuple(self._dim_of(dim) for dim in places)
        for name, dims in (("source", sources), ("destination", places)):
            if len(set(dims)) != len(dims):
                raise DimensionError(f"movedim: repeated dim in {name}")
        if sources == places:
            return self
        order = [dim for dim in range(len(self._batch_size)) if dim not in sources]
        for place, dim in sorted(zip(places, sources, strict=True)):
            order.insert(place, dim)
        return self.permute(*order)

    moveaxis = movedim

    @undone
    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Return a TensorDict with two batch dimensions swapped: the same as `transpose`."""
        return self.transpose(axis0, axis1)

    swapdims = swapaxes

    # Order of the elements

    @undone
    def flip(self, dims: int | Sequence[int]) -> Self:
        """Return a TensorDict with the order of its rows reversed along some batch dimensions.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(3), batch_size=[3]).flip(0)["a"]
        array([2, 1, 0])
        """
        axes = tuple(self._dim_of(dim) for dim in _dims(dims))
        return self._batch_op(lambda leaf: arrays.flip(leaf, axes), self._batch_size, self._names)

    @undone
    def fliplr(self) -> Self:
        """Return a TensorDict with the order reversed along the second batch dimension."""
        if len(self._batch_size) < 2:
            raise RuntimeError("fliplr requires at least 2 batch dimensions")
        return self.flip(1)

    @undone
    def flipud(self) -> Self:
        """Return a TensorDict with the order reversed along the first batch dimension."""
        if not self._batch_size:
            raise RuntimeError("flipud requires at least 1 batch dimension")
        return self.flip(0)

    @undone
    def roll(
        self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None, *, inplace: bool = False
    ) -> Self:
        """Return a TensorDict with its rows moved along batch dimensions; those that leave at the end come in again.

        Parameters
        ----------
        shifts : int or sequence of int
            How far, for each dimension.
        dims : int or sequence of int, optional
            The dimensions; by default, the batch is moved as if it had one.
        inplace : bool
            Give this TensorDict the moved leaves.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(4), batch_size=[4]).roll(1, 0)["a"]
        array([3, 0, 1, 2])
        """
        size = self._batch_size
        if dims is None or (not isinstance(dims, int) and not len(dims)):
            count, total = len(size), math.prod(size)

            def move(leaf: Any) -> Any:
                return arrays.roll(leaf.reshape((total, *leaf.shape[count:])), shifts, 0).reshape(tuple(leaf.shape))
        else:
            axes = tuple(self._dim(dim) for dim in _dims(dims))

            def move(leaf: Any) -> Any:
                return arrays.roll(leaf, shifts, axes)

        return self._batch_op(move, size, self._names, inplace)

    def _plane(self, dims: Sequence[int]) -> tuple[int, int]:
        """Return the two batch dimensions that `rot90` turns."""
        if len(self._batch_size) < 2:
            raise RuntimeError("rot90 requires at least 2 batch dimensions")
        if len(dims) != 2:
            raise RuntimeError("rot90 requires exactly 2 dims")
        first, second = self._dim_of(dims[0]), self._dim_of(dims[1])
        if first == second:
            raise DimensionError(f"expected rotation dims to be different, but got dim0 = {first} and dim1 = {second}")
        return first, second

    @undone
    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Return a TensorDict turned `k` times by a quarter, from the first of two batch dimensions to the second."""
        first, second = self._plane(dims)
        k %= 4
        if k == 0:
            return self
        size, names = list(self._batch_size), self._names
        if k % 2:
            size[first], size[second] = size[second], size[first]
            if names is not None:
                swapped = list(names)
                swapped[first], swapped[second] = names[second], names[first]
                names = tuple(swapped)
        return self._batch_op(lambda leaf: arrays.rot90(leaf, k, (first, second)), size, names)

    # Copies

    def repeat(self, *repeats: Any, inplace: bool = False) -> Self:
        """Return a TensorDict with copies of its batch side by side, as many along each dimension as is said.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(2), batch_size=[2]).repeat(2)["a"]
        array([0, 1, 0, 1])
        """
        times = self._repeats(repeats)
        count = len(self._batch_size)
        size = [n * many for n, many in zip(self._batch_size, times, strict=True)]
        return self._batch_op(
            lambda leaf: arrays.repeat(leaf, (*times, *(1,) * (len(leaf.shape) - count))),
            size,
            self._names,
            inplace,
        )

    def _repeats(self, repeats: tuple[Any, ...]) -> tuple[int, ...]:
        """Return how often each batch dimension is repeated, from the arguments of `repeat`."""
        if len(repeats) == 1 and not isinstance(repeats[0], int):
            given = repeats[0]
            if not isinstance(given, (list, tuple)) and library_of(given) == "other":
                raise ValueError(
                    "repeats must be a sequence of integers, a tensor or a torch.Size object. Got "
                    f"{type(given)} instead."
                )
            if not isinstance(given, (list, tuple)):
                given = to_numpy(given).reshape(-1).tolist()
            repeats = tuple(given)
        count = len(self._batch_size)
        if len(repeats) != count:
            raise ValueError(
                "The number of repeat elements must match the number of dimensions of the tensordict. Got "
                f"{len(repeats)} but ndim={count}."
            )
        return repeats

    def repeat_interleave(
        self, repeats: Any, dim: int | None = None, *, output_size: int | None = None, inplace: bool = False
    ) -> Self:
        """Return a TensorDict in which each row stands several times, one behind the other.

        Parameters
        ----------
        repeats : int or array of int
            How often; all rows, or each.
        dim : int, optional
            The batch dimension; by default, the batch is first given one dimension.
        output_size : int, optional
            The length of the dimension in the result.
        inplace : bool
            Give this TensorDict the repeated leaves.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(2), batch_size=[2]).repeat_interleave(2, dim=0)["a"]
        array([0, 0, 1, 1])
        """
        size = self._batch_size
        if inplace:
            self._refuse_inplace("repeat_interleave")
        if inplace and (dim is None or not size):
            raise RuntimeError("repeat_interleave(inplace=True) requires a batch dimension and an explicit dim")
        if not size:
            return self.unsqueeze(0).repeat_interleave(repeats, dim, output_size=output_size)
        if dim is None:
            return self.reshape(-1).repeat_interleave(repeats, 0)
        if not -len(size) <= dim < len(size):
            raise DimensionError(f"dim {dim} is out of range for tensordict with shape {size}.")
        axis = dim % len(size)
        if isinstance(repeats, int):
            length = size[axis] * repeats
        else:
            counts = to_numpy(repeats)
            length = int(counts.sum()) * (size[axis] if counts.shape in ((), (1,)) and size[axis] != 1 else 1)
        return self._batch_op(
            lambda leaf: arrays.repeat_interleave(leaf, repeats, axis, output_size),
            (*size[:axis], length, *size[axis + 1 :]),
            self._names,
            inplace,
        )

    def tile(self, dims: int | Sequence[int]) -> Self:
        """Return a TensorDict with copies of its batch side by side; `dims` counts from the last batch dimension."""
        times = _dims(dims)
        count = len(self._batch_size)
        size = [*(1,) * (len(times) - count), *self._batch_size]
        times = (*(1,) * (count - len(times)), *times)
        return self._batch_op(
            lambda leaf: arrays.repeat(leaf, (*times, *(1,) * (len(leaf.shape) - count))),
            [n * m for n, m in zip(size, times, strict=True)],
            None,
        )._forget_names()

    # Parts

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """Return `length` rows along a batch dimension, from one of them on, without a copy.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(5), batch_size=[5]).narrow(0, 1, 2)["a"]
        array([1, 2])
        """
        axis = self._dim_of(dim)
        total = self._batch_size[axis]
        if not -total <= start <= total:
            raise IndexError(f"start out of range (expected to be in range of [{-total}, {total}], but got {start})")
        first = start + total if start < 0 else start
        if length < 0:
            raise RuntimeError("narrow(): length must be non-negative.")
        if first + length > total:
            raise RuntimeError(f"start ({first}) + length ({length}) exceeds dimension size ({total}).")
        return self._locked_alike(self._take((*(slice(None),) * axis, slice(first, first + length))))

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """Return a number of parts whose lengths differ by one at most, or the parts between indices.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(5), batch_size=[5])
        >>> [part["a"].tolist() for part in td.tensor_split(2)], [len(part) for part in td.tensor_split([1, -1])]
        ([[0, 1, 2], [3, 4]], [1, 3, 1])
        """
        given = indices_or_sections
        if library_of(given) != "other":
            if dtype_name(given) != "int64" or device_of(given) != "cpu" or given.ndim > 1:
                raise ValueError(
                    "tensor_split: a tensor indices_or_sections must be a zero-dimensional or one-dimensional long "
                    f"tensor on the CPU, but got a {given.ndim}-dimensional {dtype_name(given)} tensor."
                )
            given = given.tolist()
        if not isinstance(given, (int, list, tuple)):
            raise ValueError("indices_or_sections must be an integer, a list of integers, or a 1D tensor of integers")
        axis = self._dim(dim)
        length = self._batch_size[axis]
        if isinstance(given, int):
            if given <= 0:
                raise ValueError(f"tensor_split: number of sections must be greater than 0, but was {given}")
            small, more = divmod(length, given)
            return self.split([small + (i < more) for i in range(given)], axis)
        bounds = [0]
        for index in map(operator.index, given):
            bounds.append(min(max(index + length if index < 0 else index, 0), length))
        bounds.append(length)
        return tuple(self.narrow(axis, start, max(stop - start, 0)) for start, stop in itertools.pairwise(bounds))

    # More dimensions

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Return a TensorDict expanded to a batch size, whose dimensions lose their names."""
        size = self._batch_size
        target = list(shape)
        extra = len(target) - len(size)
        target = [size[i - extra] if n == -1 and i >= extra else n for i, n in enumerate(target)]
        if extra < 0 or any(n not in (1, target[extra + i]) for i, n in enumerate(size)):
            raise RuntimeError(f"a batch of size {list(size)} cannot be broadcast to {list(shape)}")
        count = len(size)
        return self._batch_op(lambda leaf: expand(leaf, (*target, *leaf.shape[count:])), target, None)._forget_names()

    @undone
    def atleast_1d(self) -> Self:
        """Return a TensorDict with one batch dimension at least; new ones come first and have length 1."""
        return self._at_least(1)

    @undone
    def atleast_2d(self) -> Self:
        """Return a TensorDict with two batch dimensions at least; new ones come first and have length 1."""
        return self._at_least(2)

    @undone
    def atleast_3d(self) -> Self:
        """Return a TensorDict with three batch dimensions at least; new ones come first and have length 1."""
        return self._at_least(3)

    def _at_least(self, dims: int) -> Self:
        result = self
        while len(result._batch_size) < dims:
            result = result.unsqueeze(0)
        return result


def _dims(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(map(operator.index, value))
