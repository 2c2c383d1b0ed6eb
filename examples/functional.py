"""Trees that no other rank knows travel in one call each, and come back as results.

python examples/functional.py
corral run -n 4 examples/functional.py
"""

import os

import numpy as np

import corral
import corral.distributed as dist


def main(rank, world_size):
    # The learner's parameters reach workers that know neither their names nor their shapes.
    parameters = {"layers": [np.ones((4, 8)), np.ones((8, 2))], "step": 7} if rank == 0 else None
    parameters = corral.broadcast(parameters, src=0)
    assert parameters["layers"][1].shape == (8, 2)

    # Each rank gets a shard of its own length, and gives every other one a part of it.
    shards = [{"rows": np.arange(float(3 + i))} for i in range(world_size)] if rank == 0 else None
    shard = corral.scatter(shards, src=0)
    parts = corral.all_to_all([{"rows": shard["rows"][i::world_size]} for i in range(world_size)])
    mine = np.concatenate([part["rows"] for part in parts])

    # Rows of any number from everyone, and sums of whole trees.
    everything = corral.all_gather({"rows": mine}, cat=True)
    statistics = corral.all_reduce({"rows": len(mine), "sum": mine.sum()})
    assert statistics["rows"] == len(everything["rows"]) == sum(3 + i for i in range(world_size))
    assert np.isclose(statistics["sum"], everything["rows"].sum())

    # From one to another: the receiver need not even know who sends.
    if rank == 1:
        corral.send({"best": everything["rows"].max(), "from": rank}, dst=0)
    elif rank == 0 and world_size > 1:
        print(corral.recv())


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by `corral run`, or by torchrun
        dist.init_process_group("shm")
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        corral.launch(main, 4)
