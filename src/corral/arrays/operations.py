"""The few operations on arrays that containers need, with torch's meaning in every library."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.arrays.libraries import convert, copy_into, dtype_name, library_of, namespace_of, to_numpy

__all__ = [
    "as_array",
    "cast",
    "cat",
    "clone",
    "contiguous",
    "device_of",
    "expand",
    "fill_like",
    "nbytes",
    "permute",
    "reshape",
    "stack",
    "unbind",
    "view",
]


def as_array(value: Any) -> Any:
    """Return an array as it is, and a number or a nested list of numbers as a NumPy array.

    Raises
    ------
    TypeError
        If the value is not made of numbers.
    """
    library = library_of(value)
    if library != "other":
        return np.asarray(value) if isinstance(value, np.generic) else value
    if isinstance(value, (str, bytes)) or value is None:
        raise TypeError(f"a {type(value).__name__} is not an array")
    if isinstance(value, (list, tuple)) and any(library_of(item) == "torch" for item in value):
        return stack([as_array(item) for item in value], 0)
    try:
        array = to_numpy(value)
    except ValueError as error:
        raise TypeError(f"a {type(value).__name__} that makes no array: {error}") from error
    if array.dtype.kind in "OUS":
        raise TypeError(f"a {type(value).__name__} is not an array of numbers")
    return array


def clone(x: Any) -> Any:
    """Return a copy in memory of its own."""
    library = library_of(x)
    if library == "torch":
        return x.clone()
    return np.array(x) if isinstance(x, np.memmap) else x.copy()


_requires_grad = operator.attrgetter("requires_grad")


def _clone_tensors(arrays: list[Any]) -> Sequence[Any] | None:
    """Return copies of torch's tensors, all by one call; ``None`` for anything else."""
    torch: Any = sys.modules.get("torch")
    if torch is None or {*map(type, arrays)} != {torch.Tensor} or not hasattr(torch, "_foreach_clone"):
        return None
    # Gradients, vmap and its like do not know this operation well enough.
    if any(map(_requires_grad, arrays)) or torch._C._functorch.maybe_current_level() is not None:
        return None
    copies: Sequence[Any] = torch._foreach_clone(arrays)
    return copies


clone.many = _clone_tensors  # type: ignore[attr-defined]  # a loop of torch's takes less time than one of Python's


def nbytes(x: Any) -> int:
    """Return the number of bytes of an array's elements."""
    item: int = getattr(x, "itemsize", None) or x.dtype.itemsize
    count: int = math.prod(tuple(x.shape))
    return count * item


def contiguous(x: Any) -> Any:
    """Return the array if its elements lie in order, one behind the other, and a copy that does if not."""
    library = library_of(x)
    if library == "torch":
        return x.contiguous()
    if library == "numpy":
        return x if x.flags.c_contiguous else x.copy("C")
    return namespace_of(x).asarray(x, order="C") if library == "cupy" else x


def canonically_contiguous(x: Any) -> Any:
    """Return the same as `contiguous`, with the strides of rows one behind the other in all dimensions."""
    if library_of(x) != "torch":
        return contiguous(x)
    strides, step = [], 1
    for length in reversed(x.shape):
        strides.append(step)
        step *= max(length, 1)
    if x.stride() == tuple(reversed(strides)):
        return x
    import torch

    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)


def is_contiguous(x: Any) -> bool:
    """Whether an array's elements lie in order, one behind the other."""
    library = library_of(x)
    if library == "torch":
        return bool(x.is_contiguous())
    return library == "jax" or bool(x.flags.c_contiguous)


def device_of(x: Any) -> str:
    """Return the name of the device that an array lies on."""
    library = library_of(x)
    if library == "numpy":
        return "cpu"
    return str(x.device)


def permute(x: Any, dims: Sequence[int]) -> Any:
    """Return a view with the dimensions in another order."""
    return x.permute(*dims) if library_of(x) == "torch" else x.transpose(*dims)


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """Return the array in another shape: a view where that is possible."""
    return x.reshape(tuple(shape))


def view(x: Any, shape: Sequence[int]) -> Any:
    """Return a view of the array in another shape, or fail where only a copy could have that shape."""
    if library_of(x) == "torch":
        return x.view(tuple(shape))
    result = x.reshape(tuple(shape))
    if library_of(x) == "numpy" and x.size and not np.may_share_memory(result, x):
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two contiguous subspaces). Use .reshape(...) instead."
        )
    return result


def expand(x: Any, shape: Sequence[int]) -> Any:
    """Return a view in which dimensions of length 1 are repeated without a copy."""
    library = library_of(x)
    if library == "torch":
        return x.expand(tuple(shape))
    if library == "numpy":
        added = len(shape) - x.ndim
        if tuple(shape[added:]) == x.shape and math.prod(shape[:added]) == 1:
            return x[(*(None,) * added, ...)]
        return np.broadcast_to(x, tuple(shape))  # read-only: a write would change many elements at once
    return namespace_of(x).broadcast_to(x, tuple(shape))


def stack(arrays: Sequence[Any], dim: int) -> Any:
    """Return arrays stacked along a new dimension, in the library of the first."""
    library = library_of(arrays[0])
    if library == "numpy":
        # Four times as fast as np.stack; but for objects, it would look for arrays in them.
        if dim == 0 and {*map(type, arrays)} == {np.ndarray} and arrays[0].dtype.kind != "O":
            return np.array(arrays)
        return np.stack([to_numpy(x) for x in arrays], dim)
    if library == "torch":
        if len({*map(type, arrays)}) > 1:
            arrays = [convert(x, "torch") for x in arrays]
        return sys.modules["torch"].stack(arrays, dim)
    return namespace_of(arrays[0]).stack([convert(x, library) for x in arrays], axis=dim)


def cat(arrays: Sequence[Any], dim: int) -> Any:
    """Return arrays joined along one of their dimensions, in the library of the first."""
    library = library_of(arrays[0])
    if library == "torch":
        return sys.modules["torch"].cat([convert(x, "torch") for x in arrays], dim)
    rest = [x for x in arrays if tuple(x.shape) != (0,)] or arrays  # others are joined without those, as torch does it
    if library == "numpy":
        return np.concatenate([to_numpy(x) for x in rest], dim)
    return namespace_of(arrays[0]).concat([convert(x, library) for x in rest], axis=dim)


def unbind(x: Any, dim: int) -> Sequence[Any]:
    """Return views of an array's parts along one of its dimensions, which is removed."""
    if library_of(x) == "torch":
        parts: Sequence[Any] = x.unbind(dim)
        return parts
    prefix = (slice(None),) * dim
    return [x[(*prefix, i, ...)] for i in range(x.shape[dim])]


def fill_like(x: Any, value: Any) -> Any:
    """Return an array like another one, filled with one value, or not initialized if that is ``None``."""
    library = library_of(x)
    module = sys.modules["torch"] if library == "torch" else np if library == "numpy" else namespace_of(x)
    return module.empty_like(x) if value is None else module.full_like(x, value)


def cast(x: Any, dtype: Any) -> Any:
    """Return an array of another dtype, given by any library's dtype or its name; itself if it has that."""
    name = dtype if isinstance(dtype, str) else dtype_name(np.empty(0, dtype)) if _is_numpy_dtype(dtype) else ""
    name = name or str(dtype).rpartition(".")[2]
    if dtype_name(x) == name:
        return x
    library = library_of(x)
    if library == "torch":
        return x.to(getattr(sys.modules["torch"], name))
    if library != "numpy":
        return namespace_of(x).astype(x, getattr(namespace_of(x), name))
    try:
        kind = np.dtype(name)
    except TypeError:
        import ml_dtypes

        kind = np.dtype(getattr(ml_dtypes, name))
    result = np.empty(x.shape, kind)
    copy_into(result, x)
    return result


def _is_numpy_dtype(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) or (isinstance(dtype, type) and dtype.__module__ in ("numpy", "builtins"))
