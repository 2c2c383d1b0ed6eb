"""Reductions of much between hosts: what a host's ranks come to is added to what comes from the host before.

Elements are combined in the order of the ranks. So where each host's ranks follow each other, one array leaves each
host, in chunks: towards the last host with what the ranks so far come to, and from there with the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corral import _core
from corral.backends.messages.trees import place_in_tree

if TYPE_CHECKING:
    from corral.backends.messages.reducing import Reduce

__all__ = ["combine_along", "follow_each_other"]

_CHUNK = 4 << 20
_GIVEN, _SO_FAR, _RESULT = range(3)


def follow_each_other(hosts: Sequence[Sequence[int]]) -> bool:
    """Whether there are several hosts, and each one's ranks are neighbors.

    Examples
    --------
    >>> follow_each_other([[0, 1], [2]]), follow_each_other([[0, 2], [1]]), follow_each_other([[0, 1]])
    (True, False, False)
    """
    return len(hosts) > 1 and all(ranks[-1] - ranks[0] + 1 == len(ranks) for ranks in hosts)


def combine_along(round_: Reduce) -> None:
    """Start a reduction whose result is for the root, or for all; each rank of a host takes care of some chunks."""
    total = round_.parts[0].nbytes
    cuts = [*dict.fromkeys(round_.cut(start) for start in range(0, total, _CHUNK)), total]
    for number, start in enumerate(cuts[:-1]):
        _Chunk(round_, number, start, cuts[number + 1]).begin()


class _Chunk:
    """A part of the elements, of which one rank takes care on each host."""

    def __init__(self, round_: Reduce, number: int, start: int, end: int) -> None:
        self.round = round_
        self.number = number
        self.start, self.end = start, end
        self.me = round_.ledger.rank
        hosts, self.home = round_.ledger.tree.hosts, round_.ledger.tree.home
        self.ranks = hosts[self.home]
        self.owners = [ranks[number % len(ranks)] for ranks in hosts]
        self.owner = self.owners[self.home]
        self.runs = round_.runs_between(start, end)
        self.parts: dict[int, memoryview] = {}
        self.before: memoryview | None = None
        self.missing: set[int] = set()

    def begin(self) -> None:
        self._expect_result()
        own = self._of(self.round.parts[0])
        if self.me != self.owner:
            self.round.give(self.owner, self._part(_GIVEN), own)
            return
        self.parts[self.me] = own[0] if len(own) == 1 else memoryview(b"".join(own))
        self.missing = {rank for rank in self.ranks if rank != self.me}
        if self.home:
            self.missing.add(self.owners[self.home - 1])
        for rank in list(self.missing):
            if rank in self.ranks:
                memory = self.parts[rank] = _scratch(self.end - self.start)
                self.round.expect(rank, self._part(_GIVEN), [memory], lambda rank=rank: self._arrived(rank))  # type: ignore[misc]
            else:
                self.before = _scratch(self._so_far_bytes())
                self.round.expect(rank, self._part(_SO_FAR), [self.before], lambda rank=rank: self._arrived(rank))  # type: ignore[misc]
        if not self.missing:
            self._combine()

    def _arrived(self, rank: int) -> None:
        self.missing.discard(rank)
        if not self.missing:
            self._combine()

    def _combine(self) -> None:
        """Add up what is here, and pass it on."""
        last = self.home == len(self.owners) - 1
        out = _scratch(self.end - self.start if last else self._so_far_bytes())
        self.round.combine(self.runs, self.ranks, [self.parts[rank] for rank in self.ranks], out, self.before, last)
        self.parts.clear()
        self.before = None
        if not last:
            self.round.give(self.owners[self.home + 1], self._part(_SO_FAR), [out])
            return
        into = self.round.into
        if into is not None:
            into.part(self.start, self.end - self.start).write(out)
        self._pass_on([out])

    # The result -------------------------------------------------------------------------------------------------

    def _expect_result(self) -> None:
        into, source = self.round.into, self._source()
        if into is not None and source >= 0:
            pieces = self._of(into)
            self.round.expect(source, self._part(_RESULT), pieces, lambda: self._pass_on(pieces))

    def _source(self) -> int:
        """Return whom this rank has the result from; -1 if it makes it."""
        if self.me == self.owners[-1]:
            return -1
        if self.round.root >= 0:
            return self.owners[-1]
        if self.me != self.owner:
            return self.owner
        return place_in_tree(self.owners[::-1], self.me)[0]

    def _pass_on(self, pieces: Sequence[memoryview]) -> None:
        if self.round.root >= 0:
            targets = [self.round.root] if self.me == self.owners[-1] != self.round.root else []
        elif self.me == self.owner:
            targets = place_in_tree(self.owners[::-1], self.me)[1] + [rank for rank in self.ranks if rank != self.me]
        else:
            targets = []
        for target in targets:
            self.round.give(target, self._part(_RESULT), pieces)

    # ------------------------------------------------------------------------------------------------------------

    def _of(self, memory: _core.Memory) -> list[memoryview]:
        return memory.part(self.start, self.end - self.start).pieces()

    def _part(self, kind: int) -> int:
        return 3 * self.number + kind

    def _so_far_bytes(self) -> int:
        return sum(
            nbytes // _core.element_bytes(kind) * _core.accumulator_bytes(kind) for kind, nbytes in self.runs if nbytes
        )


def _scratch(nbytes: int) -> memoryview:
    return memoryview(np.empty(nbytes, np.uint8))
