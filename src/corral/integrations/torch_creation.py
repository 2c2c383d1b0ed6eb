"""Makes the process groups that torch asks for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from corral.arrays.buffers import register_torch
from corral.integrations.torch import NAME
from corral.integrations.torch_group import CorralProcessGroup
from corral.integrations.torch_meeting import Descent, meet
from corral.integrations.torch_mixed import MixedProcessGroup

__all__ = ["create"]


def create(options: Any) -> CorralProcessGroup:
    """Make a group.

    Parameters
    ----------
    options
        Torch's ``_DistributedBackendOptions``.
    """
    register_torch()  # the engine is then handed tensors as they are
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout = options.timeout.total_seconds()
    others = _other_backends(options)
    default = dist.group.WORLD if dist.is_initialized() else None
    if isinstance(default, CorralProcessGroup) and not default.corral.closed and default.descent.covers(ranks):
        descent = default.descent
        backend = descent.split(ranks, options.group_id, timeout)
    else:
        backend = meet(options.store, ranks, options.group_rank, timeout)
        descent = Descent(backend, ranks)
    if others is None:
        return CorralProcessGroup(backend, ranks, options.group_id, descent)
    return MixedProcessGroup(backend, ranks, options.group_id, descent, others)


def _other_backends(options: Any) -> Any:
    """Return a group of torch's with the backends of other devices, if the caller has asked for such.

    Torch takes a process group that a backend in Python gives it for all that was asked for, also where that was
    ``"cpu:corral,cuda:nccl"``, and tells it nothing of the rest: what it was asked for is known only to its function.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code is not distributed_c10d._new_process_group_helper.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    asked = frame.f_locals["backend_config"].get_device_backend_map()
    others = {device: backend for device, backend in asked.items() if backend != NAME}
    if not others:
        return None
    made = frame.f_locals["pg"]  # has those that came before this one
    present = [device.type for device in made._device_types]
    missing = {device: backend for device, backend in others.items() if device not in present}
    if not missing:
        made._set_group_name(options.group_id)
        made._set_group_desc("undefined")
        return made
    group = _group_of_torch(missing, options, frame.f_locals.get("device_id"))
    for device in present:
        backend = made._get_backend(torch.device(device))
        group._register_backend(torch.device(device), dist.Backend.backend_type_map[others[device]], backend)
    return group


def _group_of_torch(backends: dict[str, str], options: Any, device_id: Any) -> Any:
    """Make a group of torch's own that torch itself does not know of: the one that it is a part of ends it."""
    ranks: Sequence[int] = options.global_ranks_in_group
    group, _ = distributed_c10d._new_process_group_helper(
        options.group_size,
        options.group_rank,
        ranks,
        ",".join(f"{device}:{backend}" for device, backend in backends.items()),
        options.store,
        f"{options.group_id} beside corral",
        timeout=options.timeout,
        device_id=device_id,
    )
    world = distributed_c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config):
        del table[group]
    for tag in ("", world.pg_to_tag.pop(group)):
        world.tags_to_pg[tag].remove(group)
    distributed_c10d._unregister_process_group(group.group_name)
    return group
