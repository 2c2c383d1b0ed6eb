"""What the communication methods of a TensorDict do; loaded when one is first called."""

from __future__ import annotations

from corral.tensordict.moving.filling import broadcast_into, scatter_into
from corral.tensordict.moving.point_to_point import irecv, isend, recv, send
from corral.tensordict.moving.reducing import all_reduce, reduce
from corral.tensordict.moving.whole import (
    all_gather,
    broadcast,
    from_remote_init,
    gather,
    init_remote,
    own_rank,
    scatter,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "broadcast",
    "broadcast_into",
    "from_remote_init",
    "gather",
    "init_remote",
    "irecv",
    "isend",
    "own_rank",
    "recv",
    "reduce",
    "scatter",
    "scatter_into",
    "send",
]
