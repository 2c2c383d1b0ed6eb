"""What holds for the whole run: hung tests say where, and nothing is left behind."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest

faulthandler.enable()


def _children() -> set[int]:
    """Processes of this one, other than the helper that multiprocessing keeps for the whole run."""
    mine = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == os.getpid() and b"resource_tracker" not in command:
            mine.add(int(entry.name))
    return mine


def _files() -> set[str]:
    """What corral could have left: everything in /dev/shm, and what is named after it in /tmp."""
    shared = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} if os.path.isdir("/dev/shm") else set()
    return shared | {f"/tmp/{name}" for name in os.listdir("/tmp") if "corral" in name}


@pytest.fixture(scope="session", autouse=True)
def nothing_left():
    files, children = _files(), _children()
    yield
    assert _files() - files == set()
    assert _children() - children == set()
