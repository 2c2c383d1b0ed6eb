"""Short cuts: the calls whose cost shows, for the tensors that most programs pass.

Each does what its namesake in :mod:`corral.distributed` does, and the same checks, by what is quick to ask of a
contiguous tensor in host memory. Each returns whether it has; ``False``, before anything has moved, leaves the call to
the namesake.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from corral.backends.base import Backend, Reduction
from corral.distributed.groups import ProcessGroup
from corral.distributed.p2p import MAX_TAG
from corral.distributed.reduce_ops import ReduceOp, check_reducible

__all__ = [
    *("all_gather", "all_gather_single", "all_reduce", "broadcast", "is_plain", "recv"),
    *("reduce_scatter_single", "send", "unwatched"),
]

_Tensor, _Parameter, _strided = torch.Tensor, torch.nn.Parameter, torch.strided
_RedOpType = torch.distributed.ReduceOp.RedOpType
_DIMENSIONS = 8  # as many as the engine reads

_PLAIN = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
)


def _meanings() -> dict[tuple[int, torch.dtype], Reduction]:
    """Map the numbers of torch's reductions and the dtypes that they have a meaning for to what a backend is told."""
    found = {}
    for name, op in ReduceOp.__members__.items():
        for dtype in _PLAIN if name != "PREMUL_SUM" else ():
            try:
                check_reducible(torch.empty(0, dtype=dtype), op, "all_reduce")
            except TypeError:
                continue
            found[getattr(_RedOpType, name).value, dtype] = op._reduction
    return found


_reductions = _meanings()


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is one whose memory the engine can read and write as it lies.

    Examples
    --------
    >>> is_plain(torch.zeros(2, 3)), is_plain(torch.zeros(2, 3).T)
    (True, False)
    """
    kind = type(tensor)
    return (
        (kind is _Tensor or kind is _Parameter)
        and tensor.layout is _strided
        and tensor.is_cpu
        and tensor.dtype in _PLAIN
        and tensor.is_contiguous()
        and tensor.ndim <= _DIMENSIONS
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and not (tensor.requires_grad and tensor._is_view())
    )


def unwatched(value: Any) -> Any:
    """Return a tensor, or a nesting of lists of them, as what autograd has no view of.

    Torch's own backends write without telling autograd. To tell it of a view would make a tensor that came of
    ``unbind`` or ``split``, with others and of what requires grad, one that cannot be used any more.

    Examples
    --------
    >>> row, _ = torch.ones(2, 3, requires_grad=True).mul(1).unbind()
    >>> unwatched(row).requires_grad, unwatched(row).data_ptr() == row.data_ptr()
    (False, True)
    """
    if isinstance(value, torch.Tensor):
        return value.data if value.requires_grad and value._is_view() else value
    return [unwatched(each) for each in value] if isinstance(value, list) else value


def send(group: ProcessGroup, tensors: list[Any], dst: int, tag: int) -> bool:
    """Send a tensor to another rank, if it is plain."""
    if not _is_of_others(group, tensors, dst, tag):
        return False
    group._send(tensors, dst, tag)
    return True


def recv(group: ProcessGroup, tensors: list[Any], src: int, tag: int) -> bool:
    """Receive a tensor from another rank, if it is plain."""
    if not _is_of_others(group, tensors, src, tag):
        return False
    group._recv(tensors, src, tag)
    return True


def _is_of_others(group: ProcessGroup, tensors: list[Any], peer: int, tag: int) -> bool:
    return (
        not group.closed
        and len(tensors) == 1
        and is_plain(tensors[0])
        and 0 <= peer < group._size
        and peer != group._rank
        and 0 <= tag <= MAX_TAG
    )


def all_reduce(backend: Backend, tensors: list[Any], op: Any) -> bool:
    """Combine the ranks' tensors, if there is one that is plain."""
    tensor = tensors[0]
    if len(tensors) != 1 or not is_plain(tensor):
        return False
    reduction = _reductions.get((op.op.value, tensor.dtype))
    if reduction is None:
        return False
    backend.all_reduce(tensors, reduction)
    return True


def broadcast(backend: Backend, tensors: list[Any], root: int) -> bool:
    """Write the root's tensor into everyone's, if there is one that is plain."""
    if len(tensors) != 1 or not is_plain(tensors[0]) or not 0 <= root < backend.size:
        return False
    backend.broadcast(tensors, root)
    return True


def all_gather(backend: Backend, into: Any, tensor: Any) -> bool:
    """Bring every rank's tensor to every rank, if all are plain and of one size."""
    if type(into) is not list or len(into) != backend.size or not is_plain(tensor):
        return False
    dtype, count = tensor.dtype, tensor.numel()
    for output in into:
        if output.numel() != count or output.dtype is not dtype or not is_plain(output):
            return False
    own = into[backend.rank]
    if not _apart(into if tensor.data_ptr() == own.data_ptr() else [*into, tensor]):
        return False
    backend.all_gather((tensor,), [[output] for output in into])
    return True


def all_gather_single(backend: Backend, output: Any, tensor: Any) -> bool:
    """Bring every rank's tensor to every rank, into one, if both are plain."""
    if (
        not is_plain(output)
        or not is_plain(tensor)
        or output.dtype is not tensor.dtype
        or output.numel() != backend.size * tensor.numel()
        or not _apart_from_part(output, tensor, backend.rank)
    ):
        return False
    backend.all_gather((tensor,), output, None, "all_gather_into_tensor")
    return True


def reduce_scatter_single(backend: Backend, output: Any, tensor: Any, op: Any) -> bool:
    """Combine all ranks' tensors, and give each rank an equal part, if both are plain."""
    reduction = _reductions.get((op.op.value, output.dtype))
    if (
        reduction is None
        or not is_plain(output)
        or not is_plain(tensor)
        or output.dtype is not tensor.dtype
        or tensor.numel() != backend.size * output.numel()
        or not _apart_from_part(tensor, output, backend.rank)
    ):
        return False
    parts = tensor.detach().view(backend.size, -1).unbind() if tensor.numel() else (output,) * backend.size
    backend.reduce_scatter([[part] for part in parts], (output,), reduction, None, "reduce_scatter_tensor")
    return True


def _apart(tensors: Sequence[Any]) -> bool:
    """Whether no two contiguous tensors of one size share memory."""
    size = tensors[0].nbytes
    places = sorted([tensor.data_ptr() for tensor in tensors])
    return size == 0 or all(second - first >= size for first, second in pairwise(places))


def _apart_from_part(whole: Any, part: Any, rank: int) -> bool:
    """Whether two contiguous tensors share no memory, but that one may be the other's part of a rank."""
    size = part.nbytes
    offset = part.data_ptr() - whole.data_ptr()
    return bool(offset == rank * size or offset <= -size or offset >= whole.nbytes)
