"""Where the trees of a gather go that a lazy stack receives: each sender's into a member, whatever its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from corral.arrays.buffers import writable
from corral.arrays.libraries import copy_into, library_of
from corral.distributed.errors import MismatchError
from corral.wire.layout import Array, Branch, Layout, Path, key_text
from corral.wire.senders import Senders
from corral.wire.theirs import adopted, kind_of

__all__ = ["LazyPlan", "check_columns", "plan_lazy", "refuse_lazy"]


class LazyPlan(NamedTuple):
    """What the destination does: receive into `into`, one list for each rank, then call `finish`."""

    into: list[list[Any]]
    finish: Callable[[], Any]


class _Part(NamedTuple):
    """One TensorDict that comes, and the member, or a member's member, that it is for."""

    member: Any
    layout: Layout
    path: Path
    """Where a sender has it."""


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
    arrived: list[tuple[_Part, list[Any]]] = []
    finishes: list[Callable[[], None]] = []
    for member, layout, rank, position in zip(members, senders.layouts, senders.ranks, senders.positions, strict=True):
        for part in _parts(member, layout.root, (), rank, here):
            _check(part, rank, here)
            arrays = []
            for path, node in part.layout.arrays():
                array = node.empty()
                buffer, finish = writable(array, key_text((*part.path, *path)))
                into[position].append(buffer)
                arrays.append(array)
                if finish is not None:
                    finishes.append(finish)
            arrived.append((part, arrays))

    def finish_all() -> Any:
        for finish in finishes:
            finish()
        for (member, layout, _), arrays in arrived:
            _write(member, layout.rebuild(arrays, objects=layout.objects(allow_pickle)))
        return tree

    return LazyPlan(into, finish_all)


def check_columns(tree: Any, senders: Senders, here: int, size: int) -> None:
    """Raise `MismatchError` unless a stack of what is sent fits a lazy stack along another dimension than the first."""
    batch = tuple(tree.batch_size)
    for path, node in senders.layouts[0].arrays() if senders.layouts else ():
        shape = (size - 1, *node.shape)
        if shape[: len(batch)] != batch:
            raise MismatchError(
                f"{key_text(path)} has shape {tuple(node.shape)} on rank {senders.ranks[0]}, and its stack would have "
                f"{shape}, which does not fit the batch size {batch} of the lazy stack on rank {here}"
            )
        members = [each.get(path if len(path) > 1 else path[0], None) for each in tree.tensordicts]
        part = (*shape[: tree.stack_dim], *shape[tree.stack_dim + 1 :])
        for member, present in zip(tree.tensordicts, members, strict=True):
            there = None if present is None else tuple(present.shape)
            if there != part and (there is not None or member.is_locked):
                raise MismatchError(
                    f"{key_text(path)} has shape {tuple(node.shape)} on rank {senders.ranks[0]}, of which a member of "
                    f"the lazy stack on rank {here} would get {part}: it has {there or 'no such key, and is locked'}"
                )


def refuse_lazy(senders: Senders, here: int) -> None:
    """Raise `MismatchError` if a sender's lazy stack has members that differ: only another one can receive it."""
    for layout, rank in zip(senders.layouts, senders.ranks, strict=True):
        for path, branch in layout.branches():
            if branch.kind in ("L", "K"):
                where = f" at {key_text(path)}" if path else ""
                raise MismatchError(
                    f"rank {rank} sends a lazy stack{where}, which only a lazy stack on rank {here} can receive: "
                    f"{_alike(branch)}"
                )


def _parts(member: Any, node: Any, path: Path, rank: int, here: int) -> Iterator[_Part]:
    """Yield a sender's TensorDict and the member for it; of a lazy stack, its members and those of the member."""
    if not isinstance(node, Branch) or node.kind not in ("L", "K"):
        yield _Part(member, Layout(node), path)
        return
    inner = getattr(member, "tensordicts", None)
    if inner is None or len(inner) != len(node.children) or node.name.partition("/")[0] != str(member.stack_dim):
        raise MismatchError(
            f"rank {rank} sends a lazy stack of {len(node.children)} members along dimension "
            f"{node.name.partition('/')[0]}, and the member for it on rank {here} is none: {_alike(node)}"
        )
    for number, (each, child) in enumerate(zip(inner, node.children, strict=True)):
        yield from _parts(each, child, (*path, number), rank, here)


def _alike(node: Branch) -> str:
    """Say of what shapes the members of a lazy stack are."""
    shapes = [{path[1:]: tuple(array.shape) for path, array in Layout(node).arrays() if path[0] == i} for i in range(2)]
    for path, shape in shapes[0].items():
        if shapes[1].get(path, shape) != shape:
            return f"{key_text(path)} has shapes {shape} and {shapes[1][path]} there"
    return "its members differ"


def _check(part: _Part, rank: int, here: int) -> None:
    member, layout, where = part
    if not isinstance(layout.root, Branch) or layout.root.kind not in ("T", "R", "d"):
        raise MismatchError(f"rank {rank} sends no TensorDict for the lazy stack on rank {here}")
    batch = tuple(member.batch_size)
    if hasattr(member, "tensordicts") and -1 in batch:
        raise MismatchError(
            f"rank {rank} sends a TensorDict that is no lazy stack for the member of batch size {batch} on "
            f"rank {here}, of which the members differ"
        )
    for path, node in layout.arrays():
        shape = tuple(node.shape)
        if shape[: len(batch)] != batch and not any(isinstance(key, int) for key in path):
            raise MismatchError(
                f"{key_text((*where, *path))} has shape {shape} on rank {rank}, which does not fit the batch size "
                f"{batch} of the member for it on rank {here}"
            )
        if member.is_locked and _shape(member, path, node) != shape:
            raise MismatchError(
                f"{key_text((*where, *path))} of rank {rank} has shape {shape}, which the member for it on rank {here} "
                "lacks: it is locked, so that it cannot be given other keys or shapes"
            )


def _shape(member: Any, path: Path, node: Array) -> tuple[int, ...] | None:
    present = member
    for key in path:
        members = getattr(present, "tensordicts", None)
        if members is not None and isinstance(key, int):
            present = members[key] if key < len(members) else None
        else:
            present = present.get(key, None) if hasattr(present, "items") else None
    return None if present is None else tuple(present.shape)


def _write(member: Any, received: Any) -> None:
    theirs, ours = (getattr(each, "tensordicts", None) for each in (received, member))
    if theirs is not None and ours is not None and len(theirs) == len(ours):
        for one, other in zip(ours, theirs, strict=True):
            _write(one, other)
        return
    for key, value in received.items():
        present = member.get(key, None)
        if getattr(present, "_holds_objects", False):
            member._replace(key, member._check(key, present._received(value)))
        elif hasattr(value, "items") and hasattr(present, "items") and _alike_inside(present, value):
            _write(present, value)
        elif _same_place(present, value):
            copy_into(present, value)
        else:
            member.set(key, adopted(value) if kind_of(type(member)) else value)


def _alike_inside(present: Any, value: Any) -> bool:
    """Whether a received TensorDict can be written entry by entry: lazy stacks go only into such of as many members."""
    theirs, ours = (getattr(each, "tensordicts", None) for each in (value, present))
    return theirs is None or (ours is not None and len(ours) == len(theirs))


def _same_place(present: Any, value: Any) -> bool:
    known = library_of(present) not in ("other", "jax") and library_of(value) != "other"
    return known and tuple(present.shape) == tuple(value.shape)
