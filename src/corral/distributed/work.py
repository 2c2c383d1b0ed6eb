"""Operations under way: :class:`Work`, and the :class:`Future` of its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from corral.distributed.errors import DistTimeoutError

if TYPE_CHECKING:
    from corral.backends.base import Request

__all__ = ["Future", "Work", "seconds"]

_POLL_FIRST, _POLL_LAST = 20e-6, 10e-3
_IDLE = 5.0  # seconds that the thread which looks for completed operations stays when there are none


def seconds(timeout: timedelta | float | None, name: str = "timeout") -> float | None:
    """Return a timeout in seconds; ``None`` stays ``None``.

    Examples
    --------
    >>> seconds(timedelta(minutes=2)), seconds(3), seconds(None)
    (120.0, 3.0, None)
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        value = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        value = float(timeout)
    else:
        raise TypeError(f"{name} must be a datetime.timedelta or a number of seconds, got {type(timeout).__qualname__}")
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {timeout!r}")
    return value


class Work:
    """One asynchronous operation.

    It can be waited for in a thread (`wait`), asked (`is_completed`), awaited in asyncio, or turned into a
    `Future`. Whatever was passed to the operation must not be used until it has completed.
    """

    __slots__ = ("_error", "_finish", "_future", "_lock", "_request", "_result", "_timeout")

    def __init__(
        self,
        request: Request,
        result: list[Any],
        finish: Callable[[], None] | None = None,
        timeout: float = 300.0,
    ) -> None:
        self._request = request
        self._result = result
        self._finish = finish
        self._timeout = timeout
        self._lock = None if finish is None else threading.Lock()
        self._future: Future | None = None
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Block until the operation is complete.

        Parameters
        ----------
        timeout
            A `datetime.timedelta` or seconds; the group's timeout when ``None`` or, as in torch, zero.

        Returns
        -------
        bool
            Always true.

        Raises
        ------
        DistError
            Whatever made the operation fail, or `DistTimeoutError`.
        """
        if timeout is None or not timeout:
            self._request.wait(None)
        else:
            self._request.wait(seconds(timeout))
        if self._finish is not None:
            self._complete()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not. Never blocks."""
        if not self._request.is_completed():
            return False
        if self._finish is not None and self._request.exception() is None:
            self._complete()
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of an operation that failed; ``None`` if it did not, or not yet."""
        return self._error or self._request.exception()

    def result(self) -> list[Any]:
        """Return the arrays that a completed operation has filled."""
        if not self.is_completed():
            raise RuntimeError("the operation has not completed: call wait() before result()")
        error = self.exception()
        if error is not None:
            raise error
        return self._result

    def source_rank(self) -> int:
        """Return the group rank that a completed receive came from."""
        source = self._request.source()
        if source is None:
            raise RuntimeError("only a completed receive has a source rank")
        return source

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    def get_future(self) -> Future:
        """Return the future of `result`; always the same one."""
        if self._future is None:
            self._future = Future(self)
        return self._future

    def _complete(self) -> None:
        lock = self._lock
        if lock is None:
            return
        with lock:
            if self._finish is None:
                return
            try:
                self._finish()
            except BaseException as error:
                self._error = error
            self._finish = None  # only now: whoever sees this may read the arrays

    def __await__(self) -> Generator[Any, None, list[Any]]:
        if not self.is_completed():
            import asyncio

            loop = asyncio.get_running_loop()
            ready: asyncio.Future[None] = loop.create_future()

            def settle() -> None:
                if not ready.done():
                    ready.set_result(None)

            def wake(_: Future) -> None:
                loop.call_soon_threadsafe(settle)

            self.get_future().add_done_callback(wake)
            yield from ready.__await__()
            if not self.is_completed():  # the watcher gave up on it
                raise self.get_future().exception() or DistTimeoutError("the operation timed out")
        return self.result()

    def __repr__(self) -> str:
        if not self.is_completed():
            return "<Work under way>"
        error = self.exception()
        return "<Work completed>" if error is None else f"<Work failed: {type(error).__name__}: {error}>"


class Future:
    """The result of an operation, or of a function of it, once there is one."""

    def __init__(self, work: Work | None = None) -> None:
        self._work = work
        self._condition = threading.Condition()
        self._callbacks: list[Callable[[Future], Any]] = []
        self._done = False
        self._watched = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether there is a result, or an error instead."""
        if not self._done and self._work is not None and self._work.is_completed():
            self._settle_from_work()
        return self._done

    def wait(self) -> Any:
        """Block until there is a result, and return it, or raise the error."""
        if not self._done and self._work is not None:
            try:
                self._work.wait()
            except BaseException:
                if not self._work.is_completed():
                    raise
            self._settle_from_work()
        with self._condition:
            self._condition.wait_for(lambda: self._done)
        return self.value()

    def value(self) -> Any:
        """Return the result, or raise the error, of a future that is done."""
        if not self.done():
            raise RuntimeError("the future is not done: call wait()")
        if self._error is not None:
            raise self._error
        return self._value

    result = wait

    def exception(self) -> BaseException | None:
        """Return the error of a future that is done with one."""
        return self._error if self.done() else None

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """Return a future of ``callback(self)``, called when this one is done."""
        following = Future()

        def follow(_: Future) -> None:
            try:
                value = callback(self)
            except BaseException as error:
                following._settle(None, error)
            else:
                following._settle(value, None)

        self.add_done_callback(follow)
        return following

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call ``callback(self)`` once this future is done: at once if it is, else in another thread."""
        self.done()  # what has ended since somebody asked needs no thread
        with self._condition:
            if not self._done:
                self._callbacks.append(callback)
                watch = self._work is not None and not self._watched
                self._watched = True
                callback_now = False
            else:
                watch, callback_now = False, True
        if callback_now:
            callback(self)
        elif watch:
            _watcher.add(self)

    def _settle_from_work(self, error: BaseException | None = None) -> None:
        assert self._work is not None
        error = error or self._work.exception()
        self._settle(None if error else self._work._result, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        with self._condition:
            if self._done:
                return
            self._value, self._error, self._done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._condition.notify_all()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                import logging

                logging.getLogger("corral").exception("a callback of a future failed")


class _Watcher:
    """A thread, there while somebody waits for a callback, that notices completed operations.

    It waits for the one that was started first, since operations mostly end in order, where its engine lets it.
    Otherwise it looks again after a tenth of the time that the youngest has been under way. In either case it looks at
    all of them every 10 ms: short operations are noticed soon, and long ones cost nothing.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._pending: list[tuple[float, Future]] = []
        self._running = False

    def add(self, future: Future) -> None:
        with self._condition:
            self._pending.append((time.monotonic(), future))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="corral-futures", daemon=True).start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                # A new thread takes longer to start than most operations take: one that may be needed again stays.
                if not self._condition.wait_for(lambda: self._pending, _IDLE):
                    self._running = False
                    return
                pending = list(self._pending)
            self._linger(pending[0][1])
            done = {id(future) for started, future in pending if self._look(started, future)}
            with self._condition:
                self._pending = [entry for entry in self._pending if id(entry[1]) not in done]

    def _linger(self, future: Future) -> None:
        """Wait until it may be worth looking."""
        work = future._work
        assert work is not None
        linger = getattr(work._request, "linger", None)
        if linger is not None:
            linger(_POLL_LAST)
        elif not future.done():
            with self._condition:
                age = time.monotonic() - self._pending[-1][0]
                self._condition.wait(min(max(age / 10, _POLL_FIRST), _POLL_LAST))

    @staticmethod
    def _look(started: float, future: Future) -> bool:
        if future.done():
            return True
        work = future._work
        assert work is not None
        if time.monotonic() - started > work._timeout:
            try:
                work._request.wait(1e-3)
            except DistTimeoutError as error:
                future._settle_from_work(error)
                return True
            except BaseException:
                return future.done()
        return False


_watcher = _Watcher()
