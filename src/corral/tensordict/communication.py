"""Moving TensorDicts, and any other trees of arrays, between ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from corral.arrays import buffers
from corral.distributed import groups
from corral.distributed.collectives import destination
from corral.distributed.groups import Group, ProcessGroup

__all__ = ["gather_and_stack"]

buffers.register_torch()

_DEEPEST = 100


def gather_and_stack(td: Any, dst: int | None = None, group: Group = None, group_dst: int | None = None) -> Any:
    """Stack the other ranks' trees in the rows of the destination's, in place.

    Parameters
    ----------
    td
        A TensorDict, one array, or any nesting of dicts, lists, tuples, namedtuples and dataclasses of them. On
        the destination, the first dimension of each array has one row for each other rank; or ``None``, and the
        stack is made.
    dst
        Global rank of the destination; 0 when neither this nor `group_dst` is given.
    group
        The group; the default one when ``None``.
    group_dst
        Rank in the group of the destination, in place of `dst`.

    Returns
    -------
    On the destination `td`, or the new stack; ``None`` elsewhere.

    Raises
    ------
    MismatchError
        On every rank, if the trees do not fit together.

    Notes
    -----
    The result is that of stacking the senders' trees and updating `td` in place: keys that only the senders
    have are added, keys that only `td` has stay, other dtypes are cast. Senders' numbers that are no arrays
    are written as rows where `td` has an array; other objects become a list of one for each sender.

    A lazy stack receives each sender's TensorDict in a member, whatever its keys and shapes. Entries in an HDF5 file
    are written there, those in mapped files flushed.

    Trees that are alike on all ranks, in the order of their keys too, are moved in one operation of the engine;
    others are compared first, which costs two more messages.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     rank, size = dist.get_rank(), dist.get_world_size()
    ...     batch = {"obs": np.empty((size - 1, 4)) if rank == 0 else np.full(4, float(rank))}
    ...     gather_and_stack(batch, dst=0)  # rank 0: one row for each of the ranks 1, 2, ...
    """
    pg = groups.world if group is None else None
    if pg is None:
        pg = groups.member_group(group, "gather_and_stack", 2)
        if pg is None:
            return None
    if group is None and group_dst is None and dst.__class__ is int and 0 <= dst < pg._size:
        root: int = dst  # a call less where every microsecond shows: in the default group, ranks are global
    else:
        with groups.refusing(pg, "gather_and_stack"):
            root = destination(pg, dst, group_dst, "gather_and_stack")
    tree = td if td.__class__ in _walkable else _view(td)
    if pg.backend.gather_rows(tree, root):  # everything fits as it is: the engine has written it
        if root != pg._rank:
            return None
        result = td
    else:
        result = _negotiate(td, pg, root)
    if getattr(result, "_locked", False):  # as those are that lie in mapped files
        from corral.tensordict.moving.leaves import flush_files

        flush_files(result)
    return result


_walkable: set[type] = {np.ndarray}
"""Types that the engine takes as they are: of arrays, and of containers that it knows."""


def _view(tree: Any, depth: int = 0) -> Any:
    """Return a tree in containers that the engine can walk: dicts in place of lists, tuples and records.

    What it cannot walk all the same it refuses, so that all ranks negotiate.
    """
    cls = type(tree)
    if cls in _walkable or depth > _DEEPEST:
        return tree
    if cls is dict:
        if _walkable.issuperset(map(type, tree.values())):
            return tree
        return {key: _view(value, depth + 1) for key, value in tree.items()}
    from corral.arrays import library_of
    from corral.wire import trees

    kind = trees.kind_of(tree)
    if kind == "T" or (kind is None and library_of(tree) != "other"):
        _walkable.add(cls)
    if kind is None or kind in "TRLK":
        return tree
    try:
        keys, values, _, _ = trees.parts(kind, tree)
    except AttributeError:  # a record without some of its fields
        return tree
    if kind != "d":  # no two kinds of containers may look alike, nor like a dict
        keys = [f"\0{kind}{key}" for key in keys]
    return {key: _view(value, depth + 1) for key, value in zip(keys, values, strict=True)}


def _negotiate(td: Any, pg: ProcessGroup, root: int) -> Any:
    """Do the same for trees that differ in keys, in their order, in dtypes; or find out what is wrong."""
    from corral.arrays.buffers import readable
    from corral.wire.agreement import agree
    from corral.wire.layout import Layout, key_text
    from corral.wire.rows import plan_rows

    _register()
    sent: list[Any] = []

    def describe() -> Layout | None:
        if td is None or pg._rank == root:
            return None
        layout, leaves = Layout.of(td, pg.allow_pickle, stacking=True, dense=True)
        paths = layout.arrays()
        sent.extend(readable(leaf, key_text(path)) for leaf, (path, _) in zip(leaves, paths, strict=True))
        return layout

    plan = agree(
        pg,
        root,
        "gather_and_stack",
        describe,
        lambda layouts: plan_rows(td, layouts, pg.ranks, root, pg.allow_pickle),
    )
    pg.backend.gather(sent, None if plan is None else plan.into, root, operation="gather_and_stack")
    return None if plan is None else plan.finish()


def _register() -> None:
    """Teach the core the types that have been loaded since, so that the next call need not come here."""
    import sys

    from corral import _core

    buffers.register_torch()
    theirs = sys.modules.get("tensordict")
    if theirs is not None:
        _core.register_container(theirs.TensorDict, "_tensordict", "_batch_size")
