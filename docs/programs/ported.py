"""The largest eigenvalue of a matrix whose rows the ranks share, by power iteration."""

import numpy as np

import corral.distributed as dist


def largest_eigenvalue(steps=200):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = slice(2 * rank, 2 * rank + 2)
    rows = np.diag(np.arange(1.0, 2 * size + 1))[mine]
    x, y = np.ones(2 * size), np.empty(2 * size)
    for _ in range(steps):
        dist.all_gather_into_tensor(y, rows @ x)  # was: comm.Allgather(rows @ x, y)
        x = y / np.linalg.norm(y)
    total = np.array([x[mine] @ (rows @ x)])
    dist.reduce(total, dst=0)  # was: comm.Reduce(part, total, op=MPI.SUM, root=0)
    return round(total.item(), 6) if rank == 0 else None


def main(rank, size):
    return largest_eigenvalue()


if __name__ == "__main__":
    dist.init_process_group()  # was: comm = MPI.COMM_WORLD
    found = largest_eigenvalue()
    if found is not None:
        print(found)
