"""From one rank to all others: `broadcast` and `scatter`."""

from __future__ import annotations

from typing import Any

from corral.distributed import groups
from corral.distributed.groups import Group, ProcessGroup
from corral.functional.offers import consent, exchange, prepare_offered
from corral.functional.parcels import Outgoing, check_like, check_that_holds, pack

__all__ = ["broadcast", "scatter", "trees_for_all"]


def broadcast(
    tree: Any,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
    like: str | None = None,
) -> Any:
    """Bring one rank's tree of arrays to every rank.

    The others need not know what it is. Where ``torch.distributed.broadcast`` fills a prepared tensor, this returns
    what it received.

    Parameters
    ----------
    tree
        On the source an array, a TensorDict, or any nesting of dicts, lists, tuples, namedtuples and dataclasses of
        them. Not looked at elsewhere, where it may be ``None``.
    src
        Global rank of the source.
    group
        The group; the default one when ``None``.
    group_src
        Rank in the group of the source, in place of `src`.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays. By default each keeps its own where that is loaded; NumPy's else.

    Returns
    -------
    tree
        The source's tree: on the source `tree` itself, unless arrays had to be converted. ``None`` if this process is
        not in the group.

    Raises
    ------
    PickleError
        On every rank, if the tree holds an object that can only be pickled, and that is refused.
    MismatchError
        On every rank, if the tree cannot be sent, or not be made an array of some rank's `like`.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     parameters = {"weight": np.ones((4, 2)), "step": 7} if dist.get_rank() == 0 else None
    ...     parameters = broadcast(parameters, src=0)
    """
    name = "corral.broadcast"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        root = groups.resolve_rank(pg, src, group_src, "src", name)
        check_like(like)
    allow_pickle = pg.allow_pickle
    (parcel,), offers = exchange(
        pg, name, lambda: [pack(tree, allow_pickle) if root == pg._rank else None], ("src", root)
    )
    certain = offers[root].certain
    if parcel is not None:
        own = parcel
        result = consent(pg, name, certain, lambda: _as_like(tree, own, like, allow_pickle))
        pg.backend.broadcast(own.buffers, root, operation=name)
        return result
    received = consent(pg, name, certain, lambda: prepare_offered(offers[root], like, allow_pickle))
    pg.backend.broadcast(received.buffers, root, operation=name)
    return received.rebuild(like)


def _as_like(tree: Any, parcel: Outgoing, like: str | None, allow_pickle: bool) -> Any:
    """Return the source's own tree, with its arrays in the library that was asked for."""
    layout, arrays = parcel.known.layout, parcel.known.arrays
    if like is None or all(node.library == like for _, node in arrays):
        return tree
    check_that_holds(arrays, like)
    return layout.rebuild(parcel.leaves, like, layout.objects(allow_pickle))


def scatter(
    trees: list[Any] | tuple[Any, ...] | None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
    like: str | None = None,
) -> Any:
    """Bring each rank a tree of arrays of its own from one rank.

    The others need not know what they get; structures, shapes and dtypes may differ from rank to rank. Where
    ``torch.distributed.scatter`` fills a prepared tensor, this returns what it received.

    Parameters
    ----------
    trees
        On the source one tree for each rank of the group, in rank order; ``None`` elsewhere.
    src
        Global rank of the source; 0 when neither this nor `group_src` is given.
    group
        The group; the default one when ``None``.
    group_src
        Rank in the group of the source, in place of `src`.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays. By default each keeps its own where that is loaded; NumPy's else.

    Returns
    -------
    tree
        This rank's tree; on the source a copy. ``None`` if this process is not in the group.

    Raises
    ------
    ValueError
        If `trees` has not one entry for each rank, or is given elsewhere than on the source; other ranks raise
        `MismatchError`.
    PickleError
        On every rank, if some tree holds an object that can only be pickled, and that is refused.
    MismatchError
        On every rank, if some tree cannot be sent, or not be made an array of its receiver's `like`.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     rank, size = dist.get_rank(), dist.get_world_size()
    ...     shards = [{"rows": np.zeros((i, 3))} for i in range(size)] if rank == 0 else None
    ...     shard = scatter(shards, src=0)  # of as many rows as this rank's number
    """
    name = "corral.scatter"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        root = groups.resolve_rank(pg, 0 if src is None and group_src is None else src, group_src, "src", name)
        check_like(like)
        sent = trees_for_all(pg, trees, name) if root == pg._rank else None
        if sent is None and trees is not None:
            raise ValueError(
                f"{name}: Argument ``trees`` must NOT be specified on non-source ranks: expected None, got "
                f"{type(trees).__qualname__}"
            )
    allow_pickle = pg.allow_pickle

    def make() -> list[Outgoing | None]:
        return [None] * pg._size if sent is None else [pack(tree, allow_pickle) for tree in sent]

    parcels, offers = exchange(pg, name, make, ("src", root), each=True)
    received = consent(pg, name, offers[root].certain, lambda: prepare_offered(offers[root], like, allow_pickle))
    parts = None if sent is None else [parcel.buffers for parcel in parcels if parcel is not None]
    pg.backend.scatter(parts, received.buffers, root, operation=name)
    return received.rebuild(like)


def trees_for_all(pg: ProcessGroup, trees: Any, operation: str) -> list[Any]:
    """Return a list of a tree for each rank of the group, or raise if it is none."""
    if not isinstance(trees, (list, tuple)):
        raise TypeError(
            f"{operation}: trees must be a list of a tree for each of the {pg._size} ranks of the group, got "
            f"{type(trees).__qualname__}"
        )
    if len(trees) != pg._size:
        raise ValueError(
            f"{operation}: trees must have one tree for each of the {pg._size} ranks of the group, got {len(trees)}"
        )
    return list(trees)
