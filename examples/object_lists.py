"""A coordinator gives each worker an order, and takes the results as they come.

python examples/object_lists.py
corral run -n 4 examples/object_lists.py
"""

import os

import numpy as np

import corral
import corral.distributed as dist


def main(rank, world_size):
    if rank != 0:
        order = [None, None]  # as long as the coordinator's list
        dist.recv_object_list(order, src=0)
        settings, start = order
        dist.send_object_list([{"worker": rank, "path": start + settings["step"] * np.arange(4)}], dst=0)
        return
    for worker in range(1, world_size):
        dist.send_object_list([{"step": 0.5}, np.full(4, float(worker))], dst=worker)
    for _ in range(1, world_size):
        result = [None]
        sender = dist.recv_object_list(result)  # from anyone, as there is no src
        assert result[0]["worker"] == sender
        print(f"worker {sender}: {result[0]['path']}")


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by `corral run`, or by torchrun
        dist.init_process_group("shm")
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        corral.launch(main, 4)
