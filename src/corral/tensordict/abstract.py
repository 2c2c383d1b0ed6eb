"""What all kinds of TensorDict have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from corral.arrays.operations import clone as clone_array
from corral.tensordict import assembling
from corral.tensordict.arithmetic import Arithmetic
from corral.tensordict.base import Base
from corral.tensordict.casting import Casting
from corral.tensordict.consolidation import Consolidation
from corral.tensordict.conversion import Conversion
from corral.tensordict.converting import Converting
from corral.tensordict.creating import Creating
from corral.tensordict.gradients import Gradients
from corral.tensordict.inspecting import Inspecting
from corral.tensordict.interchange import Interchange
from corral.tensordict.mapping import MapProcesses
from corral.tensordict.masking import Masking
from corral.tensordict.memmap import MemoryMapping
from corral.tensordict.naming import Naming
from corral.tensordict.packing import Packing
from corral.tensordict.padding import Padding
from corral.tensordict.placing import Placing
from corral.tensordict.pointwise import Pointwise
from corral.tensordict.printing import Printing
from corral.tensordict.python_trees import PythonTrees
from corral.tensordict.rearranging import Rearranging
from corral.tensordict.reductions import Reductions
from corral.tensordict.safetensors_files import SafetensorsFiles
from corral.tensordict.selecting import Selecting
from corral.tensordict.sharing import Sharing
from corral.tensordict.sizes import Size, as_size
from corral.tensordict.splitting import Splitting
from corral.tensordict.state import State
from corral.tensordict.stores import Stores
from corral.tensordict.torch_interop import TorchInterop
from corral.tensordict.transfers import Transfers
from corral.tensordict.unary import Unary

__all__ = ["TensorDictBase"]

_SAME: Any = object()


class TensorDictBase(
    Transfers,
    Consolidation,
    MemoryMapping,
    Sharing,
    Conversion,
    Interchange,
    Casting,
    Gradients,
    Pointwise,
    Arithmetic,
    Unary,
    Reductions,
    Masking,
    TorchInterop,
    Naming,
    Rearranging,
    Selecting,
    Creating,
    Padding,
    Splitting,
    MapProcesses,
    Inspecting,
    Packing,
    Placing,
    State,
    Stores,
    SafetensorsFiles,
    Converting,
    PythonTrees,
    Printing,
):
    """What all kinds of TensorDict have in common: dense ones, lazy stacks, and entries that are no arrays."""

    __slots__ = ()

    def auto_batch_size_(self, batch_dims: int | None = None, keep_compliant_size: bool = False) -> Self:
        """Set the batch size to the leading dimensions that all leaves share, `batch_dims` of them at most.

        With `keep_compliant_size` and `batch_dims`, nested TensorDicts of at least that many batch dimensions keep
        theirs.
        """
        if keep_compliant_size and batch_dims is not None and len(self._batch_size) >= batch_dims:
            return self
        shapes = list(_shapes(self))
        if not shapes:
            return self
        size: list[int] = []
        for lengths in zip(*shapes, strict=False):
            if len(set(lengths)) > 1 or lengths[0] < 0 or (batch_dims is not None and len(size) >= batch_dims):
                break
            size.append(lengths[0])
        self.batch_size = size
        for _, value in self._peeks() if self._members() is None else ():
            if isinstance(value, TensorDictBase) and value._members() is None:
                if value._fits_any:
                    value.batch_size = size
                value.auto_batch_size_(batch_dims, keep_compliant_size)
        return self

    def clone(self, recurse: bool = True, **kwargs: Any) -> Self:
        """Return a TensorDict with copies of all leaves, or with the same leaves if not `recurse`.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2))
        >>> td.clone()["a"] is td["a"], td.clone(recurse=False)["a"] is td["a"]
        (False, True)
        """
        if kwargs:
            raise TypeError(f"clone() got an unexpected keyword argument {next(iter(kwargs))!r}")
        return self._map(clone_array if recurse else _same)

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return a TensorDict with copies of all leaves, dense throughout: its lazy stacks are stacked."""
        source = {
            key: value.to_tensordict() if isinstance(value, TensorDictBase) else clone_array(value)
            for key, value in self._source.items()
        }
        return self._make(source, self._batch_size, self._device, self._names)

    def copy(self) -> Self:
        """Return a TensorDict with the same leaves."""
        return self.clone(recurse=False)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Self:
        return self.clone()

    def apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Any = None,
        device: Any = _SAME,
        names: Any = _SAME,
        inplace: bool = False,
        default: Any = _SAME,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Self | None:
        """Apply a function to every leaf, and to the leaves of the same keys of other TensorDicts.

        Parameters
        ----------
        fn : callable
            Takes the leaves of one key; returns the new one, or ``None`` for none.
        *others : TensorDict
            Where the further arguments come from.
        batch_size : sequence of int, optional
            Batch size of the result, where `fn` changes it.
        device : optional
            Device of the result; ``None`` for none.
        names : sequence of str or None, optional
            Names of the result's batch dimensions.
        inplace : bool
            Set the results in this TensorDict, and return it.
        default : optional
            Used for keys that one of the others lacks.
        filter_empty : bool, optional
            Leave out TensorDicts that have become empty. By default, they are left out where all are.
        propagate_lock : bool
            Lock the result if this TensorDict is locked.
        call_on_nested : bool
            Call `fn` with nested TensorDicts, not with their leaves.
        is_leaf : callable, optional
            Takes the class of a nested TensorDict and says whether to call `fn` with it, not with its leaves.
        out : TensorDict, optional
            Gets the results, and is returned.
        **constructor_kwargs
            Accepted for compatibility.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(3), batch_size=[3])
        >>> td.apply(lambda x, y: x + y, td)["a"]
        array([0, 2, 4])
        """
        on_nested = call_on_nested or is_leaf or False
        arguments = batch_size, device, names, inplace, default, filter_empty, propagate_lock, on_nested, out
        return self._applied(fn, others, *arguments, False, False)

    def named_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        nested_keys: bool = False,
        batch_size: Any = None,
        device: Any = _SAME,
        names: Any = _SAME,
        inplace: bool = False,
        default: Any = _SAME,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Self | None:
        """Do the same as `apply`, with the key, or the whole nested key, as the first argument of the function."""
        on_nested = call_on_nested or is_leaf or False
        arguments = batch_size, device, names, inplace, default, filter_empty, propagate_lock, on_nested, out
        return self._applied(fn, others, *arguments, True, nested_keys)

    def _applied(
        self,
        fn: Callable[..., Any],
        others: Sequence[Any],
        batch_size: Any,
        device: Any,
        names: Any,
        inplace: bool,
        default: Any,
        filter_empty: bool | None,
        propagate_lock: bool,
        on_nested: Any,
        out: Any,
        named: bool,
        nested_keys: bool,
    ) -> Self | None:
        size = None if batch_size is None else as_size(batch_size)
        if default is _SAME:
            default = inspect.Parameter.empty
        if out is not None:
            out._refuse_if_locked()
            inplace = False
        result = self._apply(fn, others, size, inplace, default, filter_empty, on_nested, named, nested_keys, ())
        if result is None:
            return None
        if device is None:
            result._set_device(None)
        elif device is not _SAME:
            result = result.to(device)
        if names is not _SAME:
            result._set_names(names)
        if propagate_lock and self._locked:
            result.lock_()
        if out is None:
            return result
        out.update(result)
        return out  # type: ignore[no-any-return]

    def _apply(
        self,
        fn: Callable[..., Any],
        others: Sequence[Any],
        size: Size | None,
        inplace: bool,
        default: Any,
        filter_empty: bool | None,
        on_nested: Any,
        named: bool,
        nested_keys: bool,
        path: tuple[str, ...],
    ) -> Self | None:
        empty = inspect.Parameter.empty
        result = self
        if not inplace:
            names = self._names if size is None else None
            result = self._make({}, self._batch_size if size is None else size, self._device, names)
        found = False
        for key, value in list(self._source.items()):
            entries = []
            for other in others:
                if default is empty:
                    entries.append(other[key])
                else:
                    entries.append(other.get(key, default) if isinstance(other, TensorDictBase) else default)
            where = (*path, key)
            if isinstance(value, TensorDictBase) and not (on_nested is True or (on_nested and on_nested(type(value)))):
                new: Any = value._apply(
                    fn, entries, size, inplace, default, filter_empty, on_nested, named, nested_keys, where
                )
            elif named:
                new = fn(where if nested_keys and path else key, value, *entries)
            else:
                new = fn(value, *entries)
            if new is None:
                continue
            found = True
            if not inplace:
                result._put(key, new)
            elif new is not value:
                result.set_(key, new) if self._locked else result.set(key, new, inplace=True)
        if not found and not inplace and filter_empty is not False and (filter_empty or self._source):
            return None
        return result

    @staticmethod
    def stack(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        """Stack TensorDicts: see `corral.stack`."""
        return assembling.stack(input, dim, out=out)

    @staticmethod
    def cat(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        """Join TensorDicts: see `corral.cat`."""
        return assembling.cat(input, dim, out=out)

    @staticmethod
    def lazy_stack(input: Sequence[Any], dim: int = 0, *, out: Any = None, strict_shape: bool = False) -> Any:
        """Stack TensorDicts without copying them: see `corral.lazy_stack`."""
        from corral.tensordict.lazy import lazy_stack

        return lazy_stack(input, dim, out=out, strict_shape=strict_shape)

    @staticmethod
    def maybe_dense_stack(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        """Stack TensorDicts that are alike, and others lazily: see `corral.maybe_dense_stack`."""
        from corral.tensordict.lazy import maybe_dense_stack

        return maybe_dense_stack(input, dim, out=out)

    def gather_and_stack(
        self, dst: int | None = None, group: Any = None, *, group_dst: int | None = None
    ) -> Self | None:
        """Gather the other ranks' TensorDicts into the rows of this one: see `corral.gather_and_stack`."""
        result: Self | None = _communication().gather_and_stack(self, dst, group, group_dst)
        return result


@functools.cache
def _communication() -> Any:
    """Load what moves TensorDicts when one is first moved: a container by itself needs no process groups."""
    from corral.tensordict import communication

    return communication


def _shapes(td: Base) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of all leaves, and the batch sizes of nested TensorDicts that have none."""
    for _, value in td._peeks():
        if isinstance(value, Base) and value._source:
            yield from list(_shapes(value)) or [tuple(value.shape)]
        elif not (isinstance(value, Base) and value._fits_any):
            yield tuple(value.shape)


def _same(leaf: Any) -> Any:
    return leaf
