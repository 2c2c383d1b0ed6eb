"""Objects in HDF5 files: written in place, and row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensordict
import torch

import corral
from corral import NonTensorStack, PersistentTensorDict, TensorDict


def create(path: Path, kind: Any = TensorDict) -> Any:
    stack = NonTensorStack if kind is TensorDict else tensordict.NonTensorStack
    files = PersistentTensorDict if kind is TensorDict else tensordict.PersistentTensorDict
    source = kind({"a": torch.zeros(3), "s": "old", "st": stack("p", "q", "r"), "n": {"s": "inner"}}, [3])
    return files.from_dict(source, path)


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value  # as which tensordict reads it


def objects(td: Any) -> list[Any]:
    return [text(td[key]) for key in ("s", "st", ("n", "s"))]


def stack(kind: Any, *data: Any) -> Any:
    return (NonTensorStack if kind is TensorDict else tensordict.NonTensorStack)(*data)


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "set_": lambda kind, td: td.set_("s", "new"),
    "set_ stack": lambda kind, td: td.set_("st", stack(kind, "x", "y", "zz")),
    "set": lambda kind, td: td.set("s", "new", inplace=True),
    "update": lambda kind, td: td.update(kind({"s": "new", "st": stack(kind, "1", "2", "3")}, [3]), inplace=True),
    "several for one": lambda kind, td: td.update(kind({"s": stack(kind, "1", "2", "3")}, [3]), inplace=True),
    "one for several": lambda kind, td: td.update(kind({"st": "one"}, [3]), inplace=True),
}


@pytest.mark.filterwarnings("ignore:The h5 backend:FutureWarning")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_equal_those_of_tensordict(write: Any, tmp_path: Path) -> None:
    found = []
    for name, kind in (("mine", TensorDict), ("theirs", tensordict.TensorDict)):
        td = create(tmp_path / name, kind)
        write(kind, td)
        found.append(objects(td))
        td.close()
    assert found[0] == found[1]


def test_rows(tmp_path: Path) -> None:
    td = create(tmp_path / "x.h5")
    td[0] = TensorDict(a=1.0, s="new", st="P")
    assert (td["s"], td["st"], td["a"].tolist()) == (["new", "old", "old"], ["P", "q", "r"], [1, 0, 0])
    td[1:].set_("st", NonTensorStack("Q", "R"))
    td[2].set_("s", "last")
    assert (td["s"], td["st"]) == (["new", "old", "last"], ["P", "Q", "R"])
    td.set_at_(("n", "s"), "row", 1)
    assert td["n", "s"] == ["inner", "row", "inner"]
    td.close()


def test_what_the_file_cannot_hold_changes_nothing(tmp_path: Path) -> None:
    td = create(tmp_path / "x.h5")
    before = objects(td)
    for write in (
        lambda: td.set_("s", {1}),
        lambda: td.set("s", {1}),
        lambda: td.set_("st", NonTensorStack("x", 1, "y")),
        lambda: td.__setitem__(0, TensorDict(st=NonTensorStack(5).tolist()[0])),
    ):
        with pytest.raises((TypeError, RuntimeError)):
            write()
        assert objects(td) == before
    td.close()


def test_a_stack_gathered_without_a_file_is_the_same(tmp_path: Path) -> None:
    rows = corral.stack([TensorDict(s=f"from {i}") for i in range(3)])
    td = create(tmp_path / "x.h5")
    td.update(rows, inplace=True)
    assert td["s"] == rows["s"]
    td.close()
