"""Several groups at once: the ranks of a group divided among smaller ones."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from corral.distributed import groups, setup
from corral.distributed.backend_config import BackendConfig
from corral.distributed.groups import NON_GROUP_MEMBER, Group, ProcessGroup
from corral.distributed.work import seconds

__all__ = ["new_subgroups", "new_subgroups_by_enumeration", "split_group"]

_split_counts: weakref.WeakKeyDictionary[ProcessGroup, int] = weakref.WeakKeyDictionary()
"""How often each group was split: its members split it alike, so they count alike."""


def new_subgroups(
    group_size: int | None = None,
    group: Group = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | int | None, list[ProcessGroup | int]]:
    """Divide a group into subgroups of equal size, each of ranks that follow each other.

    Mirrors ``torch.distributed.new_subgroups``. Every rank of the group must call it. Where torch would also need
    the ranks outside `group`, this does not.

    Parameters
    ----------
    group_size
        Number of ranks in each subgroup. When ``None``, that of the devices of a host: of CUDA devices, if torch
        is loaded and sees some; else ``LOCAL_WORLD_SIZE`` of the environment, as launchers set it.
    group
        The group to divide; the default group when ``None``.
    timeout, backend, pg_options, group_desc
        As for `new_group`, for each subgroup.

    Returns
    -------
    tuple
        The subgroup that this rank is in; and all of them, with `GroupMember.NON_GROUP_MEMBER` for the others.

    Raises
    ------
    ValueError
        If the group's size is no multiple of `group_size`.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> mine, subgroups = dist.new_subgroups(1)
    >>> dist.get_process_group_ranks(mine), len(subgroups)
    ([0], 1)
    >>> dist.destroy_process_group()
    """
    parent = groups.default_group() if group is None else groups._known(group)
    if parent is None:
        raise ValueError(
            "new_subgroups: this rank is not in the given group; only the members of a group divide it: "
            "do not call it on the others"
        )
    with groups.refusing(parent, "new_subgroups"):
        group_size = _checked_size(group_size, parent)
        _check_backend(parent, backend, "new_subgroups")
        limit = seconds(timeout)
    parts = [parent.ranks[start : start + group_size] for start in range(0, parent._size, group_size)]
    if parent._size == groups.default_group()._size:
        return new_subgroups_by_enumeration(parts, limit, backend, pg_options, group_desc)
    splits = [[parent._position[rank] for rank in sorted(ranks)] for ranks in parts]
    made = _split(parent, splits, "new_subgroups", limit, group_desc)
    return _mine(made), made


def _checked_size(group_size: int | None, parent: ProcessGroup) -> int:
    if group_size is None:
        group_size = _devices_of_host()
    group_size = groups._integer(group_size, "group_size", "new_subgroups")
    if group_size <= 0:
        raise ValueError(f"new_subgroups: The arg 'group_size' ({group_size}) must be positive")
    if parent._size < group_size:
        raise ValueError(
            f"new_subgroups: The arg 'group_size' ({group_size}) must not exceed the world size ({parent._size})"
        )
    if parent._size % group_size != 0:
        raise ValueError(
            f"new_subgroups: The world size ({parent._size}) must be divisible by 'group_size={group_size}'"
        )
    return group_size


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | int | None, list[ProcessGroup | int]]:
    """Make subgroups of the default group that share no rank.

    Mirrors ``torch.distributed.new_subgroups_by_enumeration``. Every rank of the job must call it, also those
    that are in none of the subgroups.

    Parameters
    ----------
    ranks_per_subgroup_list
        The global ranks of each subgroup.
    timeout, backend, pg_options, group_desc
        As for `new_group`, for each subgroup.

    Returns
    -------
    tuple
        The subgroup that this rank is in, ``None`` if in none; and all of them, with
        `GroupMember.NON_GROUP_MEMBER` for those that this rank is not in.

    Raises
    ------
    ValueError
        If there are no subgroups, or if a rank is in two of them. No group has been made then.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> mine, subgroups = dist.new_subgroups_by_enumeration([[0]])
    >>> mine is subgroups[0]
    True
    >>> dist.destroy_process_group()
    """
    parent = groups.default_group()
    with groups.refusing(parent, "new_group"):  # in the place of the first one that is made
        if ranks_per_subgroup_list is None or len(ranks_per_subgroup_list) == 0:
            raise ValueError(
                "new_subgroups_by_enumeration: The arg 'ranks_per_subgroup_list' cannot be empty; "
                "it holds the global ranks of each subgroup, such as [[0, 1], [2, 3]]"
            )
        # All of them are checked before the first is made.
        parts = [setup._members(parent, [*ranks], True) for ranks in ranks_per_subgroup_list]
        _check_disjoint(parts, "new_subgroups_by_enumeration")
    made = [setup.new_group(ranks, timeout, backend, pg_options, group_desc=group_desc) for ranks in parts]
    return _mine(made), made


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | float | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Split a group into subgroups that share no rank. Only its members take part.

    Mirrors ``torch.distributed.split_group``, but works on any backend and binds no device.

    Parameters
    ----------
    parent_pg
        The group to split; the default group when ``None``.
    split_ranks
        The members of each subgroup as ranks *in the parent group*. They need not be all of its ranks.
    timeout
        As for `new_group`; the parent group's when ``None``.
    pg_options
        Accepted for compatibility with torch, and not used.
    group_desc
        What the subgroups are for; says what they were split from when ``None``.
    backend
        The parent's own, alone or as ``"cpu:shm"``; subgroups have the backend of their parent.

    Returns
    -------
    ProcessGroup or None
        The subgroup that this rank is in; its group ranks follow the order of the parent's.

    Raises
    ------
    ValueError
        If a split is empty, or has a rank twice, or one that the parent has not.
    MismatchError
        On every rank, if ranks called it with different splits.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> dist.split_group(split_ranks=[[0]]).group_desc
    'default_pg:split:0'
    >>> dist.destroy_process_group()
    """
    parent = groups.default_group() if parent_pg is None else groups._known(parent_pg)
    if parent is None:
        raise ValueError("split_group: this rank is not part of the parent group; only its members split a group")
    with groups.refusing(parent, "split_group"):
        if split_ranks is None or len(split_ranks) == 0:
            raise ValueError(
                "split_group: split_ranks cannot be None or empty; it holds the group ranks of each subgroup, "
                "such as [[0, 1], [2, 3]]"
            )
        _check_backend(parent, backend, "split_group")
        splits = [_positions(parent, ranks) for ranks in split_ranks]
        _check_disjoint(splits, "split_group")
        limit = seconds(timeout)
    mine = _mine(_split(parent, splits, "split_group", limit, group_desc))
    return mine if isinstance(mine, ProcessGroup) else None


def _split(
    parent: ProcessGroup,
    splits: Sequence[Sequence[int]],
    operation: str,
    limit: float | None,
    group_desc: str | None,
) -> list[ProcessGroup | int]:
    """Make the group of each split that has this rank, once the parent's members have said the same splits."""
    count = _split_counts.get(parent, 0)
    name = f"{parent.group_name}/{count}"
    global_ranks = ([str(parent.ranks[position]) for position in split] for split in splits)
    setup.agree(parent, operation, name, "|".join(map(",".join, global_ranks)))
    _split_counts[parent] = count + 1
    desc = f"{parent.group_desc}:split:{count}" if group_desc is None else group_desc
    return [
        setup.make_subgroup(parent, split, f"{name}.{number}", limit, desc, parent.allow_pickle)
        if parent._rank in split
        else NON_GROUP_MEMBER
        for number, split in enumerate(splits)
    ]


def _mine(made: Sequence[ProcessGroup | int]) -> ProcessGroup | None:
    return next((one for one in made if isinstance(one, ProcessGroup)), None)


def _positions(parent: ProcessGroup, ranks: Sequence[int]) -> list[int]:
    """Return the group ranks of one split, checked and sorted."""
    split = sorted(groups._integer(rank, "split_ranks", "split_group") for rank in ranks)
    if not split:
        raise ValueError("split_group: the split group cannot be empty")
    if len(set(split)) != len(split):
        raise ValueError(f"split_group: the split group cannot have duplicate ranks, got {split}")
    if split[0] < 0 or split[-1] >= parent._size:
        raise ValueError(
            f"split_group: split_ranks are ranks in the parent group, 0 to {parent._size - 1}, not global ranks; "
            f"got {split} for {parent!r}"
        )
    return split


def _check_disjoint(parts: Sequence[Sequence[int]], operation: str) -> None:
    owner: dict[int, Sequence[int]] = {}
    for part in parts:
        for rank in part:
            if rank in owner:
                raise ValueError(
                    f"{operation}: Rank {rank} has appeared in both subgroup {list(owner[rank])} and {list(part)}; "
                    "subgroups made together share no rank: make overlapping ones by calls of their own"
                )
            owner[rank] = part


def _check_backend(parent: ProcessGroup, backend: str | None, operation: str) -> None:
    if backend is None:
        return
    wanted = sorted(set(BackendConfig(backend).get_device_backend_map().values()))
    if wanted != [parent.backend.name]:
        raise ValueError(
            f"{operation}: a subgroup has the backend of its parent group, {parent.backend.name!r}, got {backend!r}"
        )


def _devices_of_host() -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.device_count())
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdecimal():
        return int(local)
    raise ValueError(
        "new_subgroups: there is no group_size to fall back on: torch with CUDA devices is not loaded, and "
        "LOCAL_WORLD_SIZE is not in the environment. Pass group_size."
    )
