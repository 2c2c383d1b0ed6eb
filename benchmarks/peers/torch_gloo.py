"""torch.distributed with gloo, and torch tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.peers.c10d import C10d
from benchmarks.peers.ranks import serve


class Gloo(C10d):
    """One rank of a gloo group."""

    # torch 2.13's name for it; the old one warns at every call, which costs time.
    all_gather_name = "all_gather_single"

    def __init__(self) -> None:
        super().__init__(dist, "gloo", torch.from_numpy)


if __name__ == "__main__":
    serve(Gloo())
