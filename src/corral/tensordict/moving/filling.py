"""From one rank into the leaves that all others have: broadcast and scatter in place."""

from __future__ import annotations

from typing import Any

from corral.arrays.apart import check_apart
from corral.distributed import groups
from corral.distributed.arguments import Finish
from corral.distributed.errors import MismatchError
from corral.distributed.groups import Group, ProcessGroup
from corral.functional.broadcasting import trees_for_all
from corral.functional.fitting import check_alike
from corral.functional.offers import Offer, consent, exchange
from corral.functional.parcels import Outgoing, pack
from corral.tensordict.moving.leaves import fill, slots_of
from corral.wire.layout import Layout

__all__ = ["broadcast_into", "scatter_into"]


def broadcast_into(td: Any, src: int | None, group: Group, group_src: int | None) -> Any:
    """Write one rank's leaves into everyone's; see `TensorDict.broadcast`."""
    name = "TensorDict.broadcast"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        root = groups.resolve_rank(pg, src, group_src, "src", name)
    is_root = root == pg._rank
    (parcel,), offers = exchange(pg, name, lambda: [pack(td, pg.allow_pickle) if is_root else None], ("src", root))

    def prepare() -> tuple[list[Any], Finish | None]:
        return ([], None) if is_root else _fit(td, offers[root], pg, root)

    buffers, finish = consent(pg, name, False, prepare)
    pg.backend.broadcast(buffers if parcel is None else parcel.buffers, root, operation=name)
    if finish is not None:
        finish()
    return td


def scatter_into(td: Any, src: int | None, tensordicts: Any, group: Group, group_src: int | None) -> Any:
    """Write a TensorDict of one rank's into each rank's; see `TensorDict.scatter`."""
    name = "TensorDict.scatter"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return None
    with groups.refusing(pg, name):
        root = groups.resolve_rank(pg, src, group_src, "src", name)
        sent = trees_for_all(pg, tensordicts, name) if root == pg._rank else None

    def make() -> list[Outgoing | None]:
        if sent is None:
            return [None] * pg._size
        return [pack(each, pg.allow_pickle) for each in sent]

    parcels, offers = exchange(pg, name, make, ("src", root), each=True)

    def prepare() -> tuple[list[Any], Finish | None]:
        if sent is not None and sent[pg._rank] is not td:
            _check_apart(td, sent)
        return _fit(td, offers[root], pg, root)

    buffers, finish = consent(pg, name, False, prepare)
    parts = None if sent is None else [parcel.buffers for parcel in parcels if parcel is not None]
    pg.backend.scatter(parts, buffers, root, operation=name)
    if finish is not None:
        finish()
    return td


def _fit(td: Any, offer: Offer, pg: ProcessGroup, root: int) -> tuple[list[Any], Finish | None]:
    """Return the buffers of a TensorDict's leaves in the order in which they come, and what to call afterwards."""
    offered = offer.tree()
    if offered is None:
        raise MismatchError(f"rank {pg.ranks[root]} has nothing to send")
    own, _ = Layout.of(td, pg.allow_pickle)
    check_alike([offered.layout, own], (pg.ranks[root], pg.ranks[pg._rank]))
    slots = {slot.path: slot for slot in slots_of(td)}
    return fill([slots[path] for path, _ in offered.layout.arrays()])


def _check_apart(td: Any, sent: list[Any]) -> None:
    outputs = [slot.leaf for slot in slots_of(td)]
    inputs = [slot.leaf for each in sent for slot in slots_of(each)]
    check_apart(outputs, inputs, "a leaf of the TensorDict to fill", "one of tensordicts")
