"""Runs a function in real processes, one for each rank, and checks how each of them ends."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from engines import patience, settle
from starting import Ranks, uses_torch

__all__ = ["DTYPES", "LAYOUTS", "in_layout", "run", "values"]


def run(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    timeout: float = 60.0,
    group_timeout: float = 20.0,
    exits: Mapping[int, int] | None = None,
    environment: Mapping[str, str] | None = None,
    **init: Any,
) -> list[Any]:
    """Call ``function(rank, size, *args)`` on `size` ranks with a default group; return what each returned.

    Fails with a rank's traceback if one raises, if one ends with another exit code than `exits` says (0 if it
    says nothing), or if not all have ended after `timeout` seconds.
    """
    exits = exits or {}
    before = dict(os.environ)
    os.environ.update(environment or {})
    with tempfile.TemporaryDirectory() as folder:
        ranks = None
        try:
            work = [(function, rank, size, f"file://{folder}/meet", group_timeout, init, args) for rank in range(size)]
            ranks = Ranks(_rank, work, uses_torch(function.__module__))
            return _collect(ranks.ends, ranks.processes, timeout * patience(), exits)
        finally:
            os.environ.clear()
            os.environ.update(before)
            if ranks is not None:
                ranks.close()


def _rank(
    end: Any,
    function: Callable[..., Any],
    rank: int,
    size: int,
    meeting: str,
    group_timeout: float,
    init: dict[str, Any],
    args: tuple[Any, ...],
) -> None:
    backend = settle(rank, size)
    import corral.distributed as dist

    try:
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=group_timeout, **init)
        result = function(rank, size, *args)
        end.send((True, result))
    except BaseException:
        end.send((False, traceback.format_exc()))
        raise SystemExit(1) from None


def _collect(ends: list[Any], processes: list[Any], timeout: float, exits: Mapping[int, int]) -> list[Any]:
    deadline = time.monotonic() + timeout
    results: dict[int, Any] = {}
    failures: list[str] = []
    open_ends = {end: rank for rank, end in enumerate(ends)}
    while open_ends and not failures:
        ready = wait(list(open_ends), max(0.0, deadline - time.monotonic()))
        if not ready:
            failures.append(f"ranks {sorted(open_ends.values())} had not ended after {timeout} s")
        for end in ready:
            rank = open_ends.pop(end)
            try:
                good, value = end.recv()
            except EOFError:  # it ended without a word: its exit code says whether it should have
                continue
            if good:
                results[rank] = value
            else:
                failures.append(f"rank {rank} raised:\n{value}")
    if failures:  # give the others a moment to say theirs, which often is the cause
        for end in wait(list(open_ends), 1.0):
            try:
                good, value = end.recv()
            except EOFError:
                continue
            if not good:
                failures.append(f"rank {open_ends[end]} raised:\n{value}")
        raise AssertionError("\n".join(failures))
    for rank, process in enumerate(processes):
        process.join(max(0.1, deadline - time.monotonic()))
        assert process.exitcode == exits.get(rank, 0), f"rank {rank} ended with {process.exitcode}"
    return [results.get(rank) for rank in range(len(processes))]


DTYPES = [
    "?",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "M8[us]",
    ">f4",
    "U2",
]
LAYOUTS = ["rows", "columns", "reversed", "gaps", "column"]


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Values that every rank can compute, different for each seed and place."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "c":
        return (rng.random(shape) + 1j * rng.random(shape)).astype(kind)
    if kind.kind == "f":
        return rng.random(shape).astype(kind)
    return rng.integers(0, 100, shape).astype(kind)


def in_layout(array: np.ndarray, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an array of the same values with other strides, and the memory that it is a part of."""
    if array.ndim == 0 or layout == "rows":
        memory = array.copy()
        return memory, memory
    if layout == "columns":
        memory = np.empty(array.shape[::-1], array.dtype)
        view = memory.T
    elif layout == "reversed":
        memory = np.empty(array.shape, array.dtype)
        view = memory[::-1, ..., ::-1] if array.ndim > 1 else memory[::-1]
    elif layout == "gaps":
        memory = np.zeros([2 * n + 3 for n in array.shape], array.dtype)
        view = memory[tuple(slice(1, 1 + 2 * n, 2) for n in array.shape)]
    else:
        memory = np.zeros((*array.shape, 3), array.dtype)
        view = memory[..., 1]
    view[...] = array
    return view, memory
