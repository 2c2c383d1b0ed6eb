"""What a way of gathering took, in the same terms for every way.

``time.perf_counter`` reads a clock that all processes of a Linux host share, so that moments taken in
different processes can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean, median

__all__ = ["Timing", "WorkerTimes"]


@dataclass
class WorkerTimes:
    """When a worker began and ended each of its gathers, and its whole loop."""

    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    loop: float = 0.0

    @property
    def share(self) -> float:
        """The share of the loop spent gathering, waiting for the learner included."""
        return sum(end - begin for begin, end in zip(self.began, self.ended, strict=True)) / self.loop


@dataclass
class Timing:
    """One run: how long it took, and when the learner had each batch."""

    seconds: float
    complete: list[float]
    workers: list[WorkerTimes] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The mean share of the workers' time spent gathering."""
        return mean(worker.share for worker in self.workers)

    @property
    def delay(self) -> float:
        """The median time from the moment the last worker is ready until the learner has the whole batch."""
        last = [max(began) for began in zip(*(worker.began for worker in self.workers), strict=True)]
        return median(done - ready for done, ready in zip(self.complete, last, strict=True))
