"""Combining every rank's TensorDict, leaf by leaf and element by element, in place.

All ranks first show each other a record of what they have. They need not wait for that to start: an operation whose
records turn out not to fit fails when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from corral.distributed import groups
from corral.distributed.arguments import Finish, root_rank
from corral.distributed.errors import MismatchError
from corral.distributed.groups import Group, ProcessGroup
from corral.distributed.reduce_ops import ReduceOp, check_reducible, reduction_of
from corral.distributed.work import Work
from corral.tensordict.moving import records
from corral.tensordict.moving.leaves import Leaves, leaves_of
from corral.tensordict.moving.requests import Recorded

__all__ = ["all_reduce", "reduce"]


def all_reduce(td: Any, op: Any, group: Group, async_op: bool, bucket_bytes: int | None) -> Work | None:
    """Combine TensorDicts on every rank; see `TensorDict.all_reduce`."""
    name = "TensorDict.all_reduce"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return None
    return _combine(td, op, pg, name, async_op, bucket_bytes, None)


def reduce(
    td: Any,
    dst: int | None,
    op: Any,
    group: Group,
    async_op: bool,
    bucket_bytes: int | None,
    group_dst: int | None,
) -> Work | None:
    """Combine TensorDicts on one rank; see `TensorDict.reduce`."""
    name = "TensorDict.reduce"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return None
    return _combine(td, op, pg, name, async_op, bucket_bytes, lambda: root_rank(pg, dst, group_dst, "dst", name))


def _combine(
    td: Any,
    op: Any,
    pg: ProcessGroup,
    name: str,
    async_op: bool,
    bucket_bytes: int | None,
    find_root: Callable[[], int] | None,
) -> Work | None:
    backend = pg.backend
    rows = np.zeros((pg._size, records.SIZE), np.uint8)
    own = rows[pg._rank]
    into = [[row] for row in rows]
    try:
        root = None if find_root is None else find_root()
        how = reduction_of(ReduceOp.SUM if op is None else op, name)
        if bucket_bytes is not None and bucket_bytes <= 0:
            raise ValueError(f"{name}: bucket_bytes must be a positive number of bytes, got {bucket_bytes}")
        leaves, buffers, finish = _prepare(td, how, name, root in (None, pg._rank))
        record = records.record_of(leaves, -1 if root is None else root, how._reduction.op)
    except Exception as error:
        records.write(records.refused(error, pg.ranks[pg._rank]), own)
        backend.all_gather([own], into, operation=name)
        backend.refuse(name)
        raise
    records.write(record, own)

    def check() -> None:
        records.agree(pg, name, [*rows])

    if async_op:
        shown = backend.iall_gather([own], into, operation=name)
        if root is None:
            request = backend.iall_reduce(buffers, how._reduction, operation=name)
        else:
            request = backend.ireduce(buffers, how._reduction, root, operation=name)
        return Work(Recorded(shown, request, check), leaves.arrays, finish, backend.timeout)
    backend.all_gather([own], into, operation=name)
    try:
        check()
    except MismatchError:
        backend.refuse(name)  # ranks that did not wait have begun the second part
        raise
    if root is None:
        backend.all_reduce(buffers, how._reduction, operation=name)
    else:
        backend.reduce(buffers, how._reduction, root, operation=name)
    if finish is not None:
        finish()
    return None


def _prepare(td: Any, how: ReduceOp, name: str, receives: bool) -> tuple[Leaves, list[Any], Finish | None]:
    leaves = leaves_of(td, with_objects=False, writes=receives)
    for like, key in leaves.kinds():
        check_reducible(like, how, name, key)
    if receives:
        return (leaves, *leaves.fill(update=True))
    return leaves, leaves.buffers(), None
