"""Moving arrays, TensorDicts and nestings of them without preparing anything: results are returned."""

from __future__ import annotations

from typing import Any

from corral.arrays.buffers import readable, writable
from corral.distributed import groups
from corral.distributed.collectives import destination
from corral.distributed.groups import Group
from corral.tensordict.communication import gather_and_stack
from corral.wire.agreement import agree
from corral.wire.layout import Layout, key_text

__all__ = ["gather", "gather_and_stack"]


def gather(
    tree: Any,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    like: str | None = None,
) -> list[Any] | None:
    """Bring every rank's tree of arrays to one rank.

    No rank needs to know what the others have: structures, shapes and dtypes may differ.

    Parameters
    ----------
    tree
        An array, a TensorDict, or any nesting of dicts, lists, tuples, namedtuples and dataclasses of them.
    dst
        Global rank of the destination; 0 when neither this nor `group_dst` is given.
    group
        The group; the default one when ``None``.
    group_dst
        Rank in the group of the destination, in place of `dst`.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays. By default each keeps its own where that is loaded; NumPy's else.

    Returns
    -------
    list or None
        On the destination, each rank's tree in rank order, its own included; ``None`` elsewhere.

    Raises
    ------
    PickleError
        On every rank, if some tree holds an object that can only be pickled, and that is refused.
    MismatchError
        On every rank, if some tree cannot be sent.
    """
    pg = groups.member_group(group, "gather")
    if pg is None:
        return None
    root = destination(pg, dst, group_dst, "gather")
    allow_pickle = pg.allow_pickle
    sent: list[Any] = []

    def describe() -> Layout:
        if like not in (None, "numpy", "torch", "jax", "cupy"):
            raise ValueError(f"like must be 'numpy', 'torch', 'jax' or 'cupy', got {like!r}")
        layout, leaves = Layout.of(tree, allow_pickle)
        paths = layout.arrays()
        sent.extend(readable(leaf, key_text(path)) for leaf, (path, _) in zip(leaves, paths, strict=True))
        return layout

    def decide(
        layouts: list[Layout | None],
    ) -> tuple[list[Layout], list[list[Any]], list[list[Any]], list[Any]]:
        known = [layout for layout in layouts if layout is not None]
        made: list[list[Any]] = []
        into: list[list[Any]] = []
        finishes: list[Any] = []
        for layout in known:
            arrays = [(path, node.empty()) for path, node in layout.arrays()]
            pairs = [writable(array, key_text(path)) for path, array in arrays]
            made.append([array for _, array in arrays])
            into.append([buffer for buffer, _ in pairs])
            finishes.extend(finish for _, finish in pairs if finish is not None)
        return known, made, into, finishes

    plan = agree(pg, root, "gather", describe, decide)
    pg.backend.gather(sent, None if plan is None else plan[2], root)
    if plan is None:
        return None
    layouts, made, _, finishes = plan
    for finish in finishes:
        finish()
    return [layout.rebuild(leaves, like, allow_pickle) for layout, leaves in zip(layouts, made, strict=True)]
