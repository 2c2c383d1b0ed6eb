"""Results of the functional forms: in which library, and whose memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fleet import Fleet

import corral

SIZE = 2


def _without_torch(rank, size):
    """Only rank 0 has torch: what it sends as tensors arrives elsewhere as NumPy's arrays."""
    if rank == 0:
        import torch
    assert ("torch" in sys.modules) is (rank == 0)

    def tensors():
        return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}

    for result in (
        corral.all_gather(tensors() if rank == 0 else np.zeros(1))[0],
        corral.broadcast(tensors() if rank == 0 else None, 0),
        corral.scatter([tensors() for _ in range(size)] if rank == 0 else None),
        corral.all_to_all([tensors() if rank == 0 else np.zeros(1)] * size)[0],
    ):
        assert type(result["a"]) is (torch.Tensor if rank == 0 else np.ndarray)
        assert result["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert str(result["b"].dtype).endswith("bfloat16")
        assert result["b"].tolist() == [1.0] * 3
    if rank == 0:
        corral.send(tensors(), 1)
    else:
        assert type(corral.recv(like="numpy")["b"]) is np.ndarray

    import ml_dtypes

    both = tensors() if rank == 0 else {"b": np.full(3, 2, ml_dtypes.bfloat16), "a": np.ones((2, 3), "f4")}
    total = corral.all_reduce(both)
    joined = corral.all_gather(both, cat=True)
    assert type(total["a"]) is type(joined["a"]) is (torch.Tensor if rank == 0 else np.ndarray)
    assert total["a"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert total["b"].tolist() == [3.0] * 3
    assert joined["b"].tolist() == [1, 1, 1, 2, 2, 2]
    assert ("torch" in sys.modules) is (rank == 0)
    mine = corral.gather(np.ones(2), 0, like="torch")  # only the destination needs the library
    assert ("torch" in sys.modules) is (rank == 0)
    assert rank == 1 or [type(each) for each in mine] == [torch.Tensor] * 2


@pytest.mark.only("shm", "mpi", "hybrid-mpi", "sockets")  # others have it anyway
def test_a_rank_without_torch():
    ranks = Fleet(SIZE)
    ranks(_without_torch)
    ranks.close()


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _like(rank, size):
    import jax
    import torch

    tree = {"a": np.full((2, 3), rank, "f4"), "n": 1}
    for like, kind in (("torch", torch.Tensor), ("jax", jax.Array), ("numpy", np.ndarray)):
        results = [
            *corral.all_gather(tree, like=like),
            corral.all_gather(tree["a"], cat=True, like=like),
            *corral.all_to_all([tree, tree], like=like),
            corral.broadcast(tree if rank == 0 else None, 0, like=like),
            corral.scatter([tree, tree] if rank == 0 else None, like=like),
            corral.all_reduce(tree, like=like),
        ]
        if rank == 0:
            results.append(corral.reduce(tree, like=like))
            corral.send(tree, 1)
        else:
            assert corral.reduce(tree, like=like) is None
            results.append(corral.recv(like=like))
        for result in results:
            assert isinstance(result["a"] if isinstance(result, dict) else result, kind)
    mixed = corral.all_gather(tree, like="torch" if rank == 0 else None)  # each as it likes
    assert isinstance(mixed[1]["a"], torch.Tensor if rank == 0 else np.ndarray)


def test_like(fleet):
    fleet(_like)


def _memory(rank, size):
    mine = np.full(4, rank)
    mine.flags.writeable = False
    everyone = corral.all_gather(mine)
    results = [*everyone, *corral.all_to_all([mine, mine]), corral.scatter([mine, mine] if rank == 0 else None)]
    results += [corral.all_reduce(mine), corral.all_gather(mine, cat=True)]
    for result in results:
        assert not np.shares_memory(result, mine)
        result[:] = 99
    assert mine.tolist() == [rank] * 4
    sent = {"a": mine}
    received = corral.broadcast(sent, 0)
    assert (received is sent) is (rank == 0)
    assert received["a"].tolist() == [0] * 4


def test_results_are_new(fleet):
    fleet(_memory)


def _real_tensordict(rank, size):
    import tensordict
    import torch

    td = tensordict.TensorDict({"a": torch.full((rank + 1, 2), rank), "in": {"b": torch.ones(rank + 1)}}, [rank + 1])
    for source, each in enumerate(corral.all_gather(td)):
        assert type(each) is tensordict.TensorDict
        assert each.batch_size == (source + 1,)
        assert (each["a"] == source).all()
    joined = corral.all_gather(td, cat=True)
    assert type(joined) is tensordict.TensorDict
    assert joined.batch_size == joined["in"].batch_size == (3,)
    assert joined["a"].tolist() == [[0, 0], [1, 1], [1, 1]]
    total = corral.all_reduce(tensordict.TensorDict({"a": torch.ones(2)}, []))
    assert total["a"].tolist() == [2.0, 2.0]


def test_the_package_tensordict(fleet):
    fleet(_real_tensordict)


def _alone(rank, size):
    tree = {"a": np.arange(3.0), "n": 2}
    results = [
        corral.gather(tree)[0],
        corral.all_gather(tree)[0],
        corral.broadcast(tree, 0),
        corral.scatter([tree]),
        corral.all_to_all([tree])[0],
        corral.all_reduce(tree, "avg"),
        corral.reduce(tree, "max"),
    ]
    for result in results:
        assert result["n"] == 2
        assert result["a"].tolist() == [0, 1, 2]


def test_one_rank():
    ranks = Fleet(1)
    ranks(_alone)
    ranks.close()
