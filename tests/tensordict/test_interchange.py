"""Conversions from and to structures of other libraries, beside tensordict's."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import NonTensorStack, TensorDict
from tests.tensordict.trees import plain

Step = collections.namedtuple("Step", "obs reward")


@dataclasses.dataclass
class Record:
    obs: Any
    inner: Any


STRUCTURES = {
    "dict": {"a": np.arange(3), "b": {"c": np.ones((3, 2))}},
    "tuple": (np.arange(3), (np.ones(3), np.zeros(3))),
    "namedtuple": Step(np.ones((3, 2)), {"x": np.arange(3)}),
    "namedtuple in tuple": (Step(np.ones((3, 2)), np.arange(3)),),
    "dataclass": Record(np.ones((3, 2)), Record(np.arange(3), np.zeros(3))),
    "struct": np.array([(1, 2.0), (3, 4.0), (5, 6.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "struct with shapes": np.zeros((3, 2), dtype=[("a", "i4", 2), ("b", "f8")]),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize(
    "kwargs", [{}, {"auto_batch_size": True}, {"batch_size": [3]}, {"auto_batch_size": True, "batch_dims": 1}]
)
def test_from_any(name: str, kwargs: dict[str, Any]) -> None:
    mine = TensorDict.from_any(STRUCTURES[name], **kwargs)
    theirs = tensordict.TensorDict.from_any(STRUCTURES[name], **kwargs)
    assert plain(mine) == plain(theirs)


def test_both_batch_sizes_are_an_error() -> None:
    for kind in (TensorDict, tensordict.TensorDict):
        for name in ("tuple", "namedtuple", "dataclass", "struct"):
            call = getattr(kind, f"from_{'struct_array' if name == 'struct' else name}")
            with pytest.raises(TypeError):
                call(STRUCTURES[name], auto_batch_size=True, batch_size=[3])


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_to_struct_array(make: Any) -> None:
    source = {
        "a": np.arange(6).reshape(3, 2),
        "b": {"c": np.arange(3.0)},
        "d": np.arange(12, dtype="u1").reshape(3, 2, 2),
    }
    mine = TensorDict(_map(make, source), batch_size=[3]).to_struct_array()
    theirs = tensordict.TensorDict(_map(torch.from_numpy, source), batch_size=[3]).to_struct_array()
    assert mine.dtype == theirs.dtype
    assert mine.tobytes() == theirs.tobytes()
    assert plain(TensorDict.from_struct_array(mine)) == plain(TensorDict(source, batch_size=[3]))


def _map(make: Any, source: Any) -> Any:
    return {key: _map(make, value) if isinstance(value, dict) else make(value) for key, value in source.items()}


def test_to_namedtuple() -> None:
    source = {"obs": torch.ones(3), "reward": {"x": torch.arange(3)}}
    mine, theirs = TensorDict(source).to_namedtuple(), tensordict.TensorDict(source).to_namedtuple()
    assert type(mine).__name__ == type(theirs).__name__
    assert mine._fields == theirs._fields
    assert mine.reward.x.tolist() == theirs.reward.x.tolist()
    assert type(TensorDict(source).to_namedtuple(Step)) is Step
    for kind in (TensorDict, tensordict.TensorDict):
        with pytest.raises(TypeError):
            kind(q=torch.ones(2)).to_namedtuple(Step)


def test_json(tmp_path: Path) -> None:
    td = TensorDict(a=np.arange(3), b={"c": np.arange(3.0) / 2, "d": np.array([True, False, True])}, batch_size=[3])
    theirs = tensordict.TensorDict(td.to_dict(), batch_size=[3])
    for lines in (False, True):
        for writer in (td, theirs):
            writer.to_json(tmp_path / "file", separator=".", lines=lines)
            found = TensorDict.from_json(tmp_path / "file", separator=".", lines=lines)
            assert plain(found) == plain(td)
            again = tensordict.TensorDict.from_json(tmp_path / "file", separator=".", lines=lines)
            assert plain(again) == plain(td)
    with pytest.raises(ValueError, match="separator"):
        td.to_json(tmp_path / "file")
    (tmp_path / "gaps").write_text(json.dumps([{"a": 1}, {"b": 2}]))
    found = TensorDict.from_json(tmp_path / "gaps")
    assert np.isnan(found["a"][1])
    assert found["b"][1] == 2
    (tmp_path / "no").write_text("{}")
    with pytest.raises(ValueError, match=r"array of records|scalar"):
        TensorDict.from_json(tmp_path / "no")


@pytest.mark.parametrize("form", ["pandas", "csv", "parquet"])
def test_tables(tmp_path: Path, form: str) -> None:
    td = TensorDict(a=np.arange(3), b={"c": np.arange(3.0) / 2}, batch_size=[3])
    library = "pyarrow" if form == "parquet" else "pandas"
    path = tmp_path / "file"
    if importlib.util.find_spec(library) is None:
        args = () if form == "pandas" else (path,)
        with pytest.raises(ImportError, match=f"to_{form} needs {library}.*pip install {library}"):
            getattr(td, f"to_{form}")(*args, separator=".")
        return
    if form == "pandas":
        frame = td.to_pandas(separator=".")
        assert list(frame.columns) == ["a", "b.c"]
        assert plain(TensorDict.from_pandas(frame, separator=".")) == plain(td)
        assert plain(tensordict.TensorDict.from_pandas(frame, separator=".")) == plain(td)
        assert TensorDict.from_pandas(frame, dtype="float32")["a"].dtype == np.float32
        return
    for writer in (td, tensordict.TensorDict(td.to_dict(), batch_size=[3])):
        getattr(writer, f"to_{form}")(path, separator=".")
        for reader in (TensorDict, tensordict.TensorDict):
            assert plain(getattr(reader, f"from_{form}")(path, separator=".")) == plain(td)


@dataclasses.dataclass
class Measured:
    obs: Any
    words: Any = "text"


def test_from_dataclass_as_a_tensorclass() -> None:
    values = Measured(torch.zeros(3, 4))
    for kind, library in ((TensorDict, corral), (tensordict.TensorDict, tensordict)):
        made = kind.from_dataclass(values, as_tensorclass=True, batch_size=[3])
        assert (type(made).__name__, tuple(made.batch_size), made.words) == ("Measured_tc", (3,), "text")
        assert tuple(kind.from_dataclass(values, as_tensorclass=True, auto_batch_size=True).batch_size) == (3, 4)
        assert library.is_tensorclass(kind.from_dataclass(Measured, as_tensorclass=True))
        target = library.from_dataclass(Measured)
        assert type(kind.from_dataclass(values, as_tensorclass=True, dest_cls=target)) is target
        assert type(kind.from_dataclass(values, dest_cls=target)) is kind  # takes as_tensorclass
        with pytest.raises(TypeError):
            kind.from_dataclass(values, as_tensorclass=True, auto_batch_size=True, batch_size=[3])


@pytest.mark.parametrize(
    "items",
    [[1, 2], [[1, 2], [3, 4]], [[1], [2, 3]], [1, 2.0], [True, 1], [], [[], []], ["a", "b"], [[1], ["a"]], [{"a": 1}]],
    ids=str,
)
def test_lists(items: list[Any]) -> None:
    found = []
    for kind, stack in ((TensorDict, NonTensorStack), (tensordict.TensorDict, tensordict.NonTensorStack)):
        made = [kind.from_any(items), kind.from_any((items,)).get("0")]
        found.append([(isinstance(each, stack), each.tolist()) for each in made])
    assert found[0] == found[1]
