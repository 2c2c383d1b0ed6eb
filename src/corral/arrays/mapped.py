"""Arrays whose memory is a file: `numpy.memmap`, and torch's tensors over mapped storages."""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corral.arrays.dtypes import EXTENDED
from corral.arrays.libraries import Library, dtype_name, library_of

__all__ = [
    "InFile",
    "bytes_of",
    "create_file",
    "dtype_of",
    "file_of",
    "flush",
    "in_file",
    "item_size",
    "map_file",
    "map_view",
    "numpy_dtype",
    "place_in_file",
    "same_file",
    "same_place",
    "steps_of",
    "write_file",
]

_MS_SYNC = 4
_PIECE = 1 << 30  # bytes of a write: Linux takes less than 2 GiB


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of NumPy that a name read from a file stands for; none whose elements hold references.

    Examples
    --------
    >>> numpy_dtype("float32"), numpy_dtype("datetime64[ns]")
    (dtype('float32'), dtype('<M8[ns]'))
    """
    if name in EXTENDED:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufcmM" or dtype.names is not None:
        raise TypeError(f"{name!r} is not a dtype that NumPy's arrays over files can have")
    return dtype


def dtype_of(name: str, library: str) -> Any:
    """Return the dtype of a library that has a name."""
    if library != "torch":
        return numpy_dtype(name)
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name!r} is not a dtype of torch")
    return dtype


def item_size(name: str, library: str) -> int:
    """Return the number of bytes of an element."""
    size: int = dtype_of(name, library).itemsize
    return size


def create_file(path: Path, nbytes: int, *, exist_ok: bool, reserve: bool) -> None:
    """Make a file of at least `nbytes` bytes.

    A file that exists keeps its place and its bytes, since others may have mapped it, and grows if it is too small.

    Parameters
    ----------
    path : Path
        The file; never a symbolic link.
    nbytes : int
        How long it must be.
    exist_ok : bool
        Whether it may exist.
    reserve : bool
        Take the space on the disk now, so that a full disk is an error here, and not a signal when the map is
        written.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if exist_ok else os.O_EXCL)
    try:
        fd = os.open(path, flags, 0o666)
    except FileExistsError:
        raise RuntimeError(f"the file {path} exists already, and existsok is False") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RuntimeError(f"refusing to write an array through the symbolic link {path}") from None
        raise
    try:
        if os.fstat(fd).st_size < nbytes:
            os.ftruncate(fd, nbytes)
        if reserve and nbytes:
            os.posix_fallocate(fd, 0, nbytes)
    finally:
        os.close(fd)


def bytes_of(array: Any) -> memoryview | None:
    """Return the bytes of an array as a file has them, if they lie so in this process's memory, else ``None``.

    Examples
    --------
    >>> bytes(bytes_of(np.array([1, 2], "u2"))), bytes_of(np.zeros((2, 2)).T[:1])
    (b'\\x01\\x00\\x02\\x00', None)
    """
    if type(array) in (np.ndarray, np.memmap):
        if not array.flags.c_contiguous or not array.dtype.isnative or array.dtype.kind not in "biufcmMV":
            return None
        return memoryview(array.reshape(-1).view(np.uint8))
    torch: Any = sys.modules.get("torch")
    if torch is None or type(array) not in (torch.Tensor, torch.nn.Parameter):
        return None
    plain = array.device.type == "cpu" and array.layout is torch.strided and array.is_contiguous()
    if not plain or array.is_conj() or array.is_neg() or array.is_quantized:
        return None
    try:
        return memoryview(array.detach().reshape(-1).view(torch.uint8).numpy())
    except (RuntimeError, TypeError):  # of a dtype of which torch has the name and little else
        return None


def write_file(path: Path, content: memoryview) -> None:
    """Write a file from its beginning: faster than through a map, of which each page is cleared first.

    A full disk is an error here. Others who have mapped the file see what is written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        done = 0
        while done < len(content):
            done += os.pwrite(fd, content[done : done + _PIECE], done)
    finally:
        os.close(fd)


def map_file(
    path: Path | str, dtype: str, shape: Sequence[int], library: Library, mode: str | None = None, offset: int = 0
) -> Any:
    """Return an array whose memory is a file.

    Parameters
    ----------
    path : Path or str
        The file.
    dtype : str
        Name of the element type.
    shape : sequence of int
        Shape of the array; one without elements has no file.
    library : {"numpy", "torch"}
        Library of the array.
    mode : {"r", "r+"}, optional
        ``"r+"``: writes reach the file; ``"r"``: they stay in this process; by default the former if the file can
        be written, and else the latter.
    offset : int
        Where in the file the first element is, in bytes.

    Raises
    ------
    PermissionError
        If the mode is ``"r+"`` and the file cannot be written.
    ValueError
        If the file is too short for the shape: it was not written to its end.
    """
    name = os.path.abspath(path)
    kind = dtype_of(dtype, library)
    shape = tuple(shape)
    count = math.prod(shape)
    if not count:
        return sys.modules["torch"].empty(shape, dtype=kind) if library == "torch" else np.empty(shape, kind)
    size = os.stat(name).st_size
    needed = offset + count * kind.itemsize
    if size < needed:
        raise ValueError(
            f"the file {name} has {size} bytes, but an array of shape {shape} and dtype {dtype} at byte {offset} ends "
            f"at byte {needed}: the file is not complete"
        )
    shared = mode != "r" and os.access(name, os.W_OK)
    if mode == "r+" and not shared:
        raise PermissionError(f"the file {name} cannot be opened with mode='r+': this process may not write it")
    if library != "torch":
        return np.memmap(name, kind, "r+" if shared else "c", offset, shape)
    torch = sys.modules["torch"]
    if not offset:
        tensor = torch.from_file(name, shared=shared, size=count, dtype=kind).view(shape)
    else:
        whole = torch.from_file(name, shared=shared, size=needed, dtype=torch.uint8)
        tensor = whole[offset:].view(kind).view(shape)
    tensor.filename = name  # as NumPy's arrays over files have it
    return tensor


def file_of(x: Any) -> str | None:
    """Return the file that an array's memory is, or ``None``.

    Examples
    --------
    >>> file_of(np.zeros(3)) is None
    True
    """
    place = place_in_file(x)
    return None if place is None else place[0]


def place_in_file(x: Any) -> tuple[str, int, bool] | None:
    """Return the file that an array lies in, the byte at which its first element is, and whether writes reach it."""
    library = library_of(x)
    if library == "torch":
        if x.layout is not sys.modules["torch"].strided or x.device.type != "cpu" or not x.numel():
            return None
        name = getattr(x.untyped_storage(), "filename", None)
        if name is not None:
            return str(name), x.storage_offset() * x.itemsize, True
        name = getattr(x, "filename", None)  # a private map, of which the storage does not know
        return None if name is None else (str(name), x.storage_offset() * x.itemsize, False)
    if library != "numpy" or not x.size:
        return None
    root = x
    while not isinstance(root, np.memmap) or isinstance(root.base, np.memmap):
        root = root.base
        if not isinstance(root, np.ndarray):
            return None
    if root.filename is None or root._mmap is None:  # type: ignore[attr-defined]
        return None
    first = x.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return str(root.filename), root.offset + first, root.mode == "r+"


def flush(x: Any) -> None:
    """Write an array that lies in a mapped file to its disk; do nothing for any other.

    Other processes that have mapped the file see what was written in any case.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     x = np.memmap(file.name, "u1", "w+", shape=(3,))
    ...     x[:] = 65
    ...     flush(x)
    ...     file.read()
    b'AAA'
    """
    place = place_in_file(x)
    if place is None or not place[2]:
        return
    count = sum((n - 1) * abs(step) for n, step in zip(x.shape, steps_of(x), strict=True)) + x.itemsize
    below = sum((n - 1) * step for n, step in zip(x.shape, steps_of(x), strict=True) if step < 0)
    first = (x.data_ptr() if library_of(x) == "torch" else x.__array_interface__["data"][0]) + below
    start = first - first % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.msync(ctypes.c_void_p(start), ctypes.c_size_t(first + count - start), _MS_SYNC):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), place[0])


def steps_of(x: Any) -> tuple[int, ...]:
    """Return an array's strides in bytes."""
    return tuple(x.strides) if library_of(x) == "numpy" else tuple(step * x.itemsize for step in x.stride())


def map_view(
    path: str, dtype: str, shape: tuple[int, ...], steps: tuple[int, ...], library: Library, offset: int, shared: bool
) -> Any:
    """Return an array over a part of a file, with the strides that a view of it had."""
    size = item_size(dtype, library)
    below = sum((n - 1) * step for n, step in zip(shape, steps, strict=True) if step < 0)
    above = sum((n - 1) * step for n, step in zip(shape, steps, strict=True) if step > 0)
    count = (above - below) // size + 1
    flat = map_file(path, dtype, (count,), library, "r+" if shared else "r", offset + below)
    if library == "torch":
        first = flat.storage_offset()
        return flat.as_strided(shape, tuple(step // size for step in steps), first - below // size)
    if not below and steps == np.empty(shape, flat.dtype).strides:
        return flat.reshape(shape)
    return np.ndarray(shape, flat.dtype, flat, -below, steps)


class InFile:
    """What is pickled in place of an array in a file: where it is."""

    def __init__(self, place: tuple[str, int, bool], x: Any) -> None:
        self.place = place
        self.dtype = dtype_name(x)
        self.shape = tuple(x.shape)
        self.steps = steps_of(x)
        self.library: Library = library_of(x)

    def attach(self) -> Any:
        """Return the array."""
        if self.library == "torch":
            import torch  # noqa: F401 - the array is torch's

        path, offset, shared = self.place
        return map_view(path, self.dtype, self.shape, self.steps, self.library, offset, shared)


def in_file(x: Any) -> Any:
    """Return what is pickled in place of a leaf: its place, if it lies in a file that all can see."""
    if library_of(x) == "other":
        return x
    place = place_in_file(x)
    # What was written to a private map is not in the file.
    if place is not None and place[2]:
        return InFile(place, x)
    return np.array(x) if isinstance(x, np.memmap) else x


def same_file(one: Path | str, other: Path | str) -> bool:
    """Whether two paths lead to one file, however they do that."""
    if os.path.abspath(one) == os.path.abspath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:  # one is not there
        return False


def same_place(x: Any, path: Path) -> bool:
    """Whether an array is the whole of what a file holds from its start, and writes reach the file."""
    place = place_in_file(x)
    if place is None or not place[2] or place[1] or not same_file(place[0], path):
        return False
    steps = steps_of(x)
    expected = x.itemsize
    for length, step in zip(reversed(x.shape), reversed(steps), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return library_of(x) == "torch" or bool(x.dtype.isnative)
