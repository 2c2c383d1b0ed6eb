"""Turn any array into a buffer that an engine reads or writes where it lies.

The native core reads plain NumPy arrays and CPU torch tensors directly. Everything else comes through here:
an array in another form of the same bytes (``datetime64``, the 8-bit floats of ``ml_dtypes``, records), an
array with no such form (big-endian, sparse, on a GPU), which is staged in host memory, and objects that only
have the buffer protocol or DLPack.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from corral.arrays.dtypes import number_of
from corral.arrays.overlap import Extent, is_nested, overlaps_itself, share_memory

try:
    from corral._core import lie_apart
except ImportError:  # other systems do without
    lie_apart = None  # type: ignore[assignment]

__all__ = ["NATIVE", "check_distinct", "readable", "register_torch", "sharing", "writable"]

Buffer: TypeAlias = Any
Finish: TypeAlias = Callable[[], None]

NATIVE: frozenset[np.dtype[Any]] = frozenset(np.dtype(code) for code in "?bBhHiIlLqQefdFD")
"""NumPy dtypes whose arrays the core reads and writes as they are."""

_HOST_DEVICES = frozenset({1, 3, 11, 13})  # DLPack's numbers: CPU, CUDA and ROCm pinned, CUDA managed
_UNSIGNED = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


class Handler(NamedTuple):
    """How arrays of one type become buffers; every function takes the array and the argument's name."""

    read: Callable[[Any, str], Buffer]
    write: Callable[[Any, str], tuple[Buffer, Finish | None]]
    extent: Callable[[Any], Extent]


_handlers: dict[type, Handler] = {}


def readable(array: Any, name: str = "tensor") -> Buffer:
    """Return a buffer of an array's values.

    Parameters
    ----------
    array
        Any array, or object with the buffer protocol or DLPack. Its memory must not change while the engine
        reads it.
    name
        The caller's argument, for error messages.

    Raises
    ------
    TypeError
        If it is not an array, or one of Python objects.

    Examples
    --------
    >>> a = np.arange(6.0).reshape(2, 3).T
    >>> readable(a) is a
    True
    """
    kind = type(array)
    if kind is np.ndarray and array.dtype in NATIVE:
        return array
    handler = _handlers.get(kind)
    if handler is None:
        handler = _find(array, name)
    return handler.read(array, name)


def writable(array: Any, name: str = "tensor") -> tuple[Buffer, Finish | None]:
    """Return a buffer to receive into, and what to call once it is filled.

    Parameters
    ----------
    array
        The array to fill, in place.
    name
        The caller's argument, for error messages.

    Returns
    -------
    buffer
        Either the array's own memory, or host memory that stands in for it.
    finish : callable or None
        Moves the values from the stand-in into the array; ``None`` where the array's own memory is written.

    Raises
    ------
    ValueError
        If the array is read-only, or two of its elements share memory.
    TypeError
        If it is not an array, is one of Python objects, or can never be written, as those of JAX.

    Examples
    --------
    >>> a = np.zeros(3, ">i4")
    >>> buffer, finish = writable(a)
    >>> buffer[:] = [1, 2, 3]
    >>> finish()
    >>> a.tolist()
    [1, 2, 3]
    """
    kind = type(array)
    if kind is np.ndarray and array.flags.carray and array.dtype in NATIVE:
        return array, None
    handler = _handlers.get(kind)
    if handler is None:
        handler = _find(array, name)
    return handler.write(array, name)


def check_distinct(arrays: Sequence[Any], name: str) -> None:
    """Raise `ValueError` if two of the arrays, all of them to be received into, share memory.

    Examples
    --------
    >>> a = np.zeros((2, 3))
    >>> check_distinct([a[0], a[1]], "gather_list")
    >>> check_distinct([a, a[1]], "gather_list")
    Traceback (most recent call last):
        ...
    ValueError: gather_list[0] and gather_list[1] share memory, so that one would overwrite the other
    """
    if len(arrays) < 2:
        return
    first = arrays[0]
    if len(arrays) == 2 and first is not arrays[1] and _owns(first) and _owns(arrays[1]):
        return
    if all(map(_owns, arrays)) and len(set(map(id, arrays))) == len(arrays):
        return  # arrays that own their memory have it for themselves
    if lie_apart is not None and lie_apart([*arrays]):
        return
    found = sharing(arrays, name)
    if found is not None:
        raise ValueError(
            f"{name}[{found[0]}] and {name}[{found[1]}] share memory, so that one would overwrite the other"
        )


def extent_of(array: Any, name: str = "tensor") -> Extent:
    """Return where an array's elements lie."""
    return _handler(array, name).extent(array)


def sharing(arrays: Sequence[Any], name: str = "arrays") -> tuple[int, int] | None:
    """Return the positions of two of the arrays, called `name`, that share memory; ``None`` if there are none.

    Examples
    --------
    >>> a = np.zeros((2, 3))
    >>> sharing([a[:, 0], a[:, 1], a[1]]), sharing([a[:, 0], a[:, 1]])
    ((0, 2), None)
    """
    return share_memory([extent_of(a, f"{name}[{i}]") for i, a in enumerate(arrays)])


def register_torch() -> bool:
    """Tell the core how to read torch's tensors, if torch is imported; return whether it is."""
    return _register_torch() if "torch" in sys.modules else False


@functools.cache
def _register_torch() -> bool:
    from corral.arrays import torch_buffers

    torch_buffers.register(_handlers)
    return True


def wrap(view: np.ndarray[Any, Any] | Any, dtype_name: str) -> Buffer:
    """Return the core's buffer for memory whose dtype the buffer protocol cannot say."""
    from corral import _core

    return _core.Buffer(view, number_of(dtype_name))


def describe(array: Any) -> str:
    """Say in an error message what an array is."""
    kind = f"{type(array).__module__.partition('.')[0]}.{type(array).__qualname__}"
    try:
        return f"{kind} of shape {tuple(array.shape)} and dtype {array.dtype}"
    except (AttributeError, TypeError):
        return kind


def refuse_read_only(array: Any, name: str) -> ValueError:
    """Return the error for an array that must be written but is read-only."""
    return ValueError(f"{name} cannot be received into: it is read-only ({describe(array)})")


def refuse_overlap(array: Any, name: str) -> ValueError:
    """Return the error for an array that must be written but has elements in one place."""
    return ValueError(
        f"{name} cannot be received into: some of its elements share memory, as in an expanded view ({describe(array)})"
    )


def _owns(array: Any) -> bool:
    return type(array) is np.ndarray and array.base is None and array.flags.forc


def _handler(array: Any, name: str) -> Handler:
    return _handlers.get(type(array)) or _find(array, name)


def _find(array: Any, name: str) -> Handler:
    """Choose the handler for a type met for the first time, and remember it."""
    kind = type(array)
    if issubclass(kind, np.ndarray):
        handler = _numpy
    elif register_torch() and isinstance(array, sys.modules["torch"].Tensor):
        from corral.arrays import torch_buffers

        handler = _handlers.get(kind) or torch_buffers.subclass_handler
    elif kind.__module__.partition(".")[0] in ("jaxlib", "jax") and hasattr(array, "addressable_shards"):
        handler = _jax
    elif kind.__module__.partition(".")[0] == "cupy" and hasattr(array, "__cuda_array_interface__"):
        handler = _cupy
    else:
        try:
            memoryview(array).release()
        except TypeError:
            if not hasattr(array, "__dlpack__"):
                raise TypeError(
                    f"{name} must be an array (NumPy, PyTorch, JAX, CuPy, or an object with the buffer "
                    "protocol "
                    f"or DLPack), but got {kind.__module__}.{kind.__qualname__}"
                ) from None
            handler = _dlpack
        else:
            handler = _protocol
    _handlers[kind] = handler
    return handler


# NumPy ---------------------------------------------------------------------------------------------------


def _numpy_read(array: np.ndarray[Any, Any], name: str) -> Buffer:
    array = _plain_numpy(array, name)
    if array.dtype in NATIVE:
        return array
    native = _native_dtype(array.dtype, name)
    return _numpy_bits(array if native is None else array.astype(native))


def _numpy_write(array: np.ndarray[Any, Any], name: str) -> tuple[Buffer, Finish | None]:
    plain = _plain_numpy(array, name)
    if not plain.flags.writeable:
        raise refuse_read_only(array, name)
    nested = plain.flags.forc or is_nested(plain.shape, plain.strides, plain.itemsize)
    if not nested and overlaps_itself(plain.shape, plain.strides, plain.itemsize):
        raise refuse_overlap(array, name)
    native = None if plain.dtype in NATIVE else _native_dtype(plain.dtype, name)
    if nested and native is None:
        return _numpy_bits(plain), None
    staging = np.empty(plain.shape, native or plain.dtype)

    def finish() -> None:
        plain[...] = staging

    return _numpy_bits(staging), finish


def _numpy_extent(array: np.ndarray[Any, Any]) -> Extent:
    address: int = array.__array_interface__["data"][0]
    return Extent("cpu", address, array.shape, array.strides, array.itemsize)


def _plain_numpy(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    if type(array) is np.ndarray:
        return array
    if isinstance(array, np.ma.MaskedArray) and array.mask is not np.ma.nomask and np.any(array.mask):
        raise TypeError(f"{name} has masked elements, which have no values: pass its .data or .filled()")
    return array.view(np.ndarray)


@functools.lru_cache(maxsize=256)
def _native_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any] | None:
    """Return the dtype in this machine's byte order; ``None`` if it already is."""
    if dtype.hasobject:
        raise TypeError(
            f"{name} has dtype {dtype}, whose elements are Python objects: send them with the object "
            "collectives, such as gather_object"
        )
    native = dtype.newbyteorder("=")
    return None if native == dtype else native


@functools.lru_cache(maxsize=256)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    if dtype.names is None:
        return dtype.name
    return f"record{np.lib.format.dtype_to_descr(dtype)!r}"


def _numpy_bits(array: np.ndarray[Any, Any]) -> Buffer:
    """Return an array in native byte order as a buffer, in a form whose elements have the same width."""
    dtype = array.dtype
    if dtype in NATIVE:
        return array
    width = dtype.itemsize
    if width == 0:
        return wrap(np.empty(0, np.uint8), _numpy_name(dtype))
    view: np.ndarray[Any, Any]
    if width in _UNSIGNED:
        view = array.view(_UNSIGNED[width])
    elif width == 16:
        view = array.view(np.complex128)
    else:  # each element as a row of bytes: a width that no number has
        view = array.view(np.dtype([("bytes", np.uint8, (width,))]))["bytes"]
    return wrap(view, _numpy_name(dtype))


_numpy = Handler(_numpy_read, _numpy_write, _numpy_extent)
_handlers[np.ndarray] = _numpy


# Other libraries -----------------------------------------------------------------------------------------


def _jax_read(array: Any, name: str) -> Buffer:
    return readable(np.asarray(array), name)


def _jax_write(array: Any, name: str) -> tuple[Buffer, Finish | None]:
    raise TypeError(
        f"{name} cannot be received into: a jax.Array never changes. Receive into a NumPy array and pass it "
        "to "
        "jax.numpy.asarray"
    )


def _jax_extent(array: Any) -> Extent:
    return _numpy_extent(np.asarray(array))


def _pinned(like: Any) -> np.ndarray[Any, Any]:
    import cupyx

    staging: np.ndarray[Any, Any] = cupyx.empty_pinned(like.shape, like.dtype)
    return staging


def _cupy_read(array: Any, name: str) -> Buffer:
    staging = _pinned(array)
    array.get(out=staging) if array.flags.c_contiguous else staging.__setitem__(..., array.get())
    return readable(staging, name)


def _cupy_write(array: Any, name: str) -> tuple[Buffer, Finish | None]:
    if overlaps_itself(array.shape, array.strides, array.itemsize):
        raise refuse_overlap(array, name)
    staging = _pinned(array)

    def finish() -> None:
        cupy = sys.modules["cupy"]
        array[...] = cupy.asarray(staging)
        cupy.cuda.get_current_stream().synchronize()

    buffer, _ = writable(staging, name)
    return buffer, finish


def _cupy_extent(array: Any) -> Extent:
    return Extent(f"cuda:{array.device.id}", array.data.ptr, array.shape, array.strides, array.itemsize)


def _protocol_array(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(memoryview(array))


def _protocol_write(array: Any, name: str) -> tuple[Buffer, Finish | None]:
    host = _protocol_array(array)
    if not host.flags.writeable:
        raise refuse_read_only(array, name)
    return writable(host, name)


def host_view(array: Any, name: str) -> Any:
    """Return an object of no library as an array of one that is here and can hold it, in the same memory."""
    if not hasattr(array, "__dlpack__"):
        return _protocol_array(array)
    on_host = array.__dlpack_device__()[0] in _HOST_DEVICES
    if on_host:
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError):
            pass  # a dtype that NumPy lacks: torch may have it
    for module in ("torch", "cupy"):
        if module in sys.modules:
            try:
                return sys.modules[module].from_dlpack(array)
            except (BufferError, RuntimeError, TypeError, ValueError):
                continue
    raise TypeError(f"{name} ({describe(array)}) is on a device or has a dtype that no imported array library can read")


def _dlpack_write(array: Any, name: str) -> tuple[Buffer, Finish | None]:
    view = host_view(array, name)
    if type(view) is np.ndarray and not view.flags.writeable and "torch" in sys.modules:
        # NumPy takes an array whose producer does not say "writable" (DLPack before 1.0) for read-only.
        view = sys.modules["torch"].from_dlpack(array)
    if type(view) is np.ndarray and not view.flags.writeable:
        raise refuse_read_only(array, name)
    return writable(view, name)


def _dlpack_extent(array: Any) -> Extent:
    view = host_view(array, "array")
    return _handler(view, "array").extent(view)


_jax = Handler(_jax_read, _jax_write, _jax_extent)
_cupy = Handler(_cupy_read, _cupy_write, _cupy_extent)
_protocol = Handler(
    lambda array, name: readable(_protocol_array(array), name),
    _protocol_write,
    lambda array: _numpy_extent(_protocol_array(array)),
)
_dlpack = Handler(
    lambda array, name: readable(host_view(array, name), name),
    _dlpack_write,
    _dlpack_extent,
)
