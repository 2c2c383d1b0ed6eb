"""Entries that are no arrays in other forms: namedtuples, structured arrays, consolidated files."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import NonTensorStack, TensorDict
from tests.tensordict.tensorclasses import Inner

KINDS = (TensorDict, tensordict.TensorDict)
Pair = namedtuple("Pair", "a s")


def make(kind: Any, **options: Any) -> Any:
    stack = NonTensorStack if kind is TensorDict else tensordict.NonTensorStack
    inner = kind({"t": "inner", "b": torch.ones(2, 3), "i": stack(1, "z"), "d": {"k": torch.zeros(2)}}, [2])
    return kind({"a": torch.arange(2.0), "st": stack("p", "q"), "n": inner, "s": "text", "f": None}, [2], **options)


def entries(td: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key in td.keys(True):
        value = td[key]
        if hasattr(value, "keys"):
            found[key] = tuple(value.batch_size), value.names
        else:
            found[key] = value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value
    return found


def test_namedtuples() -> None:
    mine, theirs = (make(kind).to_namedtuple() for kind in KINDS)
    assert mine._fields == (*theirs._fields, "f")  # tensordict leaves out what is None
    assert (mine.st, mine.s, mine.n.t, mine.n.i) == (theirs.st, theirs.s, theirs.n.t, theirs.n.i)
    pairs = [make(kind).select("a", "s").to_namedtuple(Pair) for kind in KINDS]
    assert [type(pair) for pair in pairs] == [Pair, Pair]
    assert pairs[0].s == pairs[1].s == "text"
    back = TensorDict.from_namedtuple(mine, batch_size=[2])
    assert entries(back) == entries(make(TensorDict))


def test_structured_arrays() -> None:
    td = make(TensorDict)
    rows = td.to_struct_array()
    assert rows.shape == (2,)
    assert rows["st"].tolist() == make(tensordict.TensorDict).to_struct_array()["st"].tolist() == ["p", "q"]
    assert rows["s"].tolist() == ["text", "text"]
    assert rows["s"].dtype == "<U4"
    assert rows["n"]["i"].tolist() == [1, "z"]
    assert rows["f"].tolist() == [None, None]
    back = TensorDict.from_struct_array(rows)
    assert back.get(("n", "i")).tolist() == [1, "z"]
    assert back["s"].tolist() == ["text", "text"]
    one = TensorDict(a=1.0, s="x").to_struct_array()
    assert (one.shape, one["s"].item()) == ((), "x")


@pytest.mark.parametrize("options", [{}, {"names": ["time"], "device": "cpu"}])
def test_consolidated_files_of_both_libraries(options: Any, tmp_path: Path) -> None:
    for writer in KINDS:
        path = tmp_path / f"{writer.__module__}"
        written = make(writer, **options).consolidate(path)
        assert written["s"] == "text"
        for reader in KINDS:
            found = reader.from_consolidated(path)
            assert entries(found) == entries(make(reader, **options))
            assert (found.names, found.device) == (make(reader, **options).names, make(reader, **options).device)


def test_consolidated_stacks_of_both_libraries(tmp_path: Path) -> None:
    for package, kind in ((corral, TensorDict), (tensordict, tensordict.TensorDict)):
        td = package.lazy_stack([kind({"x": torch.ones(n), "o": f"of {n}"}) for n in (2, 3)])
        td.names = ["k"]
        objects = package.NonTensorStack(package.NonTensorStack(1, "q"), package.NonTensorStack("q", "r"))
        path = tmp_path / package.__name__
        kind({"z": td, "o": objects}, [2]).consolidate(path)
        for reader in KINDS:
            found = reader.from_consolidated(path)
            assert found.get("o").tolist() == [[1, "q"], ["q", "r"]]
            assert type(found["z"]).__name__ == "LazyStackedTensorDict"
            assert [each["x"].shape[0] for each in found["z"].tensordicts] == [2, 3]
            assert found["z"]["o"] == ["of 2", "of 3"]
            assert found["z"].names == ["k"]


def test_consolidated_tensorclasses_of_tensordict(tmp_path: Path) -> None:
    class Kept(tensordict.TensorClass):
        x: torch.Tensor
        y: str

    tensordict.TensorDict({"k": Kept(x=torch.ones(2), y="e", batch_size=[2])}, [2]).consolidate(tmp_path / "x")
    found = TensorDict.from_consolidated(tmp_path / "x")
    assert type(found["k"]) is TensorDict  # no class of corral's has that name
    assert (found["k", "y"], found["k", "x"].tolist()) == ("e", [1, 1])
    data = (tmp_path / "x").read_bytes()
    length = int.from_bytes(data[-8:], "little")
    form = json.loads(data[-8 - length : -8])
    form["k"]["cls"] = f"<class '{Inner.__module__}.{Inner.__qualname__}'>"
    form["k"]["leaves"] = {"q": form["k"]["leaves"]["x"]}
    form["k"]["non_tensors"] = {}
    text = json.dumps(form).encode()
    (tmp_path / "x").write_bytes(data[: -8 - length] + text + len(text).to_bytes(8, "little"))
    assert type(TensorDict.from_consolidated(tmp_path / "x")["k"]) is Inner


def test_objects_that_no_consolidated_file_can_hold(tmp_path: Path) -> None:
    for value in ({1}, (1, 2), object(), float("nan")):
        td = TensorDict(a=np.zeros(2)).set_non_tensor("o", value)
        with pytest.raises(TypeError, match=r"'o' is a .*exclude"):
            td.consolidate(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_files_that_describe_what_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "x"
    make(TensorDict).consolidate(path)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:], "little")
    for key, value in [
        ("non_tensors", {"s": ["x"]}),
        ("non_tensors", {"s": ["x", [3], None]}),
        ("non_tensors", {"s": ["x", [2], 5]}),
        ("non_tensors", []),
        ("cls_metadata", {"batch_size": [2], "names": ["a", "b"]}),
        ("cls_metadata", {"batch_size": [2], "names": [3]}),
        ("cls_metadata", {"batch_size": [2], "names": 3}),
        ("cls", "NonTensorStack"),
        ("cls", "LazyStackedTensorDict"),
        ("cls", "Other"),
    ]:
        text = json.dumps(json.loads(data[-8 - length : -8]) | {key: value}).encode()
        path.write_bytes(data[: -8 - length] + text + len(text).to_bytes(8, "little"))
        with pytest.raises(ValueError, match=r"from_consolidated|batch size"):
            TensorDict.from_consolidated(path)
