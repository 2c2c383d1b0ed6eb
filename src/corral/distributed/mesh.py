"""Meshes: ranks arranged in an array, with a group for each line of ranks along each dimension."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from corral.distributed import groups, setup
from corral.distributed.groups import ProcessGroup
from corral.distributed.mesh_arguments import Override, overrides_of, ranks_of, without_index
from corral.distributed.mesh_array import RankArray
from corral.distributed.mesh_layout import Layout

__all__ = ["DeviceMesh", "current_mesh", "init_device_mesh"]

_Names: TypeAlias = tuple[str, ...] | None


class _Entered(threading.local):
    def __init__(self) -> None:
        self.meshes: list[DeviceMesh] = []


_entered = _Entered()


class DeviceMesh(RankArray):
    """Ranks arranged in an array of any number of dimensions.

    Mirrors ``torch.distributed.DeviceMesh``. Along each dimension every rank has a group of the ranks that differ
    from it in that dimension only; all ranks of the job make all of these groups, in the same order, when they
    make the mesh. If there is no default group, it is made first, from the environment.

    Parameters
    ----------
    device_type
        What the ranks work with, such as ``"cpu"`` or ``"cuda"``; kept, and not acted on: choosing a device is
        left to the array library.
    mesh
        The global ranks: nested lists or an array of integers. Not all ranks of the job need to be in it.
    mesh_dim_names
        A name for each dimension, by which to slice.
    backend_override
        For each dimension the name of its groups' backend and their options; each may be ``None``.

    Raises
    ------
    MismatchError
        On every rank, if ranks gave different meshes.
    ValueError
        If a rank is in the mesh twice, or does not exist.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=("data", "model"))
    >>> mesh
    DeviceMesh((data=1, model=1), 'cpu', stride=((), ()))
    >>> mesh["model"].get_group().size(), mesh.get_coordinate()
    (1, (0, 0))
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Sequence[Override] | None = None,
        _init_backend: bool = True,
        _rank: int | None = None,
    ) -> None:
        ranks = ranks_of(mesh)
        if mesh_dim_names is not None and len(mesh_dim_names) != ranks.ndim:
            raise RuntimeError(
                f"DeviceMesh: mesh_dim_names must name each dimension; got {len(mesh_dim_names)} names, "
                f"{tuple(mesh_dim_names)}, for the {ranks.ndim} dimensions of shape {ranks.shape}"
            )
        if backend_override is None:
            backend_override = [(None, None)] * ranks.ndim
        elif len(backend_override) != ranks.ndim:
            raise ValueError(
                "backend_override should have the same length as the number of mesh dimensions, "
                f"but got {len(backend_override)} and {ranks.ndim}."
            )
        if _init_backend:
            _ensure_world_of(ranks.size)
        super().__init__(
            device_type,
            tuple(ranks.reshape(-1).tolist()),
            Layout.of_shape(ranks.shape),
            tuple(mesh_dim_names) if mesh_dim_names else None,
            groups.get_rank() if _rank is None else _rank,
        )
        self._root: DeviceMesh | None = None
        self._flattened: dict[str, DeviceMesh] = {}
        self._groups: list[ProcessGroup] | None = None  # one for each dimension; none on ranks outside the mesh
        if _init_backend:
            self._groups = self._make_groups(self._layout, self._mesh_dim_names, backend_override)

    def _make_groups(self, layout: Layout, names: _Names, overrides: Sequence[Override]) -> list[ProcessGroup]:
        """Make the groups along each dimension, with all ranks of the job; return those that this rank is in."""
        world = groups.default_group()
        mine = []
        for dim, (axis, (backend, options)) in enumerate(zip(layout.axes, overrides, strict=True)):
            lines = self._lines(Layout((axis,)))
            if len(lines[0]) == world._size and backend is None and options is None:
                mine.append(world)
                continue
            for line in lines:
                made = setup.new_group(
                    line,
                    timeout=getattr(options, "_timeout", None),
                    backend=backend,
                    pg_options=options,
                    group_desc=f"mesh_{names[dim] if names else f'dim_{dim}'}",
                )
                if isinstance(made, ProcessGroup):
                    mine.append(made)
        return mine

    def _submesh(self, layout: Layout, names: _Names, of_groups: list[ProcessGroup] | None) -> DeviceMesh:
        root = self._root_mesh()
        made = DeviceMesh.__new__(DeviceMesh)
        RankArray.__init__(made, self._device_type, root._ranks, layout, names, root._rank)
        made._root = root
        made._flattened = {}
        made._groups = of_groups
        return made

    def _root_mesh(self) -> DeviceMesh:
        return self if self._root is None else self._root

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return this process's rank in its group along a dimension, given as for `get_group`."""
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(f"DeviceMesh.get_local_rank: mesh_dim needs to be specified, as {self!r} has several")
        return self.get_group(mesh_dim).rank()

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """Return this rank's group along a dimension.

        Parameters
        ----------
        mesh_dim
            The dimension's index or name; or the name of one that was flattened from this mesh or its root. May be
            ``None`` if there is only one.
        """
        if mesh_dim is None:
            if self.ndim > 1:
                raise RuntimeError(
                    f"DeviceMesh.get_group: mesh_dim needs to be specified, as {self!r} has several; "
                    "get_all_groups returns the groups of all"
                )
            mesh_dim = 0
        flat = self._root_mesh()._flattened.get(mesh_dim) if isinstance(mesh_dim, str) else None
        if flat is not None:
            return flat.get_group(0)
        if self._groups is None:
            raise RuntimeError(f"DeviceMesh process groups not initialized: {self!r} was made without any")
        dim = self._dim_of(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim
        if not self._groups:
            raise IndexError(f"DeviceMesh.get_group: rank {self._rank} is not in {self!r}, and in none of its groups")
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"DeviceMesh.get_group: {self!r} has no dimension {dim}")
        return self._groups[dim]

    def get_all_groups(self) -> list[ProcessGroup]:
        """Return this rank's groups along all dimensions."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    def _dim_of(self, name: str) -> int:
        names = self._mesh_dim_names or ()
        if name not in names:
            raise KeyError(f"Mesh dimension {name!r} does not exist. Available mesh dimensions are: {names}")
        return names.index(name)

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the submesh of some dimensions, with their groups; makes none.

        Parameters
        ----------
        mesh_dim_names
            One name, or a tuple of them in the order of the mesh's dimensions; of a mesh that is no submesh itself
            also those of flattened dimensions.
        """
        if self._mesh_dim_names is None:
            raise RuntimeError("Cannot slice a DeviceMesh without mesh_dim_names!")
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if names == self._mesh_dim_names:
            return self
        sources = {name: (flat, 0) for name, flat in (self._flattened if self._root is None else {}).items()} | {
            name: (self, dim) for dim, name in enumerate(self._mesh_dim_names)
        }
        if not names or not all(name in sources for name in names):
            raise KeyError(f"Invalid mesh_dim_names {names} specified. Valid mesh_dim_names are {list(sources)}.")
        chosen = [sources[name] for name in names]
        layout = Layout(tuple(mesh._layout.axes[dim] for mesh, dim in chosen))
        if not layout.descends():
            raise KeyError(f"Invalid mesh_dim_names {names} specified. Mesh dim indices should be in ascending order.")
        if layout.overlaps():
            raise RuntimeError(f"Slicing overlapping dim_names {names} is not allowed.")
        made = None if self._groups is None else [mesh._groups[dim] for mesh, dim in chosen if mesh._groups]
        return self._submesh(layout, names, made)

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: Any | None = None) -> DeviceMesh:
        """Return a mesh of one dimension with the ranks of this one, making its groups the first time.

        All ranks of the job must call it. Afterwards the mesh that this one was sliced from knows the dimension too:
        ``mesh["a", "b"]._flatten()``, then ``mesh["a_b"]`` or ``mesh.get_group("a_b")``.

        Parameters
        ----------
        mesh_dim_name
            The dimension's name; the names of this mesh's dimensions, joined by ``_``, when ``None``.
        backend_override
            As a value of `init_device_mesh`'s.
        """
        names = self._mesh_dim_names
        if names is None:
            raise RuntimeError("Cannot flatten a DeviceMesh without mesh_dim_names!")
        name = mesh_dim_name or "_".join(names)
        if names == (name,):
            return self
        root = self._root_mesh()
        if name in (root._mesh_dim_names or ()):
            raise ValueError(
                f"{name} already exists for submesh of the {root}, whose dimensions are {root._mesh_dim_names}. "
                "Please specify another valid mesh_dim_name."
            )
        layout = self._layout.flattened()
        known = root._flattened.get(name)
        if known is not None and known._layout == layout:
            return known
        if known is not None:
            raise ValueError(
                f"Flatten mesh with mesh_dim_name {name} has been created before, of other dimensions: {known}. "
                "Please specify another valid mesh_dim_name."
            )
        overrides = overrides_of({} if backend_override is None else {0: backend_override}, 1, None)
        made = self._submesh(layout, (name,), None)
        made._groups = root._make_groups(layout, (name,), overrides)
        root._flattened[name] = made
        return made

    @staticmethod
    def from_group(
        group: ProcessGroup | Sequence[ProcessGroup],
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """Make a mesh of groups that exist.

        Parameters
        ----------
        group
            This rank's group along each dimension; or one group, for a mesh of one dimension.
        device_type, mesh, mesh_dim_names
            As for the class. With one group they may be left out; with a list, `mesh` and `mesh_dim_names` are needed.

        Raises
        ------
        ValueError
            If `mesh` does not have the groups' ranks.
        """
        if isinstance(group, ProcessGroup):
            ranks = groups.get_process_group_ranks(group)
            if mesh is not None and ranks_of(mesh).tolist() != ranks:
                raise ValueError(f"Invalid mesh {mesh} for ProcessGroup with ranks {ranks}")
            made = DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, _init_backend=False)
            made._groups = [group]
            return made
        given = list(group)
        if not given:
            raise ValueError("Expects at least one ProcessGroup to be passed")
        if mesh is None:
            raise ValueError("Must pass mesh if passing multiple ProcessGroups")
        if mesh_dim_names is None:
            raise ValueError("Must pass mesh_dim_names if passing multiple ProcessGroups")
        made = DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, _init_backend=False)
        if made.ndim != len(given):
            raise ValueError(
                "Expects mesh with ndim equal to number of ProcessGroups but got "
                f"mesh {made.mesh.tolist()} and {len(given)} ProcessGroups"
            )
        for dim, one in enumerate(given):
            along = made._submesh(Layout((made._layout.axes[dim],)), None, None)
            ranks = groups.get_process_group_ranks(one)
            if made.get_coordinate() is None or sorted(along.mesh.tolist()) != sorted(ranks):
                raise ValueError(
                    f"DeviceMesh.from_group: group {dim} must have the ranks along dimension {dim} of "
                    f"mesh {made.mesh.tolist()} that rank {made._rank} is among, got {ranks}"
                )
        made._groups = given
        return made

    def __enter__(self) -> DeviceMesh:
        _entered.meshes.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.meshes.pop()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: groups by their names, under which the copy's process looks for its own."""
        named = None if self._groups is None else [one.group_name for one in self._groups]
        return {**self.__dict__, "_groups": named}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        named = state["_groups"]
        known = {one.group_name: one for one in setup.open_groups()}
        found = named is not None and all(name in known for name in named)
        self._groups = [known[name] for name in named] if found else None


def _ensure_world_of(size: int) -> None:
    """Make the default group if there is none, and check that it has enough ranks for a mesh."""
    if not groups.is_initialized():
        setup.init_process_group()
    world_size = groups.get_world_size()
    if size > world_size:
        raise RuntimeError(f"Mesh should not be bigger than default world size {world_size}, but found {size} ranks!")


def current_mesh() -> DeviceMesh:
    """Return the mesh whose ``with`` block this thread is in, the innermost one.

    Raises
    ------
    RuntimeError
        If it is in none.
    """
    if not _entered.meshes:
        raise RuntimeError("No device mesh is currently active! Enter one by `with mesh:`.")
    return _entered.meshes[-1]


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    backend_override: Mapping[int | str, Any] | None = None,
) -> DeviceMesh:
    """Arrange the job's first ranks, in their order, in a mesh of some shape.

    Mirrors ``torch.distributed.init_device_mesh``. All ranks of the job must call it, alike.

    Parameters
    ----------
    device_type
        As for `DeviceMesh`; without an index.
    mesh_shape
        The size of each dimension.
    mesh_dim_names
        A name for each dimension.
    backend_override
        For some dimensions, by index or name: the name of their groups' backend, its options, or a pair of both.

    Raises
    ------
    RuntimeError
        If a name is given twice, the numbers of names and sizes differ, or the mesh is bigger than the job.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> init_device_mesh("cpu", (1,), mesh_dim_names=("data",)).mesh
    array([0])
    >>> dist.destroy_process_group()
    """
    if mesh_dim_names is not None:
        if len(set(mesh_dim_names)) != len(mesh_dim_names):
            raise RuntimeError(f"Each mesh_dim_name must be unique. Found a repeated one in {mesh_dim_names}")
        if len(mesh_shape) != len(mesh_dim_names):
            raise RuntimeError(
                "mesh_shape and mesh_dim_names should have same length! "
                f"Found len(mesh_dim_names): {len(mesh_dim_names)} and len(mesh_shape): {len(mesh_shape)}."
            )
    overrides = overrides_of(backend_override or {}, len(mesh_shape), mesh_dim_names)
    ranks = np.arange(int(np.prod(mesh_shape))).reshape(mesh_shape)
    return DeviceMesh(without_index(device_type), ranks, mesh_dim_names=mesh_dim_names, backend_override=overrides)
