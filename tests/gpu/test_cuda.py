"""Arrays in a GPU's memory, over every backend: all ranks share one GPU.

``CORRAL_TEST_DEVICE=cpu`` runs the same in host memory, to try the tests themselves where there is no GPU.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from ranks import run
from torch_jobs import run_torch

torch = pytest.importorskip("torch")

DEVICE = os.environ.get("CORRAL_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
on_every_backend = pytest.mark.also("gloo", "hybrid", "sockets")
DTYPES = [
    *(torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2),
]
SUMS = [torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


def _values(rank, shape=(3, 4), dtype=torch.float32, device=DEVICE):
    """Small whole numbers, which all dtypes have, different in each place and for each rank."""
    count = int(np.prod(shape))
    numbers = (torch.arange(count) * 3 + 5 * rank) % 7
    return numbers.reshape(shape).to(torch.float32).to(dtype).to(device)


def _same(left, right):
    """Whether two tensors are the same bit for bit, and on the same kind of device."""
    assert left.device.type == right.device.type == DEVICE
    left, right = (each.cpu().contiguous().view(torch.uint8) for each in (left, right))
    return torch.equal(left, right)


def _point_to_point(rank, size):
    import corral.distributed as dist

    following, before = (rank + 1) % size, (rank - 1) % size
    for dtype in DTYPES:
        for transposed in (False, True):
            mine, got = _values(rank, dtype=dtype), _values(9, dtype=dtype)
            if transposed:
                mine, got = mine.T.contiguous().T, got.T.contiguous().T
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, mine, following), dist.P2POp(dist.irecv, got, before)]
            )
            for work in works:
                work.wait()
            assert _same(got, _values(before, dtype=dtype)), dtype
    if rank == 0:
        got = torch.zeros(4, 3, device=DEVICE)
        sources = {dist.recv(got) for _ in range(size - 1)}
        assert sources == set(range(1, size))
    else:
        dist.send(_values(rank, (4, 3)), 0)


@on_every_backend
def test_point_to_point():
    run(_point_to_point, 3)


def _collectives(rank, size):
    import corral.distributed as dist

    every = [_values(other) for other in range(size)]
    got = every[1].clone() if rank == 1 else torch.zeros(3, 4, device=DEVICE)
    dist.broadcast(got, 1)
    assert _same(got, every[1])
    rows = torch.zeros(size, 4, 3, device=DEVICE).transpose(1, 2)  # strided rows of one tensor
    dist.gather(every[rank], list(rows) if rank == 2 else None, 2)
    if rank == 2:
        assert _same(rows, torch.stack(every))
    rows = torch.zeros(size, 3, 4, device=DEVICE)
    dist.all_gather(list(rows), every[rank])
    assert _same(rows, torch.stack(every))
    dist.all_gather_into_tensor(rows.zero_(), every[rank])
    assert _same(rows, torch.stack(every))
    got = torch.zeros(3, 4, device=DEVICE)
    dist.scatter(got, [each + 1 for each in every] if rank == 0 else None, 0)
    assert _same(got, every[rank] + 1)
    parts = [each + 10 * rank for each in every]
    dist.all_to_all(list(rows), parts)
    assert _same(rows, torch.stack([every[rank] + 10 * other for other in range(size)]))
    for dtype in SUMS:
        several = [_values(other, dtype=dtype) for other in range(size)]
        total = several[rank].clone()
        dist.all_reduce(total)
        assert _same(total, sum(several[1:], several[0])), dtype
        work = dist.all_reduce(several[rank].clone(), async_op=True)
        assert work.wait()
    part = torch.zeros(4, device=DEVICE)
    dist.reduce_scatter_tensor(part, _values(rank, (size, 4)), dist.ReduceOp.MAX)
    assert _same(part, torch.stack([_values(other, (size, 4)) for other in range(size)]).amax(0)[rank])


@on_every_backend
def test_collectives():
    run(_collectives, 3)


def _large(rank, size):
    import corral.distributed as dist

    count = 32 << 20  # 128 MiB of them
    numbers = (torch.arange(count, device=DEVICE) % 1_000_003).float()  # exact, and so are their sums
    mine = numbers + rank
    got = torch.zeros_like(mine)
    if rank:
        dist.send(mine, 0)
    else:
        dist.recv(got, 1)
        assert torch.equal(got, numbers + 1)
    dist.all_reduce(mine)
    assert torch.equal(mine, 2 * numbers + 1)


@on_every_backend
def test_large():
    run(_large, 2)


def _stack(rank, size):
    from corral import TensorDict

    rows = [_row(other) for other in range(size)]
    if rank == 1:
        td = TensorDict(
            {
                "observation": torch.zeros(size - 1, 5, 3, 4, device=DEVICE),
                "nested": {
                    "weights": torch.zeros(size - 1, 5, 6, device=DEVICE)[..., ::2],
                    "step": np.zeros((size - 1, 5)),
                },
            },
            batch_size=[size - 1, 5],
        )
        places = [td["observation"].data_ptr(), td["nested", "weights"].data_ptr()]
        assert td.gather_and_stack(1) is td
        assert [td["observation"].data_ptr(), td["nested", "weights"].data_ptr()] == places
        others = [row for other, row in enumerate(rows) if other != 1]
        assert _same(td["observation"], torch.stack([row["observation"] for row in others]).to(DEVICE))
        assert _same(
            td["nested", "weights"].contiguous(), torch.stack([row["nested"]["weights"] for row in others]).to(DEVICE)
        )
        assert np.array_equal(td["nested", "step"], np.stack([row["nested"]["step"] for row in others]))
    else:
        mine = rows[rank]
        if rank == 0:  # a worker without a GPU sends to a learner with one
            mine["observation"] = mine["observation"].numpy()
        else:
            mine["observation"] = mine["observation"].to(DEVICE).requires_grad_()
            mine["nested"]["weights"] = mine["nested"]["weights"].to(DEVICE)
        assert TensorDict(mine, batch_size=[5]).gather_and_stack(1) is None


def _row(rank):
    return {
        "observation": _values(rank, (5, 3, 4), device="cpu"),
        "nested": {"weights": _values(rank, (5, 3), device="cpu"), "step": np.arange(5.0) + rank},
    }


@on_every_backend
def test_a_batch_on_the_gpu_is_written_in_place():
    run(_stack, 3)


def _does_not_fit(rank, size):
    import corral
    import corral.distributed as dist

    into = torch.full((size - 1, 3), 7.0, device=DEVICE)
    tree = {"a": into} if rank == 0 else {"a": torch.ones(2 + rank, device=DEVICE)}
    with pytest.raises(corral.MismatchError):
        corral.gather_and_stack(tree, 0)
    assert (into == 7).all()
    with pytest.raises(corral.MismatchError):
        dist.all_reduce(torch.ones(2 + rank, device=DEVICE))
    expanded = torch.zeros(1, device=DEVICE).expand(3)
    with pytest.raises(ValueError, match="share memory"):
        dist.recv(expanded, (rank + 1) % size)
    dist.barrier()


@on_every_backend
def test_what_does_not_fit_is_an_error_on_all():
    run(_does_not_fit, 3)


def _lost(rank, size):
    import corral
    import corral.distributed as dist

    ones = torch.ones(1 << 20, device=DEVICE)
    dist.all_reduce(ones)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(corral.PeerLostError, match="rank 2"):
        dist.all_reduce(ones)


@on_every_backend
def test_a_rank_that_is_killed_with_its_gpu_in_use():
    run(_lost, 3, exits={2: -signal.SIGKILL})


def _streams(rank, size):
    """What a stream has yet to compute is waited for before it is sent."""
    import corral.distributed as dist

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        value = torch.full((2048, 2048), 1.0 / 2048, device=DEVICE)
        for _ in range(50):
            value = value @ torch.full_like(value, 1.0 / 2048)
        value.fill_(rank + 1.0)
        got = torch.zeros_like(value)
        if rank:
            dist.send(value, 0)
        else:
            dist.recv(got, 1)
            assert (got * 2).sum().item() == 4.0 * 2048 * 2048  # in the same stream


@pytest.mark.skipif(DEVICE != "cuda", reason="it is about CUDA's streams")
@on_every_backend
def test_streams():
    run(_streams, 2)


def _objects(rank, size):
    import corral.distributed as dist

    gathered = [None] * size
    dist.all_gather_object(gathered, {"weights": _values(rank), "rank": rank})
    for other, each in enumerate(gathered):
        assert each["rank"] == other
        assert _same(each["weights"], _values(other))


@on_every_backend
def test_objects_keep_the_device():
    run(_objects, 2)


def _theirs(rank, size):
    import tensordict

    import corral

    def td(other):
        return tensordict.TensorDict({"a": _values(other), "b": {"c": _values(other, (3,), torch.int64)}}, [3])

    into = torch.stack([td(0)] * (size - 1)).zero_() if rank == 0 else td(rank)
    corral.gather_and_stack(into, 0)
    if rank == 0:
        expected = torch.stack([td(other) for other in range(1, size)])
        assert _same(into["a"], expected["a"])
        assert _same(into["b", "c"], expected["b", "c"])


@on_every_backend
def test_tensordicts_of_tensordict():
    pytest.importorskip("tensordict")
    run(_theirs, 3)


def _cupy(rank, size):
    import cupy

    import corral.distributed as dist

    mine, got = cupy.arange(12, dtype="f4").reshape(3, 4) + rank, cupy.zeros((4, 3), "f4").T
    dist.all_reduce(mine)
    assert (mine == size * cupy.arange(12, dtype="f4").reshape(3, 4) + sum(range(size))).all()
    if rank == 0:
        dist.recv(got, 1)
        assert (got == 5).all()
    elif rank == 1:
        dist.send(torch.full((3, 4), 5.0, device=DEVICE), 0)  # of another library


@on_every_backend
def test_cupy():
    pytest.importorskip("cupy")
    run(_cupy, 2)


def _named(rank, size, name):
    import corral.distributed as dist

    group = dist.new_group(backend=name)
    value = _values(rank)
    dist.all_reduce(value, group=group)
    assert _same(value, sum((_values(other) for other in range(1, size)), _values(0)))


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this build of torch has no NCCL")
@pytest.mark.parametrize("name", ["nccl", "cpu:gloo,cuda:nccl"])
def test_nccl_by_name(name):
    run(_named, 2, name)


def _in_torch(rank, size):
    """Torch's own group of two backends: CPU tensors by corral, CUDA tensors by NCCL, or staged where there is none."""
    import torch.distributed as dist

    for device in ("cpu", DEVICE):
        value = _values(rank, device=device)
        dist.all_reduce(value)
        assert value.device.type == device
        assert torch.equal(value.cpu(), sum(_values(other, device="cpu") for other in range(size)))
    rows = [torch.zeros(3, 4, device=DEVICE) for _ in range(size)]
    dist.all_gather(rows, _values(rank))
    assert _same(torch.stack(rows), torch.stack([_values(other) for other in range(size)]))


def test_torchs_backend_stages():
    run_torch(_in_torch, 2)


def _beside_nccl(rank, size):
    torch.cuda.set_device(rank)
    _in_torch(rank, size)
    model = torch.nn.Linear(4, 2).to(DEVICE)
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    parallel(_values(rank)).sum().backward()
    for parameter in model.parameters():
        rows = [torch.empty_like(parameter) for _ in range(size)]
        torch.distributed.all_gather(rows, parameter.grad)
        assert all(torch.equal(row, rows[0]) for row in rows)


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this build of torch has no NCCL")
def test_torchs_group_of_corral_and_nccl():
    # NCCL allows a GPU to one rank.
    run_torch(_beside_nccl, min(torch.cuda.device_count(), 4), backend="cpu:corral,cuda:nccl")
