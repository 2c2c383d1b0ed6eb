"""Ranks arranged in an array, without any group: who is where in a mesh."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from corral.distributed import groups
from corral.distributed.debug import DebugLevel, get_debug_level
from corral.distributed.mesh_layout import Layout

__all__ = ["RankArray"]


class RankArray:
    """What a mesh knows without its groups.

    Parameters
    ----------
    device_type
        What the ranks work with.
    ranks
        All ranks of the mesh, or of the one that this was sliced from.
    layout
        How the dimensions walk through them.
    mesh_dim_names
        The names of the dimensions.
    rank
        This process's global rank.
    """

    def __init__(
        self,
        device_type: str,
        ranks: tuple[int, ...],
        layout: Layout,
        mesh_dim_names: tuple[str, ...] | None,
        rank: int,
    ) -> None:
        self._device_type = device_type
        self._ranks = ranks
        self._layout = layout
        self._mesh_dim_names = mesh_dim_names
        self._rank = rank

    @property
    def device_type(self) -> str:
        """What the ranks work with."""
        return self._device_type

    @property
    def mesh(self) -> np.ndarray[Any, Any]:
        """The global ranks, as an array; for a submesh, those of the one that this rank is in."""
        ranks = self._own_ranks()
        if ranks is None:
            raise RuntimeError(
                f"DeviceMesh.mesh: rank {self._rank} is in none of the submeshes {self!r}; "
                "ask the mesh that they were sliced from, or one of its ranks"
            )
        return ranks

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of the dimensions."""
        return self._mesh_dim_names

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._layout.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self._layout.shape

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the size of a dimension; the number of ranks when ``None``."""
        return math.prod(self.shape) if mesh_dim is None else self.shape[mesh_dim]

    def get_rank(self) -> int:
        """Return this process's global rank."""
        return groups.get_rank()

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return this rank's place in each dimension; ``None`` if it is not in the mesh."""
        places = np.argwhere(self._lines(self._layout) == self._rank)
        return tuple(places[0, 1:].tolist()) if len(places) else None

    def _own_ranks(self) -> np.ndarray[Any, Any] | None:
        """Return the ranks of this rank's submesh, or of the only one; ``None`` if it is in none of several."""
        submeshes = self._lines(self._layout)
        places = np.argwhere(submeshes == self._rank)
        if len(submeshes) > 1 and len(places) == 0:
            return None
        own: np.ndarray[Any, Any] = submeshes[0 if len(submeshes) == 1 else places[0, 0]]
        return own

    def _lines(self, layout: Layout) -> Any:
        """Return the ranks of the submesh with this layout and of all its siblings."""
        return np.asarray(self._ranks)[layout.everywhere(len(self._ranks))]

    def _key(self) -> tuple[Any, ...]:
        return self._ranks, self._layout, self._device_type, self._mesh_dim_names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankArray) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        names = self._mesh_dim_names
        if names is None:
            shape = str(self.shape)
        else:
            shape = f"({', '.join(f'{name}={size}' for name, size in zip(names, self.shape, strict=True))})"
        detail = ""
        if get_debug_level() is DebugLevel.DETAIL:
            ranks = self._own_ranks()
            detail = f", Mesh: {None if ranks is None else ranks.tolist()}"
        return f"{type(self).__name__}({shape}, {self._device_type!r}, stride={self._layout.strides}{detail})"
