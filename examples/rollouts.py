"""Worker processes step real simulators; a learner receives their nested batches in place.

Four workers step vectors of CartPole, Pendulum and CartPole-from-pixels with NumPy alone. Every few steps
the learner gathers observations, actions, rewards, ends of episodes and next observations into one
preallocated TensorDict. At the end one process repeats everything with the same seeds, and every byte is
compared. Then the same loop runs over ``multiprocessing`` pipes.

    python examples/rollouts.py --steps 240 --envs 16
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

from rich.console import Console
from rollout.settings import Settings


def _settings(argv: list[str] | None) -> tuple[argparse.Namespace, Settings]:
    standard = Settings()
    parser = argparse.ArgumentParser(description="Gather rollouts of Gymnasium environments with corral.")
    parser.add_argument("--workers", type=int, default=standard.workers, help="worker processes")
    parser.add_argument("--envs", type=int, default=standard.envs, help="environments in each plain vector")
    parser.add_argument("--pixel-envs", type=int, default=standard.pixel_envs, help="environments with frames")
    parser.add_argument("--steps", type=int, default=standard.steps, help="steps of each environment")
    parser.add_argument("--every", type=int, default=standard.every, help="steps between two gathers")
    parser.add_argument("--seed", type=int, default=standard.seed)
    parser.add_argument("--no-pipes", action="store_true", help="skip the comparison with pipes")
    options = parser.parse_args(argv)
    for name in ("workers", "envs", "pixel_envs", "steps", "every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.steps % options.every:
        parser.error("--steps must be a multiple of --every")
    chosen = {name: getattr(options, name) for name in standard.__dataclass_fields__}
    return options, Settings(**chosen)


def main(argv: list[str] | None = None) -> int:
    """Run the demonstration and return its exit code: 0 if every byte arrived as it should."""
    missing = [name for name in ("gymnasium", "pygame", "cv2") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"missing: {', '.join(missing)}; pip install 'corral[demo]'", file=sys.stderr)
        return 2
    from rollout import with_corral, with_pipes
    from rollout.report import show

    options, settings = _settings(argv)
    learned = with_corral.run(settings)
    pipes = None if options.no_pipes else with_pipes.run(settings)
    return show(Console(), settings, learned, pipes)


if __name__ == "__main__":
    sys.exit(main())
