"""Arithmetic, functions of leaves, memory and the text of a lazy stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from corral.arrays.operations import expand as expand_array
from corral.arrays.operations import unbind as unbind_array
from corral.tensordict.base import Base
from corral.tensordict.lazy_base import LazyBase
from corral.tensordict.printing import fields_text, head_text
from corral.tensordict.sizes import Size

__all__ = ["LazyValues"]

_NUMBERS = (bool, int, float, complex)


class LazyValues(LazyBase):
    """Apply to every member what is applied to a lazy stack."""

    __slots__ = ()

    def _operands(self, other: Any) -> Sequence[Any]:
        """Return each member's part of the other operand."""
        count = len(self.tensordicts)
        if isinstance(other, (Base, Mapping)):
            return self._pieces(other)
        if isinstance(other, _NUMBERS) or not other.shape:
            return [other] * count
        return unbind_array(expand_array(other, self._batch_size), self.stack_dim)

    def _binary(self, function: Any, other: Any, default: Any = None) -> Any:
        if not isinstance(other, (Base, Mapping, *_NUMBERS)) and not hasattr(other, "shape"):
            return NotImplemented
        results = [
            td._binary(function, piece) for td, piece in zip(self.tensordicts, self._operands(other), strict=True)
        ]
        return self._of(results, self.stack_dim)

    def _write_back(self, result: Base) -> Self:
        for td, piece in zip(self.tensordicts, self._pieces(result), strict=True):
            td._write_back(piece)
        return self

    def fill_(self, key: Any, value: Any) -> Self:
        """Set all elements of one entry to one number, in place."""
        for td in self.tensordicts:
            td.fill_(key, value)
        return self

    def _apply(
        self,
        fn: Any,
        others: Sequence[Any],
        size: Size | None,
        inplace: bool,
        default: Any,
        filter_empty: bool | None,
        on_nested: Any,
        named: bool,
        nested_keys: bool,
        path: tuple[str, ...],
    ) -> Any:
        if size is not None:
            return self._common()._apply(
                fn, others, size, inplace, default, filter_empty, on_nested, named, nested_keys, path
            )
        rows = zip(*(self._pieces(other) for other in others), strict=True) if others else [()] * len(self.tensordicts)
        options = inplace, default, filter_empty, on_nested, named, nested_keys, path
        results = [td._apply(fn, row, None, *options) for td, row in zip(self.tensordicts, rows, strict=True)]
        if inplace:
            return self
        if all(each is None for each in results):
            return None
        filled = [td.empty() if each is None else each for td, each in zip(self.tensordicts, results, strict=True)]
        return self._restacked(filled)

    # Memory

    def _adopt(self, other: Any) -> None:
        for td, piece in zip(self.tensordicts, self._pieces(other), strict=True):
            td._adopt(piece)

    def _refuse_nested(self, path: tuple[str, ...] = ()) -> None:
        for td in self.tensordicts:
            td._refuse_nested(path)

    def share_(self) -> Self:
        """Move all leaves in host memory into shared memory, and lock the lazy stack."""
        for td in self.tensordicts:
            td.share_()
        return self.lock_()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.tensordicts, self.stack_dim, self.is_locked, self._stack_name)

    def __repr__(self) -> str:
        head, library = head_text(self)
        common = set(self._source)
        own = {}
        for number, td in enumerate(self.tensordicts):
            extra = [key for key in td._source if key not in common]
            if extra:
                own[number] = fields_text(td.select(*extra, as_tensordict=True), len(td._batch_size), library, 2)
        text = fields_text(self, len(self._batch_size), library, 1)
        exclusive = ", exclusive_fields={" + ", ".join(f"{i}: {shown}" for i, shown in own.items()) + "}" if own else ""
        where = f"stack_dim={self.stack_dim}"
        return f"{type(self).__name__}({head}, {where}, fields={text}{exclusive})"


def _rebuild(kind: Any, members: list[Any], stack_dim: int, locked: bool, stack_name: Any = None) -> Any:
    td = kind._of(members, stack_dim)
    td._stack_name = stack_name
    if locked:
        td._lock(True)
    return td
