"""mpi4py over Open MPI, with the calls that take buffers, and ``gather`` for objects.

A ``gather_and_stack`` is one ``Gather`` for each leaf, into arrays that are prepared once. MPI's gather has a
row for every rank, so the root contributes one too, which its library copies into place.
``python -m benchmarks.peers.mpi4py_ in_place`` spares it that copy: the root passes ``MPI.IN_PLACE`` and row 0
is left alone, which is the least that MPI can do for a ``gather_and_stack``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from benchmarks.peers.contender import ROOT, Communicator, Job, Jobs, Message, Step
from benchmarks.peers.ranks import serve
from benchmarks.workloads import Workload


class GatherLeaves(Job):
    """``Gather`` leaf by leaf."""

    def __init__(self, mpi: Mpi, workload: Workload) -> None:
        self.mpi, self.workload = mpi, workload
        self.out = workload.rows(mpi.rank)
        self.into = workload.stack(mpi.size) if mpi.rank == ROOT else {}
        pairs: list[tuple[Any, Any]] = [(array, self.into.get(key)) for key, array in self.out.items()]
        if mpi.in_place and mpi.rank == ROOT:
            pairs = [(MPI.IN_PLACE, array) for array in self.into.values()]
        gather = mpi.comm.Gather

        def step() -> None:
            for sent, received in pairs:
                gather(sent, received, ROOT)

        self.step = step

    def verify(self, version: int) -> None:
        """Compare every row with what its rank sent."""
        self.workload.fill(self.out, self.mpi.rank, version)
        self.step()
        if self.mpi.rank == ROOT:
            first = 1 if self.mpi.in_place else 0
            rows = {key: array[first:] for key, array in self.into.items()}
            self.workload.check(rows, range(first, self.mpi.size), version)


class Mpi(Communicator):
    """One rank under ``mpirun``."""

    jobs: ClassVar[Jobs] = {"gather_and_stack": GatherLeaves}

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.comm = MPI.COMM_WORLD
        self.rank = self.comm.rank
        self.size = self.comm.size

    def barrier(self) -> None:
        """Wait for every rank."""
        self.comm.Barrier()

    def sending(self, array: np.ndarray, peer: int) -> Step:
        """``Send``."""
        return partial(self.comm.Send, array, peer)

    def receiving(self, array: np.ndarray, peer: int) -> Step:
        """``Recv``."""
        return partial(self.comm.Recv, array, peer)

    def exchanging(self, sent: Sequence[Message], received: Sequence[Message]) -> Step:
        """``Irecv`` and ``Isend`` of all, and one ``Waitall``."""
        send, receive, wait = self.comm.Isend, self.comm.Irecv, MPI.Request.Waitall

        def step() -> None:
            requests = [receive(*message) for message in received]
            requests += [send(*message) for message in sent]
            wait(requests)

        return step

    def waiting(self) -> Step:
        """``Barrier``."""
        return self.comm.Barrier

    def broadcasting(self, array: np.ndarray, root: int) -> Step:
        """``Bcast``."""
        return partial(self.comm.Bcast, array, root)

    def all_reducing(self, array: np.ndarray) -> Step:
        """``Allreduce`` in place."""
        return partial(self.comm.Allreduce, MPI.IN_PLACE, array)

    def all_gathering(self, out: np.ndarray, array: np.ndarray) -> Step:
        """``Allgather``."""
        return partial(self.comm.Allgather, array, out)

    def gathering(self, out: np.ndarray, array: np.ndarray, root: int) -> Step:
        """``Gather``."""
        return partial(self.comm.Gather, array, out if self.rank == root else None, root)

    def gathering_objects(self, obj: Any) -> Step:
        """``gather``, which pickles."""
        return partial(self.comm.gather, obj, ROOT)

    def gather_objects(self, obj: Any) -> list[Any] | None:
        """``gather``, which pickles."""
        return self.comm.gather(obj, ROOT)


if __name__ == "__main__":
    serve(Mpi(in_place="in_place" in sys.argv[1:]))
