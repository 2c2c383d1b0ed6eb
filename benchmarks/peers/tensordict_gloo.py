"""tensordict's own ``gather_and_stack`` over torch.distributed with gloo."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from tensordict import TensorDict

from benchmarks.peers.c10d import GatherAndStack
from benchmarks.peers.contender import Jobs
from benchmarks.peers.ranks import serve
from benchmarks.peers.torch_gloo import Gloo


class TensorDictGloo(Gloo):
    """One rank of a gloo group that exchanges TensorDicts."""

    jobs: ClassVar[Jobs] = {"gather_and_stack": partial(GatherAndStack, TensorDict)}


if __name__ == "__main__":
    serve(TensorDictGloo())
