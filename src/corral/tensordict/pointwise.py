"""Operators: arithmetic and comparison of all leaves at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Self

from corral.arrays.arithmetic import SCALARS, matching
from corral.arrays.libraries import library_of
from corral.arrays.storing import as_result
from corral.tensordict.arithmetic import Arithmetic, broadcast, operands_of
from corral.tensordict.base import Base
from corral.tensordict.leaves import leaves_of, rebuilt
from corral.tensordict.sizes import Size

__all__ = ["Pointwise"]

Binary = Callable[[Any, Any], Any]


class Pointwise(Arithmetic):
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

    def _operand(self, other: Any) -> Any:
        """Return an operand of the kinds that methods take; `NotImplemented` for what is none."""
        if isinstance(other, (Base, *SCALARS)):
            return other
        if isinstance(other, Mapping):
            operand = self._make({}, Size(), self._device)
            operand._fill(other)
            return operand
        return NotImplemented if library_of(other) == "other" else other

    def _operate(self, name: str, other: Any) -> Any:
        operand = self._operand(other)
        return operand if operand is NotImplemented else self._combine(name, operand)

    def _operate_(self, name: str, other: Any) -> Any:
        operand = self._operand(other)
        return operand if operand is NotImplemented else self._combine_(name, operand)

    def _binary(self, function: Binary, other: Any) -> Any:
        """Apply a function to corresponding elements, with all nested TensorDicts, and without locks."""
        operand = self._operand(other)
        if operand is NotImplemented:
            return operand
        td, (operand,), _ = broadcast(self, function.__name__, operand)
        if isinstance(operand, Base):
            return td._zip(function, operand)
        if isinstance(operand, SCALARS):
            return td._map(lambda leaf: as_result(function(leaf, matching(leaf, operand))))
        theirs = operands_of(td, operand)
        found = {path: as_result(function(leaf, matching(leaf, theirs[path]))) for path, leaf in leaves_of(td).items()}
        result = rebuilt(td, found)
        if result._locked:
            result._lock(False)
        return result

    def _unnamed(self, function: Binary, other: Any) -> Any:
        """Do the same; as in tensordict, names of dimensions are left out unless the operand is an array of a batch."""
        result = self._binary(function, other)
        if not isinstance(result, Base):  # refused, or an array: of which objects are equal
            return result
        forgets = isinstance(other, (Base, Mapping, *SCALARS)) or not other.shape
        return result._forget_names() if forgets else result

    def _zip(self, function: Binary, other: Base) -> Self:
        entries = other._source
        if entries.keys() != self._source.keys():
            raise KeyError(
                f"the sets of keys in the two tensordicts differ: {sorted(self._source)} and {sorted(entries)}"
            )
        source: dict[str, Any] = {}
        for key, leaf in self._source.items():
            value = entries[key]
            if isinstance(leaf, Pointwise):
                source[key] = leaf._binary(function, value)
            elif isinstance(value, Base):
                raise KeyError(f"the entry {key!r} is a leaf on one side and a TensorDict on the other")
            else:
                source[key] = as_result(function(leaf, matching(leaf, value)))
        self._match_library(source)
        return self._make(source, self._batch_size, self._device, self._names)

    def _match_library(self, source: dict[str, Any]) -> None:
        """Turn comparisons of objects into arrays of the library that the leaves are of."""
        for key, entry in self._source.items():
            if isinstance(entry, Base) and entry._holds_objects and not isinstance(source[key], Base):
                like = next((leaf for leaf in self._leaves() if library_of(leaf) != "numpy"), None)
                source[key] = source[key] if like is None else matching(like, source[key])

    # Arithmetic

    def __add__(self, other: Any) -> Self:
        result: Self = self._operate("add", other)
        return result

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Self:
        result: Self = self._operate_("add", other)
        return result

    def __sub__(self, other: Any) -> Self:
        result: Self = self._operate("sub", other)
        return result

    def __rsub__(self, other: Any) -> Self:
        result: Self = self._operate("rsub", other)
        return result

    def __isub__(self, other: Any) -> Self:
        result: Self = self._operate_("sub", other)
        return result

    def __mul__(self, other: Any) -> Self:
        result: Self = self._operate("mul", other)
        return result

    __rmul__ = __mul__

    def __imul__(self, other: Any) -> Self:
        result: Self = self._operate_("mul", other)
        return result

    def __truediv__(self, other: Any) -> Self:
        result: Self = self._operate("div", other)
        return result

    def __rtruediv__(self, other: Any) -> Self:
        result: Self = self.reciprocal()._operate("mul", other)  # type: ignore[attr-defined]
        return result

    def __itruediv__(self, other: Any) -> Self:
        result: Self = self._operate_("div", other)
        return result

    def __pow__(self, other: Any) -> Self:
        result: Self = self._operate("pow", other)
        return result

    def __rpow__(self, other: Any) -> Self:
        result: Self = self._binary(_reflected_pow, other)
        return result

    def __ipow__(self, other: Any) -> Self:
        result: Self = self._operate_("pow", other)
        return result

    def __mod__(self, other: Any) -> Self:
        result: Self = self._operate("mod", other)
        return result

    def __and__(self, other: Any) -> Self:
        result: Self = self._operate("bitwise_and", other)
        return result

    __rand__ = __and__

    def __floordiv__(self, other: Any) -> Self:
        result: Self = self._binary(operator.floordiv, other)
        return result

    def __or__(self, other: Any) -> Self:
        result: Self = self._unnamed(operator.or_, other)
        return result

    __ror__ = __or__

    def __xor__(self, other: Any) -> Self:
        result: Self = self._unnamed(operator.xor, other)
        return result

    __rxor__ = __xor__

    def __neg__(self) -> Self:
        result: Self = self.neg()  # type: ignore[attr-defined]
        return result

    def __abs__(self) -> Self:
        result: Self = self.abs()  # type: ignore[attr-defined]
        return result

    def __invert__(self) -> Self:
        result = self._map(lambda leaf: as_result(~leaf))
        if self._locked:
            result._lock(True)
        return result

    # Comparison

    def __eq__(self, other: object) -> Any:
        result = self._unnamed(operator.eq, other)
        return False if result is NotImplemented else result

    def __ne__(self, other: object) -> Any:
        result = self._unnamed(operator.ne, other)
        return True if result is NotImplemented else result

    def __lt__(self, other: Any) -> Self:
        result: Self = self._unnamed(operator.lt, other)
        return result

    def __le__(self, other: Any) -> Self:
        result: Self = self._unnamed(operator.le, other)
        return result

    def __gt__(self, other: Any) -> Self:
        result: Self = self._unnamed(operator.gt, other)
        return result

    def __ge__(self, other: Any) -> Self:
        result: Self = self._unnamed(operator.ge, other)
        return result

    __hash__ = None  # type: ignore[assignment]
    # NumPy's arrays on the left leave the operation to `__radd__` and its kin.
    __array_ufunc__ = None

    def __bool__(self) -> bool:
        raise RuntimeError(
            "Converting a tensordict to boolean value is not permitted. Use len(td.keys()) to test for keys, "
            "td.is_empty() to test for leaves, or (a == b).all() / .any() to reduce a comparison."
        )


def _reflected_pow(leaf: Any, other: Any) -> Any:
    return other**leaf
