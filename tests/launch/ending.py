"""Whether processes that are not this one's children have ended."""

from __future__ import annotations

import os
import time

__all__ = ["is_running", "wait_until_gone"]


def wait_until_gone(pids, seconds=10.0):
    """Fail unless these processes end."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        os.sched_yield()


def is_running(pid):
    """Whether a process is there and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
