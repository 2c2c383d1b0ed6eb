"""Arrays as values inside an object: a description, and their memory."""

from __future__ import annotations

import math
import re
import sys
from typing import Any, cast

import numpy as np

from corral.arrays.dtypes import EXTENDED, NARROW
from corral.wire.errors import CodecError

__all__ = [
    "INLINE",
    "build_numpy",
    "build_torch",
    "checked_shape",
    "describe_numpy",
    "describe_torch",
    "dtype_form",
    "dtype_from",
    "is_numeric",
    "is_plain",
    "numpy_form",
]

_DTYPE = re.compile(r"[<>|=]?[?a-zA-Z][0-9]{0,9}(\[[0-9]{0,9}[a-zA-Z]{1,3}\])?")
_FORTRAN, _GRAD, _PARAMETER = 1, 2, 4
_EXTENDED = NARROW.union(EXTENDED)
_MOST_DIMENSIONS = 64

INLINE = 512
"""Bytes of memory that cost less inside a header than beside it."""

# What is asked for most often: looking for it in these takes a tenth of working it out.
_FORMS: dict[np.dtype[Any], str] = {np.dtype(c): np.dtype(c).str for c in "?bBhHiIlLqQefdFD"}
_LAST_NUMBER = np.dtype("G").num  # of the dtypes that come after it, some hold text
_DTYPES = {form: dtype for dtype, form in _FORMS.items()}


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether an array's memory holds its values."""
    return not dtype.hasobject and dtype.kind != "T"


def dtype_form(dtype: np.dtype[Any]) -> Any:
    """Return a dtype in plain data."""
    known = _FORMS.get(dtype)
    if known is not None:
        return known
    if dtype.name in _EXTENDED and dtype.isbuiltin == 2:
        return dtype.name
    if dtype.names is None and dtype.subdtype is None:
        return dtype.str
    return _tuples_to_lists(np.lib.format.dtype_to_descr(dtype))


def _tuples_to_lists(form: Any) -> Any:
    # Tuples and lists differ in a descr, so each comes with a mark.
    if isinstance(form, list):
        return ["l", *map(_tuples_to_lists, form)]
    if isinstance(form, tuple):
        return ["t", *map(_tuples_to_lists, form)]
    return form


def _lists_to_tuples(form: Any) -> Any:
    if type(form) is list:
        parts = [_lists_to_tuples(part) for part in form[1:]]
        return parts if form[0] == "l" else tuple(parts)
    return form


def dtype_from(form: Any) -> np.dtype[Any]:
    """Invert `dtype_form`; raise `CodecError` for what is none, or holds Python objects."""
    try:
        if type(form) is str:
            known = _DTYPES.get(form)
            if known is not None:
                return known
            if form in _EXTENDED:
                import ml_dtypes

                return cast("np.dtype[Any]", np.dtype(getattr(ml_dtypes, form)))
            if not _DTYPE.fullmatch(form):
                raise TypeError(f"{form!r:.60} is no dtype")
            dtype = np.dtype(form)
        elif type(form) is list:
            dtype = np.lib.format.descr_to_dtype(_lists_to_tuples(form))
        else:
            raise TypeError(f"{type(form).__name__} is no dtype")
    except ImportError:
        raise CodecError(f"an array of {form} needs torch, or the package ml_dtypes, to be received") from None
    except Exception as error:
        raise CodecError(f"malformed dtype: {error}") from None
    if not is_plain(dtype):
        raise CodecError("malformed array: its elements are Python objects")
    if dtype.kind in "mMV":
        _check_units(dtype)
    return dtype


def _check_units(dtype: np.dtype[Any]) -> None:
    """Raise `CodecError` for times that are counted in units of nothing: NumPy divides by what they count."""
    for field, *_ in (dtype.fields or {}).values():
        _check_units(field)
    if dtype.subdtype is not None:
        _check_units(dtype.subdtype[0])
    if dtype.kind in "mM" and np.datetime_data(dtype)[1] < 1:
        raise CodecError("malformed dtype: times in units of nothing")


def describe_numpy(array: np.ndarray[Any, Any]) -> tuple[Any, list[int], int, bytes | memoryview]:
    """Return the dtype, shape, flags and memory of an array of values; little memory is copied."""
    dtype = array.dtype
    form = _FORMS.get(dtype) or dtype_form(dtype)
    flags = array.flags
    fortran = flags.fnc
    if array.nbytes <= INLINE:
        return form, [*array.shape], _FORTRAN if fortran else 0, array.tobytes("F" if fortran else "C")
    array = array.view(np.ndarray)
    flat = array.ravel(order="F" if fortran else "C")
    return form, [*array.shape], _FORTRAN if fortran else 0, memoryview(flat.view(np.uint8))


def checked_shape(shape: Any) -> list[int]:
    """Return a shape, or raise `CodecError` if it is none."""
    if type(shape) is not list or len(shape) > _MOST_DIMENSIONS:
        raise CodecError("malformed shape")
    for size in shape:
        if type(size) is not int or size < 0:
            raise CodecError("malformed shape")
    return shape


def _writable(memory: Any) -> Any:
    """Return memory that the new array may keep and change."""
    view = memoryview(memory)
    return bytearray(view) if view.readonly else view


def build_numpy(form: Any, shape: Any, flags: Any, memory: Any) -> np.ndarray[Any, Any]:
    """Return the array that was described."""
    dtype = dtype_from(form)
    expected = math.prod(checked_shape(shape)) * dtype.itemsize
    view = memoryview(memory)
    if view.nbytes != expected:
        raise CodecError(f"malformed array: {view.nbytes} bytes for {expected}")
    order: Any = "F" if flags == _FORTRAN else "C"
    try:
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, bytearray(view) if view.readonly else view, order=order)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CodecError(f"malformed array: {error}") from None
    if dtype.num > _LAST_NUMBER:
        _check_text(array)
    return array if array.flags.aligned else array.copy(order)


def _check_text(array: np.ndarray[Any, Any]) -> None:
    """Raise `CodecError` for text beyond Unicode: Python's strings must not hold it."""
    if array.dtype.names:
        for name in array.dtype.names:
            _check_text(array[name])
    elif array.dtype.kind == "U" and array.nbytes:
        codes = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if codes.max() > sys.maxunicode:
            raise CodecError("malformed array: text that is not Unicode")


def describe_torch(tensor: Any) -> tuple[str, list[int], int, bytes | memoryview]:
    """Return the dtype, shape, flags and memory of a strided tensor."""
    torch = sys.modules["torch"]
    flags = (_GRAD if tensor.requires_grad else 0) | (_PARAMETER if type(tensor) is torch.nn.Parameter else 0)
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    try:
        flat = plain.contiguous().reshape(-1).view(torch.uint8)
    except NotImplementedError:  # torch has dtypes that it cannot copy, but as their bytes
        flat = plain.unsqueeze(-1).view(torch.uint8).reshape(-1)
    memory = memoryview(flat.numpy() if plain.numel() else b"")
    return str(plain.dtype).removeprefix("torch."), list(plain.shape), flags, memory


def build_torch(name: Any, shape: Any, flags: Any, memory: Any) -> Any:
    """Return the tensor that was described; without torch, the NumPy array of its values."""
    torch = sys.modules.get("torch")
    if type(name) is not str or type(flags) is not int:
        raise CodecError("malformed tensor")
    if torch is None:
        return build_numpy(numpy_form(name), shape, 0, memory)
    dtype = vars(torch).get(name)  # getattr would import modules that torch loads when they are asked for
    if not isinstance(dtype, torch.dtype) or name.startswith(("qint", "quint")):
        raise CodecError(f"no such dtype: torch.{name[:40]}")
    checked_shape(shape)
    count = math.prod(shape)
    if memoryview(memory).nbytes != count * dtype.itemsize:
        raise CodecError("malformed tensor: its memory does not fit its shape")
    try:
        if count:
            flat = torch.frombuffer(_writable(memory), dtype=torch.uint8)
            if flat.data_ptr() % dtype.itemsize:
                flat = flat.clone()
            tensor = flat.view(dtype).reshape(shape)
        else:
            tensor = torch.empty(shape, dtype=dtype)
        if flags & _PARAMETER:
            return torch.nn.Parameter(tensor, requires_grad=bool(flags & _GRAD))
        return tensor.requires_grad_() if flags & _GRAD else tensor
    except (RuntimeError, ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise CodecError(f"malformed tensor: {error}") from None


def is_numeric(name: str) -> bool:
    """Whether a dtype of this name holds numbers, the same ones in every library that has it."""
    return name in _SHARED or name in _EXTENDED


def numpy_form(name: str) -> str:
    """Return NumPy's dtype, in plain data, for a name of torch's."""
    if name in _EXTENDED:
        return name
    if name not in _SHARED:
        raise CodecError(f"NumPy has no dtype like torch.{name[:40]}")
    return np.dtype(name).str


_SHARED = frozenset(
    {
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    }
)
