"""Groups of torch's as groups of corral's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from corral import backends
from corral.distributed import groups, setup
from corral.distributed.groups import ProcessGroup
from corral.distributed.work import seconds

__all__ = ["from_torch"]


def from_torch(
    group: Any = None,
    timeout: timedelta | float | None = None,
    *,
    allow_pickle: bool | None = None,
) -> ProcessGroup:
    """Make a group of corral's of the ranks of a group of torch's, which talks through that group.

    Every rank of the group calls it. Where there is no default group yet, the new one becomes that; else it is
    another group, as from `new_group`, and its ranks must be ranks of the default group. torch's group stays as it
    is, and must not be destroyed before corral's.

    Parameters
    ----------
    group
        A ``torch.distributed.ProcessGroup`` that takes CPU tensors by gloo; torch's default group when ``None``.
    timeout, allow_pickle
        As for `init_process_group`.

    Returns
    -------
    ProcessGroup
        The new group.

    Raises
    ------
    ValueError
        If the group is of another kind.

    Examples
    --------
    In processes where torch has a group already::

        torch.distributed.init_process_group("gloo")
        corral.distributed.from_torch()
        corral.gather_and_stack(td, dst=0)
    """
    backends.load("gloo")  # the better error, where torch is not installed
    import torch.distributed as torch_dist

    from corral.backends.torch import backend_of

    if group is None:
        if not torch_dist.is_initialized():
            raise ValueError("from_torch: torch has no default group: call torch.distributed.init_process_group first")
        group = torch_dist.group.WORLD
    limit = seconds(setup.DEFAULT_TIMEOUT if timeout is None else timeout)
    assert limit is not None
    ranks = _global_ranks(group) if groups.world is not None else None
    instance = backend_of(group, limit)
    if ranks is None:
        return setup.make_world(instance, allow_pickle=allow_pickle)
    return setup.add_group(instance, ranks, f"torch-{torch_name(group)}", allow_pickle)


def _global_ranks(group: Any) -> list[int]:
    """Return the ranks of a group of torch's, which must be those of corral's default group."""
    import torch.distributed as torch_dist

    ranks: list[int] = torch_dist.get_process_group_ranks(group)
    world = groups.default_group()
    here = ranks[group.rank()]
    if here != world._rank or not set(ranks) <= set(world.ranks):
        raise ValueError(
            f"from_torch: this process is rank {here} for torch and rank {world._rank} for corral; a group beside the "
            "default one must count ranks as that does"
        )
    return ranks


def torch_name(group: Any) -> str:
    """Return the name that torch has for a group of its own."""
    return str(getattr(group, "group_name", "") or id(group))
