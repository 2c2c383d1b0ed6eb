"""Sums of sparse tensors: their indices and values travel, not the zeros between them."""

from __future__ import annotations

from typing import Any

import torch

import corral.distributed as corral_dist
from corral.distributed.groups import ProcessGroup

__all__ = ["all_reduce_sparse"]


def all_reduce_sparse(tensor: torch.Tensor, op: Any, group: ProcessGroup) -> None:
    """Sum all ranks' sparse tensors, in place.

    It is done when this returns: the sizes of what the ranks have must be known before anything moves.

    Parameters
    ----------
    tensor
        A COO tensor of the same shape, dtype and sparse dimensions on all ranks, with any number of entries.
    op
        Must be ``SUM``, as with gloo: torch has no other for sparse tensors.
    group
        The group.
    """
    try:
        if op != torch.distributed.ReduceOp.SUM:
            raise ValueError(f"all_reduce: sparse tensors can only be summed, got {op}")
        mine = tensor.detach().coalesce()
        indices, values = mine.indices().contiguous(), mine.values().contiguous()
        shape = [mine.sparse_dim(), *mine.shape]
    except Exception:
        group.backend.refuse("all_reduce")
        raise
    # Object lists: the numbers of dimensions may differ from rank to rank, and each must learn of it.
    heads: list[Any] = [None] * group.size()
    corral_dist.all_gather_object(heads, (shape, indices.shape[1]), group)
    if any(head[0] != shape for head in heads):
        said = "; ".join(f"group rank {rank}: {head[0][1:]}, {head[0][0]} sparse" for rank, head in enumerate(heads))
        raise corral_dist.MismatchError(f"all_reduce: the sparse tensors differ in shape: {said}")
    counts = [count for _, count in heads]
    all_indices = [indices.new_empty(indices.shape[0], count) for count in counts]
    all_values = [values.new_empty(count, *values.shape[1:]) for count in counts]
    corral_dist.all_gather_coalesced(
        [[*pair] for pair in zip(all_indices, all_values, strict=True)], [indices, values], group
    )
    with torch.no_grad():
        total = torch.sparse_coo_tensor(
            torch.cat(all_indices, 1), torch.cat(all_values), mine.shape, check_invariants=True
        )
        tensor.copy_(total.coalesce())
