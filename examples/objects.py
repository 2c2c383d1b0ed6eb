"""Workers report plain Python objects, arrays inside; nothing here is pickled.

python examples/objects.py
corral run -n 4 examples/objects.py
"""

import os

import numpy as np

import corral
import corral.distributed as dist


def main(rank, world_size):
    report = {
        "worker": rank,
        "environment": "CartPole-v1",
        "returns": np.linspace(0, 10 * rank, 3 + rank),  # objects need not be of one size
    }
    reports = [None] * world_size if rank == 0 else None
    dist.gather_object(report, reports, dst=0)
    if rank == 0:
        assert [each["worker"] for each in reports] == list(range(world_size))
        for each in reports:
            print(f"worker {each['worker']}: {len(each['returns'])} returns, best {each['returns'].max():g}")


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by `corral run`, or by torchrun
        dist.init_process_group("shm")
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        corral.launch(main, 4)
