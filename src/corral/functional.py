"""Moving arrays, TensorDicts and nestings of them without preparing anything: results are returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from corral.arrays.buffers import readable, writable
from corral.arrays.libraries import convert
from corral.distributed import groups
from corral.distributed.collectives import destination
from corral.distributed.groups import Group
from corral.tensordict.communication import gather_and_stack
from corral.wire.agreement import agree
from corral.wire.layout import Array, Layout, key_text

__all__ = ["gather", "gather_and_stack"]


def gather(
    tree: Any,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    like: str | None = None,
) -> list[Any] | None:
    """Bring every rank's tree of arrays to one rank.

    No rank needs to know what the others have: structures, shapes and dtypes may differ. What is not an array
    (a string, a number, ``None``) comes along as `corral.distributed.gather_object` would bring it. A namedtuple
    or a dataclass stays one where its class is loaded on the destination, and is a tuple or a dict elsewhere.

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
        On every rank, if some tree cannot be sent, or not be made an array of the library `like`.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():  # each rank has as many rows as its rank
    ...     rank = dist.get_rank()
    ...     trees = gather({"rows": np.full((rank, 3), rank), "name": f"worker {rank}"}, dst=0)
    ...     if rank == 0:
    ...         rows = np.concatenate([tree["rows"] for tree in trees])
    """
    pg = groups.member_group(group, "corral.gather")
    if pg is None:
        return None
    root = destination(pg, dst, group_dst, "corral.gather")
    allow_pickle = pg.allow_pickle
    sent: list[Any] = []

    def describe() -> Layout:
        if like not in (None, "numpy", "torch", "jax", "cupy"):
            raise ValueError(f"like must be 'numpy', 'torch', 'jax' or 'cupy', got {like!r}")
        layout, leaves = Layout.of(tree, allow_pickle)
        paths = layout.arrays()
        sent.extend(readable(leaf, key_text(path)) for leaf, (path, _) in zip(leaves, paths, strict=True))
        return layout

    def decide(layouts: list[Layout | None]) -> list[_Received]:
        return [_prepare(layout, like, allow_pickle) for layout in layouts if layout is not None]

    received = agree(pg, root, "corral.gather", describe, decide)
    pg.backend.gather(
        sent, None if received is None else [each.buffers for each in received], root, operation="corral.gather"
    )
    if received is None:
        return None
    for each in received:
        for finish in each.finishes:
            finish()
    return [each.layout.rebuild(each.arrays, like, each.objects) for each in received]


class _Received(NamedTuple):
    """One rank's tree, as it is received."""

    layout: Layout
    arrays: list[Any]
    objects: list[Any]
    buffers: list[Any]
    finishes: list[Callable[[], None]]


def _prepare(layout: Layout, like: str | None, allow_pickle: bool) -> _Received:
    """Allocate a tree's arrays, and find out now whether it can be made of them: later is too late to say no."""
    nodes = layout.arrays()
    if like is not None:
        for path, node in nodes:
            try:
                convert(Array(node.dtype, [0], node.library).empty(), like)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"{key_text(path)} ({node.dtype_text}) cannot become an array of {like}: {error}"
                ) from None
    arrays = [node.empty() for _, node in nodes]
    pairs = [writable(array, key_text(path)) for array, (path, _) in zip(arrays, nodes, strict=True)]
    finishes = [finish for _, finish in pairs if finish is not None]
    return _Received(layout, arrays, layout.objects(allow_pickle), [buffer for buffer, _ in pairs], finishes)
