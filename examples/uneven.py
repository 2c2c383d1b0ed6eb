"""Every rank has another number of rows: nobody prepares anything, nothing is padded.

python examples/uneven.py
corral run -n 4 examples/uneven.py
"""

import os

import numpy as np

import corral
import corral.distributed as dist


def main(rank, world_size):
    episode = {
        "observation": np.full((2 + 3 * rank, 4), rank, np.float32),
        "info": {"length": np.array(2 + 3 * rank), "reward": np.arange(2.0 + 3 * rank)},
    }
    episodes = corral.gather(episode, dst=0)
    if rank == 0:
        for sender, each in enumerate(episodes):
            assert each["observation"].shape == (2 + 3 * sender, 4)
            assert np.array_equal(each["info"]["reward"], np.arange(2.0 + 3 * sender))
            print(f"rank {sender}: {each['info']['length']} steps, {each['observation'].shape}")
    else:
        assert episodes is None


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by `corral run`, or by torchrun
        dist.init_process_group("shm")
        main(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        corral.launch(main, 4)
