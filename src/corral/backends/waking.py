"""How a thread that waits for a transport is woken by those that have something for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Signal"]

_LONGEST = threading.TIMEOUT_MAX


class Signal:
    """A flag that one thread waits for and takes down, and that any thread raises.

    Raised before anyone waits, it ends the next wait at once; raised several times, it does so once.

    Examples
    --------
    >>> signal = Signal()
    >>> signal.set()
    >>> signal.wait(60.0), signal.wait(0.0)
    (True, False)
    """

    __slots__ = ("_lower", "_raise")

    def __init__(self) -> None:
        lock = threading.Lock()  # locked means not raised: such a wait takes one call, and Ctrl-C interrupts it
        lock.acquire()
        self._lower: Callable[[bool, float], bool] = lock.acquire
        self._raise = lock.release

    def set(self) -> None:
        """Raise the flag."""
        try:
            self._raise()
        except RuntimeError:  # it is raised
            pass

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is raised, take it down, and say whether that came before the time was over."""
        if seconds <= 0:
            return self._lower(False, -1)
        return self._lower(True, min(seconds, _LONGEST))
