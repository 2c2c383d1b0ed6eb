"""Combining every rank's tree, element by element: `reduce` and `all_reduce`."""

from __future__ import annotations

import struct
from typing import Any

from corral.backends.base import Reduction
from corral.digests import digest
from corral.distributed import groups
from corral.distributed.collectives import destination
from corral.distributed.errors import MismatchError
from corral.distributed.groups import Group, ProcessGroup
from corral.functional.contributions import Contribution, check_reducible, contribute
from corral.functional.fitting import check_alike
from corral.functional.offers import check_roots
from corral.functional.parcels import check_like
from corral.wire.agreement import is_refusal, raise_refusal, refusal
from corral.wire.layout import Layout

__all__ = ["all_reduce", "check_operations", "reduce"]

_OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
_MESSAGE = struct.Struct("<ci16s16s")  # a mark, the destination, the operation, the fingerprint


def all_reduce(tree: Any, op: Any = "sum", group: Group = None, like: str | None = None) -> Any:
    """Combine the ranks' trees of arrays, element by element, and return the result on every rank.

    Where ``torch.distributed.all_reduce`` overwrites one tensor, this returns new arrays, for all of a tree in one
    operation. They are combined in rank order: the result has the same bits on every rank, on every run.

    Parameters
    ----------
    tree
        An array, a number, a TensorDict, or any nesting of dicts, lists, tuples, namedtuples and dataclasses of them:
        of the same keys, dtypes and shapes on every rank. Libraries may differ. ``None`` stays ``None``.
    op
        ``"sum"``, ``"avg"``, ``"product"``, ``"min"``, ``"max"``, ``"band"``, ``"bor"``, ``"bxor"``, or a ``ReduceOp``.
    group
        The group; the default one when ``None``.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays; by default each is of this rank's.

    Returns
    -------
    tree
        A tree like this rank's: numbers where it has numbers. ``None`` if this process is not in the group.

    Raises
    ------
    ValueError
        If `op` or `like` is none; other ranks raise `MismatchError`.
    MismatchError
        On every rank, if trees do not fit together, hold what cannot be reduced, or `op` has no meaning for a dtype.

    Notes
    -----
    Integers wrap around, and their average is rounded toward zero; a Python int counts as one of 64 bits.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     gradients = {"weight": np.ones((4, 2)), "loss": 0.5}
    ...     gradients = all_reduce(gradients, "avg")
    """
    name = "corral.all_reduce"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        check_like(like)
        reduction = _reduction(op, name)
    contribution = _agree(pg, name, tree, reduction, like)
    pg.backend.all_reduce(contribution.buffers, reduction, operation=name)
    return contribution.result(like)


def reduce(
    tree: Any,
    op: Any = "sum",
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    like: str | None = None,
) -> Any:
    """Combine the ranks' trees of arrays, element by element, and return the result on one rank.

    Parameters
    ----------
    tree, op
        As for `all_reduce`.
    dst
        Global rank of the destination; 0 when neither this nor `group_dst` is given.
    group
        The group; the default one when ``None``.
    group_dst
        Rank in the group of the destination, in place of `dst`.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays; by default each is of the destination's.

    Returns
    -------
    tree or None
        On the destination a tree like its own, of new arrays; ``None`` elsewhere.

    Raises
    ------
    ValueError, MismatchError
        As for `all_reduce`.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     total = reduce({"episodes": 3, "reward": 10.5}, "sum", dst=0)
    """
    name = "corral.reduce"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        root = destination(pg, dst, group_dst, name)
        check_like(like, load=root == pg._rank)
        reduction = _reduction(op, name)
    contribution = _agree(pg, name, tree, reduction, like, root)
    pg.backend.reduce(contribution.buffers, reduction, root, operation=name)
    return contribution.result(like) if root == pg._rank else None


def _reduction(op: Any, operation: str) -> Reduction:
    """Return how an argument `op` says that elements are combined."""
    if isinstance(op, Reduction):
        return op
    text = op if isinstance(op, str) else getattr(op, "name", None)
    name = text.lower() if isinstance(text, str) else ""
    if name not in _OPERATIONS or op == "premul_sum":
        raise ValueError(
            f"{operation}: op must be a ReduceOp or one of {', '.join(map(repr, _OPERATIONS[:-1]))}, got {op!r}"
        )
    return Reduction(name, float(op.factor) if name == "premul_sum" else 1.0)  # type: ignore[arg-type]


def _agree(
    pg: ProcessGroup, operation: str, tree: Any, reduction: Reduction, like: str | None, root: int | None = None
) -> Contribution:
    """Return what this rank contributes, once it is known to fit all others'.

    Ranks compare fingerprints; only where these differ do they need each other's layouts, to say what differs. `root`
    is the only rank that receives the result, if there is one.
    """
    found: list[Contribution] = []
    try:
        found.append(contribute(tree, pg.allow_pickle, like, root in (None, pg._rank)))
        fingerprint = digest(found[0].canonical(), 16)
        message = _MESSAGE.pack(b"F", -1 if root is None else root, reduction.op.encode(), fingerprint)
    except Exception as error:
        message = refusal(error, pg.ranks[pg._rank])
    messages = pg.backend.all_gather_bytes(message, operation=operation)
    for each in messages:
        if is_refusal(each):
            raise_refusal(operation, each)
    told = [_MESSAGE.unpack(each) for each in messages]
    check_roots(pg, operation, "dst", [each[1] for each in told])
    try:
        check_operations(pg, [each[2].rstrip(b"\0").decode() for each in told])
        if len({each[3] for each in told}) > 1:
            layouts = pg.backend.all_gather_bytes(found[0].layout.to_bytes(), operation=operation)
            check_alike([Layout.from_bytes(each) for each in layouts], pg.ranks)
            raise MismatchError("the ranks' trees differ")
        check_reducible(found[0].layout, reduction.op, pg.ranks[0])
    except MismatchError as error:  # the same on every rank
        raise MismatchError(f"{operation}: {error}") from None
    return found[0]


def check_operations(pg: ProcessGroup, operations: list[str]) -> None:
    """Raise `MismatchError` unless all ranks named the same reduction."""
    first = operations[0]
    for rank, other in zip(pg.ranks, operations, strict=True):
        if other != first:
            raise MismatchError(f"op is {other!r} on rank {rank}, but {first!r} on rank {pg.ranks[0]}")
