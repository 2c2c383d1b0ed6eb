"""The TensorDict whose leaves are arrays in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Self

from corral.tensordict import pytrees
from corral.tensordict.abstract import TensorDictBase
from corral.tensordict.base import Base, device_name
from corral.tensordict.sizes import as_size

__all__ = ["TensorDict"]


class TensorDict(TensorDictBase):
    """A dictionary of arrays, nested or not, that share their leading dimensions.

    Leaves keep their type: a NumPy array stays one, a torch tensor too. Numbers and lists become NumPy arrays; strings
    and other objects are kept as they are, wrapped in `NonTensorData`.

    Parameters
    ----------
    source : dict or TensorDict, optional
        The entries. Instead of it, they can be given as keywords.
    batch_size : sequence of int, optional
        The leading dimensions that all leaves share; none by default.
    device : optional
        Where all leaves shall lie; by default each stays where it is.
    names : sequence of str or None, optional
        Names of the batch dimensions.
    non_blocking : bool, optional
        Accepted for compatibility.
    lock : bool
        Forbid to add, replace and remove entries.
    **kwargs
        The entries.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(obs=np.zeros((3, 4)), info={"steps": np.arange(3)}, batch_size=[3])
    >>> td
    TensorDict(batch_size=[3], library=numpy, fields={obs: f64[4], info: {steps: i64[]}})
    >>> td[1]["info", "steps"]
    array(1)
    """

    __slots__ = ()

    def __init__(
        self,
        source: Any = None,
        batch_size: Any = None,
        device: Any = None,
        names: Any = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        if len(sys.modules) != pytrees.seen[0]:
            pytrees.register()
        if source is None:
            source = kwargs
        elif kwargs:
            raise TypeError("Either a dictionary or a sequence of kwargs must be provided, not both.")
        if not isinstance(source, (Mapping, Base)) and not hasattr(source, "items"):
            raise ValueError(f"A TensorDict source is expected to be a TensorDict or a dict, got {type(source)}.")
        if batch_size is None:
            batch_size = None if type(source) is dict else getattr(source, "batch_size", None)
        self._source = {}
        self._batch_size = as_size(batch_size)
        self._device = device_name(device)
        self._locked = False
        self._names = None
        self._fill(source)
        if names is not None:
            self._set_names(names)
        if lock:
            self._lock(True)

    @classmethod
    def from_dict(
        cls,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
    ) -> Self:
        """Return a TensorDict of a dict's entries.

        Parameters
        ----------
        input_dict : dict
            The entries, nested or not.
        auto_batch_size : bool, optional
            Take as batch size the leading dimensions that all leaves share.
        batch_size : sequence of int, optional
            The batch size.
        device : optional
            Where all leaves shall lie.
        batch_dims : int, optional
            With `auto_batch_size`, the largest number of batch dimensions.
        names : sequence of str or None, optional
            Names of the batch dimensions.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict.from_dict({"a": np.zeros((2, 3))}, auto_batch_size=True).batch_size
        Size([2, 3])
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError("batch_size and batch_dims cannot both be given")
        td = cls(input_dict, batch_size=batch_size, device=device)
        if auto_batch_size and batch_size is None:
            td.auto_batch_size_(batch_dims)
        if names is not None:
            td._set_names(names)
        return td


pytrees.register_kind(TensorDict)
