"""Make ``corral`` a backend of torch.distributed, for CPU tensors.

Torch itself loads this where corral is installed (the entry point ``torch.backends``); elsewhere import this module.

Examples
--------
>>> import corral.integrations.torch
>>> import torch.distributed
>>> torch.distributed.Backend("corral")
'corral'
"""

from __future__ import annotations

from typing import Any

__all__ = ["NAME", "register"]

NAME = "corral"
"""What torch.distributed knows the backend by."""


def register() -> None:
    """Tell torch.distributed of the backend; the first call does it, others nothing.

    Mirrors what a package of a backend does with ``torch.distributed.Backend.register_backend``.

    Examples
    --------
    >>> register()
    """
    # Torch calls this at the end of its own import, which may have been begun by the first line here.
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: Any) -> Any:
    """Make a process group: not before one is asked for are the modules imported that this takes."""
    from corral.integrations.torch_creation import create

    return create(options)


register()
