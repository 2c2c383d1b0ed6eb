"""What programs ask about backends, the job and the process: torch's answers, where they are the same question."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from datetime import timedelta

import pytest
from engines import backend_of
from ranks import run

import corral.distributed as dist
from corral import backends

AVAILABILITY = [f"is_{name}_available" for name in ("backend", "gloo", "mpi", "nccl", "ucc", "xccl")]


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(backends, "_entries", dict(backends._entries))
    for table in ("backend_list", "default_device_backend_map", "backend_capability"):
        monkeypatch.setattr(dist.Backend, table, type(getattr(dist.Backend, table))(getattr(dist.Backend, table)))
    before = set(vars(dist.Backend))
    yield
    for name in set(vars(dist.Backend)) - before:
        delattr(dist.Backend, name)


def test_backends_of_this_library_alone_are_available(registry):
    assert dist.is_backend_available("shm")
    assert dist.is_backend_available("SHM")
    assert dist.is_backend_available("cpu:shm")
    for name in ("gloo", "nccl", "mpi", "ucc", "xccl"):
        known = name in backends.names()
        assert getattr(dist, f"is_{name}_available")() == dist.is_backend_available(name)
        if not known:
            assert not dist.is_backend_available(name)
            backends.register(name, "json:Engine", requires=["no_such_module"])
            assert not dist.is_backend_available(name)
            backends.register(name, "no_such_package.engine:Engine")
            assert not dist.is_backend_available(name)
            backends.register(name, "json:Engine", requires=["csv"])
            assert getattr(dist, f"is_{name}_available")() is True
            assert dist.is_backend_available(f"cpu:shm,cuda:{name}")
            assert not dist.is_backend_available(f"cpu:other,cuda:{name}")


def test_asking_imports_nothing():
    asked = "; ".join(f"dist.{name}({'' if name != 'is_backend_available' else repr('gloo')})" for name in AVAILABILITY)
    code = f"import corral.distributed as dist, sys; {asked}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "mpi4py", "corral.backends.shm"} & set(done.stdout.split())


def test_backend_names():
    c10d = pytest.importorskip("torch.distributed")
    for name in c10d.Backend.backend_list:
        # corral's own is there once its integration was imported, which another test may have done.
        if name != "corral" and isinstance(getattr(c10d.Backend, name.upper(), None), str):
            assert getattr(dist.Backend, name.upper()) == getattr(c10d.Backend, name.upper())
    for name in ("GLOO", "Shm", "zork"):
        assert dist.Backend(name) == c10d.Backend(name)
        assert type(dist.Backend(name)) is type(c10d.Backend(name)) is str
    for module in (dist, c10d):
        with pytest.raises(ValueError, match="string-ish"):
            module.Backend(3)
    for written in ("gloo", "nccl", "cpu:gloo,cuda:nccl", "CPU:Gloo"):
        assert repr(dist.BackendConfig(written)) == repr(c10d.BackendConfig(written))
        assert dist.BackendConfig(written).get_device_backend_map() == dict(
            c10d.BackendConfig(written).get_device_backend_map()
        )
    for module in (dist, c10d):
        with pytest.warns(UserWarning, match="Device capability of zork unknown"):
            assert module.BackendConfig("zork").get_device_backend_map()["cuda"] == "zork"
        with pytest.raises(ValueError, match="Invalid device:backend pairing"):
            module.BackendConfig("cpu:gloo:3")
        with pytest.raises(ValueError, match="Duplicate device type cpu"):
            module.BackendConfig("cpu:gloo,cpu:nccl")
    assert dist.BackendConfig("undefined").get_device_backend_map()["cpu"] == "shm"
    with pytest.raises(ValueError, match="Invalid device:backend pairing"):
        dist.BackendConfig("cpu:")


def test_default_backends():
    torch = pytest.importorskip("torch")
    for device in ("cpu", "cuda:0", "cuda", torch.device("cpu"), torch.device("cuda", 1)):
        assert dist.get_default_backend_for_device(device) == "shm"
    for module in (dist, torch.distributed):
        with pytest.raises(ValueError, match="Default backend not registered for device : meta"):
            module.get_default_backend_for_device("meta")
        with pytest.raises(TypeError):
            module.get_default_backend_for_device(None)


def _config(rank, size):
    group = dist.new_group([1])
    if rank == 0:
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.get_backend_config(group)
    return dist.get_backend_config(), rank == 0 or dist.get_backend_config(group), dist.get_pg_count()


def test_a_groups_backends(backend):
    name = backend_of(backend)
    both = f"cpu:{name},cuda:{name}"
    assert run(_config, 2) == [(both, True, 2), (both, both, 2)]
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.get_backend_config()


class Counting:
    """An engine that only counts how often it was made."""

    made = 0

    @classmethod
    def create(cls, rank, world_size, meet, timeout):
        cls.made += 1
        raise RuntimeError("it cannot do more")


def test_registered_backends_are_found(registry):
    dist.Backend.register_backend("Counting", Counting, devices=["cpu", "abacus"])
    assert dist.Backend.COUNTING == "counting"
    assert dist.is_backend_available("counting")
    assert dist.get_default_backend_for_device("abacus:1") == "counting"
    assert dist.get_default_backend_for_device("cpu") == "shm"
    assert repr(dist.BackendConfig("counting")) == "cpu:counting,abacus:counting"
    with pytest.raises(RuntimeError, match="it cannot do more"):
        dist.init_process_group("counting", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    assert Counting.made == 1
    with pytest.warns(UserWarning, match="Device capability of lazy unspecified"):
        dist.Backend.register_backend("lazy", "no_such_package:Engine")
    assert "lazy" in dist.Backend.backend_list
    assert not dist.is_backend_available("lazy")
    dist.Backend.register_backend("one", Counting, devices="abacus")
    assert dist.Backend.backend_capability["one"] == ["abacus"]
    assert dist.get_default_backend_for_device("abacus") == "counting"
    with pytest.raises(TypeError, match="create"):
        dist.Backend.register_backend("wrong", lambda store, rank, size, timeout: None)
    with pytest.raises(TypeError, match="extended_api"):
        dist.Backend.register_backend("wrong", Counting, True)
    assert not dist.is_backend_available("wrong")


def test_register_backend_has_torchs_arguments():
    c10d = pytest.importorskip("torch.distributed")
    ours, theirs = (inspect.signature(m.Backend.register_backend).parameters for m in (dist, c10d))
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def _counts(rank, size, folder):
    import torch.distributed as c10d

    c10d.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    seen = {c10d: [], dist: []}
    for module, counts in seen.items():
        counts.append(module.get_pg_count())
        group = module.new_group([1, 0])
        counts.append(module.get_pg_count())
        if rank < 2:
            module.new_group([0, 1], use_local_synchronization=True)
        counts.append(module.get_pg_count())
        if rank < 2:
            module.destroy_process_group(group)
        counts.append(module.get_pg_count())
        module.new_subgroups(1)
        counts.append(module.get_pg_count())
        module.barrier()
        module.destroy_process_group()
        counts.append(module.get_pg_count())
    assert seen[c10d] == seen[dist] == [1, 2, 2, 2, 2 + size, 0]


def test_groups_are_counted_as_by_torch(tmp_path):
    pytest.importorskip("torch")
    run(_counts, 3, str(tmp_path))


def test_the_launchers_words(monkeypatch):
    c10d = pytest.importorskip("torch.distributed")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for module in (dist, c10d):
        assert module.get_node_local_rank(fallback_rank=3) == 3
        assert not module.is_torchelastic_launched()
        with pytest.raises(RuntimeError, match="LOCAL_RANK is not in the environment"):
            module.get_node_local_rank()
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    for module in (dist, c10d):
        assert module.get_node_local_rank() == module.get_node_local_rank(3) == 5
        assert module.is_torchelastic_launched()


@pytest.fixture
def level():
    before = dist.get_debug_level()
    yield
    dist.set_debug_level(before)


def test_debug_levels(level, monkeypatch):
    c10d = pytest.importorskip("torch.distributed")
    assert {name: int(one) for name, one in dist.DebugLevel.__members__.items()} == {
        name: int(one) for name, one in c10d.DebugLevel.__members__.items()
    }
    before = c10d.get_debug_level()
    try:
        for written in ("info", "DETAIL", "Off"):
            monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", written)
            for module in (dist, c10d):
                module.set_debug_level_from_env()
            assert dist.get_debug_level().name == c10d.get_debug_level().name == written.upper()
        for wrong in ("", "1", "loud"):
            monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", wrong)
            for module in (dist, c10d):
                with pytest.raises(ValueError, match="must be OFF, INFO, or DETAIL"):
                    module.set_debug_level_from_env()
        for module in (dist, c10d):
            module.set_debug_level(module.DebugLevel.INFO)
            assert module.get_debug_level() is module.DebugLevel.INFO or module.get_debug_level() == (
                module.DebugLevel.INFO
            )
            for wrong in (1, "INFO", None):
                with pytest.raises(TypeError):
                    module.set_debug_level(wrong)
        assert dist.get_debug_level() is dist.DebugLevel.INFO
    finally:
        c10d.set_debug_level(before)


def test_the_environments_level_is_there_from_the_start(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    code = "import corral.distributed as dist; print(dist.get_debug_level())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "DebugLevel.DETAIL\n"


def test_complex_reductions():
    c10d = pytest.importorskip("torch.distributed")
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"):
        op = getattr(c10d.ReduceOp, name)
        assert dist.supports_complex(op) == (c10d.supports_complex(op) or name == "PRODUCT")
        made = c10d._make_nccl_premul_sum(2.0) if name == "PREMUL_SUM" else c10d.ReduceOp(op)
        assert dist.supports_complex(made) == dist.supports_complex(op)


def test_the_default_timeout():
    assert isinstance(dist.default_pg_timeout, timedelta)
    assert dist.default_pg_timeout == timedelta(minutes=5)


def test_torchs_module_of_these_names():
    from corral.distributed import distributed_c10d

    assert dist.distributed_c10d is distributed_c10d
    for name in dist.__all__:
        assert getattr(distributed_c10d, name) is getattr(dist, name)
    assert set(distributed_c10d.__all__) == set(dist.__all__)
    with pytest.raises(ValueError, match="has not been initialized"):
        distributed_c10d._get_default_group()
    assert isinstance(distributed_c10d, types.ModuleType)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dist.nonsense
