"""Autograd learns of tensors that were received into, as of any other write in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fleet import Fleet

import corral
import corral.distributed as dist


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(2)
    yield ranks
    ranks.close()


def _receives(rank, size):
    """Every way to receive raises the version of what it writes; a backward pass that needed the old values fails."""
    ones = torch.ones(3)

    def batch(x):
        op = dist.P2POp(dist.irecv, x, 1) if rank == 0 else dist.P2POp(dist.isend, ones, 0)
        dist.batch_isend_irecv([op])[0].wait()

    ways = {
        "recv": lambda x: dist.recv(x, 1) if rank == 0 else dist.send(ones, 0),
        "irecv": lambda x: (dist.irecv(x, 1) if rank == 0 else dist.isend(ones, 0)).wait(),
        "batch": batch,
        "gather": lambda x: dist.gather(ones, [x, torch.zeros(3)] if rank == 0 else None),
        "gather, asynchronously": lambda x: dist.gather(
            ones, [x, torch.zeros(3)] if rank == 0 else None, async_op=True
        ).wait(),
        "stack": lambda x: corral.gather_and_stack({"a": x[None] if rank == 0 else ones}, 0),
        "stack, after agreement": lambda x: corral.gather_and_stack({"a": x[None] if rank == 0 else ones.double()}, 0),
        "a TensorDict": lambda x: (
            corral.TensorDict(a=x[None], batch_size=[1]) if rank == 0 else corral.TensorDict(a=ones)
        ).gather_and_stack(0),
    }
    for name, way in ways.items():
        plain, weight = torch.zeros(3), torch.zeros(3, requires_grad=True)
        product = plain * weight  # saves `plain`
        before = plain._version
        way(plain)
        way(weight.detach())
        if rank == 0:
            assert plain.tolist() == weight.tolist() == [1, 1, 1], name
            assert plain._version > before, name
            assert weight._version > 0, name
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.sum().backward()
        parameter = torch.nn.Parameter(torch.zeros(3))
        way(parameter if "stack" not in name and "Dict" not in name else parameter.detach())
        assert (parameter._version > 0) is (rank == 0), name
        with torch.inference_mode():  # such a tensor has no version
            way(torch.zeros(3))


def test_every_way_to_receive(fleet):
    fleet(_receives)


def _others(rank, size):
    """Strided tensors, through scratch memory, and dtypes that the engine does not know."""
    whole = torch.zeros(4, 3)
    bits = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    if rank == 1:
        dist.send(np.ones(4, "f4"), 0)
        dist.send(bits, 0)
        return
    column, before = whole[:, 1], whole._version
    dist.recv(column, 1)
    assert whole._version > before  # shared by all views
    assert whole.sum() == 4
    before = bits._version
    dist.recv(bits, 1)
    assert bits._version > before


def test_views_and_other_dtypes(fleet):
    fleet(_others)


def _unwritten(rank, size):
    """What is only sent, or not received after all, keeps its version."""
    x = torch.zeros(3)
    if rank == 0:
        with pytest.raises(dist.MismatchError):
            dist.recv(x, 1)
        dist.recv(np.zeros(3, "f4"), 1)
    else:
        dist.send(torch.zeros(4), 0)
        dist.send(x, 0)
    with pytest.raises(dist.MismatchError):
        dist.gather(torch.zeros(3 + rank), [x, torch.zeros(3)] if rank == 0 else None)
    assert x._version == 0


def test_what_is_not_written_keeps_its_version(fleet):
    fleet(_unwritten)
