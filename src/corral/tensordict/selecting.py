"""Take elements of the batch by indices and masks."""

from __future__ import annotations

from typing import Any, Self

from corral.arrays.gathering import gather
from corral.arrays.indexing import normalize, take
from corral.arrays.libraries import library_of, to_numpy
from corral.arrays.operations import as_array, expand
from corral.tensordict.shaping import Shaping
from corral.tensordict.sizes import Size

__all__ = ["Selecting"]


class Selecting(Shaping):
    """Gather rows, and select them."""

    __slots__ = ()

    def gather(self, dim: int, index: Any, out: Any = None, *, inplace: bool = False) -> Self:
        """Return rows whose places along one batch dimension are given, as ``torch.gather``.

        Parameters
        ----------
        dim : int
            The batch dimension.
        index : array of int
            The places; its shape is the batch size of the result.
        out : TensorDict, optional
            Write the result into this one.
        inplace : bool
            Give this TensorDict the gathered leaves.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(4) * 10, batch_size=[4]).gather(0, np.array([3, 0]))["a"]
        array([30,  0])
        """
        if inplace:
            self._refuse_inplace("gather")
        index = as_array(index)
        size = self._batch_size
        if inplace and out is not None:
            raise ValueError("`out` and `inplace=True` are mutually exclusive in gather.")
        if inplace and len(index.shape) != len(size):
            raise NotImplementedError(
                "gather(inplace=True) requires index.ndim == self.batch_dims so the result keeps the same number of "
                f"batch dims; got index.ndim={len(index.shape)} and batch_dims={len(size)}. Use inplace=False instead."
            )
        if not inplace and not len(index):
            raise RuntimeError("Cannot use torch.gather with an empty index")
        if not -len(size) <= dim < len(size):
            raise RuntimeError(f"Cannot gather tensordict with shape {size} along dim {dim}.")
        axis = dim % len(size)
        if any(n > m for d, (n, m) in enumerate(zip(index.shape, size, strict=False)) if d != axis):
            raise RuntimeError(
                f"Size does not match: the index of shape {list(index.shape)} is larger than the batch {list(size)} "
                f"apart from dimension {axis}"
            )
        if out is None:
            result = self._gathered(axis, index, size, None)
            return self._rebind(result) if inplace else result
        self._gathered(axis, index, size, out)
        return out  # type: ignore[no-any-return]

    def _gathered(self, dim: int, index: Any, size: Size, out: Any) -> Self:
        """Return what the leaves of `out` have become, or new ones."""
        source: dict[str, Any] = {}
        smaller = tuple(min(n, m) for n, m in zip(index.shape, size, strict=False))
        for key, value in self._source.items():
            target = None if out is None else out._require(key)
            extended = index.reshape((*index.shape, *(1,) * (len(value.shape) - len(index.shape))))
            shape = [*smaller, *value.shape[len(smaller) :]]
            shape[dim] = extended.shape[dim]
            extended = expand(extended, shape)
            if isinstance(value, Selecting):
                source[key] = value._gathered(dim, extended, value._batch_size, target)
            else:
                source[key] = gather(value, dim, extended, target)
                if target is not None and library_of(target) == "jax":
                    out._source[key] = source[key]
        names = self._names if len(index.shape) == len(self._batch_size) else None
        return self._make(source, Size(index.shape), self._device, names)

    def masked_select(self, mask: Any, *, inplace: bool = False) -> Self:
        """Return the rows where a mask of the batch is true, along one dimension.

        Parameters
        ----------
        mask : array of bool
            Its dimensions are the first ones of the batch.
        inplace : bool
            Give this TensorDict the selected leaves.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(4).reshape(2, 2), batch_size=[2, 2])
        >>> td.masked_select(np.array([[True, False], [True, True]]))["a"]
        array([0, 2, 3])
        """
        if inplace:
            self._refuse_inplace("masked_select")
        mask = as_array(mask)
        count = int(to_numpy(mask).sum())
        size = Size((count, *self._batch_size[len(mask.shape) :]))
        while len(mask.shape) > len(self._batch_size) and mask.shape[-1] == 1:
            mask = mask.reshape(tuple(mask.shape[:-1]))
        result = self._make({}, size, self._device)
        for key, value in self._source.items():
            result._put(key, self._masked(value, mask))
        if not inplace:
            return result
        return self._rebind(result)._forget_names()

    @staticmethod
    def _masked(value: Any, mask: Any) -> Any:
        return value[mask] if isinstance(value, Selecting) else take(value, normalize(mask, len(value.shape)))
