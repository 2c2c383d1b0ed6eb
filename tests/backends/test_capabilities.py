"""Groups say what their engines do by themselves, and do it."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist
from corral import backends
from corral.backends.capabilities import Capabilities, check
from corral.backends.shm import ShmBackend
from tests.backends.jobs import run_under_mpirun

# any_source, vectors, several_hosts
KNOWN = {
    "shm": (True, True, False),
    "gloo": (False, False, True),
    "hybrid": (False, False, True),
    "mpi": (True, True, True),
    "sockets": (True, True, False),
}


def _dtype(name):
    if hasattr(np, name) or name == "bool":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def _values(name, rank):
    return np.array([0, 1, 1, 0, 1, 1, 0], "i4").repeat(rank + 1)[:7].astype(_dtype(name))


def _truthful(rank, size):
    can = dist.group.WORLD.capabilities
    name = dist.get_backend()
    assert (can.any_source, can.vectors, can.several_hosts) == KNOWN[name]
    assert can.devices == ("cpu",)
    assert can.reducible <= can.dtypes
    for dtype in sorted(can.dtypes):
        if rank:
            dist.send(_values(dtype, rank), 0)
        else:
            came = {}
            for _ in range(size - 1):
                got = np.zeros_like(_values(dtype, 0))
                came[dist.recv(got)] = got  # from anyone
            assert sorted(came) == list(range(1, size))
            for source, got in came.items():
                assert got.tobytes() == _values(dtype, source).tobytes(), dtype
        # As long as that: one who is faster would send what another dtype is awaited for.
        dist.barrier()
    for dtype in sorted(can.dtypes):
        array = _values(dtype, rank)
        if dtype in can.reducible:
            dist.all_reduce(array)
            whole = [_values(dtype, other) for other in range(size)]
            expected = np.logical_or.reduce(whole) if dtype == "bool" else np.sum(whole, axis=0, dtype=array.dtype)
            assert array.tobytes() == expected.tobytes(), dtype
        else:
            with pytest.raises(TypeError, match=f"no meaning for {dtype}"):
                dist.all_reduce(array)
    part = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        assert part.capabilities == can
    return name


@pytest.mark.also("gloo", "hybrid", "sockets")
def test_a_group_does_what_it_says(backend):
    pytest.importorskip("ml_dtypes")
    if backend in ("gloo", "hybrid"):
        pytest.importorskip("torch")
    assert run(_truthful, 3) == [backend] * 3


def _on_mpi(rank, size):
    dist.init_process_group("mpi")
    try:
        return _truthful(rank, size)
    finally:
        dist.destroy_process_group()


def test_a_group_of_mpi_does_what_it_says():
    pytest.importorskip("ml_dtypes")
    assert run_under_mpirun(_on_mpi, 3) == ["mpi"] * 3


def test_what_cannot_be_derived_is_refused_when_the_group_is_made(monkeypatch, tmp_path):
    class Narrow(ShmBackend):
        def capabilities(self):
            return super().capabilities()._replace(dtypes=frozenset({"float32"}), reducible=frozenset({"float32"}))

    class Device(ShmBackend):
        def capabilities(self):
            return super().capabilities()._replace(devices=("cuda",))

    monkeypatch.setattr(backends, "_entries", dict(backends._entries))
    for backend, reason in ((Narrow, "does not move arrays of bfloat16, bool, complex128"), (Device, "host memory")):
        name = backend.__name__.lower()
        backends.register(name, backend)
        meeting = f"file://{tmp_path}/{name}"
        with pytest.raises(dist.DistBackendError, match=f"cannot be used for a group: it .*{reason}"):
            dist.init_process_group(name, init_method=meeting, rank=0, world_size=1)
        assert not dist.is_initialized()


def test_what_is_not_said_is_what_the_rest_needs():
    assert check(Capabilities()) == ""
    assert "reduce arrays of float16" in check(Capabilities(reducible=Capabilities().reducible - {"float16"}))
