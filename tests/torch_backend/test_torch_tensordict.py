"""Real TensorDicts of the tensordict library, over torch's groups of corral's backend."""

from __future__ import annotations

import pytest
from torch_jobs import run_torch

pytest.importorskip("tensordict")


def _td(rank, rows=3):
    import torch
    from tensordict import TensorDict

    base = torch.arange(rows * 4.0).reshape(rows, 4) + 100 * rank
    return TensorDict(
        {"observation": base, "nested": {"action": base[:, :1].long(), "done": base[:, 0] % 2 == 0}}, batch_size=[rows]
    )


def _equal(left, right):
    import torch

    return left.batch_size == right.batch_size and all(
        torch.equal(value, right[key]) for key, value in left.items(include_nested=True, leaves_only=True)
    )


def _own_methods(rank, size):
    import torch
    import torch.distributed as dist
    from tensordict import TensorDict

    # gather_and_stack
    rows = [_td(other) for other in range(size) if other != 0]
    if rank == 0:
        into = torch.zeros_like(torch.stack(rows))
        into.gather_and_stack(0)
        assert _equal(into, torch.stack(rows))
    else:
        assert _td(rank).gather_and_stack(0) is None
    # send and recv, and their like that do not wait
    if rank == 0:
        _td(5).send(1)
        for work in _td(6).isend(1, return_early=True):
            work.wait()
    elif rank == 1:
        into = torch.zeros_like(_td(5))
        into.recv(0)
        assert _equal(into, _td(5))
        for work in into.irecv(0, return_premature=True):
            work.wait()
        assert _equal(into, _td(6))
    # broadcast, init_remote and from_remote_init
    assert _equal((_td(2) if rank == 1 else TensorDict()).broadcast(1), _td(2))
    assert all(_equal(each, _td(other, other + 1)) for other, each in enumerate(_td(rank, rank + 1).all_gather()))
    if rank == 0:
        _td(8).init_remote(1)
    elif rank == 1:
        assert _equal(TensorDict.from_remote_init(0), _td(8))
    # reduce and all_reduce
    total, everywhere = _td(rank).select("observation"), _td(rank).select("observation")
    expected = sum(_td(other)["observation"] for other in range(size))
    total.reduce(0, op=dist.ReduceOp.SUM)
    everywhere.all_reduce()
    assert torch.equal(everywhere["observation"], expected)
    if rank == 0:
        assert torch.equal(total["observation"], expected)
    # consolidated, in one message
    if rank == 1:
        _td(3).consolidate().send(0)
    elif rank == 0:
        into = torch.zeros_like(_td(3)).consolidate()
        into.recv(1)
        assert _equal(into, _td(3))
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_its_own_methods(size):
    run_torch(_own_methods, size)


def _corral_functions(rank, size):
    import torch
    import torch.distributed as dist

    import corral

    group = dist.group.WORLD.corral
    rows = torch.stack([_td(other) for other in range(1, size)])
    if rank == 0:
        into = torch.zeros_like(rows)
        memory = into["observation"].data_ptr()
        assert corral.gather_and_stack(into, 0, group=group) is into
        assert into["observation"].data_ptr() == memory
        assert _equal(into, rows)
    else:
        assert corral.gather_and_stack(_td(rank), 0, group=group) is None
    everyone = corral.all_gather(_td(rank, rows=rank + 1), group=group)
    assert all(_equal(each, _td(other, rows=other + 1)) for other, each in enumerate(everyone))


def test_functions_of_corral_in_a_group_of_torch():
    run_torch(_corral_functions, 3)
