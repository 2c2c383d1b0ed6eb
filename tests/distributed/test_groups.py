"""Groups whose ranks are not 0..n-1: who is who, and that messages reach the right process."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist

NOWHERE = dist.GroupMember.NON_GROUP_MEMBER


def _gather_everywhere(group, ranks):
    """Gather to each member in turn, naming it once as global and once as group rank."""
    me = dist.get_rank()
    for position, root in enumerate(ranks):
        for keyword in ({"dst": root}, {"group_dst": position}):
            rows = np.full((len(ranks), 3), -1.0) if me == root else None
            dist.gather(np.arange(3.0) + 10 * me, None if rows is None else list(rows), group=group, **keyword)
            if rows is not None:
                assert rows.tolist() == [[10.0 * r, 10.0 * r + 1, 10.0 * r + 2] for r in ranks]
            objects = [None] * len(ranks) if me == root else None
            dist.gather_object(f"rank {me}", objects, group=group, **keyword)
            if objects is not None:
                assert objects == [f"rank {r}" for r in ranks]


def _pass_around(group, ranks):
    """Send to the next member, naming peers in both ways."""
    me = dist.get_rank(group)
    assert ranks[me] == dist.get_rank()
    size = len(ranks)
    right, left = (me + 1) % size, (me - 1) % size
    if size == 1:
        return
    for send_by, recv_by in (
        ({"dst": ranks[right]}, {"group_src": left}),
        ({"group_dst": right}, {"src": ranks[left]}),
        ({"group_dst": right}, {}),
    ):
        a = np.zeros(2)
        work = dist.isend(np.full(2, float(ranks[me])), group=group, **send_by)
        assert dist.recv(a, group=group, **recv_by) == ranks[left]
        assert work.wait()
        assert (a == ranks[left]).all()
        dist.barrier(group)
    a = np.zeros(2)
    operations = [
        dist.P2POp(dist.irecv, a, ranks[left], group),
        dist.P2POp(dist.isend, np.full(2, float(ranks[me])), group=group, group_peer=right),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (a == ranks[left]).all()


def _subgroups(rank, size):
    cases = [
        ([3, 1], True),
        ([3, 1], False),
        ([4, 0, 2], False),
        ([2, 4, 0], True),
        ([2], True),
        (None, True),
    ]
    for ranks, sort in cases:
        group = dist.new_group(ranks, sort_ranks=sort)
        expected = list(range(size)) if ranks is None else sorted(ranks) if sort else ranks
        if rank not in expected:
            assert group == NOWHERE
            with pytest.warns(UserWarning, match=f"Running barrier on global rank {rank} which does not belong"):
                dist.barrier(group)
            with pytest.warns(UserWarning, match="Running gather"):
                dist.gather(np.zeros(1), dst=0, group=group)
            continue
        assert dist.get_process_group_ranks(group) == expected
        assert dist.get_world_size(group) == len(expected)
        _gather_everywhere(group, expected)
        _pass_around(group, expected)
    with pytest.raises(ValueError, match="duplicate"):
        dist.new_group([1, 1])
    dist.barrier()


def test_groups_made_by_all():
    run(_subgroups, 5)


def _local(rank, size):
    """Members alone make their groups; ranks outside never hear of it."""
    for ranks in ([1, 4], [4, 2, 0]):
        for _ in range(2):  # the same members again make another group
            if rank in ranks:
                group = dist.new_group(ranks, use_local_synchronization=True)
                _gather_everywhere(group, sorted(ranks))
                _pass_around(group, sorted(ranks))
    if rank == 3:
        assert dist.new_group([0, 1], use_local_synchronization=True) == NOWHERE
    dist.barrier()
    whole = dist.new_group()
    _gather_everywhere(whole, range(size))


def test_groups_made_by_their_members():
    run(_local, 5)


def _different(rank, size):
    with pytest.raises(dist.MismatchError, match=r"rank 0: .*\[0,1\].*rank 2: .*\[0,2\]"):
        dist.new_group([0, 2] if rank == 2 else [0, 1])
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.barrier(group)


def test_ranks_that_disagree_are_all_told():
    run(_different, 3)


def _life(rank, size):
    for _ in range(2):
        if dist.is_initialized():
            group = dist.new_group([1, 0], timeout=3)
            assert group.backend.timeout == 3
            other = dist.new_group()
            dist.barrier(group)
            dist.destroy_process_group(group)
            with pytest.raises(ValueError, match="can no longer be used"):
                dist.barrier(group)
            dist.barrier(other)
            dist.barrier()
            dist.destroy_process_group()
            assert not dist.is_initialized()
            with pytest.raises(ValueError, match="can no longer be used"):
                dist.barrier(other)


def test_groups_end():
    run(_life, 2)


def _alone(rank, size):
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    dist.barrier()
    rows = [np.zeros(3)]
    dist.gather(np.arange(3.0), rows)
    assert rows[0].tolist() == [0, 1, 2]
    objects = [None]
    dist.gather_object({"a": 1}, objects)
    assert objects == [{"a": 1}]


def test_a_world_of_one():
    run(_alone, 1)
