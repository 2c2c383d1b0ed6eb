"""The names of :mod:`corral.distributed`, for programs that import them from torch's module of this name.

Examples
--------
>>> from corral.distributed import distributed_c10d as c10d
>>> c10d.is_initialized()
False
"""

from __future__ import annotations

import corral.distributed as _dist
from corral.distributed import *  # noqa: F403
from corral.distributed.groups import default_group as _get_default_group  # noqa: F401

__all__ = [*_dist.__all__]
