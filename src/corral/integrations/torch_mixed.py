"""A process group whose CPU tensors go through corral and those of other devices through other backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from corral.integrations.torch_group import CorralProcessGroup
from corral.integrations.torch_meeting import Descent

if TYPE_CHECKING:
    from corral.backends.base import Backend

__all__ = ["MixedProcessGroup"]

_OPERATIONS = (
    *("send", "recv", "recv_anysource", "broadcast", "reduce", "gather", "scatter", "alltoall"),
    *("allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "all_gather_single"),
    *("all_gather_single_coalesced", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("all_to_all_single", "_allgather_base", "allgather_into_tensor_coalesced", "_reduce_scatter_base"),
    *("reduce_scatter_tensor_coalesced", "alltoall_base"),
)


class MixedProcessGroup(CorralProcessGroup):
    """The group that ``"cpu:corral,cuda:nccl"`` and the like give.

    Parameters
    ----------
    backend, ranks, name, descent
        As for `CorralProcessGroup`.
    others
        A group of torch's of the same ranks, with the backends of the other devices.
    """

    def __init__(self, backend: Backend, ranks: Sequence[int], name: str, descent: Descent, others: Any) -> None:
        super().__init__(backend, ranks, name, descent)
        self.others = others

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *self.others._device_types]

    def _get_backend(self, device: torch.device) -> Any:
        """Return what carries out operations on a device's tensors."""
        return self if device.type == "cpu" else self.others._get_backend(device)

    def _is_others(self, device: torch.device | None) -> bool:
        return device is not None and device.type != "cpu" and device in self.others._device_types

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait until every rank has come, on the device that the options name."""
        if opts is not None and not isinstance(opts, timedelta) and self._is_others(_kind(opts.device)):
            return self.others.barrier(opts)
        return super().barrier(opts, timeout)

    def _start_coalescing(self, device: torch.device) -> None:
        if self._is_others(_kind(device)):
            self.others._start_coalescing(device)
        else:
            super()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        if self._is_others(_kind(device)):
            return self.others._end_coalescing(device)
        return super()._end_coalescing(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long an operation may take from now on."""
        super().set_timeout(timeout)
        self.others.set_timeout(timeout)

    def abort(self) -> None:
        """Make all that is under way in the group fail."""
        self.others.abort()
        super().abort()

    def shutdown(self) -> None:
        """Deliver what was sent, and end the group."""
        if not self.corral.closed:
            self.others.shutdown()
        super().shutdown()


def _kind(device: torch.device | None) -> torch.device | None:
    """Return a device without its number."""
    return None if device is None else torch.device(device.type)


def _device_of(arguments: Sequence[Any]) -> torch.device | None:
    """Return the kind of device of the first tensor in lists of lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return _kind(argument.device)
        if isinstance(argument, (list, tuple)) and (found := _device_of(argument)) is not None:
            return found
    return None


def _choosing(name: str) -> Callable[..., Any]:
    """Make an operation that goes where its tensors' device belongs."""
    own = getattr(CorralProcessGroup, name)

    def operation(self: MixedProcessGroup, *arguments: Any, **keywords: Any) -> Any:
        if self._is_others(_device_of([*arguments, *keywords.values()])):
            return getattr(self.others, name)(*arguments, **keywords)
        return own(self, *arguments, **keywords)

    operation.__name__, operation.__doc__ = name, own.__doc__
    return operation


for _name in _OPERATIONS:
    setattr(MixedProcessGroup, _name, _choosing(_name))
