"""Move nested batches of arrays between processes.

`corral.distributed` has process groups with the semantics of ``torch.distributed`` for NumPy, PyTorch, JAX
and CuPy arrays; `TensorDict` and its relatives are nested, batched dictionaries of arrays that travel
through it in one call. Everything is imported when first used: a worker that needs only NumPy pays only for
NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral import distributed as distributed
    from corral.arrays.memory_mapped import MemoryMappedTensor as MemoryMappedTensor
    from corral.backends.shm_arrays import empty as empty
    from corral.distributed.errors import DistBackendError as DistBackendError
    from corral.distributed.errors import DistError as DistError
    from corral.distributed.errors import DistNetworkError as DistNetworkError
    from corral.distributed.errors import DistStoreError as DistStoreError
    from corral.distributed.errors import DistTimeoutError as DistTimeoutError
    from corral.distributed.errors import MismatchError as MismatchError
    from corral.distributed.errors import PeerLostError as PeerLostError
    from corral.functional import all_gather as all_gather
    from corral.functional import all_reduce as all_reduce
    from corral.functional import all_to_all as all_to_all
    from corral.functional import broadcast as broadcast
    from corral.functional import gather as gather
    from corral.functional import gather_and_stack as gather_and_stack
    from corral.functional import recv as recv
    from corral.functional import reduce as reduce
    from corral.functional import scatter as scatter
    from corral.functional import send as send
    from corral.launcher import LaunchError as LaunchError
    from corral.launcher import launch as launch
    from corral.tensordict import LazyStackedTensorDict as LazyStackedTensorDict
    from corral.tensordict import NonTensorData as NonTensorData
    from corral.tensordict import NonTensorStack as NonTensorStack
    from corral.tensordict import TensorClass as TensorClass
    from corral.tensordict import TensorDict as TensorDict
    from corral.tensordict import TensorDictBase as TensorDictBase
    from corral.tensordict import cat as cat
    from corral.tensordict import dense_stack_tds as dense_stack_tds
    from corral.tensordict import from_dataclass as from_dataclass
    from corral.tensordict import is_tensorclass as is_tensorclass
    from corral.tensordict import lazy_stack as lazy_stack
    from corral.tensordict import maybe_dense_stack as maybe_dense_stack
    from corral.tensordict import pad as pad
    from corral.tensordict import pad_sequence as pad_sequence
    from corral.tensordict import stack as stack
    from corral.tensordict import tensorclass as tensorclass
    from corral.tensordict.persistent import PersistentTensorDict as PersistentTensorDict

__version__ = "0.1.0"

_MODULES = frozenset({"arrays", "backends", "distributed", "functional", "wire"})
_EXPORTS = {
    "DistBackendError": "corral.distributed.errors",
    "DistError": "corral.distributed.errors",
    "DistNetworkError": "corral.distributed.errors",
    "DistStoreError": "corral.distributed.errors",
    "DistTimeoutError": "corral.distributed.errors",
    "LaunchError": "corral.launcher",
    "MemoryMappedTensor": "corral.arrays.memory_mapped",
    "MismatchError": "corral.distributed.errors",
    "PeerLostError": "corral.distributed.errors",
    "NonTensorData": "corral.tensordict",
    "NonTensorStack": "corral.tensordict",
    "TensorDictBase": "corral.tensordict",
    "TensorClass": "corral.tensordict",
    "tensorclass": "corral.tensordict",
    "is_tensorclass": "corral.tensordict",
    "from_dataclass": "corral.tensordict",
    "LazyStackedTensorDict": "corral.tensordict",
    "lazy_stack": "corral.tensordict",
    "maybe_dense_stack": "corral.tensordict",
    "dense_stack_tds": "corral.tensordict",
    "PersistentTensorDict": "corral.tensordict.persistent",
    "TensorDict": "corral.tensordict",
    "all_gather": "corral.functional",
    "all_reduce": "corral.functional",
    "all_to_all": "corral.functional",
    "broadcast": "corral.functional",
    "cat": "corral.tensordict",
    "empty": "corral.backends.shm_arrays",
    "gather": "corral.functional",
    "gather_and_stack": "corral.functional",
    "launch": "corral.launcher",
    "pad": "corral.tensordict",
    "pad_sequence": "corral.tensordict",
    "recv": "corral.functional",
    "reduce": "corral.functional",
    "scatter": "corral.functional",
    "send": "corral.functional",
    "stack": "corral.tensordict",
}

__all__ = [
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "DistTimeoutError",
    "LaunchError",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "MismatchError",
    "NonTensorData",
    "NonTensorStack",
    "PeerLostError",
    "PersistentTensorDict",
    "TensorClass",
    "TensorDict",
    "TensorDictBase",
    "__version__",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "cat",
    "dense_stack_tds",
    "distributed",
    "empty",
    "from_dataclass",
    "gather",
    "gather_and_stack",
    "is_tensorclass",
    "launch",
    "lazy_stack",
    "maybe_dense_stack",
    "pad",
    "pad_sequence",
    "recv",
    "reduce",
    "scatter",
    "send",
    "stack",
    "tensorclass",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"corral.{name}")
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
