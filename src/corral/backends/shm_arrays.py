"""Arrays in shared memory, which other ranks of the host read and write where they lie."""

from __future__ import annotations

import errno
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from corral import _core

__all__ = ["attach", "empty", "place_of"]


def empty(shape: int | Sequence[int], dtype: Any = "float32", like: str = "numpy") -> Any:
    """Allocate an array, not initialized, in memory that other ranks of the host can map.

    No byte of such an array goes through the kernel: the receiver reads it where it lies. The memory
    has no name in any file system and goes with the last process that uses it.

    Parameters
    ----------
    shape : int or sequence of int
        Shape of the array.
    dtype : dtype or str
        Element type: a NumPy dtype or its name, or the name of one of torch's.
    like : {"numpy", "torch"}
        Library of the array returned.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        A C-contiguous array.

    Raises
    ------
    MemoryError
        If there is not so much memory.
    OSError
        If the process has no file descriptor left: each array holds one.

    Examples
    --------
    >>> import corral
    >>> frames = corral.empty((2, 3), "uint8")
    >>> frames[:] = 7
    >>> int(frames.sum())
    42
    """
    try:
        dims = (operator.index(shape),) if not isinstance(shape, Iterable) else tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"corral.empty: shape must be an integer or several, got {shape!r}") from None
    if any(dim < 0 for dim in dims):
        raise ValueError(f"corral.empty: a dimension of {dims} is negative")
    if like not in ("numpy", "torch"):
        raise ValueError(f"corral.empty: like must be 'numpy' or 'torch', not {like!r}")
    if like == "torch":
        import torch

        kind = (
            dtype
            if isinstance(dtype, torch.dtype)
            else getattr(torch, str(np.dtype(dtype)) if not isinstance(dtype, str) else dtype)
        )
        count = math.prod(dims)
        memory = np.frombuffer(_allocate(count * kind.itemsize, dims, kind), np.uint8)[: count * kind.itemsize]
        return torch.from_numpy(memory).view(kind).view(dims) if count else torch.empty(dims, dtype=kind)
    item = np.dtype(dtype)
    if item.hasobject:
        raise TypeError("corral.empty: an array of Python objects cannot lie in shared memory")
    return np.ndarray(dims, item, _allocate(math.prod(dims) * item.itemsize, dims, item))


def _allocate(size: int, dims: tuple[int, ...], dtype: Any) -> _core.SharedMemory:
    """Return shared memory of `size` bytes."""
    try:
        if size < 1 << 63:
            return _core.SharedMemory(size)
        cause: OSError | None = None
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EFBIG, errno.ENOSPC, errno.EINVAL, errno.EOVERFLOW):
            raise
        cause = error
    raise MemoryError(
        f"corral.empty: cannot allocate {size} bytes ({size / 2**30:.4g} GiB) of shared memory for an array of shape "
        f"{dims} and dtype {dtype}: ask for less, free some, or raise the limit on memory (ulimit -v, the container's)"
    ) from cause


def place_of(array: Any) -> tuple[int, int, int, int] | None:
    """Return where an array lies in shared memory: owner, descriptor, inode and offset; or ``None``."""
    return _core.find_shared(array)


def attach(owner: int, fd: int, inode: int, offset: int, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Map an array that `place_of` named, in this process or another one of the same user.

    Raises
    ------
    RuntimeError
        If the process that made the memory is gone, or has let go of it.
    """
    return np.ndarray(tuple(shape), dtype, _core.SharedMemory.attach(owner, fd, inode), offset)
