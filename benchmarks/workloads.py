"""What travels: the shapes of each workload, and values of which no two ranks or leaves share any.

Values are pseudo-random bytes, seeded with the leaf, the rank and a version, so that every rank can compute
what every other rank sends: a wrong rank, a wrong leaf, a wrong order or a stale value all show.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

__all__ = ["WORKLOADS", "Key", "Leaf", "Workload", "nest"]

Key: TypeAlias = tuple[str, ...]

_PERIOD = 65521


@dataclass(frozen=True)
class Leaf:
    """Shape and dtype of what one rank contributes to one leaf."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's part."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def fill(self, out: np.ndarray, *seed: int) -> None:
        """Write the values that belong to `seed` into `out`."""
        raw = np.random.default_rng(seed).integers(0, 256, self.nbytes, dtype=np.uint8)
        if self.dtype == "bool":
            raw &= 1
        # Compared as bytes, never as numbers: random floats include NaNs.
        out.reshape(-1).view(np.uint8)[...] = raw

    def numbers(self, version: int, rank: int) -> np.ndarray:
        """Return the whole numbers below 100 that are `rank`'s in `version`: sums of them are exact in any order.

        They repeat after a prime number of elements, so that no chunk of an array equals another one.
        """
        return np.resize(self._block(version, rank), self.shape)

    def total(self, version: int, ranks: int) -> np.ndarray:
        """Return the sum of the numbers of so many ranks."""
        return np.resize(sum(self._block(version, rank) for rank in range(ranks)), self.shape)

    def _block(self, *seed: int) -> np.ndarray:
        size = min(_PERIOD, prod(self.shape))
        return np.random.default_rng(seed).integers(0, 100, size).astype(self.dtype)


@dataclass(frozen=True)
class Workload:
    """A nested batch that every rank contributes one of."""

    name: str
    title: str
    batch_size: tuple[int, ...]
    leaves: dict[Key, Leaf]

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's part, all leaves together."""
        return sum(leaf.nbytes for leaf in self.leaves.values())

    def rows(self, rank: int, version: int = 0) -> dict[Key, np.ndarray]:
        """Return what `rank` sends in `version`, newly allocated."""
        arrays = {key: np.empty(leaf.shape, leaf.dtype) for key, leaf in self.leaves.items()}
        self.fill(arrays, rank, version)
        return arrays

    def fill(self, arrays: dict[Key, np.ndarray], rank: int, version: int) -> None:
        """Overwrite `arrays`, in place, with what `rank` sends in `version`."""
        for index, (key, leaf) in enumerate(self.leaves.items()):
            leaf.fill(arrays[key], version, rank, index)

    def stack(self, senders: int) -> dict[Key, np.ndarray]:
        """Allocate the receiving side: one row for each sender, every page touched."""
        return {key: np.zeros((senders, *leaf.shape), leaf.dtype) for key, leaf in self.leaves.items()}

    def check(self, stacked: dict[Key, np.ndarray], ranks: range, version: int) -> None:
        """Raise unless row *i* of every leaf is, byte for byte, what ``ranks[i]`` sends in `version`."""
        for row, rank in enumerate(ranks):
            for key, array in self.rows(rank, version).items():
                got = np.ascontiguousarray(stacked[key][row])
                if not np.array_equal(got.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)):
                    raise AssertionError(f"{self.name}: leaf {key}, rank {rank}: wrong values arrived")


def nest(flat: dict[Key, Any]) -> dict[str, Any]:
    """Turn tuple keys into nested dictionaries."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        node = nested
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = value
    return nested


_FRAMES = (128, 4, 84, 84)


def _container(leaves: int) -> dict[Key, Leaf]:
    """Return so many small leaves, half of them at the top and half in nested dictionaries of at most ten."""
    top = leaves // 2
    keys: list[Key] = [(f"leaf_{index:02d}",) for index in range(top)]
    keys += [(f"part_{index // 10}", f"leaf_{index:02d}") for index in range(leaves - top)]
    return {key: Leaf((32, 4), "float32") for key in keys}


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "small",
            "4 leaves, 141 bytes",
            (1,),
            {
                ("observation",): Leaf((1, 32), "float32"),
                ("action",): Leaf((1,), "int64"),
                ("reward",): Leaf((1,), "float32"),
                ("done",): Leaf((1,), "bool"),
            },
        ),
        Workload(
            "many",
            "200 leaves of 256 bytes",
            (),
            {(f"leaf_{index:03d}",): Leaf((64,), "float32") for index in range(200)},
        ),
        Workload(
            "frames",
            "128 environments of frames, 7.2 MB",
            (128,),
            {
                ("observation",): Leaf(_FRAMES, "uint8"),
                ("next", "observation"): Leaf(_FRAMES, "uint8"),
                ("next", "reward"): Leaf((128,), "float32"),
                ("next", "done"): Leaf((128,), "bool"),
            },
        ),
        Workload("large", "one leaf of 64 MB", (), {("data",): Leaf((1 << 24,), "float32")}),
        Workload("bytes8", "8 bytes", (), {("data",): Leaf((1,), "int64")}),
        Workload("floats8b", "8 bytes", (), {("data",): Leaf((2,), "float32")}),
        Workload("floats64kb", "64 KB", (), {("data",): Leaf((1 << 14,), "float32")}),
        Workload("floats64mb", "64 MB", (), {("data",): Leaf((1 << 24,), "float32")}),
        # Shared out among the ranks: bytes, of which 8 can be shared by 8.
        Workload("total8b", "8 bytes in all", (), {("data",): Leaf((8,), "uint8")}),
        Workload("total64kb", "64 KB in all", (), {("data",): Leaf((1 << 16,), "uint8")}),
        Workload("total64mb", "64 MB in all", (), {("data",): Leaf((1 << 26,), "uint8")}),
        Workload("dict8mb", "a dict with an array of 8 MB", (), {("weights",): Leaf((1 << 21,), "float32")}),
        Workload(
            "messages64",
            "a ring of 64 tagged messages of 4 KB",
            (),
            {(f"tag_{tag:02d}",): Leaf((1024,), "float32") for tag in range(64)},
        ),
        Workload("leaves4", "4 leaves of 32 rows", (32,), _container(4)),
        Workload("leaves100", "100 leaves of 32 rows", (32,), _container(100)),
        Workload(
            "weights200",
            "200 leaves of 1 KB",
            (),
            {(f"leaf_{index:03d}",): Leaf((256,), "float32") for index in range(200)},
        ),
        Workload(
            "saved1gb",
            "1 GB in 1,000 leaves",
            (),
            {(f"part_{index % 10}", f"leaf_{index:03d}"): Leaf((1 << 18,), "float32") for index in range(1000)},
        ),
        Workload("nothing", "", (), {}),
    )
}
"""Every workload, by name."""
