"""Turn TensorDicts into dicts, other libraries' arrays, other dtypes and devices."""

from __future__ import annotations

import builtins
from typing import Any, Self

import numpy as np

from corral.arrays.libraries import convert, dtype_name, to_numpy
from corral.arrays.operations import cast, contiguous, nbytes
from corral.tensordict.base import Base, Size, device_name

__all__ = ["Conversion"]

_LIBRARIES = frozenset({"numpy", "torch", "jax", "cupy"})


class Conversion(Base):
    """Convert all leaves at once."""

    __slots__ = ()

    def to_dict(self, *, retain_none: bool = True, convert_tensors: bool = False) -> dict[str, Any]:
        """Return the entries as nested dicts; as nested lists of numbers if `convert_tensors`.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a={"b": np.arange(2)}).to_dict()
        {'a': {'b': array([0, 1])}}
        """
        return {
            key: value.to_dict(convert_tensors=convert_tensors)
            if isinstance(value, Conversion)
            else (to_numpy(value).tolist() if convert_tensors else value)
            for key, value in self._source.items()
        }

    def numpy(self) -> dict[str, Any]:
        """Return the entries as nested dicts of NumPy arrays, which share memory where that is possible."""
        return {
            key: value.numpy() if isinstance(value, Conversion) else to_numpy(value)
            for key, value in self._source.items()
        }

    def tolist(self, *, convert_tensors: bool = False) -> Any:
        """Return the batch as nested lists of dicts."""
        if not self._batch_size:
            return self.to_dict(convert_tensors=convert_tensors)
        return [row.tolist(convert_tensors=convert_tensors) for row in self]  # type: ignore[attr-defined]

    def convert(self, library: str, device: Any = None) -> Self:
        """Return a TensorDict with leaves of another library, which share memory where that is possible.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict(a=[1.0, 2.0]).convert("numpy")["a"]
        array([1., 2.])
        """
        result = self._map(lambda leaf: convert(leaf, library, device))
        if device is not None:
            result._set_device(device_name(device))
        return result

    def torch(self) -> Self:
        """Return a TensorDict with torch tensors as leaves, which share memory where that is possible."""
        return self.convert("torch")

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return a TensorDict with leaves on another device, of another dtype, or of another library.

        Parameters
        ----------
        *args
            A device, a dtype, the name of a library, or another TensorDict whose device to take.
        **kwargs
            The same as ``device=``, ``dtype=``, ``other=``; ``batch_size=`` sets that of the result;
            ``non_blocking=`` is accepted for compatibility.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(2)).to("float32")["a"]
        array([0., 1.], dtype=float32)
        """
        kwargs.pop("non_blocking", None)
        device, dtype, size = (kwargs.pop(name, None) for name in ("device", "dtype", "batch_size"))
        other = kwargs.pop("other", None)
        if kwargs:
            raise TypeError(f"to() got an unexpected keyword argument {next(iter(kwargs))!r}")
        result = self
        for arg in args:
            if isinstance(arg, Base):
                other = arg
            elif isinstance(arg, str) and arg in _LIBRARIES:
                result = result.convert(arg)
            elif arg is None or isinstance(arg, bool):
                pass
            elif _is_dtype(arg):
                dtype = arg
            elif isinstance(arg, (list, tuple)):
                size = arg
            else:
                device = arg
        if other is not None and device is None:
            device = other.device
        if dtype is not None:
            result = result._map(lambda leaf: cast(leaf, dtype))
            if self._locked:
                result._lock(True)
        if device is not None and device_name(device) != result._device:
            result = result._on_device(device_name(device))
        if size is not None:
            result = result._map(lambda leaf: leaf)
            result.batch_size = Size(size)
        return result

    def cpu(self) -> Self:
        """Return a TensorDict with all leaves in host memory."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Self:
        """Return a TensorDict with all leaves on a CUDA device."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def clear_device_(self) -> Self:
        """Let leaves lie on any device from now on."""
        self._set_device(None)
        return self

    def contiguous(self) -> Self:
        """Return a TensorDict with contiguous leaves."""
        return self._map(contiguous)

    def bytes(self, *, count_duplicates: Any = True) -> Any:
        """Return the number of bytes of all leaves; an array counts as often as it is an entry, or once."""
        leaves = list(self._leaves())
        if not count_duplicates:
            leaves = list({id(leaf): leaf for leaf in leaves}.values())
        return sum(nbytes(leaf) for leaf in leaves)

    @property
    def dtype(self) -> Any:
        """The dtype of all leaves, or ``None`` if they have several."""
        found = {dtype_name(leaf): leaf.dtype for leaf in self._leaves()}
        return next(iter(found.values())) if len(found) == 1 else None


def _is_dtype(value: Any) -> Any:
    if isinstance(value, np.dtype) or (isinstance(value, builtins.type) and value.__module__ in ("numpy", "builtins")):
        return True
    if isinstance(value, str):
        return value.startswith(("float", "int", "uint", "bfloat", "complex", "bool"))
    return builtins.type(value).__name__ == "dtype"
