"""How much a demonstration does, and what one worker's batch looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Arrays", "Key", "Settings", "allocate", "keep", "nest", "row_bytes"]

Key: TypeAlias = tuple[str, ...]
Arrays: TypeAlias = dict[Key, np.ndarray]


@dataclass(frozen=True)
class Settings:
    """What the command line can change."""

    workers: int = 4
    envs: int = 16
    pixel_envs: int = 4
    steps: int = 240
    every: int = 8
    seed: int = 2026

    @property
    def batches(self) -> int:
        """How often the learner gathers."""
        return self.steps // self.every

    @property
    def simulator_steps(self) -> int:
        """Steps of single environments, in all."""
        return self.workers * self.batches * self.every * (2 * self.envs + self.pixel_envs)


def _leaves(settings: Settings) -> dict[Key, tuple[tuple[int, ...], str]]:
    kinds = {
        # name: (environments, shape and dtype of an observation, shape and dtype of an action)
        "cartpole": (settings.envs, (4,), "float32", (), "int64"),
        "pendulum": (settings.envs, (3,), "float32", (1,), "float32"),
        "pixels": (settings.pixel_envs, (4, 84, 84), "uint8", (), "int64"),
    }
    leaves: dict[Key, tuple[tuple[int, ...], str]] = {}
    for name, (count, seen, seen_dtype, done, done_dtype) in kinds.items():
        leaves |= {
            (name, "observation"): ((count, *seen), seen_dtype),
            (name, "action"): ((count, *done), done_dtype),
            (name, "next", "observation"): ((count, *seen), seen_dtype),
            (name, "next", "reward"): ((count,), "float64"),
            (name, "next", "done"): ((count,), "bool"),
        }
    return leaves


def allocate(settings: Settings, *batch: int) -> Arrays:
    """Allocate every leaf, with `batch` in front of one step's shape."""
    return {key: np.zeros((*batch, *shape), dtype) for key, (shape, dtype) in _leaves(settings).items()}


def row_bytes(settings: Settings) -> int:
    """Return the bytes that one worker contributes to one gather."""
    return sum(array.nbytes for array in allocate(settings, settings.every).values())


def nest(arrays: Arrays) -> dict[str, Any]:
    """Turn tuple keys into nested dictionaries, of the same arrays."""
    nested: dict[str, Any] = {}
    for key, array in arrays.items():
        node = nested
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = array
    return nested


def keep(arrays: Arrays, kept: Arrays, number: int) -> None:
    """Copy batch `number` out of the memory that the next one will overwrite."""
    for key, array in arrays.items():
        kept[key][number] = array
