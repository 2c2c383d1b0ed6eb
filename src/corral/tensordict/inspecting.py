"""Count what a TensorDict holds, and small operations on it as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from corral.arrays.operations import device_of
from corral.tensordict.indexing import Indexing

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

    def __getitems__(self, index: Any) -> Any:
        """Return the rows of a list of indices at once, as torch's data loaders ask for them."""
        return self[index]
