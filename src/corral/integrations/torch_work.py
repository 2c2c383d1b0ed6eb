"""Operations under way as torch knows them: ``torch.distributed.Work``, and its future."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from corral.distributed.work import Future, Work

__all__ = ["FinishedWork", "JoinedWork", "PendingWork", "finished"]

_PATIENCE = 50e-6
"""Seconds that whoever asks for a future waits for it to be complete: making one that is costs less."""


class FinishedWork(dist.Work):  # type: ignore[misc]
    """An operation that had ended well when its call returned.

    Attributes
    ----------
    outputs : list
        What it has filled: the value of its future. To be set at once: a constructor of its own would double what such
        an object costs.
    """

    outputs: list[Any]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return true."""
        return True

    def get_future(self) -> Any:
        """Return a future of the outputs."""
        future: torch.futures.Future[list[Any]] = torch.futures.Future()
        future.set_result(self.outputs)
        return future

    def is_completed(self) -> bool:
        """Return true."""
        return True

    def is_success(self) -> bool:
        """Return true."""
        return True

    def exception(self) -> None:
        """Return ``None``: it has not failed."""

    def result(self) -> list[Any]:
        """Return the outputs."""
        return self.outputs

    def synchronize(self) -> None:
        """Do nothing."""

    block_current_stream = synchronize


def finished(outputs: list[Any]) -> FinishedWork:
    """Return the work of an operation that has ended well."""
    work = FinishedWork()
    work.outputs = outputs
    return work


class PendingWork(dist.Work):  # type: ignore[misc]
    """An operation that the engine carries out meanwhile.

    Parameters
    ----------
    work
        The operation.
    outputs
        What it fills: the value of its future.
    limit
        Seconds to wait for it where `wait` is given no time; the group's timeout when ``None``.
    """

    def __init__(self, work: Work, outputs: list[Any], limit: float | None = None) -> None:
        super().__init__()
        self._work = work
        self._outputs = outputs
        self._limit = limit
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is complete, or raise what made it fail.

        Parameters
        ----------
        timeout
            How long; as the group or the call says when zero, torch's default.
        """
        return self._work.wait(timeout or self._limit)

    def get_future(self) -> Any:
        """Return the future of the outputs. It completes whether or not anybody waits."""
        if self._future is None:
            self._future = torch.futures.Future()
            # Ranks in step are done before the thread that watches would notice.
            patience = time.perf_counter() + _PATIENCE
            while not self._work.is_completed() and time.perf_counter() < patience:
                pass
            self._work.get_future().add_done_callback(self._settle)
        return self._future

    def _settle(self, done: Future) -> None:
        error = done.exception()
        if error is None:
            self._future.set_result(self._outputs)
        else:
            self._future.set_exception(error)

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self._work.is_success()

    def exception(self) -> BaseException | None:
        """Return why the operation failed, if it did."""
        return self._work.exception()

    def result(self) -> list[Any]:
        """Return the outputs of an operation that has completed."""
        self._work.result()
        return self._outputs

    def source_rank(self) -> int:
        """Return the rank in the group that a receive came from."""
        return self._work.source_rank()

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    block_current_stream = synchronize


class JoinedWork(dist.Work):  # type: ignore[misc]
    """Several operations as one."""

    def __init__(self, works: Sequence[Any], outputs: list[Any]) -> None:
        super().__init__()
        self._works = works
        self._outputs = outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all are complete, or raise what made the first one fail that did."""
        for work in self._works:
            work.wait(timeout)
        return True

    def get_future(self) -> Any:
        """Return the future of the outputs of all."""
        futures = [work.get_future() for work in self._works]
        outputs = self._outputs

        def value(done: Any) -> list[Any]:
            done.value()  # raises if one failed
            return outputs

        return torch.futures.collect_all(futures).then(value)

    def is_completed(self) -> bool:
        """Whether all have ended, well or not."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error that there is."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        """Return the outputs of all."""
        for work in self._works:
            work.result()
        return self._outputs

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    block_current_stream = synchronize
