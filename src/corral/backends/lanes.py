"""Threads that wait for one thing after another, where an engine has no other way to learn that something is done."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Lane", "Movement"]


class Movement:
    """A movement of bytes under way: the `Transfer` of a transport whose threads notice its end."""

    __slots__ = ("_done", "_error")

    def __init__(self) -> None:
        self._done = False
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def error(self) -> BaseException | None:
        return self._error

    def end(self, error: BaseException | None = None) -> None:
        """Say that it has ended; the first word counts."""
        if not self._done:
            self._error = error
            self._done = True  # last: whoever sees it may read the error


class Lane:
    """A queue of waits, each in turn, in a thread that is there while the queue is not empty.

    Parameters
    ----------
    name
        Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waits: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unfinished = 0
        self._changed = threading.Condition()

    def add(self, wait: Callable[[], None]) -> None:
        """Call `wait`, which must not raise, in the thread when all earlier ones have returned."""
        with self._changed:
            self._unfinished += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._waits.put(wait)

    def _run(self) -> None:
        while (wait := self._waits.get()) is not None:
            wait()
            del wait  # and the memory that it kept
            with self._changed:
                self._unfinished -= 1
                if not self._unfinished:
                    self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until everything added has returned, and say whether that came before the time was over."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unfinished, max(0.0, seconds))

    def close(self, seconds: float = 0.0) -> bool:
        """Let the thread end when everything added has returned; wait some seconds for it, and say whether it has."""
        self._waits.put(None)
        if self._thread is None:
            return True
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()
