"""What an engine does by itself: asked once, when a group is made."""

from __future__ import annotations

from typing import NamedTuple

from corral.arrays.dtypes import EXTENDED

__all__ = ["REDUCIBLE", "TRAVELING", "Capabilities", "check"]

REDUCIBLE: frozenset[str] = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    }
)
"""Dtypes whose elements reductions combine."""

TRAVELING: frozenset[str] = REDUCIBLE | EXTENDED.keys()
"""Dtypes of numbers that every group moves. (What has other elements, dates for instance, moves as well.)"""


class Capabilities(NamedTuple):
    """What the engine of a group does by itself.

    What it does not, corral derives above it: a group does all of it in any case, at the cost that is said here. What
    cannot be derived is refused when the group is made: see `check`.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> can = dist.group.WORLD.capabilities
    >>> can.devices, can.any_source, can.vectors, can.several_hosts
    (('cpu',), True, True, False)
    >>> "bfloat16" in can.dtypes, "float8_e5m2" in can.reducible
    (True, False)
    >>> dist.destroy_process_group()
    """

    devices: tuple[str, ...] = ("cpu",)
    """Devices whose memory it reads and writes where it lies. Arrays of all others are staged in host memory, pinned
    where they are CUDA's."""

    dtypes: frozenset[str] = TRAVELING
    """Dtypes of numbers that it moves."""

    reducible: frozenset[str] = REDUCIBLE
    """Dtypes that it reduces."""

    any_source: bool = False
    """Whether the engine itself can be asked for what comes next from anyone. If not, each rank listens to each."""

    vectors: bool = False
    """Whether one of its messages can be of pieces of memory that lie apart. If not, small pieces are put together
    first, and large ones are messages of their own."""

    several_hosts: bool = True
    """Whether it reaches from one host to another."""


def check(capabilities: Capabilities) -> str:
    """Return why corral's operations cannot be derived from what an engine does; empty if they can.

    Examples
    --------
    >>> check(Capabilities())
    ''
    >>> check(Capabilities(devices=("cuda",)))
    "it does not take arrays in host memory, where ranks agree (devices=('cuda',))"
    """
    if "cpu" not in capabilities.devices:
        return f"it does not take arrays in host memory, where ranks agree (devices={capabilities.devices})"
    for what, has, wanted in (
        ("move", capabilities.dtypes, TRAVELING),
        ("reduce", capabilities.reducible, REDUCIBLE),
    ):
        missing = wanted - has
        if missing:
            return f"it does not {what} arrays of {', '.join(sorted(missing))}"
    return ""
