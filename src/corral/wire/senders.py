"""What the senders of a gathered stack have, and whether it fits together."""

from __future__ import annotations

from typing import NamedTuple

from corral.distributed.errors import MismatchError
from corral.wire.layout import Array, Layout, Path, Value, key_text

__all__ = ["Senders", "check_senders", "of_shape"]


class Senders(NamedTuple):
    """Whose rows a stack is made of, in their order."""

    layouts: list[Layout]
    ranks: list[int]  # global
    positions: list[int]  # in the group


def check_senders(senders: Senders) -> None:
    """Raise unless all senders have the same keys, shapes and batch sizes."""
    if not senders.layouts:
        return
    first = {entry.path: entry.node for entry in senders.layouts[0].entries()}
    there = senders.ranks[0]
    for layout, rank in zip(senders.layouts[1:], senders.ranks[1:], strict=True):
        other = {entry.path: entry.node for entry in layout.entries()}
        for one, two, having, lacking in ((first, other, there, rank), (other, first, rank, there)):
            for path, node in one.items():
                if path not in two:
                    raise MismatchError(
                        f"rank {lacking} has no array {key_text(path)}, which rank {having} has{of_shape(node)}"
                    )
        for path, node in first.items():
            theirs = other[path]
            if type(node) is not type(theirs):
                raise MismatchError(f"{key_text(path)} is an array on only one of the ranks {there} and {rank}")
            if isinstance(node, Array) and isinstance(theirs, Array) and node.shape != theirs.shape:
                raise MismatchError(
                    f"{key_text(path)} has shape {tuple(theirs.shape)} on rank {rank}, but "
                    f"{tuple(node.shape)} "
                    f"on rank {there}"
                )
    _check_batch_sizes(senders)


def _check_batch_sizes(senders: Senders) -> None:
    """Raise unless the senders' TensorDicts have the same batch sizes; other containers have none."""
    first: dict[Path, tuple[list[int], int]] = {}
    for layout, rank in zip(senders.layouts, senders.ranks, strict=True):
        for path, branch in layout.branches():
            if branch.batch_size is None:
                continue
            size, there = first.setdefault(path, (branch.batch_size, rank))
            if branch.batch_size != size:
                where = "the tree" if not path else key_text(path)
                raise MismatchError(
                    f"{where} has the batch size {tuple(branch.batch_size)} on rank {rank}, but {tuple(size)} on "
                    f"rank {there}: only TensorDicts of one batch size can be stacked"
                )


def of_shape(node: Array | Value) -> str:
    """Return an array's shape as error messages add it to its key."""
    return f" (shape {tuple(node.shape)})" if isinstance(node, Array) else ""
