"""How much is said for debugging."""

from __future__ import annotations

import enum
import os

__all__ = ["DebugLevel", "get_debug_level", "set_debug_level", "set_debug_level_from_env"]

VARIABLE = "TORCH_DISTRIBUTED_DEBUG"
"""The environment variable that has the level; torch's own, so that it holds for both."""


class DebugLevel(enum.Enum):
    """How much is said for debugging; mirrors ``torch.distributed.DebugLevel``.

    Nothing is checked at one level and not at another: a call that does not fit is an error on every rank at all
    of them. At ``DETAIL`` a `DeviceMesh` is printed with its ranks.
    """

    OFF = 0
    INFO = 1
    DETAIL = 2

    def __int__(self) -> int:
        return self.value


_level = DebugLevel.OFF


def get_debug_level() -> DebugLevel:
    """Return the level in force.

    Examples
    --------
    >>> before = get_debug_level()
    >>> set_debug_level(DebugLevel.DETAIL)
    >>> get_debug_level().name
    'DETAIL'
    >>> set_debug_level(before)
    """
    return _level


def set_debug_level(level: DebugLevel, /) -> None:
    """Put a level in force.

    Raises
    ------
    TypeError
        If it is no `DebugLevel`.
    """
    global _level
    if not isinstance(level, DebugLevel):
        raise TypeError(f"set_debug_level: level must be a DebugLevel, got {level!r}; for instance DebugLevel.INFO")
    _level = level


def set_debug_level_from_env() -> None:
    """Put the level in force that ``TORCH_DISTRIBUTED_DEBUG`` of the environment has, if it has one.

    This is done once by itself, when `corral.distributed` is imported.

    Raises
    ------
    ValueError
        If it is neither ``OFF``, ``INFO`` nor ``DETAIL``.
    """
    written = os.environ.get(VARIABLE)
    if written is None:
        return
    level = DebugLevel.__members__.get(written.upper())
    if level is None:
        raise ValueError(f"The value of {VARIABLE} must be OFF, INFO, or DETAIL, got {written!r}")
    set_debug_level(level)


set_debug_level_from_env()
