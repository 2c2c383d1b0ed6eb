"""An operation under way that a record of what others have goes with."""

from __future__ import annotations

from collections.abc import Callable

from corral.backends.base import Request
from corral.distributed.errors import MismatchError
from corral.wire.errors import PickleError

__all__ = ["Recorded"]


class Recorded:
    """The request of an operation that has two parts: the records, and the arrays.

    Parameters
    ----------
    records, arrays
        The two parts. Records come first.
    check
        Raises `MismatchError` or `PickleError` if the records that have come do not fit.
    """

    __slots__ = ("_arrays", "_check", "_error", "_records")

    def __init__(self, records: Request, arrays: Request, check: Callable[[], None]) -> None:
        self._records = records
        self._arrays = arrays
        self._check: Callable[[], None] | None = check
        self._error: MismatchError | PickleError | None = None

    def wait(self, timeout: float | None = None) -> None:
        self._records.wait(timeout)
        failure: MismatchError | None = None
        try:
            self._arrays.wait(timeout)
        except MismatchError as error:
            failure = error
        self._raise_if_misfit()
        if failure is not None:
            raise failure

    def is_completed(self) -> bool:
        return self._records.is_completed() and (self._records.exception() is not None or self._arrays.is_completed())

    def exception(self) -> BaseException | None:
        failure = self._records.exception()
        if failure is not None:
            return failure
        if self._records.is_completed() and self._arrays.is_completed():
            try:
                self._raise_if_misfit()
            except (MismatchError, PickleError) as error:
                return error
        return self._arrays.exception()

    def source(self) -> int | None:
        return self._arrays.source()

    def _raise_if_misfit(self) -> None:
        """Check once: errors speak of the ranks as they were, and the record may be large."""
        if self._check is not None:
            try:
                self._check()
            except (MismatchError, PickleError) as error:
                self._error = error
            self._check = None
        if self._error is not None:
            raise self._error
