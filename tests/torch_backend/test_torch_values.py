"""What torch's functions give over corral: every value that gloo gives."""

from __future__ import annotations

import itertools

import pytest
from test_against_gloo import Program, both_arguments, check_bits
from torch_jobs import run_torch

STEPS = 600


def _programs(rank, size):
    """The random calls that corral.distributed is compared by, made through torch on both sides."""
    import torch
    import torch.distributed as dist

    orders = [list(range(size)), list(range(size))[::-1], [size - 1, 0]]
    groups = [
        [dist.new_group(ranks, backend=backend, sort_ranks=False) for backend in ("corral", "gloo")] for ranks in orders
    ]
    compared = 0
    for step in range(STEPS):
        program = Program(step, orders)
        if rank not in program.ranks:
            continue
        me = program.ranks.index(rank)
        (ours, ours_filled), (theirs, theirs_filled) = both_arguments(torch, program, me)
        our_group, their_group = groups[program.group]
        keywords = program.keywords()
        op = {"op": getattr(dist.ReduceOp, program.op)} if "reduce" in program.name else {}
        call = getattr(dist, program.name)
        work = call(*ours, group=our_group, async_op=program.asynchronous, **keywords, **op)
        call(*theirs, group=their_group, **keywords, **op)
        assert (work is not None) == program.asynchronous
        if work is not None:
            work.wait()
        for actual, expected in zip(ours_filled, theirs_filled, strict=True):
            check_bits(torch, program, actual, expected)
            compared += 1
    return compared


@pytest.mark.parametrize("size", [2, 3])
def test_random_programs(size):
    compared = run_torch(_programs, size)
    assert min(compared) > STEPS // 2


SUMMED = [
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
REFUSED_BY_GLOO = {"int16", "complex64", "complex128"}  # whole or in part


def _distinct(torch, dtype, rank, count=211):
    """Numbers that differ from place to place and from rank to rank."""
    order = torch.Generator().manual_seed(rank)
    numbers = torch.randperm(count, generator=order) % 100 + 1
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.double().flip(0)).to(dtype)
    return numbers.to(dtype)


def _all_reduce(rank, size):
    import torch
    import torch.distributed as dist

    gloo = dist.new_group(backend="gloo")
    compared = set()
    for name, op in itertools.product(SUMMED, OPS):
        dtype = getattr(torch, name)
        if (dtype.is_floating_point and op[0] == "B") or (dtype.is_complex and op not in ("SUM", "AVG")):
            continue
        every = [_distinct(torch, dtype, other) for other in range(size)]
        ours, theirs = every[rank].clone(), every[rank].clone()
        dist.all_reduce(ours, getattr(dist.ReduceOp, op))
        if op == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
            expected = (torch.stack(every).to(dtype).sum(0, dtype=dtype) / size).to(dtype)
        elif name in REFUSED_BY_GLOO and not (dtype.is_complex and op == "SUM"):
            stack = torch.stack(every)
            folds = {
                "SUM": lambda s: s.sum(0, dtype=s.dtype),
                "AVG": lambda s: s.mean(0),
                "PRODUCT": lambda s: s.prod(0, dtype=s.dtype),
                "MIN": lambda s: s.amin(0),
                "MAX": lambda s: s.amax(0),
                "BAND": lambda s: s[0] & s[1],
                "BOR": lambda s: s[0] | s[1],
                "BXOR": lambda s: s[0] ^ s[1],
            }
            expected = folds[op](stack)
        else:
            dist.all_reduce(theirs, getattr(dist.ReduceOp, op), group=gloo)
            expected = theirs
        assert torch.equal(ours, expected), (name, op, ours, expected)
        compared.add((name, op))
    return len(compared)


def test_all_reduce_of_each_dtype_and_op():
    assert run_torch(_all_reduce, 2) == [2 * 2 + 5 * 8 + 4 * 5] * 2


def _premul(rank, size):
    import torch
    import torch.distributed as dist

    every = [_distinct(torch, torch.float64, other) for other in range(size)]
    mine = every[rank].clone()
    dist.all_reduce(mine, dist._make_nccl_premul_sum(rank + 0.5))
    assert torch.equal(mine, sum(each * (other + 0.5) for other, each in enumerate(every)))
    part = torch.empty(5, dtype=torch.float64)
    dist.reduce_scatter_single(part, every[rank][: 5 * size], dist._make_nccl_premul_sum(2.0))
    assert torch.equal(part, 2 * sum(every)[5 * rank : 5 * rank + 5])


def test_factors():
    run_torch(_premul, 3)


def _sparse(rank, size):
    import torch
    import torch.distributed as dist

    gloo = dist.new_group(backend="gloo")
    for dense, count in ((0, 3 * rank), (1, 4), (0, 0)):
        shape, place = (7, 5), torch.Generator().manual_seed(10 * rank + dense)
        indices = torch.randint(0, 5, (2 - dense, count), generator=place)
        values = torch.rand((count, *shape[2 - dense :]), generator=place, dtype=torch.float64)
        mine = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
        ours, theirs = mine.clone(), mine.clone()
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo)
        assert ours.is_sparse
        assert torch.equal(ours.to_dense(), theirs.to_dense())
    with pytest.raises((ValueError, RuntimeError), match="sparse"):
        dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX)
    dist.barrier()


def test_sparse_tensors():
    run_torch(_sparse, 3)


def _mismatched_sparse(rank, size):
    import torch
    import torch.distributed as dist

    with pytest.raises(RuntimeError, match=r"sparse tensors differ in shape: .*rank 0: \[2, 2\].*rank 1: \[3, 3\]"):
        dist.all_reduce(torch.eye(2 + rank).to_sparse())
    dist.barrier()


def test_sparse_tensors_of_different_shapes():
    run_torch(_mismatched_sparse, 2)


def _point_to_point(rank, size):
    import torch
    import torch.distributed as dist

    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.int64, torch.bfloat16, torch.complex64, torch.bool, torch.float8_e4m3fn):
        every = [torch.rand(6, 4, generator=torch.Generator().manual_seed(other)) for other in range(size)]
        every = [(each > 0.5) if dtype is torch.bool else (100 * each).to(dtype) for each in every]
        got = torch.zeros(4, 6, dtype=dtype).T  # received into as it is
        works = [dist.irecv(got, left, tag=3), dist.isend(every[rank], right, tag=3)]
        for work in works:
            work.wait()
        assert torch.equal(got.contiguous().view(torch.uint8), every[left].view(torch.uint8))
    # Tags, not order, match.
    first, second = torch.zeros(2), torch.zeros(2)
    sends = [dist.isend(torch.tensor([1.0, rank]), right, tag=1), dist.isend(torch.tensor([2.0, rank]), right, tag=2)]
    dist.recv(second, left, tag=2)
    dist.recv(first, left, tag=1)
    assert first.tolist() == [1.0, left]
    assert second.tolist() == [2.0, left]
    # From anyone.
    if rank == 0:
        seen = {}
        for _ in range(size - 1):
            value = torch.zeros(1)
            source = dist.recv(value)
            seen[source] = value.item()
        assert seen == {other: other * 1.5 for other in range(1, size)}
    else:
        dist.send(torch.tensor([rank * 1.5]), 0)
    if rank == 0:
        value = torch.zeros(1)
        work = dist.irecv(value, tag=9)
        work.wait()
        assert work._source_rank() == value.item() == 1
    elif rank == 1:
        dist.send(torch.tensor([1.0]), 0, tag=9)
    big = torch.full((300_000,), float(rank))
    other = torch.empty_like(big)
    ops = [dist.P2POp(dist.isend, big, right, tag=4), dist.P2POp(dist.irecv, other, left, tag=4)]
    for work in dist.batch_isend_irecv(ops if rank else ops[::-1]):
        work.wait()
    assert torch.equal(other, torch.full_like(big, float(left)))
    for work in sends:
        work.wait()


@pytest.mark.parametrize("size", [2, 4])
def test_point_to_point(size):
    run_torch(_point_to_point, size)


def _objects(rank, size):
    import torch.distributed as dist

    gloo = dist.new_group(backend="gloo")
    mine = {"rank": rank, "text": "x" * (1000 * rank), "nested": [1, (2.5, None)], "raises": ValueError}
    results = []
    for group in (None, gloo):
        everyone, at_root = [None] * size, [None] * size if rank == 1 else None
        dist.all_gather_object(everyone, mine, group=group)
        dist.gather_object(mine, at_root, dst=1, group=group)
        told = [mine, rank] if rank == 0 else [None, None]
        dist.broadcast_object_list(told, src=0, group=group)
        mine_of = [None]
        dist.scatter_object_list(mine_of, [{"for": i} for i in range(size)] if rank == 1 else None, src=1, group=group)
        passed = ["ball", rank]
        if rank == 0:
            dist.send_object_list(passed, dst=1, group=group)
        elif rank == 1:
            dist.recv_object_list(passed, src=0, group=group)
        results.append((everyone, at_root, told, mine_of, passed))
    assert results[0] == results[1]
    assert results[0][0][1]["rank"] == 1


def test_objects():
    run_torch(_objects, 3)


def _coalesced(rank, size):
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    every = [_distinct(torch, torch.float32, other, 6) for other in range(size)]
    a, b = every[rank].clone(), every[rank].flip(0)
    with _coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    assert torch.equal(a, sum(every))
    assert torch.equal(b, sum(every).flip(0))
    gathered = [torch.empty(size * 6), torch.empty(size, 3)]
    with _coalescing_manager(async_ops=True) as manager:
        dist.all_gather_single(gathered[0], every[rank])
        dist.all_gather_single(gathered[1], every[rank][:3])
    manager.wait()
    assert torch.equal(gathered[0], torch.cat(every))
    assert torch.equal(gathered[1], torch.stack(every)[:, :3])
    parts = [torch.empty(2), torch.empty(1)]
    with _coalescing_manager():
        dist.reduce_scatter_single(parts[0], every[rank][: 2 * size])
        dist.reduce_scatter_single(parts[1], every[rank][:size])
    assert torch.equal(parts[0], sum(every)[2 * rank : 2 * rank + 2])
    assert torch.equal(parts[1], sum(every)[rank : rank + 1])
    received = torch.empty(6)
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(every[rank], (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    manager.wait()
    assert torch.equal(received, every[rank - 1])


def test_coalesced():
    run_torch(_coalesced, 3)


def _functional(rank, size):
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    every = [_distinct(torch, torch.float32, other, 6) for other in range(size)]
    world = dist.group.WORLD
    assert torch.equal(functional.all_reduce(every[rank], "sum", world), sum(every))
    assert torch.equal(functional.all_gather_tensor(every[rank], 0, world), torch.cat(every))
    assert torch.equal(functional.reduce_scatter_tensor(every[rank], "sum", 0, world), sum(every).chunk(size)[rank])
    assert torch.equal(functional.broadcast(every[rank], 1, world), every[1])
    split = [6 // size] * size
    expected = torch.cat([each.chunk(size)[rank] for each in every])
    assert torch.equal(functional.all_to_all_single(every[rank], split, split, world), expected)
    several = functional.all_reduce_coalesced([every[rank], every[rank][:2]], "max", world)
    assert torch.equal(several[1], torch.stack(every)[:, :2].amax(0))


def test_functional_collectives():
    run_torch(_functional, 3)


def _views(rank, size):
    """Tensors that came of one that requires grad, all at once, can still be used after they were written."""
    import torch
    import torch.distributed as dist

    ones = torch.ones(3)
    writes = {
        "recv": lambda x: dist.recv(x, 1) if rank == 0 else dist.send(ones, 0),
        "recv from anyone": lambda x: dist.recv(x) if rank == 0 else dist.send(ones, 0),
        "broadcast": lambda x: dist.broadcast(x if rank == 0 else ones.clone(), 1),
        "broadcast, asynchronously": lambda x: dist.broadcast(x if rank == 0 else ones, 1, async_op=True).wait(),
        "all_reduce": lambda x: dist.all_reduce(x if rank == 0 else ones.clone()),
        "reduce": lambda x: dist.reduce(x if rank == 0 else ones.clone(), 0),
        "gather": lambda x: dist.gather(ones, [x, torch.zeros(3)] if rank == 0 else None),
        "scatter": lambda x: dist.scatter(x, [ones, ones] if rank == 1 else None, src=1),
        "all_gather": lambda x: dist.all_gather([x, torch.zeros(3)], ones),
        "all_to_all": lambda x: dist.all_to_all([x, torch.zeros(3)], [ones, ones]),
    }
    for name, write in writes.items():
        whole = torch.zeros(2, 3, requires_grad=True) * 1
        row, other = whole.unbind()
        write(row)
        assert (row.clone().tolist() == [1, 1, 1]) or rank == 1, name
        assert other.clone().tolist() == [0, 0, 0], name
        assert whole.clone()[1].tolist() == [0, 0, 0], name
    parameter = torch.zeros(3, requires_grad=True)
    product = parameter * parameter
    with torch.no_grad():
        dist.all_reduce(parameter)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # nobody hands out its views
        product.sum().backward()


def test_views_that_autograd_watches():
    run_torch(_views, 2)
