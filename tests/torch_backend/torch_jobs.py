"""Ranks that have groups of torch's: a default one of corral's backend, and one of gloo's to compare with."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from ranks import run

__all__ = ["run_torch", "torch_group"]


def run_torch(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    backend: str = "corral",
    timeout: float = 150.0,
    **keywords: Any,
) -> list[Any]:
    """Call ``function(rank, size, *args)`` on ranks whose default group in torch is of a backend."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "torch")
        return run(_rank, size, function, meeting, backend, args, timeout=timeout, **keywords)


def _rank(rank: int, size: int, function: Callable[..., Any], meeting: str, backend: str, args: tuple[Any, ...]) -> Any:
    with torch_group(rank, size, meeting, backend):
        return function(rank, size, *args)


@contextlib.contextmanager
def torch_group(rank: int, size: int, meeting: str, backend: str = "corral", timeout: float = 20.0) -> Iterator[Any]:
    """Torch's default group."""
    import torch
    import torch.distributed as dist

    import corral.integrations.torch  # noqa: F401

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch's, about names that it will drop
    limit = timedelta(seconds=timeout)
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=limit)
    try:
        yield dist.group.WORLD
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
