"""Rank 0 receives one row from every other rank, in place.

python examples/gather_and_stack.py [--torch]
corral run -n 4 examples/gather_and_stack.py [--torch]
"""

import os
import sys

import numpy as np

import corral
import corral.distributed as dist
from corral import TensorDict


def main(rank, world_size, library="numpy"):
    if library == "torch":
        from torch import full, zeros
    else:
        from numpy import full, zeros

    if rank == 0:
        out = TensorDict(a=zeros((world_size - 1, 3)), batch_size=[world_size - 1])
        out.gather_and_stack(dst=0)
        print(out["a"])
        assert np.array_equal(out["a"][:, 0], np.arange(1.0, world_size))
    else:
        td = TensorDict(a=full((3,), float(rank)), batch_size=[3])
        td.gather_and_stack(dst=0)


if __name__ == "__main__":
    library = "torch" if "--torch" in sys.argv else "numpy"
    if "RANK" in os.environ:  # started by `corral run`, or by torchrun
        dist.init_process_group("shm")
        main(dist.get_rank(), dist.get_world_size(), library)
        dist.destroy_process_group()
    else:
        corral.launch(main, 4, args=(library,))
