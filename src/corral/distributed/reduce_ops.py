"""How reductions combine elements: :class:`ReduceOp`, and for which dtypes each of its members has a meaning."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np

from corral.arrays.buffers import NATIVE
from corral.arrays.libraries import to_numpy
from corral.arrays.parts import dtype_of
from corral.backends.base import Reduction

__all__ = ["ReduceOp", "check_reducible", "reduce_op", "reduction_of"]

_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_BITWISE = frozenset({"BAND", "BOR", "BXOR"})
_ORDERED = frozenset({"MIN", "MAX"})
_BITS = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))
_COMPLEX = frozenset(("complex64", "complex128"))


class ReduceOp:
    """How the elements of several ranks are combined into one.

    The members are ``SUM``, ``AVG``, ``PRODUCT``, ``MIN``, ``MAX``, ``BAND``, ``BOR``, ``BXOR`` and ``PREMUL_SUM``; the
    last one multiplies this rank's elements by a factor first, and is given it by a call: ``ReduceOp.PREMUL_SUM(0.5)``.
    Bitwise reductions are for bool and integers; complex numbers have no ``MIN`` and ``MAX``; bool is logical, as
    with torch (``SUM`` is "any", ``PRODUCT`` is "all").

    Functions that take one take ``torch.distributed.ReduceOp`` as well.

    Parameters
    ----------
    op
        A member, of this class or of torch's.

    Attributes
    ----------
    name : str
        The member's name.
    value : int
        Its number, the same as in torch.

    Examples
    --------
    >>> ReduceOp.MAX, ReduceOp(ReduceOp.MAX) == ReduceOp.MAX
    (<ReduceOp.MAX: 4>, True)
    >>> ReduceOp.PREMUL_SUM(np.array([0.5])).factor
    0.5
    """

    __slots__ = ("_factor", "_native", "_reduction", "name", "value")

    SUM: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]
    PREMUL_SUM: ClassVar[ReduceOp]
    RedOpType: ClassVar[type[ReduceOp]]
    __members__: ClassVar[dict[str, ReduceOp]] = {}

    name: str
    value: int
    _factor: float | None
    _native: frozenset[np.dtype[Any]]
    """NumPy dtypes that the engine reads as they are and that this has a meaning for."""
    _reduction: Reduction
    """What the backend is told."""

    def __init__(self, op: Any) -> None:
        same = _known(op)
        if same is None:
            raise TypeError(f"ReduceOp: expected a member such as ReduceOp.SUM, got {op!r}")
        self._set(same.name, same._factor)

    def _set(self, name: str, factor: float | None = None) -> ReduceOp:
        self.name = name
        self.value = _NAMES.index(name)
        self._factor = factor
        self._reduction = Reduction(name.lower(), 1.0 if factor is None else factor)  # type: ignore[arg-type]
        self._native = frozenset() if self._lacks_factor() else frozenset(d for d in NATIVE if self._means(d.name))
        return self

    def _lacks_factor(self) -> bool:
        return self.name == "PREMUL_SUM" and self._factor is None

    def _means(self, dtype: str) -> bool:
        if self.name in _BITWISE:
            return dtype in _BITS
        return dtype in _BITS or dtype in _FLOATS or (dtype in _COMPLEX and self.name not in _ORDERED)

    def __call__(self, factor: Any) -> ReduceOp:
        """Return ``PREMUL_SUM`` with a factor: a real number, or an array of one."""
        if self.name != "PREMUL_SUM":
            raise RuntimeError(f"Only PREMUL_SUM supports calling with a factor, got ReduceOp.{self.name}")
        return ReduceOp.__new__(ReduceOp)._set("PREMUL_SUM", _number(factor))

    @property
    def op(self) -> ReduceOp:
        """The member, without a factor."""
        return ReduceOp.__members__[self.name]

    @property
    def factor(self) -> float:
        """The factor of a ``PREMUL_SUM``."""
        if self._factor is None:
            raise RuntimeError(f"Only PREMUL_SUM with a factor supports accessing factor, not {self!r}")
        return self._factor

    def __int__(self) -> int:
        return self.value

    def __eq__(self, other: object) -> bool:
        if type(other) is not ReduceOp:
            same = _known(other)
            if same is None:
                return NotImplemented
            other = same
        return self.name == other.name and self._factor == other._factor

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        factor = "" if self._factor is None else f"({self._factor})"
        return f"<ReduceOp.{self.name}{factor}: {self.value}>"

    def __str__(self) -> str:
        return f"ReduceOp.{self.name}" if self._factor is None else f"ReduceOp.{self.name}({self._factor})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._factor is None:
            return getattr, (ReduceOp, self.name)
        return ReduceOp.PREMUL_SUM, (self._factor,)


for _name in _NAMES:
    ReduceOp.__members__[_name] = ReduceOp.__new__(ReduceOp)._set(_name)
    setattr(ReduceOp, _name, ReduceOp.__members__[_name])
ReduceOp.RedOpType = ReduceOp


class _DeprecatedReduceOp:
    """Torch's old name for :class:`ReduceOp`."""

    def __getattr__(self, name: str) -> Any:
        if name != "__members__" and name not in ReduceOp.__members__:
            raise AttributeError(f"reduce_op has no member {name!r}")
        warnings.warn(
            "`corral.distributed.reduce_op` is deprecated, please use `corral.distributed.ReduceOp` instead",
            FutureWarning,
            stacklevel=2,
        )
        return getattr(ReduceOp, name)


reduce_op = _DeprecatedReduceOp()


def reduction_of(op: Any, operation: str) -> ReduceOp:
    """Return the `ReduceOp` that a caller's argument is, complete with its factor.

    Raises
    ------
    TypeError
        If it is neither one of this library nor one of torch.
    ValueError
        If it is ``PREMUL_SUM`` without a factor.
    """
    known = _known(op)
    if known is None:
        raise TypeError(
            f"{operation}: op must be a member of corral.distributed.ReduceOp (or torch's), such as ReduceOp.SUM, "
            f"got {op!r}"
        )
    if known._lacks_factor():
        raise ValueError(f"{operation}: {known} needs a factor: pass {known}(0.5), for instance")
    return known


def check_reducible(array: Any, op: ReduceOp, operation: str, name: str = "tensor") -> None:
    """Raise `TypeError` if a reduction has no meaning for an array's dtype.

    Examples
    --------
    >>> check_reducible(np.zeros(2), ReduceOp.BAND, "all_reduce")
    Traceback (most recent call last):
        ...
    TypeError: all_reduce: ReduceOp.BAND has no meaning for float64, the dtype of tensor: it is for bool and integers
    """
    dtype = dtype_of(array)
    if op._means(dtype):
        return
    if op.name in _BITWISE:
        hint = "it is for bool and integers"
    elif dtype in _COMPLEX:
        hint = "complex numbers have SUM, AVG, PRODUCT and PREMUL_SUM"
    elif dtype.startswith("float8"):
        hint = "8-bit floats cannot be reduced; cast them to float16 or float32"
    else:
        hint = "reductions are for bool, integers, floats of 16 to 64 bits, complex64 and complex128"
    raise TypeError(f"{operation}: {op} has no meaning for {dtype}, the dtype of {name}: {hint}")


def _known(op: Any) -> ReduceOp | None:
    """Return an op of this library, or the same one as torch's; ``None`` for anything else."""
    kind = type(op)
    if kind is ReduceOp:
        return op  # type: ignore[no-any-return]
    if not kind.__module__.startswith("torch.") or kind.__name__ not in ("ReduceOp", "RedOpType"):
        return None
    if kind.__name__ == "RedOpType":
        return ReduceOp.__members__.get(op.name)
    member = ReduceOp.__members__.get(op.op.name)
    return member(op.factor) if member is ReduceOp.PREMUL_SUM else member


def _number(factor: Any) -> float:
    if not isinstance(factor, (int, float)):
        try:
            array = to_numpy(factor)
        except (TypeError, ValueError):
            array = np.empty(0)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise TypeError(f"ReduceOp.PREMUL_SUM: the factor must be a real number or an array of one, got {factor!r}")
        factor = array.reshape(())[()]
    return float(factor)
