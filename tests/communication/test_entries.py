"""Objects in TensorDicts, and lazy stacks, on their way between ranks."""

from __future__ import annotations

import numpy as np
import pytest
from fleet import Fleet

import corral
import corral.distributed as dist
from corral import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, lazy_stack

SIZE = 3


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _row(rank):
    return TensorDict(
        obs=np.full((2, 3), float(rank)),
        name=f"worker {rank}",
        steps=[f"{rank}.{i}" for i in range(2)],
        info={"data": NonTensorData([rank, "x"], batch_size=[2])},
        batch_size=[2],
    )


def _check_row(td, rank):
    assert type(td) is TensorDict
    assert td["name"] == f"worker {rank}"
    assert type(td.get("name")) is NonTensorData
    assert td.get("name").batch_size == (2,)
    assert td[1]["steps"] == f"{rank}.1"
    assert td["info", "data"] == [rank, "x"]
    assert td["obs"].tolist() == [[rank] * 3] * 2


def _gather(rank, size):
    found = corral.gather(_row(rank), dst=1)
    assert (found is None) == (rank != 1)
    for i, td in enumerate(found or []):
        _check_row(td, i)
    for i, td in enumerate(corral.all_gather(_row(rank))):
        _check_row(td, i)
    _check_row(corral.broadcast(_row(2) if rank == 2 else None, src=2), 2)


def _objects(rank, size):
    everyone = [None] * size
    entry = NonTensorStack("a", rank)
    dist.all_gather_object(everyone, [_row(rank), entry, lazy_stack([_row(rank)[0], _row(rank)[1]])])
    for i, (td, stack, lazy) in enumerate(everyone):
        _check_row(td, i)
        assert stack.tolist() == ["a", i]
        assert type(lazy) is LazyStackedTensorDict
        assert lazy[1]["steps"] == f"{i}.1"


def _stack_new(rank, size):
    td = corral.gather_and_stack(None if rank == 0 else _row(rank), dst=0)
    if rank:
        assert td is None
        return
    assert td.batch_size == (2, 2)
    assert td["name"] == [["worker 1"] * 2, ["worker 2"] * 2]
    assert [row["name"] for row in td] == ["worker 1", "worker 2"]
    assert td["steps"] == [["1.0", "1.1"], ["2.0", "2.1"]]


def _stack_in_place(rank, size, locked):
    if rank:
        td = _row(rank)
        td["extra"] = "new"
        if locked:
            del td["extra"]
        assert td.gather_and_stack(0) is None
        return
    td = corral.stack([_row(7), _row(8)])
    names, array = td.get("name"), td["obs"]
    if locked:
        td.lock_()
    assert td.gather_and_stack(0) is td
    assert td.get("name") is names
    assert td["obs"] is array
    assert td["name"] == [["worker 1"] * 2, ["worker 2"] * 2]
    assert td["steps"] == [["1.0", "1.1"], ["2.0", "2.1"]]
    assert td[:, 0]["info", "data"] == [[1, "x"], [2, "x"]]
    assert array.tolist() == [[[rank] * 3] * 2 for rank in (1, 2)]
    assert ("extra" in td) is not locked


def _stack_scalars(rank, size):
    """Numbers become an array, unless the destination has objects there."""
    if rank:
        TensorDict(n=NonTensorData(rank), m=NonTensorData(rank)).gather_and_stack(0)
        return
    td = TensorDict(n=NonTensorStack("a", "b"), batch_size=[2])
    td.gather_and_stack(0)
    assert td["n"] == [1, 2]
    assert td["m"].tolist() == [1, 2]


def _ragged(rank, size):
    def td(rank):
        return TensorDict(x=np.full(rank + 1, rank), y=np.full(2, rank), s=f"worker {rank}")

    found = corral.all_gather(lazy_stack([td(rank), td(rank + 1)]))
    for i, lazy in enumerate(found):
        assert type(lazy) is LazyStackedTensorDict
        assert [x.tolist() for x in lazy.get("x", as_list=True)] == [[i] * (i + 1), [i + 1] * (i + 2)]
    if rank:
        td(rank).gather_and_stack(0)
        return
    mine = lazy_stack([TensorDict(y=np.zeros(2, int)), TensorDict(y=np.zeros(2, int))])
    memory = mine[0]["y"]
    assert mine.gather_and_stack(0) is mine
    assert [x.tolist() for x in mine.get("x", as_list=True)] == [[1] * 2, [2] * 3]
    assert memory.tolist() == [1, 1]
    assert mine["s"] == ["worker 1", "worker 2"]


def _misfits(rank, size):
    tree = lazy_stack([TensorDict(x=np.zeros(1))] * 3) if rank == 0 else TensorDict(x=np.zeros(1))
    with pytest.raises(corral.MismatchError, match="2 members"):
        corral.gather_and_stack(tree, dst=0)
    tree = lazy_stack([TensorDict(x=np.zeros(1))] * 2).lock_() if rank == 0 else TensorDict(x=np.zeros(rank))
    with pytest.raises(corral.MismatchError, match=r"'x' of rank 2 has shape \(2,\).*locked"):
        corral.gather_and_stack(tree, dst=0)
    rows = None if rank == 0 else TensorDict(x=np.zeros(rank))
    with pytest.raises(corral.MismatchError, match=r"'x' has shape \(2,\) on rank 2, but \(1,\) on rank 1"):
        corral.gather_and_stack(rows, dst=0)
    dist.barrier()


def test_gather(fleet):
    fleet(_gather)


def test_object_collectives(fleet):
    fleet(_objects)


def test_gather_and_stack_makes_a_stack(fleet):
    fleet(_stack_new)


@pytest.mark.parametrize("locked", [False, True])
def test_gather_and_stack_writes_in_place(fleet, locked):
    fleet(_stack_in_place, locked)


def test_numbers_of_senders(fleet):
    fleet(_stack_scalars)


def test_ragged_stacks(fleet):
    fleet(_ragged)


def test_what_does_not_fit_is_an_error_on_all_ranks(fleet):
    fleet(_misfits)
