"""Who may use the transport: one thread at a time, which drives all operations while it waits for its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Gate", "Turns"]


class Gate:
    """What one thread waits at until another opens it."""

    __slots__ = ("_lock", "has_turn")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.has_turn = False

    def open(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # it is open
            pass

    def wait(self, seconds: float | None = None) -> None:
        self._lock.acquire(timeout=-1 if seconds is None else max(seconds, 0.0))


class Turns:
    """A lock that is handed over in order.

    A thread that wants to start something asks for the turn, and whoever has it lets go soon. One that only waits is
    parked: it is told when what it waits for has ended, or when nobody else drives any more.

    Parameters
    ----------
    wake
        Called to make the thread that has the turn look up from its waiting.

    Attributes
    ----------
    held : bool
        Whether some thread has the turn. A call that ends before the interpreter lets another thread run, and for
        which this is false, needs none.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._mutex = threading.Lock()
        self.held = False
        self._asking: deque[Gate] = deque()
        self._parked: deque[Gate] = deque()
        self._wake = wake

    @property
    def wanted(self) -> bool:
        """Whether another thread asks for the turn."""
        return bool(self._asking)

    def take(self) -> None:
        """Wait for the turn."""
        with self._mutex:
            if not self.held:
                self.held = True
                return
            gate = Gate()
            self._asking.append(gate)
        self._wake()
        gate.wait()

    def try_take(self) -> bool:
        """Take the turn if nobody has it."""
        with self._mutex:
            if self.held:
                return False
            self.held = True
            return True

    def give(self) -> None:
        """Hand the turn to a thread that asks for it, or else to one that is parked."""
        with self._mutex:
            if self._asking:
                self._asking.popleft().open()
            elif self._parked:
                gate = self._parked.popleft()
                gate.has_turn = True
                gate.open()
            else:
                self.held = False

    def park(self, gate: Gate, seconds: float | None) -> bool:
        """Let go of the turn until the gate is opened or some seconds have passed; return whether it has come back."""
        gate.has_turn = False
        with self._mutex:
            self._parked.append(gate)
        self.give()
        gate.wait(seconds)
        with self._mutex:
            if not gate.has_turn:
                self._parked.remove(gate)
            return gate.has_turn
