"""Roots and peers are global ranks, or ranks in the group where they are named so, in groups that are not 0..n-1."""

from __future__ import annotations

import pytest
from calls import Call, my_groups
from operations import OPERATIONS
from ranks import run

import corral.distributed as dist

ROOTED = [operation for operation in OPERATIONS if operation.rooted]


def _every_root(rank, size):
    for group, ranks in my_groups():
        for root in range(len(ranks)):
            for number in range(6):  # named by its global rank in every other call
                for operation in ROOTED:
                    for asynchronous in (False, True)[: 1 + operation.asynchronous]:
                        operation.run(Call(group, ranks, root, (3,), "i4", number, asynchronous))


def test_every_root_named_in_both_ways():
    run(_every_root, 5)


class Misnamed(Call):
    """A call that names every root and peer as `named` says, in which "root" stands for "src", "dst" or "peer"."""

    named: dict[str, int]
    argument = ""

    def at(self, argument, rank=None):
        self.argument = argument
        return {name.replace("root", argument): value for name, value in self.named.items()}


def misnamed(group, ranks, named, root=0):
    call = Misnamed(group, ranks, root, (2,))
    call.named = named
    return call


def _misnamed(rank, size):
    for group, ranks in my_groups():
        n = len(ranks)
        outside = [each for each in range(size) if each not in ranks]
        wrong = [({"root": -1}, ["-1"]), ({"root": size}, [str(size)]), ({"group_root": n}, [str(n)])]
        wrong += [({"group_root": -1}, ["-1"]), ({"root": ranks[1], "group_root": 1}, ["{0}", "group_{0}"])]
        if outside:  # of the job, but not of this group
            wrong.append(({"root": outside[0]}, [str(outside[0]), "group"]))
        for operation in ROOTED:
            for named, words in wrong:
                call = misnamed(group, ranks, named)
                with pytest.raises(ValueError, match="rank") as caught:
                    operation.start(call)
                label = f"{operation.name} with {named} in {ranks}: {caught.value}"
                assert not isinstance(caught.value, dist.DistError), label
                for word in words:
                    assert word.format(call.argument) in str(caught.value), label
            # All have refused alike; the group is as it was.
            operation.run(Call(group, ranks, root=n - 1, shape=(2,)))


def test_ranks_that_make_no_sense_are_refused_by_name():
    run(_misnamed, 5)


def _neither(rank, size):
    """Where torch has no default, naming nobody is an error; where it has one, it is global rank 0."""
    for group, ranks in my_groups():
        for operation in ROOTED:
            if operation.needs == "pairs":  # where a receive is one from anyone
                continue
            call = misnamed(group, ranks, {}, ranks.index(0) if 0 in ranks else 0)
            if operation.name in ("reduce", "broadcast", "corral.broadcast"):
                with pytest.raises(ValueError, match=r"group_(src|dst)"):
                    operation.start(call)
            elif 0 in ranks:
                operation.run(call)
            else:
                with pytest.raises(ValueError, match=r"\b0\b"):
                    operation.start(call)


def test_nobody_named():
    run(_neither, 5)
