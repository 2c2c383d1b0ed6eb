"""Backends other than shared memory, as users see them."""

from __future__ import annotations

import signal
import sys

import pytest

import corral.distributed as dist
from corral import backends
from corral.distributed.engines import plan_for
from tests.backends import uses
from tests.backends.jobs import run_ranks, run_under_mpirun


@pytest.mark.parametrize(
    ("name", "hosts", "expected"),
    [
        ("gloo", 1, ("gloo", "gloo")),
        ("hybrid", 2, ("hybrid", "hybrid")),
        ("cpu:gloo,cuda:shm", 1, ("cpu:gloo,cuda:shm", "gloo")),
    ],
)
def test_every_kind_of_operation(name, hosts, expected, tmp_path):
    run_ranks(uses.backend, 3, name, f"file://{tmp_path}/meet", hosts, expected)


@pytest.mark.parametrize(("hosts", "expected"), [(1, "shm"), (2, "hybrid")])
def test_hosts_decide_where_no_backend_is_named(hosts, expected, tmp_path):
    run_ranks(uses.chosen, 3, (str(tmp_path), ""), hosts, expected)


def test_several_hosts_without_an_engine_say_what_to_install(tmp_path):
    run_ranks(uses.nothing_installed, 3, (str(tmp_path), ""))


def test_shared_memory_says_that_it_does_not_reach_other_hosts(tmp_path):
    run_ranks(uses.out_of_reach, 3, f"file://{tmp_path}/meet")


def test_a_group_on_another_engine(tmp_path):
    run_ranks(uses.other_engine, 3, f"file://{tmp_path}/meet")


@pytest.mark.parametrize("how", ["destroyed", "forgotten", "the other is stopped"])
def test_a_process_ends_well_whatever_becomes_of_a_group_on_another_engine(how, tmp_path):
    for time in range(2):  # whether a thread is in native code just then is a matter of luck
        run_ranks(uses.ends, 3, f"file://{tmp_path}/meet{time}", how)


@pytest.mark.parametrize("destroy", [True, False])
def test_what_was_sent_on_another_engine_arrives(destroy, tmp_path):
    run_ranks(uses.sent_elsewhere, 2, f"file://{tmp_path}/meet", destroy)


def test_groups_of_torch_become_ours(tmp_path):
    run_ranks(uses.from_torch, 3, f"file://{tmp_path}/meet")


@pytest.mark.parametrize(("name", "hosts"), [("gloo", 1), ("hybrid", 2)])
def test_survivors_go_on(name, hosts, tmp_path):
    run_ranks(uses.survivors, 4, name, f"file://{tmp_path}/meet", hosts, exits={2: -signal.SIGKILL})


@pytest.mark.parametrize(("name", "hosts"), [("gloo", 1), ("hybrid", 2), ("hybrid", 1)])
def test_what_was_sent_arrives_though_nobody_waits(name, hosts, tmp_path):
    run_ranks(uses.forgotten, 2, name, f"file://{tmp_path}/meet", hosts)


def test_mpi():
    run_under_mpirun(uses.on_mpi, 3)


def test_what_cannot_be_used_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "corral.backends.mpi", raising=False)
    with pytest.raises(ImportError, match=r"backend 'mpi' is not available here .*pip install 'corral\[mpi\]'"):
        backends.load("mpi")


@pytest.mark.parametrize("name", ["nccl", "xccl", "ucc"])
def test_an_engine_that_torch_lacks_is_refused(name):
    torch_dist = pytest.importorskip("torch.distributed")
    if getattr(torch_dist, f"is_{name}_available")():
        assert backends.load(name).called == name
    else:
        assert not dist.is_backend_available(f"cpu:shm,cuda:{name}")
        with pytest.raises(ImportError, match=f"this build of torch has no {name.upper()}"):
            plan_for(f"cpu:gloo,cuda:{name}", "init_process_group")


def test_names_for_devices():
    assert plan_for("CPU:SHM,cuda:shm", "init_process_group") == ("shm", "cpu:shm,cuda:shm")
    assert plan_for("undefined", "init_process_group") == (None, "undefined")
    with pytest.raises(ValueError, match="unknown backend 'pigeon'"):
        plan_for("cpu:shm,cuda:pigeon", "init_process_group")
    with pytest.raises(ValueError, match="which one serves 'cpu'"):
        plan_for("cuda:shm,xpu:gloo", "init_process_group")


def test_a_communicator_is_for_mpi(tmp_path):
    with pytest.raises(ValueError, match="comm is for the backend 'mpi'"):
        dist.init_process_group("shm", comm=object(), rank=0, world_size=1, init_method=f"file://{tmp_path}/meet")


def test_groups_that_are_not_gloos_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="must be a ProcessGroup of torch"):
        dist.from_torch("gloo")
    with pytest.raises(ValueError, match="torch has no default group"):
        dist.from_torch()
    store = torch.distributed.HashStore()
    group = torch.distributed.ProcessGroup(store, 0, 1)
    with pytest.raises(ValueError, match="takes no CPU tensors"):
        dist.from_torch(group)
