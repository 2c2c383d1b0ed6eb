"""In a notebook, a TensorDict is a table."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corral
from corral import NonTensorData, NonTensorStack, TensorClass, TensorDict


class Step(TensorClass):
    obs: Any
    env: str
    reward: Any = None


def table(td: Any) -> list[list[str]]:
    """Return the cells of a table, as a browser shows them, with two spaces for each level of keys."""
    rows = re.findall(r"<tr>(.*?)</tr>", td._repr_html_())
    found = []
    for row in rows[1:]:
        cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        indent = re.search(r"padding-left: ([\d.]+)em", row)
        level = round((float(indent[1]) - 0.8) / 1.2) if indent else 0
        found.append(["  " * level + cells[0], *cells[1:]])
    return found


def heading(td: Any) -> str:
    return html.unescape(re.sub(r"<table>.*|</?\w+>", "", td._repr_html_()))


def test_nested_entries_of_several_libraries() -> None:
    td = TensorDict(a=np.zeros((3, 4), "float32"), b={"c": torch.zeros(3, dtype=torch.bfloat16), "d": "name"})
    td = TensorDict({**td, "e": np.zeros(3)}, batch_size=[3], names=["time"]).lock_()
    assert heading(td) == "TensorDict batch_size=[3], names=['time'], locked"
    assert table(td) == [
        ["a", "(3, 4)", "float32", "cpu", "numpy"],
        ["b", "(3,)", "TensorDict", "", ""],
        ["  c", "(3,)", "bfloat16", "cpu", "torch"],
        ["  d", "(3,)", "str", "", ""],
        ["e", "(3,)", "float64", "cpu", "numpy"],
    ]


def test_what_keys_hold_is_text() -> None:
    td = TensorDict({"<script>alert('a')</script>&": np.zeros(1)})
    shown = td._repr_html_()
    assert "<script>" not in shown
    assert table(td)[0][0] == "<script>alert('a')</script>&"


def test_a_tensorclass() -> None:
    step = Step(obs=np.zeros((2, 3)), env="ant", batch_size=[2])
    assert heading(step) == "Step batch_size=[2]"
    assert [row[:3] for row in table(step)] == [
        ["obs", "(2, 3)", "float64"],
        ["env", "(2,)", "str"],
        ["reward", "", "None"],
    ]


def test_a_lazy_stack_of_ragged_arrays() -> None:
    td = corral.lazy_stack([TensorDict(a=np.zeros(n), b=np.zeros(2, "int8")) for n in (2, 3)])
    assert heading(td) == "LazyStackedTensorDict batch_size=[2]"
    assert table(td) == [["a", "(2, -1)", "float64", "cpu", "numpy"], ["b", "(2, 2)", "int8", "cpu", "numpy"]]


def test_objects() -> None:
    for entry in (NonTensorData("a", batch_size=[2]), NonTensorStack("a", "b")):
        assert type(entry).__name__ in heading(entry)


def test_nothing() -> None:
    assert TensorDict()._repr_html_() == "<div><b>TensorDict</b> batch_size=[]</div>"


def test_many_entries() -> None:
    td = TensorDict({f"key {i}": np.zeros(1) for i in range(1000)})
    rows = table(td)
    assert len(rows) == 201
    assert rows[-1] == ["and 800 more"]


def test_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py")
    td = TensorDict(a=np.zeros((3, 2)), b={"c": np.zeros(3, "int32")}, batch_size=[3]).to_h5(tmp_path / "file")

    def read(*args: Any) -> None:
        raise AssertionError("a dataset is read")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", read)
    assert heading(td) == "PersistentTensorDict batch_size=[3]"
    assert [row[:3] for row in table(td)] == [
        ["a", "(3, 2)", "float64"],
        ["b", "(3,)", "TensorDict"],
        ["  c", "(3,)", "int32"],
    ]
    monkeypatch.undo()
    td.close()
    assert heading(td) == "PersistentTensorDict closed"
