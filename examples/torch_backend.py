"""DistributedDataParallel over corral: a small network learns in which quarter of an image a spot is.

python examples/torch_backend.py
torchrun --nproc-per-node 3 examples/torch_backend.py
corral run -n 3 examples/torch_backend.py
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

import corral.integrations.torch  # noqa: F401  not needed where corral is installed: torch finds it

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "corral"  # gloo, to compare
STEPS = 150


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 4),
    )


def images(count, generator):
    """Noise with a bright spot in one quarter, and which quarter that is."""
    quarter = torch.randint(0, 4, (count,), generator=generator)
    pictures = torch.rand((count, 1, 16, 16), generator=generator)
    for picture, number in zip(pictures, quarter.tolist(), strict=True):
        row, column = (2 + torch.randint(0, 3, (2,), generator=generator)).tolist()
        row, column = row + 8 * (number // 2), column + 8 * (number % 2)
        picture[0, row : row + 2, column : column + 2] += 2
    return pictures, quarter


def main(rank, world_size):
    torch.set_num_threads(1)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)  # each rank has images of its own
    start = time.perf_counter()
    for _ in range(STEPS):
        pictures, quarter = images(32, generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), quarter).backward()  # gradients are averaged meanwhile
        optimizer.step()
    elapsed = time.perf_counter() - start

    pictures, quarter = images(200, generator)
    right = (model(pictures).argmax(1) == quarter).sum()
    dist.all_reduce(right)
    weights = [torch.empty_like(model.module[0].weight) for _ in range(world_size)]
    dist.all_gather(weights, model.module[0].weight.detach())
    assert all(torch.equal(each, weights[0]) for each in weights), "ranks have learned different things"
    if rank == 0:
        print(f"{world_size} ranks over {dist.get_backend()}: {right.item() / (200 * world_size):.0%} right", end=", ")
        print(f"{elapsed / STEPS * 1e3:.1f} ms a step")
    assert right.item() > 0.9 * 200 * world_size


def spawned(rank, world_size, meeting):
    dist.init_process_group(BACKEND, init_method=meeting, rank=rank, world_size=world_size)
    main(rank, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by torchrun, or by `corral run`
        dist.init_process_group(BACKEND)
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(spawned, (2, f"file://{folder}/meeting"), nprocs=2)
