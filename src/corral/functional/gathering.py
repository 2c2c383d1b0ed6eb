"""Bringing every rank's tree together: `gather` and `all_gather`."""

from __future__ import annotations

from typing import Any

from corral.distributed import groups
from corral.distributed.collectives import destination
from corral.distributed.groups import Group
from corral.functional.joining import check_joinable, prepare_joined
from corral.functional.offers import JOINED, consent, exchange
from corral.functional.parcels import Incoming, Outgoing, check_like, pack, prepare

__all__ = ["all_gather", "gather"]


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
    name = "corral.gather"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        root = destination(pg, dst, group_dst, name)
        check_like(like, load=root == pg._rank)
    allow_pickle = pg.allow_pickle

    def make() -> list[Outgoing | None]:
        parcel = pack(tree, allow_pickle)
        return [parcel if rank == root else None for rank in range(pg._size)]

    def receive() -> list[Incoming]:
        return [prepare(each, like, allow_pickle) for offer in offers if (each := offer.tree()) is not None]

    parcels, offers = exchange(pg, name, make, ("dst", root), each=True)
    parcel = parcels[root]
    assert parcel is not None
    received = consent(pg, name, all(offer.certain for offer in offers), receive)
    into = [each.buffers for each in received] if root == pg._rank else None
    pg.backend.gather(parcel.buffers, into, root, operation=name)
    return [each.rebuild(like) for each in received] if root == pg._rank else None


def all_gather(tree: Any, group: Group = None, cat: bool = False, like: str | None = None) -> Any:
    """Bring every rank's tree of arrays to every rank.

    No rank needs to know what the others have. Nothing is padded: each rank's arrays travel as they are.
    Where ``torch.distributed.all_gather`` fills a list of prepared tensors of one shape, this returns what it received.

    Parameters
    ----------
    tree
        An array, a TensorDict, or any nesting of dicts, lists, tuples, namedtuples and dataclasses of them.
    group
        The group; the default one when ``None``.
    cat
        Whether to join the ranks' arrays along their first dimension, key by key. The numbers of rows may differ; keys,
        dtypes and other dimensions may not, and there must be nothing but arrays.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays. By default each keeps its own where that is loaded; NumPy's else.

    Returns
    -------
    list or tree
        Each rank's tree in rank order, a copy of this rank's own included; with `cat`, one tree, in this rank's
        containers. ``None`` if this process is not in the group.

    Raises
    ------
    PickleError
        On every rank, if some tree holds an object that can only be pickled, and that is refused.
    MismatchError
        On every rank, if some tree cannot be sent, or not be made an array of some rank's `like`; with `cat` on any
        rank, if the trees cannot be joined.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():  # each rank has as many rows as its rank
    ...     rank, size = dist.get_rank(), dist.get_world_size()
    ...     trees = all_gather({"rows": np.full((rank, 3), rank)})
    ...     joined = all_gather({"rows": np.full((rank, 3), rank)}, cat=True)
    ...     assert np.array_equal(joined["rows"], np.concatenate([tree["rows"] for tree in trees]))
    """
    name = "corral.all_gather"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        check_like(like)
    allow_pickle = pg.allow_pickle
    (parcel,), offers = exchange(pg, name, lambda: [pack(tree, allow_pickle)], flags=JOINED if cat else 0)
    assert parcel is not None

    def receive() -> tuple[list[Incoming], list[list[Any]]]:
        offered = [each for offer in offers if (each := offer.tree()) is not None]
        layouts = [each.layout for each in offered]
        if any(each.flags & JOINED for each in offers):  # all ranks check it, so that all raise alike
            check_joinable(layouts, pg.ranks)
        if cat:
            joined, into = prepare_joined(layouts, like, pg._rank)
            return [joined], into
        received = [prepare(each, like, allow_pickle) for each in offered]
        return received, [each.buffers for each in received]

    received, into = consent(pg, name, all(each.certain for each in offers), receive)
    pg.backend.all_gather(parcel.buffers, into, operation=name)
    trees = [each.rebuild(like) for each in received]
    return trees[0] if cat else trees
