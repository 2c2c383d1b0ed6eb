"""The job itself: rank 0 learns, every other rank steps its simulators, ``gather_and_stack`` in between."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from rich.progress import Progress

import corral
import corral.distributed as dist
from rollout.reference import Comparison, compare
from rollout.settings import Settings, allocate, keep, nest
from rollout.simulators import Simulators
from rollout.timing import Timing, WorkerTimes

__all__ = ["Learned", "run"]

LEARNER = 0


@dataclass
class Learned:
    """What the learner reports: its own times, and whether everything it received is right."""

    timing: Timing
    comparison: Comparison


def run(settings: Settings) -> Learned:
    """Run learner and workers, and return what the learner found."""
    results = corral.launch(_rank, settings.workers + 1, args=(settings,))
    learned: Learned = results[LEARNER]
    learned.timing.workers = results[LEARNER + 1 :]
    return learned


def _rank(rank: int, world_size: int, settings: Settings) -> Learned | WorkerTimes:
    result = _learn(settings) if rank == LEARNER else _work(settings, worker=rank - 1)
    if "torch" in sys.modules:
        raise RuntimeError(f"rank {rank} imported torch: this job needs NumPy alone")
    return result


def _work(settings: Settings, worker: int) -> WorkerTimes:
    """Fill a batch, hand it over, and again: always the same arrays."""
    simulators = Simulators(settings, worker)
    arrays = allocate(settings, settings.every)
    batch = corral.TensorDict(nest(arrays), batch_size=[settings.every])
    times = WorkerTimes()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(settings.batches):
        simulators.collect(arrays)
        times.began.append(time.perf_counter())
        batch.gather_and_stack(dst=LEARNER)
        times.ended.append(time.perf_counter())
    times.loop = time.perf_counter() - start
    simulators.close()
    return times


def _learn(settings: Settings) -> Learned:
    """Receive every batch into the same memory, one row for each worker, and keep a copy for the check."""
    arrays = allocate(settings, settings.workers, settings.every)
    batch = corral.TensorDict(nest(arrays), batch_size=[settings.workers, settings.every])
    kept = allocate(settings, settings.batches, settings.workers, settings.every)
    complete = []
    with Progress(transient=True) as progress:
        task = progress.add_task("corral: gathering", total=settings.batches)
        dist.barrier()
        start = time.perf_counter()
        for number in range(settings.batches):
            batch.gather_and_stack(dst=LEARNER)
            complete.append(time.perf_counter())
            keep(arrays, kept, number)
            progress.advance(task)
        seconds = time.perf_counter() - start
        comparison = compare(settings, kept, progress)
    return Learned(Timing(seconds, complete), comparison)
