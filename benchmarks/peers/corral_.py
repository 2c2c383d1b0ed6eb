"""corral over shared memory or another engine, with NumPy leaves in processes without torch, or with torch leaves.

Usage: ``python -m benchmarks.peers.corral_ numpy|torch [ENGINE]``.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import ClassVar

import numpy as np

import corral
import corral.distributed as dist
from benchmarks.peers import containers
from benchmarks.peers.c10d import C10d, GatherAndStack
from benchmarks.peers.contender import Jobs
from benchmarks.peers.ranks import serve


class Corral(C10d):
    """One rank of a corral group."""

    jobs: ClassVar[Jobs] = {
        **C10d.jobs,
        **containers.jobs(corral),
        "gather_and_stack": partial(GatherAndStack, corral.TensorDict),
    }

    def __init__(self, library: str, engine: str = "shm") -> None:
        if library == "torch":
            import torch

            super().__init__(dist, engine, torch.from_numpy)
        else:
            super().__init__(dist, engine, np.asarray)
            assert "torch" not in sys.modules


if __name__ == "__main__":
    serve(Corral(*sys.argv[1:]))
