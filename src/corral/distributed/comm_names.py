"""What a program says its communication is for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

__all__ = ["record_comm", "recorded_name"]

_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("corral.comm_name", default=None)


@contextlib.contextmanager
def record_comm(name: str) -> Iterator[None]:
    """Give the operations that are called in a block a name of the program's own.

    Mirrors ``torch.distributed.record_comm``, where the name is shown in profiles. Here errors show it.

    Parameters
    ----------
    name
        What the operations are for.

    Examples
    --------
    >>> with record_comm("gather of layer 1"):
    ...     recorded_name()
    'gather of layer 1'
    >>> recorded_name() is None
    True
    """
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def recorded_name() -> str | None:
    """Return the name that is given to operations here, if there is one."""
    return _name.get()
