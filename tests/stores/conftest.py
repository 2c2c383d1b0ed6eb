"""One store of each kind."""

from __future__ import annotations

import pytest

import corral.distributed as dist

KINDS = ["hash", "file", "tcp", "prefix"]


def make(kind, folder):
    """Make a store of a kind; files go into the folder."""
    if kind == "hash":
        return dist.HashStore()
    if kind == "file":
        return dist.FileStore(str(folder / "store"), 1)
    if kind == "tcp":
        return dist.TCPStore("127.0.0.1", 0, None, True)
    return dist.PrefixStore("part", dist.HashStore())


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    return make(request.param, tmp_path)


@pytest.fixture(autouse=True)
def no_secret(monkeypatch):
    monkeypatch.delenv("CORRAL_SECRET", raising=False)
