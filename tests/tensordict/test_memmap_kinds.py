"""Names of dimensions, lazy stacks and objects in directories: written by either library, and read by the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import NonTensorData, NonTensorStack, TensorDict, lazy_stack
from tests.tensordict.trees import plain

LIBRARIES = (tensordict, corral)
PAIRS = [(writer, reader) for writer in LIBRARIES for reader in LIBRARIES if corral in (writer, reader)]
pairs = pytest.mark.parametrize(("writer", "reader"), PAIRS, ids=[f"{w.__name__}-{r.__name__}" for w, r in PAIRS])


def row(library: Any, length: int, **more: Any) -> Any:
    return library.TensorDict({"r": torch.arange(length), **more}, batch_size=[])


def example(library: Any) -> Any:
    nested = library.TensorDict({"x": torch.arange(6).reshape(2, 3)}, batch_size=[2, 3], names=["u", "v"])
    return library.TensorDict(
        {
            "a": torch.arange(4.0).reshape(2, 2),
            "lazy": library.lazy_stack([row(library, 2), row(library, 3, q=torch.ones(1))]),
            "one": "text",
            "each": library.NonTensorStack("a", "b"),
            "dict": library.NonTensorData({"k": [1, None, 2.5]}, [2]),
            "n": nested,
        },
        batch_size=[2],
        names=["u"],
    )


@pairs
def test_all_kinds(tmp_path: Path, writer: Any, reader: Any) -> None:
    saved = example(writer).memmap(tmp_path)
    found = reader.TensorDict.load_memmap(tmp_path)
    assert saved.is_locked
    for td in (saved, found):
        assert td.names == ["u"]
        assert td["n"].names == ["u", "v"]
        assert plain(td["n"]) == plain(example(writer)["n"])
        assert (td["one"], list(td["each"]), td["dict"]) == ("text", ["a", "b"], {"k": [1, None, 2.5]})
        assert td["lazy"].stack_dim == 0
        assert [td["lazy"][i]["r"].tolist() for i in range(2)] == [[0, 1], [0, 1, 2]]
        assert td["lazy"][1]["q"].tolist() == [1.0]


@pairs
@pytest.mark.parametrize("dim", [0, 1])
def test_lazy_stacks(tmp_path: Path, writer: Any, reader: Any, dim: int) -> None:
    members = [writer.TensorDict({"a": torch.arange(3) + i}, batch_size=[3]) for i in range(2)]
    stack = writer.lazy_stack(members, dim)
    stack.memmap(tmp_path)
    found = reader.TensorDict.load_memmap(tmp_path)
    assert type(found).__name__ == "LazyStackedTensorDict"
    assert tuple(found.batch_size) == tuple(stack.batch_size)
    assert found["a"].tolist() == stack["a"].tolist()


@pairs
def test_names_of_a_stacked_dimension(tmp_path: Path, writer: Any, reader: Any) -> None:
    stack = writer.lazy_stack([writer.TensorDict({"a": torch.arange(3)}, batch_size=[3]) for _ in range(2)])
    stack.names = ["s", "t"]
    stack.memmap(tmp_path)
    assert list(reader.TensorDict.load_memmap(tmp_path).names) == ["s", "t"]


@pairs
def test_objects_of_several_dimensions(tmp_path: Path, writer: Any, reader: Any) -> None:
    stack = writer.NonTensorStack
    objects = stack(stack("a", "b", "c"), stack("d", "e", "f"))
    writer.TensorDict({"s": objects}, batch_size=[2, 3]).memmap(tmp_path)
    found = reader.TensorDict.load_memmap(tmp_path)
    assert [list(r) for r in found["s"]] == [["a", "b", "c"], ["d", "e", "f"]]
    assert found[1]["s"][2] == "f"


@pytest.mark.filterwarnings("ignore")
@pairs
def test_objects_that_need_a_pickle(tmp_path: Path, writer: Any, reader: Any) -> None:
    one, each = {1, 2}, [(1,), {3}]
    td = writer.TensorDict({"one": writer.NonTensorData(one, [2]), "each": writer.NonTensorStack(*each)}, [2])
    td.memmap(tmp_path)
    found = reader.TensorDict.load_memmap(tmp_path, allow_pickle=True)
    assert (found["one"], list(found["each"])) == (one, each)
    if reader is corral:
        with pytest.raises(RuntimeError, match="allow_pickle=True"):
            reader.TensorDict.load_memmap(tmp_path)


def test_what_json_would_change_is_pickled(tmp_path: Path) -> None:
    for number, data in enumerate([(1, 2), {1: 2}, float("nan"), [1, (2,)], b"x", np.float64(1.0)]):
        TensorDict(x=NonTensorData(data)).memmap(tmp_path / str(number))
        assert (tmp_path / str(number) / "x" / "other.pickle").exists()
        found = TensorDict.load_memmap(tmp_path / str(number), allow_pickle=True)["x"]
        assert repr(found) == repr(data)


def test_saved_again(tmp_path: Path) -> None:
    """What is there already is written over; what it had beyond the new is not taken for a part of it."""
    TensorDict(x=NonTensorData({1}), y=1).memmap(tmp_path)
    TensorDict(x="text", y=1).memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path)["x"] == "text"
    rows = [TensorDict(a=np.arange(3)) for _ in range(3)]
    lazy_stack(rows).memmap(tmp_path / "lazy")
    with pytest.raises(RuntimeError, match="more than 2 members"):
        lazy_stack(rows[:2]).memmap(tmp_path / "lazy")
    assert TensorDict.load_memmap(tmp_path / "lazy").batch_size == (3,)


def test_in_place_and_refreshed(tmp_path: Path) -> None:
    td = TensorDict(
        a=np.arange(2), s=NonTensorStack("x", "y"), l=lazy_stack([TensorDict(r=np.zeros(1))] * 2), batch_size=[2]
    )
    assert td.memmap_(tmp_path) is td
    assert td.is_memmap()
    assert isinstance(td["l"][0]["r"], np.memmap)
    found = TensorDict.load_memmap(tmp_path)
    td["l"][1]["r"][0] = 7
    td["a"][0] = 5
    assert found["l"][1]["r"].tolist() == [7]
    found.memmap_()
    found.memmap_refresh_()
    assert found["s"] == ["x", "y"]
    assert found["a"].tolist() == [5, 1]


@pytest.mark.parametrize(
    "text",
    [
        '{"_type": "<class \'tensordict._lazy.LazyStackedTensorDict\'>", "stack_dim": "0"}',
        '{"_type": "<class \'tensordict._lazy.LazyStackedTensorDict\'>", "stack_dim": 0}',
        '{"_type": "<class \'tensordict.tensorclass.NonTensorData\'>"}',
        '{"_type": "<class \'tensordict.tensorclass.NonTensorStack\'>", "data": 5}',
        '{"_class": "tensordict:TensorDict", "shape": [2], "_names": ["a", "b"]}',
        '{"_class": "tensordict:TensorDict", "shape": [2], "_names": [5]}',
    ],
)
def test_wrong_descriptions(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises((ValueError, TypeError)):
        TensorDict.load_memmap(tmp_path)


ADD = """
import sys
from corral import TensorDict
path, number = sys.argv[1], int(sys.argv[2])
td = TensorDict.load_memmap(path)
for member in td["l"].tensordicts:
    member["r"][number] += number + 1
td["a"][number] += 1
assert "torch" not in sys.modules
"""


def test_several_processes_at_once(tmp_path: Path) -> None:
    members = [TensorDict(r=np.zeros(4, int)) for _ in range(4)]
    TensorDict(a=np.zeros((4, 2), int), l=lazy_stack(members), batch_size=[4]).memmap(tmp_path)
    processes = [subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path), str(number)]) for number in range(4)]
    assert [process.wait(150) for process in processes] == [0] * 4
    found = TensorDict.load_memmap(tmp_path)
    assert found["a"].tolist() == [[1, 1]] * 4
    assert [td["r"].tolist() for td in found["l"].tensordicts] == [[1, 2, 3, 4]] * 4


@pytest.mark.parametrize("threads", [0, 3])
def test_a_bar_shows_what_is_done(tmp_path: Path, threads: int, capsys: pytest.CaptureFixture[str]) -> None:
    td = TensorDict({str(number): np.full(1000, number) for number in range(20)}, batch_size=[1000])
    td.memmap(tmp_path / "quiet", num_threads=threads)
    assert capsys.readouterr().err == "", "no bar where there is no terminal"
    td.memmap(tmp_path / "shown", num_threads=threads, progress=True)
    shown = capsys.readouterr().err
    assert "Saving shown" in shown
    assert "160.0/160.0 kB" in shown
    found = TensorDict.load_memmap(tmp_path / "shown", progress=True)
    assert "Loading shown" in capsys.readouterr().err
    assert plain(found) == plain(td)
