"""Functions applied to parts of a batch in other processes."""

from __future__ import annotations

import os
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import pytest
import torch

from corral import TensorDict


def double(td: Any) -> Any:
    return td * 2


def drop_some(td: Any) -> Any:
    return None if int(td["a"].reshape(-1)[0]) == 0 else td


def where(td: Any) -> Any:
    return TensorDict(pid=np.full(len(td), os.getpid()), random=np.random.random(len(td)), batch_size=[len(td)])


def fail(td: Any) -> Any:
    raise LookupError(f"no {int(td['a'][0])}")


@pytest.fixture
def td() -> TensorDict:
    return TensorDict(a=np.arange(10), b={"c": torch.arange(20).reshape(10, 2)}, batch_size=[10])


def test_processes_map_in_order(td: TensorDict) -> None:
    result = td.map(double, num_workers=2, chunksize=3)
    assert result["a"].tolist() == [2 * i for i in range(10)]
    assert torch.equal(result["b", "c"], td["b", "c"] * 2)
    assert result.batch_size == (10,)
    places = td.map(where, num_workers=2, generator=np.random.default_rng(0), max_tasks_per_child=1)
    assert os.getpid() not in places["pid"]
    assert len(set(places["random"].tolist())) == 10, "workers have the same random numbers"


def test_processes_report_errors(td: TensorDict) -> None:
    with pytest.raises(LookupError, match="no 0"):
        td.map(fail, num_workers=1)


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("how", [{}, {"chunksize": 3}, {"chunksize": 0}, {"num_chunks": 4}, {"num_chunks": 40}])
def test_parts(td: TensorDict, how: Any, lazily: bool) -> None:
    with ThreadPool(2) as pool:
        result = td.map(double, pool=pool, index_with_generator=lazily, **how)
        parts = list(td.map_iter(double, pool=pool, index_with_generator=lazily, **how))
        assert (result == td * 2).all()
        joined = np.concatenate([np.reshape(part["a"], -1) for part in parts])
        assert joined.tolist() == [2 * i for i in range(10)]
        wide = td.reshape(2, 5).map(double, dim=-1, pool=pool, **how)
        assert (wide == td.reshape(2, 5) * 2).all()


def test_results_written_into_another(td: TensorDict) -> None:
    with ThreadPool(2) as pool:
        for how in ({"chunksize": 3}, {"chunksize": 0}):
            out = td.apply(lambda x: x * 0)
            memory = out["a"]
            assert td.map(double, pool=pool, out=out, **how) is out
            assert memory.tolist() == [2 * i for i in range(10)]


def test_results_left_out(td: TensorDict) -> None:
    with ThreadPool(2) as pool:
        assert td.map(drop_some, pool=pool, chunksize=5)["a"].tolist() == [5, 6, 7, 8, 9]
        assert td[:1].map(drop_some, pool=pool) is None
        assert [part is None for part in td.map_iter(drop_some, pool=pool, chunksize=5)] == [True, False]


def test_shuffled(td: TensorDict) -> None:
    with ThreadPool(2) as pool:
        parts = list(
            td.map_iter(double, pool=pool, chunksize=4, shuffle=True, generator=torch.Generator().manual_seed(1))
        )
        rows = np.concatenate([part["a"] for part in parts]).tolist()
        assert sorted(rows) == [2 * i for i in range(10)]
        assert rows != sorted(rows)
        with pytest.raises(RuntimeError, match="Shuffling"):
            list(td.map_iter(double, pool=pool, shuffle=True, index_with_generator=False))
        with pytest.raises(ValueError, match="not both"):
            td.map(double, pool=pool, chunksize=1, num_chunks=1)
