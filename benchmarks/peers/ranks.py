"""What all contenders share: one rank's side of the runner's commands, and the timed loop itself."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping

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


def _prepared(contender: Contender, kind: str, workload: str) -> Job:
    job = {**JOBS, **contender.jobs}[kind](contender, WORKLOADS[workload])
    # Twice, with other values in the same memory: nothing may have been kept from the first.
    for version in (1, 2):
        job.verify(version)
    return job


def _obey(contenders: Mapping[str, Contender], line: Line) -> None:
    jobs: dict[str, Job] = {}
    while (command := line.receive()) is not None and command["do"] != "quit":
        try:
            name = command["team"] if command["team"] in contenders else ""
            if command["do"] == "prepare":
                jobs.pop(name, None)  # frees the previous job's memory before this one's is allocated
                jobs[name] = _prepared(contenders[name], command["kind"], command["workload"])
                line.send(steps=jobs[name].steps_per_call, parts=list(jobs[name].parts))
            else:
                step = jobs[name].parts[command["part"]]
                line.send(seconds=_timed(contenders[name], step, command["calls"]))
        except Exception:
            line.send(error=traceback.format_exc())


def serve(contender: Contender, **others: Contender) -> None:
    """Obey the runner until it says that all is done, or is gone.

    Other contenders in the same process are given by the names of their teams.
    """
    line = connect(contender.rank)
    try:
        _obey({"": contender, **others}, line)
    finally:
        line.close()
    for each in (*others.values(), contender):
        each.close()
