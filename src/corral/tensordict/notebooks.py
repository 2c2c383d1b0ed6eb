"""How a TensorDict is shown in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any, TypeAlias

from corral.arrays.libraries import dtype_name, library_of
from corral.tensordict.base import Base

__all__ = ["html_table"]

_Row: TypeAlias = tuple[int, str, str, str, str, str]
_MOST_ROWS = 200
_INDENT = 1.2  # em for each level
_CELL = "text-align: left; padding: 0.1em 0.8em; white-space: nowrap"


def html_table(td: Base) -> str:
    """Return a table of a TensorDict's keys, with the shape, dtype, device and library of each entry.

    No value is read, and nothing is loaded from files.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> "<td" in html_table(TensorDict(obs=np.zeros((3, 4)), batch_size=[3]))
    True
    """
    about = [f"batch_size=[{','.join(map(str, td._batch_size))}]"]
    if td._device is not None:
        about.append(f"device={td._device}")
    names = td._names
    if names is not None:
        about.append(f"names={list(names)}")
    if td._locked:
        about.append("locked")
    heading = f"<b>{html.escape(type(td).__name__)}</b> {html.escape(', '.join(about))}"
    lines: list[str] = []
    rows = _rows(td, 0)
    if hasattr(td, "_outline"):  # it is in a file: what its entries are like is known without reading them
        stored: Any = td._source
        if not stored.group:
            return f"<div><b>{html.escape(type(td).__name__)}</b> closed</div>"
        rows = ((*cells[:5], cells[5] and stored.library) for cells in _rows(td._outline(), 0))
    for cells in rows:
        if len(lines) == _MOST_ROWS:
            more = 1 + sum(1 for _ in rows)
            lines.append(f'<tr><td colspan="5" style="{_CELL}">and {more} more</td></tr>')
            break
        lines.append(_line(*cells))
    head = "".join(f'<th style="{_CELL}">{title}</th>' for title in ("key", "shape", "dtype", "device", "library"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>" if lines else ""
    return f"<div>{heading}{table}</div>"


def _line(level: int, key: str, *cells: str) -> str:
    first = f'<td style="{_CELL}; padding-left: {0.8 + _INDENT * level:.1f}em">{html.escape(key)}</td>'
    rest = "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in cells)
    return f"<tr>{first}{rest}</tr>"


def _rows(td: Base, level: int) -> Iterator[_Row]:
    """Yield the level, key, shape, dtype, device and library of all entries, nested ones below theirs."""
    for key, value in td._shown():
        if isinstance(value, Base):
            shape = _shape(value._batch_size)
            if value._holds_objects:
                label: str = value._label()  # type: ignore[attr-defined]
                yield level, key, shape, label, "", ""
            else:
                yield level, key, shape, type(value).__name__, str(value._device or ""), ""
                yield from _rows(value, level + 1)
        elif value is None:
            yield level, key, "", "None", "", ""
        elif not hasattr(value, "dtype"):
            yield level, key, "", type(value).__name__, "", ""
        else:
            array: Any = getattr(value, "example", value)
            yield level, key, _shape(value.shape), dtype_name(array), _device(array), _library(array)


def _shape(shape: Any) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _device(array: Any) -> str:
    device = getattr(array, "device", None)
    return "cpu" if device is None else str(device)


def _library(array: Any) -> str:
    library = library_of(array)
    return type(array).__module__.partition(".")[0] if library == "other" else library
