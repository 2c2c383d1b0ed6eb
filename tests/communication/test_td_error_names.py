"""Errors name the method that was called, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import corral.distributed as dist
from corral import TensorDict
from tests.distributed.ranks import run


def refused(method: str, kinds: Any, call: Callable[[], Any]) -> None:
    with pytest.raises(kinds) as caught:
        call()
    assert str(caught.value).startswith(f"TensorDict.{method}"), caught.value


def methods(rank: int, size: int) -> None:
    td = TensorDict(a=np.zeros(2))
    masked = TensorDict(a=np.zeros(2), bad=object())  # refused where nothing may be pickled
    outside = dist.new_group([0])
    mismatch = (dist.DistBackendError, ValueError, TypeError)
    refused("all_gather", mismatch, lambda: masked.all_gather())
    refused("broadcast", mismatch, lambda: masked.broadcast(src=0))
    refused("broadcast", mismatch, lambda: td.broadcast(src=7))
    refused("gather", mismatch, lambda: masked.gather(dst=0))
    refused("gather", mismatch, lambda: td.gather(dst=7))
    refused("scatter", mismatch, lambda: td.scatter(0, [masked] * size if rank == 0 else None))
    refused("scatter", mismatch, lambda: td.scatter(0, [td] if rank == 0 else None))
    refused("broadcast", mismatch, lambda: td.broadcast(src=0, inplace=True) if rank else masked.broadcast(src=0))
    refused("all_reduce", TypeError, lambda: td.all_reduce("sum") if rank == 0 else _misfit(td))
    if rank == 0:
        refused("init_remote", mismatch, lambda: masked.init_remote(1))
    elif rank == 1:
        refused("from_remote_init", mismatch, lambda: TensorDict.from_remote_init(0))
    for method in ("all_gather", "broadcast", "gather", "scatter"):
        refused(method, TypeError, lambda name=method: getattr(td, name)(group="everyone"))
    if rank:
        for method in ("all_gather", "gather"):
            with pytest.warns(UserWarning, match=rf"TensorDict\.{method} .*does not belong") as warned:
                assert getattr(td, method)(group=outside) is None
            assert warned[0].filename == __file__
    assert [each["a"].shape for each in td.all_gather()] == [(2,)] * size  # the group is as it was


def _misfit(td: TensorDict) -> None:
    """Raise the error of the other rank as one of this rank's."""
    with pytest.raises(dist.MismatchError, match=r"^TensorDict\.all_reduce: .*op must be a member of"):
        td.all_reduce()
    raise TypeError("TensorDict.all_reduce: as it should be")


def test_errors_name_the_method() -> None:
    run(methods, 2, environment={"CORRAL_PICKLE": "deny"})
