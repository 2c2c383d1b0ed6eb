"""Nested, batched dictionaries of arrays."""

from __future__ import annotations

from corral.tensordict.abstract import TensorDictBase
from corral.tensordict.assembling import cat, stack
from corral.tensordict.dense import TensorDict
from corral.tensordict.errors import DimensionError, InplaceWriteError, InvalidKeyError, KeyThroughLeafError
from corral.tensordict.lazy import LazyStackedTensorDict, dense_stack_tds, lazy_stack, maybe_dense_stack
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.nontensor import NonTensorData, NonTensorStack
from corral.tensordict.padding import pad, pad_sequence
from corral.tensordict.sizes import Size
from corral.tensordict.tensorclass_base import TensorClass, is_tensorclass, tensorclass
from corral.tensordict.tensorclass_dataclasses import from_dataclass

__all__ = [
    "DimensionError",
    "InplaceWriteError",
    "InvalidKeyError",
    "KeyThroughLeafError",
    "LazyStackedTensorDict",
    "NestedKey",
    "NonTensorData",
    "NonTensorStack",
    "Size",
    "TensorClass",
    "TensorDict",
    "TensorDictBase",
    "cat",
    "dense_stack_tds",
    "from_dataclass",
    "is_tensorclass",
    "lazy_stack",
    "maybe_dense_stack",
    "pad",
    "pad_sequence",
    "stack",
    "tensorclass",
    "unravel_key",
]

try:
    from corral import _core
except ImportError:  # the containers are of use without processes, too
    pass
else:
    _core.register_container(TensorDict, "_source", "_batch_size", ("_names", "_device", "_saved"))
