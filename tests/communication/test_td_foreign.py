"""TensorDicts of the package tensordict, of all its classes, through the functions: results are of their class."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from fleet import Fleet

import corral

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict
    import torch

SIZE = 3


@tensordict.tensorclass
class Step:
    obs: torch.Tensor
    name: str
    inner: tensordict.TensorDict


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def dense(rank, extra=0):
    return tensordict.TensorDict(
        {"a": torch.arange(2.0 * (1 + extra)).reshape(2, -1) + rank, "n": {"b": torch.full((2,), rank)}}, [2]
    )


def step(rank, extra=0):
    return Step(obs=torch.full((2, 1 + extra), float(rank)), name=f"rank {rank}", inner=dense(rank), batch_size=[2])


def objects(rank, extra=0):
    td = dense(rank)
    td["s"] = f"rank {rank}"
    td["t"] = tensordict.NonTensorStack(f"{rank}.0", rank)
    td["numbers"] = tensordict.NonTensorStack(1, 2)
    return td


def lazy(rank, extra=0):
    return tensordict.lazy_stack([dense(rank), dense(rank + 5, extra=2)], 0)


KINDS = {
    "dense": dense,
    "tensorclass": step,
    "objects": objects,
    "lazy": lazy,
    "lazy tensorclass": lambda rank: tensordict.lazy_stack([step(rank), step(rank, 1)]),
    "lazy last": lambda rank: tensordict.lazy_stack([dense(rank), dense(rank + 1)], 1),
    "nested": lambda rank: {"x": [dense(rank), step(rank)], "y": np.full(2, rank)},
    "lazy inside": lambda rank: tensordict.TensorDict({"l": lazy(rank)}, [2]),
}


def same(one, other):
    """Whether two are of one class, with the same keys, entries and batch sizes."""
    if isinstance(one, (list, dict)):
        pairs = (
            zip(one.values(), other.values(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
        )
        return type(one) is type(other) and len(one) == len(other) and all(same(*pair) for pair in pairs)
    if isinstance(one, (tensordict.NonTensorData, tensordict.NonTensorStack)):
        return type(one) is type(other) and one.shape == other.shape and one.tolist() == other.tolist()
    if tensordict.is_tensorclass(one):
        return type(one) is type(other) and same(one._tensordict, other._tensordict)
    if isinstance(one, tensordict.LazyStackedTensorDict):
        return (
            type(one) is type(other)
            and one.stack_dim == other.stack_dim
            and same(list(one.tensordicts), list(other.tensordicts))
        )
    if isinstance(one, tensordict.TensorDictBase):
        return (
            type(one) is type(other)
            and one.batch_size == other.batch_size
            and one.keys() == other.keys()
            and all(same(one.get(key), other.get(key)) for key in one.keys())  # noqa: SIM118
        )
    return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)


def _everywhere(rank, size, kind):
    make = KINDS[kind]
    mine = make(rank)
    assert all(same(got, make(i)) for i, got in enumerate(corral.all_gather(mine)))
    assert all(same(got, make(i)) for i, got in enumerate(corral.gather(mine, 1) or []))
    assert same(corral.broadcast(mine if rank == 2 else None, 2), make(2))
    assert same(corral.scatter([make(i + 3) for i in range(size)] if rank == 0 else None, 0), make(rank + 3))
    assert all(
        same(got, make(10 * i + rank))
        for i, got in enumerate(corral.all_to_all([make(10 * rank + i) for i in range(size)]))
    )
    if rank == 0:
        corral.send(mine, 1)
    elif rank == 1:
        assert same(corral.recv(0), make(0))


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_of_their_class(fleet, kind):
    fleet(_everywhere, kind)


def _reduced(rank, size, kind):
    make = KINDS[kind]
    expected = make(0) + make(1) + make(2)
    assert same(corral.all_reduce(make(rank)), expected)
    found = corral.reduce(make(rank), dst=1)
    assert found is None if rank != 1 else same(found, expected)


@pytest.mark.parametrize("kind", ["dense", "lazy", "lazy last", "lazy inside"])
def test_reductions(fleet, kind):
    fleet(_reduced, kind)


def _stacked(rank, size, kind):
    make = KINDS[kind]
    td = corral.gather_and_stack(None if rank == 0 else make(rank), 0)
    if rank == 0:
        assert same(td, torch.stack([make(1), make(2)]))
    there = torch.stack([make(8), make(9)]) if rank == 0 else None
    memory = there["n", "b"].data_ptr() if kind == "dense" and rank == 0 else None
    td = corral.gather_and_stack(make(rank) if rank else there, 0)
    if rank == 0:
        assert td is there
        assert memory is None or td["n", "b"].data_ptr() == memory
        assert [same(row, make(i + 1)) for i, row in enumerate(td.unbind(0))] == [True] * 2


@pytest.mark.parametrize("kind", ["dense", "tensorclass"])
def test_stacks(fleet, kind):
    fleet(_stacked, kind)


def _into_lazy(rank, size):
    there = tensordict.lazy_stack([dense(8), dense(9)])
    memory = there.tensordicts[0]["a"].data_ptr()
    td = corral.gather_and_stack(dense(rank, extra=rank - 1) if rank else there, 0)
    if rank == 0:
        assert td is there
        assert td.tensordicts[0]["a"].data_ptr() == memory
        assert all(same(each, dense(i + 1, extra=i)) for i, each in enumerate(td.tensordicts))


def test_lazy_stacks_receive(fleet):
    fleet(_into_lazy)


def _mixed(rank, size):
    """A worker with corral's, of NumPy's arrays, and a learner with tensordict's."""
    row = corral.TensorDict(a=np.full(3, float(rank)), n={"b": np.full(2, rank)}, s=f"rank {rank}")
    there = tensordict.TensorDict({"a": torch.zeros(2, 3, dtype=torch.float64), "n": {"b": torch.zeros(2, 2)}}, [2])
    td = corral.gather_and_stack(row if rank else there, 0)
    if rank == 0:
        assert td is there
        assert td["a"].tolist() == [[1.0] * 3, [2.0] * 3]
        assert td["s"] == ["rank 1", "rank 2"]
    lazy = tensordict.lazy_stack([tensordict.TensorDict({}, []), tensordict.TensorDict({"a": torch.zeros(3)}, [])])
    td = corral.gather_and_stack(row if rank else lazy, 0)
    if rank == 0:
        assert td is lazy
        assert td["n", "b"].tolist() == [[1, 1], [2, 2]]


def test_workers_of_another_library(fleet):
    fleet(_mixed)
