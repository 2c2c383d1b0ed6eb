"""All leaves of a TensorDict as the columns of one array, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from corral.arrays.libraries import dtype_name
from corral.arrays.operations import cat, contiguous, device_of, permute, reshape
from corral.tensordict.base import Base
from corral.tensordict.keys import Keys
from corral.tensordict.nested_keys import NestedKey
from corral.tensordict.sizes import Size

__all__ = ["PackLayout", "Packing"]


class PackLayout:
    """Which columns of a packed array are which leaf.

    Attributes
    ----------
    keys : tuple of str or tuple of str
        The keys of the leaves, in the order of the columns.
    shapes : tuple of Size
        Their shapes behind the batch.
    dim : int
        The dimension of the columns, counted from the end.
    offsets : tuple of int
        The first column of each leaf.
    numel : int
        The number of columns.
    """

    def __init__(self, td: Any, dim: int) -> None:
        count = len(td._batch_size)
        leaves = list(td.items(True, True, sort=True))
        self.keys: tuple[NestedKey, ...] = tuple(key for key, _ in leaves)
        self.shapes = tuple(Size(leaf.shape[count:]) for _, leaf in leaves)
        self.dim = dim
        ends = [0]
        for shape in self.shapes:
            ends.append(ends[-1] + math.prod(shape))
        self.offsets, self.numel = tuple(ends[:-1]), ends[-1]
        # Nested TensorDicts with their batch dimensions behind those of the packed one, and their names.
        self._nested = tuple(
            (key, node._batch_size[count:], node._names)
            for key, node in td.items(True)
            if isinstance(node, Base) and not node._holds_objects
        )
        self._kind, self._device = type(td), td._device

    def unpack(self, packed: Any) -> Any:
        """Return the TensorDict of a packed array, whose batch may be another one.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> columns, layout = TensorDict(a=np.arange(2), b=np.ones((2, 2)).astype(int), batch_size=[2]).pack()
        >>> layout.unpack(columns[:1])["b"]
        array([[1, 1]])
        """
        axis = self.dim + len(packed.shape)
        if axis < 0 or packed.shape[axis] != self.numel:
            raise ValueError(
                f"unpack: the array of shape {list(packed.shape)} does not have {self.numel} columns along dimension "
                f"{self.dim}"
            )
        columns = _moved(packed, axis, len(packed.shape) - 1)
        size = Size(columns.shape[:-1])
        td = self._kind._make({}, size, self._device)
        for key, more, _ in self._nested:
            td._put(key, td._make({}, Size((*size, *more)), self._device))
        for key, shape, start in zip(self.keys, self.shapes, self.offsets, strict=True):
            td._put(key, reshape(columns[..., start : start + math.prod(shape)], (*size, *shape)))
        return td

    def __repr__(self) -> str:
        return f"PackLayout(keys={self.keys}, shapes={self.shapes}, dim={self.dim}, numel={self.numel})"


class Packing(Keys):
    """Lay leaves side by side."""

    __slots__ = ()

    def pack(self, dim: int = -1, *, layout: PackLayout | None = None) -> tuple[Any, PackLayout]:
        """Return one array with all leaves as columns, sorted by their keys, and the layout that takes it apart.

        Parameters
        ----------
        dim : int
            Where the dimension of the columns is in the result.
        layout : PackLayout, optional
            One whose order to follow; the leaves must be those that it knows.

        Raises
        ------
        TypeError
            If the leaves' dtypes or libraries differ, or an entry is no array.
        KeyError
            If the layout knows other leaves.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> columns, layout = TensorDict(b=np.arange(2), a=np.ones((2, 2)).astype(int), batch_size=[2]).pack()
        >>> columns
        array([[1, 1, 0],
               [1, 1, 1]])
        >>> layout.keys, layout.offsets
        (('a', 'b'), (0, 2))
        """
        count = len(self._batch_size)
        if not -count - 1 <= dim <= count:
            raise IndexError(f"dim {dim} is out of range for packing a TensorDict with {count} batch dimensions.")
        for key, entry in self.items(True):
            if isinstance(entry, Base) and entry._holds_objects:
                raise TypeError(
                    f"Cannot pack {key!r}, which is no array: filter_non_tensor_data() leaves out such entries"
                )
        made = PackLayout(self, dim if dim < 0 else dim - count - 1)
        used = made if layout is None else layout
        if set(made.keys) != set(used.keys):
            raise KeyError(f"The leaves differ from the keys of the layout: {list(made.keys)} and {list(used.keys)}.")
        if layout is not None and (
            used.dim != made.dim
            or dict(zip(used.keys, used.shapes, strict=True)) != dict(zip(made.keys, made.shapes, strict=True))
        ):
            raise ValueError(f"The leaves do not have the shapes and the dim of the layout: {made} and {used}.")
        leaves = [self.get(key) for key in used.keys]
        kinds = {(dtype_name(leaf), device_of(leaf)) for leaf in leaves}
        if len(kinds) > 1:
            raise TypeError(f"Cannot pack leaves of different dtypes or devices: {sorted(kinds)}. Cast them first.")
        size = self._batch_size
        columns = [reshape(leaf, (*size, math.prod(shape))) for leaf, shape in zip(leaves, used.shapes, strict=True)]
        if not columns:
            return np.zeros((*size, 0), "float32"), used
        joined = cat(columns, count)
        return contiguous(_moved(joined, count, used.dim + count + 1)), used


def _moved(x: Any, source: int, target: int) -> Any:
    order = [d for d in range(len(x.shape)) if d != source]
    order.insert(target, source)
    return permute(x, order)
