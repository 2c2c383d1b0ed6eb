"""Many collectives under way at once, more than the rings hold: each result is as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist

BUCKETS = (36864, 64, 4096, 64, 8192, 512, 16384, 128)


def _buckets(rank, size, order):
    wrong = 0
    for step in range(40):
        arrays = [np.arange(n, dtype="f4") % 97 + rank + step for n in BUCKETS * 3]
        works = [dist.all_reduce(array, async_op=True) for array in arrays]
        for work in works if order == "first" else works[::-1]:
            work.wait()
        for array in arrays:
            wrong += not np.array_equal(array, sum(np.arange(array.size) % 97 + r + step for r in range(size)))
    return wrong


@pytest.mark.parametrize("direct", ["1", "0"])
@pytest.mark.parametrize(("size", "order"), [(2, "first"), (3, "last"), (4, "first")])
def test_all_reduces(size, order, direct):
    assert run(_buckets, size, order, environment={"CORRAL_SHM_DIRECT": direct}) == [0] * size


def _behind_messages(rank, size):
    """A small all_reduce whose parts wait behind other messages in the rings."""
    wrong = 0
    left, right = (rank - 1) % size, (rank + 1) % size
    for step in range(60):
        sent = [np.full(8000, 10.0 * rank + i) for i in range(4)]
        got = [np.empty(8000) for _ in sent]
        works = [dist.isend(array, right, tag=i) for i, array in enumerate(sent)]
        works += [dist.irecv(array, left, tag=i) for i, array in enumerate(got)]
        first = np.full(8000, float(rank))
        works.append(dist.all_reduce(first, async_op=True))
        small = np.arange(10.0) + rank + step
        dist.all_reduce(small, op=dist.ReduceOp.MAX)
        for work in works:
            work.wait()
        wrong += not np.array_equal(small, np.arange(10.0) + size - 1 + step)
        wrong += not (first == sum(range(size))).all()
        wrong += any((array != 10.0 * left + i).any() for i, array in enumerate(got))
    return wrong


@pytest.mark.also("sockets")
@pytest.mark.parametrize("size", [2, 3])
def test_a_small_one_behind_messages(size):
    assert run(_behind_messages, size) == [0] * size


def _factors(rank, size):
    for count in (3, 300_000):
        total = np.arange(count, dtype="f8")
        dist.all_reduce(total, dist.ReduceOp.PREMUL_SUM(rank * 0.5))
        assert (total == np.arange(count) * sum(r * 0.5 for r in range(size))).all()
        part = np.empty(count)
        dist.reduce_scatter_tensor(
            part, np.tile(np.arange(count, dtype="f8"), size) + rank, dist.ReduceOp.PREMUL_SUM(rank + 1.0)
        )
        assert (part == sum((np.arange(count) + r) * (r + 1.0) for r in range(size))).all()
        root = np.full(count, 2.0)
        dist.reduce(root, size - 1, dist.ReduceOp.PREMUL_SUM(3.0 if rank else 0.0))
        assert (root == (6.0 * (size - 1) if rank == size - 1 else 2.0)).all()


@pytest.mark.also("sockets")
@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_multiplies_by_its_own_factor(size):
    run(_factors, size)


def _late_rank(rank, size):
    if rank == 0:
        dist.recv(np.empty(1), 1)  # until the others have given up
        with pytest.raises(dist.DistTimeoutError, match=r"gave up .* its timeout passed"):
            dist.barrier()
    else:
        with pytest.raises(dist.DistTimeoutError):
            dist.barrier(timeout=0.2)
        if rank == 1:
            dist.send(np.empty(1), 0)
    dist.barrier()


@pytest.mark.also("sockets")
@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_comes_after_the_others_have_given_up_fails_too(size):
    run(_late_rank, size)


def _refusing(rank, size):
    import corral

    calls = [
        lambda: corral.gather_and_stack(None if rank == 0 else np.ones(2), dst=99 if rank == 1 else 0),
        lambda: dist.new_group([0, 99] if rank == 1 else [0, 1]),
        lambda: dist.split_group(split_ranks=[[0, 9]] if rank == 1 else [[0, 1]]),
        lambda: dist.new_subgroups(7 if rank == 1 else 1),
        lambda: dist.new_subgroups_by_enumeration([[0], [0]] if rank == 1 else [[0], [1]]),
        lambda: dist.all_gather_object([None] * size, _Exits() if rank == 1 else 1),
    ]
    for number, call in enumerate(calls):
        with pytest.raises((ValueError, SystemExit) if rank == 1 else dist.DistBackendError):
            call()
        found = [None] * size
        dist.all_gather_object(found, (number, rank))
        assert found == [(number, r) for r in range(size)]
        made = dist.new_group(range(size))
        dist.barrier(made)


class _Exits:
    def __reduce__(self):
        raise SystemExit(3)


@pytest.mark.also("sockets")
@pytest.mark.parametrize("size", [2, 3])
def test_whatever_is_refused_keeps_its_place(size):
    run(_refusing, size)
