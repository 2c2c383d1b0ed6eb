"""Going on without ranks that are lost."""

from __future__ import annotations

import weakref
from typing import Any

from corral.distributed import groups, setup
from corral.distributed.groups import Group, ProcessGroup

__all__ = ["SHRINK_ABORT", "SHRINK_DEFAULT", "shrink_group"]

SHRINK_DEFAULT = 0
"""Let operations of the group that are under way end first."""

SHRINK_ABORT = 1
"""Abort them."""

_counts: weakref.WeakKeyDictionary[ProcessGroup, int] = weakref.WeakKeyDictionary()


def shrink_group(
    ranks_to_exclude: list[int],
    group: Group = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: Any | None = None,
) -> ProcessGroup:
    """Make a group of the ranks of another one but some, which may be dead, and end the other.

    Mirrors ``torch.distributed.shrink_group``. Only the ranks that remain call it, all with the same arguments.

    Parameters
    ----------
    ranks_to_exclude
        Ranks in the group: in the default group those that `PeerLostError.ranks` names.
    group
        The group to shrink; the default one when ``None``. Then the new group becomes the default one, with global
        ranks counted anew from 0, and all other groups are ended.
    shrink_flags
        `SHRINK_DEFAULT`, or `SHRINK_ABORT` to abort what is under way in the groups that end.
    pg_options
        Accepted for compatibility with torch, and not used.

    Returns
    -------
    ProcessGroup
        The new group.

    Raises
    ------
    ValueError
        If `ranks_to_exclude` is empty, has duplicates or ranks that the group does not have, or leaves none.
    RuntimeError
        If this rank is one of them.
    DistTimeoutError
        If not all remaining ranks call it.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     try:
    ...         dist.barrier()
    ...     except dist.PeerLostError as error:
    ...         dist.shrink_group(list(error.ranks))
    """
    if not isinstance(ranks_to_exclude, list):
        raise TypeError(
            f"shrink_group: ranks_to_exclude must be a list, as in [1, 3], got {type(ranks_to_exclude).__qualname__}"
        )
    if shrink_flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise ValueError(
            f"shrink_group: shrink_flags must be SHRINK_DEFAULT ({SHRINK_DEFAULT}) or SHRINK_ABORT ({SHRINK_ABORT}), "
            f"got {shrink_flags!r}"
        )
    old = groups.default_group() if group is None else groups._known(group)
    if old is None:
        raise ValueError("shrink_group: this rank is not in the given group")
    remaining = _remaining(ranks_to_exclude, old)
    if shrink_flags == SHRINK_ABORT:
        for each in setup.open_groups() if old is groups.world else [old]:
            each.backend.abort("the group is being shrunk")
    count = _counts.get(old, 0)
    _counts[old] = count + 1
    name = f"{old.group_name}-shrunk-{'.'.join(map(str, remaining))}-{count}"
    # The group can be used again if not all come: the old one ends only when the new one stands.
    made = old.backend.split(remaining, name)
    made.barrier()
    if old is not groups.world:
        ranks = [old.ranks[position] for position in remaining]
        new = ProcessGroup(made, ranks, name, old.group_desc, old.allow_pickle)
        setup.replace_group(old, new)
        return new
    made.renumber()
    new = ProcessGroup(made, range(len(remaining)), name, old.group_desc, old.allow_pickle)
    setup.replace_world(new)
    return new


def _remaining(ranks_to_exclude: list[int], old: ProcessGroup) -> list[int]:
    """Return the group ranks that remain, or raise if that makes no sense."""
    if not ranks_to_exclude:
        raise ValueError("shrink_group: ranks_to_exclude must not be empty")
    excluded = [groups._integer(rank, "ranks_to_exclude", "shrink_group") for rank in ranks_to_exclude]
    for rank in excluded:
        if not 0 <= rank < old._size:
            raise ValueError(f"shrink_group: ranks_to_exclude must be in 0 to {old._size - 1}, got {rank}")
    if len(set(excluded)) != len(excluded):
        raise ValueError(f"shrink_group: ranks_to_exclude must not contain duplicates, got {excluded}")
    if len(excluded) == old._size:
        raise ValueError("shrink_group: ranks_to_exclude has all ranks of the group; at least one must remain")
    if old._rank in excluded:
        raise RuntimeError(
            f"shrink_group: rank {old._rank} is one of those to exclude; only the ranks that remain may call it"
        )
    return [rank for rank in range(old._size) if rank not in excluded]
