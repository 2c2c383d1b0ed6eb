"""Ranks that stay alive over many examples, and do what they are told."""

from __future__ import annotations

import os
import tempfile
import traceback
from typing import Any

from engines import patience, settle
from starting import Ranks


class Fleet:
    """`size` processes in one default group; with `gloo`, torch's too, to compare with."""

    def __init__(self, size: int, gloo: bool = False, **init: Any) -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory()
        self.ranks = Ranks(_serve, [(rank, size, self.folder.name, gloo, init) for rank in range(size)], gloo)
        self.ends = self.ranks.ends

    def __call__(self, function: Any, *arguments: Any, timeout: float = 60.0) -> list[Any]:
        """Call ``function(rank, size, *arguments)`` on every rank; return what each returned."""
        for end in self.ends:
            end.send((function, arguments))
        results, failures = [], []
        for rank, end in enumerate(self.ends):
            if not end.poll(timeout * patience()):
                failures.append(f"rank {rank} did not answer within {timeout} s")
                continue
            good, value = end.recv()
            results.append(value)
            if not good:
                failures.append(f"rank {rank} raised:\n{value}")
        assert not failures, "\n".join(failures)
        return results

    def close(self) -> None:
        for end in self.ends:
            end.send(None)
        for process in self.ranks.processes:
            process.join(60)
        codes = [process.exitcode for process in self.ranks.processes]
        self.ranks.close()
        self.folder.cleanup()
        assert codes == [0] * self.size


def _serve(end: Any, rank: int, size: int, folder: str, gloo: bool, init: dict[str, Any]) -> None:
    backend = settle(rank, size)
    os.environ["OMP_NUM_THREADS"] = "1"
    import corral.distributed as dist

    dist.init_process_group(
        backend, init_method=f"file://{folder}/corral", rank=rank, world_size=size, timeout=20, **init
    )
    if gloo:
        import torch.distributed

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    while True:
        task = end.recv()
        if task is None:
            break
        function, arguments = task
        try:
            end.send((True, function(rank, size, *arguments)))
        except BaseException:
            end.send((False, traceback.format_exc()))
    dist.destroy_process_group()
    if gloo:
        torch.distributed.destroy_process_group()
