"""What all contenders share: one rank's side of the runner's commands, and the timed loop itself."""

from __future__ import annotations

import abc
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.control import Line, connect
from benchmarks.workloads import WORKLOADS, Key, Workload

__all__ = ["Contender", "Job", "as_flat", "serve", "small_object"]

ROOT = 0


class Job(abc.ABC):
    """One rank's part of a case: its arrays are allocated once, then `step` is repeated."""

    steps_per_call = 1
    """How many of what is reported one call of `step` does (2 for a round trip)."""

    step: Callable[[], Any]

    @abc.abstractmethod
    def verify(self, version: int) -> None:
        """Do one step with the values of `version`, and raise unless all of them arrived."""


class Contender(abc.ABC):
    """A library at work in this rank."""

    rank: int
    size: int

    @property
    def senders(self) -> range:
        """The ranks whose rows the root receives."""
        return range(1, self.size)

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait for every rank."""

    @abc.abstractmethod
    def job(self, kind: str, workload: Workload) -> Job:
        """Prepare this rank's part of a case."""

    def close(self) -> None:  # noqa: B027 - not every library has something to end
        """Leave the group."""


def as_flat(tree: Any, workload: Workload) -> dict[Key, np.ndarray]:
    """Return the leaves of a TensorDict of any library as NumPy arrays that share their memory."""
    flat = {}
    for key in workload.leaves:
        leaf = tree[key if len(key) > 1 else key[0]]
        flat[key] = leaf if isinstance(leaf, np.ndarray) else leaf.numpy()
    return flat


def small_object(rank: int, version: int) -> dict[str, Any]:
    """Return the kind of thing that workers report beside their arrays."""
    return {
        "worker": rank,
        "episode": 1000 * version + rank,
        "return": 12.5 * (rank + 1) + version,
        "environment": "CartPole-v1",
        "lengths": [17 + rank, 230, 9 + version],
    }


def _timed(contender: Contender, job: Job, calls: int) -> float:
    step = job.step
    contender.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return time.perf_counter() - start


def _obey(contender: Contender, line: Line) -> None:
    job: Job | None = None
    while (command := line.receive()) is not None and command["do"] != "quit":
        try:
            if command["do"] == "prepare":
                job = None  # frees the previous job's memory before this one's is allocated
                job = contender.job(command["kind"], WORKLOADS[command["workload"]])
                # Twice, with other values in the same memory: nothing may have been kept from the first.
                for version in (1, 2):
                    job.verify(version)
                line.send(steps=job.steps_per_call)
            else:
                assert job is not None
                line.send(seconds=_timed(contender, job, command["calls"]))
        except Exception:
            line.send(error=traceback.format_exc())


def serve(contender: Contender) -> None:
    """Obey the runner until it says that all is done, or is gone."""
    line = connect(contender.rank)
    try:
        _obey(contender, line)
    finally:
        line.close()
    contender.close()
