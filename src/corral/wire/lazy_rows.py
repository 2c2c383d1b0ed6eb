"""Where the trees of a gather go that a lazy stack receives: each sender's into a member, whatever its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from corral.arrays.buffers import writable
from corral.arrays.libraries import copy_into, is_array, library_of
from corral.arrays.operations import unbind
from corral.distributed.errors import MismatchError
from corral.wire.layout import Branch, Layout, Path, key_text
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


def check_columns(tree: Any, node: Branch, path: Path, senders: Senders, here: int, size: int) -> None:
    """Raise `MismatchError` unless a stack of what is sent under a path can be written into a lazy stack there."""
    if node.kind not in ("T", "R", "d"):
        raise MismatchError(
            f"{key_text(path)} is a lazy stack on rank {here}, but no TensorDict on rank {senders.ranks[0]}"
        )
    batch = tuple(tree.batch_size)
    name = f"the lazy stack {key_text(path)}" if path else "the lazy stack"
    if batch[0] != size - 1:
        raise MismatchError(
            f"{name} has the batch size {batch} on rank {here}: its first dimension must be {size - 1}, a row for "
            "each other rank"
        )
    sent = tuple(node.batch_size or ())
    if batch[1 : len(sent) + 1] != sent[: len(batch) - 1]:
        raise MismatchError(
            f"rank {senders.ranks[0]} sends a TensorDict of batch size {sent} for {name} on "
            f"rank {here}, whose rows have the batch size {batch[1:]}"
        )
    for at, array in Layout(node).arrays():
        shape = (size - 1, *array.shape)
        where = key_text((*path, *at))
        if shape[: len(batch)] != batch:
            raise MismatchError(
                f"{where} has shape {tuple(array.shape)} on rank {senders.ranks[0]}, and its stack would have "
                f"{shape}, which does not fit the batch size {batch} of {name} on rank {here}"
            )
        part = (*shape[: tree.stack_dim], *shape[tree.stack_dim + 1 :])
        for member in tree.tensordicts:
            if _fits(member, at, part):
                continue
            there = _shape(member, at)
            raise MismatchError(
                f"{where} has shape {tuple(array.shape)} on rank {senders.ranks[0]}, of which a member of "
                f"{name} on rank {here} would get {part}: it has {there or 'no such key, and is locked'}"
            )


def _fits(member: Any, path: Path, part: tuple[int, ...]) -> bool:
    """Whether an array of a shape can be written into a member, or set in it."""
    inner = getattr(member, "tensordicts", None)
    if inner is not None:  # whose arrays may differ in shape
        rest = (*part[: member.stack_dim], *part[member.stack_dim + 1 :])
        return part[member.stack_dim : member.stack_dim + 1] == (len(inner),) and all(
            _fits(each, path, rest) for each in inner
        )
    present = member.get(path[0], None) if isinstance(path[0], str) else None
    if present is None:
        return not member.is_locked
    if len(path) > 1 and hasattr(present, "items"):
        return _fits(present, path[1:], part)
    return len(path) == 1 and tuple(getattr(present, "shape", ())) == part


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
    sent = layout.root.batch_size
    if hasattr(member, "tensordicts") and sent is not None and tuple(sent[: len(batch)]) != batch[: len(sent)]:
        raise MismatchError(
            f"rank {rank} sends a TensorDict of batch size {tuple(sent)}, which does not fit the batch size {batch} of "
            f"the member for it on rank {here}"
        )
    for path, node in layout.arrays():
        shape = tuple(node.shape)
        if shape[: len(batch)] != batch and not any(isinstance(key, int) for key in path):
            raise MismatchError(
                f"{key_text((*where, *path))} has shape {shape} on rank {rank}, which does not fit the batch size "
                f"{batch} of the member for it on rank {here}"
            )
        if member.is_locked and _shape(member, path) != shape:
            raise MismatchError(
                f"{key_text((*where, *path))} of rank {rank} has shape {shape}, which the member for it on rank {here} "
                "lacks: it is locked, so that it cannot be given other keys or shapes"
            )


def _shape(member: Any, path: Path) -> tuple[int, ...] | None:
    """Return the shape of the array that a member has under a path; ``None`` if it has none, or of several shapes."""
    present = member
    for key in path:
        members = getattr(present, "tensordicts", None)
        if members is not None and isinstance(key, int):
            present = members[key] if key < len(members) else None
            continue
        try:
            present = present.get(key, None) if hasattr(present, "items") else None
        except RuntimeError:  # the members of a lazy stack differ there
            return None
    return None if present is None else tuple(present.shape)


def _write(member: Any, received: Any) -> None:
    theirs, ours = (getattr(each, "tensordicts", None) for each in (received, member))
    if ours is not None:  # what it gives for a key is a copy: its members are what is written
        parts = theirs if _alike_inside(member, received) and theirs is not None else None
        for one, other in zip(ours, parts or _pieces(received, member.stack_dim, len(ours)), strict=True):
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


def _pieces(value: Any, dim: int, count: int) -> Sequence[Any]:
    """Return the parts of what came for a lazy stack that are its members'."""
    batch = getattr(value, "batch_size", None)
    if batch is not None and len(batch) > dim:
        pieces: Sequence[Any] = value._unbind(dim) if hasattr(value, "_unbind") else value.unbind(dim)
        return pieces
    if hasattr(value, "items") and not getattr(
        value, "_holds_objects", False
    ):  # a TensorDict of a smaller batch, or a dict: its arrays have the dimension
        columns = {key: _pieces(item, dim, count) for key, item in value.items()}
        return [{key: column[number] for key, column in columns.items()} for number in range(count)]
    if is_array(value) and len(value.shape) > dim:
        return unbind(value, dim)
    return [value] * count


def _alike_inside(present: Any, value: Any) -> bool:
    """Whether a received TensorDict can be written entry by entry: lazy stacks go only into such of as many members."""
    theirs, ours = (getattr(each, "tensordicts", None) for each in (value, present))
    if theirs is None:
        return True
    return ours is not None and len(ours) == len(theirs) and present.stack_dim == value.stack_dim


def _same_place(present: Any, value: Any) -> bool:
    known = library_of(present) not in ("other", "jax") and library_of(value) != "other"
    return known and tuple(present.shape) == tuple(value.shape)
