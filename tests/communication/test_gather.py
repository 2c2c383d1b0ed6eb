"""`corral.gather`: nothing prepared, shapes of any kind."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
from fleet import Fleet

import corral
import corral.distributed as dist
from corral.wire.errors import PickleError

SIZE = 3
Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    x: object
    y: object


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _values(rank, dtype="f8"):
    return (np.arange(3.0 * rank).reshape(rank, 3) + 10 * rank).astype(dtype)


def _arrays(rank, size):
    for root in range(size):
        for dtype in ("f8", ">i4", "?", "c8", "M8[s]", "U3", [("x", "u1"), ("y", ">f4")]):
            result = corral.gather(_values(rank).astype(dtype) if type(dtype) is str else np.ones(rank, dtype), root)
            assert (result is None) is (rank != root)
            for source, array in enumerate(result or []):
                wanted = _values(source).astype(dtype) if type(dtype) is str else np.ones(source, dtype)
                assert array.dtype == wanted.dtype
                assert np.array_equal(array, wanted)


def test_uneven_arrays(fleet):
    fleet(_arrays)


def _structures(rank, size):
    import torch

    torch_leaf = torch.full((rank,), float(rank), dtype=torch.bfloat16, requires_grad=True)
    mine = [
        {"a": _values(rank), "pair": Pair(torch_leaf, f"rank {rank}")},
        (Record(_values(rank).T, rank), [None, 2.5]),
        corral.TensorDict(a=_values(2), b={"c": torch_leaf}),
    ][rank]
    result = corral.gather(mine, group_dst=1)
    if rank != 1:
        assert result is None
        return
    first, second, third = result
    assert np.array_equal(first["a"], _values(0))
    assert type(first["pair"]) is Pair
    assert first["pair"].right == "rank 0"
    assert type(second[0]) is Record
    assert second[0].x is not mine[0].x
    assert np.array_equal(second[0].x, _values(1).T)
    assert second[0].y == 1
    assert second[1] == [None, 2.5]
    assert type(third) is corral.TensorDict
    assert third["b", "c"].dtype == torch.bfloat16
    assert third["b", "c"].tolist() == [2.0, 2.0]


def test_structures_differ(fleet):
    fleet(_structures)


def _like(rank, size):
    import torch

    for root in range(size):
        mine = torch.full((rank + 1,), rank) if rank % 2 else np.full(rank + 1, rank)
        for like, kind in (("numpy", np.ndarray), ("torch", torch.Tensor)):
            result = corral.gather({"a": mine}, root, like=like)
            for source, tree in enumerate(result or []):
                assert type(tree["a"]) is kind
                assert tree["a"].tolist() == [source] * (source + 1)
    with pytest.raises(ValueError, match="like must be" if rank == 0 else "rank 0 called corral.gather .*refused"):
        corral.gather(np.zeros(1), 0, like="tensorflow" if rank == 0 else None)
    with pytest.raises(dist.MismatchError, match=r"rank 0: .*'a' \(datetime64\[s\]\) cannot become an array of torch"):
        corral.gather({"a": np.zeros(1, "M8[s]")}, 0, like="torch")
    with pytest.raises(ValueError, match="group_dst"):
        corral.gather(np.zeros(1), 0, group_dst=0)
    dist.barrier()


def test_like(fleet):
    fleet(_like)


def _objects(rank, size):
    import ml_dtypes

    mine = {
        "f": np.float32(3 + rank),
        "list": [np.int8(-rank), np.bool_(True), np.datetime64("2026-01-01", "D"), np.str_("text"), np.complex64(1j)],
        "b": bytearray(b"abc" * (rank + 1)),
        "bf": ml_dtypes.bfloat16(1.5),
        "a": np.array(2.5),  # of no dimensions, but an array
        "v": memoryview(b"xyz"),
    }
    for root in range(size):
        result = corral.gather(mine, root, like="numpy" if root == 1 else None)
        for source, tree in enumerate(result or []):
            assert type(tree["f"]) is np.float32
            assert tree["f"] == 3 + source
            kinds = [np.int8, np.bool_, np.datetime64, np.str_, np.complex64]
            assert [type(each) for each in tree["list"]] == kinds
            assert tree["list"] == [-source, True, np.datetime64("2026-01-01", "D"), "text", 1j]
            assert type(tree["b"]) is bytearray
            assert tree["b"] == b"abc" * (source + 1)
            assert type(tree["bf"]) is ml_dtypes.bfloat16
            assert type(tree["a"]) is type(tree["v"]) is np.ndarray
            assert tree["v"].tobytes() == b"xyz"
    alone = corral.gather(np.int16(rank), 0)
    if rank == 0:
        assert [type(each) for each in alone] == [np.int16] * size
        assert alone == [0, 1, 2]
    stack = corral.gather_and_stack(None if rank == 0 else {"f": np.float32(rank)}, 0)
    if rank == 0:  # rows of an array
        assert stack["f"].dtype == np.float32
        assert stack["f"].tolist() == [1, 2]


def test_objects_that_could_be_arrays_come_back_as_they_were(fleet):
    fleet(_objects)


def _nested_tensors(rank, size):
    import torch

    parts = [torch.zeros(2), torch.zeros(3)]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        for call in (dist.send, dist.recv, dist.isend, dist.irecv):
            with pytest.raises(TypeError, match=r"tensor is a nested torch tensor.*unbind"):
                call(nested, (rank + 1) % size)
        told = (
            (TypeError, r"nested torch tensor.*unbind") if rank == 0 else (dist.MismatchError, "rank 0 called gather")
        )
        with pytest.raises(told[0], match=told[1]):
            dist.gather(torch.zeros(1), [torch.zeros(1), nested, torch.zeros(1)] if rank == 0 else None)
        tree = {"x": {"y": nested if rank == 1 else torch.zeros(size - 1, 2)}}
        with pytest.raises(dist.MismatchError, match=r"rank 1: TypeError: \('x', 'y'\) is a nested .*unbind"):
            corral.gather(tree, 0)
        with pytest.raises(dist.MismatchError, match=r"rank 1: TypeError: \('x', 'y'\) is a nested .*unbind"):
            corral.gather_and_stack(tree, 0)
        tree = {"x": {"y": nested if rank == 0 else torch.zeros(2)}}
        with pytest.raises(dist.MismatchError, match=r"rank 0: \('x', 'y'\) is a nested torch tensor.*unbind"):
            corral.gather_and_stack(tree, 0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name(fleet):
    fleet(_nested_tensors)


def _unreadable(rank, size):
    mine = [np.zeros(2), Unreadable() if rank == 2 else 1]
    with pytest.raises(PickleError, match=r"rank 0: .*Unreadable could not be unpickled here: it will not"):
        corral.gather(mine, 0)
    with pytest.raises(PickleError, match=r"rank 0: .*Unreadable could not be unpickled here: it will not"):
        corral.gather_and_stack(None if rank == 0 else {"a": Unreadable()}, 0)
    dist.barrier()


def _refuse():
    raise RuntimeError("it will not")


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def test_an_object_that_the_destination_cannot_make(fleet):
    fleet(_unreadable)
