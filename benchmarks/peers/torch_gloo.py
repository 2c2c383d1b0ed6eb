"""torch.distributed with gloo, or with corral as its backend: ``python -m benchmarks.peers.torch_gloo corral``."""

from __future__ import annotations

import sys
from typing import ClassVar

import torch
import torch.distributed as dist

from benchmarks.peers.c10d import C10d
from benchmarks.peers.contender import Jobs
from benchmarks.peers.ranks import serve
from benchmarks.peers.training import Training


class Torch(C10d):
    """One rank of a group of torch's."""

    jobs: ClassVar[Jobs] = {**C10d.jobs, "ddp": Training}

    # torch 2.13's name for it; the old one warns at every call, which costs time.
    all_gather_name = "all_gather_single"

    def __init__(self, backend: str = "gloo") -> None:
        if backend == "corral":
            import corral.integrations.torch  # noqa: F401 - which makes it known where corral is not installed
        super().__init__(dist, backend, torch.from_numpy)


if __name__ == "__main__":
    serve(Torch(*sys.argv[1:]))
