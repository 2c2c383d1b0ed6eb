"""A bar in the terminal for what takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["Bar"]

_LONG = 1 << 28


class Bar:
    """Counts bytes, and shows how many of them are done.

    Parameters
    ----------
    label : str
        What is being done.
    total : int, optional
        How many bytes there are, where that is known.
    show : bool, optional
        Whether to show it. By default where the standard error is a terminal and there is much to do.

    Examples
    --------
    >>> with Bar("Saving", 100, show=False) as bar:
    ...     bar.advance(100)
    """

    def __init__(self, label: str, total: int | None, show: bool | None = None) -> None:
        self._label = label
        self._total = total
        self._show = sys.stderr.isatty() and (total or 0) >= _LONG if show is None else show
        self._bar: Any = None
        self._advance: Callable[[int], None] | None = None

    def __enter__(self) -> Self:
        if not self._show:
            return self
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._bar.start()
        task = self._bar.add_task(self._label, total=self._total)
        self._advance = lambda count: self._bar.advance(task, count)
        return self

    def advance(self, count: int) -> None:
        """Count what has been done."""
        if self._advance is not None:
            self._advance(count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
