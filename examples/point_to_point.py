"""A ring: every rank sends to the next one and receives from the one before, all at once.

python examples/point_to_point.py
corral run -n 4 examples/point_to_point.py
"""

import os

import numpy as np

import corral
import corral.distributed as dist


def main(rank, world_size):
    before, after = (rank - 1) % world_size, (rank + 1) % world_size
    sent = np.arange(6.0).reshape(2, 3) + 10 * rank
    received = np.empty((3, 2)).T  # any strides will do, at both ends

    # The order in the list does not matter: nobody waits before everything has been started.
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, before), dist.P2POp(dist.isend, sent, after)]):
        work.wait()
    assert np.array_equal(received, np.arange(6.0).reshape(2, 3) + 10 * before)
    print(f"rank {rank} received from rank {before}: {received.tolist()}")


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by `corral run`, or by torchrun
        dist.init_process_group("shm")
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        corral.launch(main, 4)
