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

import importlib
from typing import Any

from corral.distributed.backend_config import (
    Backend,
    BackendConfig,
    get_backend_config,
    get_default_backend_for_device,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
)
from corral.distributed.coalesced import all_gather_coalesced, all_reduce_coalesced
from corral.distributed.collectives import barrier, broadcast, gather, monitored_barrier, scatter
from corral.distributed.comm_names import record_comm
from corral.distributed.debug import DebugLevel, get_debug_level, set_debug_level, set_debug_level_from_env
from corral.distributed.errors import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    DistTimeoutError,
    MismatchError,
    PeerLostError,
    QueueEmptyError,
    StoreTimeoutError,
)
from corral.distributed.exchanges import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_to_all,
    all_to_all_single,
)
from corral.distributed.from_torch import from_torch
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
from corral.distributed.introspection import (
    default_pg_timeout,
    get_node_local_rank,
    get_pg_count,
    is_torchelastic_launched,
    supports_complex,
)
from corral.distributed.mesh import DeviceMesh, init_device_mesh
from corral.distributed.object_p2p import recv_object_list, send_object_list
from corral.distributed.objects import all_gather_object, broadcast_object_list, gather_object, scatter_object_list
from corral.distributed.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from corral.distributed.reduce_ops import ReduceOp, reduce_op
from corral.distributed.reductions import (
    all_reduce,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from corral.distributed.setup import destroy_process_group, init_process_group, is_available, new_group
from corral.distributed.shrinking import shrink_group
from corral.distributed.stores import FileStore, HashStore, PrefixStore, Store, TCPStore
from corral.distributed.subgroups import new_subgroups, new_subgroups_by_enumeration, split_group
from corral.distributed.work import Future, Work

__all__ = [
    "Backend",
    "BackendConfig",
    "DebugLevel",
    "DeviceMesh",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "DistTimeoutError",
    "FileStore",
    "Future",
    "GroupMember",
    "HashStore",
    "MismatchError",
    "P2POp",
    "PeerLostError",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "ReduceOp",
    "Store",
    "StoreTimeoutError",
    "TCPStore",
    "Work",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "default_pg_timeout",
    "destroy_process_group",
    "from_torch",
    "gather",
    "gather_object",
    "get_backend",
    "get_backend_config",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_device_mesh",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "record_comm",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "shrink_group",
    "split_group",
    "supports_complex",
]


def __getattr__(name: str) -> Any:
    if name in ("device_mesh", "distributed_c10d"):  # torch's modules of these names are there without an import, too
        return importlib.import_module(f"corral.distributed.{name}")
    raise AttributeError(f"module 'corral.distributed' has no attribute {name!r}")
