"""TensorDicts stacked without copying them: each stays what it is, with shapes and keys of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from corral.arrays.libraries import library_of
from corral.arrays.operations import stack as stack_arrays
from corral.arrays.padding import nested
from corral.tensordict import assembling, pytrees
from corral.tensordict.abstract import TensorDictBase
from corral.tensordict.base import Base
from corral.tensordict.dense import TensorDict
from corral.tensordict.errors import DimensionError
from corral.tensordict.lazy_base import LazyBase
from corral.tensordict.lazy_files import LazyFiles
from corral.tensordict.lazy_inspecting import LazyInspecting
from corral.tensordict.lazy_keys import LazyKeys
from corral.tensordict.lazy_masks import LazyMasks

__all__ = ["LazyStackedTensorDict", "dense_stack_tds", "lazy_stack", "maybe_dense_stack"]


class LazyStackedTensorDict(LazyKeys, LazyMasks, LazyInspecting, LazyFiles):
    """A stack of TensorDicts that are kept as they are.

    Its keys are those that all members have. Reading an entry stacks it; writing one writes to the members.
    Arrays of one key may differ in shape, and members in keys.

    Parameters
    ----------
    *tensordicts : TensorDict
        The members.
    stack_dim : int
        Where the new dimension goes.
    strict_shape : bool
        Refuse members of different batch sizes; otherwise the batch size has -1 where they differ.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import LazyStackedTensorDict, TensorDict
    >>> td = LazyStackedTensorDict(TensorDict(a=np.zeros(2), b=np.zeros(1)), TensorDict(a=np.ones(3), b=np.ones(1)))
    >>> td["b"]
    array([[0.],
           [1.]])
    >>> [a.shape for a in td.get("a", as_list=True)], td[1]["a"]
    ([(2,), (3,)], array([1., 1., 1.]))
    >>> td["a"]
    Traceback (most recent call last):
        ...
    RuntimeError: Failed to stack tensors within a tensordict under the key 'a': their shapes are ...
    """

    __slots__ = ()

    def __init__(self, *tensordicts: Any, stack_dim: int = 0, strict_shape: bool = False) -> None:
        members = list(tensordicts)
        if not members:
            raise RuntimeError("items cannot be empty: a lazy stack needs a TensorDict at least")
        for td in members:
            if not isinstance(td, TensorDictBase) or td._holds_objects:
                raise TypeError(f"a lazy stack is made of TensorDicts, not of a {type(td).__name__}")
        sizes = [td._batch_size for td in members]
        if len({len(size) for size in sizes}) > 1 or (strict_shape and len({*sizes}) > 1):
            raise RuntimeError(
                f"batch sizes in tensordicts differs, LazyStackedTensorDict cannot be created: they are {sizes}. "
                "Batches of the same number of dimensions can be stacked, unless strict_shape is set."
            )
        count = len(sizes[0])
        if not -count - 1 <= stack_dim <= count:
            raise DimensionError(f"Stack dim {stack_dim} is too big for batch size {sizes[0]}.")
        self._locked = False
        self._set(members, stack_dim % (count + 1))

    def to_tensordict(self, **ignored: Any) -> Any:
        """Return a TensorDict with stacked copies of all entries that all members have."""
        entries = self._source
        source = {
            key: value.to_tensordict() if isinstance(value, LazyBase) else value for key, value in entries.items()
        }
        return TensorDict._make(source, self._batch_size, self._device, self._names)

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Return the same as `to_tensordict`."""
        return self.to_tensordict()

    def is_contiguous(self) -> bool:
        """Whether leaves are contiguous: those of a lazy stack are made when they are read."""
        return False

    def _has_lazy(self) -> bool:
        return True

    def _densified(self, layout: Any) -> Any:
        others = self._other_keys()
        if others:
            raise RuntimeError(f"densify: some members alone have the keys {others}: exclude or add them first")
        source = {key: self._dense_entry(key, layout) for key in self._source}
        return TensorDict._make(source, self._batch_size, self._device, self._names)

    def _dense_entry(self, key: str, layout: Any) -> Any:
        entries = self._source
        values = entries.column(key)
        if any(isinstance(value, Base) for value in values):
            nested_td = entries[key]
            return nested_td._densified(layout) if isinstance(nested_td, LazyBase) else nested_td
        if len({tuple(value.shape) for value in values}) == 1:
            return entries[key]
        import torch

        return nested(values, layout or torch.strided)

    def insert(self, index: int, tensordict: Any) -> None:
        """Add a member before the one of a number."""
        self._refuse_if_locked()
        if not isinstance(tensordict, TensorDictBase) or tensordict._holds_objects:
            raise TypeError(f"a lazy stack takes TensorDicts, not a {type(tensordict).__name__}")
        rest = self.tensordicts[0]._batch_size
        if tensordict._batch_size != rest:
            raise ValueError(
                f"Batch sizes in tensordicts differs: stack has batch_size={rest}, new_value has "
                f"batch_size={tensordict._batch_size}."
            )
        if tensordict._contains(self):
            raise ValueError("Cannot insert a lazy stack, or what it is a part of, inside itself: insert a copy")
        self.tensordicts.insert(index, tensordict)
        self._update_size()

    def append(self, tensordict: Any) -> None:
        """Add a member at the end."""
        self.insert(len(self.tensordicts), tensordict)

    def extend(self, tensordict: Iterable[Any]) -> None:
        """Add several members at the end."""
        for td in list(tensordict):
            self.append(td)

    @classmethod
    def _stack_all(cls, entries: Sequence[Any], dim: int) -> Any:
        found = _lazies(entries)
        if found is None:
            return assembling.stack([td._dense() if isinstance(td, LazyBase) else td for td in entries], dim)
        stack_dim = found[0].stack_dim
        inner = dim - (dim > stack_dim)
        columns = zip(*(td.tensordicts for td in found), strict=True)
        try:
            members = [assembling.stack(column, inner) for column in columns]
        except RuntimeError:  # those of one number do not fit together, either
            return cls._of(found, dim)
        return cls._of(members, stack_dim + (dim <= stack_dim))

    @classmethod
    def _cat_all(cls, entries: Sequence[Any], dim: int) -> Any:
        stack_dim = next(td.stack_dim for td in entries if isinstance(td, LazyBase))
        if dim == stack_dim:
            return cls._of([part for td in entries for part in td._unbind(dim)], dim)
        columns = zip(*(td._unbind(stack_dim) for td in entries), strict=True)
        return cls._of([assembling.cat(column, dim - (dim > stack_dim)) for column in columns], stack_dim)


def _lazies(entries: Sequence[Any]) -> list[LazyBase] | None:
    """Return entries that are lazy stacks of one kind, or ``None``."""
    found = [td for td in entries if isinstance(td, LazyBase)]
    alike = {(td.stack_dim, len(td.tensordicts)) for td in found}
    return found if len(found) == len(entries) and len(alike) == 1 else None


def lazy_stack(items: Sequence[Any], dim: int = 0, *, out: Any = None, strict_shape: bool = False) -> Any:
    """Return TensorDicts stacked without copying them; arrays, and objects that are no arrays, are stacked as ever.

    Parameters
    ----------
    items : sequence of TensorDict
        The members, whose shapes and keys may differ.
    dim : int
        Where the new dimension goes.
    out : TensorDict, optional
        Write the result into this one.
    strict_shape : bool
        Refuse members of different batch sizes.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict, lazy_stack
    >>> td = lazy_stack([TensorDict(a=np.zeros(n)) for n in (2, 3)])
    >>> td.batch_size, td[1]["a"]
    (Size([2]), array([0., 0., 0.]))
    """
    members = list(items)
    if not members:
        raise RuntimeError("items cannot be empty")
    if not isinstance(members[0], Base):
        shapes = [tuple(getattr(each, "shape", ())) for each in members]
        if any(library_of(each) == "other" for each in members) or len({*shapes}) > 1:
            raise RuntimeError(f"lazy_stack takes TensorDicts, or arrays of one shape; the shapes are {shapes}")
        return stack_arrays(members, dim)
    if members[0]._holds_objects:
        return assembling.stack(members, dim, out=out)
    result: Any = LazyStackedTensorDict(*members, stack_dim=dim, strict_shape=strict_shape)
    kind = LazyStackedTensorDict._kind_for(members)
    if kind is not LazyStackedTensorDict:
        result = kind._of(members, result.stack_dim)
    return result if out is None else out.update(result, inplace=True)


def maybe_dense_stack(items: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Return TensorDicts stacked: to a dense one where their keys and shapes are alike, and lazily otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict, maybe_dense_stack
    >>> [type(maybe_dense_stack([TensorDict(a=np.zeros(n)), TensorDict(a=np.zeros(2))])).__name__ for n in (2, 3)]
    ['TensorDict', 'LazyStackedTensorDict']
    """
    try:
        return assembling.stack(items, dim, out=out)
    except RuntimeError:
        return lazy_stack(items, dim, out=out)


def dense_stack_tds(td_list: Any, dim: int | None = None) -> Any:
    """Return what `maybe_dense_stack` does, of a list of TensorDicts or of the members of a lazy stack.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict, dense_stack_tds, lazy_stack
    >>> type(dense_stack_tds(lazy_stack([TensorDict(a=np.zeros(2)), TensorDict(a=np.ones(2))]))).__name__
    'TensorDict'
    """
    if isinstance(td_list, LazyBase):
        return maybe_dense_stack(td_list.tensordicts, td_list.stack_dim if dim is None else dim)
    if dim is None:
        raise ValueError("If a list of tensordicts is provided, dim must not be None")
    return maybe_dense_stack(td_list, dim)


pytrees.register_kind(LazyStackedTensorDict)
