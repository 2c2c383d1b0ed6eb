"""corral over shared memory, with NumPy leaves in processes without torch, or with torch leaves.

Usage: ``python -m benchmarks.peers.corral_ numpy|torch``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import corral
import corral.distributed as dist
from benchmarks.peers.ranks import ROOT, Contender, Job, as_flat, serve, small_object
from benchmarks.workloads import Workload, nest


class Corral(Contender):
    """One rank of a corral group."""

    def __init__(self, library: str) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.leaf: Callable[[np.ndarray], Any] = lambda array: array
        if library == "torch":
            import torch

            self.leaf = torch.from_numpy
        dist.init_process_group(
            "shm", init_method=os.environ["CORRAL_BENCH_MEET"], rank=self.rank, world_size=self.size
        )
        if library == "numpy":
            assert "torch" not in sys.modules

    def barrier(self) -> None:
        """Wait for every rank."""
        dist.barrier()

    def job(self, kind: str, workload: Workload) -> Job:
        """Prepare this rank's part of a case."""
        kinds: dict[str, Callable[[Corral, Workload], Job]] = {
            "gather_and_stack": GatherAndStack,
            "send_recv": PingPong,
            "gather_object": GatherObject,
        }
        return kinds[kind](self, workload)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


class GatherAndStack(Job):
    """``td.gather_and_stack(0)``."""

    def __init__(self, ranks: Corral, workload: Workload) -> None:
        self.ranks, self.workload = ranks, workload
        root = ranks.rank == ROOT
        arrays = workload.stack(ranks.size - 1) if root else workload.rows(ranks.rank)
        batch_size = (ranks.size - 1, *workload.batch_size) if root else workload.batch_size
        self.td = corral.TensorDict(
            nest({key: ranks.leaf(array) for key, array in arrays.items()}), batch_size=batch_size
        )
        gather_and_stack = self.td.gather_and_stack
        self.step = lambda: gather_and_stack(ROOT)

    def verify(self, version: int) -> None:
        """Compare every row with what its rank sent."""
        flat = as_flat(self.td, self.workload)
        if self.ranks.rank == ROOT:
            self.step()
            self.workload.check(flat, self.ranks.senders, version)
        else:
            self.workload.fill(flat, self.ranks.rank, version)
            self.step()


class PingPong(Job):
    """``send`` and ``recv`` of one array, there and back."""

    steps_per_call = 2

    def __init__(self, ranks: Corral, workload: Workload) -> None:
        self.ranks, self.workload = ranks, workload
        self.out = workload.rows(ranks.rank)
        self.into = workload.rows(ranks.rank)
        sent, received = (ranks.leaf(*arrays.values()) for arrays in (self.out, self.into))
        send, receive, peer = dist.send, dist.recv, 1 - ranks.rank

        def first() -> None:
            send(sent, peer)
            receive(received, peer)

        def second() -> None:
            receive(received, peer)
            send(sent, peer)

        self.step = first if ranks.rank == 0 else second

    def verify(self, version: int) -> None:
        """Compare what came with what the peer sends."""
        self.workload.fill(self.out, self.ranks.rank, version)
        self.step()
        peer = 1 - self.ranks.rank
        came = {key: array[np.newaxis] for key, array in self.into.items()}
        self.workload.check(came, range(peer, peer + 1), version)


class GatherObject(Job):
    """``gather_object`` of a small dict."""

    def __init__(self, ranks: Corral, workload: Workload) -> None:
        self.ranks = ranks
        obj = small_object(ranks.rank, 0)
        gather = dist.gather_object
        into = [None] * ranks.size if ranks.rank == ROOT else None
        self.step = lambda: gather(obj, into, ROOT)

    def verify(self, version: int) -> None:
        """Compare every object."""
        root = self.ranks.rank == ROOT
        into: list[Any] | None = [None] * self.ranks.size if root else None
        dist.gather_object(small_object(self.ranks.rank, version), into, ROOT)
        if root:
            assert into == [small_object(rank, version) for rank in range(self.ranks.size)]


if __name__ == "__main__":
    serve(Corral(sys.argv[1]))
