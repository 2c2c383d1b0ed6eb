"""tensordict: its containers, and their communication over torch.distributed with gloo."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import tensordict

from benchmarks.peers import containers
from benchmarks.peers.c10d import GatherAndStack
from benchmarks.peers.contender import Jobs
from benchmarks.peers.ranks import serve
from benchmarks.peers.torch_gloo import Gloo


class TensorDictGloo(Gloo):
    """One rank of a gloo group that exchanges TensorDicts."""

    jobs: ClassVar[Jobs] = {
        **containers.jobs(tensordict),
        "gather_and_stack": partial(GatherAndStack, tensordict.TensorDict),
    }


if __name__ == "__main__":
    serve(TensorDictGloo())
