"""Process groups and communication between them, with the semantics of ``torch.distributed``.

For NumPy, PyTorch, JAX and CuPy arrays, in processes that need not import torch.

Examples
--------
>>> import numpy as np
>>> import corral.distributed as dist
>>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
>>> dist.get_rank(), dist.get_world_size(), dist.get_backend()
(0, 1, 'shm')
>>> rows = [np.empty(3)]
>>> dist.gather(np.arange(3.0), rows)
>>> rows
[array([0., 1., 2.])]
>>> dist.destroy_process_group()
"""

from corral.distributed.collectives import barrier, gather
from corral.distributed.errors import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    DistTimeoutError,
    MismatchError,
    PeerLostError,
)
from corral.distributed.groups import (
    GroupMember,
    ProcessGroup,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_initialized,
)
from corral.distributed.objects import gather_object
from corral.distributed.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from corral.distributed.setup import destroy_process_group, init_process_group, is_available, new_group
from corral.distributed.work import Future, Work

__all__ = [
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "DistTimeoutError",
    "Future",
    "GroupMember",
    "MismatchError",
    "P2POp",
    "PeerLostError",
    "ProcessGroup",
    "Work",
    "barrier",
    "batch_isend_irecv",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "new_group",
    "recv",
    "send",
]
