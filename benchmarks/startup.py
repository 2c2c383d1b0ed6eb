"""What corral costs before it does anything: import time, import memory, and idle segments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["Limit", "startup"]

_IMPORT = """
import json, time
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * {page}
import numpy
start, before = time.perf_counter(), resident()
{statement}
print(json.dumps([time.perf_counter() - start, resident() - before]))
"""

_SETTINGS = {
    "import corral": "import corral",
    # Exports are lazy: this is what a worker has loaded by the time it is ready to gather.
    "import corral and use it": "import corral; corral.TensorDict; import corral.distributed",
}

_SEGMENT_RANKS = 16


@dataclass(frozen=True)
class Limit:
    """A measured cost and what it may be at most."""

    title: str
    unit: str
    value: float | None
    at_most: float
    error: str | None = None

    @property
    def passed(self) -> bool | None:
        """Whether the cost is within its limit; ``None`` if it could not be measured."""
        return None if self.value is None else self.value <= self.at_most


def _import_cost(statement: str, repeats: int) -> tuple[float, float]:
    program = _IMPORT.format(statement=statement, page=os.sysconf("SC_PAGE_SIZE"))
    costs = []
    for _ in range(repeats + 1):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        costs.append(json.loads(done.stdout))
    costs = costs[1:]  # the first one may have had to compile or to read from disk
    return median(cost[0] for cost in costs), median(cost[1] for cost in costs)


def _segments(ranks: int) -> float:
    command = [sys.executable, "-m", "benchmarks.peers.idle", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return float(json.loads(done.stdout.splitlines()[-1]))


def startup(repeats: int, tell: Callable[[str], None] = lambda text: None) -> list[Limit]:
    """Measure every cost; each is the median of `repeats` processes."""
    limits: list[Limit] = []

    def measured(specs: list[tuple[str, str, float]], measure: Callable[[], Any]) -> None:
        tell(specs[0][0])
        try:
            values, error = measure(), None
        except (RuntimeError, subprocess.TimeoutExpired, ValueError) as failure:
            values, error = [None] * len(specs), str(failure)
        for (title, unit, at_most), value in zip(specs, values, strict=True):
            limits.append(Limit(title, unit, value, at_most, error))

    for title, statement in _SETTINGS.items():

        def cost(statement: str = statement) -> list[float]:
            seconds, size = _import_cost(statement, repeats)
            return [seconds * 1e3, size / 1e6]

        titles = f"{title}, after numpy: time", f"{title}, after numpy: memory"
        measured([(titles[0], "ms", 60), (titles[1], "MB", 12)], cost)
    measured(
        [(f"segments of {_SEGMENT_RANKS} idle ranks, in all", "MB", 16)],
        lambda: [_segments(_SEGMENT_RANKS) / 1e6],
    )
    return limits
