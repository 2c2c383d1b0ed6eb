"""Arrays as values inside an object: a description, and their bytes in the order of their indices."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from corral.wire.errors import CodecError

__all__ = ["describe", "is_value", "rebuild"]

_DTYPE = re.compile(r"[<>|=]?[?a-zA-Z][0-9]{0,9}(\[[0-9]{0,9}[a-zA-Z]{1,3}\])?")
_NUMPY, _TORCH, _JAX, _CUPY = "numpy", "torch", "jax", "cupy"
_MAX_DIMENSIONS = 64


def is_value(obj: Any) -> bool:
    """Whether an object is an array, or a NumPy scalar, of elements that have a place in the format."""
    if isinstance(obj, np.ndarray | np.generic):
        return type(obj).__module__ == "numpy" and not obj.dtype.hasobject
    library = _library(obj)
    if library == _TORCH:
        torch = sys.modules["torch"]
        return type(obj) in (torch.Tensor, torch.nn.Parameter) and obj.layout == torch.strided and not obj.is_quantized
    return library in (_JAX, _CUPY)


def _library(obj: Any) -> str:
    root = type(obj).__module__.partition(".")[0]
    if root == "jaxlib":
        root = _JAX
    return root if root in (_TORCH, _JAX, _CUPY) and root in sys.modules else ""


def describe(obj: Any) -> tuple[list[Any], memoryview]:
    """Return a description of an array for `rebuild`, and its bytes."""
    library = _library(obj) or _NUMPY
    if library == _TORCH:
        torch = sys.modules["torch"]
        flat = obj.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
        return [library, str(obj.dtype).removeprefix("torch."), list(obj.shape)], data
    array = obj.get() if library == _CUPY else np.asarray(obj)
    dtype = array.dtype
    name: Any = dtype.str if dtype.isbuiltin == 1 or dtype.kind in "SUMmV" else dtype.name
    if dtype.kind in "mM":
        name = dtype.str
    if dtype.names is not None:
        name = _fields(dtype)
    # A copy only where the elements do not lie in order.
    flat = np.ascontiguousarray(array).reshape(-1)
    data = memoryview(flat.view(np.uint8)) if flat.nbytes else memoryview(b"")
    return [library, name, list(array.shape)], data


def _fields(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Describe a structured dtype in plain data: names, formats, offsets and size."""
    assert dtype.names is not None and dtype.fields is not None
    parts = [dtype.fields[name] for name in dtype.names]
    formats = []
    for part in parts:
        inner, shape = part[0].base, part[0].shape
        formats.append([_fields(inner) if inner.names is not None else inner.str, list(shape)])
    return {
        "names": list(dtype.names),
        "formats": formats,
        "offsets": [part[1] for part in parts],
        "itemsize": dtype.itemsize,
    }


def _dtype(name: Any, depth: int = 0) -> np.dtype[Any]:
    if type(name) is dict:
        if depth > 8:
            raise CodecError("the message holds a dtype that is nested too deeply")
        formats = [(_dtype(kind, depth + 1), tuple(shape)) for kind, shape in name["formats"]]
        fields = {key: name[key] for key in ("names", "offsets", "itemsize")}
        dtype = np.dtype({**fields, "formats": formats})
    elif type(name) is str and _DTYPE.fullmatch(name):
        dtype = np.dtype(name)
    elif name in ("bfloat16",) or (type(name) is str and name.startswith("float8_")):
        try:
            import ml_dtypes
        except ImportError:
            raise CodecError(f"an array of {name!r:.60} needs the package ml_dtypes here") from None
        dtype = np.dtype(getattr(ml_dtypes, name))
    else:
        raise CodecError(f"the message holds an array of an unknown dtype {name!r:.60}")
    if dtype.hasobject:
        raise CodecError("the message holds an array of Python objects")
    return dtype


def rebuild(description: Any, data: memoryview) -> Any:
    """Make an array of its own memory from what `describe` returned.

    The array is of its sender's library if that is loaded here, and NumPy's otherwise.
    """
    library, name, shape = description
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise CodecError("the message holds an array of an impossible shape")
    count = 1
    for n in shape:
        count *= n
    if library == _TORCH and library in sys.modules:
        return _rebuild_tensor(name, shape, count, data)
    dtype = _dtype(_numpy_name(name) if library == _TORCH else name)
    if count * dtype.itemsize != data.nbytes:
        raise CodecError("the message holds an array whose bytes do not fit its shape")
    array: Any = np.ndarray(shape, dtype, bytearray(data)) if data.nbytes else np.empty(shape, dtype)
    if library in (_JAX, _CUPY) and library in sys.modules:
        module = sys.modules["cupy"] if library == _CUPY else __import__("jax.numpy").numpy
        array = module.asarray(array)
    return array


def _numpy_name(name: Any) -> Any:
    if type(name) is str and (name == "bfloat16" or name.startswith("float8_")):
        return name
    if type(name) is str and re.fullmatch(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)", name):
        return np.dtype(name).str
    raise CodecError(f"the message holds a tensor of {name!r:.60}, which NumPy does not have")


def _rebuild_tensor(name: Any, shape: list[int], count: int, data: memoryview) -> Any:
    torch = sys.modules["torch"]
    dtype = getattr(torch, name, None) if type(name) is str else None
    if not isinstance(dtype, torch.dtype):
        raise CodecError(f"the message holds a tensor of an unknown dtype {name!r:.60}")
    if count * dtype.itemsize != data.nbytes:
        raise CodecError("the message holds a tensor whose bytes do not fit its shape")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
