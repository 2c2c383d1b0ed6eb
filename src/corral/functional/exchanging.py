"""From every rank to every other: `all_to_all`."""

from __future__ import annotations

from typing import Any

from corral.distributed import groups
from corral.distributed.groups import Group
from corral.functional.broadcasting import trees_for_all
from corral.functional.offers import consent, exchange, prepare_offered
from corral.functional.parcels import Incoming, check_like, pack

__all__ = ["all_to_all"]


def all_to_all(trees: list[Any] | tuple[Any, ...], group: Group = None, like: str | None = None) -> list[Any] | None:
    """Send each rank a tree of arrays, and receive one from each.

    No rank needs to know what it gets; structures, shapes and dtypes may all differ. Where
    ``torch.distributed.all_to_all`` fills a list of prepared tensors, this returns what it received.

    Parameters
    ----------
    trees
        One tree for each rank of the group, in rank order.
    group
        The group; the default one when ``None``.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays. By default each keeps its own where that is loaded; NumPy's else.

    Returns
    -------
    list or None
        What each rank had for this one, in rank order, a copy of its own included; ``None`` if this process is not in
        the group.

    Raises
    ------
    ValueError
        If `trees` has not one entry for each rank; other ranks raise `MismatchError`.
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
    ...     received = all_to_all([{"rows": np.full((rank, i), rank)} for i in range(size)])
    ...     assert [tree["rows"].shape for tree in received] == [(i, rank) for i in range(size)]
    """
    name = "corral.all_to_all"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        check_like(like)
        sent = trees_for_all(pg, trees, name)
    allow_pickle = pg.allow_pickle
    parcels, offers = exchange(pg, name, lambda: [pack(tree, allow_pickle) for tree in sent], each=True)

    def receive() -> list[Incoming]:
        return [prepare_offered(each, like, allow_pickle) for each in offers]

    received = consent(pg, name, all(each.certain for each in offers), receive)
    parts = [parcel.buffers for parcel in parcels if parcel is not None]
    pg.backend.all_to_all(parts, [each.buffers for each in received], operation=name)
    return [each.rebuild(like) for each in received]
