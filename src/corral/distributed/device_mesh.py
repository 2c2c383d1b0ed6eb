"""`DeviceMesh` and `init_device_mesh`, for programs that import them from torch's module of this name.

Examples
--------
>>> from corral.distributed.device_mesh import init_device_mesh
"""

from __future__ import annotations

from corral.distributed.mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]
