"""What all contenders share: one rank's side of the runner's commands, and the timed loop itself."""

from __future__ import annotations

import time
import traceback

from benchmarks.control import Line, connect
from benchmarks.peers.contender import Contender, Job, Step
from benchmarks.peers.jobs import JOBS
from benchmarks.workloads import WORKLOADS

__all__ = ["serve"]


def _timed(contender: Contender, step: Step, calls: int) -> float:
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
                kinds = {**JOBS, **contender.jobs}
                job = kinds[command["kind"]](contender, WORKLOADS[command["workload"]])
                # Twice, with other values in the same memory: nothing may have been kept from the first.
                for version in (1, 2):
                    job.verify(version)
                line.send(steps=job.steps_per_call, parts=list(job.parts))
            else:
                assert job is not None
                line.send(seconds=_timed(contender, job.parts[command["part"]], command["calls"]))
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
