"""Access to entries by their keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from corral.tensordict.base import Base, device_name
from corral.tensordict.errors import KeyThroughLeafError
from corral.tensordict.finding import MISSING, split
from corral.tensordict.nested_keys import NestedKey
from corral.tensordict.updating import Updating
from corral.tensordict.views import ItemsView, KeysView, ValuesView

__all__ = ["Keys"]


class Keys(Updating):
    """Read, add and remove entries."""

    __slots__ = ()

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        *,
        sort: bool = False,
    ) -> KeysView:
        """Return the keys, as a view.

        Parameters
        ----------
        include_nested : bool
            Also those of nested TensorDicts, as tuples.
        leaves_only : bool
            Not those whose entries are TensorDicts.
        is_leaf : callable, optional
            With `leaves_only`, takes a class and says whether its instances are leaves. By default arrays are, and
            neither TensorDicts nor entries of objects that are no arrays.
        sort : bool
            In alphabetical order, nested keys by their parts joined with dots.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2), b={"c": np.ones(2)}, batch_size=[2])
        >>> list(td.keys(include_nested=True, leaves_only=True))
        ['a', ('b', 'c')]
        """
        return KeysView(self, include_nested, leaves_only, sort, is_leaf)

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        *,
        sort: bool = False,
    ) -> ValuesView:
        """Return the entries, in the order of `keys`."""
        return ValuesView(self, include_nested, leaves_only, sort, is_leaf)

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        *,
        sort: bool = False,
    ) -> ItemsView:
        """Return pairs of keys and entries, in the order of `keys`."""
        return ItemsView(self, include_nested, leaves_only, sort, is_leaf)

    @property
    def sorted_keys(self) -> list[str]:
        """The keys of this level in alphabetical order."""
        return sorted(self._source)

    def is_empty(self) -> bool:
        """Whether there is no leaf."""
        return all(isinstance(value, Keys) and value.is_empty() for value in self._source.values())

    def get(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Return the entry of a key, or `default` (``None``) if there is none.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(b={"c": np.ones(2)})
        >>> td.get(("b", "c"))
        array([1., 1.])
        >>> td.get("d") is None
        True
        """
        value = self._find(key)
        if value is not MISSING:
            return value
        if default is not MISSING:
            return default
        if isinstance(error := self._no_key(key), KeyThroughLeafError):
            raise error
        return None

    def get_non_tensor(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Return the object of an entry, or its objects as lists; the entry itself if it is an array or a TensorDict.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict(name="ant").get_non_tensor("name")
        'ant'
        """
        value = self._find(key)
        if value is MISSING:
            if default is MISSING:
                raise self._no_key(key)
            return default
        return value._unwrapped() if isinstance(value, Base) else value

    def set_non_tensor(self, key: NestedKey, value: Any) -> Self:
        """Set an entry of one object, whatever that is: numbers and arrays, too.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict(batch_size=[2]).set_non_tensor("rate", 3)["rate"]
        3
        """
        from corral.tensordict.nontensor import NonTensorData

        return self.set(key, NonTensorData(value, self._batch_size, self._device))

    def setdefault(self, key: NestedKey, default: Any, inplace: bool = False) -> Any:
        """Return an entry, setting it first if there is none."""
        if self._find(key) is MISSING:
            self.set(key, default, inplace=inplace)
        return self.get(key)

    def pop(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Remove an entry and return it, or return `default` if that is given and there is no entry."""
        self._refuse_if_locked()
        value = self._find(key)
        if value is MISSING:
            if default is MISSING:
                raise self._no_key(key)
            return default
        self.del_(key)
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the entry that was added last and return its key and value."""
        self._refuse_if_locked()
        return self._source.popitem()

    def clear(self) -> Self:
        """Remove all entries."""
        self._refuse_if_locked()
        self._source.clear()
        return self

    def empty(
        self, recurse: bool = False, *, batch_size: Any = None, device: Any = MISSING, names: Any = MISSING
    ) -> Self:
        """Return a TensorDict of the same batch size without leaves; with the nested ones if `recurse`.

        Parameters
        ----------
        recurse : bool
            Keep nested TensorDicts, without their leaves.
        batch_size, device, names : optional
            Those of the result, where they shall be others.
        """
        result = self._without_leaves(recurse)
        if device is not MISSING:
            result._set_device(device_name(device))
        if batch_size is not None:
            result.batch_size = batch_size
        if names is not MISSING:
            result._set_names(names)
        return result

    def _without_leaves(self, recurse: bool) -> Self:
        nested = {k: v._without_leaves(True) for k, v in self._source.items() if isinstance(v, Keys)} if recurse else {}
        return self._make(nested, self._batch_size, self._device, self._names)

    def del_(self, key: NestedKey) -> Self:
        """Remove an entry."""
        self._refuse_if_locked()
        first, rest = split(key)
        if first not in self._source or (rest is not None and not isinstance(self._source[first], Base)):
            raise self._no_key(key)
        if rest is None:
            del self._source[first]
        else:
            self._source[first].del_(rest)
        return self

    def __delitem__(self, key: NestedKey) -> None:
        self.del_(key)
