"""Make TensorDicts of the structure of another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from corral.arrays import creating as arrays
from corral.arrays.libraries import library_of
from corral.arrays.operations import device_of
from corral.tensordict.base import Base, device_name
from corral.tensordict.nested_keys import NestedKey
from corral.tensordict.sizes import Size, as_size

__all__ = ["Creating"]

_SAME: Any = object()


class Creating(Base):
    """New leaves with the dtypes, devices and further dimensions of the present ones.

    In all of these, `dtype` and `device` take the place of those of the leaves, `requires_grad` is for torch's;
    `layout`, `pin_memory` and `empty_lazy` are accepted for compatibility.
    """

    __slots__ = ()

    def new_zeros(
        self,
        *size: Any,
        dtype: Any = None,
        device: Any = _SAME,
        requires_grad: bool = False,
        layout: Any = None,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """Return a TensorDict of another batch size, with zeros.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.ones((2, 3)), batch_size=[2]).new_zeros(4)["a"].shape
        (4, 3)
        """
        return self._new(size, 0, dtype, device, requires_grad)

    def new_ones(
        self,
        *size: Any,
        dtype: Any = None,
        device: Any = _SAME,
        requires_grad: bool = False,
        layout: Any = None,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """Return a TensorDict of another batch size, with ones."""
        return self._new(size, 1, dtype, device, requires_grad)

    def new_empty(
        self,
        *size: Any,
        dtype: Any = None,
        device: Any = _SAME,
        requires_grad: bool = False,
        layout: Any = None,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """Return a TensorDict of another batch size, with leaves that are not initialized."""
        return self._new(size, None, dtype, device, requires_grad)

    def new_full(
        self,
        size: Any,
        fill_value: Any,
        *,
        dtype: Any = None,
        device: Any = _SAME,
        requires_grad: bool = False,
        layout: Any = None,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """Return a TensorDict of another batch size, filled with one value."""
        return self._new((size,), fill_value, dtype, device, requires_grad)

    def _new(self, size: tuple[Any, ...], value: Any, dtype: Any, device: Any, requires_grad: bool) -> Self:
        target = as_size(size if len(size) != 1 or isinstance(size[0], int) else size[0])
        names, count = self._names, len(target)
        if names is not None:
            names = (*(None,) * (count - len(names)), *names[-count:]) if count else None
        place = None if device is _SAME else device_name(device)
        base = len(self._batch_size)

        def make(leaf: Any) -> Any:
            if getattr(leaf.dtype, "kind", "") == "O":  # one object for each element, of which there are others now
                return np.full((*target, *leaf.shape[base:]), None)
            return arrays.new_full(leaf, (*target, *leaf.shape[base:]), value, dtype, place, requires_grad)

        result = self._map(make, target, names)
        if device is not _SAME:
            result._set_device(device_name(device))
        return result

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: Any = None,
        device: Any = _SAME,
        requires_grad: bool = False,
        pin_memory: bool | None = None,
    ) -> Self:
        """Return a TensorDict of copies of data: an array, which all leaves get, or a TensorDict.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.ones(3)).new_tensor([1, 2])["a"]
        array([1., 2.])
        """
        nested = isinstance(data, Base)
        if device is _SAME:
            place = data._device if nested else device_of(data) if library_of(data) != "other" else "cpu"
        else:
            place = device_name(device)
        result = self._new_of(data, dtype, None if device is _SAME else place, requires_grad)
        result._set_device(place)
        return result

    def _new_of(self, data: Any, dtype: Any, device: str | None, requires_grad: bool) -> Self:
        source: dict[str, Any] = {}
        for key, value in self._source.items():
            new = data._source[key] if isinstance(data, Base) else data
            if isinstance(new, Base) and new._holds_objects:
                source[key] = new.copy()  # type: ignore[attr-defined]
            elif isinstance(value, Creating) and value._fits_any and not isinstance(new, Base):
                source[key] = value._resized(Size(getattr(new, "shape", ())))  # one object for all elements stays
            elif isinstance(value, Creating):
                source[key] = value._new_of(new, dtype, device, requires_grad)
            else:
                source[key] = arrays.new_like(value, new, dtype, device, requires_grad)
        if isinstance(data, Base):
            size: Any = data._batch_size
        else:
            size = np.shape(data)
        return self._make(source, Size(size), self._device)

    @classmethod
    def fromkeys(cls, keys: Iterable[NestedKey], value: Any = 0) -> Any:
        """Return a TensorDict without batch dimensions in which all keys have one value.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict.fromkeys(["a", "b"], 1)["b"]
        array(1)
        """
        return cls(dict.fromkeys(keys, value), batch_size=[])  # type: ignore[call-arg]
