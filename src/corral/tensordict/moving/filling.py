"""From one rank into the leaves that all others have: broadcast and scatter in place."""

from __future__ import annotations

from typing import Any

import msgspec

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
from corral.tensordict.moving.objects import check, put
from corral.wire import codec
from corral.wire.entries import make_entry
from corral.wire.layout import Branch, Layout, Value

__all__ = ["broadcast_into", "scatter_into"]

_OBJECTS = ("N", "S")


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
    own, _ = Layout.of(td._outline() if td._in_file else td, pg.allow_pickle)
    arrays, objects = slots_of(td)
    theirs = offered.layout if not td._in_file else Layout(_arrays_only(offered.layout.root))
    check_alike([theirs, own], (pg.ranks[root], pg.ranks[pg._rank]))
    slots = {slot.path: slot for slot in arrays}
    buffers, finish = fill([slots[path] for path, _ in offered.layout.arrays()])
    found = _entries(offered.layout, pg.allow_pickle)
    places = [slot for slot in objects if slot.path in found]
    for slot in places:
        check(slot, found[slot.path])
    if not places:
        return buffers, finish

    def complete() -> None:
        if finish is not None:
            finish()
        put(places, [found[slot.path] for slot in places])

    return buffers, complete


def _arrays_only(node: Any) -> Any:
    """Return a layout without entries that are no arrays: the outline of a file does not have them."""
    if not isinstance(node, Branch):
        return node
    kept = [
        (key, _arrays_only(child))
        for key, child in zip(node.names(), node.children, strict=True)
        if not isinstance(child, Value) and not (isinstance(child, Branch) and child.kind in _OBJECTS)
    ]
    keys = codec.dumps([key for key, _ in kept], False)
    return msgspec.structs.replace(node, keys=keys, children=[child for _, child in kept])


def _entries(layout: Layout, allow_pickle: bool) -> dict[Any, Any]:
    """Return the entries of objects, and single objects, by their paths."""
    found: dict[Any, Any] = {}
    for path, branch in layout.branches():
        if branch.kind in _OBJECTS and branch.batch_size is not None:
            (child,) = branch.children
            assert isinstance(child, Value)
            found[path] = make_entry(branch.kind, codec.loads(child.data, allow_pickle), branch.batch_size)
    return found


def _check_apart(td: Any, sent: list[Any]) -> None:
    outputs = [slot.leaf for slot in slots_of(td)[0] if not slot.holder._in_file]
    inputs = [slot.leaf for each in sent for slot in slots_of(each)[0] if not slot.holder._in_file]
    check_apart(outputs, inputs, "a leaf of the TensorDict to fill", "one of tensordicts")
