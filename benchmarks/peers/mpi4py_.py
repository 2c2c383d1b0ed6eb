"""mpi4py over Open MPI: one ``Gather`` for each leaf, into arrays that are prepared once.

MPI's gather has a row for every rank, so the root contributes one too, which its library copies into
place. ``python -m benchmarks.peers.mpi4py_ in_place`` spares it that copy: the root passes ``MPI.IN_PLACE``
and row 0 is left alone, which is the least that MPI can do for a ``gather_and_stack``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.peers.ranks import ROOT, Contender, Job, serve, small_object
from benchmarks.workloads import Workload


class Mpi(Contender):
    """One rank under ``mpirun``."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.comm = MPI.COMM_WORLD
        self.rank = self.comm.rank
        self.size = self.comm.size

    def barrier(self) -> None:
        """Wait for every rank."""
        self.comm.Barrier()

    def job(self, kind: str, workload: Workload) -> Job:
        """Prepare this rank's part of a case."""
        kinds: dict[str, Callable[[Mpi, Workload], Job]] = {
            "gather_and_stack": GatherLeaves,
            "send_recv": PingPong,
            "gather_object": GatherObject,
        }
        return kinds[kind](self, workload)


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


class PingPong(Job):
    """``Send`` and ``Recv`` of one array, there and back."""

    steps_per_call = 2

    def __init__(self, mpi: Mpi, workload: Workload) -> None:
        self.mpi, self.workload = mpi, workload
        self.out = workload.rows(mpi.rank)
        self.into = workload.rows(mpi.rank)
        (sent,), (received,) = self.out.values(), self.into.values()
        send, receive, peer = mpi.comm.Send, mpi.comm.Recv, 1 - mpi.rank

        def first() -> None:
            send(sent, peer)
            receive(received, peer)

        def second() -> None:
            receive(received, peer)
            send(sent, peer)

        self.step = first if mpi.rank == 0 else second

    def verify(self, version: int) -> None:
        """Compare what came with what the peer sends."""
        self.workload.fill(self.out, self.mpi.rank, version)
        self.step()
        peer = 1 - self.mpi.rank
        came = {key: array[np.newaxis] for key, array in self.into.items()}
        self.workload.check(came, range(peer, peer + 1), version)


class GatherObject(Job):
    """``gather`` of a small dict: pickled by mpi4py."""

    def __init__(self, mpi: Mpi, workload: Workload) -> None:
        self.mpi = mpi
        obj, gather = small_object(mpi.rank, 0), mpi.comm.gather
        self.step = lambda: gather(obj, ROOT)

    def verify(self, version: int) -> None:
        """Compare every object."""
        got = self.mpi.comm.gather(small_object(self.mpi.rank, version), ROOT)
        if self.mpi.rank == ROOT:
            assert got == [small_object(rank, version) for rank in range(self.mpi.size)]


if __name__ == "__main__":
    serve(Mpi(in_place="in_place" in sys.argv[1:]))
