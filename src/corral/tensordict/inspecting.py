"""Count what a TensorDict holds, and small operations on it as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from corral.arrays.operations import device_of, is_contiguous
from corral.arrays.padding import padded
from corral.tensordict.base import Base
from corral.tensordict.indexing import Indexing
from corral.tensordict.nested_keys import NestedKey

__all__ = ["Inspecting"]


class Inspecting(Indexing):
    """How much there is, and where."""

    __slots__ = ()

    @property
    def depth(self) -> int:
        """The number of TensorDicts that the deepest leaf is nested in, without this one.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict(a=1, b={"c": {"d": 2}}).depth
        2
        """
        return max((len(key) - 1 for key in self.keys(True, True) if isinstance(key, tuple)), default=0)

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Return the number of elements of all leaves.

        Parameters
        ----------
        count_duplicates : bool
            Count an array as often as it is an entry, not once.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.zeros(3), b={"c": np.zeros((2, 2))}).param_count()
        7
        """
        leaves = list(self._leaves())
        if not count_duplicates:
            leaves = list({id(leaf): leaf for leaf in leaves}.values())
        return sum(math.prod(leaf.shape) for leaf in leaves)

    def auto_device_(self) -> Self:
        """Set the device to the one that all leaves lie on, or to none if they lie on several."""
        devices = {device_of(leaf) for leaf in self._leaves()}
        self._set_device(devices.pop() if len(devices) == 1 else None)
        return self

    def apply_(self, fn: Callable[..., Any], *others: Any, **kwargs: Any) -> Self:
        """Apply a function to every leaf, as `apply`, and set what it returns here.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(3)).apply_(lambda x: x + 1)
        >>> td["a"]
        array([1, 2, 3])
        """
        self.apply(fn, *others, inplace=True, **kwargs)  # type: ignore[attr-defined]
        return self

    def copy_(self, tensordict: Any, non_blocking: bool = False) -> Self:
        """Write another TensorDict's entries in place: the same as `update_`."""
        return self.update_(tensordict, non_blocking=non_blocking)

    def copy_at_(self, tensordict: Any, idx: Any, non_blocking: bool = False, *, fast: bool = True) -> Self:
        """Write another TensorDict's entries into a part of the batch: the same as `update_at_`."""
        if fast is None:
            raise TypeError("copy_at_: fast must be True or False, got None")
        return self.update_at_(tensordict, idx)

    def is_contiguous(self) -> bool:
        """Whether all leaves are contiguous."""
        return all(is_contiguous(leaf) for leaf in self._leaves())

    def is_non_tensor(self, key: NestedKey) -> bool:
        """Whether an entry is one of objects that are no arrays.

        Examples
        --------
        >>> from corral import TensorDict
        >>> td = TensorDict(name="ant", steps=3)
        >>> td.is_non_tensor("name"), td.is_non_tensor("steps")
        (True, False)
        """
        return isinstance(value := self._require(key), Base) and value._holds_objects

    def non_tensor_items(self, include_nested: bool = False) -> tuple[tuple[Any, Any], ...]:
        """Return pairs of the keys and the entries of objects that are no arrays."""
        keys = self.keys(include_nested, True, is_leaf=lambda kind: getattr(kind, "_holds_objects", False))
        return tuple((key, self._require(key)) for key in keys)  # nothing else is read

    def filter_non_tensor_data(self) -> Self:
        """Return a TensorDict without the entries of objects that are no arrays.

        Examples
        --------
        >>> from corral import TensorDict
        >>> list(TensorDict(name="ant", steps=3).filter_non_tensor_data().keys())
        ['steps']
        """
        result = self._make({}, self._batch_size, self._device, self._names)
        for key, value in self._source.items():
            if not isinstance(value, Inspecting):
                result._source[key] = value
            elif not value._holds_objects:
                result._source[key] = value.filter_non_tensor_data()
        return result

    def to_lazystack(self, dim: int = 0) -> Any:
        """Return a lazy stack of the slices of the batch along one dimension: views, which are written through.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> lazy = TensorDict(a=np.zeros((2, 3)), batch_size=[2, 3]).to_lazystack(1)
        >>> lazy.batch_size, lazy.stack_dim
        (Size([2, 3]), 1)
        """
        if not -len(self._batch_size) <= dim < len(self._batch_size):
            raise IndexError(f"Incompatible dim {dim} for a TensorDict with {len(self._batch_size)} batch dimensions.")
        if getattr(self, "stack_dim", None) == dim % len(self._batch_size):
            return self
        from corral.tensordict.lazy import lazy_stack

        return lazy_stack(self.unbind(dim), dim % len(self._batch_size))

    def densify(self, layout: Any = None) -> Any:
        """Return a TensorDict whose lazy stacks are dense: itself if it has none.

        Arrays of different shapes become one of torch's nested tensors, as `layout` says: ``torch.strided``, which is
        the default, or ``torch.jagged``.
        """
        if not self._has_lazy():
            return self
        return self._densified(layout)

    def _has_lazy(self) -> bool:
        return any(isinstance(value, Inspecting) and value._has_lazy() for _, value in self._peeks())

    def _densified(self, layout: Any) -> Any:
        source = {
            key: value._densified(layout) if isinstance(value, Inspecting) and value._has_lazy() else value
            for key, value in self._source.items()
        }
        return self._make(source, self._batch_size, self._device, self._names)

    def to_padded_tensor(self, padding: float = 0.0, mask_key: NestedKey | None = None) -> Self:
        """Return a TensorDict in which torch's nested tensors are filled up to one shape; other leaves stay.

        Parameters
        ----------
        padding : float
            What to fill up with.
        mask_key : str or tuple of str, optional
            For batches whose lengths differ, which cannot be in a TensorDict here: lazy stacks have them.
        """
        if mask_key is not None:
            raise RuntimeError(
                "mask_key should only be provided if the heterogeneous dimension is part of the batch size."
            )
        return self._map(lambda leaf: padded(leaf, padding))

    def __getitems__(self, index: Any) -> Any:
        """Return the rows of a list of indices at once, as torch's data loaders ask for them."""
        return self[index]
