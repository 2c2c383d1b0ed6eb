"""Ranks that die, leave or do not come: an error that names them, soon, and nobody hangs."""

from __future__ import annotations

import os
import select
import signal
import time

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist
from corral import TensorDict

KILLED = {2: -signal.SIGKILL}


def _killed(rank, size, operation):
    group = dist.new_group([2, 1, 0])
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    a = np.zeros(3)
    rows = [np.zeros(3) for _ in range(size)] if rank == 0 else None
    calls = {
        "recv": lambda: dist.recv(a, 2),
        "irecv": lambda: dist.irecv(a, 2).wait(),
        "barrier": lambda: dist.barrier(group),
        "ibarrier": lambda: dist.barrier(group, async_op=True).wait(),
        "gather": lambda: dist.gather(a, rows),
        "gather_object": lambda: dist.gather_object(1, None if rows is None else [None] * size),
        "large send": lambda: dist.send(np.zeros(1 << 20), 2),
        "new_group": lambda: dist.new_group([0, 2]),
    }
    started = time.monotonic()
    needs_it = rank == 0 or "gather" not in operation
    if needs_it:
        with pytest.raises(dist.PeerLostError, match=r"rank 2 .*(SIGKILL|gone|ended|lost)") as caught:
            calls[operation]()
        assert caught.value.ranks == (2,)
    else:  # it has only to send: whether it learns of the loss depends on who was first
        try:
            calls[operation]()
        except dist.PeerLostError as error:
            assert error.ranks == (2,)  # noqa: PT017
    took = time.monotonic() - started
    # The two survivors can still talk.
    if rank == 0:
        dist.recv(a, 1)
    elif rank == 1:
        dist.send(a, 0)
    return took


@pytest.mark.parametrize(
    "operation",
    ["recv", "irecv", "barrier", "ibarrier", "gather", "gather_object", "large send", "new_group"],
)
def test_a_killed_rank_is_named_long_before_the_timeout(operation):
    limit = 60.0
    took = run(_killed, 3, operation, exits=KILLED, group_timeout=limit)
    assert max(t for t in took if t is not None) < limit / 2


def _leaves_early(rank, size):
    group = dist.new_group([1, 2], use_local_synchronization=True) if rank else None
    if rank == 2:
        return  # before the subgroup's first collective
    if rank == 1:
        with pytest.raises(dist.PeerLostError, match="rank 2"):
            dist.barrier(group)
        dist.send(np.zeros(1), 0)
    else:
        dist.recv(np.zeros(1), 1)


@pytest.mark.everywhere
def test_a_rank_that_leaves_before_a_subgroups_first_collective():
    run(_leaves_early, 3)


def _from_anyone(rank, size, how):
    """Receive from anyone on rank 0, in a group without rank 3, while those who could send end one after the other."""
    pair = dist.new_group([0, 1, 2])
    dist.barrier()
    if rank in (1, 2):
        if rank == 2:
            with pytest.raises(dist.PeerLostError):
                dist.recv(np.zeros(1), 1)  # so that this one ends last
            dist.send(np.array([2.0]), 0, group=pair)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 3:
        dist.recv(np.zeros(1), 0)  # alive as long as rank 0 waits
        return None
    a = np.zeros(1)
    assert dist.recv(a, group=pair) == 2  # though rank 1 is dead
    calls = {
        "recv": lambda: dist.recv(a, group=pair),
        "wait": lambda: dist.irecv(a, group=pair).wait(),
        "future": lambda: dist.irecv(a, group=pair).get_future().wait(),
    }
    for _ in range(2):  # while they are found to be gone, and when that is known
        with pytest.raises(dist.PeerLostError, match=r"nobody is left who could send: rank 1 .*; rank 2 ") as caught:
            calls[how]()
        assert caught.value.ranks == (1, 2)
    work = dist.irecv(a)
    with pytest.raises(dist.DistTimeoutError, match=r"rank 1 (was|is) .*; rank 2 (was|is) .*; rank 3 is in recv"):
        work.wait(0.3)
    dist.send(a, 3)
    return None


@pytest.mark.also("sockets")
@pytest.mark.parametrize("how", ["recv", "wait", "future"])
def test_a_receive_from_anyone_ends_when_nobody_is_left(how):
    run(_from_anyone, 4, how, exits={1: -signal.SIGKILL, 2: -signal.SIGKILL})


def _from_anyone_of_two(rank, size):
    if rank == 0:
        for _ in range(2):
            with pytest.raises(dist.PeerLostError, match="nobody is left who could send: rank 1 ") as caught:
                dist.recv(np.zeros(1))
            assert caught.value.ranks == (1,)


def test_a_receive_from_anyone_of_a_rank_that_has_left():
    run(_from_anyone_of_two, 2)


_SHORT = 2.0  # that ranks take longer to meet is rare


def _times_out(rank, size):
    if rank == 0:
        for call in (
            lambda: dist.recv(np.zeros(3), 1),
            lambda: dist.barrier(timeout=0.2),
            lambda: dist.gather(np.zeros(1), [np.zeros(1), np.zeros(1)], async_op=True).wait(0.2),
        ):
            started = time.monotonic()
            with pytest.raises(dist.DistTimeoutError, match=r"rank 1") as caught, dist.record_comm("layer 1"):
                call()
            assert time.monotonic() - started > 0.15
            assert " for 'layer 1' on rank 0" in str(caught.value)
            assert isinstance(caught.value, TimeoutError)
        dist.send(np.zeros(1), 1, tag=5)
    else:
        group_timeout = dist.group.WORLD.backend.timeout
        assert group_timeout == _SHORT
        request = dist.irecv(np.zeros(1), 0, tag=5)
        assert request.wait(20)


@pytest.mark.also("sockets")
def test_a_timeout_says_who_is_missing():
    run(_times_out, 2, group_timeout=_SHORT)


def _killed_while_copied(rank, size, operation):
    big = np.zeros(1 << 21)
    into = [np.zeros_like(big) for _ in range(size)] if rank == 0 else None
    tree = TensorDict(a=np.zeros((size - 1, big.size)), batch_size=[size - 1]) if rank == 0 else TensorDict(a=big)
    calls = {
        "gather": lambda: dist.gather(big, into),
        "gather_and_stack": lambda: tree.gather_and_stack(0),
        "recv": lambda: dist.recv(big, 1) if rank == 0 else dist.send(big, 0),
    }
    if rank == 1:
        # Ends at whatever point of the copying the timer hits.
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    elif operation == "recv" and rank == 2:
        return None
    try:
        while True:
            calls[operation]()
    except dist.PeerLostError as error:
        return error.ranks, str(error)


@pytest.mark.also("sockets")
@pytest.mark.parametrize("operation", ["gather", "gather_and_stack", "recv"])
def test_a_rank_killed_while_its_memory_is_copied_is_lost(operation):
    results = run(_killed_while_copied, 3, operation, exits={1: -signal.SIGKILL})
    ranks, text = results[0]
    assert ranks == (1,)
    assert "SIGKILL" in text


def _offered_by_a_rank_lost_since(rank, size):
    big = np.zeros(1 << 21)
    if rank == 1:
        dist.isend(big, 0, tag=1)
        dist.send(np.zeros(1), 0, tag=2)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(np.zeros(1), 1, tag=2)  # so the offer is here, not taken
    with pytest.raises(dist.PeerLostError):
        dist.recv(np.zeros(1), 1, tag=3)  # the rank is known as lost now
    with pytest.raises(dist.PeerLostError):
        dist.recv(big, 1, tag=1)


@pytest.mark.parametrize("direct", ["1", "0"])
def test_a_message_offered_by_a_rank_that_is_lost_since(direct):
    run(_offered_by_a_rank_lost_since, 2, exits={1: -signal.SIGKILL}, environment={"CORRAL_SHM_DIRECT": direct})


def _begun_by_a_rank_lost_since(rank, size, operation):
    part = np.ones(11_000)  # sent without asking, but more than a ring holds
    parts = list(np.zeros((size, 11_000))) if rank == 0 else None
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        if operation == "recv":
            dist.isend(part, 0, tag=1)
        else:
            dist.gather(part, group_dst=0, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    select.select([os.pidfd_open(pids[1])], [], [])  # without taking in what has come
    with pytest.raises(dist.PeerLostError):
        dist.recv(np.zeros(1), 1, tag=3)  # the rank is known as lost now
    with pytest.raises(dist.PeerLostError):
        dist.recv(part, 1, tag=1) if operation == "recv" else dist.gather(part, parts)


@pytest.mark.parametrize("operation", ["recv", "gather"])
def test_a_message_begun_by_a_rank_that_is_lost_since(operation):
    run(_begun_by_a_rank_lost_since, 2, operation, exits={1: -signal.SIGKILL})
