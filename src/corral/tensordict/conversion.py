"""Turn TensorDicts into dicts, other libraries' arrays, other dtypes and devices."""

from __future__ import annotations

import builtins
from typing import Any, Self

import numpy as np

from corral.arrays.libraries import convert, dtype_name, library_of, to_numpy
from corral.arrays.operations import canonically_contiguous, cast, contiguous, device_of, nbytes
from corral.tensordict.base import Base, device_name
from corral.tensordict.sizes import Size

__all__ = ["Conversion"]

_LIBRARIES = frozenset({"numpy", "torch", "jax", "cupy"})


class Conversion(Base):
    """Convert all leaves at once."""

    __slots__ = ()

    def to_dict(
        self, *, retain_none: bool = True, convert_tensors: Any = False, tolist_first: bool = False
    ) -> dict[str, Any]:
        """Return the entries as nested dicts.

        Parameters
        ----------
        retain_none : bool
            Keep fields of tensorclasses that are ``None``.
        convert_tensors : bool or "numpy"
            Convert arrays to lists of numbers, or to NumPy's arrays.
        tolist_first : bool
            Convert nested TensorDicts with batch dimensions to lists, as `tolist` does.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a={"b": np.arange(2)}).to_dict()
        {'a': {'b': array([0, 1])}}
        """
        found: dict[str, Any] = {}
        for key, value in self._source.items():
            if not isinstance(value, Conversion):
                found[key] = _converted(value, convert_tensors)
            elif tolist_first:
                found[key] = value.tolist(convert_tensors=convert_tensors, tolist_first=True)
            else:
                found[key] = value.to_dict(retain_none=retain_none, convert_tensors=convert_tensors)
        return found

    def numpy(self) -> dict[str, Any]:
        """Return the entries as nested dicts of NumPy arrays, which share memory where that is possible."""
        return {
            key: value.numpy() if isinstance(value, Conversion) else to_numpy(value)
            for key, value in self._source.items()
        }

    def tolist(
        self,
        *,
        convert_nodes: bool = True,
        convert_tensors: Any = False,
        tolist_first: bool = False,
        as_linked_list: bool = False,
    ) -> Any:
        """Return the batch as nested lists of dicts.

        Parameters
        ----------
        convert_nodes : bool
            Return dicts, not TensorDicts.
        convert_tensors, tolist_first
            As for `to_dict`.
        as_linked_list : bool
            Return a list through which rows of the TensorDict can be set.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(2), batch_size=[2])
        >>> td.tolist(convert_tensors=True)
        [{'a': 0}, {'a': 1}]
        >>> td.tolist(as_linked_list=True)[1] = {"a": 5}
        >>> td["a"]
        array([0, 5])
        """
        if convert_tensors and not convert_nodes:
            raise TypeError("convert_tensors requires convert_nodes to be set to True")
        if not self._batch_size:
            return self.to_dict(convert_tensors=convert_tensors, tolist_first=tolist_first) if convert_nodes else self
        options = {"convert_nodes": convert_nodes, "convert_tensors": convert_tensors, "tolist_first": tolist_first}
        rows = [row.tolist(**options) for row in self]  # type: ignore[attr-defined]
        return LinkedList(rows, self) if as_linked_list else rows

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

    def jax(self) -> Self:
        """Return a TensorDict with JAX arrays as leaves, which share memory where that is possible."""
        return self.convert("jax")

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return a TensorDict with leaves on another device, of another dtype, or of another library.

        Parameters
        ----------
        *args
            A device, a dtype, the name of a library, another TensorDict whose device to take, or an array whose device
            and dtype to take.
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
            elif library_of(arg) != "other":
                dtype, device = arg.dtype, device_of(arg)
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

    def cpu(self, **kwargs: Any) -> Self:
        """Return a TensorDict with all leaves in host memory; keywords are those of `to`."""
        return self.to("cpu", **kwargs)

    def cuda(self, device: Any = None, **kwargs: Any) -> Self:
        """Return a TensorDict with all leaves on a CUDA device; keywords are those of `to`."""
        return self.to("cuda" if device is None else device_name(device), **kwargs)

    def clear_device_(self) -> Self:
        """Let leaves lie on any device from now on."""
        self._set_device(None)
        return self

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Self:
        """Return a TensorDict with contiguous leaves.

        Parameters
        ----------
        canonical : bool
            Copy leaves of torch's, too, that have other strides in dimensions of length 1.
        inplace : bool
            Give this TensorDict the contiguous leaves.
        """
        result = self._map(canonically_contiguous if canonical else contiguous)
        if not inplace:
            return result
        self._refuse_if_locked()
        self._adopt(result)  # type: ignore[attr-defined]
        return self

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


class LinkedList(list[Any]):
    """A list of the rows of a TensorDict: those that are set are set there, too."""

    def __init__(self, rows: list[Any], td: Any) -> None:
        super().__init__(rows)
        self._td = td

    def __setitem__(self, index: Any, value: Any) -> None:
        self._td[index] = value
        super().__setitem__(index, value)


def _converted(leaf: Any, how: Any) -> Any:
    if not how:
        return leaf
    return to_numpy(leaf) if how == "numpy" else to_numpy(leaf).tolist()


def _is_dtype(value: Any) -> Any:
    if isinstance(value, np.dtype) or (isinstance(value, builtins.type) and value.__module__ in ("numpy", "builtins")):
        return True
    if isinstance(value, str):
        return value.startswith(("float", "int", "uint", "bfloat", "complex", "bool"))
    return builtins.type(value).__name__ == "dtype"
