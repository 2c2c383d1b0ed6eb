"""The entries of a lazy stack as one mapping: read, they are stacked; written, they go to the members."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

from corral.arrays.operations import stack as stack_arrays
from corral.arrays.operations import unbind as unbind_array
from corral.tensordict.base import Base
from corral.tensordict.sizes import Size

__all__ = ["LazyEntries", "Ragged", "common_shape"]


class Ragged(NamedTuple):
    """Stands for arrays of different shapes where a TensorDict is shown: an example, and -1 where they differ."""

    example: Any
    shape: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        """The dtype of the example."""
        return self.example.dtype


def common_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return a shape with -1 where shapes differ; a single -1 if they differ in their number of dimensions.

    Examples
    --------
    >>> common_shape([(2, 3), (2, 4)]), common_shape([(2,), (2, 4)])
    ((2, -1), (-1,))
    """
    if len({len(shape) for shape in shapes}) > 1:
        return (-1,)
    return tuple(lengths[0] if len({*lengths}) == 1 else -1 for lengths in zip(*shapes, strict=True))


class LazyEntries(MutableMapping[str, Any]):
    """What a lazy stack has in place of a dict of entries."""

    __slots__ = ("_lazy",)

    def __init__(self, lazy: Any) -> None:
        self._lazy = lazy

    def __iter__(self) -> Iterator[str]:
        first, *others = self._lazy.tensordicts
        return iter([key for key in first._source if all(key in td._source for td in others)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return all(key in td._source for td in self._lazy.tensordicts)

    def column(self, key: str) -> list[Any]:
        """Return the members' entries of a key."""
        return [td._source[key] for td in self._lazy.tensordicts]

    def __getitem__(self, key: str) -> Any:
        values = self.column(key)
        nested = self._nested(key, values)
        if nested is not None:
            return nested
        shapes = [Size(value.shape) for value in values]
        if len({*shapes}) > 1:
            raise RuntimeError(
                f"Failed to stack tensors within a tensordict under the key {key!r}: their shapes are {shapes}. To "
                "read them, pass as_list=True, as_padded_tensor=True or as_nested_tensor=True to get()."
            )
        return stack_arrays(values, self._lazy.stack_dim)

    def _nested(self, key: str, values: list[Any]) -> Any:
        kinds = {isinstance(value, Base) and (1 + value._holds_objects) for value in values}
        if kinds == {False}:
            return None
        if len(kinds) > 1:
            raise RuntimeError(
                f"Failed to stack the entries under the key {key!r}: they are {[type(v).__name__ for v in values]}, of "
                "which some are arrays and others not"
            )
        if kinds == {2}:
            return values[0]._stack_all(values, self._lazy.stack_dim)
        nested = self._lazy._kind_for(values)._of(values, self._lazy.stack_dim)
        nested._stack_name = self._lazy._stack_name
        return nested

    def peek(self, key: str) -> Any:
        """Return what an entry is like, without stacking it."""
        values = [td._peek(key) for td in self._lazy.tensordicts]
        if isinstance(values[0], Base):
            return values[0] if values[0]._holds_objects else self._nested(key, values)
        example = values[0].example if isinstance(values[0], Ragged) else values[0]
        return Ragged(example, self._stacked([getattr(value, "shape", ()) for value in values]))

    def _stacked(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the shape that stacking entries of some shapes gives, with -1 where they differ."""
        shape, dim = common_shape(shapes), self._lazy.stack_dim
        return (*shape[:dim], len(shapes), *shape[dim:])

    def __setitem__(self, key: str, value: Any) -> None:
        lazy = self._lazy
        for td in lazy.tensordicts:
            td._refuse_if_locked()
        pieces = value._unbind(lazy.stack_dim) if isinstance(value, Base) else unbind_array(value, lazy.stack_dim)  # type: ignore[attr-defined]
        for td, piece in zip(lazy.tensordicts, pieces, strict=True):
            td._put(key, piece)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        for td in self._lazy.tensordicts:
            td._refuse_if_locked()
        for td in self._lazy.tensordicts:
            del td._source[key]

    def popitem(self) -> tuple[str, Any]:
        """Remove the entry that was added last."""
        *_, key = self
        return key, self.pop(key)
