"""What the guide runs on a few ranks; each function returns what its rank has in the end."""

import asyncio

import numpy as np

import corral.distributed as dist


def broadcast(rank, size):
    weights = np.arange(3.0) if rank == 0 else np.empty(3)
    dist.broadcast(weights, src=0)
    return weights.tolist()


def scatter(rank, size):
    rows = [np.full(2, 10.0 * r) for r in range(size)] if rank == 0 else None
    row = np.empty(2)
    dist.scatter(row, rows, src=0)
    return row.tolist()


def gather_uneven(rank, size):
    mine = np.full(rank + 1, rank)
    rows = [np.empty(r + 1, int) for r in range(size)] if rank == 2 else None
    dist.gather(mine, rows, dst=2)
    return rows and [row.tolist() for row in rows]


def all_gather(rank, size):
    table = np.empty((2, size), int)
    dist.all_gather(list(table.T), np.array([rank, rank**2]))  # one column from each rank
    return table.tolist()


def all_to_all_single(rank, size):
    sent = np.arange(size) + 10 * rank
    received = np.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received.tolist()


def uneven_rows(rank, size):
    sent = np.repeat(np.arange(3), [1, 2, 3]) + 10 * rank  # one row for rank 0, two for rank 1, three for rank 2
    received = np.empty(size * (rank + 1), int)
    dist.all_to_all_single(received, sent, [rank + 1] * size, [1, 2, 3])
    return received.tolist()


def all_reduce(rank, size):
    gradient = np.array([rank, 1.0])
    dist.all_reduce(gradient, dist.ReduceOp.AVG)
    return gradient.tolist()


def reduce_scatter(rank, size):
    gradients = np.arange(2.0 * size)  # two elements for each rank
    shard = np.empty(2)
    dist.reduce_scatter_tensor(shard, gradients)
    return shard.tolist()


def coalesced(rank, size):
    weights, steps = np.full((2, 2), float(rank)), np.array([rank])
    dist.all_reduce_coalesced([weights, steps], dist.ReduceOp.MAX)
    return weights.tolist(), steps.tolist()


def overlapping(rank, size):
    gradient = np.ones(1_000_000)
    work = dist.all_reduce(gradient, async_op=True)
    loss = 0.5 * rank  # something else, while the gradient is on its way
    work.wait()
    return loss, gradient[0].item()


async def _both(first, second):
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    for work in works:
        await work


def awaited(rank, size):
    first, second = np.ones(3), np.array(rank)
    asyncio.run(_both(first, second))
    return first.tolist(), second.item()


def lines(rank, size):
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    value = np.array([rank])
    dist.all_reduce(value, group=mesh.get_group("shard"))  # of ranks 0 and 1, and of ranks 2 and 3
    return value.item()


def refused(rank, size):
    values = np.zeros(3)
    if rank == 1:
        values.flags.writeable = False  # as an array from np.broadcast_to is
    try:
        dist.all_reduce(values)
    except ValueError as error:  # a MismatchError is one, too
        said = type(error).__name__
    dist.barrier()  # all are in step
    return said


def found_late(rank, size):
    values, failed = np.zeros(3), []
    if rank == 0:
        dist.broadcast(values, src=0)  # sends to rank 1, and is through
        dist.send(values, dst=1)
        dist.recv(values, src=1)
    else:
        dist.recv(values, src=0)
        try:
            dist.broadcast(values, src=1)  # a mistake: the source is rank 0
        except dist.MismatchError:
            failed.append("broadcast")
        dist.send(values, dst=0)
    for name in ("first barrier", "second barrier"):
        try:
            dist.barrier()
        except dist.MismatchError:
            failed.append(name)
    return failed


def survivors(rank, size):
    if rank == 1:
        return "left early"
    total = np.array([1])
    try:
        dist.all_reduce(total)
    except dist.PeerLostError as error:
        dist.shrink_group(list(error.ranks))
        total[:] = 1
        dist.all_reduce(total)
    return f"rank {rank} is rank {dist.get_rank()} of {dist.get_world_size()}, total {total[0]}"
