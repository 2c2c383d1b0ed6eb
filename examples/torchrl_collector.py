"""TorchRL's distributed collector over corral: workers step environments, and their batches come to one process.

python examples/torchrl_collector.py
python examples/torchrl_collector.py gloo  # to compare

Nothing of TorchRL's is changed or replaced: its collector makes groups of torch.distributed's by the name of a backend.
"""

import socket
import sys
import time

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors.distributed import DistributedCollector
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

import corral.integrations.torch  # noqa: F401  not needed where corral is installed: torch finds it

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "corral"
WORKERS, FRAMES, BATCHES = 2, 64, 6
FARTHEST = 3.0


class Walk(EnvBase):
    """A walk along a line, from 0 until it is far enough: the nearer to the right end, the more reward."""

    def __init__(self):
        super().__init__(batch_size=[])
        self.observation_spec = Composite(place=Unbounded(shape=(1,)), picture=Unbounded(shape=(3, 32, 32)))
        self.action_spec = Bounded(-1.0, 1.0, shape=(1,))
        self.reward_spec = Unbounded(shape=(1,))

    def _reset(self, tensordict=None):
        return self.observation_spec.zero().update({"done": torch.zeros(1, dtype=torch.bool)})

    def _step(self, tensordict):
        place = tensordict["place"] + tensordict["action"]
        return tensordict.empty().update(
            {
                "place": place,
                "picture": place.expand(3, 32, 32).reshape(3, 32, 32).clone(),
                "reward": place.clone(),
                "done": place.abs() >= FARTHEST,
            }
        )

    def _set_seed(self, seed):
        torch.manual_seed(seed or 0)


class Policy(torch.nn.Module):
    """Goes right by as much as it has learned to."""

    def __init__(self):
        super().__init__()
        self.stride = torch.nn.Parameter(torch.zeros(1))

    def forward(self, place):
        return self.stride.expand_as(place)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def main():
    policy = TensorDictModule(Policy(), in_keys=["place"], out_keys=["action"])
    collector = DistributedCollector(
        [Walk] * WORKERS,
        policy,
        frames_per_batch=FRAMES,
        total_frames=FRAMES * BATCHES,
        sync=True,
        backend=BACKEND,
        launcher="mp",
        tcp_port=free_port(),
    )
    start, frames = time.perf_counter(), 0
    for number, batch in enumerate(collector):
        frames += batch.numel()
        # What the workers did is what the policy says, as of the last time that they were told its weights.
        assert (batch["action"] == policy.module.stride.detach()).all()
        assert torch.equal(batch["next", "place"], batch["place"] + batch["action"])
        assert (batch["picture"] == batch["place"][..., None, None]).all()
        print(f"batch {number}: {tuple(batch.shape)} frames, mean reward {batch['next', 'reward'].mean():.3f}")
        with torch.no_grad():
            policy.module.stride += 0.125  # learning, as it were
        collector.update_policy_weights_()
    assert frames == FRAMES * BATCHES
    print(f"{WORKERS} workers over {torch.distributed.get_backend()}: {frames} frames", end=" ")
    print(f"in {time.perf_counter() - start:.2f} s")
    collector.shutdown()


if __name__ == "__main__":
    main()
