"""How much of a collective passes while its rank computes."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.peers.contender import Job, Step
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from benchmarks.peers.c10d import C10d

__all__ = ["Overlap"]

_WIDTH = 1024
_ROWS = 128


class Overlap(Job):
    """An asynchronous `all_reduce` while NumPy multiplies matrices, and each of the two alone.

    The multiplication is one call, which releases the GIL, of as many rows as take about as long as this
    contender's `all_reduce` alone: the most that can be hidden is then about all of it.
    """

    def __init__(self, ranks: C10d, workload: Workload) -> None:
        (leaf,) = workload.leaves.values()
        self.leaf, self.rank, self.size = leaf, ranks.rank, ranks.size
        self.array = np.zeros(leaf.shape, leaf.dtype)
        self.start = ranks.starting_all_reduce(self.array)
        ranks.barrier()
        self.compute = self._computing(_ROWS)
        wanted = _took(self.communicate)
        rows = _ROWS
        for _ in range(2):  # few rows are multiplied at another speed than many
            rows = max(1, round(rows * wanted / _took(self.compute)))
            self.compute = self._computing(rows)

    @staticmethod
    def _computing(rows: int) -> Step:
        values = np.random.default_rng(0).random((rows + _WIDTH, _WIDTH), np.float32)
        left, right, out = values[:rows], values[rows:], np.zeros((rows, _WIDTH), np.float32)
        return lambda: np.matmul(left, right, out=out)

    def communicate(self) -> None:
        """Reduce, and wait for it."""
        self.start().wait()

    def step(self) -> None:
        """Do both at once."""
        work = self.start()
        self.compute()
        work.wait()

    @property
    def parts(self) -> dict[str, Step]:
        """Both at once, and each alone."""
        return {"both": self.step, "communicate": self.communicate, "compute": self.compute}

    def verify(self, version: int) -> None:
        """Compare with the sum: computing meanwhile changes nothing."""
        self.array[...] = self.leaf.numbers(version, self.rank)
        self.step()
        if not np.array_equal(self.array, self.leaf.total(version, self.size)):
            raise AssertionError("all_reduce beside a computation: wrong values arrived")
        self.array[...] = 0


def _took(step: Step) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return median(times[1:])
