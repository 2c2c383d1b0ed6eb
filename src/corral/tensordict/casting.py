"""Cast all leaves to another dtype, by the names that torch gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeAlias, TypeVar

from corral.arrays.operations import cast
from corral.tensordict.base import Base
from corral.tensordict.leaves import slots

__all__ = ["Casting"]

T = TypeVar("T", bound=Base)
Filter: TypeAlias = Callable[[Any, Any], Any]


def _cast_to(name: str, dtype: str) -> Callable[..., Any]:
    def function(self: T, *, cast_filter: Filter | None = None) -> T:
        return _cast(self, dtype, cast_filter, keep_lock=True)

    function.__name__ = name
    function.__qualname__ = f"Casting.{name}"
    function.__doc__ = f"Return a TensorDict with all leaves of dtype {dtype}, or those that `cast_filter` chooses."
    return function


def _quantized(name: str) -> Callable[..., Any]:
    def function(self: T, *, cast_filter: Filter | None = None) -> T:
        if any(True for _ in self._leaves()):
            raise RuntimeError(
                f"{name}: a quantized dtype needs a scale and a zero point, which a cast does not have: use "
                f"td.apply(lambda x: torch.quantize_per_tensor(x, scale, zero_point, torch.{name}))"
            )
        return self

    function.__name__ = name
    function.__qualname__ = f"Casting.{name}"
    function.__doc__ = f"Raise RuntimeError: dtype {name} needs more than a cast."
    return function


class Casting(Base):
    """Casts. A leaf that has the dtype already is the same array in the result, which is locked as the TensorDict is.

    Each takes ``cast_filter=``, a function of a leaf's nested key, which is a tuple, and of the leaf: leaves for which
    it is false stay as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(a=np.arange(2), b={"c": np.zeros(2)})
    >>> td.half()["a"].dtype, td.float(cast_filter=lambda key, leaf: key == ("b", "c"))["a"].dtype
    (dtype('float16'), dtype('int64'))
    """

    __slots__ = ()

    float, float32 = _cast_to("float", "float32"), _cast_to("float32", "float32")
    double, float64 = _cast_to("double", "float64"), _cast_to("float64", "float64")
    half, float16 = _cast_to("half", "float16"), _cast_to("float16", "float16")
    bfloat16 = _cast_to("bfloat16", "bfloat16")
    int, int32 = _cast_to("int", "int32"), _cast_to("int32", "int32")
    long, int64 = _cast_to("long", "int64"), _cast_to("int64", "int64")
    int8, int16 = _cast_to("int8", "int8"), _cast_to("int16", "int16")
    uint8, uint16 = _cast_to("uint8", "uint8"), _cast_to("uint16", "uint16")
    uint32, uint64 = _cast_to("uint32", "uint32"), _cast_to("uint64", "uint64")
    bool = _cast_to("bool", "bool")
    complex32 = _cast_to("complex32", "complex32")
    complex64, complex128 = _cast_to("complex64", "complex64"), _cast_to("complex128", "complex128")
    qint8, qint32 = _quantized("qint8"), _quantized("qint32")
    quint8, quint4x2 = _quantized("quint8"), _quantized("quint4x2")

    def type(self, dst_type: Any, *, cast_filter: Filter | None = None) -> Self:
        """Return a TensorDict with all leaves of one dtype, a library's or the name of one; never locked."""
        return _cast(self, dst_type, cast_filter, keep_lock=False)

    def is_floating_point(self) -> Any:
        """Return whether all leaves are of floats, which complex numbers are not."""
        return all(_is_float(leaf) for leaf in self._leaves())


def _cast(td: T, dtype: Any, cast_filter: Filter | None, keep_lock: Any) -> T:
    result = td._map(lambda leaf: leaf)
    for parent, path in slots(result):
        leaf = parent._source[path[-1]]
        if cast_filter is None or cast_filter(path, leaf):
            parent._source[path[-1]] = cast(leaf, dtype)
    if keep_lock and td._locked:
        result._lock(True)
    return result


def _is_float(leaf: Any) -> Any:
    kind = getattr(leaf.dtype, "kind", None)
    return leaf.dtype.is_floating_point if kind is None else kind == "f" or (kind == "V" and "float" in str(leaf.dtype))
