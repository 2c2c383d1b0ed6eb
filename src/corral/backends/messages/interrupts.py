"""Ctrl-C in the middle of the engine's own work: it is held back until what is known of the frames is whole again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Shield"]

_main = threading.main_thread().ident


class Shield:
    """Notes an interrupt, and wakes whoever waits, instead of raising in between.

    Only the main thread receives any; elsewhere this does nothing.
    """

    __slots__ = ("_caught", "_handler", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._handler: Any = None
        self._caught: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Shield:
        if threading.get_ident() == _main:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._caught is not None:
                self.deliver()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._caught = number, frame
        self._wake()

    @property
    def caught(self) -> bool:
        """Whether there was an interrupt that nobody has been told of yet."""
        return self._caught is not None

    def deliver(self) -> None:
        """Do what the program does on an interrupt: usually, raise `KeyboardInterrupt`."""
        if self._caught is not None:
            caught, self._caught = self._caught, None
            self._handler(*caught)
