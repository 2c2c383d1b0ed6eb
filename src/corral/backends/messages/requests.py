"""Operations under way, as their callers see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.backends.messages.errors import error_of
from corral.backends.messages.operations import Operation, Receive

if TYPE_CHECKING:
    from corral.backends.messages.backend import MessageBackend

__all__ = ["MessageRequest"]


class MessageRequest:
    """An operation that is under way."""

    __slots__ = ("_backend", "_operation", "_timeout")

    def __init__(self, backend: MessageBackend, operation: Operation) -> None:
        self._backend = backend
        self._operation = operation
        self._timeout = backend.timeout

    def wait(self, timeout: float | None = None) -> None:
        limit = self._backend.timeout if timeout is None else timeout
        if not self._operation.done:
            self._timeout = limit
        self._backend.job.wait(self._operation, limit)
        error = self.exception()
        if error is not None:
            raise error

    def is_completed(self) -> bool:
        return self._backend.job.poll(self._operation)

    def exception(self) -> BaseException | None:
        if not self._operation.done or self._operation.failure is None:
            return None
        return error_of(self._operation, self._backend, self._timeout)

    def source(self) -> int | None:
        operation = self._operation
        if not isinstance(operation, Receive) or not operation.done or operation.failure is not None:
            return None
        return self._backend.members.index(operation.sender)
