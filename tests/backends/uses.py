"""What ranks do on a backend."""

from __future__ import annotations

import os
import select
import signal
from typing import Any

import numpy as np
import pytest

import corral
import corral.distributed as dist


def on_host(rank: int, hosts: int) -> None:
    """Let a rank believe that it runs on one of several hosts, neighbors on the same."""
    if hosts > 1:
        os.environ["CORRAL_HOST_ID"] = f"host {rank // 2 % hosts}"


def mine(rank: int, count: int = 5, dtype: Any = np.float64) -> np.ndarray:
    return (np.arange(count) * 7 + 100 * rank).astype(dtype)


def use(group: Any = None) -> None:
    """Do something of every kind, large and small, and check the values."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ranks = dist.get_process_group_ranks(group)
    for count in (5, 300_000):
        total = mine(ranks[rank], count)
        dist.all_reduce(total, group=group)
        assert np.array_equal(total, sum(mine(other, count) for other in ranks))
        rows = [np.zeros((count, 2))[:, 1] for _ in range(size)]
        dist.all_gather(rows, mine(ranks[rank], count), group=group)
        for row, other in zip(rows, ranks, strict=True):
            assert np.array_equal(row, mine(other, count))
        told = mine(ranks[rank], count) if rank == 1 else np.zeros(count)
        dist.broadcast(told, ranks[1], group=group)
        assert np.array_equal(told, mine(ranks[1], count))
        following, before = ranks[(rank + 1) % size], ranks[rank - 1]
        got = np.zeros(count)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine(ranks[rank], count), following, group),
                dist.P2POp(dist.irecv, got, before, group),
            ]
        )
        for work in works:
            work.wait()
        assert np.array_equal(got, mine(before, count))
        tree = {"a": mine(ranks[rank], count), "b": [mine(ranks[rank], 3, "i2")]}
        stacked = corral.gather_and_stack(None if rank == 0 else tree, ranks[0], group=group)
        if rank == 0:
            assert np.array_equal(stacked["a"], np.stack([mine(other, count) for other in ranks[1:]]))
            assert np.array_equal(stacked["b"][0], np.stack([mine(other, 3, "i2") for other in ranks[1:]]))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": ranks[rank], "text": "x" * 100_000}, group=group)
    assert [each["rank"] for each in objects] == list(ranks)
    dist.barrier(group=group)


def backend(rank: int, size: int, name: str | None, meeting: str, hosts: int, expected: tuple[str, str]) -> None:
    """Make the default group by a name, use it and a part of it."""
    on_host(rank, hosts)
    dist.init_process_group(name, init_method=meeting, rank=rank, world_size=size, timeout=40.0)
    assert (dist.get_backend(), dist.group.WORLD.name()) == expected
    use()
    some = dist.new_group([0, 2])
    if rank in (0, 2):
        use(some)
    dist.destroy_process_group()


def chosen(rank: int, size: int, meeting: Any, hosts: int, expected: str) -> None:
    """Leave the choice of the backend to corral."""
    on_host(rank, hosts)
    folder, _ = meeting
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=40.0)
    assert dist.get_backend() == expected
    dist.barrier()
    dist.destroy_process_group()


def nothing_installed(rank: int, size: int, meeting: Any) -> None:
    """On several hosts without any engine between them: an error says what to install."""
    on_host(rank, 2)
    from corral import backends

    backends._entries["hybrid"] = backends._entries["hybrid"]._replace(requires=("no_such_module",))
    folder, _ = meeting
    store = dist.FileStore(f"{folder}/store", size)
    with pytest.raises(dist.DistBackendError, match=r"2 hosts.*corral\[torch\].*corral\[mpi\]"):
        dist.init_process_group(store=store, rank=rank, world_size=size, timeout=40.0)


def out_of_reach(rank: int, size: int, meeting: str) -> None:
    """On several hosts with an engine of one: an error says what to ask for."""
    on_host(rank, 2)
    others = r"\[2\]" if rank < 2 else r"\[0, 1\]"
    with pytest.raises(dist.DistBackendError, match=rf"'shm' on rank {rank}: ranks {others} run on another.*'hybrid'"):
        dist.init_process_group("shm", init_method=meeting, rank=rank, world_size=size, timeout=40.0)


def other_engine(rank: int, size: int, meeting: str) -> None:
    """Make groups on another engine than the default group's."""
    dist.init_process_group("shm", init_method=meeting, rank=rank, world_size=size, timeout=40.0)
    group = dist.new_group([0, 2], backend="gloo")
    if rank == 1:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
    else:
        assert dist.get_backend(group) == "gloo"
        use(group)
        value = np.zeros(3) if rank else np.zeros(4)
        with pytest.raises(dist.MismatchError, match="rank 2"):  # by its global number
            dist.broadcast(value, 2, group=group)
    dist.barrier()
    dist.destroy_process_group()


def ends(rank: int, size: int, meeting: str, how: str) -> None:
    """Have a group on another engine than the default group's when the process ends."""
    dist.init_process_group("shm", init_method=meeting, rank=rank, world_size=size, timeout=40.0)
    processes: list[Any] = [None] * size
    dist.all_gather_object(processes, os.getpid())
    group = dist.new_group([0, 2], backend="gloo")
    if rank != 1:
        dist.barrier(group=group)
    if how == "destroyed":
        dist.destroy_process_group()
    elif how == "forgotten":
        dist.barrier()
    elif rank == 0:  # the other one says no goodbye: it is stopped until this process is no more
        os.kill(processes[2], signal.SIGSTOP)
    elif rank == 1:
        ended = os.pidfd_open(processes[0])
        select.select([ended], [], [])
        os.kill(processes[2], signal.SIGCONT)


def sent_elsewhere(rank: int, size: int, meeting: str, destroy: bool) -> None:
    """What was sent in a group on another engine arrives, though the sender ends all groups at once, or none."""
    dist.init_process_group("shm", init_method=meeting, rank=rank, world_size=size, timeout=40.0)
    group = dist.new_group([0, 1], backend="gloo")
    if rank == 0:
        dist.isend(mine(0, 1_000_000), 1, group=group)
    else:
        got = np.zeros(1_000_000)
        dist.recv(got, 0, group=group)
        assert np.array_equal(got, mine(0, 1_000_000))
    if destroy:
        dist.destroy_process_group()


def from_torch(rank: int, size: int, meeting: str) -> None:
    """Make groups of torch's groups: the default one, and then another; torch's own go on."""
    import torch
    import torch.distributed as torch_dist

    torch_dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    for _ in range(2):  # again in the same group of torch's
        group = dist.from_torch()
        assert (dist.get_backend(), dist.get_rank(), group.size()) == ("gloo", rank, size)
        use()
        some = torch_dist.new_group([1, 2])
        if rank:
            part = dist.from_torch(some)
            assert part.ranks == (1, 2)
            use(part)
        value = torch.full((3,), float(rank))
        torch_dist.all_reduce(value)  # torch's own goes on
        assert value.tolist() == [3.0] * 3
        received = torch.empty(2)
        if rank == 0:
            torch_dist.send(torch.tensor([1.0, 2.0]), 1)
        elif rank == 1:
            torch_dist.recv(received, 0)
            assert received.tolist() == [1.0, 2.0]
        dist.destroy_process_group()
    torch_dist.barrier()
    torch_dist.destroy_process_group()


def survivors(rank: int, size: int, name: str, meeting: str, hosts: int) -> None:
    """A rank is killed; the others learn it, with its name, and go on without it."""
    on_host(rank, hosts)
    dist.init_process_group(name, init_method=meeting, rank=rank, world_size=size, timeout=40.0)
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    value = np.ones(200_000)
    with pytest.raises(dist.PeerLostError, match="rank 2") as caught:
        dist.all_reduce(value)
    assert 2 in caught.value.ranks
    group = dist.shrink_group([2])
    use(group)
    dist.destroy_process_group()


def forgotten(rank: int, size: int, name: str, meeting: str, hosts: int) -> None:
    """What is sent just before the end of a process that destroys nothing arrives."""
    on_host(rank, hosts)
    dist.init_process_group(name, init_method=meeting, rank=rank, world_size=size, timeout=40.0)
    if rank == 0:
        dist.isend(mine(0, 100_000), 1)
        return
    got = np.zeros(100_000)
    dist.recv(got, 0)
    assert np.array_equal(got, mine(0, 100_000))


def on_mpi(rank: int, size: int) -> None:
    """Use MPI as the user named it: all of the world; and a communicator of some."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    dist.init_process_group("mpi", timeout=40.0)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (world.rank, world.size, "mpi")
    use()
    dist.destroy_process_group()
    part = world.Split(world.rank == 0, -world.rank)  # in another order
    dist.init_process_group("mpi", comm=part, timeout=40.0)
    assert (dist.get_rank(), dist.get_world_size()) == (part.rank, part.size)
    if part.size > 1:
        use()
    dist.destroy_process_group()
    with pytest.raises(ValueError, match=f"rank is {world.rank} in 'mpi', got {world.size}"):
        dist.init_process_group("mpi", rank=world.size, world_size=world.size, timeout=40.0)
    dist.init_process_group(timeout=40.0, init_method=None)  # by what mpirun says, without MPI
    assert (dist.get_backend(), dist.get_rank()) == ("shm", world.rank)
    group = dist.new_group([0, 2], backend="mpi")
    if world.rank != 1:
        use(group)
    dist.destroy_process_group()
