"""What is done to a TensorDict within one process, by corral's class and by tensordict's, in the same words."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.peers.c10d import C10d
from benchmarks.peers.contender import ROOT, Job, Jobs, Step
from benchmarks.workloads import Key, Workload, nest

__all__ = ["OPERATIONS", "jobs"]

_STACKED = 32

Make = Callable[["Container"], Step]


class Container(Job):
    """One operation on a TensorDict of the workload's leaves.

    Parameters
    ----------
    library
        The package: corral, or tensordict.
    make
        Prepares the operation.
    check
        Takes the operation's result and the arrays that the TensorDict is of; true if that is what it should be.
    """

    def __init__(
        self,
        library: ModuleType,
        make: Make,
        check: Callable[[Any, dict[Key, np.ndarray], Container], bool],
        ranks: C10d,
        workload: Workload,
    ) -> None:
        self.library, self.workload, self.check = library, workload, check
        self.arrays = workload.rows(ranks.rank)
        self.leaf = ranks.leaf
        self.key = list(workload.leaves)[-1]
        self.source = nest({key: ranks.leaf(array) for key, array in self.arrays.items()})
        self.td = library.TensorDict(self.source, batch_size=workload.batch_size)
        self.step = make(self)

    def verify(self, version: int) -> None:
        """Do the operation on the values of `version`, and look at what it gives."""
        self.workload.fill(self.arrays, ROOT, version)
        if not self.check(self.step(), self.arrays, self):
            raise AssertionError(f"{self.workload.name}: a wrong result")


def _bytes(leaf: Any) -> bytes:
    return np.ascontiguousarray(leaf).tobytes()  # as bytes: random floats include NaNs


def _all_leaves(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, dict[Key, np.ndarray], Container], bool]:
    def check(result: Any, arrays: dict[Key, np.ndarray], _: Container) -> bool:
        keys = set(result.keys(True, True))
        return keys == {key if len(key) > 1 else key[0] for key in arrays} and all(
            _bytes(result[key]) == _bytes(change(array)) for key, array in arrays.items()
        )

    return check


def _rows(result: Any, arrays: dict[Key, np.ndarray], _: Container) -> bool:
    return len(result) == len(next(iter(arrays.values()))) and all(
        _bytes(row[key]) == _bytes(array[i]) for i, row in enumerate(result) for key, array in arrays.items()
    )


def _keys(result: Any, arrays: dict[Key, np.ndarray], _: Container) -> bool:
    return sorted(key if isinstance(key, tuple) else (key,) for key in result) == sorted(arrays)


def _entry(result: Any, arrays: dict[Key, np.ndarray], job: Container) -> bool:
    return _bytes(result) == _bytes(arrays[job.key])


def _was_set(result: Any, arrays: dict[Key, np.ndarray], job: Container) -> bool:
    return _bytes(job.td[job.key]) == _bytes(arrays[job.key])


def _set(job: Container) -> Step:
    return partial(job.td.set, job.key, job.leaf(job.arrays[job.key]))


def _index(index: Any) -> Make:
    def make(job: Container) -> Step:
        where = job.leaf(index) if isinstance(index, np.ndarray) else index
        return lambda: job.td[where]

    return make


def _stack(job: Container) -> Step:
    return partial(job.library.stack, [job.td] * _STACKED, 0)


_SOME = np.array([3, 1, 8, 5])

OPERATIONS: dict[str, tuple[Make, Callable[[Any, dict[Key, np.ndarray], Container], bool]]] = {
    "construct": (
        lambda job: partial(job.library.TensorDict, job.source, batch_size=job.workload.batch_size),
        _all_leaves(np.asarray),
    ),
    "get": (lambda job: partial(job.td.get, job.key), _entry),
    "set": (_set, _was_set),
    "index_row": (_index(3), _all_leaves(lambda array: array[3])),
    "index_slice": (_index(slice(2, 9)), _all_leaves(lambda array: array[2:9])),
    "index_rows": (_index(_SOME), _all_leaves(lambda array: array[_SOME])),
    "stack_32": (_stack, _all_leaves(lambda array: np.stack([array] * _STACKED))),
    "clone": (lambda job: job.td.clone, _all_leaves(np.asarray)),
    "apply": (lambda job: partial(job.td.apply, lambda leaf: leaf * 2), _all_leaves(lambda array: array * 2)),
    "add": (lambda job: lambda: job.td + job.td, _all_leaves(lambda array: array + array)),
    "consolidate": (lambda job: job.td.consolidate, _all_leaves(np.asarray)),
    "keys": (lambda job: lambda: list(job.td.keys(True, True)), _keys),
    "iterate": (lambda job: lambda: list(job.td), _rows),
}
"""How to prepare each operation, and how to see that it did what it should."""


class Saved(Job):
    """`memmap` of a TensorDict to a directory, or `load_memmap` of one and a look at all of its values."""

    def __init__(self, library: ModuleType, load: bool, ranks: C10d, workload: Workload) -> None:
        self.library, self.workload = library, workload
        self.arrays = workload.rows(ranks.rank)
        leaves = nest({key: ranks.leaf(array) for key, array in self.arrays.items()})
        self.td = library.TensorDict(leaves, batch_size=workload.batch_size)
        # In memory: a disk takes the same time whatever the library. Removed together with this job.
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._kept = tempfile.TemporaryDirectory(prefix="bench", dir=memory)
        self.directory = Path(self._kept.name)
        self.td.memmap(self.directory)
        self.step = self._load if load else self._save

    def _save(self) -> None:
        self.td.memmap(self.directory)

    def _load(self) -> float:
        saved = self.library.TensorDict.load_memmap(self.directory)
        return sum(float(leaf.max()) for leaf in saved.values(True, True))

    def verify(self, version: int) -> None:
        """Save the values of `version`, and compare what is read with them."""
        for (_, leaf), array in zip(self.workload.leaves.items(), self.arrays.values(), strict=True):
            array[...] = leaf.numbers(version, ROOT)
        self._save()
        self.step()
        saved = self.library.TensorDict.load_memmap(self.directory)
        for key, array in self.arrays.items():
            if _bytes(saved[key]) != _bytes(array):
                raise AssertionError(f"memmap: a wrong value of {key}")


class Moved(Job):
    """``td.all_reduce()``, or ``td.broadcast`` from the first and the last rank in turn."""

    def __init__(self, library: ModuleType, reduce: bool, ranks: C10d, workload: Workload) -> None:
        self.rank, self.size, self.workload = ranks.rank, ranks.size, workload
        self.arrays = workload.rows(ranks.rank)
        leaves = nest({key: ranks.leaf(array) for key, array in self.arrays.items()})
        self.td = library.TensorDict(leaves, batch_size=workload.batch_size)
        self.reduce, self.turn = reduce, 0
        self.step = self._all_reduce if reduce else self._broadcast

    def _all_reduce(self) -> Any:
        self.td.all_reduce()
        return self.td

    def _broadcast(self) -> Any:
        self.turn += 1
        return self.td.broadcast((0, self.size - 1)[self.turn % 2])

    def verify(self, version: int) -> None:
        """Compare every leaf with the sum of all ranks', or with those of the root."""
        for array, leaf in zip(self.arrays.values(), self.workload.leaves.values(), strict=True):
            array[...] = leaf.numbers(version, self.rank)
        result = self.step()
        root = (0, self.size - 1)[self.turn % 2]
        for (key, leaf), array in zip(self.workload.leaves.items(), self.arrays.values(), strict=True):
            expected = leaf.total(version, self.size) if self.reduce else leaf.numbers(version, root)
            if not np.array_equal(np.asarray(result[key]), expected):
                raise AssertionError(f"a wrong value of {key}")
            array[...] = 0  # or repeating a sum would overflow


def jobs(library: ModuleType) -> Jobs:
    """Return how a library does each operation."""
    return {
        **{f"td_{name}": partial(Container, library, make, check) for name, (make, check) in OPERATIONS.items()},
        "td_memmap": partial(Saved, library, False),
        "td_load_memmap": partial(Saved, library, True),
        "td_all_reduce": partial(Moved, library, True),
        "td_broadcast": partial(Moved, library, False),
    }
