"""TensorDicts that move by their methods: one call, one operation, for all leaves.

python examples/tensordicts.py
corral run -n 4 examples/tensordicts.py
"""

import os

import numpy as np

import corral
import corral.distributed as dist
from corral import TensorDict


def main(rank, world_size):
    # Nobody but rank 0 knows the parameters' names and shapes. Later values go into the same memory.
    parameters = TensorDict(weight=np.zeros((8, 2)), bias=np.zeros(2)) if rank == 0 else TensorDict()
    parameters = parameters.broadcast(src=0)
    if rank == 0:
        parameters["weight"][:] = 1.0
    parameters.broadcast(src=0, inplace=True)
    assert parameters["weight"].sum() == 16.0

    # Gradients are averaged in place, all of them in one operation.
    gradients = TensorDict(weight=np.full((8, 2), float(rank)), bias=np.ones(2))
    gradients.all_reduce(dist.ReduceOp.AVG)
    assert gradients["weight"][0, 0] == (world_size - 1) / 2

    # A worker tells the learner once what its batches are like; the next ones are written over the first.
    batch = TensorDict(obs=np.full((4, 3), float(rank)), reward=np.zeros(4), batch_size=[4])
    if rank == 1:
        batch.init_remote(dst=0)
        batch["reward"] += 0.5
        batch.send(dst=0)
    elif rank == 0 and world_size > 1:
        received = TensorDict.from_remote_init(src=1)
        received.recv(src=1)
        print(received, received["reward"])

    # Rows of any number from everyone.
    rollout = TensorDict(obs=np.zeros((rank + 1, 3)), batch_size=[rank + 1])
    rollouts = rollout.gather(dst=0)
    assert rank or [len(each) for each in rollouts] == list(range(1, world_size + 1))


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by `corral run`, or by torchrun
        dist.init_process_group("shm")
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        corral.launch(main, 4)
