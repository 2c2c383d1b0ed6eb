"""Signals in the middle of the engine's work: they are held back until what is known of the frames is whole again."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in a tenth of the time, it says what `signal` does
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Shield"]

_main = threading.main_thread().ident
_last_of_unix = 31  # those above are for real time: seldom used, and many
_never = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_numbers = sorted(int(each) for each in signal.valid_signals() - _never if each <= _last_of_unix)
_handler_of: Callable[[int], Any] = _signal.getsignal


class Shield:
    """Notes signals that the program has a handler for, and wakes whoever waits, instead of running it in between.

    That handler may raise, as that of Ctrl-C does. Only the main thread runs any; elsewhere this does nothing.
    """

    __slots__ = ("_caught", "_handlers", "_mine", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._mine = self._note  # the same object each time, by which it is known again
        self._handlers: dict[int, Any] = {}
        self._caught: list[tuple[Any, int, FrameType | None]] = []

    def __enter__(self) -> Shield:
        if threading.get_ident() == _main:
            self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handlers:
            try:
                self._release()
            finally:
                self._run()

    def _hold(self) -> None:
        try:
            for number in _numbers:
                handler = _handler_of(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._mine)
        except BaseException:  # of a handler that was still the program's
            self._release()
            raise

    def _release(self) -> None:
        """Give the program its handlers back, but for those that it has replaced since."""
        handlers = self._handlers
        try:
            for number in list(handlers):
                if _handler_of(number) is self._mine:
                    signal.signal(number, handlers[number])
                del handlers[number]
        except BaseException:  # of one that has its handler back
            self._release()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        handler = self._handlers.get(number)
        if handler is not None:
            self._caught.append((handler, number, frame))
            self._wake()

    def _run(self) -> None:
        """Run the handlers of what was noted, every one, though one of them raises."""
        if self._caught:
            handler, number, frame = self._caught.pop(0)
            try:
                handler(number, frame)
            finally:
                self._run()

    @property
    def caught(self) -> bool:
        """Whether there was a signal that nobody has been told of yet."""
        return bool(self._caught)

    def deliver(self) -> None:
        """Do what the program does on the signals that have come, with its own handlers in place; that may raise."""
        try:
            self._release()
            self._run()
        finally:
            self._hold()
