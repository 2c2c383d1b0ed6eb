"""Lists, tuples and dicts as TensorDicts that can be turned back into them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from corral.arrays.libraries import is_array
from corral.arrays.operations import as_array
from corral.tensordict.base import Base
from corral.tensordict.keys import Keys

__all__ = ["PythonTrees"]

_TYPE = "_pytree_type"
# An entry whose key in the pytree is no string: the name is made up, and key and value are entries of their own.
_OTHER_KEY = "<NON_NESTED>"


class PythonTrees(Keys):
    """To and from pytrees, with the types of their nodes kept in an entry of each TensorDict."""

    __slots__ = ()

    @classmethod
    def from_pytree(
        cls, pytree: Any, *, batch_size: Any = None, auto_batch_size: bool = False, batch_dims: int | None = None
    ) -> Any:
        """Return a TensorDict that `to_pytree` turns back into lists, tuples, named tuples and dicts.

        Elements of lists and tuples get the keys ``"0"``, ``"1"`` and so on.

        Parameters
        ----------
        pytree : list, tuple, dict, array or number
            Nested as it may be. An array or a TensorDict is returned as it is.
        batch_size : sequence of int, optional
            The batch size of the result.
        auto_batch_size : bool
            Take as batch size the leading dimensions that all leaves share.
        batch_dims : int, optional
            With `auto_batch_size`, the largest number of batch dimensions.

        Raises
        ------
        NotImplementedError
            If there is something else in the pytree.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict.from_pytree({"a": [np.zeros(2), np.ones(2)]})
        >>> td["a", "1"], td.to_pytree()
        (array([1., 1.]), {'a': [array([0., 0.]), array([1., 1.])]})
        """
        if batch_size is not None and auto_batch_size:
            raise TypeError("from_pytree: batch_size and auto_batch_size cannot both be given")
        if isinstance(pytree, Base) or is_array(pytree):
            return pytree
        if isinstance(pytree, (bool, int, float, complex, np.generic)):
            return as_array(pytree)
        if isinstance(pytree, Mapping):
            source = dict(_entry(cls, key, value) for key, value in pytree.items())
        elif isinstance(pytree, tuple) and hasattr(pytree, "_fields"):
            source = {key: cls.from_pytree(value) for key, value in zip(pytree._fields, pytree, strict=True)}
        elif isinstance(pytree, (list, tuple)):
            source = {str(number): cls.from_pytree(value) for number, value in enumerate(pytree)}
        else:
            raise NotImplementedError(f"from_pytree: a {type(pytree).__name__} cannot be in the pytree")
        td: Any = cls(source)  # type: ignore[call-arg]
        td.set_non_tensor(_TYPE, type(pytree))
        if batch_size is not None:
            td.batch_size = batch_size
        elif auto_batch_size:
            td.auto_batch_size_(batch_dims)
        return td

    def to_pytree(self) -> Any:
        """Return the pytree that `from_pytree` has made this TensorDict of; itself if it is of none."""
        kind = self.get_non_tensor(_TYPE, None)
        if not isinstance(kind, type):
            return self
        found = {
            key: value.to_pytree() if isinstance(value, PythonTrees) else value
            for key, value in self._source.items()
            if key != _TYPE
        }
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return kind(**found)
        if issubclass(kind, (list, tuple)):
            return kind([found[str(number)] for number in range(len(found))])
        pairs = [_pair(key, value) for key, value in found.items()]
        try:
            return kind(pairs)  # type: ignore[call-arg]
        except TypeError:  # a defaultdict, whose first argument is another one
            result = kind()
            result.update(pairs)  # type: ignore[attr-defined]
            return result


def _entry(kind: Any, key: Any, value: Any) -> tuple[str, Any]:
    value = kind.from_pytree(value)
    if isinstance(key, str):
        return key, value
    held = kind({"value": value})
    held.set_non_tensor("key", key)
    return f"{_OTHER_KEY}{uuid.uuid1()}", held


def _pair(key: str, value: Any) -> tuple[Any, Any]:
    if not key.startswith(_OTHER_KEY):
        return key, value
    inner = value._source["value"]
    return value.get_non_tensor("key"), inner.to_pytree() if isinstance(inner, PythonTrees) else inner
