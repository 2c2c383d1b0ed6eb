"""Tell array libraries apart and move values between them, without importing any that is not in use."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from corral.arrays.dtypes import EXTENDED

__all__ = [
    "Library",
    "convert",
    "copy_into",
    "dtype_name",
    "is_array",
    "is_traced",
    "library_of",
    "namespace_of",
    "to_numpy",
]

Library: TypeAlias = Literal["numpy", "torch", "jax", "cupy", "other"]

_libraries: dict[type, Library] = {np.ndarray: "numpy"}
_names: dict[Any, str] = {}
# The integer type of the same width, which torch has in all versions.
_EXTENDED = {name: "uint8" if bits == 8 else "int16" for name, (_, bits) in EXTENDED.items()}


def library_of(x: Any) -> Library:
    """Return the name of the library that an array belongs to; ``"other"`` for anything else.

    Examples
    --------
    >>> import numpy as np
    >>> library_of(np.zeros(3)), library_of([0, 0])
    ('numpy', 'other')
    """
    kind = type(x)
    library = _libraries.get(kind)
    if library is None:
        library = _libraries[kind] = _classify(kind)
    return library


def _classify(kind: type) -> Library:
    if issubclass(kind, (np.ndarray, np.generic)):
        return "numpy"
    modules = sys.modules
    if "torch" in modules and issubclass(kind, modules["torch"].Tensor):
        return "torch"
    if "jax" in modules and issubclass(kind, (modules["jax"].Array, modules["jax"].core.Tracer)):
        return "jax"  # a tracer stands for an array where a function is compiled
    if "cupy" in modules and issubclass(kind, modules["cupy"].ndarray):
        return "cupy"
    return "other"


def is_array(x: Any) -> bool:
    """Whether `x` is an array: of a known library, or readable by DLPack or the buffer protocol.

    Strings of bytes are values, not arrays.

    Examples
    --------
    >>> import array
    >>> is_array(array.array("d", [1.0])), is_array([1.0]), is_array(b"abc")
    (True, False, False)
    """
    if library_of(x) != "other":
        return True
    if isinstance(x, (bytes, type)):
        return False
    if hasattr(x, "__dlpack__"):
        return True
    try:
        memoryview(x).release()
    except TypeError:
        return False
    return True


def is_traced(x: Any) -> bool:
    """Whether `x` stands for an array of JAX in a function that is being compiled: its values are not known.

    Examples
    --------
    >>> import numpy as np
    >>> is_traced(np.zeros(2))
    False
    """
    return library_of(x) == "jax" and isinstance(x, sys.modules["jax"].core.Tracer)


def namespace_of(x: Any) -> ModuleType:
    """Return the array-API namespace of an array's library (NumPy's for arrays of no library).

    Examples
    --------
    >>> import numpy as np
    >>> namespace_of(np.zeros(2)).concat([np.zeros(2), np.ones(1)])
    array([0., 0., 1.])
    """
    import array_api_compat

    namespace: ModuleType = array_api_compat.array_namespace(np.empty(0) if library_of(x) == "other" else x)
    return namespace


def dtype_name(x: Any) -> str:
    """Return the name of an array's dtype, the same for every library.

    Examples
    --------
    >>> import numpy as np
    >>> dtype_name(np.zeros(2, ">f4")), dtype_name(np.zeros(2, "M8[ns]"))
    ('float32', 'datetime64[ns]')
    """
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        dtype = to_numpy(x).dtype
    name = _names.get(dtype)
    if name is None:
        if isinstance(dtype, np.dtype):
            name = str(dtype) if dtype.names else dtype.name
        else:
            name = str(dtype).rpartition(".")[2]
        _names[dtype] = name
    return name


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return an array's values as a NumPy array in host memory, sharing its memory where that is possible.

    Examples
    --------
    >>> import array
    >>> to_numpy(array.array("d", [1.0, 2.0]))
    array([1., 2.])
    """
    if type(x) is np.ndarray:
        return x
    library = library_of(x)
    if library == "torch":
        return _torch_to_numpy(x)
    if library == "cupy":
        return np.asarray(x.get())
    if library == "other" and hasattr(x, "__dlpack__"):
        return np.from_dlpack(x)
    if is_traced(x):
        raise TypeError(
            f"the values of {x} are needed here, and a function that JAX compiles knows shapes and dtypes alone: do "
            "this outside of it, pass the array to it as a static argument, or as a NumPy array that it closes over"
        )
    return np.asarray(x)


def _torch_to_numpy(x: Any) -> np.ndarray[Any, Any]:
    x = x.detach()
    if x.layout is not sys.modules["torch"].strided:
        x = x.to_dense()
    name = dtype_name(x)
    if name not in _EXTENDED:
        array: np.ndarray[Any, Any] = x.cpu().resolve_conj().resolve_neg().numpy()
        return array
    try:
        import ml_dtypes
    except ImportError as error:
        raise TypeError(f"NumPy has no {name}: install ml_dtypes, or cast to float32 first") from error
    bits = x.cpu().view(getattr(sys.modules["torch"], _EXTENDED[name])).numpy()
    return np.asarray(bits).view(getattr(ml_dtypes, name))


def convert(x: Any, library: str, device: Any = None) -> Any:
    """Return an array as one of another library, sharing memory where that is possible.

    Parameters
    ----------
    x : array
        Any array, number or nested list of numbers.
    library : {"numpy", "torch", "jax", "cupy"}
        The library to convert to; it is imported if it was not.
    device : optional
        Where the result shall lie, in that library's terms.

    Examples
    --------
    >>> convert([1, 2], "numpy")
    array([1, 2])
    """
    if library == "numpy":
        if device is not None and str(device) != "cpu":
            raise ValueError(f"a NumPy array cannot lie on {device}: its only device is 'cpu'")
        return to_numpy(x)
    if library == "torch":
        tensor = _to_torch(x)
        return tensor if device is None else tensor.to(device)
    if library == "jax":
        import jax  # type: ignore[import-not-found, unused-ignore]

        array = x if library_of(x) == "jax" else jax.numpy.asarray(to_numpy(x))
        if device is None:
            return array
        return jax.device_put(array, jax.devices(device)[0] if isinstance(device, str) else device)
    if library == "cupy":
        import cupy  # type: ignore[import-not-found, unused-ignore]

        return cupy.asarray(x if library_of(x) == "cupy" else to_numpy(x))
    raise ValueError(f"library must be 'numpy', 'torch', 'jax' or 'cupy', not {library!r}")


def _to_torch(x: Any) -> Any:
    import torch

    if isinstance(x, torch.Tensor):
        return x
    if library_of(x) == "cupy":
        return torch.from_dlpack(x)
    array = to_numpy(x)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(step < 0 or step % array.itemsize for step in array.strides):
        array = array.copy()  # torch has neither read-only tensors nor such strides
    name = array.dtype.name
    if name in _EXTENDED and hasattr(torch, name):
        return torch.from_numpy(array.view(_EXTENDED[name])).view(getattr(torch, name))
    return torch.from_numpy(array)


def copy_into(dst: Any, src: Any) -> None:
    """Copy values into an array in place, casting and broadcasting, whatever the two libraries.

    Examples
    --------
    >>> import numpy as np
    >>> row = np.zeros(3, "int16")
    >>> copy_into(row, [1.7, 2.0, 3.0])
    >>> row
    array([1, 2, 3], dtype=int16)
    """
    library = library_of(dst)
    if library == "torch":
        torch = sys.modules["torch"]
        with torch.no_grad():
            dst.copy_(src if library_of(src) == "torch" else _to_torch(src))
        return
    if library == "jax":
        raise TypeError("a JAX array cannot be written in place: it is immutable")
    if library == "cupy":
        dst[...] = src if library_of(src) == "cupy" else convert(src, "cupy")
        return
    target = to_numpy(dst)
    if library_of(src) == "torch" and dtype_name(src) in _EXTENDED and dtype_name(src) != dtype_name(dst):
        src = src.detach().float()
    values = to_numpy(src)
    if values.dtype.kind in "fc" and target.dtype.kind in "iu":
        with np.errstate(invalid="ignore"):  # as torch, which casts NaN to an integer silently
            np.copyto(target, values, casting="unsafe")
    else:
        np.copyto(target, values, casting="unsafe")
