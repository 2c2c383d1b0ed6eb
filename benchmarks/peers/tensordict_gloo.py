"""tensordict: its containers, and their communication over torch.distributed with gloo, or corral.

Usage: ``python -m benchmarks.peers.tensordict_gloo [corral]``.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import ClassVar

import tensordict

from benchmarks.peers import containers
from benchmarks.peers.c10d import GatherAndStack
from benchmarks.peers.contender import Jobs
from benchmarks.peers.ranks import serve
from benchmarks.peers.torch_gloo import Torch


class TensorDictTorch(Torch):
    """One rank of a group of torch's that exchanges TensorDicts."""

    jobs: ClassVar[Jobs] = {
        **containers.jobs(tensordict),
        "gather_and_stack": partial(GatherAndStack, tensordict.TensorDict),
    }


if __name__ == "__main__":
    serve(TensorDictTorch(*sys.argv[1:]))
