"""How a TensorDict is shown."""

from __future__ import annotations

import re
from typing import Any

from corral.arrays.libraries import dtype_name, library_of
from corral.tensordict.base import Base

__all__ = ["Printing", "describe", "fields_text", "head_text"]

_SHORT = re.compile(r"(float|uint|int|complex)(\d+)$")
_LETTERS = {"float": "f", "uint": "u", "int": "i", "complex": "c"}
_WIDTH = 100


class Printing(Base):
    """Show keys, shapes, dtypes and libraries."""

    __slots__ = ()

    def __repr__(self) -> str:
        head, library = head_text(self)
        return f"{type(self).__name__}({head}, fields={fields_text(self, len(self._batch_size), library, 1)})"

    def _repr_html_(self) -> str:
        """Return the table that notebooks show."""
        from corral.tensordict.notebooks import html_table

        return html_table(self)


def head_text(td: Base) -> tuple[str, str | None]:
    """Return what is shown before the fields, and the library of all leaves if it is one."""
    libraries = sorted({library_of(leaf) for leaf in td._leaves()})
    single = libraries[0] if len(libraries) == 1 else None
    head = f"batch_size=[{','.join(map(str, td._batch_size))}]"
    if td._device is not None:
        head += f", device={td._device}"
    if single:
        head += f", library={single}"
    if td._locked:
        head += ", is_locked=True"
    return head, single


def fields_text(td: Base, batch_dims: int, library: str | None, level: int) -> str:
    """Return keys with the dtypes and shapes of their entries, without the batch dimensions."""
    parts = [f"{key}: {_entry(value, batch_dims, library, level)}" for key, value in td._shown()]
    line = "{" + ", ".join(parts) + "}"
    if "\n" not in line and len(line) + 4 * level <= _WIDTH:
        return line
    indent = "\n" + "    " * level
    return "{" + indent + ("," + indent).join(parts) + "}"


def _entry(value: Any, batch_dims: int, library: str | None, level: int) -> str:
    if value is None:
        return "None"
    if isinstance(value, Base):
        if value._holds_objects:
            return value._label()  # type: ignore[attr-defined, no-any-return]
        shown = type(value)._prefix() + fields_text(value, len(value._batch_size), library, level + 1)
        extra = value._batch_size[batch_dims:]
        return f"[{','.join(map(str, extra))}] {shown}" if extra else shown
    return describe(value, batch_dims, library)


def describe(value: Any, batch_dims: int = 0, library: str | None = None) -> str:
    """Return the dtype and shape of an array in short, without its batch dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> describe(np.zeros((3, 4), "float32"), 1)
    'numpy.f32[4]'
    """
    name = _SHORT.sub(lambda match: _LETTERS[match[1]] + match[2], dtype_name(value))
    name = "bf16" if name == "bfloat16" else name
    prefix = "" if library else f"{library_of(getattr(value, 'example', value))}."
    return f"{prefix}{name}[{','.join(map(str, value.shape[batch_dims:]))}]"
