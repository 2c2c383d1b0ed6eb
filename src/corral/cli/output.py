"""The ranks' output, line by line, with the rank before each line."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from rich.console import Console
from rich.style import Style

__all__ = ["LineWriter", "Prefixes"]

_CHUNK = 1 << 16
_LONGEST = 1 << 20  # bytes of a line that are waited for before it is shown in parts
_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red")


class Prefixes:
    """What is put before the lines of each rank: in its color, where a terminal shows them."""

    def __init__(self) -> None:
        self._consoles = {1: Console(file=sys.stdout), 2: Console(file=sys.stderr)}

    def of(self, rank: int, descriptor: int) -> bytes:
        """Return the prefix of a rank on standard output (1) or standard error (2)."""
        console = self._consoles[descriptor]
        text = f"[{rank}] "
        if console.is_terminal and console.color_system is not None and not console.no_color:
            text = Style(color=_COLORS[rank % len(_COLORS)]).render(f"[{rank}]") + " "
        return text.encode()


class LineWriter:
    """Copies what comes out of a pipe to a file, whole lines at a time, each with a prefix.

    Parameters
    ----------
    source
        Descriptor to read from; this object owns it.
    target
        Where the lines go. Nobody else may write half a line to it.
    prefix
        What to put before each line.
    """

    def __init__(self, source: int, target: BinaryIO, prefix: bytes) -> None:
        os.set_blocking(source, False)
        self._source = source
        self._target = target
        self._prefix = prefix
        self._partial = bytearray()

    def fileno(self) -> int:
        return self._source

    def copy(self) -> bool:
        """Copy the lines that have come; false when there is nothing more to come."""
        try:
            data = os.read(self._source, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._partial += data
        end = self._partial.rfind(b"\n") + 1
        if end == 0 and len(self._partial) > _LONGEST:
            end = len(self._partial)
        if end:
            self._write(bytes(self._partial[:end]))
            del self._partial[:end]
        return True

    def finish(self) -> None:
        """Copy what is left, an unfinished last line included, and close the pipe."""
        while True:
            try:
                data = os.read(self._source, _CHUNK)
            except BlockingIOError:  # a process that outlived the rank may still have the other end
                break
            if not data:
                break
            self._partial += data
        os.close(self._source)
        if self._partial:
            self._write(bytes(self._partial))
            self._partial.clear()

    def _write(self, text: bytes) -> None:
        """Write lines, in one piece."""
        lines = text.split(b"\n")  # and at nothing else: a carriage return stays within its line
        if not lines[-1]:
            lines.pop()
        self._target.write(b"".join(b"%b%b\n" % (self._prefix, line) for line in lines))
        self._target.flush()
