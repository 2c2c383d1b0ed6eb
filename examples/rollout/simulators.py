"""One worker's simulators: vectors of Gymnasium environments, and the random policy that drives them."""

from __future__ import annotations

import os

# pygame draws into memory here: it needs no screen, and its greeting would disturb the progress bar.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

from collections.abc import Callable

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import (
    AddRenderObservation,
    FrameStackObservation,
    GrayscaleObservation,
    ResizeObservation,
)

from rollout.settings import Arrays, Settings

__all__ = ["Simulators"]


def _pixels() -> gymnasium.Env:
    """CartPole seen through its rendered frames: four of them, gray, 84 by 84."""
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env = AddRenderObservation(env, render_only=True)
    env = GrayscaleObservation(ResizeObservation(env, (84, 84)))
    return FrameStackObservation(env, 4)


class _Vector:
    """A vector of environments of one kind, and its current observations."""

    def __init__(self, make: Callable[[], gymnasium.Env], count: int, seed: int) -> None:
        self._envs = SyncVectorEnv([make] * count)
        self._random = np.random.default_rng(seed)
        self._observation, _ = self._envs.reset(seed=seed)

    def _actions(self) -> np.ndarray:
        space = self._envs.single_action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return self._random.integers(0, space.n, self._envs.num_envs)
        shape = (self._envs.num_envs, *space.shape)
        return self._random.uniform(space.low, space.high, shape).astype(space.dtype)

    def step(self, name: str, into: Arrays, index: int) -> None:
        """Take one step and write what happened into place `index` of the batch."""
        action = self._actions()
        after, reward, terminated, truncated, _ = self._envs.step(action)
        into[name, "observation"][index] = self._observation
        into[name, "action"][index] = action
        into[name, "next", "observation"][index] = after
        into[name, "next", "reward"][index] = reward
        into[name, "next", "done"][index] = terminated | truncated
        self._observation = after

    def close(self) -> None:
        self._envs.close()


class Simulators:
    """All environments of one worker; everything they do follows from the seed and the worker's number."""

    def __init__(self, settings: Settings, worker: int) -> None:
        makers: dict[str, tuple[Callable[[], gymnasium.Env], int]] = {
            "cartpole": (lambda: gymnasium.make("CartPole-v1"), settings.envs),
            "pendulum": (lambda: gymnasium.make("Pendulum-v1"), settings.envs),
            "pixels": (_pixels, settings.pixel_envs),
        }
        seed = settings.seed + 1_000_000 * worker
        self._vectors = {
            name: _Vector(make, count, seed + 10_000 * kind)
            for kind, (name, (make, count)) in enumerate(makers.items())
        }
        self._every = settings.every
        _one_thread()

    def collect(self, into: Arrays) -> None:
        """Fill a batch of `every` steps, in place."""
        for index in range(self._every):
            for name, vector in self._vectors.items():
                vector.step(name, into, index)

    def close(self) -> None:
        """Release the environments."""
        for vector in self._vectors.values():
            vector.close()


def _one_thread() -> None:
    """Keep OpenCV, which resizes the frames, from starting threads: the workers fill the cores already."""
    import cv2

    cv2.setNumThreads(1)
