"""Make arrays in files, and tell them from others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from corral.arrays.libraries import Library, copy_into, dtype_name, library_of
from corral.arrays.mapped import create_file, dtype_of, file_of, map_file, place_in_file, same_place
from corral.arrays.operations import as_array, nbytes

__all__ = ["MemoryMappedTensor"]


class _Kind(type):
    def __instancecheck__(cls, x: Any) -> bool:
        library = library_of(x)
        if library not in ("numpy", "torch") or isinstance(x, np.generic):
            return False
        return file_of(x) is not None or _is_anonymous(x)


class MemoryMappedTensor(metaclass=_Kind):
    """Arrays whose memory is a file, or shared memory without a name.

    They are arrays of their libraries, a `numpy.memmap` or a `torch.Tensor`, with the file's name as their
    ``filename``; ``isinstance(x, MemoryMappedTensor)`` tells them, and views of them, from other arrays. A dtype of
    torch's makes a tensor, another one a NumPy array.

    Parameters
    ----------
    source : array or str
        The values, or the name of a file to map.
    dtype, shape : optional
        Those of a file.
    index : optional
        Take this part of the array.
    device : optional
        ``"cpu"`` or nothing.
    filename : path, optional
        The file to write the values to, which must not exist.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from corral import MemoryMappedTensor
    >>> with tempfile.TemporaryDirectory() as path:
    ...     x = MemoryMappedTensor.from_tensor(np.arange(4), filename=f"{path}/x")
    ...     x[0] = 7
    ...     isinstance(x[1:], MemoryMappedTensor)
    ...     MemoryMappedTensor.from_filename(f"{path}/x", "int64", (2, 2)).tolist()
    True
    [[7, 1], [2, 3]]
    """

    def __new__(
        cls,
        source: Any,
        *,
        dtype: Any = None,
        shape: Any = None,
        index: Any = None,
        device: Any = None,
        filename: str | Path | None = None,
    ) -> Any:
        _refuse_device(device)
        if isinstance(source, str):
            if filename is not None or dtype is None or shape is None:
                raise TypeError(
                    "MemoryMappedTensor: to map a file, give its name, a dtype and a shape, and no filename"
                )
            return cls.from_filename(source, dtype, shape, index)
        made = cls.from_tensor(as_array(source), filename=filename, shape=shape)
        return made if index is None else made[index]

    @classmethod
    def from_tensor(
        cls,
        input: Any,
        *,
        filename: str | Path | None = None,
        existsok: bool = False,
        copy_existing: bool = False,
        copy_data: bool = True,
        shape: Any = None,
    ) -> Any:
        """Return an array in a file with another array's values.

        Parameters
        ----------
        input : array
            The values.
        filename : path, optional
            The file; without it, the array lies in shared memory.
        existsok : bool
            Whether the file may exist; it is written over.
        copy_existing : bool
            Whether an array that lies in another file may be copied.
        copy_data : bool
            Write the values, and not only the shape and dtype.
        shape : sequence of int, optional
            Broadcast the values to this shape.
        """
        if library_of(input) == "torch" and input.requires_grad:
            raise RuntimeError("MemoryMappedTensor.from_tensor: the tensor requires grad: pass tensor.detach()")
        place = place_in_file(input)
        if filename is None and place is None and _is_anonymous(input):
            return input
        if filename is not None and same_place(input, Path(filename)):
            return input
        if place is not None and filename is not None and not copy_existing:
            raise RuntimeError(
                f"MemoryMappedTensor.from_tensor: the array lies in the file {place[0]} already: pass "
                f"copy_existing=True to copy it to {filename}"
            )
        library: Library = "torch" if library_of(input) == "torch" else "numpy"
        dims = tuple(input.shape if shape is None else shape)
        result = _blank(dtype_name(input), dims, library, filename, existsok)
        if copy_data:
            copy_into(result, input)
        return result

    @classmethod
    def from_filename(
        cls, filename: str | Path, dtype: Any, shape: Any, index: Any = None, mode: str | None = None
    ) -> Any:
        """Return the array that a file holds: see `corral.TensorDict.load_memmap` for `mode`."""
        if mode not in (None, "r", "r+"):
            raise ValueError(f"mode must be 'r', 'r+' or None, got {mode!r}")
        array = _mapped(filename, dtype, tuple(shape), mode)
        return array if index is None else array[index]

    @classmethod
    def empty(
        cls, *size: Any, shape: Any = None, dtype: Any = None, device: Any = None, filename: str | Path | None = None
    ) -> Any:
        """Return an array that is not initialized, in a new file or in shared memory."""
        _refuse_device(device)
        if shape is None:
            shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        name, library = _kind("float32" if dtype is None else dtype)
        if dtype is None and "torch" in sys.modules:
            name, library = _kind(sys.modules["torch"].get_default_dtype())
        return _blank(name, tuple(shape), library, filename, False)

    @classmethod
    def zeros(cls, *size: Any, **kwargs: Any) -> Any:
        """Return an array of zeros: see `empty`."""
        return cls._filled(cls.empty(*size, **kwargs), 0)

    @classmethod
    def ones(cls, *size: Any, **kwargs: Any) -> Any:
        """Return an array of ones: see `empty`."""
        return cls._filled(cls.empty(*size, **kwargs), 1)

    @classmethod
    def full(cls, size: Any, fill_value: Any, **kwargs: Any) -> Any:
        """Return an array with one value: see `empty`."""
        return cls._filled(cls.empty(size, **kwargs), fill_value)

    @classmethod
    def empty_like(cls, input: Any, *, filename: str | Path | None = None) -> Any:
        """Return an array with another's shape and dtype that is not initialized."""
        library: Library = "torch" if library_of(input) == "torch" else "numpy"
        return _blank(dtype_name(input), tuple(input.shape), library, filename, False)

    @classmethod
    def zeros_like(cls, input: Any, *, filename: str | Path | None = None) -> Any:
        """Return an array of zeros with another's shape and dtype."""
        return cls._filled(cls.empty_like(input, filename=filename), 0)

    @classmethod
    def ones_like(cls, input: Any, *, filename: str | Path | None = None) -> Any:
        """Return an array of ones with another's shape and dtype."""
        return cls._filled(cls.empty_like(input, filename=filename), 1)

    @classmethod
    def full_like(cls, input: Any, fill_value: Any, *, filename: str | Path | None = None) -> Any:
        """Return an array with one value, and another's shape and dtype."""
        return cls._filled(cls.empty_like(input, filename=filename), fill_value)

    @staticmethod
    def _filled(array: Any, value: Any) -> Any:
        array[...] = value
        return array


def _blank(dtype: str, shape: tuple[int, ...], library: Library, filename: str | Path | None, exist_ok: bool) -> Any:
    if filename is None:
        from corral.backends.shm_arrays import empty

        return empty(shape, dtype_of(dtype, library), library)
    count = nbytes(np.broadcast_to(np.empty((), np.uint8), shape)) * dtype_of(dtype, library).itemsize
    if count:
        create_file(Path(filename), count, exist_ok=exist_ok, reserve=True)
    elif not exist_ok and os.path.lexists(filename):
        raise RuntimeError(f"the file {filename} exists already, and existsok is False")
    return map_file(filename, dtype, shape, library, "r+")


def _mapped(filename: str | Path, dtype: Any, shape: tuple[int, ...], mode: str | None) -> Any:
    name, library = _kind(dtype)
    return map_file(filename, name, shape, library, mode)


def _kind(dtype: Any) -> tuple[str, Library]:
    """Return the name of a dtype and the library that it is of."""
    if isinstance(dtype, str):
        return dtype, "numpy"
    if type(dtype).__module__.partition(".")[0] == "torch":
        return str(dtype).removeprefix("torch."), "torch"
    return np.dtype(dtype).name, "numpy"


def _is_anonymous(x: Any) -> bool:
    try:
        from corral.backends.shm_arrays import place_of
    except ImportError:
        return False
    if library_of(x) == "torch":
        if x.layout is not sys.modules["torch"].strided or x.device.type != "cpu" or not x.numel():
            return False
        x = x.detach().as_strided((1,), (1,)).view(sys.modules["torch"].uint8).numpy()
    elif not x.size:
        return False
    else:
        x = np.lib.stride_tricks.as_strided(x, (1,), (x.itemsize,)).view(np.uint8)
    return place_of(x) is not None


def _refuse_device(device: Any) -> None:
    if device is not None and str(device) != "cpu":
        raise ValueError(f"MemoryMappedTensor: device must be 'cpu', not {device}: files lie in host memory")
