"""tensordict's own ``gather_and_stack`` over torch.distributed with gloo."""

from __future__ import annotations

import os

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict

from benchmarks.peers.ranks import ROOT, Contender, Job, as_flat, serve
from benchmarks.workloads import Workload, nest


class Gloo(Contender):
    """One rank of a gloo group."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            "gloo", init_method=os.environ["CORRAL_BENCH_MEET"], rank=self.rank, world_size=self.size
        )

    def barrier(self) -> None:
        """Wait for every rank."""
        dist.barrier()

    def job(self, kind: str, workload: Workload) -> Job:
        """Prepare this rank's part of a case."""
        if kind != "gather_and_stack":
            raise NotImplementedError(kind)
        return GatherAndStack(self, workload)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


class GatherAndStack(Job):
    """``td.gather_and_stack(0)``."""

    def __init__(self, gloo: Gloo, workload: Workload) -> None:
        self.gloo, self.workload = gloo, workload
        root = gloo.rank == ROOT
        arrays = workload.stack(gloo.size - 1) if root else workload.rows(gloo.rank)
        batch_size = (gloo.size - 1, *workload.batch_size) if root else workload.batch_size
        self.td = TensorDict(
            nest({key: torch.from_numpy(array) for key, array in arrays.items()}), batch_size=batch_size
        )
        gather_and_stack = self.td.gather_and_stack
        self.step = lambda: gather_and_stack(ROOT)

    def verify(self, version: int) -> None:
        """Compare every row with what its rank sent."""
        flat: dict[tuple[str, ...], np.ndarray] = as_flat(self.td, self.workload)
        if self.gloo.rank == ROOT:
            self.step()
            self.workload.check(flat, self.gloo.senders, version)
        else:
            self.workload.fill(flat, self.gloo.rank, version)
            self.step()


if __name__ == "__main__":
    serve(Gloo())
