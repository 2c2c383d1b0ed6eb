"""The same loop over ``multiprocessing`` pipes, as it is usually written: every batch is pickled."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np
from rich.progress import Progress

from rollout.settings import Arrays, Settings, allocate, keep
from rollout.simulators import Simulators
from rollout.timing import Timing, WorkerTimes

__all__ = ["run"]


def run(settings: Settings) -> Timing:
    """Run the workers as processes and learn in this one."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for worker in range(settings.workers):
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(settings, worker, there), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    timing = _learn(settings, pipes)
    for process in processes:
        process.join()
    return timing


def _work(settings: Settings, worker: int, pipe: Connection) -> None:
    simulators = Simulators(settings, worker)
    arrays = allocate(settings, settings.every)
    times = WorkerTimes()
    pipe.send("ready")
    pipe.recv()
    start = time.perf_counter()
    for _ in range(settings.batches):
        simulators.collect(arrays)
        times.began.append(time.perf_counter())
        pipe.send(arrays)
        times.ended.append(time.perf_counter())
    times.loop = time.perf_counter() - start
    pipe.send(times)
    simulators.close()


def _learn(settings: Settings, pipes: list[Connection]) -> Timing:
    arrays = allocate(settings, settings.workers, settings.every)
    kept = allocate(settings, settings.batches, settings.workers, settings.every)
    complete = []
    with Progress(transient=True) as progress:
        task = progress.add_task("pipes: gathering", total=settings.batches)
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        start = time.perf_counter()
        for number in range(settings.batches):
            for row, pipe in enumerate(pipes):
                _put(pipe.recv(), arrays, row)
            complete.append(time.perf_counter())
            keep(arrays, kept, number)
            progress.advance(task)
        seconds = time.perf_counter() - start
    return Timing(seconds, complete, [pipe.recv() for pipe in pipes])


def _put(received: dict[tuple[str, ...], np.ndarray], arrays: Arrays, row: int) -> None:
    for key, array in received.items():
        arrays[key][row] = array
