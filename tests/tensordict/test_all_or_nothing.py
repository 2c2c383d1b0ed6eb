"""A write of several entries that fails has written none of them, whatever holds the entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corral
from corral import PersistentTensorDict, TensorDict, lazy_stack


class Pair(corral.TensorClass):
    a: Any
    n: Any
    z: Any = None
    new: Any = None


def entries(batch: tuple[int, ...]) -> dict[str, Any]:
    return {"a": np.zeros((*batch, 3)), "n": TensorDict(c=np.ones((*batch, 2)), batch_size=batch)}


def dense(path: Path) -> Any:
    return TensorDict(entries((2, 2)), batch_size=[2, 2])


def lazy(path: Path) -> Any:
    return lazy_stack([TensorDict(entries((2,)), batch_size=[2]) for _ in range(2)])


def lazy_second(path: Path) -> Any:
    return lazy_stack([TensorDict(entries((2,)), batch_size=[2]) for _ in range(2)], 1)


def lazy_lazy(path: Path) -> Any:
    return lazy_stack([lazy_stack([TensorDict(entries(()))] * 2) for _ in range(2)])


def tensorclass(path: Path) -> Any:
    return Pair(**entries((2, 2)), batch_size=[2, 2])


def lazy_tensorclass(path: Path) -> Any:
    return lazy_stack([Pair(**entries((2,)), batch_size=[2]) for _ in range(2)])


def nested_lazy(path: Path) -> Any:
    rows = lazy_stack([TensorDict(c=np.ones((2, 2)), batch_size=[2]) for _ in range(2)])
    return TensorDict(a=np.zeros((2, 2, 3)), n=rows, batch_size=[2, 2])


def file(path: Path) -> Any:
    pytest.importorskip("h5py")
    return PersistentTensorDict.from_dict(dense(path), path / "a.h5")


def mapped(path: Path) -> Any:
    return dense(path).memmap_(path / "mapped").unlock_()


GOOD = np.full((2, 2, 3), 7.0)
CALLS: dict[str, Callable[[Any], Any]] = {
    "update": lambda td: td.update({"a": GOOD, "z": np.zeros(5)}),
    "update nested": lambda td: td.update({"n": {"c": GOOD}, "z": np.zeros(5)}),
    "update new, nested": lambda td: td.update({"a": GOOD, "n": {"c": GOOD, "d": np.zeros(5)}}),
    "update inplace": lambda td: td.update({"a": GOOD, "n": {"c": np.zeros((2, 2, 9))}}, inplace=True),
    "update inplace, new": lambda td: td.update({"a": GOOD, "z": np.zeros(5)}, inplace=True),
    "update keys": lambda td: td.update({"a": GOOD, "z": np.zeros(5)}, keys_to_update=["a", "z"]),
    "update_": lambda td: td.update_({"a": GOOD, "n": {"c": np.zeros((2, 2, 9))}}),
    "update_ missing": lambda td: td.update_({"a": GOOD, "n": {"q": np.zeros((2, 2))}}),
    "update_ nested key": lambda td: td.update_({"a": GOOD, ("n", "c"): np.zeros((2, 2, 9))}),
    "set nested": lambda td: td.set(("new", "b"), np.zeros(5)),
    "set deeply": lambda td: td.set(("new", "b", "c"), np.zeros(5)),
    "setitem nested": lambda td: td.__setitem__(("new", "b"), np.zeros(5)),
    "set in nested": lambda td: td.set(("n", "e", "f"), np.zeros(5)),
    "rows": lambda td: td.__setitem__(
        0, TensorDict(a=GOOD[0], n=TensorDict(c=np.zeros((2, 9)), batch_size=[2]), batch_size=[2])
    ),
    "rows of a dict": lambda td: td.__setitem__((slice(None), 0), {"a": GOOD[0], "n": {"c": np.zeros((2, 9))}}),
    "update_at_": lambda td: td.update_at_({"a": GOOD[0], "n": {"c": np.zeros((2, 9))}}, 0),
    "cat_tensors": lambda td: td.cat_tensors("a", "a", out_key="z", dim=0),
}


def contents(td: Any) -> Any:
    return {str(key): np.asarray(td.get(key)).tolist() for key in sorted(td.keys(True, True), key=str)}, sorted(
        map(str, td.keys(True))
    )


@pytest.mark.parametrize(
    "make", [dense, lazy, lazy_second, lazy_lazy, tensorclass, lazy_tensorclass, nested_lazy, file, mapped]
)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_half_written(make: Callable[[Path], Any], name: str, tmp_path: Path) -> None:
    td = make(tmp_path)
    before = contents(td)
    with pytest.raises((RuntimeError, KeyError, ValueError, IndexError, TypeError)):
        CALLS[name](td)
    assert contents(td) == before
    td.update_({"a": GOOD})
    assert np.asarray(td.get("a")).tolist() == GOOD.tolist()
