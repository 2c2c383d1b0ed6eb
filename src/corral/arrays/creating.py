"""Make arrays of the library, dtype and device of another one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.arrays.dtype_views import dtype_in
from corral.arrays.libraries import convert, copy_into, library_of, namespace_of

__all__ = ["new_full", "new_like"]


def new_full(
    x: Any, shape: Sequence[int], value: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    """Return a new array filled with one value, or not initialized if that is ``None``.

    Parameters
    ----------
    x : array
        Gives the library, and the dtype and the device where those are not given.
    shape : sequence of int
        Its shape.
    value : number or None
        The value of all elements.
    dtype, device : optional
        Instead of those of `x`; the dtype of any library, or its name.
    requires_grad : bool
        Whether a torch tensor shall require a gradient.

    Examples
    --------
    >>> new_full(np.zeros(1, "float32"), (2,), 7)
    array([7., 7.], dtype=float32)
    """
    library = library_of(x)
    kind = x.dtype if dtype is None else dtype_in(dtype, "torch" if library == "torch" else "numpy")
    if library == "torch":
        options = {"dtype": kind, "device": device, "requires_grad": requires_grad}
        return x.new_empty(tuple(shape), **options) if value is None else x.new_full(tuple(shape), value, **options)
    if requires_grad:
        raise RuntimeError(f"requires_grad=True was given, but an array of {library} cannot require a gradient")
    if library == "numpy" and device is not None and str(device) != "cpu":
        return convert(new_full(x, shape, value, dtype), "torch", device)
    module = np if library == "numpy" else namespace_of(x)
    if value is None:
        return module.empty(tuple(shape), dtype=kind)
    return module.full(tuple(shape), value, dtype=kind)


def new_like(x: Any, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """Return a copy of data as a new array of the library of `x`, and of its dtype where none is given.

    Examples
    --------
    >>> new_like(np.zeros(1, "float32"), [1, 2])
    array([1., 2.], dtype=float32)
    """
    library = library_of(x)
    if library == "torch":
        tensor = convert(data, "torch") if library_of(data) not in ("torch", "other") else data
        place = (tensor.device if library_of(tensor) == "torch" else "cpu") if device is None else device
        kind = x.dtype if dtype is None else dtype_in(dtype, "torch")
        copy = sys.modules["torch"].as_tensor(tensor).to(place, kind, copy=True)
        return copy.detach().requires_grad_() if requires_grad else copy.detach()
    kind = x.dtype if dtype is None else dtype_in(dtype, "numpy")
    result = new_full(x, np.shape(data), None, kind, device, requires_grad)
    if library_of(result) == "jax":
        return namespace_of(x).asarray(convert(data, "numpy"), dtype=kind)
    copy_into(result, data)
    return result
