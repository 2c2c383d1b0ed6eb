"""Training of a small network on CPU, its gradients averaged over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.contender import Job
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from benchmarks.peers.torch_gloo import Torch

__all__ = ["Training"]

_BATCH = 16


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


class Training(Job):
    """A step of training of a small convolutional network by DDP, each rank with images of its own."""

    def __init__(self, ranks: Torch, workload: Workload) -> None:
        torch.set_num_threads(1)  # ranks that share a machine share its cores
        torch.manual_seed(0)
        self.size = ranks.size
        self.model = DistributedDataParallel(_network())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        places = torch.Generator().manual_seed(ranks.rank)
        self.images = torch.rand(_BATCH, 1, 28, 28, generator=places)
        self.labels = torch.randint(0, 10, (_BATCH,), generator=places)

    def step(self) -> None:
        """Learn from one batch."""
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()

    def verify(self, version: int) -> None:
        """Compare the gradients with the average of those that each rank's images have alone."""
        expected = [torch.zeros_like(parameter) for parameter in self.model.module.parameters()]
        alone = _network()
        alone.load_state_dict(self.model.module.state_dict())
        for rank in range(self.size):
            places = torch.Generator().manual_seed(rank)
            images = torch.rand(_BATCH, 1, 28, 28, generator=places)
            labels = torch.randint(0, 10, (_BATCH,), generator=places)
            alone.zero_grad()
            nn.functional.cross_entropy(alone(images), labels).backward()
            for total, parameter in zip(expected, alone.parameters(), strict=True):
                total += parameter.grad / self.size
        self.step()
        for parameter, mean in zip(self.model.module.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, mean)
