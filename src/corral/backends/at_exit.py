"""What an engine does when its process ends, which a process that was forked from that one must not do."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

__all__ = ["AtExit"]


class AtExit:
    """A call that is made when this process ends, unless it is canceled before; not in processes forked from it.

    Parameters
    ----------
    function
        What to call.

    Examples
    --------
    >>> AtExit(lambda: print("not said")).cancel()
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._pid = os.getpid()
        atexit.register(self._call)

    def _call(self) -> None:
        if os.getpid() == self._pid:
            self._function()

    def cancel(self) -> None:
        """Do not call it."""
        atexit.unregister(self._call)
