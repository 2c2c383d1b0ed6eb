"""The check: one process steps all workers' simulators with the same seeds and compares every byte."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rich.progress import Progress

from rollout.settings import Arrays, Settings, allocate
from rollout.simulators import Simulators

__all__ = ["Comparison", "compare"]


@dataclass
class Comparison:
    """How much was compared, and where the first differences are."""

    bytes: int = 0
    episodes: int = 0
    differences: list[str] = field(default_factory=list)


def compare(settings: Settings, kept: Arrays, progress: Progress) -> Comparison:
    """Replay every worker here, and compare each batch with what the learner kept of it."""
    found = Comparison()
    expected = allocate(settings, settings.every)
    task = progress.add_task("one process: replaying", total=settings.workers * settings.batches)
    for worker in range(settings.workers):
        simulators = Simulators(settings, worker)
        for number in range(settings.batches):
            simulators.collect(expected)
            _compare_batch(expected, kept, number, worker, found)
            progress.advance(task)
        simulators.close()
    return found


def _compare_batch(expected: Arrays, kept: Arrays, number: int, worker: int, found: Comparison) -> None:
    for key, array in expected.items():
        received = kept[key][number, worker]
        # As bytes: two floats may be equal and yet differ in a bit, and a NaN equals nothing.
        if received.dtype != array.dtype or not np.array_equal(_bits(received), _bits(array)):
            found.differences.append(f"batch {number}, worker {worker}, {'.'.join(key)}")
        found.bytes += array.nbytes
        if key[-1] == "done":
            found.episodes += int(array.sum())


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
