"""The survivors of a loss go on in a smaller group."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist
from corral import TensorDict
from corral.backends.base import Reduction


def _loses_one(rank, size, flags):
    side = dist.new_group([0, 2, 3])
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    pending = dist.barrier(side, async_op=True) if rank == 0 and flags else None
    with pytest.raises(dist.PeerLostError) as caught:
        dist.barrier()
    assert caught.value.ranks == (1,)
    old = dist.group.WORLD
    new = dist.shrink_group(list(caught.value.ranks), shrink_flags=flags)
    assert new is dist.group.WORLD
    assert dist.get_world_size() == size - 1
    me = {0: 0, 2: 1, 3: 2}[rank]
    assert dist.get_rank() == me
    assert dist.get_process_group_ranks() == [0, 1, 2]
    for gone in (old, side):
        with pytest.raises(ValueError, match="can no longer be used"):
            dist.barrier(gone)
    if pending is not None:
        assert isinstance(pending.exception(), dist.DistBackendError)
    a = np.arange(4.0) * (me + 1)
    new.backend.all_reduce([a], Reduction("sum"))
    assert (a == np.arange(4.0) * 6).all()
    td = TensorDict(a=np.zeros((2, 3)), batch_size=[2]) if me == 0 else TensorDict(a=np.full(3, float(me)))
    td.gather_and_stack(0)
    if me == 0:
        assert (td["a"] == [[1.0] * 3, [2.0] * 3]).all()
    sub = dist.new_group([2, 1])
    if me == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    # Errors speak of the ranks as they are counted now.
    with pytest.raises(dist.PeerLostError, match=f"on rank {me} .*rank 2 was killed by SIGKILL") as caught:
        dist.barrier(sub if me == 1 else None)
    assert caught.value.ranks == (2,)
    if me == 1:
        left = dist.shrink_group([1], group=sub)
        assert dist.get_process_group_ranks(left) == [1]
        dist.barrier(left)
    dist.shrink_group([2])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.also("sockets")
@pytest.mark.parametrize("flags", [0, 1])
def test_the_survivors_go_on(flags):
    run(_loses_one, 4, flags, exits={1: -signal.SIGKILL, 3: -signal.SIGKILL})


def _arguments(rank, size):
    for wrong, error, text in (
        ([], ValueError, "must not be empty"),
        ([5], ValueError, "must be in 0 to 1, got 5"),
        ([1, 1], ValueError, "duplicates"),
        ([0, 1], ValueError, "at least one must remain"),
        ((1,), TypeError, "must be a list"),
        ([rank], RuntimeError, f"rank {rank} is one of those to exclude"),
    ):
        with pytest.raises(error, match=text):
            dist.shrink_group(wrong)
    with pytest.raises(ValueError, match="shrink_flags must be SHRINK_DEFAULT"):
        dist.shrink_group([1 - rank], shrink_flags=7)
    dist.barrier()  # nothing of it has harmed the group
    if rank == 0:
        assert dist.shrink_group([1]).size() == 1


def test_what_makes_no_sense_is_refused():
    run(_arguments, 2)
