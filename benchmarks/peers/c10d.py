"""Contenders that have the functions of ``torch.distributed``: torch's own, and corral's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.contender import ROOT, Communicator, Job, Jobs, Message, Step
from benchmarks.peers.overlap import Overlap
from benchmarks.workloads import Key, Workload, nest

__all__ = ["C10d", "GatherAndStack"]


class C10d(Communicator):
    """One rank of a group that `dist` makes, with leaves that `leaf` makes of NumPy arrays."""

    jobs: ClassVar[Jobs] = {"overlap": Overlap}

    all_gather_name = "all_gather_into_tensor"

    def __init__(self, dist: ModuleType, backend: str, leaf: Callable[[np.ndarray], Any]) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.dist, self._leaf = dist, leaf
        dist.init_process_group(
            backend, init_method=os.environ["CORRAL_BENCH_MEET"], rank=self.rank, world_size=self.size
        )

    def leaf(self, array: np.ndarray) -> Any:
        """Return `array` in the library that this contender sends."""
        return self._leaf(array)

    def barrier(self) -> None:
        """Wait for every rank."""
        self.dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        self.dist.destroy_process_group()

    def sending(self, array: np.ndarray, peer: int) -> Step:
        """``send``."""
        return partial(self.dist.send, self.leaf(array), peer)

    def receiving(self, array: np.ndarray, peer: int) -> Step:
        """``recv``."""
        return partial(self.dist.recv, self.leaf(array), peer)

    def exchanging(self, sent: Sequence[Message], received: Sequence[Message]) -> Step:
        """``batch_isend_irecv`` of operations that are made once."""
        start, operation = self.dist.batch_isend_irecv, self.dist.P2POp
        operations = [
            operation(function, self.leaf(array), peer, tag=tag)
            for function, messages in ((self.dist.irecv, received), (self.dist.isend, sent))
            for array, peer, tag in messages
        ]

        def step() -> None:
            for work in start(operations):
                work.wait()

        return step

    def waiting(self) -> Step:
        """``barrier``."""
        return self.dist.barrier  # type: ignore[no-any-return]

    def broadcasting(self, array: np.ndarray, root: int) -> Step:
        """``broadcast``."""
        return partial(self.dist.broadcast, self.leaf(array), root)

    def all_reducing(self, array: np.ndarray) -> Step:
        """``all_reduce``."""
        return partial(self.dist.all_reduce, self.leaf(array))

    def starting_all_reduce(self, array: np.ndarray) -> Step:
        """``all_reduce(async_op=True)``, which returns something to wait for."""
        return partial(self.dist.all_reduce, self.leaf(array), async_op=True)

    def all_gathering(self, out: np.ndarray, array: np.ndarray) -> Step:
        """``all_gather_into_tensor``."""
        return partial(getattr(self.dist, self.all_gather_name), self.leaf(out), self.leaf(array))

    def gathering(self, out: np.ndarray, array: np.ndarray, root: int) -> Step:
        """``gather``."""
        rows = [self.leaf(row) for row in out] if self.rank == root else None
        return partial(self.dist.gather, self.leaf(array), rows, root)

    def _slots(self) -> list[Any] | None:
        return [None] * self.size if self.rank == ROOT else None

    def gathering_objects(self, obj: Any) -> Step:
        """``gather_object``, always into the same list."""
        return partial(self.dist.gather_object, obj, self._slots(), ROOT)

    def gather_objects(self, obj: Any) -> list[Any] | None:
        """``gather_object`` into a new list."""
        slots = self._slots()
        self.dist.gather_object(obj, slots, ROOT)
        return slots


class GatherAndStack(Job):
    """``td.gather_and_stack(0)``, of corral's ``TensorDict`` or tensordict's."""

    def __init__(self, tensordict: type, ranks: C10d, workload: Workload) -> None:
        self.ranks, self.workload = ranks, workload
        root = ranks.rank == ROOT
        arrays = workload.stack(ranks.size - 1) if root else workload.rows(ranks.rank)
        batch_size = (ranks.size - 1, *workload.batch_size) if root else workload.batch_size
        self.td = tensordict(nest({key: ranks.leaf(array) for key, array in arrays.items()}), batch_size=batch_size)
        gather_and_stack = self.td.gather_and_stack
        self.step = lambda: gather_and_stack(ROOT)

    def _flat(self) -> dict[Key, np.ndarray]:
        """Return the leaves that the TensorDict holds now, as NumPy arrays that share their memory."""
        leaves = {key: self.td[key if len(key) > 1 else key[0]] for key in self.workload.leaves}
        return {key: leaf if isinstance(leaf, np.ndarray) else leaf.numpy() for key, leaf in leaves.items()}

    def verify(self, version: int) -> None:
        """Compare every row with what its rank sent."""
        flat = self._flat()
        if self.ranks.rank == ROOT:
            self.step()
            self.workload.check(flat, self.ranks.senders, version)
        else:
            self.workload.fill(flat, self.ranks.rank, version)
            self.step()
