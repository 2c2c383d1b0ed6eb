"""The process group that torch gets when it is asked for the backend ``corral``."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from corral.distributed.groups import ProcessGroup
from corral.integrations.torch import NAME
from corral.integrations.torch_calls import Operations
from corral.integrations.torch_meeting import Descent
from corral.integrations.torch_work import JoinedWork

if TYPE_CHECKING:
    from corral.backends.base import Backend

__all__ = ["CorralProcessGroup"]


class CorralProcessGroup(Operations, dist.ProcessGroup):  # type: ignore[misc]
    """Ranks of torch.distributed that talk through corral's engine.

    Torch makes it, for ``init_process_group("corral")`` and the like.

    Parameters
    ----------
    backend
        The engine.
    ranks
        Global ranks of the members.
    name
        The group's name in torch.
    descent
        Where subgroups come from.

    Attributes
    ----------
    corral : corral.distributed.ProcessGroup
        The same ranks as a group of :mod:`corral.distributed`, to be passed there as ``group=``.
    """

    def __init__(self, backend: Backend, ranks: Sequence[int], name: str, descent: Descent) -> None:
        super().__init__(backend.rank, backend.size)
        self.corral = ProcessGroup(backend, ranks, name)
        self.descent = descent
        self._name = name
        self._description = "undefined"
        _open.add(self)

    def __repr__(self) -> str:
        return f"<CorralProcessGroup {self._name!r} of ranks {list(self.corral.ranks)}, rank {self.corral.rank()}>"

    # What torch's C++ asks a group for.

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self.corral._rank

    def getSize(self) -> int:
        return self.corral._size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = self.corral.group_desc = description

    # The same for Python, where torch's own properties would ask the base class.

    rank, size, name = getRank, getSize, getBackendName
    _get_backend_name = getBackendName
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        """Return what carries out operations for a device: here, all devices'."""
        return self

    # What torch asks such an object whether it can.
    supports_coalescing = supports_shrinking = supports_splitting = supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return false: tensors may lie anywhere."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long an operation may take from now on."""
        self.corral.backend.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the engine counts from the beginning."""

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> JoinedWork:
        works, self._coalesced = self._coalesced or [], None
        return JoinedWork(works, [])

    def abort(self) -> None:
        """Make all that is under way in the group fail, here and on the other ranks."""
        self.corral.backend.abort("the group was aborted")
        self.shutdown()

    def shutdown(self) -> None:
        """Deliver what was sent, and end the group."""
        if self.corral.closed:
            return
        self.corral.closed = True
        _open.discard(self)
        # The engine's last group waits for what was sent in all of them.
        others = any(group.descent is self.descent for group in _open)
        self.corral.backend.close(0.0 if others else None)


_open: weakref.WeakSet[CorralProcessGroup] = weakref.WeakSet()


def _at_exit() -> None:
    """Deliver what a process has sent that ends without `destroy_process_group`."""
    by_an_error = getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
    for descent in {group.descent for group in _open}:
        try:
            descent.backend.abandon(deliver=not by_an_error)
        except Exception as error:  # the process is ending: there is nobody to raise to
            print(f"corral: while ending torch's process groups at exit: {error}", file=sys.stderr)


os.register_at_fork(after_in_child=_open.clear)  # what is open then is its parent's to deliver
atexit.register(_at_exit)
