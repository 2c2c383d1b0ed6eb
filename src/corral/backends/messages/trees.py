"""Whom a rank of a group hears from and tells: one leader a host, and a tree of leaders above."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Tree", "place_in_tree"]

_FAN_OUT = 16


class Tree:
    """A group's ranks, as they are connected in agreements. Its root, the coordinator, is rank 0.

    Parameters
    ----------
    hosts
        The name of each rank's host.
    me
        This rank.

    Attributes
    ----------
    parent : int
        Whom this rank tells; -1 on the coordinator.
    children : dict of int to tuple of int
        Whom it hears from, each with all the ranks that it hears of through that one, itself included.
    hosts : list of list of int
        The ranks of each host, their leader first; the coordinator's host is the first one.
    home : int
        This rank's host.

    Examples
    --------
    >>> tree = Tree(["a", "a", "b", "b"], 0)
    >>> tree.parent, tree.children, tree.hosts
    (-1, {1: (1,), 2: (2, 3)}, [[0, 1], [2, 3]])
    >>> Tree(["a", "a", "b", "b"], 3).parent
    2
    """

    def __init__(self, hosts: Sequence[str], me: int) -> None:
        found: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            found.setdefault(host, []).append(rank)
        self.hosts = list(found.values())
        self.home = next(i for i, ranks in enumerate(self.hosts) if me in ranks)
        self.children: dict[int, tuple[int, ...]] = {}
        ranks = self.hosts[self.home]
        if me != ranks[0]:
            self.parent = ranks[0]
            return
        self.parent = -1 if self.home == 0 else self.hosts[(self.home - 1) // _FAN_OUT][0]
        for rank in ranks[1:]:
            self.children[rank] = (rank,)
        for below in self._below(self.home):
            self.children[self.hosts[below][0]] = tuple(self._all(below))

    def _below(self, host: int) -> range:
        first = host * _FAN_OUT + 1
        return range(first, min(first + _FAN_OUT, len(self.hosts)))

    def _all(self, host: int) -> list[int]:
        ranks = list(self.hosts[host])
        for below in self._below(host):
            ranks += self._all(below)
        return ranks

    @property
    def size(self) -> int:
        """How many ranks this one speaks for, itself included."""
        return 1 + sum(map(len, self.children.values()))


def place_in_tree(ranks: Sequence[int], me: int) -> tuple[int, list[int]]:
    """Return whom a rank hears from, and whom it tells, in a binomial tree of ranks below the first one.

    Examples
    --------
    >>> place_in_tree([5, 6, 7, 8], 7), place_in_tree([5, 6, 7, 8], 5)
    ((5, [8]), (-1, [7, 6]))
    """
    place = ranks.index(me)
    low = place & -place if place else 1 << len(ranks).bit_length()
    source = ranks[place - low] if place else -1
    below = []
    step = low >> 1
    while step:
        if place + step < len(ranks):
            below.append(ranks[place + step])
        step >>= 1
    return source, below
