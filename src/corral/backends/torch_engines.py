"""Backends named after torch's engines for device memory, such as NCCL, and whether torch has them here.

Their ranks agree, and exchange arrays, by gloo; what lies in device memory passes through pinned host memory. So a
program written for one of them runs, with the errors and time-outs of every other backend, where torch has that
engine; it does not carry the data itself.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["is_built"]

_LIBRARIES = {"nccl": "libtorch_cuda.so", "xccl": "libtorch_xpu.so", "ucc": "libtorch_cuda.so"}
"""A library that torch has if it is built for the devices that an engine serves."""


def is_built(engine: str) -> bool:
    """Whether torch is installed with one of its engines, as far as can be told without importing it.

    Examples
    --------
    >>> is_built("nccl") in (True, False)
    True
    """
    dist = sys.modules.get("torch.distributed")
    if dist is not None:
        return bool(getattr(dist, f"is_{engine}_available", lambda: False)())
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or engine == "ucc":  # which only those have who build torch themselves
        return False
    return (Path(spec.origin).parent / "lib" / _LIBRARIES[engine]).exists()


def _missing(engine: str, device: str) -> ImportError:
    return ImportError(
        f"this build of torch has no {engine.upper()}, which serves {device} devices; where arrays are in host memory, "
        "use 'gloo' or 'shm', which take those of devices as well"
    )


def __getattr__(name: str) -> Any:
    """Make the class of a backend, if torch has its engine."""
    engine, _, rest = name.partition("Backend")
    engine = engine.lower()
    if rest or engine not in _LIBRARIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    from corral.backends.torch import GlooBackend

    if not is_built(engine):
        raise _missing(engine, {"xccl": "XPU"}.get(engine, "CUDA"))
    return type(name, (GlooBackend,), {"__doc__": f"A group of ranks named after {engine.upper()}.", "called": engine})
