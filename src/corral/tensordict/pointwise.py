"""Arithmetic, comparison and reduction of all leaves at once."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from corral.arrays.libraries import convert, copy_into, library_of, namespace_of
from corral.arrays.operations import fill_like
from corral.tensordict.base import Base, Size
from corral.tensordict.names import after_index

__all__ = ["Pointwise"]

Binary = Callable[[Any, Any], Any]
_SCALARS = (bool, int, float, complex)


def _pair(leaf: Any, other: Any) -> Any:
    """Return the second operand in the library of the first."""
    library = library_of(leaf)
    if isinstance(other, _SCALARS) or library_of(other) == library:
        return other
    if library == "torch":
        return convert(other, "torch", leaf.device)
    return convert(other, library)


def _aligned(leaf: Any, other: Any, batch_dims: int) -> Any:
    """Return an array of the batch's shape with the leaf's further dimensions, so that the batches meet."""
    if isinstance(other, _SCALARS):
        return other
    other = _pair(leaf, other)
    extra = len(leaf.shape) - batch_dims
    if len(other.shape) == 0 or not extra:
        return other
    return other.reshape((*other.shape, *(1,) * extra))


class Pointwise(Base):
    """Operators. The other operand is a number, an array that fits the batch, or a TensorDict of the same keys.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(a=np.arange(3), b={"c": np.ones(3)}, batch_size=[3])
    >>> (2 * td + td)["a"]
    array([0, 3, 6])
    >>> (td == td).all()
    True
    """

    __slots__ = ()

    def _binary(self, function: Binary, other: Any, default: Any = None) -> Self:
        if isinstance(other, (Base, Mapping)):
            return self._zip(function, other)
        if library_of(other) == "other" and not isinstance(other, _SCALARS):
            return NotImplemented  # type: ignore[no-any-return]
        count = len(self._batch_size)
        return self._map(lambda leaf: _array(function(leaf, _aligned(leaf, other, count)), leaf))

    def _unary(self, function: Callable[[Any], Any]) -> Self:
        return self._map(lambda leaf: _array(function(leaf), leaf))

    def _zip(self, function: Binary, other: Any) -> Self:
        entries = other._source if isinstance(other, Base) else other
        if entries.keys() != self._source.keys():
            raise KeyError(
                f"the sets of keys in the two tensordicts differ: {sorted(self._source)} and {sorted(entries)}"
            )
        source: dict[str, Any] = {}
        for key, leaf in self._source.items():
            value = entries[key]
            if isinstance(leaf, Pointwise):
                source[key] = leaf._binary(function, value)
            elif isinstance(value, (Base, Mapping)):
                raise KeyError(f"the entry {key!r} is a leaf on one side and a TensorDict on the other")
            else:
                source[key] = _array(function(leaf, _pair(leaf, value)), leaf)
        return self._make(source, self._batch_size, self._device, self._names)

    def _inplace(self, function: Binary, other: Any) -> Self:
        result = self._binary(function, other)
        if result is NotImplemented:
            return result
        return self._write_back(result)

    def _write_back(self, result: Base) -> Self:
        for key, leaf in self._source.items():
            value = result._source[key]
            if isinstance(leaf, Pointwise):
                leaf._write_back(value)
            elif library_of(leaf) == "jax":
                self._source[key] = value
            else:
                _refuse_lossy(key, leaf, value)
                copy_into(leaf, value)
        return self

    # Arithmetic

    def __add__(self, other: Any) -> Self:
        return self._binary(operator.add, other)

    def __radd__(self, other: Any) -> Self:
        return self._binary(_swapped(operator.add), other)

    def __iadd__(self, other: Any) -> Self:
        return self._inplace(operator.add, other)

    def __sub__(self, other: Any) -> Self:
        return self._binary(operator.sub, other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary(_swapped(operator.sub), other)

    def __isub__(self, other: Any) -> Self:
        return self._inplace(operator.sub, other)

    def __mul__(self, other: Any) -> Self:
        return self._binary(operator.mul, other)

    def __rmul__(self, other: Any) -> Self:
        return self._binary(_swapped(operator.mul), other)

    def __imul__(self, other: Any) -> Self:
        return self._inplace(operator.mul, other)

    def __truediv__(self, other: Any) -> Self:
        return self._binary(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary(_swapped(operator.truediv), other)

    def __itruediv__(self, other: Any) -> Self:
        return self._inplace(operator.truediv, other)

    def __pow__(self, other: Any) -> Self:
        return self._binary(operator.pow, other)

    def __rpow__(self, other: Any) -> Self:
        return self._binary(_swapped(operator.pow), other)

    def __ipow__(self, other: Any) -> Self:
        return self._inplace(operator.pow, other)

    def __mod__(self, other: Any) -> Self:
        return self._binary(operator.mod, other)

    def __floordiv__(self, other: Any) -> Self:
        return self._binary(operator.floordiv, other)

    def __and__(self, other: Any) -> Self:
        return self._binary(operator.and_, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Self:
        return self._binary(operator.or_, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Self:
        return self._binary(operator.xor, other)

    __rxor__ = __xor__

    def __neg__(self) -> Self:
        return self._unary(operator.neg)

    def __abs__(self) -> Self:
        return self._unary(abs)

    def __invert__(self) -> Self:
        return self._unary(operator.invert)

    # Comparison

    def __eq__(self, other: object) -> Any:
        result = self._binary(operator.eq, other)
        return False if result is NotImplemented else result

    def __ne__(self, other: object) -> Any:
        result = self._binary(operator.ne, other)
        return True if result is NotImplemented else result

    def __lt__(self, other: Any) -> Self:
        return self._binary(operator.lt, other)

    def __le__(self, other: Any) -> Self:
        return self._binary(operator.le, other)

    def __gt__(self, other: Any) -> Self:
        return self._binary(operator.gt, other)

    def __ge__(self, other: Any) -> Self:
        return self._binary(operator.ge, other)

    __hash__ = None  # type: ignore[assignment]
    # NumPy's arrays on the left leave the operation to `__radd__` and its kin.
    __array_ufunc__ = None

    def __bool__(self) -> bool:
        raise RuntimeError(
            "Converting a tensordict to boolean value is not permitted. Use len(td.keys()) to test for keys, "
            "td.is_empty() to test for leaves, or (a == b).all() / .any() to reduce a comparison."
        )

    # Reduction

    def all(self, dim: int | None = None) -> Any:
        """Return whether all elements are true, or a TensorDict of that along one batch dimension."""
        if dim is None:
            return all(bool(_namespace(leaf).all(leaf)) for leaf in self._leaves())
        return self._reduce("all", dim)

    def any(self, dim: int | None = None) -> Any:
        """Return whether any element is true, or a TensorDict of that along one batch dimension."""
        if dim is None:
            return any(bool(_namespace(leaf).any(leaf)) for leaf in self._leaves())
        return self._reduce("any", dim)

    def sum(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the sums of the leaves, over everything or along one batch dimension."""
        return self._reduce("sum", dim, keepdim)

    def mean(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the means of the leaves, over everything or along one batch dimension."""
        return self._reduce("mean", dim, keepdim)

    def _reduce(self, name: str, dim: int | None, keepdim: bool = False) -> Self:
        count = len(self._batch_size)
        if dim is None:
            flat = self._map(lambda leaf: _array(getattr(_namespace(leaf), name)(leaf), leaf))
            flat._drop_batch()
            return flat
        if not -count <= dim < count:
            raise RuntimeError(
                "dim must be greater than or equal to -tensordict.batch_dims and smaller than tensordict.batch_dims"
            )
        axis = dim % count
        size = self._batch_size
        target = Size((*size[:axis], *((1,) if keepdim else ()), *size[axis + 1 :]))

        def reduce(leaf: Any) -> Any:
            reduced = getattr(_namespace(leaf), name)(leaf, axis=axis, keepdims=keepdim)
            return _array(reduced, leaf)

        keeps = name in ("sum", "mean") and self._names is not None
        names = (
            (after_index(self._names, (*(slice(None),) * axis, 0)) if not keepdim else self._names) if keeps else None
        )
        return self._map(reduce, target, names)

    def _drop_batch(self) -> None:
        self._batch_size, self._names = Size(), None
        for value in self._source.values():
            if isinstance(value, Pointwise):
                value._drop_batch()

    # Filling

    def zero_(self) -> Self:
        """Set all elements to zero, in place."""
        return self.fill_values_(0)

    def fill_values_(self, value: Any) -> Self:
        """Set all elements to one number, in place."""
        self._write_back(self._map(lambda leaf: fill_like(leaf, value)))
        return self

    def fill_(self, key: Any, value: Any) -> Self:
        """Set all elements of one entry to one number, in place."""
        entry = self._require(key)  # type: ignore[attr-defined]
        if isinstance(entry, Pointwise):
            entry.fill_values_(value)
        else:
            copy_into(entry, fill_like(entry, value))
        return self

    def numel_total(self) -> int:
        """Return the number of elements of all leaves together."""
        return sum(math.prod(leaf.shape) for leaf in self._leaves())


def _swapped(function: Binary) -> Binary:
    return lambda leaf, other: function(other, leaf)


def _namespace(leaf: Any) -> Any:
    return np if type(leaf) is np.ndarray else namespace_of(leaf)


def _array(value: Any, leaf: Any) -> Any:
    """Return a result as an array: NumPy makes scalars of what it does to 0-d arrays."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def _refuse_lossy(key: str, leaf: Any, value: Any) -> None:
    """Refuse to write floats into integers, as both torch and NumPy do for their own arrays."""
    if tuple(leaf.shape) != tuple(value.shape):
        raise RuntimeError(
            f"the result of shape {Size(value.shape)} does not fit the entry {key!r} of {Size(leaf.shape)}"
        )
    if library_of(leaf) == "torch":
        fits = sys.modules["torch"].can_cast(value.dtype, leaf.dtype)
    else:
        fits = library_of(leaf) != "numpy" or np.can_cast(value.dtype, leaf.dtype, "same_kind")
    if not fits:
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {leaf.dtype} of the entry {key!r}"
        )
