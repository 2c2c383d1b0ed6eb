"""Fill leaves, or choose and write their elements by a mask over the batch."""

from __future__ import annotations

import math
from typing import Any, Self

from corral.arrays.libraries import dtype_name
from corral.arrays.masking import fill_, masked_fill_, select
from corral.arrays.operations import cast, clone, fill_like
from corral.tensordict.base import Base
from corral.tensordict.leaves import rewrite

__all__ = ["Masking"]


class Masking(Base):
    """Write numbers into all elements, or into those that a mask chooses.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(a=np.arange(3), b={"c": np.ones((3, 2))}, batch_size=[3])
    >>> mask = np.array([True, False, True])
    >>> td.where(mask, -1)["a"], td.where(mask, td + 10)["a"]
    (array([ 0, -1,  2]), array([ 0, 11,  2]))
    >>> td.masked_fill(mask, 5)["a"], td.zero_()["a"]
    (array([5, 1, 5]), array([0, 0, 0]))
    """

    __slots__ = ()

    def where(
        self, condition: Any, other: Any, *, out: Any = None, pad: Any = None, update_batch_size: bool = False
    ) -> Any:
        """Return the elements where a condition is true, and others elsewhere, as `torch.where` does.

        Parameters
        ----------
        condition : array of bool
            Its dimensions are the first ones of the batch.
        other : number, array or TensorDict
            Where the elements are from that the condition does not choose.
        out : TensorDict, optional
            Gets the result, and is returned.
        pad : number, optional
            Stands for the entries that one of the two TensorDicts lacks.
        update_batch_size : bool
            Give `out` the batch size of the result.

        Raises
        ------
        KeyError
            If the keys of two TensorDicts differ, and there is no `pad`.
        RuntimeError
            If the condition is not an array of bool, or does not fit the leaves.
        """
        if isinstance(other, Base):
            if out is not None and (self._source or other._source):
                out._refuse_if_locked()
            return self._where(condition, other, out, pad)
        result = self._map(lambda leaf: select(condition, leaf, other))
        if out is not None:
            if update_batch_size:
                out.batch_size = ()
            out.update(result)
            if update_batch_size:
                out.batch_size = self._batch_size
            return out
        if self._locked:
            result._lock(True)
        return result

    def _where(self, condition: Any, other: Base, out: Any, pad: Any) -> Any:
        result = self._make({}, self._batch_size, self._device, self._names) if out is None else out
        theirs = other._source
        for key, leaf in list(self._source.items()):
            value = theirs.get(key)
            if isinstance(leaf, Masking):
                if value is None:
                    value = leaf._make({}, leaf._batch_size, leaf._device, leaf._names)
                result._put(key, leaf._where(condition, value, None if out is None else out._source.get(key), pad))
            else:
                result._put(key, select(condition, leaf, _padding(key, leaf, pad) if value is None else value))
        for key in [key for key in theirs if key not in self._source]:
            value = theirs[key]
            if isinstance(value, Masking):
                nothing = value._make({}, value._batch_size, value._device)
                result._put(key, value._where(_inverted(condition), nothing, None, pad))
            else:
                result._put(key, select(_inverted(condition), value, _padding(key, value, pad)))
        return result

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """Return the elements, with one value in the place of those that a mask over the batch chooses."""
        return self._map(clone).masked_fill_(mask, value)

    def masked_fill_(self, mask: Any, value: Any) -> Self:
        """Write one value into the elements that a mask over the batch chooses, in place."""
        return rewrite(self, lambda leaf, _: masked_fill_(leaf, mask, value))

    def zero_(self) -> Self:
        """Set all elements to zero, in place."""
        return self.fill_values_(0)

    def fill_values_(self, value: Any) -> Self:
        """Set all elements to one number, in place."""
        return rewrite(self, lambda leaf, _: fill_(leaf, value))

    def fill_(self, key: Any, value: Any) -> Self:
        """Set all elements of one entry to one number, in place."""
        entry = self._require(key)  # type: ignore[attr-defined]
        if isinstance(entry, Masking):
            entry.fill_values_(value)
            return self
        filled = fill_(entry, value)
        if filled is not entry:  # an immutable array's successor
            *path, last = key if isinstance(key, tuple) else (key,)
            parent = self._require(tuple(path)) if path else self  # type: ignore[attr-defined]
            parent._source[last] = filled
        return self

    def numel_total(self) -> int:
        """Return the number of elements of all leaves together."""
        return sum(math.prod(leaf.shape) for leaf in self._leaves())


def _inverted(condition: Any) -> Any:
    return ~condition if dtype_name(condition) == "bool" else condition  # `select` refuses the others


def _padding(key: str, leaf: Any, pad: Any) -> Any:
    if pad is None:
        raise KeyError(f"where: only one of the two TensorDicts has the entry {key!r}: give pad=, what stands for it")
    return cast(fill_like(leaf, pad), leaf.dtype)
