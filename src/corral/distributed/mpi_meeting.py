"""How ranks that MPI has started on several hosts exchange a few bytes: by MPI itself, which knows them all."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from corral.distributed.errors import DistNetworkError, DistTimeoutError, MismatchError

__all__ = ["meet_by_mpi"]

_FIRST_PAUSE, _LAST_PAUSE = 0.0001, 0.01


def meet_by_mpi(rank: int, world_size: int, payload: bytes, timeout: float, where: str) -> list[bytes]:
    """Wait for all ranks of ``MPI.COMM_WORLD`` and return the bytes that each of them brought.

    Parameters
    ----------
    rank, world_size, payload, timeout
        As for `corral.distributed.rendezvous.meet`.
    where
        How messages begin.

    Raises
    ------
    DistTimeoutError
        If some do not come in time. Which, MPI does not tell.
    MismatchError
        If this process is another rank for MPI.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise DistNetworkError(
            f"{where}: ranks that MPI or Slurm started on several hosts meet by MPI, and mpi4py is not available here "
            f"({error}); install corral[mpi], or set MASTER_ADDR, MASTER_PORT and CORRAL_SECRET on all ranks"
        ) from error
    comm = MPI.COMM_WORLD
    if (comm.rank, comm.size) != (rank, world_size):
        raise MismatchError(
            f"{where}: this process is rank {rank} of {world_size}, and rank {comm.rank} of {comm.size} for MPI; do "
            "mpi4py and the command that started it belong to the same MPI?"
        )
    deadline = time.monotonic() + timeout
    counts = np.zeros(world_size, np.int64)
    _wait(comm.Iallgather(np.array([len(payload)], np.int64), counts), deadline, timeout, where)
    starts = np.concatenate([[0], np.cumsum(counts)])
    everything = np.empty(int(starts[-1]), np.uint8)
    mine = np.frombuffer(payload, np.uint8)
    _wait(comm.Iallgatherv(mine, [everything, (counts, starts[:-1]), MPI.BYTE]), deadline, timeout, where)
    return [everything[start:end].tobytes() for start, end in itertools.pairwise(starts)]


def _wait(request: Any, deadline: float, timeout: float, where: str) -> None:
    pause = _FIRST_PAUSE
    while not request.Test():
        left = deadline - time.monotonic()
        if left <= 0:
            raise DistTimeoutError(
                f"{where}: the meeting of all ranks by MPI timed out after {timeout:g} s: some have not called "
                "init_process_group"
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE)
