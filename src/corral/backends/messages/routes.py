"""The ways that parts take which are too large to travel with the agreement: see `move`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from corral.backends.messages.trees import place_in_tree
from corral.backends.messages.verdicts import Record

if TYPE_CHECKING:
    from corral.backends.messages.exchanges import Exchange

__all__ = ["move"]

_CHUNK = 4 << 20
_KEPT = 64 << 20  # bytes of a part of another rank that a leader makes room for
_Pieces = list[memoryview]


def move(round_: Exchange, records: Sequence[Record]) -> None:
    """Start all transfers of an exchange that was agreed on.

    Within a host parts go straight to where they belong; between hosts through one leader of each, so that there is one
    message for all of its ranks. Of what is gathered or scattered, a part beyond `_KEPT` goes straight in any case: a
    message more costs it nothing, while the leader would need memory for it.
    """
    from corral.backends.messages.exchanges import Pattern

    if round_.pattern == Pattern.TO_ROOT:
        _to_root(round_, records)
    elif round_.pattern == Pattern.BROADCAST:
        _broadcast(round_)
    elif round_.pattern == Pattern.SCATTER:
        _scatter(round_, records)
    elif round_.pattern == Pattern.TO_ALL:
        _to_all(round_)
    elif round_.pattern == Pattern.PAIRS:
        _pairs(round_)


def _scratch(nbytes: int) -> _Pieces:
    return [memoryview(np.empty(nbytes, np.uint8))] if nbytes else []


def _home(round_: Exchange, rank: int) -> list[int]:
    """Return the ranks of a rank's host, their leader first."""
    return next(ranks for ranks in round_.ledger.tree.hosts if rank in ranks)


def _parcels(round_: Exchange, size_of: Callable[[int], int]) -> list[list[int]]:
    """Return whose parts travel together between the root and each of the others, the one first who sees to it."""
    home = _home(round_, round_.root)
    parcels = []
    for ranks in round_.ledger.tree.hosts:
        by_themselves = [r for r in ranks[1:] if ranks is home or size_of(r) > _KEPT]
        parcels += [[r for r in ranks if r not in by_themselves], *([r] for r in by_themselves)]
    return parcels


def _to_root(round_: Exchange, records: Sequence[Record]) -> None:
    root, me = round_.root, round_.me
    if me == root:
        for members in _parcels(round_, lambda r: round_.taken(r).nbytes):
            if members[0] != me:
                pieces = [piece for r in members for piece in round_.taken(r).pieces()]
                round_.expect(members[0], members[0], pieces)
        return
    given, ranks = round_.given(root), _home(round_, me)
    own = given.pieces()
    if me != ranks[0] and root not in ranks and given.nbytes <= _KEPT:
        round_.give(ranks[0], me, own)
        return
    below = ranks[1:] if me == ranks[0] and root not in ranks else []
    parts = {r: _scratch(size) for r in below if (size := round_.call_of(r).gives[0][1].size) <= _KEPT}
    missing = set(parts)

    def arrived(rank: int) -> None:
        missing.discard(rank)
        if not missing:
            round_.give(root, me, own + [piece for pieces in parts.values() for piece in pieces])

    for r, pieces in parts.items():
        round_.expect(r, r, pieces, lambda r=r: arrived(r))  # type: ignore[misc]
    if not parts:
        round_.give(root, me, own)


def _scatter(round_: Exchange, records: Sequence[Record]) -> None:
    root, me = round_.root, round_.me
    if me == root:
        for members in _parcels(round_, lambda r: round_.given(r).nbytes):
            if members[0] != me:
                pieces = [piece for r in members for piece in round_.given(r).pieces()]
                round_.give(members[0], members[0], pieces)
        return
    taken, ranks = round_.taken(root), _home(round_, me)
    own = taken.pieces()
    if me != ranks[0] and root not in ranks and taken.nbytes <= _KEPT:
        round_.expect(ranks[0], me, own)
        return
    below = ranks[1:] if me == ranks[0] and root not in ranks else []
    if round_.makes:
        sizes = {record.dst: record.number for record in records if record.content is None}
    else:
        sizes = {r: round_.call_of(r).takes[0][1].size for r in below}
    parts = {r: _scratch(sizes[r]) for r in below if sizes[r] <= _KEPT}

    def arrived() -> None:
        for r, pieces in parts.items():
            round_.give(r, r, pieces)

    round_.expect(root, me, own + [piece for pieces in parts.values() for piece in pieces], arrived)


def _broadcast(round_: Exchange) -> None:
    """Pass chunks on along a tree of hosts, and one within each host."""
    root, me = round_.root, round_.me
    home = _home(round_, root)
    others = [ranks for ranks in round_.ledger.tree.hosts if ranks is not home]
    leaders = [root, *(ranks[0] for ranks in others)]
    ranks = home if me in home else _home(round_, me)
    local = [root, *(r for r in home if r != root)] if ranks is home else ranks
    source, targets = place_in_tree(local, me)
    if me in leaders:
        above, below = place_in_tree(leaders, me)
        source, targets = (above, below + targets) if me != root else (-1, below + targets)
    memory = round_.gives[0] if me == root else round_.takes[0]
    assert memory is not None
    for number, start in enumerate(range(0, memory.nbytes, _CHUNK)):
        pieces = memory.part(start, min(_CHUNK, memory.nbytes - start)).pieces()

        def pass_on(number: int = number, pieces: _Pieces = pieces) -> None:
            for target in targets:
                round_.give(target, number, pieces)

        if me == root:
            pass_on()
        else:
            round_.expect(source, number, pieces, pass_on)


def _to_all(round_: Exchange) -> None:
    me, hosts = round_.me, round_.ledger.tree.hosts
    ranks = hosts[round_.ledger.tree.home]
    own = round_.given(me).pieces()
    others = [host for host in hosts if host is not ranks]

    def pieces_of(members: Sequence[int]) -> _Pieces:
        return [piece for r in members for piece in (own if r == me else round_.taken(r).pieces())]

    missing = {r for r in ranks if r != me}

    def arrived(rank: int) -> None:
        missing.discard(rank)
        if not missing and me == ranks[0]:
            for host in others:
                round_.give(host[0], me, pieces_of(ranks))

    for r in ranks:
        if r != me:
            round_.expect(r, r, round_.taken(r).pieces(), lambda r=r: arrived(r))  # type: ignore[misc]
    for k in range(1, len(ranks)):
        round_.give(ranks[(ranks.index(me) + k) % len(ranks)], me, own)
    if not missing and len(ranks) == 1:
        arrived(me)
    for host in others:
        pieces = pieces_of(host)

        def pass_on(leader: int = host[0], pieces: _Pieces = pieces) -> None:
            for r in ranks[1:]:
                round_.give(r, leader, pieces)

        if me == ranks[0]:
            round_.expect(host[0], host[0], pieces, pass_on)
        else:
            round_.expect(ranks[0], host[0], pieces)


def _pairs(round_: Exchange) -> None:
    n, me = round_.size, round_.me
    for k in range(1, n):
        src = (me - k) % n
        round_.expect(src, src, round_.taken(src).pieces())
    for k in range(1, n):
        dst = (me + k) % n
        round_.give(dst, me, round_.given(dst).pieces())
