"""The works that torch's functions return over corral, and their futures."""

from __future__ import annotations

import threading

import pytest
from torch_jobs import run_torch


def _futures(rank, size):
    import torch
    import torch.distributed as dist

    mine = torch.arange(5.0) + rank
    done = threading.Event()
    work = dist.all_reduce(mine, async_op=True)
    work.get_future().add_done_callback(lambda _: done.set())
    assert done.wait(20)  # nobody waits for the work itself
    (result,) = work.get_future().value()
    assert result is mine
    assert mine.tolist() == [size * i + sum(range(size)) for i in range(5)]
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is mine

    parts = [torch.empty(2) for _ in range(size)]
    chained = (
        dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True)
        .get_future()
        .then(lambda future: torch.cat(future.value()[0]).sum().item())
    )
    assert chained.wait() == 2 * sum(range(size))

    # A tensor that the engine cannot write where it lies is filled before the future completes.
    flipped = torch.zeros(3, 4, dtype=torch.complex64).conj()
    dist.broadcast(torch.view_as_real(flipped.conj()), 0, async_op=True).get_future().wait()
    numbers = (torch.arange(6.0).reshape(2, 3) * (rank == 0)).T
    dist.broadcast(numbers, 0, async_op=True).get_future().wait()
    assert numbers.T.tolist() == [[0, 1, 2], [3, 4, 5]]

    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
    assert all(work.wait() for work in reversed(works))
    assert work.get_future() is work.get_future()
    assert dist.barrier(async_op=True).wait()
    if rank == 0:
        value = torch.zeros(2)
        future = dist.irecv(value, 1).get_future()
        dist.all_reduce(torch.ones(1))  # what others do meanwhile does not depend on it
        dist.send(torch.ones(1), 1)
        assert future.wait()[0].tolist() == [4.0, 2.0]
    else:
        dist.all_reduce(torch.ones(1))
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
            dist.send(torch.tensor([4.0, 2.0]), 0)


@pytest.mark.parametrize("size", [2, 3])
def test_futures(size):
    run_torch(_futures, size)


def _failing(rank, size):
    import torch
    import torch.distributed as dist

    import corral

    work = dist.all_reduce(torch.ones(2 + rank), async_op=True)
    future = work.get_future()
    with pytest.raises(corral.MismatchError, match="rank 0 called all_reduce"):
        future.wait()
    with pytest.raises(corral.MismatchError, match="rank 0 called all_reduce"):
        work.wait()
    assert isinstance(work.exception(), corral.MismatchError)
    assert not work.is_success()
    with pytest.raises(corral.MismatchError, match=r"rank 0 called .*SUM.*rank 1 called .*MAX"):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)
    value = torch.ones(2)
    dist.all_reduce(value)  # the group stays usable
    assert value.tolist() == [size, size]


def test_what_does_not_fit_is_an_error_on_every_rank():
    run_torch(_failing, 2)
