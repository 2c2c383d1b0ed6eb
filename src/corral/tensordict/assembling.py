"""Stack and join TensorDicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from corral.arrays.libraries import copy_into, library_of
from corral.arrays.operations import cat as cat_arrays
from corral.arrays.operations import stack as stack_arrays
from corral.tensordict.base import Base
from corral.tensordict.errors import DimensionError
from corral.tensordict.names import Names, inserted
from corral.tensordict.sizes import Size

__all__ = ["cat", "stack"]

T = TypeVar("T", bound=Base)


def stack(tensordicts: Sequence[T], dim: int = 0, *, out: Any = None) -> T:
    """Return TensorDicts stacked along a new batch dimension.

    Parameters
    ----------
    tensordicts : sequence of TensorDict
        Of one batch size, with the same keys and shapes.
    dim : int
        Where the new dimension goes.
    out : TensorDict, optional
        Write the result into this one.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict, stack
    >>> stack([TensorDict(a=np.arange(2) + i, batch_size=[2]) for i in range(3)])["a"]
    array([[0, 1],
           [1, 2],
           [2, 3]])
    """
    tds = list(tensordicts)
    if not tds:
        raise RuntimeError("list_of_tensordicts cannot be empty")
    first = tds[0]
    size = first._batch_size
    if not -len(size) - 1 <= dim <= len(size):
        raise DimensionError(
            f"Dimension out of range (expected to be in range of [{-len(size) - 1}, {len(size)}], but got {dim})"
        )
    dim %= len(size) + 1
    for i, td in enumerate(tds):
        if td._batch_size != size:
            raise RuntimeError(
                f"stacking tensordicts requires them to have congruent batch sizes, got td[{i}].batch_size="
                f"{td._batch_size} and td[0].batch_size={size}"
            )
    result = _stack(tds, dim, ())
    return result if out is None else _write(out, result)


def _special(entries: Sequence[Any]) -> Any:
    """Return the class that stacks and joins these entries, where it does that by itself."""
    return next((type(each) for each in entries if isinstance(each, Base) and each._joins), None)


def _stack(tds: list[T], dim: int, path: tuple[str, ...]) -> T:
    if (special := _special(tds)) is not None:
        result: T = special._stack_all(tds, dim)
        return result
    first = tds[0]
    names = first._source.keys()
    sources = [td._source for td in tds]
    if any(entries.keys() != names for entries in sources):
        i = next(i for i, entries in enumerate(sources) if entries.keys() != names)
        raise RuntimeError(
            "The sets of keys in the tensordicts to stack are exclusive: tensordict 0 has "
            f"{sorted(names)}{_at(path)}, tensordict {i} has {sorted(sources[i])}"
        )
    source: dict[str, Any] = {}
    for key in names:
        values = [entries[key] for entries in sources]
        kinds = {*map(type, values)}
        nested = isinstance(values[0], Base)
        if len(kinds) > 1 and any(issubclass(kind, Base) is not nested for kind in kinds):
            raise RuntimeError(f"the entry {key!r}{_at(path)} is a leaf in some tensordicts and nested in others")
        if nested:
            source[key] = _stack(values, dim, (*path, key))
            continue
        try:
            source[key] = stack_arrays(values, dim)
            continue
        except (RuntimeError, ValueError, TypeError):
            shape = tuple(values[0].shape)
            if all(value.shape == shape for value in values):
                raise
            i = next(i for i, value in enumerate(values) if value.shape != shape)
            raise RuntimeError(
                f"stack expects each tensor to be equal size: the entry {key!r}{_at(path)} has shape "
                f"{Size(shape)} in tensordict 0 and {Size(values[i].shape)} in tensordict {i}"
            ) from None
    size = first._batch_size
    return first._make(source, Size((*size[:dim], len(tds), *size[dim:])), _device(tds), _names(tds, dim))


def cat(tensordicts: Sequence[T], dim: int = 0, *, out: Any = None) -> T:
    """Return TensorDicts joined along one of their batch dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict, cat
    >>> cat([TensorDict(a=np.arange(n), batch_size=[n]) for n in (1, 2)])["a"]
    array([0, 0, 1])
    """
    tds = list(tensordicts)
    if not tds:
        raise RuntimeError("list_of_tensordicts cannot be empty")
    size = tds[0]._batch_size
    position = dim + len(size) if dim < 0 else dim
    if not 0 <= position < len(size):
        raise DimensionError(
            f"dim must be in the range 0 <= dim < len(batch_size), got dim={dim} and batch_size={size}"
        )
    for i, td in enumerate(tds):
        other = td._batch_size
        if len(other) != len(size) or any(
            mine != theirs for k, (mine, theirs) in enumerate(zip(size, other, strict=True)) if k != position
        ):
            raise RuntimeError(
                f"joining tensordicts along dimension {position} requires the other dimensions to be equal, got "
                f"td[{i}].batch_size={other} and td[0].batch_size={size}"
            )
    result = _cat(tds, position, ())
    return result if out is None else _write(out, result)


def _cat(tds: list[T], dim: int, path: tuple[str, ...]) -> T:
    if (special := _special(tds)) is not None:
        result: T = special._cat_all(tds, dim)
        return result
    first = tds[0]
    names = first._source.keys()
    for i, td in enumerate(tds):
        if td._source.keys() != names:
            raise KeyError(
                f"tensordict {i} has keys {sorted(td._source)}{_at(path)} but tensordict 0 has keys "
                f"{sorted(names)}; all tensordicts must have the same keys"
            )
    source: dict[str, Any] = {}
    for key in names:
        values = [td._source[key] for td in tds]
        if isinstance(values[0], Base):
            source[key] = _cat(values, dim, (*path, key))
            continue
        try:
            source[key] = cat_arrays(values, dim)
        except ValueError as error:
            raise RuntimeError(f"the entries {key!r}{_at(path)} cannot be joined: {error}") from error
    size = first._batch_size
    length = sum(td._batch_size[dim] for td in tds)
    return first._make(source, Size((*size[:dim], length, *size[dim + 1 :])), _device(tds), first._names)


def _device(tds: list[T]) -> str | None:
    device = tds[0]._device
    return device if all(td._device == device for td in tds) else None


def _names(tds: list[T], dim: int) -> Names:
    first = tds[0]._names
    return inserted(first, dim) if first is not None and all(td._names == first for td in tds) else None


def _at(path: tuple[str, ...]) -> str:
    return f" at {path}" if path else ""


def _write(out: Any, result: Any) -> Any:
    if out._joins and not out._holds_objects:
        return out.update(result, inplace=True)
    if out._batch_size != result._batch_size:
        raise RuntimeError(
            f"out.batch_size and stacked batch size must match, got out.batch_size={out._batch_size} and "
            f"batch_size={result._batch_size}"
        )
    for key, value in result._source.items():
        target = out._source.get(key)
        if isinstance(target, Base) and target._holds_objects:
            out._source[key] = value
        elif isinstance(target, Base):
            _write(target, value)
        elif target is None or library_of(target) == "jax":
            out.set(key, value)
        else:
            copy_into(target, value)
    return out
