"""Trees of all ranks joined to one, row after row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.arrays.buffers import writable
from corral.distributed.errors import MismatchError
from corral.functional.fitting import check_alike, kind_of_value, where
from corral.functional.parcels import Incoming, check_that_holds
from corral.wire.layout import Array, Branch, Layout, Path, Value, key_text

__all__ = ["check_joinable", "prepare_joined"]


def check_joinable(layouts: Sequence[Layout], ranks: Sequence[int]) -> None:
    """Raise `MismatchError` unless the ranks' trees differ in nothing but the number of rows."""
    for layout, rank in zip(layouts, ranks, strict=True):
        for path, branch in layout.branches():
            if branch.kind in ("L", "K"):
                raise MismatchError(
                    f"{where(path)} is a lazy stack on rank {rank}, which cannot be joined with cat=True: call "
                    "to_tensordict() first"
                )
        for path, node in layout.entries():
            if isinstance(node, Value):
                raise MismatchError(
                    f"{where(path)} is {kind_of_value(node)} on rank {rank}: with cat=True only arrays can be gathered"
                )
            if not node.shape:
                raise MismatchError(
                    f"{where(path)} is a scalar (shape ()) on rank {rank}: with cat=True an array needs a first "
                    "dimension, of rows"
                )
    check_alike(layouts, ranks, rows=True)


def prepare_joined(layouts: Sequence[Layout], like: str | None, own: int) -> tuple[Incoming, list[list[Any]]]:
    """Allocate the arrays that have every rank's rows.

    Returns
    -------
    joined
        The tree, in the containers and libraries of rank `own` of the group.
    into
        For each rank the buffers of its rows, in the order in which that rank sends.
    """
    nodes = [dict(layout.arrays()) for layout in layouts]
    batches = [
        {path: branch.batch_size[0] for path, branch in layout.branches() if branch.batch_size} for layout in layouts
    ]

    def total(path: Path, node: Array | Value | Branch) -> int:
        """Add up the rows of an array, or of the TensorDict that contains it."""
        if isinstance(node, Branch):
            inner = Layout(node).arrays()
            if not inner:
                return sum(each.get(path, 0) for each in batches)
            path = (*path, *inner[0][0])
        return sum(each[path].shape[0] for each in nodes)

    def join(node: Array | Value | Branch, path: Path) -> Array | Value | Branch:
        if isinstance(node, Array):
            return Array(node.dtype, [total(path, node), *node.shape[1:]], node.library)
        if isinstance(node, Value):
            return node
        batch_size = [total(path, node), *node.batch_size[1:]] if node.batch_size else node.batch_size
        children = [join(child, (*path, key)) for key, child in zip(node.names(), node.children, strict=True)]
        return msgspec.structs.replace(node, batch_size=batch_size, children=children)

    joined = Layout(join(layouts[own].root, ()))
    check_that_holds([(key_text(path), node) for path, node in joined.arrays()], like)
    arrays = {path: node.empty() for path, node in joined.arrays()}
    starts = dict.fromkeys(arrays, 0)
    into: list[list[Any]] = []
    finishes = []
    for layout in layouts:
        buffers = []
        for path, node in layout.arrays():
            start = starts[path]
            starts[path] = stop = start + node.shape[0]
            buffer, finish = writable(arrays[path][start:stop], key_text(path))
            buffers.append(buffer)
            if finish is not None:
                finishes.append(finish)
        into.append(buffers)
    return Incoming(joined, list(arrays.values()), [], [], finishes), into
