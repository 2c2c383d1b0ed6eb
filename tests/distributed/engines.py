"""Which backend the ranks of a test run on."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from corral import backends
from corral.distributed import groups

__all__ = [
    "KINDS",
    "PROGRAM",
    "VARIABLE",
    "backend_of",
    "chosen",
    "next_sequence",
    "on_mpi",
    "on_torch",
    "patience",
    "settle",
    "through_with",
    "waited",
]

VARIABLE = "CORRAL_TEST_BACKEND"
PROGRAM = "CORRAL_TEST_PROGRAM"
_PROGRAMS = Path(__file__).parents[2] / "docs" / "programs"
_EXAMPLES = {"sockets": _PROGRAMS / "socket_transport.py"}
"""Backends that are not part of the package, and what makes them known."""
KINDS = ("shm", "shm-copy", "gloo", "mpi", "hybrid", "hybrid-mpi", *_EXAMPLES)
"""What the tests' ranks can run on: backends, but `shm-copy` is shared memory where the kernel forbids ranks to reach
into each other's memory, and `hybrid` is over gloo unless it says otherwise."""
EVERYWHERE = ("sockets", "shm-copy", "gloo", "mpi", "hybrid")
"""Those that some tests run on besides shared memory, whatever the run is about."""


def chosen() -> str:
    """Return what the test's ranks are to run on: the name of a backend, or one of `KINDS`."""
    return os.environ.get(VARIABLE, "shm")


def backend_of(kind: str) -> str:
    """Return the name of the backend that one of `KINDS` runs on."""
    return {"shm-copy": "shm", "hybrid-mpi": "hybrid"}.get(kind, kind)


def on_mpi() -> bool:
    """Whether they are to be started by mpirun."""
    return chosen() in ("mpi", "hybrid-mpi")


def on_torch() -> bool:
    """Whether they need torch."""
    return chosen() in ("gloo", "hybrid")


def settle(rank: int, size: int) -> str:
    """Make this process ready to be a rank; return the name of the backend to ask for."""
    name = chosen()
    if name == "shm-copy":
        from forbidding import forbid_direct_access

        forbid_direct_access()
        return "shm"
    if name.startswith("hybrid"):  # two hosts
        os.environ["CORRAL_HOST_ID"] = f"host {2 * rank // size}"
        os.environ["CORRAL_HYBRID"] = "mpi" if on_mpi() else "gloo"
        return "hybrid"
    path = _EXAMPLES.get(name)
    if path is None and PROGRAM in os.environ:
        path = Path(os.environ[PROGRAM])
    if path is not None and name not in backends.names():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return name


def waited(rank: int) -> float | None:
    """Return for how many seconds a rank has been waiting, asleep; ``None`` if it does not."""
    job = groups.world.backend.job
    if hasattr(job, "engine"):
        waiting = job.engine.waiting(rank)
        return None if waiting is None else (time.monotonic_ns() - waiting[4]) / 1e9
    answer = _ask(rank)
    return answer.seconds if answer is not None and answer.waits else None


def through_with(rank: int, sequence: int) -> bool:
    """Whether a rank is through with a collective of the default group that has failed there."""
    backend = groups.world.backend
    if hasattr(backend.job, "engine"):
        last = backend.job.engine.last_call(rank, backend.context)
        return last is not None and (last[0] > sequence or (last[0] == sequence and last[1][5] == 3))
    answer = _ask(rank)
    return answer is not None and (answer.last - 1 > sequence or (answer.last - 1 == sequence and answer.state == 3))


def next_sequence() -> int:
    """Return the number of this rank's next collective in the default group."""
    backend = groups.world.backend
    return backend._group.next_sequence if hasattr(backend.job, "engine") else backend._ledger.next


def _ask(rank: int) -> Any:
    """Ask a rank of an engine that moves messages what it does."""
    backend, answers = groups.world.backend, {}
    backend.job.call(lambda: answers.update(backend.job.inquiries.ask([rank], backend.context)))
    return answers.get(rank)


def patience() -> float:
    """Return how many times as long as shared memory's ranks those of this backend may take to end."""
    return 1.0 if chosen().startswith("shm") else 3.0
