"""Where the trees of a gather go that a lazy stack receives: each sender's into a member, whatever its shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from corral.arrays.buffers import writable
from corral.arrays.libraries import copy_into, library_of
from corral.distributed.errors import MismatchError
from corral.wire.layout import Array, Branch, Layout, Path, key_text
from corral.wire.senders import Senders

__all__ = ["LazyPlan", "plan_lazy"]


class LazyPlan(NamedTuple):
    """What the destination does: receive into `into`, one list for each rank, then call `finish`."""

    into: list[list[Any]]
    finish: Callable[[], Any]


def plan_lazy(tree: Any, senders: Senders, here: int, size: int, allow_pickle: bool) -> LazyPlan:
    """Decide where each sender's leaves go.

    Arrays that a member has in the same shape are written in place; others replace the member's.

    Raises
    ------
    MismatchError
        If there is not a member for each sender along the first dimension, or a sender's TensorDict does not fit.
    """
    members = tree.tensordicts
    if tree.stack_dim != 0 or len(members) != size - 1:
        raise MismatchError(
            f"the lazy stack on rank {here} has the batch size {tuple(tree.batch_size)} and the stack_dim "
            f"{tree.stack_dim}: it must have {size - 1} members along its first dimension, one for each other rank"
        )
    into: list[list[Any]] = [[] for _ in range(size)]
    arrived: list[tuple[Any, Layout, list[Any]]] = []
    finishes: list[Callable[[], None]] = []
    for member, layout, rank, position in zip(members, senders.layouts, senders.ranks, senders.positions, strict=True):
        _check(member, layout, rank, here)
        arrays = []
        for path, node in layout.arrays():
            array = node.empty()
            buffer, finish = writable(array, key_text(path))
            into[position].append(buffer)
            arrays.append(array)
            if finish is not None:
                finishes.append(finish)
        arrived.append((member, layout, arrays))

    def finish_all() -> Any:
        for finish in finishes:
            finish()
        for member, layout, arrays in arrived:
            _write(member, layout.rebuild(arrays, objects=layout.objects(allow_pickle)))
        return tree

    return LazyPlan(into, finish_all)


def _check(member: Any, layout: Layout, rank: int, here: int) -> None:
    if not isinstance(layout.root, Branch) or layout.root.kind not in ("T", "R", "d"):
        raise MismatchError(f"rank {rank} sends no TensorDict for the lazy stack on rank {here}")
    batch = tuple(member.batch_size)
    for path, node in layout.arrays():
        shape = tuple(node.shape)
        if shape[: len(batch)] != batch:
            raise MismatchError(
                f"{key_text(path)} has shape {shape} on rank {rank}, which does not fit the batch size {batch} of the "
                f"member for it on rank {here}"
            )
        if member.is_locked and _shape(member, path, node) != shape:
            raise MismatchError(
                f"{key_text(path)} of rank {rank} has shape {shape}, which the member for it on rank {here} lacks: it "
                "is locked, so that it cannot be given other keys or shapes"
            )


def _shape(member: Any, path: Path, node: Array) -> tuple[int, ...] | None:
    present = member.get(path, None)
    return None if present is None else tuple(present.shape)


def _write(member: Any, received: Any) -> None:
    for key, value in received.items():
        present = member.get(key, None)
        if hasattr(value, "items") and hasattr(present, "items"):
            _write(present, value)
        elif _same_place(present, value):
            copy_into(present, value)
        else:
            member.set(key, value)


def _same_place(present: Any, value: Any) -> bool:
    known = library_of(present) not in ("other", "jax") and library_of(value) != "other"
    return known and tuple(present.shape) == tuple(value.shape)
