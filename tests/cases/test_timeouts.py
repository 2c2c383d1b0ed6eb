"""Who waits in vain is told which rank has not come, and what that rank does instead."""

from __future__ import annotations

import numpy as np
import pytest
from calls import Call
from operations import OPERATIONS
from ranks import run

import corral.distributed as dist

ABSENT = 2
RANKS = [2, 0, 1]  # so that the absent rank is not known by its own number in the group
LIMIT = 0.2


def _calls(asynchronous):
    """List the operations to call, each with the group rank of its root."""
    for operation in OPERATIONS:
        if asynchronous and not operation.asynchronous:
            continue
        yield operation, RANKS.index(ABSENT)
        if operation.needs == "members" and not asynchronous:
            yield operation, RANKS.index(0)


def _elsewhere(rank, size, asynchronous):
    """The absent rank is in a receive while others call what blocks, in a barrier of other ranks while they wait."""
    calls = list(_calls(asynchronous))
    groups = [dist.new_group(RANKS, timeout=LIMIT, sort_ranks=False) for _ in calls]
    pair = dist.new_group([0, ABSENT])
    if rank == ABSENT:
        if asynchronous:
            dist.barrier(pair)
        else:
            dist.recv(np.zeros(1), 0, tag=77)
        return []
    does = "is in barrier #0 of another group for" if asynchronous else r"is in recv with rank 0 \(tag 77\)"
    told = []
    for group, (operation, root) in zip(groups, calls, strict=True):
        call = Call(group, RANKS, root, (3,), asynchronous=asynchronous)
        if operation.must_have(call, RANKS.index(ABSENT)):
            with pytest.raises(dist.DistTimeoutError, match=f"rank {ABSENT} {does}") as caught:
                operation.run(call)
            assert isinstance(caught.value, TimeoutError)
            words = [name.removeprefix("corral.") for name in operation.functions] + ["recv", "send"]
            assert any(word in str(caught.value).split(" on rank ")[0] for word in words), str(caught.value)
            told.append(str(caught.value))
        else:
            try:
                operation.run(call)
            except dist.DistTimeoutError as error:
                told.append(str(error))
    if rank == 1:
        dist.send(np.zeros(1), 0, tag=78)
    else:
        dist.recv(np.zeros(1), 1, tag=78)  # no longer needed by anyone as it is
        dist.barrier(pair) if asynchronous else dist.send(np.zeros(1), ABSENT, tag=77)
    return told


@pytest.mark.also("sockets")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "works"])
def test_who_is_missing_and_what_it_does(asynchronous):
    told = run(_elsewhere, 3, asynchronous, group_timeout=60)
    assert len(told[0]) + len(told[1]) > len(list(_calls(asynchronous)))


def _groups(rank, size):
    """Making groups waits for ranks, too."""
    group = dist.new_group(RANKS, sort_ranks=False)
    if rank == ABSENT:
        dist.irecv(np.zeros(1), 0, tag=77).wait(60)
        return
    makers = {
        "shrink_group": lambda: dist.shrink_group([RANKS.index(1 - rank)], group),
        "split_group": lambda: dist.split_group(group, [[0, 1, 2]]),
        "new_group of members": lambda: dist.new_group([rank, ABSENT], use_local_synchronization=True),
        "new_group": lambda: dist.new_group([0, 1]),
    }
    for make in makers.values():
        with pytest.raises(dist.DistTimeoutError, match=rf"rank {ABSENT} is in recv with rank 0 \(tag 77\)"):
            make()
    if rank == 0:
        dist.irecv(np.zeros(1), 1, tag=78).wait(60)
        dist.send(np.zeros(1), ABSENT, tag=77)
    else:
        dist.send(np.zeros(1), 0, tag=78)


def test_who_is_missing_where_a_group_is_made():
    run(_groups, 3, group_timeout=0.5)
