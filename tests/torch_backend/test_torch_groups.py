"""Torch's process groups of corral's backend: how they begin, end, and fail."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from ranks import run
from torch_jobs import run_torch, torch_group

from tests.backends.jobs import run_ranks

ROOT = Path(__file__).parents[2]


def test_torch_loads_the_backend_by_itself(tmp_path):
    # As an installer writes it, from what the project declares.
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    info = tmp_path / "corral_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: corral-entry\nVersion: 1\n")
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{lines}")
    code = (
        "import sys, {first}\n"
        "import torch, torch.distributed as dist\n"
        "assert 'corral' in dist.Backend.backend_list\n"
        "assert dist.Backend.default_device_backend_map['cpu'] == 'gloo'\n"
        "assert 'corral.integrations.torch_group' not in sys.modules\n"
        "dist.init_process_group('corral', store=dist.HashStore(), rank=0, world_size=1)\n"
        "x = torch.arange(3.0); dist.all_reduce(x); print(x.tolist())\n"
        "dist.destroy_process_group()\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    for first in ("torch", "corral.integrations.torch", "corral"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code.format(first=first)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n")[0] == "[0.0, 1.0, 2.0]"


def test_registering_twice_changes_nothing():
    import torch.distributed as dist

    module = importlib.import_module("corral.integrations.torch")
    plugin = dist.Backend._plugins["CORRAL"]
    module.register()
    assert dist.Backend._plugins["CORRAL"] is plugin
    assert dist.Backend.backend_list.count("corral") == 1


def _on_two_hosts(rank, size, meeting):
    os.environ["CORRAL_HOST_ID"] = f"host {rank // 2}"
    import torch
    import torch.distributed as dist

    with torch_group(rank, size, meeting, timeout=40.0) as world:
        assert world.corral.name() == "hybrid"
        for count in (3, 100_000):
            value = torch.full((count,), float(rank))
            dist.all_reduce(value)
            assert value.eq(sum(range(size))).all()
            work = dist.isend(torch.full((count,), float(rank)), (rank + 1) % size)
            dist.recv(value, (rank - 1) % size)
            work.wait()
            assert value.eq((rank - 1) % size).all()
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": other} for other in range(size)]
        some = dist.new_group([0, size - 1])
        if rank in (0, size - 1):
            value = torch.ones(2)
            dist.all_reduce(value, group=some)
            assert value.tolist() == [2.0, 2.0]
        dist.barrier()


def test_ranks_of_several_hosts_get_an_engine_that_reaches_them(tmp_path):
    run_ranks(_on_two_hosts, 3, str(tmp_path / "torch"))


def _groups(rank, size):
    import torch
    import torch.distributed as dist

    world = dist.group.WORLD
    assert dist.get_backend() == "corral"
    assert (world.rank(), world.size(), world.name()) == (rank, size, "corral")
    assert dist.get_process_group_ranks(world) == list(range(size))
    pair = dist.new_group([size - 1, 0], sort_ranks=False)
    alone = dist.new_group([1])
    for _ in range(2):  # a name that torch gives anew
        local = dist.new_group([0, size - 1], use_local_synchronization=True) if rank in (0, size - 1) else None
        if local is not None:
            value = torch.tensor([rank + 1.0])
            dist.all_reduce(value, group=local)
            assert value.item() == 1 + size
            dist.destroy_process_group(local)
    if rank in (0, size - 1):
        assert pair.rank() == (1 if rank == 0 else 0)
        assert "ranks" in repr(pair)
        value = torch.tensor([float(rank)])
        dist.broadcast(value, src=size - 1, group=pair)
        assert value.item() == size - 1
        everyone = [None, None]
        dist.all_gather_object(everyone, rank, group=pair)
        assert everyone == [size - 1, 0]
        dist.destroy_process_group(pair)
        with pytest.raises(ValueError, match="can no longer be used"):
            pair.allreduce([torch.ones(1)])
    else:
        assert pair == dist.GroupMember.NON_GROUP_MEMBER
    if rank == 1:
        value = torch.ones(2)
        dist.all_reduce(value, group=alone)
        assert value.tolist() == [1, 1]
    mine, _ = dist.new_subgroups(group_size=size // 2)
    total = torch.ones(1)
    dist.all_reduce(total, group=mine)
    assert total.item() == size // 2
    dist.barrier()


def test_groups_of_some_ranks():
    run_torch(_groups, 4)


def _again(rank, size, folder):
    import torch
    import torch.distributed as dist

    import corral.distributed as corral_dist

    for turn in range(3):
        with torch_group(rank, size, os.path.join(folder, "same")):  # a file that is used again
            value = torch.tensor([float(rank + turn)])
            dist.all_reduce(value)
            assert value.item() == sum(other + turn for other in range(size))
            # The job that corral.distributed is in is another, and both can be used.
            theirs = torch.tensor([rank])
            corral_dist.all_reduce(theirs, corral_dist.ReduceOp.MAX)
            assert theirs.item() == size - 1


def test_a_group_can_be_made_again_beside_one_of_corral(tmp_path):
    run(_again, 2, str(tmp_path))


def _in_gloo(rank, size):
    import torch
    import torch.distributed as dist

    if rank == 0:
        dist.new_group([1, 2], backend="corral")
        dist.barrier()
        return
    group = dist.new_group([1, 2], backend="corral")
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, group=group)
    assert value.item() == 3
    with pytest.raises(RuntimeError, match=r"rank 1 called .*rank 2 called"):  # their global ranks
        dist.all_reduce(torch.ones(rank), group=group)
    dist.barrier()


def test_a_group_beside_a_default_one_of_gloo():
    run_torch(_in_gloo, 3, backend="gloo")


def _mixed(rank, size, backends):
    import torch
    import torch.distributed as dist

    world = dist.group.WORLD
    assert dist.get_backend_config() == backends
    assert [device.type for device in world._device_types] == ["cpu", "cuda"]
    cuda = torch.device("cuda")
    assert isinstance(world._get_backend(cuda), dist.ProcessGroupGloo)
    group = dist.new_group(list(range(size)))
    assert isinstance(group._get_backend(cuda), dist.ProcessGroupGloo)
    for each in (world, group):
        value = torch.tensor([rank, 1])
        dist.all_reduce(value, group=each)
        assert value.tolist() == [1, 2]
    value = [None, None]
    dist.all_gather_object(value, rank)
    assert value == [0, 1]

    class Recorded:  # in the place of a backend for a device that is not here
        _device_types = (torch.device("meta"),)

        def __getattr__(self, name):
            return lambda *arguments, **_: calls.append((name, arguments)) or FinishedWork()

    from corral.integrations.torch_work import FinishedWork

    others, calls = group.others, []
    group.others = Recorded()
    tensor = torch.ones(2, device="meta")
    dist.all_reduce(tensor, group=group)
    dist.all_gather([tensor, tensor.clone()], tensor, group=group)
    dist.isend(tensor, 1, group=group)
    assert [name for name, _ in calls] == ["allreduce", "allgather", "send"]
    group.others = others
    dist.destroy_process_group(group)


@pytest.mark.parametrize("backends", ["cpu:corral,cuda:gloo", "cuda:gloo,cpu:corral"])
def test_other_devices_keep_their_backend(backends):
    run_torch(_mixed, 2, backends, backend=backends)


def _timeouts(rank, size):
    import torch
    import torch.distributed as dist

    import corral

    if rank == 0:
        with pytest.raises(corral.DistTimeoutError, match=r"all_reduce .*timeout of 0.3 s"):
            dist.group.WORLD.allreduce([torch.ones(2)], timeout=timedelta(seconds=0.3)).wait()
        with pytest.raises(TimeoutError, match=r"timeout of 0.2 s"):
            dist.irecv(torch.ones(2), 1).wait(timedelta(seconds=0.2))
        with pytest.raises(RuntimeError, match=r"Rank 0 timed out in monitoredBarrier: .*rank 1"):
            dist.group.WORLD.monitored_barrier(timedelta(seconds=0.2))
        dist.group.WORLD.set_timeout(timedelta(seconds=0.25))
        with pytest.raises(corral.DistTimeoutError, match=r"barrier .*timeout of 0.25 s"):
            dist.barrier()
        dist.group.WORLD.set_timeout(timedelta(seconds=20))
    group = dist.distributed_c10d._world.pg_map[dist.group.WORLD][1]
    if rank == 0:
        group.set("done", "1")
    else:
        group.wait(["done"], timedelta(seconds=20))


def test_timeouts():
    run_torch(_timeouts, 2)


def _all_reduce(tensor, asynchronous):
    import torch.distributed as dist

    work = dist.all_reduce(tensor, async_op=asynchronous)
    if work is not None:
        work.wait()


def _lost(rank, size, asynchronous):
    import torch
    import torch.distributed as dist

    import corral

    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), 9)
    with pytest.raises(corral.PeerLostError, match=r"rank 1 was killed by SIGKILL") as caught:
        _all_reduce(torch.ones(3), asynchronous)
    assert caught.value.ranks == (1,)
    with pytest.raises(RuntimeError, match="rank 1"):
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    with pytest.raises(RuntimeError, match="rank 1"):
        dist.recv(torch.ones(3), 1)
    return True


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_rank_that_dies_is_an_error_on_the_others(asynchronous):
    assert run_torch(_lost, 3, asynchronous, exits={1: -9}) == [True, None, True]


def _abort(rank, size):
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, 1])
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        group.abort()
        with pytest.raises(RuntimeError, match="all_reduce"):
            work.wait()
    dist.barrier()
    group = dist.new_group([0, 1])
    if rank == 0:  # between two ranks
        works = [dist.irecv(torch.ones(2), 1, group=group), dist.irecv(torch.ones(2), None, group=group)]
        works.append(dist.isend(torch.ones(1 << 20), 1, group=group))
        group.abort()
        for work in works:
            with pytest.raises(RuntimeError, match="abort"):
                work.wait()
    dist.barrier()


def test_abort():
    run_torch(_abort, 2)


def _without_an_end(rank, size):
    import torch
    import torch.distributed as dist

    # Not destroyed: the process's end delivers what was sent.
    dist.init_process_group("corral", store=dist.FileStore(os.environ["MEETING"], size), rank=rank, world_size=size)
    if rank == 0:
        dist.isend(torch.arange(4.0), 1)
    else:
        value = torch.empty(4)
        dist.recv(value, 0)
        assert value.tolist() == [0, 1, 2, 3]
    return True


def test_what_was_sent_before_a_normal_end_arrives(tmp_path):
    environment = {"MEETING": str(tmp_path / "meeting"), "PYTHONWARNINGS": "default"}
    assert run(_without_an_end_registered, 2, environment=environment) == [True, True]


def _without_an_end_registered(rank, size):
    importlib.import_module("corral.integrations.torch")
    return _without_an_end(rank, size)


def _forks(rank, size):
    import torch
    import torch.distributed as dist

    from corral.integrations import torch_group as module

    if rank == 0:
        delivered = []
        abandon = type(dist.group.WORLD.corral.backend).abandon
        type(dist.group.WORLD.corral.backend).abandon = lambda self, deliver: delivered.append(deliver)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                module._at_exit()
                code = len(delivered)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        module._at_exit()
        assert delivered == [True]
        type(dist.group.WORLD.corral.backend).abandon = abandon
    x = torch.ones(3)
    dist.all_reduce(x)
    assert (x == size).all()


def test_a_forked_child_delivers_nothing_when_it_ends():
    run_torch(_forks, 2)
