"""Assignments to a part of the batch, views of keys, batch sizes: what tensordict does with what is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import NonTensorStack, PersistentTensorDict, TensorDict

KINDS = (TensorDict, tensordict.TensorDict)


def make(kind: Any) -> Any:
    return kind({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}, "s": "x"}, [3])


def plain(td: Any) -> dict[str, Any]:
    return {str(key): value.tolist() for key, value in td.items(True, True)}


def stack(kind: Any, *data: Any) -> Any:
    return (NonTensorStack if kind is TensorDict else tensordict.NonTensorStack)(*data)


ones = torch.ones
MASK = torch.tensor([True, False, True])
ASSIGNMENTS: dict[str, Any] = {
    "row": lambda kind: (0, kind({"a": ones(()), "z": ones(())}, [])),
    "rows": lambda kind: (slice(1, None), kind({"z": ones(2)}, [2])),
    "nested": lambda kind: (0, kind({"n": {"z": ones(())}}, [])),
    "new nested": lambda kind: (0, kind({"q": {"z": ones(2)}}, [])),
    "mask": lambda kind: (MASK, kind({"z": ones(2, 4).long()}, [2])),
    "dict": lambda kind: (0, {"z": ones(())}),
    "positions": lambda kind: (torch.tensor([0, 2]), kind({"z": ones(2)}, [2])),
    "of batches": lambda kind: (0, kind({"q": kind({"z": ones(2, 4)}, [2])}, [])),
    "unsqueezed": lambda kind: (None, kind({"z": ones(1, 3)}, [1, 3])),
    "empty": lambda kind: (0, kind({"q": {}}, [])),
    "longer leaves": lambda kind: (0, kind({"a": ones(1)}, [1])),
    "smaller batch": lambda kind: (slice(0, 2), kind({"a": ones(2)}, [])),
}
REFUSED: dict[str, Any] = {
    "one for two by a mask": lambda kind: (MASK, (make(kind) + 1)[:1]),
    "one for two by a slice": lambda kind: (slice(0, 2), kind({"a": ones(1)}, [1])),
    "one for two by positions": lambda kind: (torch.tensor([0, 2]), kind({"a": ones(1)}, [1])),
    "three for two": lambda kind: (MASK, kind({"a": ones(3)}, [3])),
    "none for two": lambda kind: (MASK, kind({"a": ones(())}, [])),
    "none for all": lambda kind: (slice(None), kind({"z": ones(())}, [])),
}


@pytest.mark.parametrize("case", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_new_keys_are_zeros_elsewhere(case: Any) -> None:
    found = []
    for kind in KINDS:
        td = make(kind)
        index, value = case(kind)
        td[index] = value
        found.append((plain(td), sorted(map(str, td.keys(True))), tuple(td.get("q", td).batch_size)))
    assert found[0] == found[1]


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_batches_that_do_not_fit_are_not_repeated(case: Any) -> None:
    for kind in KINDS:
        td = make(kind)
        index, value = case(kind)
        with pytest.raises(RuntimeError, match="indexed destination TensorDict batch size"):
            td[index] = value
        assert plain(td) == plain(make(kind))


def test_new_objects() -> None:
    for kind in KINDS:
        td = make(kind)
        td[0] = kind({"z": "one"}, [])
        td[:2] = kind({"t": stack(kind, "p", "q")}, [2])
        assert td.get("z").tolist() == ["one"] * 3
        assert td.get("t").tolist() == ["p", "q", None]


def test_new_keys_where_there_can_be_none() -> None:
    for kind in KINDS:
        td = make(kind).lock_()
        with pytest.raises(RuntimeError, match="locked"):
            td[0] = kind({"a": ones(()), "z": ones(())}, [])
        if kind is TensorDict:  # tensordict has written the other keys by then
            assert td["a"].tolist() == [0, 0, 0]


def test_new_keys_of_lazy_stacks() -> None:
    for package, kind in ((corral, TensorDict), (tensordict, tensordict.TensorDict)):
        td = package.lazy_stack([make(kind), make(kind)])
        td[0] = kind({"z": ones(3)}, [3])
        assert "z" in td[0]
        assert "z" not in td[1]
        td[:, 0] = kind({"w": ones(2)}, [2])
        assert td["w"].tolist() == [[1, 0, 0], [1, 0, 0]]


def test_new_keys_in_a_file(tmp_path: Path) -> None:
    td = PersistentTensorDict.from_dict({"a": np.zeros(3)}, tmp_path / "x.h5", batch_size=[3])
    td[1] = TensorDict(a=np.ones(()), z=np.ones(2), n={"y": np.ones(())})
    assert td["z"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert td["n", "y"].tolist() == [0, 1, 0]
    assert td["a"].tolist() == [0, 1, 0]
    td.close()


def test_resizing_leaves_the_value_as_it_was() -> None:
    value = TensorDict(n=TensorDict(x=np.zeros((3, 2)), batch_size=[]), batch_size=[])
    TensorDict(a=np.zeros(3), batch_size=[3]).set("q", value)
    assert value["n"].batch_size == ()


@pytest.mark.parametrize("options", [{}, {"include_nested": True}, {"include_nested": True, "leaves_only": True}])
def test_keys_that_a_view_has(options: Any) -> None:
    keys: list[Any] = ["a", ("a",), ("n", "b"), ("n", ("b",)), ("n", "z"), ("z", "b"), ("a", "b"), "z"]
    mine, theirs = (make(kind).keys(**options) for kind in KINDS)
    assert [key in mine for key in keys] == [key in theirs for key in keys]
    wrong: list[Any] = [1, None, (), ("n", 1)]
    for key in wrong:
        for view in (mine, theirs):
            with pytest.raises(TypeError, match="keys"):
                key in view  # noqa: B015


@pytest.mark.parametrize("size", ["2", b"2", 2.0, [2.0], ["2"], object(), [None]])
def test_batch_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(TypeError, match="batch size is a sequence of integers"):
        TensorDict({"a": ones(2)}, batch_size=size)
    with pytest.raises(TypeError, match="batch size is a sequence of integers"):
        make(TensorDict).batch_size = size


@pytest.mark.parametrize("size", [2, np.int64(2), [2], (2,), np.array([2]), torch.tensor([2]), torch.Size([2])])
def test_batch_sizes(size: Any) -> None:
    for kind in KINDS:
        assert kind({"a": ones(2)}, batch_size=size).batch_size == (2,)


def test_shapes_of_text() -> None:
    for kind in KINDS:
        with pytest.raises(TypeError, match="int"):
            make(kind).view("float64")


def test_objects_under_new_dimensions() -> None:
    for kind in KINDS:
        td = make(kind)
        parts = (td[None], td[..., None], td[None, None], td[None, 0], td.unsqueeze(0), td.unsqueeze(-1))
        assert [part["s"] for part in parts] == ["x"] * 4 + [[["x"] * 3], [["x"]] * 3]


def test_allclose() -> None:
    td = make(TensorDict)
    near = td.clone()
    near["a"] += 1e-7
    assert torch.allclose(td, near, atol=1e-6)
    assert not torch.allclose(td, near, rtol=0, atol=1e-9)
    assert not torch.allclose(td, td.clone().set("s", "other"))
    assert torch.allclose(TensorDict(a=ones(1) * torch.nan), TensorDict(a=ones(1) * torch.nan), equal_nan=True)
    assert torch.allclose(TensorDict(), TensorDict())
    with pytest.raises(KeyError, match="differ"):
        torch.allclose(td, td.exclude("a"))
