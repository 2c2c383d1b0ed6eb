"""Arrays of different shapes put together: filled up to one shape, or as torch's nested tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.arrays.libraries import convert, library_of, to_numpy

__all__ = ["nested", "pad_stack", "padded"]


def pad_stack(arrays: Sequence[Any], value: Any = 0, side: str = "right") -> Any:
    """Return arrays stacked along a new first dimension, each filled up with a value to the largest shape.

    Examples
    --------
    >>> pad_stack([np.ones(1), np.ones(3)])
    array([[1., 0., 0.],
           [1., 1., 1.]])
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', not {side!r}")
    if len({len(x.shape) for x in arrays}) > 1:
        raise RuntimeError(f"arrays of shapes {[tuple(x.shape) for x in arrays]} cannot be padded to one shape")
    shape = tuple(max(lengths) for lengths in zip(*(x.shape for x in arrays), strict=True))
    if library_of(arrays[0]) == "torch":
        import torch

        filled = []
        for x in arrays:
            missing = [full - length for full, length in zip(reversed(shape), reversed(x.shape), strict=True)]
            widths = [width for n in missing for width in ((n, 0) if side == "left" else (0, n))]
            filled.append(torch.nn.functional.pad(x, widths, value=value))
        return torch.stack(filled)
    values = [to_numpy(x) for x in arrays]
    result = np.full((len(arrays), *shape), value, values[0].dtype)
    for row, x in zip(result, values, strict=True):
        row[tuple(slice(-n if side == "left" and n else None, None if side == "left" else n) for n in x.shape)] = x
    return convert(result, library_of(arrays[0]))


def nested(arrays: Sequence[Any], layout: Any = None) -> Any:
    """Return arrays as one nested tensor of torch's: a jagged one, unless another layout of torch's is given."""
    import torch

    return torch.nested.nested_tensor([convert(x, "torch") for x in arrays], layout=layout or torch.jagged)


def padded(x: Any, value: float) -> Any:
    """Return one of torch's nested tensors filled up to one shape, and any other array as it is."""
    if library_of(x) != "torch" or not x.is_nested:
        return x
    import torch

    return torch.nested.to_padded_tensor(x, value)
